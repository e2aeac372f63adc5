// The tensors of a Hugging Face folder by their family's names, which of them a model has used, and how a matrix of the
// model lies in them. Private to src/model.
#pragma once

#include <map>
#include <set>
#include <string>

#include "computron/checkpoint/differences.h"
#include "computron/checkpoint/matrix_source.h"
#include "computron/checkpoint/model_folder.h"
#include "computron/model/family.h"

namespace computron {

class FolderTensors {
 public:
  // Borrows `weights`. Adds to `differences` what stands under two names.
  FolderTensors(const Family& family, const SafetensorsFolder& weights, Differences& differences);

  // The tensor of this name, without the family's prefix; null if there is none.
  const SafetensorsTensor* find(const std::string& plain) const;
  // Its name as stored, for messages.
  std::string name_of(const std::string& plain) const;

  void use(const std::string& plain) { used_.insert(plain); }
  // Calls body(plain name, name as stored) for all that have not been used.
  template <class Body>
  void for_each_unused(Body&& body) const {
    for (const auto& [plain, name] : names_) {
      if (!used_.contains(plain)) body(plain, name);
    }
  }

 private:
  const SafetensorsFolder& weights_;
  std::map<std::string, std::string> names_;  // as stored, by the name without prefix
  std::set<std::string> used_;                // names without prefix
};

// `spec` as the family's files hold it: [out, in] or [in, out], of all parts, and [matrices, out, in] of several.
std::vector<std::size_t> shape_in_files(const TensorSpec& spec, const SourceTensor& source);

// Where the elements of `spec` lie in `stored`, whose shape is shape_in_files().
MatrixSource matrix_of(const TensorSpec& spec, const SourceTensor& source, const SafetensorsTensor& stored,
                       DType dtype);

// Whether they have the same shape, type and values. Error{kIo} naming a file.
bool same_bytes(const SafetensorsTensor& a, const SafetensorsTensor& b);

}  // namespace computron

// The families of models that this program serves: how each writes its configuration, calls its tensors, and which
// sizes of it were published. To add one, see src/model/families/README.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/model/config.h"

namespace computron {

// Outputs of a fused tensor of `total` ones that are no equal part of it: `block` of them from number `first` on, and
// again every `stride` ones. total 0: none, the whole tensor or its equal part.
struct FusedRows {
  std::size_t first = 0, block = 0, stride = 0, total = 0;
};

// Where a canonical tensor lies in a Hugging Face checkpoint.
struct SourceTensor {
  std::string name;              // without the family's prefix
  bool transposed = false;       // stored as [in, out]
  int part = 0, parts = 1;       // one of so many equal parts of the output dimension
  bool interleaved = false;      // a part is every parts-th output, from the part-th on
  int matrix = 0, matrices = 1;  // one of so many equal tensors, side by side along a dimension before all others
  FusedRows fused = {};          // instead of a part; not of transposed ones
};

// Names without ".weight" and ".bias", which end both alike, or two whole names; "{}" stands for a number, in the same
// order on both sides.
struct NameRule {
  std::string_view ours, theirs;
  int part = 0, parts = 1;
  bool transposed = false;   // a weight is; a vector cannot be
  bool interleaved = false;  // SourceTensor::interleaved
  bool stacked = false;      // our last number is of an expert, and theirs is one tensor of all experts
};

struct PublishedSize {
  std::string_view name;
  std::string_view config;  // keys of its config.json
};

class HfKeys;

struct Family {
  std::string_view model_type;
  ModelConfig (*read)(const HfKeys& keys);
  std::span<const NameRule> names;
  std::string_view prefix;                    // files may put it before every name: "model."
  std::span<const std::string_view> ignored;  // tensors (fnmatch patterns, no prefix) that are not computed with
  std::span<const PublishedSize> sizes;
  // Which outputs of a fused tensor a canonical module ("layers.{}.attention.query") has; null: equal parts only.
  FusedRows (*fused)(const ModelConfig& config, std::string_view module) = nullptr;
  bool pooler_of_files = false;        // a pooler that files hold counts, though the model's class has none
  std::string_view outer_prefix = "";  // before `prefix` where the model is a part of a larger one: "language_model."

  // The tensor that a canonical tensor is made of. Error{kInternal} for a name that is not of this family.
  SourceTensor source_of(const ModelConfig& config, const std::string& canonical) const;
  // A tensor's name in a file without the prefix, and with today's names of what was once called otherwise
  // ("LayerNorm.gamma" is "LayerNorm.weight").
  std::string plain_name(std::string_view stored) const;
  bool ignores(const std::string& plain_name) const;
};

// All of them, in the order in which they are listed to people.
std::span<const Family* const> families();
// ConfigError listing the known ones.
const Family& family_of(std::string_view model_type);

}  // namespace computron

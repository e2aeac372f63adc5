// What a folder of sentence-transformers says beside its transformer: the modules behind it, the longest input,
// prompts. Private to src/model.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "computron/checkpoint/model_folder.h"
#include "computron/model/config.h"

namespace computron {

struct SentenceFolder {
  std::string transformer;         // the transformer's own folder within the folder; empty: the folder itself
  std::optional<Pooling> pooling;  // absent: a cross-encoder, whose transformer is a classifier
  int pooled_width = 0;            // what the pooling module says of its rows
  std::vector<DenseLayer> dense;
  std::vector<std::string> dense_folders;  // [dense]
  bool normalize = false;
  std::optional<int> max_input_tokens;
  bool lower_case = false;
  std::map<std::string, std::string> prompts;
  std::string default_prompt;
  std::optional<ClassScores> class_scores;

  // Nothing where the folder has no modules.json. ConfigError naming the file and the module, the kind of pooling or
  // the key that is not supported.
  static std::optional<SentenceFolder> read(const ModelFolder& folder);

  // Makes of the configuration of the transformer alone that of all modules. ConfigError where they do not fit.
  void apply_to(ModelConfig& config) const;
  // Whether a tensor of the transformer's files, without its prefix, belongs to a head that is not one of the modules.
  bool ignores(const std::string& plain_name) const;

 private:
  void refuse_for_pairs() const;
};

}  // namespace computron

#include "computron/model/hf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "computron/base/join.h"
#include "computron/base/printable.h"
#include "computron/model/family.h"
#include "src/model/families/hf_keys.h"
#include "src/model/folder_tensors.h"
#include "src/model/hf_codes.h"
#include "src/model/sentence_folder.h"

namespace computron {
namespace {

constexpr std::size_t kMaxConfigBytes = 4 << 20;  // some list the names of 20,000 classes twice
constexpr std::size_t kMaxTokenizerBytes = 128 << 20;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",      "tokenizer_config.json",
                                           "tokenizer.model",     "vocab.json",
                                           "merges.txt",          "vocab.txt",
                                           "added_tokens.json",   "special_tokens_map.json",
                                           "chat_template.jinja", "preprocessor_config.json"};

std::optional<std::string> text_or_nothing(const ModelFolder& folder, const std::string& name) {
  if (!folder.has(name)) return std::nullopt;
  return folder.read(name, kMaxConfigBytes);
}

// An embedder that is a decoder by name may see all tokens all the same, which its config.json says.
void check_causal(const std::string& config_json) {
  const nlohmann::json object = parse_json_object(config_json);
  const HfKeys keys(object);
  keys.require("use_bidirectional_attention", false, false);
  keys.require("is_causal", true, true);
}

bool has_pooler(const ModelConfig& config, const SafetensorsFolder& weights) {
  const Family& family = family_of(config.architecture);
  if (!family.pooler_of_files) return false;
  const std::string pooler = family.source_of(config, "pooler.weight").name;
  return std::ranges::any_of(weights.tensors(),
                             [&](const auto& tensor) { return family.plain_name(tensor.first) == pooler; });
}

ModelConfig read_config(const ModelFolder& folder, const SafetensorsFolder& weights,
                        const SentenceFolder* sentence) try {
  const std::string config_json = folder.read("config.json", kMaxConfigBytes);
  ModelConfig config = ModelConfig::from_hf_json(config_json, text_or_nothing(folder, "generation_config.json"),
                                                 text_or_nothing(folder, "preprocessor_config.json"));
  if (sentence == nullptr) {
    config.pooler = config.pooler || has_pooler(config, weights);
    return config;
  }
  if (config.causal) check_causal(config_json);
  sentence->apply_to(config);
  config.validate();
  return config;
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", folder.path(), error.what()));
}

std::unique_ptr<SentenceFolder> read_sentence(const ModelFolder& folder) try {
  std::optional<SentenceFolder> sentence = SentenceFolder::read(folder);
  return sentence ? std::make_unique<SentenceFolder>(std::move(*sentence)) : nullptr;
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", folder.path(), error.what()));
}

std::optional<HfQuantisation> read_quantisation(const ModelFolder& folder) try {
  return HfQuantisation::read(folder.read("config.json", kMaxConfigBytes),
                              text_or_nothing(folder, "hf_quant_config.json"));
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", folder.path(), error.what()));
}

// Leading ones may be left out, trailing dimensions may be one: a class token [1, 1, h] is [h], a convolution's weight
// [h, c, p, p] is [h, c × p × p].
bool same_but_flattened(std::vector<std::size_t> stored, const std::vector<std::size_t>& wanted) {
  while (stored.size() > wanted.size() && stored.front() == 1) stored.erase(stored.begin());
  if (stored.size() < wanted.size()) return false;
  std::size_t last = 1;  // no overflow: the file's header has been held against its size
  for (std::size_t i = wanted.size() - 1; i < stored.size(); ++i) last *= stored[i];
  return last == wanted.back() && std::equal(wanted.begin(), wanted.end() - 1, stored.begin());
}

// Finds the tensors of one model in a folder's files and keeps account of what is used.
class Resolver {
 public:
  // `dense`: of the dense layers of `sentence`, which may be null.
  Resolver(const ModelConfig& config, const std::optional<HfQuantisation>& quantisation,
           const SafetensorsFolder& weights, const SentenceFolder* sentence,
           const std::vector<std::unique_ptr<SafetensorsFolder>>& dense)
      : config_(config),
        family_(family_of(config.architecture)),
        weights_(weights),
        sentence_(sentence),
        dense_(dense),
        tensors_(family_, weights, differences_) {
    if (quantisation) codes_.emplace(*quantisation, tensors_, differences_);
  }

  std::vector<HfModel::Source> all(const std::vector<TensorSpec>& specs) {
    std::vector<HfModel::Source> sources;
    for (const TensorSpec& spec : specs) sources.push_back(find(spec));
    tensors_.for_each_unused([&](const std::string& plain, const std::string& name) {
      if (!codes_ || !codes_->is_bias_of_zeros(plain)) report_unused(plain, name);
    });
    for (const std::string& name : weights_.unlisted()) report_unused(family_.plain_name(name), name);
    return sources;
  }

  const Differences& differences() const { return differences_; }
  bool ignored_activations() const { return ignored_activations_; }

 private:
  void report_unused(const std::string& plain, const std::string& name) {
    if (family_.ignores(plain) || (sentence_ != nullptr && sentence_->ignores(plain))) return;
    if (codes_ && HfCodes::is_of_activations(plain)) {
      ignored_activations_ = true;
      return;
    }
    differences_.add(fmt::format("'{}': stored, but not part of the model", printable(name)));
  }

  // A tied head and the embedding are one tensor, stored under either name or, the same, under both.
  std::string name_of_embedding(const std::string& embedding) {
    std::string head = family_.source_of(config_, "head.weight").name;
    const SafetensorsTensor* of_head = tensors_.find(head);
    if (of_head == nullptr) return embedding;
    tensors_.use(head);
    const SafetensorsTensor* of_embedding = tensors_.find(embedding);
    if (of_embedding == nullptr) return head;
    if (!same_bytes(*of_embedding, *of_head)) {
      differences_.add(
          fmt::format("'{}' and '{}' differ, but tie_word_embeddings says that they are one tensor; set it "
                      "to false if they are not",
                      tensors_.name_of(embedding), tensors_.name_of(head)));
    }
    return embedding;
  }

  // "dense.0.weight" is "linear.weight" of the first dense layer's own folder.
  HfModel::Source find_of_dense(const TensorSpec& spec) {
    const std::size_t dot = spec.name.rfind('.'), first = std::size("dense.") - 1;
    const auto layer = static_cast<std::size_t>(std::stoul(spec.name.substr(first, dot - first)));
    const SourceTensor source{.name = "linear" + spec.name.substr(dot)};
    const std::string name = fmt::format("{}/{}", sentence_->dense_folders[layer], source.name);
    const auto found = dense_[layer]->tensors().find(source.name);
    if (found == dense_[layer]->tensors().end()) {
      differences_.add(fmt::format("'{}' ({}): missing", name, spec.name));
      return MatrixSource{};
    }
    const SafetensorsTensor& stored = found->second;
    if (!fits(spec, source, name, *stored.entry)) return MatrixSource{};
    return matrix_of(spec, source, stored, *stored.entry->usable_dtype());
  }

  HfModel::Source find(const TensorSpec& spec) {
    if (spec.name.starts_with("dense.")) return find_of_dense(spec);
    SourceTensor source = family_.source_of(config_, spec.name);
    const bool tied = config_.tied_head && spec.name == "embedding.tokens.weight";
    if (tied) source.name = name_of_embedding(source.name);
    if (codes_ && spec.role == TensorRole::kGemmWeight && codes_->has(source.name)) {
      return codes_->find(spec, source).value_or(CodeSource{});
    }
    tensors_.use(source.name);
    const SafetensorsTensor* found = tensors_.find(source.name);
    if (found == nullptr) {
      differences_.add(fmt::format("'{}' ({}): missing", source.name, spec.name));
      return MatrixSource{};
    }
    if (!fits(spec, source, tensors_.name_of(source.name), *found->entry)) return MatrixSource{};
    return matrix_of(spec, source, *found, *found->entry->usable_dtype());
  }

  bool fits(const TensorSpec& spec, const SourceTensor& source, const std::string& name,
            const SafetensorsEntry& entry) {
    const std::vector<std::size_t> wanted = shape_in_files(spec, source);
    if (!same_but_flattened(entry.shape, wanted)) {
      differences_.add(
          fmt::format("'{}': shape [{}] expected, [{}] stored", name, join(wanted, ", "), join(entry.shape, ", ")));
      return false;
    }
    if (entry.usable_dtype()) return true;
    differences_.add(fmt::format("'{}': stored as {}, only F32, F16 and BF16 are supported{}", name, entry.dtype,
                                 codes_ ? " of what is not quantised"
                                        : "; if the model is quantized, its config.json must say how, in "
                                          "'quantization_config'"));
    return false;
  }

  const ModelConfig& config_;
  const Family& family_;
  const SafetensorsFolder& weights_;
  const SentenceFolder* sentence_;
  const std::vector<std::unique_ptr<SafetensorsFolder>>& dense_;
  Differences differences_;
  FolderTensors tensors_;
  std::optional<HfCodes> codes_;  // of a quantised folder
  bool ignored_activations_ = false;
};

}  // namespace

HfModel::HfModel(const std::string& folder) : HfModel(ModelFolder(folder), read_sentence(ModelFolder(folder))) {}

HfModel::HfModel(const ModelFolder& folder, std::unique_ptr<SentenceFolder> sentence)
    : sentence_(std::move(sentence)),
      folder_(sentence_ && !sentence_->transformer.empty() ? folder.subfolder(sentence_->transformer) : folder),
      weights_(folder_),
      config_(read_config(folder_, weights_, sentence_.get())),
      quantisation_(read_quantisation(folder_)),
      tensors_(tensor_specs(config_)) {
  for (std::size_t i = 0; sentence_ && i < sentence_->dense_folders.size(); ++i) {
    dense_weights_.push_back(std::make_unique<SafetensorsFolder>(folder.subfolder(sentence_->dense_folders[i])));
  }
  Resolver resolver(config_, quantisation_, weights_, sentence_.get(), dense_weights_);
  sources_ = resolver.all(tensors_);
  resolver.differences().throw_if_any(folder.path());
  ignores_activations_ = quantisation_ && (quantisation_->activations || resolver.ignored_activations());
}

HfModel::~HfModel() = default;

std::vector<CarriedFile> HfModel::tokenizer() const {
  std::vector<CarriedFile> files;
  std::size_t bytes = 0;
  for (const char* name : kTokenizerFiles) {
    if (!folder_.has(name)) continue;
    files.push_back({name, folder_.read(name, kMaxCarriedFileBytes)});
    bytes += files.back().content.size();
    if (files.back().content.empty()) throw CheckpointError(fmt::format("{}/{}: empty", folder_.path(), name));
    if (bytes > kMaxTokenizerBytes) {
      throw CheckpointError(
          fmt::format("{}: tokenizer files of {} bytes (limit {})", folder_.path(), bytes, kMaxTokenizerBytes));
    }
  }
  return files;
}

}  // namespace computron

#include "src/model/sentence_folder.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "computron/base/join.h"
#include "src/model/config_json.h"
#include "src/model/families/hf_keys.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 4 << 20;
constexpr std::size_t kMostPromptBytes = 16384;  // kept where a checkpoint's attribute has room for them
constexpr const char* kSettings[] = {"sentence_bert_config.json",       "sentence_roberta_config.json",
                                     "sentence_distilbert_config.json", "sentence_camembert_config.json",
                                     "sentence_albert_config.json",     "sentence_xlm-roberta_config.json",
                                     "sentence_xlnet_config.json"};

json read_object(const ModelFolder& folder, const char* name) {
  return parse_json_object(folder.read(name, kMaxFileBytes), name);
}

json read_object_or_nothing(const ModelFolder& folder, const char* name) {
  return folder.has(name) ? read_object(folder, name) : json::object();
}

struct Module {
  std::string kind;  // "Pooling"
  std::string path;
};

// A type is "sentence_transformers.models.Pooling", in newer folders "....modules.pooling.Pooling".
Module module_of(const json& entry) {
  if (!entry.is_object()) HfKeys::refuse("modules.json", entry, "a list of objects");
  const HfKeys keys(entry);
  const auto type = keys.value("type", "");
  const std::string kind = type.substr(type.rfind('.') + 1);
  static constexpr const char* kKinds[] = {"Transformer", "Pooling", "Dense", "Normalize"};
  const bool known = type.starts_with("sentence_transformers.") && std::ranges::find(kKinds, kind) != std::end(kKinds);
  if (!known) HfKeys::refuse("modules.json: type", type, "sentence_transformers' " + join(kKinds, ", "));
  const auto path = keys.value("path", "");
  if (path.find('/') != std::string::npos) HfKeys::refuse("modules.json: path", path, "a folder's plain name");
  return {kind, path};
}

std::vector<Module> read_modules(const ModelFolder& folder) {
  json list;
  const auto fault = parse_json(folder.read("modules.json", kMaxFileBytes), {.depth = 8}, list);
  if (fault || !list.is_array()) throw ConfigError("modules.json is not a JSON list");
  std::vector<Module> modules;
  for (const json& entry : list) modules.push_back(module_of(entry));
  return modules;
}

// Before there was `pooling_mode` each mode had a flag; where none is set the mean is meant.
std::vector<std::string> pooling_modes(const json& object) {
  static constexpr std::pair<const char*, const char*> kFlags[] = {
      {"pooling_mode_cls_token", "cls"},
      {"pooling_mode_max_tokens", "max"},
      {"pooling_mode_mean_tokens", "mean"},
      {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
      {"pooling_mode_weightedmean_tokens", "weightedmean"},
      {"pooling_mode_lasttoken", "lasttoken"}};
  const HfKeys keys(object);
  std::vector<std::string> modes;
  const auto found = object.find("pooling_mode");
  if (found != object.end() && found->is_array()) return keys.value("pooling_mode", modes);
  if (found != object.end()) return {keys.value("pooling_mode", "mean")};
  for (const auto& [flag, mode] : kFlags) {
    if (keys.value(flag, false)) modes.emplace_back(mode);
  }
  return modes.empty() ? std::vector<std::string>{"mean"} : modes;
}

void read_pooling(const ModelFolder& folder, SentenceFolder& sentence) {
  const json object = read_object(folder, "config.json");
  const HfKeys keys(object);
  const std::vector<std::string> modes = pooling_modes(object);
  static constexpr std::pair<const char*, Pooling> kModes[] = {
      {"cls", Pooling::kFirst}, {"mean", Pooling::kMean}, {"lasttoken", Pooling::kLast}};
  for (const auto& [name, pooling] : kModes) {
    if (modes.size() == 1 && modes.front() == name) sentence.pooling = pooling;
  }
  if (!sentence.pooling) HfKeys::refuse("pooling_mode", modes, "one of cls, mean and lasttoken");
  keys.require("include_prompt", true, true);
  sentence.pooled_width = keys.value("embedding_dimension", keys.value("word_embedding_dimension", 0));
}

Activation dense_activation(const std::string& name) {
  static constexpr std::pair<const char*, Activation> kNames[] = {
      {"torch.nn.modules.linear.Identity", Activation::kNone},
      {"torch.nn.modules.activation.Tanh", Activation::kTanh},
      {"torch.nn.modules.activation.ReLU", Activation::kRelu},
      {"torch.nn.modules.activation.SiLU", Activation::kSilu},
      {"torch.nn.modules.activation.GELU", Activation::kGeluErf}};
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  HfKeys::refuse("activation_function", name, "torch's Identity, Tanh, ReLU, SiLU or GELU");
}

DenseLayer read_dense(const ModelFolder& folder) {
  const json object = read_object(folder, "config.json");
  const HfKeys keys(object);
  const std::string embedding = "sentence_embedding";
  keys.require("use_residual", false, false);
  keys.require("module_input_name", embedding, embedding);
  keys.require("module_output_name", embedding, embedding);
  return {.in = keys.value("in_features", 0),
          .out = keys.value("out_features", 0),
          .bias = keys.value("bias", true),
          .activation = dense_activation(keys.value("activation_function", "torch.nn.modules.activation.Tanh"))};
}

// One of them says it, and what says nothing has no limit of its own: 1e30.
std::optional<int> longest_input(const json& settings, const json& tokenizer) {
  for (const auto& [object, key] :
       {std::pair(&settings, "max_seq_length"), std::pair(&tokenizer, "model_max_length")}) {
    const auto found = object->find(key);
    if (found == object->end() || !found->is_number()) continue;
    const auto value = found->get<double>();
    if (value >= 1) return static_cast<int>(std::min(value, 1e9));
  }
  return std::nullopt;
}

void read_settings(const ModelFolder& folder, SentenceFolder& sentence) {
  json settings = json::object();
  for (const char* name : kSettings) {
    if (settings.empty()) settings = read_object_or_nothing(folder, name);
  }
  sentence.lower_case = HfKeys(settings).value("do_lower_case", false);
  const json tokenizer = read_object_or_nothing(folder, "tokenizer_config.json");
  HfKeys(tokenizer).require<std::string>("truncation_side", "right", "right");
  sentence.max_input_tokens = longest_input(settings, tokenizer);
}

void read_prompts(const HfKeys& keys, SentenceFolder& sentence) {
  std::size_t bytes = 0;
  sentence.prompts = keys.prompts("prompts");
  for (const auto& [name, text] : sentence.prompts) bytes += name.size() + text.size();
  if (bytes > kMostPromptBytes) {
    throw ConfigError(
        fmt::format("config_sentence_transformers.json: 'prompts' of {} bytes (limit {})", bytes, kMostPromptBytes));
  }
  sentence.default_prompt = keys.value("default_prompt_name", "");
  if (!sentence.default_prompt.empty() && !sentence.prompts.contains(sentence.default_prompt)) {
    HfKeys::refuse("default_prompt_name", sentence.default_prompt, "the name of one of the prompts");
  }
}

void add_module(const ModelFolder& folder, const Module& module, SentenceFolder& sentence) {
  if (sentence.normalize) HfKeys::refuse("modules.json", module.kind, "Normalize as the last module");
  if (module.kind == "Normalize") {
    sentence.normalize = true;
    return;
  }
  const ModelFolder own = folder.subfolder(module.path);
  const bool pooled = sentence.pooling.has_value();
  if (module.kind == "Pooling" && !pooled) {
    read_pooling(own, sentence);
  } else if (module.kind == "Dense" && pooled) {
    sentence.dense.push_back(read_dense(own));
    sentence.dense_folders.push_back(module.path);
  } else {
    HfKeys::refuse("modules.json", module.kind, "Transformer, Pooling, then Dense and Normalize");
  }
}

}  // namespace

std::optional<SentenceFolder> SentenceFolder::read(const ModelFolder& folder) {
  if (!folder.has("modules.json")) return std::nullopt;
  const std::vector<Module> modules = read_modules(folder);
  if (modules.empty() || modules.front().kind != "Transformer") {
    throw ConfigError("modules.json: the first module is no Transformer");
  }
  SentenceFolder sentence;
  sentence.transformer = modules.front().path;
  for (std::size_t i = 1; i < modules.size(); ++i) add_module(folder, modules[i], sentence);
  read_settings(sentence.transformer.empty() ? folder : folder.subfolder(sentence.transformer), sentence);
  const json object = read_object_or_nothing(folder, "config_sentence_transformers.json");
  const HfKeys keys(object);
  read_prompts(keys, sentence);
  if (!sentence.pooling) sentence.class_scores = keys.cross_encoder_scores("activation_fn");
  return sentence;
}

void SentenceFolder::apply_to(ModelConfig& config) const {
  if (config.takes_images()) throw ConfigError("modules.json: only models of texts are supported");
  if (!pooling && config.classes == 0) throw ConfigError("modules.json: no Pooling behind the Transformer");
  if (!pooling) refuse_for_pairs();
  if (max_input_tokens) config.max_input_tokens = std::min(*max_input_tokens, config.max_positions);
  config.lower_case = lower_case;
  config.prompts = prompts;
  config.default_prompt = default_prompt;
  if (class_scores) config.class_scores = *class_scores;
  if (!pooling) return;
  if (pooled_width != 0 && pooled_width != config.hidden) {
    throw ConfigError(
        fmt::format("the Pooling module takes rows of {}, but the hidden size is {}", pooled_width, config.hidden));
  }
  config.pooler = config.class_dense = config.class_norm = config.tied_head = false;
  config.classes = 0;
  config.class_names.clear();
  config.logits_scale = 1;
  config.logits_soft_cap = 0;
  config.embeds = config.causal;
  if (config.causal && *pooling == Pooling::kFirst) {
    HfKeys::refuse("pooling_mode", "cls", "mean or lasttoken of a decoder, whose first row sees no other,");
  }
  config.pooling = *pooling;
  config.dense = dense;
  config.normalize_embedding = normalize;
}

// Of a cross-encoder, whose inputs are pairs as its tokenizer puts them together, and whose outputs are scores.
void SentenceFolder::refuse_for_pairs() const {
  if (normalize) throw ConfigError("modules.json: Normalize without a Pooling before it");
  const auto prompt = prompts.find(default_prompt);
  if (prompt == prompts.end() || prompt->second.empty()) return;
  HfKeys::refuse("default_prompt_name", default_prompt, "null of a cross-encoder");
}

bool SentenceFolder::ignores(const std::string& plain_name) const {
  static constexpr const char* kHeads[] = {"pooler.*", "classifier.*", "pre_classifier.*", "lm_head.*",
                                           "cls.*",    "head.*",       "score.*",          "decoder.*"};
  return pooling &&
         std::ranges::any_of(kHeads, [&](const char* pattern) { return fnmatch(pattern, plain_name.c_str(), 0) == 0; });
}

}  // namespace computron

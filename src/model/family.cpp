#include "computron/model/family.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "computron/base/error.h"
#include "computron/base/join.h"
#include "computron/base/log.h"
#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

constexpr const Family* kFamilies[] = {&kOpt,        &kGpt2,    &kLlama,    &kQwen2,    &kQwen3,      &kMistral,
                                       &kMixtral,    &kGemma2,  &kGemma3,   &kOlmo2,    &kOlmo3,      &kGranite,
                                       &kPhi3,       &kGptNeox, &kBert,     &kRoberta,  &kXlmRoberta, &kDistilBert,
                                       &kModernBert, &kVit,     &kQwen2Moe, &kQwen3Moe, &kOlmoe,      &kGptOss};

// Models that take pictures besides: the decoder's configuration is their text_config, and their towers are skipped.
struct Wrapper {
  std::string_view model_type, text_type;
  std::string_view architecture;
};
constexpr Wrapper kWrappers[] = {{"gemma3", "gemma3_text", "Gemma3ForConditionalGeneration"},
                                 {"mistral3", "mistral", "Mistral3ForConditionalGeneration"}};

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "layers.3.mlp" as "layers.{}.mlp" and the numbers 3.
struct Pattern {
  std::string text;
  std::vector<std::string> numbers;
};

Pattern pattern_of(std::string_view name) {
  Pattern pattern;
  while (true) {
    const std::string_view segment = name.substr(0, name.find('.'));
    pattern.text += is_number(segment) ? "{}" : segment;
    if (is_number(segment)) pattern.numbers.emplace_back(segment);
    if (segment.size() == name.size()) return pattern;
    pattern.text += '.';
    name.remove_prefix(segment.size() + 1);
  }
}

std::string fill_in(std::string_view pattern, std::span<const std::string> numbers) {
  std::string name(pattern);
  for (const std::string& number : numbers) name.replace(name.find("{}"), 2, number);
  return name;
}

const NameRule* rule_for(std::span<const NameRule> rules, const std::string& ours) {
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const NameRule& rule) { return rule.ours == ours; });
  return found == rules.end() ? nullptr : &*found;
}

void replace_ending(std::string& name, std::string_view old, std::string_view now) {
  if (name.ends_with(old)) name.replace(name.size() - old.size(), old.size(), now);
}

std::string known_types() {
  std::vector<std::string_view> types;
  for (const Family* family : kFamilies) types.push_back(family->model_type);
  return join(types, ", ");
}

std::string known_sizes(const Family& family) {
  std::vector<std::string_view> names;
  for (const PublishedSize& size : family.sizes) names.push_back(size.name);
  return join(names, ", ");
}

// The decoder's keys: those of text_config, where the model is a wrapper, and the tokens beside it.
nlohmann::json decoder_of(nlohmann::json object) {
  const HfKeys keys(object);
  const auto type = keys.value("model_type", "");
  const auto wrapper =
      std::find_if(std::begin(kWrappers), std::end(kWrappers), [&](const Wrapper& w) { return w.model_type == type; });
  if (wrapper == std::end(kWrappers)) return object;
  keys.architecture({wrapper->architecture});
  const auto found = object.find("text_config");
  if (found == object.end() || !found->is_object()) {
    HfKeys::refuse("text_config", found == object.end() ? nlohmann::json() : *found, "an object");
  }
  nlohmann::json text = *found;
  HfKeys(text).require("model_type", std::string(wrapper->text_type), std::string(wrapper->text_type));
  text["model_type"] = wrapper->text_type;
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (!text.contains(key) && object.contains(key)) text[key] = object[key];
  }
  return text;
}

// Tokens that the model cannot generate mean nothing to it, and published files name some.
void drop_tokens_beyond_vocabulary(ModelConfig& config) {
  const auto beyond = [&](TokenId token) {
    if (token < config.vocab || config.vocab == 0) return false;
    spdlog::warn("model configuration: token {} begins or ends texts, but the vocabulary has {} tokens: it is ignored",
                 token, config.vocab);
    return true;
  };
  std::erase_if(config.eos_tokens, beyond);
  if (beyond(config.bos_token)) config.bos_token = -1;
}

void read_generation(const HfKeys& keys, ModelConfig& config) {
  if (keys.has("eos_token_id")) config.eos_tokens = keys.tokens("eos_token_id", {});
  const std::vector<TokenId> bos = keys.tokens("bos_token_id", {});
  if (!bos.empty()) config.bos_token = bos.front();
}

// transformers' ViTImageProcessor; numbers of `resample` are PIL's.
void read_preprocessor(const HfKeys& keys, ModelConfig& config) {
  if (!config.takes_images()) return;
  const int resample = keys.value("resample", 2);
  if (resample != 2 && resample != 3) HfKeys::refuse("resample", resample, "2 (bilinear) or 3 (bicubic)");
  config.image_resampling = resample == 2 ? Resampling::kBilinear : Resampling::kBicubic;
  keys.require("do_resize", true, true);
  keys.require("do_rescale", true, true);
  keys.require("do_center_crop", false, false);
  const float factor = keys.value("rescale_factor", 1.0f / 255);
  if (std::abs(factor * 255 - 1) > 1e-4f) HfKeys::refuse("rescale_factor", factor, "1/255");
  for (const int side : keys.sides("size")) {
    if (side != config.image_size) HfKeys::refuse("size", side, fmt::format("the model's {}", config.image_size));
  }
  const bool normalize = keys.value("do_normalize", true);
  const std::vector<float> zeros(static_cast<std::size_t>(config.channels), 0), ones(zeros.size(), 1);
  config.image_mean = normalize ? keys.value("image_mean", std::vector<float>{}) : zeros;
  config.image_std = normalize ? keys.value("image_std", std::vector<float>{}) : ones;
}

}  // namespace

SourceTensor Family::source_of(const ModelConfig& config, const std::string& canonical) const {
  const auto source = [&](const NameRule& rule, const Pattern& pattern, std::string_view ending) {
    const std::span numbers(pattern.numbers);
    return SourceTensor{
        .name = fill_in(rule.theirs, rule.stacked ? numbers.first(numbers.size() - 1) : numbers) + std::string(ending),
        .transposed = rule.transposed && !canonical.ends_with(".bias"),
        .part = rule.part,
        .parts = rule.parts,
        .interleaved = rule.interleaved,
        .matrix = rule.stacked ? std::stoi(numbers.back()) : 0,
        .matrices = rule.stacked ? config.experts : 1,
        .fused = fused == nullptr ? FusedRows{} : fused(config, rule.ours)};
  };
  const Pattern whole = pattern_of(canonical);
  if (const NameRule* rule = rule_for(names, whole.text)) return source(*rule, whole, "");
  const std::size_t dot = canonical.rfind('.');
  ensure(dot != std::string::npos, "a tensor that its family has no name for");
  const Pattern module = pattern_of(std::string_view(canonical).substr(0, dot));
  const NameRule* rule = rule_for(names, module.text);
  ensure(rule != nullptr, "a tensor that its family has no name for");
  return source(*rule, module, std::string_view(canonical).substr(dot));
}

std::string Family::plain_name(std::string_view stored) const {
  // transformers has put the outer one behind the other since 4.52.
  for (const std::string_view known : {outer_prefix, prefix, outer_prefix}) {
    if (stored.starts_with(known)) stored.remove_prefix(known.size());
  }
  std::string name(stored);
  replace_ending(name, "LayerNorm.gamma", "LayerNorm.weight");
  replace_ending(name, "LayerNorm.beta", "LayerNorm.bias");
  return name;
}

bool Family::ignores(const std::string& plain_name) const {
  return std::any_of(ignored.begin(), ignored.end(), [&](std::string_view pattern) {
    return fnmatch(std::string(pattern).c_str(), plain_name.c_str(), 0) == 0;
  });
}

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return *family;
  }
  throw ConfigError(fmt::format("model configuration: 'model_type' is \"{}\", only {} are supported",
                                model_type.substr(0, 100), known_types()));
}

ModelConfig ModelConfig::from_hf_json(const std::string& config_json, const std::optional<std::string>& generation_json,
                                      const std::optional<std::string>& preprocessor_json) {
  const nlohmann::json object = decoder_of(parse_json_object(config_json));
  const HfKeys keys(object);
  if (keys.has("kv_lora_rank")) HfKeys::refuse("kv_lora_rank", object["kv_lora_rank"], "attention without it (no MLA)");
  const Family& family = family_of(keys.value("model_type", ""));
  ModelConfig config = family.read(keys);
  config.architecture = family.model_type;
  if (generation_json) read_generation(HfKeys(parse_json_object(*generation_json, "generation_config.json")), config);
  drop_tokens_beyond_vocabulary(config);
  config.validate();
  if (preprocessor_json) {
    read_preprocessor(HfKeys(parse_json_object(*preprocessor_json, "preprocessor_config.json")), config);
  }
  config.validate();
  return config;
}

ModelConfig ModelConfig::named(std::string_view arch, std::string_view size) {
  const auto family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family* f) { return f->model_type == arch; });
  if (family == std::end(kFamilies)) {
    throw Error(ExitCode::kUsage, fmt::format("unknown architecture '{}' (known: {})", arch, known_types()));
  }
  for (const PublishedSize& known : (*family)->sizes) {
    if (size != known.name) continue;
    nlohmann::json config = parse_json_object(std::string(known.config));
    config["model_type"] = arch;
    return from_hf_json(config.dump());
  }
  throw Error(ExitCode::kUsage, fmt::format("unknown size '{}' of {} (known: {})", size, arch, known_sizes(**family)));
}

}  // namespace computron

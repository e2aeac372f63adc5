#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/model/peft_config.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/printable.h"
#include "computron/model/adapter.h"

namespace computron {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxKeyBytes = 4096;
constexpr std::uint32_t kMatchLimit = 100'000;  // steps of one match
constexpr int kMaxDepth = 16;

// Keys of LoraConfig that say how the adapter was made or trained, or what its file shows: nothing is computed
// otherwise for them.
constexpr std::string_view kOfTraining[] = {"auto_mapping",   "base_model_name_or_path",
                                            "corda_config",   "ensure_weight_tying",
                                            "eva_config",     "exclude_modules",
                                            "fan_in_fan_out", "inference_mode",
                                            "layers_pattern", "layers_to_transform",
                                            "loftq_config",   "lora_dropout",
                                            "lora_ga_config", "megatron_config",
                                            "megatron_core",  "modules_to_save",
                                            "peft_version",   "qalora_group_size",
                                            "revision",       "runtime_config",
                                            "target_modules", "task_type"};
// Those that are read.
constexpr std::string_view kRead[] = {"alpha_pattern", "bias",     "init_lora_weights", "lora_alpha", "peft_type", "r",
                                      "rank_pattern",  "use_dora", "use_rslora"};
// Beginnings that leave the base's weights as they were. The others (pissa, olora, loftq, corda, ...) subtract what the
// adapter begins with from the base, and the file does not hold that.
constexpr std::string_view kPlainBeginnings[] = {"eva", "gaussian", "orthogonal"};

std::string text_of(const ordered_json& value) {
  return printable(value.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace), 100);
}

[[noreturn]] void refuse(std::string_view key, const ordered_json& value, std::string_view wanted) {
  throw ConfigError(
      fmt::format("adapter_config.json: '{}' is {}, only {} is supported", printable(key), text_of(value), wanted));
}

ordered_json parse(const std::string& text) {
  ordered_json json;
  if (parse_json(text, {.depth = kMaxDepth}, json) || !json.is_object()) {
    throw ConfigError("adapter_config.json is not a JSON object");
  }
  return json;
}

template <class List>
bool contains(const List& list, std::string_view key) {
  return std::ranges::find(list, key) != std::end(list);
}

// null, false, "" and empty lists and objects switch nothing on.
bool switches_on(const ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();  // null is empty, a number is not
}

void check_kind(const ordered_json& json) {
  const ordered_json kind = json.value("peft_type", ordered_json());
  if (kind != "LORA") refuse("peft_type", kind, "\"LORA\"");
  const ordered_json dora = json.value("use_dora", ordered_json());
  if (switches_on(dora)) refuse("use_dora", dora, "LoRA without magnitudes (no DoRA)");
  const ordered_json bias = json.value("bias", ordered_json("none"));
  if (bias != "none") refuse("bias", bias, "\"none\"");
  const ordered_json beginning = json.value("init_lora_weights", ordered_json(true));
  const bool plain = beginning.is_boolean() || beginning.is_null() ||
                     (beginning.is_string() && contains(kPlainBeginnings, beginning.get_ref<const std::string&>()));
  if (!plain) {
    refuse("init_lora_weights", beginning,
           "what leaves the base as it was (save with path_initial_model_for_weight_conversion)");
  }
  for (const auto& [key, value] : json.items()) {
    if (contains(kOfTraining, key) || contains(kRead, key) || !switches_on(value)) continue;
    refuse(key, value, "null");
  }
}

// PEFT compares whole names, and ends of names behind a dot.
bool is_named_by(const std::string& end, const std::string& module) {
  if (!module.ends_with(end)) return false;
  return module.size() == end.size() || module[module.size() - end.size() - 1] == '.';
}

bool names(const std::vector<std::string>& ends, const std::string& module) {
  return std::ranges::any_of(ends, [&](const std::string& end) { return is_named_by(end, module); });
}

// Of a list; none where the key has something else.
std::vector<std::string> names_of(const ordered_json& json, const char* key) {
  std::vector<std::string> names;
  const ordered_json given = json.value(key, ordered_json());
  if (!given.is_array()) return names;
  for (const ordered_json& name : given) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) refuse(key, given, "a list of modules' names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

// Also divided by any rank.
constexpr double kLeast = 1e-30, kMost = 1e30;

double positive(std::string_view key, const ordered_json& value) {
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!(number > kLeast && number < kMost)) refuse(key, value, "a number above 0 that float32 can scale by");
  return number;
}

double rank(std::string_view key, const ordered_json& value) {
  const bool allowed = value.is_number_integer() && value.get<double>() >= 1 && value.get<double>() <= kMaxAdapterRank;
  if (!allowed) refuse(key, value, fmt::format("an integer from 1 to {}", kMaxAdapterRank));
  return value.get<double>();
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

// A key of rank_pattern or alpha_pattern. peft matches re.match(rf"(.*\.)?({key})$", module).
struct PeftConfig::Pattern {
  using Code = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;

  Pattern(const std::string& key, double number) : text(key), value(number), code(nullptr, &pcre2_code_free) {
    const std::string whole = fmt::format(R"((?:.*\.)?(?:{})$)", key);
    int error = 0;
    PCRE2_SIZE where = 0;
    if (key.size() <= kMaxKeyBytes) {
      code.reset(
          pcre2_compile(units(whole), whole.size(), PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr));
    }
    if (code == nullptr) {
      throw ConfigError(
          fmt::format("adapter_config.json: '{}' is no regular expression that is understood", printable(key, 100)));
    }
  }

  bool matches(const std::string& module) const {
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create_from_pattern(code.get(), nullptr), &pcre2_match_data_free);
    const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
        pcre2_match_context_create(nullptr), &pcre2_match_context_free);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    const int found = pcre2_match(code.get(), units(module), module.size(), 0, 0, data.get(), context.get());
    if (found >= 0 || found == PCRE2_ERROR_NOMATCH) return found >= 0;
    throw ConfigError(fmt::format("adapter_config.json: '{}' takes too many steps to be matched with '{}'",
                                  printable(text, 100), printable(module, 100)));
  }

  std::string text;
  double value;
  Code code;
};

PeftConfig::PeftConfig(const std::string& text) {
  const ordered_json json = parse(text);
  check_kind(json);
  rank_ = rank("r", json.value("r", ordered_json(8)));
  alpha_ = positive("lora_alpha", json.value("lora_alpha", ordered_json(8)));
  const ordered_json stabilized = json.value("use_rslora", ordered_json(false));
  rank_stabilized_ = switches_on(stabilized);
  const auto read = [&](const char* key, const auto& number_of, std::vector<Pattern>& patterns) {
    const ordered_json given = json.value(key, ordered_json());
    if (!given.is_null() && !given.is_object()) refuse(key, given, "an object");
    for (const auto& [pattern, value] : given.items()) {
      patterns.emplace_back(pattern, number_of(fmt::format("{}: {}", key, pattern), value));
    }
  };
  read("rank_pattern", rank, ranks_);
  read("alpha_pattern", positive, alphas_);
  targets_ = names_of(json, "target_modules");
  for (const char* some : {"exclude_modules", "layers_to_transform"}) {
    if (switches_on(json.value(some, ordered_json()))) targets_.clear();
  }
}

PeftConfig::~PeftConfig() = default;
PeftConfig::PeftConfig(PeftConfig&&) noexcept = default;

double PeftConfig::value_of(const std::vector<Pattern>& patterns, const std::string& module, double otherwise) {
  const auto found = std::ranges::find_if(patterns, [&](const Pattern& pattern) { return pattern.matches(module); });
  return found == patterns.end() ? otherwise : found->value;
}

std::size_t PeftConfig::rank_of(const std::string& module) const {
  return static_cast<std::size_t>(value_of(ranks_, module, rank_));
}

bool PeftConfig::targets(const std::string& module) const { return names(targets_, module); }

float PeftConfig::scale_of(const std::string& module) const {
  const double alpha = value_of(alphas_, module, alpha_), rank = value_of(ranks_, module, rank_);
  return static_cast<float>(alpha / (rank_stabilized_ ? std::sqrt(rank) : rank));
}

}  // namespace computron

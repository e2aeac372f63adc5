#include "src/requests/sampling_check.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "computron/base/json_text.h"
#include "src/requests/request_fields.h"

namespace computron {
namespace {

constexpr std::size_t kMaxBiases = 1024;
constexpr double kMaxBias = 100;
constexpr double kMaxRepetitionPenalty = 10;
// Lower temperatures are greedy, as in vLLM's samplers: logits over 1e-38 are no numbers of float32.
constexpr double kLeastTemperature = 1e-5;

TokenId biased_token(const std::string& name, const ServedModel& model) {
  TokenId token = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
  if (error == std::errc{} && end == name.data() + name.size() && token >= 0 && token < model.config.vocab)
    return token;
  invalid_parameter(fmt::format("body.logit_bias: keys are token ids of {}, from \"0\" to \"{}\" (got {})", model.id,
                                model.config.vocab - 1, shown(name)));
}

std::vector<std::pair<TokenId, float>> logit_bias(const RequestDraft& draft, const ServedModel& model) {
  const JsonValue& bias = field(draft.body, "logit_bias");
  if (bias.kind == JsonValue::Kind::kNull) return {};
  if (bias.kind != JsonValue::Kind::kObject || draft.logit_bias.size() > kMaxBiases) {
    invalid_parameter(fmt::format("body.logit_bias: must be an object of at most {} token ids and numbers (got {})",
                                  kMaxBiases, describe(bias)));
  }
  std::vector<std::pair<TokenId, float>> biases;
  for (const auto& [name, value] : draft.logit_bias) {
    if (!is_number(value) || number_of(value) < -kMaxBias || number_of(value) > kMaxBias) {
      invalid_parameter(fmt::format("body.logit_bias.{}: must be a number from {} to {} (got {})", cut(name), -kMaxBias,
                                    kMaxBias, describe(value)));
    }
    biases.emplace_back(biased_token(name, model), static_cast<float>(number_of(value)));
  }
  return biases;
}

}  // namespace

SamplingParams sampling_of(const RequestDraft& draft, const ServedModel& model, int max_tokens) {
  const OptionalFields body(draft.body);
  const auto number = [&body](std::string_view name, double low, double high, double fallback) {
    return static_cast<float>(body.number(name, low, high, fallback));
  };
  seed_of(draft.body);
  const double temperature = body.number("temperature", 0, 2, 0);
  // -1 and 0 both mean: all.
  const auto top_k = static_cast<int>(body.integer("top_k", -1, std::numeric_limits<int>::max(), 0));
  return {.temperature = temperature < kLeastTemperature ? 0 : static_cast<float>(temperature),
          .top_k = top_k < 0 ? 0 : top_k,
          .top_p = number("top_p", 0, 1, 1),
          .min_p = number("min_p", 0, 1, 0),
          .repetition_penalty = number("repetition_penalty", 0.01, kMaxRepetitionPenalty, 1),
          .frequency_penalty = number("frequency_penalty", -2, 2, 0),
          .presence_penalty = number("presence_penalty", -2, 2, 0),
          .logit_bias = logit_bias(draft, model),
          .min_tokens = static_cast<std::uint32_t>(body.integer("min_tokens", 0, max_tokens, 0))};
}

std::int64_t seed_of(const JsonFields& body) {
  return OptionalFields(body).integer("seed", std::numeric_limits<std::int64_t>::min(),
                                      std::numeric_limits<std::int64_t>::max(), 0);
}

}  // namespace computron

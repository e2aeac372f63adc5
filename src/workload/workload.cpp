#include "computron/workload/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>
#include <span>
#include <tuple>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/base/json_text.h"
#include "computron/requests/model_list.h"
#include "computron/workload/arrivals.h"

namespace computron {
namespace {

constexpr double kMaxTokens = 1e8;  // of all prompts: what still fits into memory as text

[[noreturn]] void refuse(const std::string& why) { throw Error(ExitCode::kUsage, "workload: " + why); }

// splitmix64: the n-th value is a hash of key and n.
class Generator {
 public:
  explicit Generator(std::uint64_t key) : state_(key) {}
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ull;
    return mix64(state_);
  }
  // In (0, 1), never 0, whose logarithm is wanted.
  double uniform() { return (static_cast<double>(bits() >> 12) + 0.5) * 0x1p-52; }
  // In [low, high). The bias of the multiplication is below 2^-32.
  std::int32_t integer(std::int32_t low, std::int32_t high) {
    const auto range = static_cast<std::uint64_t>(high - low);
    return low + static_cast<std::int32_t>(((bits() >> 32) * range) >> 32);
  }
  // Marsaglia's polar method, one of its pair.
  double normal() {
    for (;;) {
      const double x = 2 * uniform() - 1, y = 2 * uniform() - 1;
      const double square = x * x + y * y;
      if (square < 1 && square > 0) return x * std::sqrt(-2 * std::log(square) / square);
    }
  }

 private:
  std::uint64_t state_;
};

// Gamma with scale 1. Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000); a
// shape below 1 by their section 6: Gamma(shape + 1) · U^(1/shape).
double gamma(Generator& random, double shape) {
  if (shape < 1) {
    const double boost = std::pow(random.uniform(), 1 / shape);
    return gamma(random, shape + 1) * boost;
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(random.uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

// Of what, "arrivals" or "prompts".
Generator generator_of(std::uint64_t seed, const WorkloadModel& model, std::string_view what) {
  const std::string name = fmt::format("{} of {}", what, model.id);
  return Generator(digest64(std::as_bytes(std::span(name)), mix64(seed)));
}

void draw_prompt(Generator& random, int vocab, std::size_t tokens, std::vector<TokenId>& prompt) {
  prompt.resize(tokens);
  for (TokenId& token : prompt) token = random.integer(kFirstPromptToken, vocab);
}

double whole_microseconds(double time_s) { return std::floor(time_s * 1e6) / 1e6; }

// Of one model, in order of arrival; ids are not set.
std::vector<Request> requests_of(const WorkloadOptions& options, ModelId m) {
  const WorkloadModel& model = options.models[m];
  Generator arrivals = generator_of(options.seed, model, "arrivals");
  Generator prompts = generator_of(options.seed, model, "prompts");
  const double shape = 1 / (options.cv * options.cv), scale = 1 / (shape * model.rate_per_s);
  std::vector<Request> requests;
  for (double time = scale * gamma(arrivals, shape); time < options.duration_s;
       time += scale * gamma(arrivals, shape)) {
    Request& request = requests.emplace_back();
    request.model = m;
    draw_prompt(prompts, options.vocab, static_cast<std::size_t>(options.prompt_tokens), request.prompt);
    request.max_tokens = options.max_tokens;
    request.ignore_eos = true;
    request.arrival_s = whole_microseconds(time);
  }
  return requests;
}

void check_models(const std::vector<WorkloadModel>& models) {
  if (models.empty()) refuse("no models: give --model ID=RATE or --models and --rates");
  std::set<std::string_view> ids;
  for (const WorkloadModel& model : models) {
    if (!is_model_id(model.id)) refuse(fmt::format("{} is no model id", shown(model.id)));
    if (!ids.insert(model.id).second) refuse(fmt::format("the model {} is named twice", shown(model.id)));
    if (!(std::isfinite(model.rate_per_s) && model.rate_per_s > 0)) {
      refuse(fmt::format("the rate of {} is {}, expected requests per second > 0", shown(model.id), model.rate_per_s));
    }
  }
}

void check(const WorkloadOptions& options) {
  check_models(options.models);
  if (!(options.cv >= kMinCv && options.cv <= kMaxCv)) {
    refuse(fmt::format("--cv is {}, expected {} to {}", options.cv, kMinCv, kMaxCv));
  }
  if (!(std::isfinite(options.duration_s) && options.duration_s > 0)) {
    refuse(fmt::format("--duration is {}, expected seconds > 0", options.duration_s));
  }
  if (options.prompt_tokens < 1)
    refuse(fmt::format("--prompt-tokens is {}, expected at least 1", options.prompt_tokens));
  if (options.max_tokens < 1) refuse(fmt::format("--max-tokens is {}, expected at least 1", options.max_tokens));
  if (options.vocab <= kFirstPromptToken) {
    refuse(fmt::format("--vocab is {}, expected more than {}", options.vocab, kFirstPromptToken));
  }
  double rate = 0;
  for (const WorkloadModel& model : options.models) rate += model.rate_per_s;
  const double requests = rate * options.duration_s;
  if (requests * std::max(options.prompt_tokens, 16) > kMaxTokens) {
    refuse(
        fmt::format("--duration {} makes about {} requests of {} prompt tokens; the limit is {} million tokens, and a "
                    "request counts as 16 at least",
                    options.duration_s, std::round(requests), options.prompt_tokens, kMaxTokens / 1e6));
  }
}

std::string list_of(const std::vector<TokenId>& tokens) {
  std::string list;
  for (const TokenId token : tokens) {
    if (!list.empty()) list += ',';
    list += std::to_string(token);
  }
  return list;
}

std::string line_of(const std::string& id, const Request& request, std::size_t number) {  // no id needs an escape
  const std::string tokens = list_of(request.prompt);
  const bool embeds = request.task == Task::kEmbed;
  const std::string body =
      embeds ? fmt::format(R"({{"model":"{}","input":[{}]}})", id, tokens)
             : fmt::format(R"({{"model":"{}","prompt":[{}],"max_tokens":{},"temperature":0,"ignore_eos":true}})", id,
                           tokens, request.max_tokens);
  return fmt::format(R"({{"custom_id":"{}-{}","method":"POST","url":"/v1/{}","arrival":{:.6f},"body":{}}})", id, number,
                     embeds ? "embeddings" : "completions", request.arrival_s, body) +
         "\n";
}

}  // namespace

std::vector<WorkloadModel> parse_workload_models(const std::vector<std::string>& items) {
  std::vector<WorkloadModel> models;
  for (const std::string& item : items) {
    const std::size_t equals = item.find('=');
    double rate = 0;
    const char* end = item.data() + item.size();
    const bool number = equals != std::string::npos && std::from_chars(item.data() + equals + 1, end, rate) ==
                                                           std::from_chars_result{end, std::errc()};
    if (!number) refuse(fmt::format("--model {}: must be ID=RATE, requests per second", shown(item)));
    models.push_back({item.substr(0, equals), rate});
  }
  return models;
}

std::vector<WorkloadModel> join_workload_models(const std::vector<std::string>& ids, const std::vector<double>& rates) {
  if (ids.size() != rates.size()) {
    refuse(fmt::format("--models names {} and --rates has {}: expected one each", ids.size(), rates.size()));
  }
  std::vector<WorkloadModel> models;
  for (std::size_t i = 0; i < ids.size(); ++i) models.push_back({ids[i], rates[i]});
  return models;
}

std::vector<Request> make_workload(const WorkloadOptions& options) {
  check(options);
  std::vector<Request> requests;
  for (ModelId m = 0; m < options.models.size(); ++m) {
    std::vector<Request> own = requests_of(options, m);
    std::move(own.begin(), own.end(), std::back_inserter(requests));
  }
  std::stable_sort(requests.begin(), requests.end(), [&options](const Request& a, const Request& b) {
    return std::tie(a.arrival_s, options.models[a.model].id) < std::tie(b.arrival_s, options.models[b.model].id);
  });
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].id = i;
  return requests;
}

void draw_prompts(std::vector<Request>& requests, const std::vector<WorkloadModel>& models, std::uint64_t seed,
                  int vocab) {
  std::vector<Generator> generators;
  for (const WorkloadModel& model : models) generators.push_back(generator_of(seed, model, "prompts"));
  for (Request& request : requests) {
    draw_prompt(generators[request.model], vocab, request.prompt.size(), request.prompt);
    request.arrival_s = whole_microseconds(request.arrival_s);
  }
}

std::string workload_lines(const std::vector<WorkloadModel>& models, const std::vector<Request>& requests) {
  std::vector<std::size_t> made(models.size());
  std::string lines;
  for (const Request& request : requests) lines += line_of(models[request.model].id, request, made[request.model]++);
  return lines;
}

}  // namespace computron

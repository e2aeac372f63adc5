#include "src/apps/arrival_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "computron/base/error.h"
#include "computron/base/json_text.h"
#include "computron/workload/workload.h"
#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

const std::map<std::string, TraceFormat> kTraceFormats = {{"azure-2019", TraceFormat::kAzureFunctions2019},
                                                          {"azure-2021", TraceFormat::kAzureFunctions2021},
                                                          {"azure-llm", TraceFormat::kAzureLlm},
                                                          {"mooncake", TraceFormat::kMooncake},
                                                          {"servegen", TraceFormat::kServeGen}};

[[noreturn]] void refuse(const ArrivalOptions& options, const std::string& why) {
  throw Error(ExitCode::kUsage, options.command + ": " + why);
}

// [model] of all models; those that are named have their own.
std::vector<double> rates_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models) {
  if (options.model_rates.empty()) return power_law_rates(models.size(), options.rate_per_s, options.skew);
  std::vector<double> rates;
  const auto named = parse_workload_models(options.model_rates);
  for (const ModelProfile& model : models) {
    const double rate_per_s = std::ranges::find(named, model.id, &WorkloadModel::id)->rate_per_s;
    if (!(std::isfinite(rate_per_s) && rate_per_s >= 0)) {
      refuse(options,
             fmt::format("--model {}: the rate is {}, expected requests per second >= 0", shown(model.id), rate_per_s));
    }
    rates.push_back(rate_per_s);
  }
  return rates;
}

TraceUse trace_of(const ArrivalOptions& options) {
  return {.file = options.trace,
          .format = kTraceFormats.at(options.trace_format),
          .mapping = options.trace_mapping == "blocks" ? SourceMapping::kBlocks : SourceMapping::kStripe,
          .span = {options.trace_start_s, options.has_duration ? options.duration_s : 0},
          .window_s = options.trace_window_s,
          .scales = {options.rate_scale, options.cv_scale},
          .skew = options.skew};
}

// Behind what is said of a trace: which part of it, and what was made of it.
std::string part_text(const ArrivalOptions& options) {
  std::string text;
  if (options.trace_start_s > 0) text += fmt::format(", from {:g} s on", options.trace_start_s);
  if (options.has_duration) text += fmt::format(", {:g} s of it", options.duration_s);
  if (options.trace_window_s > 0) text += fmt::format(", windows of {:g} s", options.trace_window_s);
  if (options.rate_scale != 1) text += fmt::format(", {:g} times its rate", options.rate_scale);
  if (options.cv_scale != 1) text += fmt::format(", {:g} times its windows' cv", options.cv_scale);
  return text;
}

std::string basis_of_trace(const ArrivalOptions& options) {
  const bool drawn =
      options.trace_window_s > 0 || options.trace_format == "azure-2019" || options.trace_format == "servegen";
  if (!drawn) return fmt::format("the second half of {}{}", options.trace, part_text(options));
  return fmt::format("arrivals as in {}{}{}", options.trace, part_text(options),
                     options.searches ? ", of other seeds than those searched with" : "");
}

}  // namespace

void add_arrival_options(CLI::App& app, ArrivalOptions& o) {
  auto* rate = app.add_option("--rate", o.rate_per_s, "Requests a second of all models")->check(positive_number());
  auto* items = app.add_option("--model", o.model_rates,
                               "A model and its requests a second, as ID=RATE, instead of --rate; repeat for more. "
                               "Models that are not named are left out");
  items->allow_extra_args(false);  // what follows may be the profiles
  auto* known = app.add_option("--known", o.known, "So many requests instead, all there from the start");
  known->check(CLI::Range(1u, 10'000'000u));
  auto* trace = app.add_option("--trace", o.trace, "The requests of this trace instead; servegen: a folder");
  for (auto* other : {items, known, trace}) rate->excludes(other);
  for (auto* other : {known, trace}) items->excludes(other);
  known->excludes(trace);
  auto* format = app.add_option("--trace-format", o.trace_format,
                                "azure-2019, azure-2021 (Functions), azure-llm (2023), mooncake or servegen");
  format->check(one_of(kTraceFormats))->needs(trace);
  trace->needs(format);
  app.option_defaults()->always_capture_default();
  app.add_option("--prompt-tokens", o.prompt_tokens, "Of a prompt, or of an encoder's input")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--max-tokens", o.max_tokens, "That each request generates; encoders generate none")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--cv", o.cv, "Coefficient of variation of the times between arrivals; 1 is Poisson")
      ->check(number_between(kMinCv, kMaxCv))
      ->excludes(known)
      ->excludes(trace);
  app.add_option("--skew", o.skew, "Of the models' shares, (place in the file)^-skew; 0: even")
      ->check(number_between(0, 100))
      ->excludes(items);
  app.add_option("--duration", o.duration_s, "Seconds of requests; of a trace all of it, unless given")
      ->check(positive_number())
      ->excludes(known);
  app.add_option("--seed", o.seed,
                 o.searches ? "Of the requests that the search sees; it is judged by others"
                            : "As of computron plan, whose prediction is of the same requests")
      ->check(CLI::Range(0u, 2'000'000'000u))
      ->excludes(known);
  app.add_option("--trace-start", o.trace_start_s, "Seconds of the trace that are left out")
      ->check(number_between(0, 1e9))
      ->needs(trace);
  app.add_option("--trace-window", o.trace_window_s,
                 "Not the trace's own requests but Gamma arrivals as in each of its windows of so many seconds")
      ->check(positive_number())
      ->needs(trace);
  app.add_option("--trace-mapping", o.trace_mapping, "Functions to models: stripe (in turn) or blocks")
      ->check(CLI::IsMember({"stripe", "blocks"}))
      ->needs(trace);
  app.add_option("--rate-scale", o.rate_scale, "So many times the trace's rate")
      ->check(positive_number())
      ->needs(trace);
  app.add_option("--cv-scale", o.cv_scale, "So many times its windows' cv; of azure-2019 the cv itself")
      ->check(positive_number())
      ->needs(trace);
  group_options(app, "Requests",
                {"--rate", "--model", "--known", "--cv", "--skew", "--duration", "--seed", "--prompt-tokens",
                 "--max-tokens", "--trace", "--trace-format", "--trace-start", "--trace-window", "--trace-mapping",
                 "--rate-scale", "--cv-scale"});
}

void note_given(const CLI::App& app, ArrivalOptions& options) {
  options.has_duration = app.get_option("--duration")->count() > 0;
}

std::vector<ModelProfile> models_of(const ArrivalOptions& options, const std::vector<ModelProfile>& profiled,
                                    const std::string& file_name) {
  if (options.model_rates.empty()) return profiled;
  std::vector<ModelProfile> models;
  const auto named = parse_workload_models(options.model_rates);
  for (const WorkloadModel& model : named) {
    const auto known = std::ranges::find(profiled, model.id, &ModelProfile::id);
    if (known == profiled.end()) {
      refuse(options, fmt::format("--model {}: the profiles '{}' have no such model", shown(model.id), file_name));
    }
    if (std::ranges::count(named, model.id, &WorkloadModel::id) > 1) {
      refuse(options, fmt::format("--model {} is there twice", shown(model.id)));
    }
    models.push_back(*known);
  }
  return models;
}

ArrivalSets arrivals_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models) {
  const auto seed = static_cast<std::uint32_t>(options.seed);
  if (!options.trace.empty()) return sets_of_trace(trace_of(options), static_cast<std::uint32_t>(models.size()), seed);
  if (options.known > 0) {
    return sets_of_known(divided_requests(options.known, power_law_rates(models.size(), 1, options.skew)));
  }
  if (options.model_rates.empty() && options.rate_per_s == 0) {
    refuse(options, "no requests: give --rate, --model ID=RATE, --known or --trace");
  }
  return sets_by_rule(GammaGaps{options.cv}, rates_of(options, models), options.duration_s, seed);
}

std::string basis_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models) {
  if (!options.trace.empty()) return basis_of_trace(options);
  if (options.known > 0) {
    return fmt::format("{} requests that are there from the start{}", options.known,
                       options.searches ? " (the same that were searched with)" : "");
  }
  const auto rates = rates_of(options, models);
  const std::uint64_t first = options.seed + models.size();
  return fmt::format("Gamma arrivals, cv {:g}, {:g} requests/s, {:g} s, seeds {} to {}", options.cv,
                     std::accumulate(rates.begin(), rates.end(), 0.0), options.duration_s, first,
                     first + models.size() - 1);
}

}  // namespace computron

#include "src/apps/arrival_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>

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

double number_of(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const bool whole = std::from_chars(text.data(), end, value) == std::from_chars_result{end, std::errc()};
  return whole ? value : std::nan("");
}

MarkovModulated states_of(const ArrivalOptions& options) {
  MarkovModulated process;
  for (const std::string& item : options.states) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const double mean_s = number_of(std::string_view(item).substr(0, equals));
    const double rate = number_of(std::string_view(item).substr(std::min(equals + 1, item.size())));
    if (!(std::isfinite(mean_s) && mean_s > 0 && std::isfinite(rate) && rate >= 0)) {
      refuse(options, fmt::format("--state {}: must be SECONDS=RATE, above 0 and from 0 on", shown(item)));
    }
    process.states.push_back({mean_s, rate});
  }
  return process;
}

ArrivalProcess process_of(const ArrivalOptions& options) {
  if (options.arrivals == "pareto") return ParetoGaps{options.shape};
  if (options.arrivals == "weibull") return WeibullGaps{options.shape};
  if (options.arrivals == "even") return EvenGaps{};
  if (options.arrivals == "mmpp") return states_of(options);
  return GammaGaps{options.cv};
}

std::string process_text(const ArrivalOptions& options) {
  if (options.arrivals == "pareto") return fmt::format("Pareto arrivals, shape {:g}", options.shape);
  if (options.arrivals == "weibull") return fmt::format("Weibull arrivals, shape {:g}", options.shape);
  if (options.arrivals == "even") return "even arrivals";
  if (options.arrivals == "mmpp") {
    return std::accumulate(options.states.begin(), options.states.end(), std::string("MMPP arrivals, states"),
                           [](const std::string& text, const std::string& state) { return text + " " + state; });
  }
  return fmt::format("Gamma arrivals, cv {:g}", options.cv);
}

// [model] of `total`.
std::vector<double> shared(const ArrivalOptions& options, std::size_t models, double total) {
  if (options.shares == "triangle") return triangle_decay_rates(models, total);
  return power_law_rates(models, total, options.shares == "even" ? 0 : options.skew);
}

// Behind what is divided among the models.
std::string shares_text(const ArrivalOptions& options) {
  if (options.shares == "triangle") return " by triangle decay";
  return options.shares == "even" ? "" : fmt::format(" by power law {:g}", options.skew);
}

// Whether the requests of the trace have no sources that could be mapped to models, so that they are dealt to them.
bool is_dealt(const ArrivalOptions& options) {
  return options.trace_format == "azure-llm" || options.trace_format == "mooncake";
}

// [model] of all models; those that are named have their own.
std::vector<double> rates_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models) {
  if (options.model_rates.empty()) return shared(options, models.size(), options.rate_per_s);
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

TraceUse trace_of(const ArrivalOptions& options, std::size_t models) {
  return {.file = options.trace,
          .format = kTraceFormats.at(options.trace_format),
          .mapping = options.trace_mapping == "blocks" ? SourceMapping::kBlocks : SourceMapping::kStripe,
          .span = {options.trace_start_s, options.has_duration ? options.duration_s : 0},
          .window_s = options.trace_window_s,
          .scales = {options.rate_scale, options.cv_scale},
          .shares = options.shares == "even" ? std::vector<double>() : shared(options, models, 1)};
}

// Behind what is said of a trace: which part of it, and what was made of it.
std::string part_text(const ArrivalOptions& options) {
  std::string text;
  if (options.trace_start_s > 0) text += fmt::format(", from {:g} s on", options.trace_start_s);
  if (options.has_duration) text += fmt::format(", {:g} s of it", options.duration_s);
  if (options.trace_window_s > 0) text += fmt::format(", windows of {:g} s", options.trace_window_s);
  if (options.rate_scale != 1) text += fmt::format(", {:g} times its rate", options.rate_scale);
  if (options.cv_scale != 1) text += fmt::format(", {:g} times its windows' cv", options.cv_scale);
  const std::string shares = shares_text(options);
  if (!shares.empty() || (is_dealt(options) && options.seed > 0)) text += ", dealt to the models" + shares;
  if (is_dealt(options) && options.seed > 0) text += fmt::format(", seed {}", options.seed);
  return text;
}

std::string basis_of_trace(const ArrivalOptions& options) {
  const bool drawn =
      options.trace_window_s > 0 || options.trace_format == "azure-2019" || options.trace_format == "servegen";
  if (!drawn) return fmt::format("the second half of {}{}", options.trace, part_text(options));
  return fmt::format("arrivals as in {}{}{}", options.trace, part_text(options),
                     options.searches ? ", of other seeds than those searched with" : "");
}

bool is_given(const CLI::App& app, const char* option) { return app.get_option(option)->count() > 0; }

// The parameters of processes are given with those that have them.
void check_processes(const CLI::App& app, const ArrivalOptions& options) {
  const std::string& arrivals = options.arrivals;
  const bool is_mmpp = arrivals == "mmpp", has_shape = arrivals == "pareto" || arrivals == "weibull";
  const auto check = [&](const char* option, bool has_use) {
    if (is_given(app, option) && !has_use)
      refuse(options, fmt::format("{}: --arrivals {} has no use for it", option, arrivals));
  };
  check("--cv", arrivals == "gamma");
  check("--shape", has_shape);
  check("--state", is_mmpp);
  check("--seed", arrivals != "even");
  if (has_shape && !is_given(app, "--shape"))
    refuse(options, fmt::format("--arrivals {}: --shape is not given", arrivals));
  if (arrivals == "pareto" && !(options.shape > 1)) {
    refuse(options, fmt::format("--shape: {:g} of --arrivals pareto is not above 1", options.shape));
  }
  if (is_mmpp && options.states.size() < 2)
    refuse(options, "--arrivals mmpp: give --state SECONDS=RATE twice at least");
}

// What the trace's requests come from decides which options say something.
void check_trace_options(const CLI::App& app, const ArrivalOptions& options) {
  if (options.trace.empty()) return;
  const auto check = [&](const char* option, bool has_use, const char* why) {
    if (!is_given(app, option) || has_use) return;
    refuse(options, fmt::format("{}: --trace-format {} has no use for it: {}", option, options.trace_format, why));
  };
  const bool is_2021 = options.trace_format == "azure-2021", has_minutes = options.trace_format == "azure-2019";
  for (const char* option : {"--shares", "--skew"}) {
    check(option, is_dealt(options), "its requests have sources, which are mapped to models");
  }
  check("--trace-mapping", !is_dealt(options), "its requests have one source, and are dealt to the models");
  check("--trace-window", !has_minutes, "its windows are its minutes");
  const bool halves = is_2021 && options.trace_window_s == 0;
  check("--seed", !halves, "the search sees the first half of it, the prediction is of the second");
}

// How requests follow each other, and how they are divided among models. Behind the options that say which requests.
void add_process_options(CLI::App& app, ArrivalOptions& o) {
  app.add_option("--arrivals", o.arrivals,
                 "How they follow each other: gamma (--cv), pareto or weibull (--shape), even, or mmpp (--state), a "
                 "Markov-modulated Poisson process")
      ->check(CLI::IsMember({"gamma", "pareto", "weibull", "even", "mmpp"}))
      ->excludes(app.get_option("--known"))
      ->excludes(app.get_option("--trace"));
  app.add_option("--cv", o.cv, "Coefficient of variation of the times between arrivals; 1 is Poisson")
      ->check(number_between(kMinCv, kMaxCv))
      ->excludes(app.get_option("--known"))
      ->excludes(app.get_option("--trace"));
  app.add_option("--shares", o.shares,
                 "Of the models: even, power-law ((place in the file)^-skew), or triangle (1, twice 1/2, four times "
                 "1/4, ...)")
      ->check(CLI::IsMember({"even", "power-law", "triangle"}))
      ->excludes(app.get_option("--model"));
  app.add_option("--skew", o.skew, "Of the power law, which it asks for")
      ->check(number_between(0, 100))
      ->excludes(app.get_option("--model"));
  app.add_option(
         "--state", o.states,
         "A state of MMPP arrivals: its mean seconds and its rate, as SECONDS=RATE; repeat for the others. Only "
         "ratios of the rates count")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--shape", o.shape, "Of Pareto (above 1) and Weibull arrivals (1 is Poisson, less is bursts)")
      ->check(positive_number())
      ->default_str("");
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
  add_process_options(app, o);
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
                {"--rate",        "--model",         "--known",         "--arrivals",   "--cv",
                 "--shape",       "--state",         "--shares",        "--skew",       "--duration",
                 "--seed",        "--prompt-tokens", "--max-tokens",    "--trace",      "--trace-format",
                 "--trace-start", "--trace-window",  "--trace-mapping", "--rate-scale", "--cv-scale"});
}

void note_given(const CLI::App& app, ArrivalOptions& options) {
  check_processes(app, options);
  check_trace_options(app, options);
  if (is_given(app, "--skew") && is_given(app, "--shares") && options.shares != "power-law") {
    refuse(options, fmt::format("--skew: --shares {} has no use for it", options.shares));
  }
  options.has_duration = is_given(app, "--duration");
  if (is_given(app, "--skew")) options.shares = "power-law";
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
  if (!options.trace.empty()) {
    return sets_of_trace(trace_of(options, models.size()), static_cast<std::uint32_t>(models.size()), seed);
  }
  if (options.known > 0) return sets_of_known(divided_requests(options.known, shared(options, models.size(), 1)));
  if (options.model_rates.empty() && options.rate_per_s == 0) {
    refuse(options, "no requests: give --rate, --model ID=RATE, --known or --trace");
  }
  return sets_by_rule(process_of(options), rates_of(options, models), options.duration_s, seed);
}

std::string basis_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models) {
  const char* const the_same = options.searches ? " (the same that were searched with)" : "";
  if (!options.trace.empty()) return basis_of_trace(options);
  if (options.known > 0) {
    return fmt::format("{} requests{} that are there from the start{}", options.known, shares_text(options), the_same);
  }
  const auto rates = rates_of(options, models);
  const std::string text =
      fmt::format("{}, {:g} requests/s{}, {:g} s", process_text(options),
                  std::accumulate(rates.begin(), rates.end(), 0.0), shares_text(options), options.duration_s);
  if (options.arrivals == "even") return text + the_same;
  const std::uint64_t first = options.seed + models.size();
  return fmt::format("{}, seeds {} to {}", text, first, first + models.size() - 1);
}

}  // namespace computron

#include "src/apps/plan_options.h"

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

constexpr std::int64_t kPageBytes = std::int64_t{8} << 20;  // as jobs have on CPUs

const std::map<std::string, TraceFormat> kTraceFormats = {{"azure-2019", TraceFormat::kAzureFunctions2019},
                                                          {"azure-2021", TraceFormat::kAzureFunctions2021},
                                                          {"azure-llm", TraceFormat::kAzureLlm},
                                                          {"mooncake", TraceFormat::kMooncake},
                                                          {"servegen", TraceFormat::kServeGen}};
const std::map<std::string, Objective> kObjectives = {
    {"attainment", Objective::kAttainment}, {"latency", Objective::kMeanLatency}, {"makespan", Objective::kMakespan}};
const std::map<std::string, ReplicaRule> kReplicaRules = {
    {"any", ReplicaRule::kAny}, {"tp", ReplicaRule::kSameTp}, {"shape", ReplicaRule::kSameShape}};

template <class Value>
CLI::IsMember one_of(const std::map<std::string, Value>& known) {
  std::vector<std::string> names;
  for (const auto& [name, value] : known) names.push_back(name);
  return CLI::IsMember(names);
}

[[noreturn]] void refuse(const std::string& why) { throw Error(ExitCode::kUsage, "plan: " + why); }

double number_of(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const bool whole = std::from_chars(text.data(), end, value) == std::from_chars_result{end, std::errc()};
  return whole ? value : std::nan("");
}

MarkovModulated states_of(const PlanOptions& options) {
  MarkovModulated process;
  for (const std::string& item : options.states) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const double mean_s = number_of(std::string_view(item).substr(0, equals));
    const double rate = number_of(std::string_view(item).substr(std::min(equals + 1, item.size())));
    if (!(std::isfinite(mean_s) && mean_s > 0 && std::isfinite(rate) && rate >= 0)) {
      refuse(fmt::format("--state {}: must be SECONDS=RATE, above 0 and from 0 on", shown(item)));
    }
    process.states.push_back({mean_s, rate});
  }
  return process;
}

ArrivalProcess process_of(const PlanOptions& options) {
  if (options.arrivals == "pareto") return ParetoGaps{options.shape};
  if (options.arrivals == "weibull") return WeibullGaps{options.shape};
  if (options.arrivals == "even") return EvenGaps{};
  if (options.arrivals == "mmpp") return states_of(options);
  return GammaGaps{options.cv};
}

std::string process_text(const PlanOptions& options) {
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
std::vector<double> shared(const PlanOptions& options, std::size_t models, double total) {
  if (options.shares == "triangle") return triangle_decay_rates(models, total);
  return power_law_rates(models, total, options.shares == "even" ? 0 : options.skew);
}

// Behind what is divided among the models.
std::string shares_text(const PlanOptions& options) {
  if (options.shares == "triangle") return " by triangle decay";
  return options.shares == "even" ? "" : fmt::format(" by power law {:g}", options.skew);
}

// Whether the requests of the trace have no sources that could be mapped to models, so that they are dealt to them.
bool is_dealt(const PlanOptions& options) {
  return options.trace_format == "azure-llm" || options.trace_format == "mooncake";
}

// [model] of all models; those that are named have their own.
std::vector<double> rates_of(const PlanOptions& options, const std::vector<ModelProfile>& models) {
  if (options.model_rates.empty()) return shared(options, models.size(), options.rate_per_s);
  std::vector<double> rates;
  const auto named = parse_workload_models(options.model_rates);
  for (const ModelProfile& model : models) {
    const double rate_per_s = std::ranges::find(named, model.id, &WorkloadModel::id)->rate_per_s;
    if (!(std::isfinite(rate_per_s) && rate_per_s >= 0)) {
      refuse(fmt::format("--model {}: the rate is {}, expected requests per second >= 0", shown(model.id), rate_per_s));
    }
    rates.push_back(rate_per_s);
  }
  return rates;
}

TraceUse trace_of(const PlanOptions& options, std::size_t models) {
  return {.file = options.trace,
          .format = kTraceFormats.at(options.trace_format),
          .mapping = options.trace_mapping == "blocks" ? SourceMapping::kBlocks : SourceMapping::kStripe,
          .span = {options.trace_start_s, options.has_duration ? options.duration_s : 0},
          .window_s = options.trace_window_s,
          .scales = {options.rate_scale, options.cv_scale},
          .shares = options.shares == "even" ? std::vector<double>() : shared(options, models, 1)};
}

std::int64_t bytes_of(const char* option, const std::string& text, std::int64_t otherwise) {
  if (text.empty()) return otherwise;
  const std::size_t bytes = size_of(option, text);
  if (bytes < 1 || bytes > std::size_t{1} << 60) refuse(fmt::format("{}: {} cannot be", option, shown(text)));
  return static_cast<std::int64_t>(bytes);
}

[[noreturn]] void missing(const char* option, const char* key) {
  refuse(fmt::format("neither {} nor the profiles' machine.{} is given", option, key));
}

ClusterMemory memory_of(const PlanOptions& options, const MachineProfile& machine) {
  ClusterMemory memory;
  memory.device_bytes = bytes_of("--device-memory", options.device_memory, machine.device_bytes);
  if (memory.device_bytes == 0) missing("--device-memory", "device_memory");
  if (options.swap == "off") return memory;
  ClusterMemory::Swapping swapping;
  const std::int64_t node_bytes = bytes_of("--host-memory", options.host_memory, machine.host_bytes);
  if (node_bytes == 0) missing("--host-memory", "host_memory");
  const int of_node = options.ranks_per_node > 0 ? options.ranks_per_node : machine.ranks_per_node;
  swapping.ranks_per_node = of_node > 0 ? std::min(of_node, options.ranks) : options.ranks;
  swapping.host_bytes = node_bytes / swapping.ranks_per_node;
  swapping.page_bytes = bytes_of("--page-size", options.page_size, machine.page_bytes);
  if (swapping.page_bytes == 0) swapping.page_bytes = kPageBytes;
  swapping.link_bytes_per_s = options.link_gb_per_s > 0 ? options.link_gb_per_s * 1e9 : machine.link_bytes_per_s;
  if (swapping.link_bytes_per_s == 0) missing("--link-gbps", "link_gbps");
  memory.swapping = swapping;
  return memory;
}

// Behind what is said of a trace: which part of it, and what was made of it.
std::string part_text(const PlanOptions& options) {
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

std::string basis_of_trace(const PlanOptions& options) {
  const bool drawn =
      options.trace_window_s > 0 || options.trace_format == "azure-2019" || options.trace_format == "servegen";
  if (!drawn) return fmt::format("the second half of {}{}", options.trace, part_text(options));
  return fmt::format("arrivals as in {}{}, of other seeds than those searched with", options.trace, part_text(options));
}

// How requests follow each other, and how they are divided among models. Behind the options that say which requests.
void add_arrival_options(CLI::App& app, PlanOptions& o) {
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

void add_workload_options(CLI::App& app, PlanOptions& o) {
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
  add_arrival_options(app, o);
  app.add_option("--duration", o.duration_s, "Seconds of requests; of a trace all of it, unless given")
      ->check(positive_number())
      ->excludes(known);
  app.add_option("--seed", o.seed, "Of the requests that the search sees; it is judged by others")
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
                {"--rate", "--model", "--known", "--arrivals", "--cv", "--shape", "--state", "--shares", "--skew",
                 "--duration", "--seed", "--trace", "--trace-format", "--trace-start", "--trace-window",
                 "--trace-mapping", "--rate-scale", "--cv-scale"});
}

void add_machine_options(CLI::App& app, PlanOptions& o) {
  app.add_option("--ranks", o.ranks, "Of the job")->required()->check(CLI::Range(1, 4096));
  app.add_option("--device-memory", o.device_memory, "Of a rank, for weights (as the profiles say)");
  app.add_option("--host-memory", o.host_memory, "Of a node, for weights (as the profiles say)");
  app.add_option("--ranks-per-node", o.ranks_per_node, "(as the profiles say, or all)")->check(CLI::Range(1, 4096));
  app.add_option("--link-gbps", o.link_gb_per_s, "GB/s of each rank's host link (as the profiles say)")
      ->check(positive_number());
  app.add_option("--page-size", o.page_size, "Bytes of a page (as the profiles say, or 8 MiB)");
  app.add_option("--swap", o.swap, "off: the models of a group must fit its devices together")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  group_options(
      app, "Machine",
      {"--ranks", "--device-memory", "--host-memory", "--ranks-per-node", "--link-gbps", "--page-size", "--swap"});
}

void add_search_options(CLI::App& app, PlanOptions& o) {
  app.add_option("--objective", o.objective,
                 "attainment (share of requests in time), latency (mean) or makespan (until the last has ended)")
      ->check(one_of(kObjectives))
      ->capture_default_str();
  auto* slo = app.add_option("--slo", o.slo_s, "In time is a request within so many seconds, or");
  slo->check(positive_number());
  app.add_option("--slo-scale", o.slo_scale, "so many times what it takes alone on the fewest ranks")
      ->check(positive_number())
      ->excludes(slo)
      ->capture_default_str();
  app.add_option("--replicas", o.replicas,
                 "What replicas of a model have in common: tp, shape (tp and pp: for GPUs), any (for --reproducible)")
      ->check(one_of(kReplicaRules))
      ->capture_default_str();
  app.add_flag("--exact", o.exact,
               "Not the search but the least makespan of all placements, proven; of few models and ranks, for --known");
  app.add_option("--time-limit", o.time_limit_s, "End the search after so many seconds with the best so far")
      ->check(positive_number());
  app.add_flag("--quiet", o.quiet, "Say nothing while searching");
  group_options(app, "Search",
                {"--objective", "--slo", "--slo-scale", "--replicas", "--exact", "--time-limit", "--quiet"});
}

bool is_given(const CLI::App& app, const char* option) { return app.get_option(option)->count() > 0; }

// The parameters of processes are given with those that have them.
void check_arrival_options(const CLI::App& app, const PlanOptions& options) {
  const std::string& arrivals = options.arrivals;
  const bool is_mmpp = arrivals == "mmpp", has_shape = arrivals == "pareto" || arrivals == "weibull";
  const auto check = [&](const char* option, bool has_use) {
    if (is_given(app, option) && !has_use) refuse(fmt::format("{}: --arrivals {} has no use for it", option, arrivals));
  };
  check("--cv", arrivals == "gamma");
  check("--shape", has_shape);
  check("--state", is_mmpp);
  check("--seed", arrivals != "even");
  if (has_shape && !is_given(app, "--shape")) refuse(fmt::format("--arrivals {}: --shape is not given", arrivals));
  if (arrivals == "pareto" && !(options.shape > 1)) {
    refuse(fmt::format("--shape: {:g} of --arrivals pareto is not above 1", options.shape));
  }
  if (is_mmpp && options.states.size() < 2) refuse("--arrivals mmpp: give --state SECONDS=RATE twice at least");
}

// What the trace's requests come from decides which options say something.
void check_trace_options(const CLI::App& app, const PlanOptions& options) {
  if (options.trace.empty()) return;
  const auto check = [&](const char* option, bool has_use, const char* why) {
    if (!is_given(app, option) || has_use) return;
    refuse(fmt::format("{}: --trace-format {} has no use for it: {}", option, options.trace_format, why));
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

}  // namespace

void add_plan_options(CLI::App& app, PlanOptions& options) {
  app.add_option("profiles", options.profiles, "What requests cost: a JSON file (src/placement/README.md)")->required();
  app.add_option("--output", options.output, "Placement file to write, for computron serve --placement");
  add_machine_options(app, options);
  add_search_options(app, options);
  add_workload_options(app, options);
}

void complete_plan_options(const CLI::App& app, PlanOptions& options) {
  options.has_duration = is_given(app, "--duration");
  if (is_given(app, "--skew")) options.shares = "power-law";
}

void check_plan_options(const CLI::App& app, const PlanOptions& options) {
  const auto given = [&app](const char* option) { return is_given(app, option); };
  check_arrival_options(app, options);
  check_trace_options(app, options);
  if (given("--skew") && given("--shares") && options.shares != "power-law") {
    refuse(fmt::format("--skew: --shares {} has no use for it", options.shares));
  }
  if (options.exact && (options.known == 0 || options.objective != "makespan")) {
    refuse("--exact: is for --known requests and --objective makespan");
  }
  if (options.objective != "attainment") {
    for (const char* option : {"--slo", "--slo-scale"}) {
      if (given(option)) refuse(fmt::format("{}: --objective {} has no use for it", option, options.objective));
    }
  }
  if (options.swap != "off") return;
  for (const char* option : {"--host-memory", "--ranks-per-node", "--link-gbps", "--page-size"}) {
    if (given(option)) refuse(fmt::format("{}: --swap off has no use for it", option));
  }
}

std::vector<ModelProfile> models_of(const PlanOptions& options, const ProfileFile& file) {
  if (options.model_rates.empty()) return file.models;
  std::vector<ModelProfile> models;
  const auto named = parse_workload_models(options.model_rates);
  for (const WorkloadModel& model : named) {
    const auto known = std::ranges::find(file.models, model.id, &ModelProfile::id);
    if (known == file.models.end()) {
      refuse(fmt::format("--model {}: the profiles '{}' have no such model", shown(model.id), options.profiles));
    }
    if (std::ranges::count(named, model.id, &WorkloadModel::id) > 1) {
      refuse(fmt::format("--model {} is there twice", shown(model.id)));
    }
    models.push_back(*known);
  }
  return models;
}

ArrivalSets arrivals_of(const PlanOptions& options, const std::vector<ModelProfile>& models) {
  const auto seed = static_cast<std::uint32_t>(options.seed);
  if (!options.trace.empty()) {
    return sets_of_trace(trace_of(options, models.size()), static_cast<std::uint32_t>(models.size()), seed);
  }
  if (options.known > 0) return sets_of_known(divided_requests(options.known, shared(options, models.size(), 1)));
  if (options.model_rates.empty() && options.rate_per_s == 0) {
    refuse("no requests: give --rate, --model ID=RATE, --known or --trace");
  }
  return sets_by_rule(process_of(options), rates_of(options, models), options.duration_s, seed);
}

std::string basis_of(const PlanOptions& options, const std::vector<ModelProfile>& models) {
  if (!options.trace.empty()) return basis_of_trace(options);
  if (options.known > 0) {
    return fmt::format("{} requests{} that are there from the start (the same that were searched with)", options.known,
                       shares_text(options));
  }
  const auto rates = rates_of(options, models);
  const std::string text =
      fmt::format("{}, {:g} requests/s{}, {:g} s", process_text(options),
                  std::accumulate(rates.begin(), rates.end(), 0.0), shares_text(options), options.duration_s);
  if (options.arrivals == "even") return text + " (the same that were searched with)";
  const std::uint64_t first = options.seed + models.size();
  return fmt::format("{}, seeds {} to {}", text, first, first + models.size() - 1);
}

SearchProblem problem_of(const PlanOptions& options, const MachineProfile& machine, std::vector<ModelProfile> models,
                         std::vector<Arrival> training) {
  SearchProblem problem;
  for (const ModelProfile& model : models) {
    const double slo_s = options.slo_s > 0 ? options.slo_s : options.slo_scale * model.alone_s();
    problem.slo_s.push_back(static_cast<float>(slo_s));
  }
  problem.models = std::move(models);
  problem.arrivals = std::move(training);
  problem.ranks = options.ranks;
  problem.memory = memory_of(options, machine);
  problem.objective = kObjectives.at(options.objective);
  problem.replicas = kReplicaRules.at(options.replicas);
  problem.complete = true;
  problem.stage_penalty = machine.stage_penalty;
  problem.constant_s = machine.constant_s;
  return problem;
}

}  // namespace computron

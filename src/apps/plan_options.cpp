#include "src/apps/plan_options.h"

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

// [model] of all models; those that are named have their own.
std::vector<double> rates_of(const PlanOptions& options, const std::vector<ModelProfile>& models) {
  if (options.model_rates.empty()) return power_law_rates(models.size(), options.rate_per_s, options.skew);
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

TraceUse trace_of(const PlanOptions& options) {
  return {.file = options.trace,
          .format = kTraceFormats.at(options.trace_format),
          .mapping = options.trace_mapping == "blocks" ? SourceMapping::kBlocks : SourceMapping::kStripe,
          .span = {options.trace_start_s, options.has_duration ? options.duration_s : 0},
          .window_s = options.trace_window_s,
          .scales = {options.rate_scale, options.cv_scale},
          .skew = options.skew};
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
  return text;
}

std::string basis_of_trace(const PlanOptions& options) {
  const bool drawn =
      options.trace_window_s > 0 || options.trace_format == "azure-2019" || options.trace_format == "servegen";
  if (!drawn) return fmt::format("the second half of {}{}", options.trace, part_text(options));
  return fmt::format("arrivals as in {}{}, of other seeds than those searched with", options.trace, part_text(options));
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
                {"--rate", "--model", "--known", "--cv", "--skew", "--duration", "--seed", "--trace", "--trace-format",
                 "--trace-start", "--trace-window", "--trace-mapping", "--rate-scale", "--cv-scale"});
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
  app.add_option("--time-limit", o.time_limit_s, "End the search after so many seconds with the best so far")
      ->check(positive_number());
  app.add_flag("--quiet", o.quiet, "Say nothing while searching");
  group_options(app, "Search", {"--objective", "--slo", "--slo-scale", "--replicas", "--time-limit", "--quiet"});
}

}  // namespace

void add_plan_options(CLI::App& app, PlanOptions& options) {
  app.add_option("profiles", options.profiles, "What requests cost: a JSON file (src/placement/README.md)")->required();
  app.add_option("--output", options.output, "Placement file to write, for computron serve --placement");
  add_machine_options(app, options);
  add_search_options(app, options);
  add_workload_options(app, options);
}

void check_plan_options(const CLI::App& app, const PlanOptions& options) {
  const auto given = [&app](const char* option) { return app.get_option(option)->count() > 0; };
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
  if (!options.trace.empty()) return sets_of_trace(trace_of(options), static_cast<std::uint32_t>(models.size()), seed);
  if (options.known > 0) {
    return sets_of_known(divided_requests(options.known, power_law_rates(models.size(), 1, options.skew)));
  }
  if (options.model_rates.empty() && options.rate_per_s == 0) {
    refuse("no requests: give --rate, --model ID=RATE, --known or --trace");
  }
  return sets_by_rule(GammaGaps{options.cv}, rates_of(options, models), options.duration_s, seed);
}

std::string basis_of(const PlanOptions& options, const std::vector<ModelProfile>& models) {
  if (!options.trace.empty()) return basis_of_trace(options);
  if (options.known > 0) {
    return fmt::format("{} requests that are there from the start (the same that were searched with)", options.known);
  }
  const auto rates = rates_of(options, models);
  const std::uint64_t first = options.seed + models.size();
  return fmt::format("Gamma arrivals, cv {:g}, {:g} requests/s, {:g} s, seeds {} to {}", options.cv,
                     std::accumulate(rates.begin(), rates.end(), 0.0), options.duration_s, first,
                     first + models.size() - 1);
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

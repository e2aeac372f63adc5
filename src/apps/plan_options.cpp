#include "src/apps/plan_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "computron/base/error.h"
#include "computron/base/json_text.h"
#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

constexpr std::int64_t kPageBytes = std::int64_t{8} << 20;  // as jobs have on CPUs

const std::map<std::string, Objective> kObjectives = {
    {"attainment", Objective::kAttainment}, {"latency", Objective::kMeanLatency}, {"makespan", Objective::kMakespan}};
const std::map<std::string, ReplicaRule> kReplicaRules = {
    {"any", ReplicaRule::kAny}, {"tp", ReplicaRule::kSameTp}, {"shape", ReplicaRule::kSameShape}};

[[noreturn]] void refuse(const std::string& why) { throw Error(ExitCode::kUsage, "plan: " + why); }

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
  app.add_option("--rescore", o.rescore,
                 "So many of the best placements are played pass by pass, as computron simulate does, and the best is "
                 "chosen; 0, and with --exact: as the search says")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  app.add_option("--policy", o.policy,
                 "They are played so, as of computron serve (throughput for a makespan, otherwise balanced)")
      ->check(CLI::IsMember({"fifo", "balanced", "throughput"}));
  app.add_option("--max-seqs", o.max_seqs, "with so many sequences of a model at a time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-batch-tokens", o.max_batch_tokens,
                 "and so many tokens of a pass (2048; where a profile says nothing of passes: one request)")
      ->check(CLI::Range(1, 10'000'000));
  app.add_flag("--quiet", o.quiet, "Say nothing while searching");
  group_options(app, "Search",
                {"--objective", "--slo", "--slo-scale", "--replicas", "--exact", "--time-limit", "--rescore",
                 "--policy", "--max-seqs", "--max-batch-tokens", "--quiet"});
}

}  // namespace

void add_plan_options(CLI::App& app, PlanOptions& options) {
  app.add_option("profiles", options.profiles, "What requests cost: a JSON file (src/placement/README.md)")->required();
  app.add_option("--output", options.output, "Placement file to write, for computron serve --placement");
  add_machine_options(app, options);
  add_search_options(app, options);
  add_arrival_options(app, options.requests);
}

void check_plan_options(const CLI::App& app, const PlanOptions& options) {
  const auto given = [&app](const char* option) { return app.get_option(option)->count() > 0; };
  if (options.exact && (options.requests.known == 0 || options.objective != "makespan")) {
    refuse("--exact: is for --known requests and --objective makespan");
  }
  if (options.exact || options.rescore == 0) {
    for (const char* option : {"--policy", "--max-seqs", "--max-batch-tokens"}) {
      if (given(option)) refuse(fmt::format("{}: nothing is played, so there is no use for it", option));
    }
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

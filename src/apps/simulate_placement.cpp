#include "src/apps/simulate_placement.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "computron/base/error.h"
#include "computron/base/json_text.h"
#include "computron/base/time.h"
#include "computron/placement/profile_file.h"
#include "computron/plan/predicted_run.h"
#include "computron/requests/placement.h"
#include "computron/storage/files.h"
#include "computron/workload/workload.h"
#include "src/apps/request_shapes.h"
#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

[[noreturn]] void wrong(const std::string& why) { throw Error(ExitCode::kUsage, "simulate: " + why); }

// --- What is to be played ---------------------------------------------------------------------------------------

// Those that requests are for first, as computron plan has them; then the others, which the placement may have, too.
std::vector<ModelProfile> all_models(std::vector<ModelProfile> models, const ProfileFile& file) {
  const std::size_t named = models.size();
  for (const ModelProfile& model : file.models) {
    const auto known = models.begin() + static_cast<std::ptrdiff_t>(named);
    if (std::ranges::find(models.begin(), known, model.id, &ModelProfile::id) == known) models.push_back(model);
  }
  return models;
}

void check_cut(const ModelProfile& model, const GroupSpec& group, const ShapeProfile& profile) {
  const auto cut = group.layers.find(model.id);
  if (cut == group.layers.end() || profile.layers.empty() || cut->second == profile.layers) return;
  wrong(fmt::format("the placement cuts {} otherwise than its profile at tp {} x pp {}", model.id, group.tp, group.pp));
}

PlacedGroup placed_group(const GroupSpec& group, const std::vector<ModelProfile>& models,
                         const PlacementRunOptions& options) {
  PlacedGroup placed{.shape = {group.tp, group.pp}, .models = {}};
  for (const std::string& id : group.models) {
    const auto model = std::ranges::find(models, id, &ModelProfile::id);
    if (model == models.end()) {
      wrong(fmt::format("the profiles '{}' have no model {} of the placement", options.profiles, shown(id)));
    }
    const ShapeProfile* const profile = model->find(placed.shape);
    if (profile == nullptr) {
      wrong(fmt::format("the profiles of {} have no shape tp {} x pp {}", id, group.tp, group.pp));
    }
    check_cut(*model, group, *profile);
    placed.models.push_back(static_cast<std::uint32_t>(model - models.begin()));
  }
  return placed;
}

ModelPlacement placement_of(const PlacementRunOptions& options, const std::vector<ModelProfile>& models) {
  std::vector<GroupSpec> groups;
  if (options.placement.empty()) {
    GroupSpec everywhere{.tp = options.tp, .pp = options.pp, .models = {}, .layers = {}};
    for (const ModelProfile& model : models) everywhere.models.push_back(model.id);
    groups.assign(static_cast<std::size_t>(options.groups), everywhere);
  } else {
    groups = read_placement(options.placement).groups;
  }
  ModelPlacement placement;
  for (const GroupSpec& group : groups) placement.push_back(placed_group(group, models, options));
  return placement;
}

std::int64_t size_or(const char* option, const std::string& text, std::int64_t otherwise) {
  if (text.empty()) return otherwise;
  const std::size_t bytes = size_of(option, text);
  if (bytes > std::size_t{1} << 60) wrong(fmt::format("{}: {} cannot be", option, shown(text)));
  return static_cast<std::int64_t>(bytes);
}

int longest_prompt(const std::vector<Request>& requests) {
  std::size_t tokens = 0;
  for (const Request& request : requests) tokens = std::max(tokens, request.prompt.size());
  return static_cast<int>(tokens);
}

ClusterOptions cluster_of(const PlacementRunOptions& options, const MachineProfile& machine,
                          const std::vector<ModelProfile>& models, const ModelPlacement& placement,
                          const std::vector<Request>& requests) {
  const auto missing = [](const char* option, const char* key) {
    wrong(fmt::format("neither {} nor the profiles' machine.{} is given", option, key));
  };
  ClusterOptions cluster = options.cluster;
  cluster.device_bytes = size_or("--device-memory", options.device_memory, machine.device_bytes);
  if (cluster.device_bytes == 0) missing("--device-memory", "device_memory");
  cluster.link_bytes_per_s = options.link_gb_per_s > 0 ? 1e9 * options.link_gb_per_s : machine.link_bytes_per_s;
  if (cluster.link_bytes_per_s == 0) missing("--link-gbps", "link_gbps");
  const std::int64_t usual = machine.page_bytes > 0 ? machine.page_bytes : cluster.page_bytes;
  cluster.page_bytes = size_or("--page-size", options.page_size, usual);
  cluster.host_cache_bytes = size_or("--host-cache", options.host_cache, cluster.device_bytes / 8);
  cluster.max_batch_tokens = options.max_batch_tokens > 0
                                 ? options.max_batch_tokens
                                 : usual_batch_tokens(models, placement, longest_prompt(requests));
  if (machine.step_latency_s > 0) cluster.latency_s = machine.step_latency_s;
  cluster.stage_penalty = machine.stage_penalty;
  cluster.constant_s = machine.constant_s;
  cluster.on_late = options.on_late == "drop"     ? OnLate::kDrop
                    : options.on_late == "reject" ? OnLate::kReject
                                                  : OnLate::kServe;
  return cluster;
}

std::vector<float> deadlines_of(const PlacementRunOptions& options, const std::vector<ModelProfile>& models) {
  std::vector<float> slo_s;
  for (const ModelProfile& model : models) {
    const double own_s = options.slo_s > 0       ? options.slo_s
                         : options.slo_scale > 0 ? options.slo_scale * model.alone_s()
                                                 : kNoDeadline;
    slo_s.push_back(static_cast<float>(own_s));
  }
  return slo_s;
}

void check(const PlacementRunOptions& options) {
  if (options.on_late != "serve" && options.slo_s == 0 && options.slo_scale == 0) {
    wrong(fmt::format("--on-late {}: without --slo or --slo-scale no request is late", options.on_late));
  }
}

// What is played, and what is said of it.
struct Played {
  std::vector<Request> requests;
  double duration_s = 0;  // in which they arrive; 0: all are there from the start
  std::string basis;
};

// So that they can be served: prompts are drawn, and arrive at whole microseconds.
void write_requests(const PlacementRunOptions& options, const std::vector<ModelProfile>& profiles,
                    std::vector<Request>& requests) {
  std::vector<WorkloadModel> models;
  for (const ModelProfile& profile : profiles) models.push_back({.id = profile.id, .rate_per_s = 0});
  draw_prompts(requests, models, options.requests.seed, options.vocab);
  write_file_atomically(options.written_requests, workload_lines(models, requests));
}

// `named` are the models that the options ask for, the first of `models`.
Played requests_to_play(const PlacementRunOptions& options, const std::vector<ModelProfile>& named,
                        const std::vector<ModelProfile>& models) {
  const auto slo_s = deadlines_of(options, models);
  Played played;
  if (!options.request_file.empty()) {
    played.requests = requests_in(options.request_file, models, slo_s, options.replay);
    for (const Request& request : played.requests) played.duration_s = std::max(played.duration_s, request.arrival_s);
    played.basis = fmt::format("the requests of {}{}", options.request_file,
                               options.replay ? ", as they arrive" : ", all there from the start");
  } else {
    const ArrivalSets sets = arrivals_of(options.requests, named);
    played.requests =
        requests_of(sets.test, models, slo_s, options.requests.prompt_tokens, options.requests.max_tokens);
    if (!options.written_requests.empty()) write_requests(options, models, played.requests);
    played.duration_s = sets.duration_s;
    played.basis = basis_of(options.requests, named);
  }
  if (played.requests.empty()) wrong("there are no requests");
  return played;
}

// --- Playing it -------------------------------------------------------------------------------------------------

// Says now and then how far the run is.
class RunProgress {
 public:
  RunProgress(bool quiet, double duration_s) : quiet_(quiet), duration_s_(duration_s) {}

  void note(const VirtualRun::SentStep& sent) {
    if (quiet_ || ++steps_ % kSteps != 0 || now_s() - said_s_ < kEvery_s) return;
    said_s_ = now_s();
    fmt::print(stderr, "simulate: {:.0f} s of {:.0f} s, {} steps, after {:.0f} s\n", sent.sent_s, duration_s_, steps_,
               said_s_ - start_s_);
  }

 private:
  static constexpr std::uint64_t kSteps = 4096;
  static constexpr double kEvery_s = 5;

  bool quiet_;
  double duration_s_;
  std::uint64_t steps_ = 0;
  double start_s_ = now_s(), said_s_ = start_s_;
};

void print_absent(const std::vector<ModelProfile>& models, const Prediction& prediction,
                  const ModelPlacement& placement) {
  std::string absent;
  for (std::uint32_t m = 0; m < models.size(); ++m) {
    const bool placed = std::ranges::any_of(
        placement, [m](const PlacedGroup& group) { return std::ranges::count(group.models, m) > 0; });
    if (!placed && prediction.models[m].requests > 0) absent += (absent.empty() ? "" : ", ") + models[m].id;
  }
  if (!absent.empty()) fmt::print("in no group, so that their requests come to nothing: {}\n", absent);
}

// --- The command line -------------------------------------------------------------------------------------------

void add_rank_options(CLI::App& app, PlacementRunOptions& o) {
  auto* placement = app.add_option("--placement", o.placement, "A placement file; without one every model is in each");
  app.add_option("--groups", o.groups, "of so many equal groups of")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--tp", o.tp, "tensor-parallel ranks a stage and")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--pp", o.pp, "stages")->check(CLI::Range(1, 4096))->capture_default_str();
  for (const char* other : {"--groups", "--tp", "--pp"}) placement->excludes(app.get_option(other));
  app.add_option("--device-memory", o.device_memory, "A rank's pool, weights and caches (as the profiles say)");
  app.add_option("--host-cache", o.host_cache, "Of a rank, for caches of swapped-out models (an eighth of the pool)");
  app.add_option("--page-size", o.page_size, "Bytes of a page (as the profiles say, or 8 MiB)");
  app.add_option("--coarse", o.cluster.most_pages,
                 "Pages of a stage of a model, at most: they are larger where there would be more. 0: any number")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--link-gbps", o.link_gb_per_s, "GB/s of each rank's host link (as the profiles say)")
      ->check(positive_number());
  group_options(app, "Ranks",
                {"--placement", "--groups", "--tp", "--pp", "--device-memory", "--host-cache", "--page-size",
                 "--coarse", "--link-gbps"});
}

void add_scheduling_options(CLI::App& app, PlacementRunOptions& o) {
  app.add_option("--policy", o.cluster.policy, "fifo, balanced or throughput, as of computron serve")
      ->check(CLI::IsMember({"fifo", "balanced", "throughput"}))
      ->capture_default_str();
  app.add_option("--max-wait", o.cluster.max_wait_s,
                 "Seconds after which goes first what is passed by; balanced: a waiting model")
      ->check(positive_number())
      ->capture_default_str();
  app.add_option("--max-seqs", o.cluster.max_seqs, "Sequences of a model at a time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-batch-tokens", o.max_batch_tokens,
                 "Of a pass (2048; where a profile says nothing of passes: one request)")
      ->check(CLI::Range(1, 10'000'000));
  auto* slo = app.add_option("--slo", o.slo_s, "In time is a request within so many seconds, or");
  slo->check(positive_number());
  app.add_option("--slo-scale", o.slo_scale, "so many times what it takes alone on the fewest ranks; neither: always")
      ->check(positive_number())
      ->excludes(slo);
  app.add_option("--on-late", o.on_late, "What becomes of late requests: serve, drop or reject")
      ->check(CLI::IsMember({"serve", "drop", "reject"}))
      ->capture_default_str();
  group_options(app, "Scheduling",
                {"--policy", "--max-wait", "--max-seqs", "--max-batch-tokens", "--slo", "--slo-scale", "--on-late"});
}

}  // namespace

void add_placement_run_options(CLI::App& app, PlacementRunOptions& options) {
  app.add_option("profiles", options.profiles, "What passes cost: a JSON file (src/placement/README.md)");
  app.add_option("--json", options.json, "File to write: the placement, with what was simulated as its prediction");
  app.add_flag("--quiet", options.quiet, "Say nothing while playing");
  add_rank_options(app, options);
  add_scheduling_options(app, options);
  add_arrival_options(app, options.requests);
  auto* file = app.add_option("--requests", options.request_file,
                              "Instead of all these: a request file of computron serve, whose prompts are token ids");
  for (const char* other : {"--rate", "--model", "--known", "--trace", "--arrivals", "--cv", "--shares", "--skew",
                            "--duration", "--seed", "--prompt-tokens", "--max-tokens"}) {
    file->excludes(app.get_option(other));
  }
  app.add_flag("--replay", options.replay, "Honour the arrival times of --requests")->needs(file);
  auto* written = app.add_option("--write-requests", options.written_requests,
                                 "File to write: the requests that are played, for computron serve --replay");
  written->excludes(file);
  app.add_option("--vocab", options.vocab, "Their prompts' tokens are uniform over 4 to below this")
      ->check(CLI::Range(kFirstPromptToken + 1, 1'000'000'000))
      ->capture_default_str()
      ->needs(written);
  group_options(app, "Requests", {"--requests", "--replay", "--write-requests", "--vocab"});
}

void run_placement(const PlacementRunOptions& options) {
  check(options);
  const ProfileFile profiles = read_profiles(options.profiles);
  for (const std::string& written : {options.json, options.written_requests}) {
    if (!written.empty()) check_creatable(written, options.profiles);
  }
  const auto named = models_of(options.requests, profiles.models, options.profiles);
  const auto models = all_models(named, profiles);
  const ModelPlacement placement = placement_of(options, models);
  Played played = requests_to_play(options, named, models);

  VirtualCluster cluster(models, placement, cluster_of(options, profiles.machine, models, placement, played.requests));
  RunProgress progress(options.quiet, played.duration_s);
  RunTimes times{.clock_s = now_s};
  const VirtualRun run = cluster.run(
      std::move(played.requests), [&](const VirtualRun::SentStep& sent) { progress.note(sent); }, &times);
  const Prediction prediction = predict(models, placement, run, played.duration_s);
  const auto groups = group_specs(placement, models);
  fmt::print("{}\n", placement_table(groups, prediction));
  fmt::print("simulated: {:.2f} % in time, makespan {:.4g} s; {}\n", 100 * prediction.attainment, prediction.makespan_s,
             prediction_line(prediction));
  fmt::print("of: {}\n", played.basis);
  print_absent(models, prediction, placement);
  fmt::print("simulation: {}\n", format_times(run, times));
  if (!options.json.empty()) {
    write_file_atomically(options.json, placement_file(groups, models, prediction, played.basis));
  }
}

}  // namespace computron

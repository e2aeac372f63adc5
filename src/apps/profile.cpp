// computron profile: what passes of each model take on each shape of group that this machine can run, under mpirun or
// srun. For each model and shape the first tp · pp ranks form a job of that model alone; the others wait.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "computron/base/size.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/comm/gather.h"
#include "computron/placement/profile_file.h"
#include "computron/plan/machine_costs.h"
#include "computron/plan/stage_work.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"
#include "computron/storage/files.h"
#include "src/apps/commands.h"
#include "src/apps/profile_shapes.h"
#include "src/apps/profile_sharing.h"
#include "src/cli/job_arguments.h"
#include "src/cli/mpi_command.h"
#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

constexpr int kGrowth = 64;  // tokens of cache beyond its context that a sequence has room for

struct ProfileOptions {
  JobArguments job;
  std::string output;
  std::vector<std::string> shapes;  // TPxPP; empty: all powers of two
  RequestSize request;
  bool quiet = false;
};

// What all models have in common.
struct Session {
  const ProfileOptions& options;
  const Communicator& world;
  ServeHooks& hooks;
  std::vector<GroupShape> shapes;               // by ranks
  std::vector<CheckpointIndex> indices = {};    // [model] on rank 0
  std::vector<std::uint32_t> first_alike = {};  // [model] the first one whose passes take the same time
  int threads = 1;
  MachineProfile machine = {};

  bool reports() const { return world.rank() == 0; }
};

// A model and what is known of it; on rank 0.
struct ModelMeasurements {
  std::vector<ShapeMeasurement> shapes;
  RequestSize request;
  int max_batch_tokens = 0;  // 0: nothing is known of it
  ShapeLayouts layouts = {};
};

// --- Options ----------------------------------------------------------------------------------------------------

GroupShape parse_shape(const std::string& text) {
  GroupShape shape{0, 0};
  const char* const end = text.data() + text.size();
  const auto [times, fault] = std::from_chars(text.data(), end, shape.tp);
  const bool has_pp = fault == std::errc() && times != end && *times == 'x';
  const auto [rest, fault_of_pp] = std::from_chars(has_pp ? times + 1 : end, end, shape.pp);
  if (!has_pp || fault_of_pp != std::errc() || rest != end || !is_possible(shape)) {
    throw Error(ExitCode::kUsage, fmt::format("--shapes: '{}' is no shape; expected TPxPP, such as 2x1", text));
  }
  return shape;
}

// Those that are asked for, or all powers of two that the ranks have room for; small ones first.
std::vector<GroupShape> shapes_of(const std::vector<std::string>& texts, int ranks) {
  std::vector<GroupShape> shapes;
  for (const std::string& text : texts) shapes.push_back(parse_shape(text));
  if (texts.empty()) {
    for (int tp = 1; tp <= ranks; tp *= 2) {
      for (int pp = 1; tp * pp <= ranks; pp *= 2) shapes.push_back({tp, pp});
    }
  }
  const auto order = [](const GroupShape& shape) { return std::pair(shape.ranks(), shape.pp); };
  std::ranges::sort(shapes, {}, order);
  shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
  if (shapes.front().ranks() > ranks) {
    throw Error(ExitCode::kUsage, fmt::format("--shapes: none of them can be measured with {} ranks", ranks));
  }
  return shapes;
}

// --- The machine and the models -----------------------------------------------------------------------------------

// Collective. Of all ranks at once, as they serve.
void measure_machine(Session& session) {
  const JobOptions& options = session.options.job.options;
  const Mesh mesh({session.world.size(), 1}, session.world.split(/*color=*/0, session.world.rank()));
  const RankDevice device(options, mesh, /*trace=*/nullptr, session.hooks);
  const CostOptions costs = measure_costs(mesh.job, device.device(), device.ops(), device.progress(), DType::kF32);
  const auto least = [&](std::size_t value) { return static_cast<std::int64_t>(~mesh.job.all_reduce_max(~value)); };
  session.threads = options.threads > 0 ? options.threads : device.threads();
  MachineProfile& machine = session.machine;
  machine.link_bytes_per_s = costs.link_bytes_per_s;
  machine.ranks_per_node = static_cast<int>(mesh.job.all_reduce_max(static_cast<std::uint64_t>(device.node().size())));
  const auto on_node = static_cast<std::size_t>(machine.ranks_per_node);
  const std::size_t node_bytes = available_memory().bytes;
  const auto& own_memory = device.own_memory();
  // A job takes at most a quarter of a rank's share of host memory by itself (MemoryPlan).
  const std::size_t pool = options.device_memory_bytes > 0 ? options.device_memory_bytes
                           : own_memory                    ? own_memory->bytes
                                                           : node_bytes / on_node / 4;
  machine.device_bytes = least(pool);
  machine.host_bytes = least(own_memory ? node_bytes : node_bytes - std::min(node_bytes, on_node * pool));
}

// Whether passes of the two take the same time: all that differs is what their weights are.
bool are_alike(const CheckpointIndex& a, const CheckpointIndex& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.dtype == y.second.dtype && x.second.shape == y.second.shape;
  };
  return a.config_json == b.config_json && std::ranges::equal(a.tensors, b.tensors, same);
}

// Error{kConfig} naming a shape that somebody asked for and that no model can be cut into.
void check_shapes(const Session& session) {
  for (const GroupShape& shape : session.shapes) {
    std::string why_not;  // of the last model
    const bool any = std::ranges::any_of(session.indices, [&](const CheckpointIndex& index) {
      try {
        const ModelConfig config = ModelConfig::from_json(index.config_json);
        const bool reproducible = session.options.job.options.reproducible;
        for (int stage = 0; stage < shape.pp; ++stage) {
          ShardPlan::make(config, {shape.tp, shape.pp}, stage, reproducible);
        }
        return true;
      } catch (const ConfigError& error) {
        why_not = error.what();
        return false;
      }
    });
    if (any) continue;
    throw ConfigError(fmt::format("--shapes {}x{}: no model can be served so: {}", shape.tp, shape.pp, why_not));
  }
}

// Collective.
void read_models(Session& session) {
  std::vector<std::uint32_t> alike;
  agreed(session.world, [&] {
    if (!session.reports()) return;
    session.indices = read_indices_apart(session.options.job.options.models);
    if (!session.options.shapes.empty()) check_shapes(session);
    for (const CheckpointIndex& index : session.indices) {
      const auto first =
          std::ranges::find_if(session.indices, [&](const auto& other) { return are_alike(other, index); });
      alike.push_back(static_cast<std::uint32_t>(first - session.indices.begin()));
    }
  });
  session.first_alike = gather_lists(session.world, alike).front();
}

// --- Measuring ------------------------------------------------------------------------------------------------------

JobOptions options_of(const Session& session, const ModelEntry& model, const GroupShape& shape) {
  JobOptions options = session.options.job.options;
  options.models = {model};
  options.tp = shape.tp;
  options.pp = shape.pp;
  options.threads = session.threads;  // as many as where all ranks compute
  if (options.device_memory_bytes == 0) {
    options.pool_for_tokens = options.max_seqs * (round_up(session.options.request.prompt, 16) + kGrowth);
  }
  return options;
}

// Collective over `ranks`. Null, and in `refusal` why, where the model cannot be served so on this machine.
std::unique_ptr<Job> make_job(Session& session, std::size_t model, JobOptions options, const Communicator& ranks,
                              std::optional<Error>& refusal) try {
  std::vector<CheckpointIndex> indices;
  if (session.reports()) indices = {session.indices[model]};
  return std::make_unique<Job>(std::move(options), ranks.split(/*color=*/0, ranks.rank()), JobHeartbeat(),
                               session.hooks, std::move(indices));
} catch (const VoteError& error) {
  if (error.code() != ExitCode::kConfig && error.code() != ExitCode::kSystem) throw;
  refusal.emplace(error.code(), error.reason());
  return nullptr;
}

// The same; where memory is too small for a pool with caches of all sequences, with a smaller one.
std::unique_ptr<Job> make_job(Session& session, std::size_t model, const GroupShape& shape, const Communicator& ranks,
                              std::optional<Error>& refusal) {
  JobOptions options = options_of(session, session.options.job.options.models[model], shape);
  std::unique_ptr<Job> job = make_job(session, model, options, ranks, refusal);
  if (job || options.pool_for_tokens == 0 || refusal->code() != ExitCode::kSystem) return job;
  options.pool_for_tokens = 0;
  return make_job(session, model, options, ranks, refusal);
}

ShapeMeasurement measurement_of(const GroupShape& shape, const std::vector<const ShardLayout*>& stages,
                                const ModelConfig& config, const ProfileLimits& limits) {
  ShapeMeasurement measurement{.shape = shape, .sizes = sizes_of(stages), .stages = {}, .classes = {}, .passes = {}};
  for (const ShardLayout* layout : stages) measurement.stages.push_back(stage_work(*layout));
  measurement.classes = pass_classes(config, limits, shape.pp);
  measurement.decoding_context = std::min(limits.context, config.max_positions / 2);
  return measurement;
}

ProfileLimits limits_of(const Session& session, const Job& job) {
  return {.max_seqs = job.options().max_seqs,
          .max_batch_tokens = job.plan().max_batch_tokens,
          .context = session.options.request.prompt};
}

// Shapes that need more ranks than there are: everything but their times.
void add_unmeasured(const Session& session, const Job& job, const std::string& id, ModelMeasurements& model,
                    std::vector<std::string>& refusals) {
  const ModelConfig config = job.models().served().front().config;
  for (const GroupShape& shape : session.shapes) {
    if (shape.ranks() <= session.world.size()) continue;
    try {
      std::vector<ShardLayout> layouts;
      for (int stage = 0; stage < shape.pp; ++stage) {
        const ShardPlan plan = ShardPlan::make(config, {shape.tp, shape.pp}, stage, job.options().reproducible);
        layouts.push_back(ShardLayout::make(plan, job.ops().weight_format(), job.models().weight_types(0),
                                            job.plan().page_bytes, job.plan().slot_bytes));
      }
      std::vector<const ShardLayout*> stages;
      for (const ShardLayout& layout : layouts) stages.push_back(&layout);
      model.shapes.push_back(measurement_of(shape, stages, config, limits_of(session, job)));
      model.layouts[shape] = std::move(layouts);
    } catch (const ConfigError& error) {
      refusals.push_back(fmt::format("{} cannot be cut in {} x {}: {}", id, shape.tp, shape.pp, error.what()));
    }
  }
}

void say(const Session& session, const std::string& line) {
  if (session.reports() && !session.options.quiet) fmt::print(stderr, "profile: {}\n", line);
}

std::string shape_text(const GroupShape& shape) { return fmt::format("tp {} x pp {}", shape.tp, shape.pp); }

std::string progress_text(const ShapeMeasurement& measured, double took_s) {
  const MeasuredPass &smallest = measured.passes.front(), &largest = measured.passes.back();
  return fmt::format("{} of {} sizes of passes in {:.1f} s; {} row{} {:.4g} ms, {} rows {:.4g} ms",
                     measured.passes.size(), measured.classes.size(), took_s, smallest.of.rows,
                     smallest.of.rows == 1 ? "" : "s", 1e3 * smallest.stage_s.front(), largest.of.rows,
                     1e3 * largest.stage_s.front());
}

// Rank 0 of a job. False: it was stopped.
bool run_experiment(Session& session, Job& job, const std::string& id, const GroupShape& shape,
                    ModelMeasurements& model, std::vector<std::string>& refusals) {
  const ModelShape cut = job.models().shapes().front();
  const ModelConfig config = job.models().served().front().config;
  const ProfileLimits limits = limits_of(session, job);
  GroupSchedulers schedulers(job);
  Metrics metrics(job.models().names());
  PassExperiment experiment(config, limits, job.mesh().shape);
  const double start_s = now_s();
  if (!Engine(job, schedulers.dispatcher(), experiment, metrics, start_s).run()) return false;

  const std::string where = fmt::format("{} at {}", id, shape_text(shape));
  ShapeMeasurement measurement = measurement_of(shape, cut.layouts, config, limits);
  measurement.passes = experiment.passes();
  if (measurement.passes.empty()) {
    refusals.push_back(
        fmt::format("{}: no pass came about{}{}", where, experiment.fault().empty() ? "" : ": ", experiment.fault()));
    return true;
  }
  say(session, fmt::format("{}: {}", where, progress_text(measurement, now_s() - start_s)));
  model.shapes.push_back(std::move(measurement));
  for (const ShardLayout* layout : cut.layouts) model.layouts[shape].push_back(*layout);
  MachineProfile& machine = session.machine;
  machine.page_bytes = std::max(machine.page_bytes, static_cast<std::int64_t>(job.plan().page_bytes));
  if (shape.pp == 1) machine.step_latency_s = experiment.step_latency_s();  // of the largest such shape
  return true;
}

// Rank 0 of the first job of a model.
void begin(const Session& session, const Job& job, const std::string& id, ModelMeasurements& model,
           std::vector<std::string>& refusals) {
  const ModelConfig config = job.models().served().front().config;
  const RequestSize wanted = session.options.request, request = fitting(wanted, config);
  if (!config.pools() && (request.prompt != wanted.prompt || request.generated != wanted.generated)) {
    say(session, fmt::format("{} takes {} positions: its request is of {} tokens and generates {}", id,
                             config.max_positions, request.prompt, request.generated));
  }
  model.request = request;
  model.max_batch_tokens = job.plan().max_batch_tokens;
  add_unmeasured(session, job, id, model, refusals);
}

// Collective. Adds what rank 0 learns to `model`; where the model cannot be served so, why, to `refusals`.
void measure_shape(Session& session, std::size_t number, const GroupShape& shape, ModelMeasurements& model,
                   std::vector<std::string>& refusals) {
  const Communicator& world = session.world;
  const ModelEntry& entry = session.options.job.options.models[number];
  const bool member = world.rank() < shape.ranks();
  const Communicator part = world.split(member ? 0 : 1, world.rank());
  std::unique_ptr<Job> job;
  std::optional<Error> refusal;
  agreed(world, [&] {
    throw_if_stopped();
    if (member) job = make_job(session, number, shape, part, refusal);
  });
  bool all_done = true;
  if (job && session.reports()) {
    if (model.max_batch_tokens == 0) begin(session, *job, entry.id, model, refusals);
    all_done = run_experiment(session, *job, entry.id, shape, model, refusals);
  } else if (job) {
    all_done = run_worker(*job);
  } else if (member) {
    refusals.push_back(fmt::format("{} cannot be served at {}: {}", entry.id, shape_text(shape), refusal->what()));
  }
  agreed(world, [&] {
    if (!all_done) throw Error(ExitCode::kStopped, stopped_early());
  });
}

// Collective. [model] Of those that are alike, the first has measurements.
std::vector<ModelMeasurements> measure_all(Session& session) {
  const std::vector<ModelEntry>& entries = session.options.job.options.models;
  std::vector<ModelMeasurements> models(entries.size());
  for (std::size_t m = 0; m < entries.size(); ++m) {
    if (session.first_alike[m] != m) {
      say(session, fmt::format("{} is like {}", entries[m].id, entries[session.first_alike[m]].id));
      continue;
    }
    std::vector<std::string> refusals;
    std::size_t said = 0;
    for (const GroupShape& shape : session.shapes) {
      if (shape.ranks() > session.world.size()) continue;
      measure_shape(session, m, shape, models[m], refusals);
      for (; said < refusals.size(); ++said) say(session, refusals[said]);
    }
    agreed(session.world, [&] {
      const auto measured = [](const ShapeMeasurement& shape) { return !shape.passes.empty(); };
      if (session.reports() && std::ranges::none_of(models[m].shapes, measured)) throw ConfigError(refusals.back());
    });
  }
  return models;
}

// --- The file
// ---------------------------------------------------------------------------------------------------------

std::vector<PassSample> samples_of(const std::vector<ModelMeasurements>& models) {
  std::vector<PassSample> samples;
  for (const ModelMeasurements& model : models) {
    const std::vector<PassSample> own = samples_of(model.shapes);
    samples.insert(samples.end(), own.begin(), own.end());
  }
  return samples;
}

ProfileFile profiles_of(const Session& session, const std::vector<ModelMeasurements>& models,
                        const PassFormula& formula) {
  ProfileFile file{.machine = session.machine, .models = {}};
  const std::vector<ModelEntry>& entries = session.options.job.options.models;
  for (std::size_t m = 0; m < entries.size(); ++m) {
    const ModelMeasurements& like = models[session.first_alike[m]];
    ModelProfile& profile = file.models.emplace_back(ModelProfile{.id = entries[m].id, .shapes = {}});
    for (const ShapeMeasurement& shape : like.shapes) {
      profile.shapes.emplace(shape.shape, profile_of(shape, formula, like.request, like.max_batch_tokens));
    }
    fill_in_link_bytes(profile);
  }
  std::vector<ShapeLayouts> layouts;
  for (std::size_t m = 0; m < entries.size(); ++m) {
    layouts.push_back(with_contents(models[session.first_alike[m]].layouts, session.indices[m]));
    std::erase_if(layouts.back(), [&](const auto& entry) { return !file.models[m].shapes.contains(entry.first); });
  }
  add_shared_parts(layouts, file.models);
  if (const std::string text = page_sizes_text(layouts, file.models, session.indices); !text.empty())
    say(session, text);
  check_profiles(file.models);
  return file;
}

std::string error_text(const FitError& error) {
  return fmt::format("worst {:.1f} %, median {:.1f} %", 100 * error.worst, 100 * error.median);
}

std::string profile_table(const ProfileFile& file) {
  std::string text = fmt::format("{:<24}{:>8}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "model", "tp x pp", "measured",
                                 "request s", "1 pass ms", "rows/s", "a rank");
  for (const ModelProfile& model : file.models) {
    for (const auto& [shape, profile] : model.shapes) {
      const auto slowest = [](const PassTimes& pass) { return *std::ranges::max_element(pass.stage_s); };
      const PassTimes& largest = profile.passes.back();
      text += fmt::format("{:<24}{:>8}{:>10}{:>12.4g}{:>12.4g}{:>12.4g}{:>12}\n", model.id,
                          fmt::format("{} x {}", shape.tp, shape.pp), profile.measured ? "yes" : "formula",
                          profile.latency_s(), 1e3 * slowest(profile.passes.front()), largest.rows / slowest(largest),
                          format_size(static_cast<std::size_t>(profile.rank_bytes())));
    }
  }
  return text;
}

void print_profiles(const Session& session, const ProfileFile& file, const PassFormula& formula,
                    std::span<const PassSample> samples) {
  fmt::print("{}\n", profile_table(file));
  fmt::print("formula: of {} measured passes {}", samples.size(), error_text(fit_error(formula, samples)));
  const FitError left_out = left_out_error(samples);
  if (left_out.worst > 0) fmt::print("; of each shape, told from the others, {}", error_text(left_out));
  fmt::print("\nmachine: link {:.3g} GB/s, step latency {:.3g} us, pool {}, {} threads a rank\n",
             1e-9 * session.machine.link_bytes_per_s, 1e6 * session.machine.step_latency_s,
             format_size(static_cast<std::size_t>(session.machine.device_bytes)), session.threads);
  const auto measured = [&](auto condition) { return std::ranges::any_of(samples, condition, &PassSample::shape); };
  const auto filled_in = [&](auto condition) { return std::ranges::any_of(session.shapes, condition); };
  const auto has_tp = [](const GroupShape& shape) { return shape.tp > 1; };
  const auto has_pp = [](const GroupShape& shape) { return shape.pp > 1; };
  if (filled_in(has_tp) && !measured(has_tp))
    fmt::print("no tp above 1 was measured: sums over ranks count for nothing\n");
  if (filled_in(has_pp) && !measured(has_pp))
    fmt::print("no pp above 1 was measured: what goes from stage to stage counts for nothing\n");
}

void profile(ProfileOptions& options, Communicator world, ServeHooks& hooks) {
  Session session{.options = options, .world = world, .hooks = hooks, .shapes = {}};
  agreed(world, [&] {
    options.job.complete();
    session.shapes = shapes_of(options.shapes, world.size());
    if (session.reports()) check_creatable(options.output, options.job.model_list);
    throw_if_stopped();
  });
  measure_machine(session);
  read_models(session);
  say(session, fmt::format("{} models, {} shapes, {} ranks of {} threads", session.first_alike.size(),
                           session.shapes.size(), world.size(), session.threads));
  const std::vector<ModelMeasurements> models = measure_all(session);
  agreed(world, [&] {
    if (!session.reports()) return;
    const std::vector<PassSample> samples = samples_of(models);
    const PassFormula formula = PassFormula::fit(samples);
    const ProfileFile file = profiles_of(session, models, formula);
    write_file_atomically(options.output, profile_text(file));
    print_profiles(session, file, formula, samples);
  });
}

void add_options(CLI::App& app, ProfileOptions& o) {
  app.option_defaults()->always_capture_default();
  add_job_options(app, o.job);
  for (const char* of_one_shape : {"--tp", "--pp", "--policy", "--max-wait", "--host-cache"}) {
    app.remove_option(app.get_option(of_one_shape));
  }
  app.add_option("--output", o.output, "Profiles to write, for computron plan and serve --dry-run")->required();
  app.add_option("--shapes", o.shapes,
                 "Shapes of groups, as TPxPP: 1x1,2x1,... Those of more ranks than there are come from a formula "
                 "(default: all powers of two)")
      ->delimiter(',');
  app.add_option("--prompt-tokens", o.request.prompt,
                 "Of the request whose time is told, and before a token that is decoded")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-tokens", o.request.generated, "That this request generates")->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-batch-tokens", o.job.options.max_batch_tokens, "Tokens of the largest pass")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-seqs", o.job.options.max_seqs, "Most sequences that decode together")
      ->check(CLI::Range(1, 1 << 16));
  app.add_flag("--quiet", o.quiet, "Say nothing while measuring");
  group_options(app, "Passes", {"--shapes", "--prompt-tokens", "--max-tokens", "--max-batch-tokens", "--max-seqs"});
}

}  // namespace

void add_profile(CLI::App& app, ServeHooks& hooks) {
  auto* command =
      app.add_subcommand("profile", "Measure what passes take, for plan and --dry-run, under mpirun or srun");
  const auto options = std::make_shared<ProfileOptions>();
  command->footer(
      "Each model is measured alone on each shape of group that the ranks have room for: passes of 1, 2, 4, ... rows,\n"
      "as sequences that decode and as prompts. Models that differ in their weights only are measured once. ^C ends "
      "it\n"
      "in order; nothing is written then. src/placement/README.md explains the file.");
  add_options(*command, *options);
  command->callback([options, &hooks] {
    catch_stop_signals();
    run_under_mpi(/*quiet=*/true, [&](Communicator world) { profile(*options, std::move(world), hooks); });
  });
}

}  // namespace computron

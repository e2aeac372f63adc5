// computron bench step: what a step costs beside its computation, with a model that has next to none.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "computron/base/time.h"
#include "computron/checkpoint/writer.h"
#include "computron/comm/agreed.h"
#include "computron/comm/tags.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"
#include "computron/storage/files.h"
#include "src/bench/commands.h"
#include "src/cli/mpi_command.h"

namespace computron {
namespace {

constexpr int kHeads = 16;  // as many ranks may take part
constexpr int kPositions = 2048;

struct BenchStepOptions {
  JobOptions job;
  std::string idle;
  std::vector<int> sequences = {1, 64, 512};
  int steps = 400;
  std::string json_file;
  bool quiet = false;
};

// A file that goes away with this.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// As little to compute as a transformer can have.
ModelConfig empty_model(int pp) {
  ModelConfig config;
  config.architecture = "opt";
  config.layers = pp;
  config.hidden = config.heads = config.kv_heads = kHeads;
  config.head_dim = 1;
  config.ffn = kHeads;
  config.vocab = 64;
  config.max_positions = kPositions;
  return config;
}

void write_zeros(const std::string& path, const ModelConfig& config) {
  std::vector<TensorDeclaration> declarations;
  for (const TensorSpec& spec : tensor_specs(config)) {
    declarations.push_back({spec.name, DType::kF32, spec.shape, spec.transposed});
  }
  CheckpointWriter writer(path, config.architecture, config.to_json(), declarations, {});
  for (std::size_t i = 0; i < declarations.size(); ++i) {
    std::size_t bytes = sizeof(float);
    for (const std::size_t extent : declarations[i].shape) bytes *= extent;
    writer.write(i, 0, std::vector<std::byte>(bytes));
  }
  writer.finish();
}

// Of one step: from the done records of the step before to its own.
struct StepSample {
  double wall_s = 0;
  double compute_s = 0;  // of the slowest rank
};

// What was seen while so many sequences generated side by side, in the steps in which all of them did.
struct StepSamples {
  int sequences = 0;
  std::vector<StepSample> steps;
  double own_s = 0;  // of rank 0: deciding, sending and bookkeeping, all steps
  std::uint64_t own_steps = 0;
};

// One number of sequences after the other.
class StepExperiment : public FrontEnd {
 public:
  // Borrows the metrics.
  StepExperiment(const BenchStepOptions& options, Metrics& metrics) : options_(options), metrics_(metrics) {}

  bool take_input(Dispatcher& dispatcher, double now) override {
    if (unfinished_ > 0 || closed_) return false;
    if (samples_.size() == options_.sequences.size()) {
      dispatcher.close_input();
      return closed_ = true;
    }
    unfinished_ = options_.sequences[samples_.size()];
    samples_.push_back({.sequences = unfinished_, .steps = {}});
    for (int i = 0; i < unfinished_; ++i) dispatcher.submit(request(now));
    own_before_ = metrics_.model(0).steps;
    before_s_ = 0;
    return true;
  }

  void put_results(std::vector<Completion> completions, double) override {
    for (const Completion& completion : completions) {
      if (!completion.error_code.empty()) throw ConfigError("bench step: " + completion.error_message);
    }
    unfinished_ -= static_cast<int>(completions.size());
    const StepMetrics& own = metrics_.model(0).steps;
    samples_.back().own_s = own.overhead_s - own_before_.overhead_s;
    samples_.back().own_steps = own.count - own_before_.count;
  }

  void step_done(const std::vector<Report>& reports, double now) override {
    std::size_t rows = 0;
    double compute_s = 0;
    for (const Report& report : reports) {
      rows += report.rows.size();
      compute_s = std::max(compute_s, report.compute_s);
    }
    StepSamples& samples = samples_.back();
    const bool all = static_cast<int>(rows) == ceil_div(samples.sequences, options_.job.pp > 0 ? options_.job.pp : 1);
    if (all && before_s_ > 0) samples.steps.push_back({now - before_s_, compute_s});
    before_s_ = now;
  }

  const std::vector<StepSamples>& samples() const { return samples_; }

 private:
  Request request(double now) {
    Request request;
    request.id = next_++;
    request.prompt = {1};
    request.max_tokens = options_.steps;
    request.ignore_eos = true;
    request.arrival_s = now;
    return request;
  }

  const BenchStepOptions& options_;
  Metrics& metrics_;
  RequestId next_ = 0;
  int unfinished_ = 0;
  bool closed_ = false;
  double before_s_ = 0;
  StepMetrics own_before_;
  std::vector<StepSamples> samples_;
};

double median(std::vector<double> values) {
  ensure(!values.empty(), "no step had all sequences");
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Bytes of a step in which so many sequences generate, and of its done record.
std::size_t step_bytes(int sequences) {
  Step step;
  step.stages.resize(1);
  for (int i = 0; i < sequences; ++i) {
    step.chunks.push_back({.sequence = 1, .tokens = {1}, .new_blocks = {}, .output = SequenceChunk::kLast});
  }
  return step.encode(0).size();
}

// What nothing can be faster than that tells every rank something and hears of each: rank 0 sends so many bytes to the
// others, at most what fits into an eager message at a time, and each answers. Median seconds; collective.
double bare_exchange_s(const Communicator& world, Progress& progress, int sequences, int rounds) {
  constexpr std::size_t kMost = 3500;
  const std::size_t bytes = step_bytes(sequences);
  std::vector<std::byte> out(kMost), back(Report::max_bytes(0));
  std::vector<double> seconds;
  const auto wait = [&](MessageRequest request) { progress.wait_until([&] { return request.done(); }); };
  for (int round = 0; round < rounds; ++round) {
    const double start = now_s();
    if (world.rank() == 0) {
      std::vector<MessageRequest> answers;
      for (int rank = 1; rank < world.size(); ++rank) answers.push_back(world.receive(back, rank, tags::kReport));
      for (std::size_t at = 0; at < bytes; at += kMost) {
        const auto piece = std::span(out).first(std::min(kMost, bytes - at));
        for (int rank = 1; rank < world.size(); ++rank) wait(world.send(piece, rank, tags::kStep));
      }
      for (MessageRequest& answer : answers) wait(std::move(answer));
    } else {
      for (std::size_t at = 0; at < bytes; at += kMost) wait(world.receive(out, 0, tags::kStep));
      wait(world.send(back, 0, tags::kReport));
    }
    seconds.push_back(now_s() - start);
  }
  return median(seconds);
}

// Medians in microseconds.
struct StepCost {
  int sequences = 0;
  std::size_t steps = 0;
  double wall_us = 0, compute_us = 0, overhead_us = 0, own_us = 0, exchange_us = 0;
};

StepCost cost_of(const StepSamples& samples, double exchange_s) {
  std::vector<double> wall, compute, overhead;
  for (const StepSample& sample : samples.steps) {
    wall.push_back(1e6 * sample.wall_s);
    compute.push_back(1e6 * sample.compute_s);
    overhead.push_back(1e6 * (sample.wall_s - sample.compute_s));
  }
  return {.sequences = samples.sequences,
          .steps = samples.steps.size(),
          .wall_us = median(wall),
          .compute_us = median(compute),
          .overhead_us = median(overhead),
          .own_us = 1e6 * samples.own_s / static_cast<double>(std::max<std::uint64_t>(samples.own_steps, 1)),
          .exchange_us = 1e6 * exchange_s};
}

void show(const BenchStepOptions& options, const Job& job, const std::vector<StepCost>& costs) {
  const MeshShape mesh = job.mesh().shape;
  fmt::print("A step of an empty model, {} x {} ranks on {} cores, microseconds (medians)\n\n", mesh.tp, mesh.pp,
             job.plan().cores_on_node);
  fmt::print("{:>10} {:>8} {:>10} {:>10} {:>12} {:>14} {:>14}\n", "sequences", "steps", "wall", "compute", "overhead",
             "rank 0's own", "bare exchange");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const StepCost& f : costs) {
    fmt::print("{:>10} {:>8} {:>10.1f} {:>10.1f} {:>12.1f} {:>14.1f} {:>14.1f}\n", f.sequences, f.steps, f.wall_us,
               f.compute_us, f.overhead_us, f.own_us, f.exchange_us);
    rows.push_back({{"sequences", f.sequences},
                    {"steps", f.steps},
                    {"wall_us", f.wall_us},
                    {"compute_us", f.compute_us},
                    {"overhead_us", f.overhead_us},
                    {"own_us", f.own_us},
                    {"exchange_us", f.exchange_us}});
  }
  if (options.json_file.empty()) return;
  write_file_atomically(options.json_file,
                        nlohmann::ordered_json{{"tp", mesh.tp}, {"pp", mesh.pp}, {"rows", rows}}.dump(2) + "\n");
}

// One file for all ranks, which must see the folder of temporary files of rank 0.
std::unique_ptr<TemporaryFile> make_model(const Communicator& world, BenchStepOptions& options) {
  const std::string name = fmt::format("computron-bench-step-{}.h5", getpid());
  const std::string own = (std::filesystem::temp_directory_path() / name).string();
  std::unique_ptr<TemporaryFile> file;
  agreed(world, [&] {
    if (world.rank() != 0) return;
    file = std::make_unique<TemporaryFile>(own);
    write_zeros(own, empty_model(std::max(options.job.pp, 1)));
  });
  const auto bytes = std::as_bytes(std::span(own));
  const auto path = world.broadcast({bytes.begin(), bytes.end()}, 0);
  options.job.device = DeviceChoice::kCpu;
  options.job.models = {{.id = "empty", .path = {reinterpret_cast<const char*>(path.data()), path.size()}}};
  return file;
}

void bench(BenchStepOptions& options, Communicator world) {
  const auto file = make_model(world, options);
  options.job.max_seqs = *std::max_element(options.sequences.begin(), options.sequences.end());
  options.job.device_memory_bytes = std::size_t{1} << 30;
  options.job.page_bytes = std::size_t{1} << 20;
  agreed(world, [&] {
    if (!options.idle.empty()) options.job.idle = IdlePolicy::parse(options.idle);
  });
  Job job(options.job, std::move(world));
  std::vector<double> exchanges_s;
  for (const int n : options.sequences)
    exchanges_s.push_back(bare_exchange_s(job.mesh().job, job.progress(), n, options.steps));
  if (job.mesh().rank != 0) {
    run_worker(job);
    return;
  }
  GroupSchedulers schedulers(job);
  Metrics metrics(job.models().names());
  StepExperiment experiment(options, metrics);
  Engine(job, schedulers.dispatcher(), experiment, metrics, now_s()).run();
  std::vector<StepCost> costs;
  for (std::size_t i = 0; i < exchanges_s.size(); ++i)
    costs.push_back(cost_of(experiment.samples()[i], exchanges_s[i]));
  show(options, job, costs);
}

}  // namespace

void add_bench_step(CLI::App& app) {
  auto* command = app.add_subcommand("step", "What a step costs beside its computation, under mpirun or srun");
  const auto options = std::make_shared<BenchStepOptions>();
  command->footer(
      "wall      from the done records of one step to those of the next\n"
      "compute   the pass itself, on the slowest rank\n"
      "overhead  wall less compute: deciding, sending, bookkeeping, done records\n"
      "exchange  the same bytes to every rank and an answer from each, with nothing decided or computed\n"
      "A model of all zeros, one layer a stage, is written into the folder of temporary files for it.");
  command->option_defaults()->always_capture_default();
  command->add_option("--sequences", options->sequences, "Sequences that generate side by side")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  command->add_option("--steps", options->steps, "Steps to measure")->check(CLI::Range(10, kPositions - 1));
  command->add_option("--tp", options->job.tp, "Tensor-parallel ranks a stage (0: all ranks)");
  command->add_option("--pp", options->job.pp, "Pipeline stages");
  command->add_option("--idle", options->idle, "spin, yield or sleep:US");
  command->add_option("--json", options->json_file, "Write the metrics to this file");
  command->add_flag("--quiet", options->quiet, "No log");
  command->callback(
      [options] { run_under_mpi(options->quiet, [&](Communicator world) { bench(*options, std::move(world)); }); });
}

}  // namespace computron

// computron bench load: how fast a checkpoint becomes pages, beside a plain sequential read of the same file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "computron/base/size.h"
#include "computron/comm/agreed.h"
#include "computron/storage/files.h"
#include "src/bench/commands.h"
#include "src/bench/load_rounds.h"
#include "src/bench/swap_metrics.h"
#include "src/cli/mpi_command.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

struct BenchLoadOptions {
  std::string file;
  std::string page_size;
  int tp = 0;
  int threads = 0;
  int repeats = 9;
  std::string json_file;
  bool csv = false;
  bool quiet = false;
};

JobOptions job_options(const BenchLoadOptions& options) {
  JobOptions job;
  job.models = {{.id = "model", .path = options.file}};
  job.tp = options.tp;
  job.device = DeviceChoice::kCpu;
  job.threads = options.threads;
  if (!options.page_size.empty()) job.page_bytes = parse_size(options.page_size);
  job.pool_for_tokens = 1;  // nothing is served
  job.load = false;
  return job;
}

struct LoadConditions {
  std::string file;
  std::size_t file_bytes = 0;
  DType stored = DType::kF32, kept = DType::kF32;
  int tp = 1, threads = 1;
  std::size_t page_bytes = 0;
};

// A metric of every round, as people read it.
struct Metric {
  const char* key;
  const char* text;
  int digits;
  Spread spread;
};

template <class Of>
Metric metric(const char* key, const char* text, int digits, const std::vector<LoadRound>& rounds, const Of& of) {
  std::vector<double> values;
  for (const LoadRound& round : rounds) values.push_back(of(round));
  return {key, text, digits, spread_of(std::move(values))};
}

std::vector<Metric> metrics_of(const std::vector<LoadRound>& rounds, const LoadConditions& c) {
  const auto rate = [&](double LoadRound::*seconds) {
    return [=, bytes = 1e-9 * static_cast<double>(c.file_bytes)](const LoadRound& r) { return bytes / (r.*seconds); };
  };
  const auto ratio = [](double LoadRound::*of) { return [=](const LoadRound& r) { return r.*of / r.load_s; }; };
  const int threads = c.tp * c.threads;
  const auto phase = [&](double LoadTimes::*seconds) {
    return [=](const LoadRound& r) { return 1e3 * (r.of_load.*seconds) / threads; };
  };
  const auto coded_phase = [&](double LoadTimes::*seconds) {
    return [=](const LoadRound& r) { return 1e3 * (r.of_coded.*seconds) / threads; };
  };
  const auto rest = [&](const LoadRound& r) {
    const LoadTimes& t = r.of_load;
    const double busy = t.read_s + t.verify_s + t.memory_s + t.widen_s + t.pack_s + t.digest_s;
    return 1e3 * (r.load_s - busy / threads);
  };
  const auto over_encoding = [&](const LoadRound& r) { return r.coded_s / (r.load_s + r.of_coded.encode_s / threads); };
  return {metric("plain_gb_per_s", "plain read, one reader, GB/s", 2, rounds, rate(&LoadRound::plain_s)),
          metric("parts_gb_per_s", "the same in parts by all threads, GB/s", 2, rounds, rate(&LoadRound::parts_s)),
          metric("fresh_gb_per_s", "parts into fresh memory, GB/s", 2, rounds, rate(&LoadRound::fresh_s)),
          metric("load_gb_per_s", "load, GB/s", 2, rounds, rate(&LoadRound::load_s)),
          metric("load_over_plain", "load / plain read", 3, rounds, ratio(&LoadRound::plain_s)),
          metric("load_over_fresh", "load / parts into fresh memory", 3, rounds, ratio(&LoadRound::fresh_s)),
          metric("load_ms", "load, ms", 1, rounds, [](const LoadRound& r) { return 1e3 * r.load_s; }),
          metric("read_ms", "  a thread reads, ms", 1, rounds, phase(&LoadTimes::read_s)),
          metric("verify_ms", "  verifies what it read, ms", 1, rounds, phase(&LoadTimes::verify_s)),
          metric("memory_ms", "  makes the pages' memory exist, ms", 1, rounds, phase(&LoadTimes::memory_s)),
          metric("widen_ms", "  widens, ms", 1, rounds, phase(&LoadTimes::widen_s)),
          metric("pack_ms", "  packs, ms", 1, rounds, phase(&LoadTimes::pack_s)),
          metric("digest_ms", "  digests pages, ms", 1, rounds, phase(&LoadTimes::digest_s)),
          metric("rest_ms", "  waits for the slowest, starts, ends, ms", 1, rounds, rest),
          metric("coded_ms", "load to coded pages, ms", 1, rounds, [](const LoadRound& r) { return 1e3 * r.coded_s; }),
          metric("encode_ms", "  a thread encodes, ms", 1, rounds, coded_phase(&LoadTimes::encode_s)),
          metric("check_ms", "  decodes and digests once more, ms", 1, rounds, coded_phase(&LoadTimes::check_s)),
          metric("coded_over_bound", "coded load / (load + encoding)", 3, rounds, over_encoding)};
}

std::string table(const std::vector<Metric>& metrics, const LoadConditions& c, int rounds) {
  std::string text = fmt::format(
      "{} ({}, {}, kept as {}); tp {}, {} thread{} a rank, pages of {}; {} rounds\n\n{:44}{:>10}{:>10}{:>10}\n", c.file,
      format_size(c.file_bytes), name_of(c.stored), name_of(c.kept), c.tp, c.threads, c.threads == 1 ? "" : "s",
      format_size(c.page_bytes), rounds, "", "median", "min", "max");
  for (const auto& [key, name, digits, spread] : metrics) {
    text += fmt::format("{:44}{:>10.{}f}{:>10.{}f}{:>10.{}f}\n", name, spread.median, digits, spread.min, digits,
                        spread.max, digits);
  }
  return text;
}

std::string csv(const std::vector<Metric>& metrics, const LoadConditions& c, int rounds) {
  std::string head = "file_bytes,stored,kept,tp,threads,page_bytes,rounds";
  std::string line = fmt::format("{},{},{},{},{},{},{}", c.file_bytes, name_of(c.stored), name_of(c.kept), c.tp,
                                 c.threads, c.page_bytes, rounds);
  for (const Metric& f : metrics) {
    head += fmt::format(",{0},{0}_min,{0}_max", f.key);
    line += fmt::format(",{:.{}f},{:.{}f},{:.{}f}", f.spread.median, f.digits, f.spread.min, f.digits, f.spread.max,
                        f.digits);
  }
  return head + "\n" + line + "\n";
}

std::string json(const std::vector<Metric>& metrics, const LoadConditions& c, const std::vector<LoadRound>& rounds) {
  Json object = {
      {"file", c.file}, {"file_bytes", c.file_bytes}, {"stored", name_of(c.stored)}, {"kept", name_of(c.kept)},
      {"tp", c.tp},     {"threads", c.threads},       {"page_bytes", c.page_bytes}};
  for (const Metric& f : metrics) {
    object[f.key] = {{"median", f.spread.median}, {"min", f.spread.min}, {"max", f.spread.max}};
  }
  Json& list = object["rounds"] = Json::array();
  for (const LoadRound& r : rounds) {
    const LoadTimes &t = r.of_load, &coded = r.of_coded;
    list.push_back({{"plain_s", r.plain_s},
                    {"parts_s", r.parts_s},
                    {"fresh_s", r.fresh_s},
                    {"load_s", r.load_s},
                    {"coded_s", r.coded_s},
                    {"coded_thread_s", {{"encode", coded.encode_s}, {"check", coded.check_s}}},
                    {"thread_s",
                     {{"read", t.read_s},
                      {"verify", t.verify_s},
                      {"memory", t.memory_s},
                      {"widen", t.widen_s},
                      {"pack", t.pack_s},
                      {"digest", t.digest_s}}}});
  }
  return object.dump(2) + "\n";
}

void show(const BenchLoadOptions& options, const std::vector<LoadRound>& rounds, const LoadConditions& conditions) {
  const std::vector<Metric> metrics = metrics_of(rounds, conditions);
  const int count = static_cast<int>(rounds.size());
  if (!options.json_file.empty()) write_file_atomically(options.json_file, json(metrics, conditions, rounds));
  fmt::print("{}", options.csv ? csv(metrics, conditions, count) : table(metrics, conditions, count));
}

void bench(const BenchLoadOptions& options, Communicator world) {
  JobOptions job_wanted;
  agreed(world, [&] { job_wanted = job_options(options); });
  Job job(std::move(job_wanted), std::move(world));
  if (job.mesh().shape.pp > 1) throw Error(ExitCode::kUsage, "bench load takes one stage: --tp is the number of ranks");
  LoadRounds experiment(job);
  std::vector<LoadRound> rounds;
  experiment.warm_up();
  while (static_cast<int>(rounds.size()) < options.repeats) rounds.push_back(experiment.measure());
  if (job.mesh().rank != 0) return;
  const CheckpointIndex& index = experiment.index();
  show(options, rounds,
       {.file = options.file,
        .file_bytes = index.file_bytes,
        .stored = index.tensors.at("embedding.tokens.weight").dtype,
        .kept = job.models().weight_types(0).most().codes,
        .tp = job.mesh().shape.tp,
        .threads = job.plan().threads,
        .page_bytes = job.plan().page_bytes});
}

}  // namespace

void add_bench_load(CLI::App& app) {
  auto* command = app.add_subcommand("load", "A checkpoint into pages, again and again, under mpirun or srun");
  const auto o = std::make_shared<BenchLoadOptions>();
  command->option_defaults()->always_capture_default();
  command->add_option("file", o->file, "Checkpoint")->required();
  command->add_option("--tp", o->tp, "Tensor-parallel ranks: all of the job's (default)")->check(CLI::PositiveNumber);
  command->add_option("--threads", o->threads, "Threads of a rank (default: cores / ranks of the node)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--repeats", o->repeats, "Rounds to measure")->check(CLI::Range(1, 10000));
  command->add_option("--page-size", o->page_size, "Bytes of a page (default: as serve)");
  command->add_option("--json", o->json_file, "Write every metric and round to this file");
  command->add_flag("--csv", o->csv, "Print a line of comma-separated metrics instead of a table");
  command->add_flag("--quiet", o->quiet, "No log");
  command->footer(
      "A round reads the file once from beginning to end with one reader, then in parts with all threads, then in "
      "parts\n"
      "into memory that did not exist before, and then loads it on all ranks at once as serve does, to raw pages and "
      "to\n"
      "coded ones. The file is read once before the first round. Rates are the file's bytes / seconds of the slowest\n"
      "rank; the times of a load's phases are means over all threads.");
  command->callback([o] { run_under_mpi(o->quiet, [&](Communicator world) { bench(*o, std::move(world)); }); });
}

}  // namespace computron

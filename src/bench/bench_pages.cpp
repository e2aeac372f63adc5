// computron bench pages: what host pages that ranks share take, and how fast they are copied from.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "computron/base/size.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/comm/agreed.h"
#include "computron/model/checkpoint_check.h"
#include "src/bench/commands.h"
#include "src/bench/page_rounds.h"
#include "src/bench/swap_metrics.h"
#include "src/cli/mpi_command.h"

namespace computron {
namespace {

struct BenchPagesOptions {
  std::string file;
  std::string page_size = "8MiB";
  int threads = 1;
  int repeats = 9;
  bool csv = false;
  bool quiet = false;
};

// Collective: rank 0 reads it.
CheckpointIndex read_index(const Communicator& world, const std::string& file) {
  std::vector<std::byte> bytes;
  agreed(world, [&] {
    if (world.rank() == 0) bytes = read_index_apart(file).serialize();
  });
  return CheckpointIndex::deserialize(world.broadcast(std::move(bytes), 0));
}

ShardLayout whole_model(const CheckpointIndex& index, const Ops& ops, std::size_t page_bytes) {
  const ModelConfig config = ModelConfig::from_json(index.config_json);
  check_tensors(config, index);
  const WeightTypes types = WeightTypes(config, index).kept_by(ops);
  const ShardPlan plan = ShardPlan::make(config, {.tp = 1, .pp = 1}, /*stage=*/0);
  return ShardLayout::make(plan, ops.weight_format(), types, page_bytes);
}

struct Figure {
  const char* key;
  const char* text;
  int digits;
  Spread spread;
};

Figure once(const char* key, const char* text, int digits, double value) {
  return {key, text, digits, {value, value, value}};
}

template <class Of>
Figure of_rounds(const char* key, const char* text, const std::vector<CopyRates>& rounds, const Of& of) {
  std::vector<double> values;
  for (const CopyRates& round : rounds) values.push_back(of(round));
  return {key, text, 3, spread_of(std::move(values))};
}

void add_copies(std::vector<Figure>& figures, const std::array<const char*, 10>& names,
                const std::vector<CopyRates>& rounds) {
  const auto add = [&](int name, const auto& of) {
    figures.push_back(of_rounds(names[name], names[name + 1], rounds, of));
  };
  add(0, [](const CopyRates& r) { return r.own; });
  add(2, [](const CopyRates& r) { return r.shared; });
  add(4, [](const CopyRates& r) { return r.shared_small; });
  add(6, [](const CopyRates& r) { return r.shared / r.own; });
  add(8, [](const CopyRates& r) { return r.shared_small / r.own; });
}

std::vector<Figure> measure(PageRounds& rounds, int repeats) {
  const auto copies = [one = static_cast<double>(rounds.one_copy_bytes())](std::size_t bytes) { return bytes / one; };
  const PagesMemory shared = rounds.load_shared(), own = rounds.load_own(), small = rounds.load_shared_small();
  std::vector<CopyRates> together, alone;
  rounds.copy_together();  // the first is not counted
  for (int round = 0; round < repeats; ++round) {
    together.push_back(rounds.copy_together());
    alone.push_back(rounds.copy_alone());
  }
  std::vector<Figure> figures = {
      once("one_copy_bytes", "bytes of one copy", 0, static_cast<double>(rounds.one_copy_bytes())),
      once("shared_most", "shared: most while loading, copies", 3, copies(shared.most_bytes)),
      once("shared_settled", "  afterwards, copies", 3, copies(shared.settled_bytes)),
      once("shared_huge", "  mapped as huge pages, over all ranks, copies", 3, copies(shared.huge_bytes)),
      once("shared_load_s", "  load, s", 3, shared.load_s),
      once("own_most", "private: most while loading, copies", 3, copies(own.most_bytes)),
      once("own_settled", "  afterwards, copies", 3, copies(own.settled_bytes)),
      once("own_load_s", "  load, s", 3, own.load_s),
      once("small_settled", "shared without huge pages: afterwards, copies", 3, copies(small.settled_bytes)),
      once("small_load_s", "  load, s", 3, small.load_s)};
  add_copies(figures,
             {"own_gb_per_s", "all ranks copy at once: private, GB/s a rank", "shared_gb_per_s", "  shared, GB/s",
              "small_gb_per_s", "  shared without huge pages, GB/s", "shared_over_own", "  shared / private",
              "small_over_own", "  shared without huge pages / private"},
             together);
  add_copies(figures,
             {"alone_own_gb_per_s", "one rank copies alone: private, GB/s", "alone_shared_gb_per_s", "  shared, GB/s",
              "alone_small_gb_per_s", "  shared without huge pages, GB/s", "alone_shared_over_own",
              "  shared / private", "alone_small_over_own", "  shared without huge pages / private"},
             alone);
  return figures;
}

void show(const BenchPagesOptions& options, const std::vector<Figure>& figures, int ranks) {
  if (options.csv) {
    std::string head = "ranks,threads,rounds", line = fmt::format("{},{},{}", ranks, options.threads, options.repeats);
    for (const Figure& f : figures) {
      head += fmt::format(",{0},{0}_min,{0}_max", f.key);
      line += fmt::format(",{0:.{3}f},{1:.{3}f},{2:.{3}f}", f.spread.median, f.spread.min, f.spread.max, f.digits);
    }
    return fmt::print("{}\n{}\n", head, line);
  }
  fmt::print("{}: {} ranks, {} thread{} each, {} rounds\n\n{:52}{:>14}{:>14}{:>14}\n", options.file, ranks,
             options.threads, options.threads == 1 ? "" : "s", options.repeats, "", "median", "min", "max");
  for (const Figure& f : figures) {
    fmt::print("{:52}{:>14.{}f}{:>14.{}f}{:>14.{}f}\n", f.text, f.spread.median, f.digits, f.spread.min, f.digits,
               f.spread.max, f.digits);
  }
}

void bench(const BenchPagesOptions& options, const Communicator& world) {
  const CheckpointIndex index = read_index(world, options.file);
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  const std::unique_ptr<Ops> ops = make_cpu_ops(*device);
  ShardLayout layout;
  agreed(world, [&] { layout = whole_model(index, *ops, parse_size(options.page_size)); });
  PageRounds rounds(world, *device, {&index, &layout, &ops->weight_format(), /*t=*/0, "model"}, options.threads);
  const std::vector<Figure> figures = measure(rounds, options.repeats);
  if (world.rank() == 0) show(options, figures, world.size());
}

}  // namespace

void add_bench_pages(CLI::App& app) {
  auto* command = app.add_subcommand("pages", "Host pages that ranks share, under mpirun or srun on one node");
  const auto o = std::make_shared<BenchPagesOptions>();
  command->option_defaults()->always_capture_default();
  command->add_option("file", o->file, "Checkpoint")->required();
  command->add_option("--threads", o->threads, "Threads that load, of each rank")->check(CLI::Range(1, 4096));
  command->add_option("--repeats", o->repeats, "Rounds of copies")->check(CLI::Range(1, 10000));
  command->add_option("--page-size", o->page_size, "Bytes of a page");
  command->add_flag("--csv", o->csv, "Print a line of comma-separated figures instead of a table");
  command->add_flag("--quiet", o->quiet, "No log");
  command->footer(
      "Every rank loads the whole model: once into pages that all ranks share, once into pages of its own, and once "
      "into\n"
      "shared pages that are not huge ones. Memory is the sum of the ranks' proportional shares (Pss) beyond what "
      "they\n"
      "had before, in copies of the model; it takes ranks + 2 copies in all. Then the ranks copy the pages to the "
      "device,\n"
      "each from the three in turns, all ranks at once and rank 0 alone; rates are upper quartiles of pages, of the\n"
      "slowest rank.");
  command->callback([o] { run_under_mpi(o->quiet, [&](Communicator world) { bench(*o, world); }); });
}

}  // namespace computron

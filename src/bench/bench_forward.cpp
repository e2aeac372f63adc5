// computron bench forward: how fast a resident model prefills and decodes, beside what memory and GEMMs allow.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "computron/storage/files.h"
#include "src/bench/commands.h"
#include "src/bench/forward_metrics.h"

namespace computron {
namespace {

struct BenchForwardOptions {
  ForwardOptions experiment;
  std::string json_file;
};

void bench(const BenchForwardOptions& o) {
  const ForwardMetrics metrics = run_forward_experiment(o.experiment);
  if (!o.json_file.empty()) write_file_atomically(o.json_file, forward_json(o.experiment, metrics));
  fmt::print("{}", forward_table(o.experiment, metrics));
}

}  // namespace

void add_bench_forward(CLI::App& app) {
  auto* command = app.add_subcommand("forward", "Prefill and decode of one resident model on one rank");
  const auto options = std::make_shared<BenchForwardOptions>();
  ForwardOptions& o = options->experiment;
  command->footer(
      "plain read  all pages read once by the same threads; on cuda a copy of 2 GiB, bytes read and written counted\n"
      "GEMM peak   512 rows by a weight of 8192 x 4096 of the model's type; on cuda 4096 by 8192 x 8192\n"
      "GEMMs       the same pass with everything but its GEMMs left out\n"
      "of read     bytes of the weights that a pass multiplies with a second, of a plain read; '+ cache' counts keys\n"
      "            and values, too\n"
      "of peak     multiplications of the pass's GEMMs a second, of the GEMM peak\n"
      "of bound    the longer of what '+ cache' and 'of peak' allow, of the pass\n"
      "Every round measures all of them one after the other; ratios are of one round, then the median is taken.");
  command->option_defaults()->always_capture_default();
  command->add_option("file", o.file, "Checkpoint of a decoder, FILE.h5")->required();
  command->add_option("--device", o.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--threads", o.threads, "Compute threads")->check(CLI::Range(1, 4096));
  command->add_option("--prompt", o.prompt, "Tokens of the prefill")->check(CLI::Range(1, 1 << 20));
  command->add_option("--batches", o.batches, "Sequences that decode together")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  command->add_option("--context", o.context, "Tokens before the one decoded")->check(CLI::Range(0, 1 << 20));
  command->add_option("--repeats", o.repeats, "Rounds")->check(CLI::Range(1, 10000));
  command->add_option("--json", options->json_file, "Write every metric to this file");
  command->callback([options] { bench(*options); });
}

}  // namespace computron

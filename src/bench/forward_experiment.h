// What a forward pass reaches beside what bounds it, all in one run and in turn, so that the machine's ups and downs
// meet every candidate.
#pragma once

#include <string>
#include <vector>

#include "computron/base/parallel.h"
#include "computron/base/types.h"
#include "src/bench/ops_probe.h"

namespace computron {

struct ForwardOptions {
  std::string file;
  std::string device = "cpu";
  int threads = usable_cores();
  int prompt = 512;                       // tokens of the prefill
  std::vector<int> batches = {1, 8, 64};  // sequences that decode together
  int context = 128;                      // tokens before the one decoded
  int repeats = 7;
};

// A pass and the same pass's GEMMs alone.
struct PassMetrics {
  int sequences = 0;
  int rows = 0;                // of a sequence
  double weight_bytes = 0;     // that its GEMMs read
  double gemm_flops = 0;       // that they do
  double cache_bytes = 0;      // keys and values that it reads
  std::vector<double> pass_s;  // [round]
  std::vector<double> gemms_s;
  std::vector<double> prepare_s;     // of pass_s, until the first launch
  std::vector<double> enqueue_s;     // of pass_s, until the host only waited for the device
  std::vector<OperationCost> costs;  // of one pass, the median of the rounds for each operation
};

struct ForwardMetrics {
  std::string architecture, device;
  DType weight_dtype = DType::kF32;
  std::vector<double> read_bytes_per_s;  // [round] plain
  std::vector<double> peak_flops_per_s;  // [round] of a GEMM alone
  PassMetrics prefill;
  std::vector<PassMetrics> decode;  // by batch
};

ForwardMetrics run_forward_experiment(const ForwardOptions& options);

}  // namespace computron

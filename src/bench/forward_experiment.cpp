#include "src/bench/forward_experiment.h"

#include <algorithm>
#include <memory>

#include "computron/base/time.h"
#include "src/bench/latency_summary.h"
#include "src/bench/resident_model.h"

namespace computron {
namespace {

struct GemmShape {
  int rows, out, in;
};

// A GEMM that nothing disturbs: a weight larger than a core's caches, of which 512 rows use every byte 512 times. On a
// device with memory of its own one that fills it.
class PeakGemm {
 public:
  explicit PeakGemm(ResidentModel& model)
      : model_(model),
        shape_(model.device().own_memory() ? GemmShape{4096, 8192, 8192} : GemmShape{512, 8192, 4096}),
        type_(model.layout().types.most()),
        weight_(filled(model.ops().weight_format().panel_bytes(shape_.out, shape_.in, type_))),
        x_(filled(sizeof(float) * shape_.rows * shape_.in)),
        out_(filled(sizeof(float) * shape_.rows * shape_.out)),
        panel_{weight_->data(), /*ready=*/nullptr, /*row_begin=*/0, shape_.out} {}

  double flops_per_s() {
    const auto [rows, out, in] = shape_;
    const Activations x{x_->data(), rows, in, model_.ops().weight_format().input_dtype(type_)},
        y{out_->data(), rows, out, DType::kF32};
    const double begin_s = now_s();
    model_.ops().gemm(model_.stream(), x, {{&panel_, 1}, out, in, type_}, /*bias=*/{}, Activation::kNone, y);
    model_.stream().synchronize();
    return 2.0 * rows * out * in / (now_s() - begin_s);
  }

 private:
  std::unique_ptr<DeviceBuffer> filled(std::size_t bytes) { return model_.filled(bytes, "GEMM for the peak"); }

  ResidentModel& model_;
  GemmShape shape_;
  WeightType type_;
  std::unique_ptr<DeviceBuffer> weight_, x_, out_;
  WeightPanel panel_;
};

// One kind of pass, measured again and again.
class MeasuredPass {
 public:
  MeasuredPass(ResidentModel& model, int sequences, int start, int rows)
      : model_(model), batch_(model.batch(sequences, start, rows)) {
    OpsProbe probe(model.ops(), OpsProbe::Runs::kGemmsOnly);
    // Makes kernels, and numbers for those who leave operations out; a GPU makes a graph the second time.
    for (int i = 0; i < 2; ++i) model_.run_pass(model_.ops(), batch_);
    model_.run_pass(probe, batch_);
    metrics_.sequences = sequences;
    metrics_.rows = rows;
    metrics_.weight_bytes = probe.weight_bytes();
    metrics_.gemm_flops = probe.gemm_flops();
    metrics_.cache_bytes = model_.cache_bytes(batch_);
  }

  void measure() {
    OpsProbe all(model_.ops(), OpsProbe::Runs::kAll), gemms(model_.ops(), OpsProbe::Runs::kGemmsOnly);
    metrics_.gemms_s.push_back(model_.run_pass(gemms, batch_).pass_s);
    const auto [pass_s, prepare_s, enqueue_s] = model_.run_pass(model_.ops(), batch_);
    metrics_.pass_s.push_back(pass_s);
    metrics_.prepare_s.push_back(prepare_s);
    metrics_.enqueue_s.push_back(enqueue_s);
    model_.run_pass(all, batch_);
    costs_.push_back(all.costs());
  }

  PassMetrics metrics() const {
    PassMetrics metrics = metrics_;
    for (std::size_t i = 0; i < costs_.front().size(); ++i) {
      std::vector<double> seconds;
      for (const auto& round : costs_) seconds.push_back(round[i].seconds);
      metrics.costs.push_back(costs_.front()[i]);
      metrics.costs.back().seconds = summary_of(std::move(seconds)).p50_s;
    }
    return metrics;
  }

 private:
  ResidentModel& model_;
  Batch batch_;
  PassMetrics metrics_;
  std::vector<std::vector<OperationCost>> costs_;  // [round]
};

}  // namespace

ForwardMetrics run_forward_experiment(const ForwardOptions& o) {
  const int most = *std::max_element(o.batches.begin(), o.batches.end());
  ResidentModel model(o.file, o.device, o.threads, std::max(o.prompt, most), most, o.context + 1, o.prompt);
  ForwardMetrics metrics;
  metrics.architecture = model.config().architecture;
  metrics.device = model.device().name();
  metrics.weight_dtype = model.layout().types.most().codes;
  PeakGemm peak(model);
  MeasuredPass prefill(model, /*sequences=*/1, /*start=*/0, o.prompt);
  std::vector<MeasuredPass> decode;
  for (const int batch : o.batches) decode.emplace_back(model, batch, o.context, /*rows=*/1);
  peak.flops_per_s();
  for (int round = 0; round < o.repeats; ++round) {
    metrics.read_bytes_per_s.push_back(model.plain_read_bytes_per_s());
    for (MeasuredPass& pass : decode) pass.measure();
    metrics.peak_flops_per_s.push_back(peak.flops_per_s());
    prefill.measure();
  }
  metrics.prefill = prefill.metrics();
  for (const MeasuredPass& pass : decode) metrics.decode.push_back(pass.metrics());
  return metrics;
}

}  // namespace computron

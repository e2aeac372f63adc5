#include "src/apps/forward_experiment.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "computron/base/time.h"
#include "src/apps/latency_summary.h"
#include "src/apps/resident_model.h"

namespace computron {
namespace {

// A GEMM that nothing disturbs: a weight larger than a core's caches, of which 512 rows use every byte 512 times.
class PeakGemm {
 public:
  explicit PeakGemm(ResidentModel& model)
      : model_(model),
        dtype_(model.image().weight_dtype),
        weight_(filled(model.ops().weight_format().panel_bytes(kOut, kIn, dtype_))),
        x_(filled(std::size_t{kRows} * kIn * sizeof(float))),
        out_(filled(std::size_t{kRows} * kOut * sizeof(float))),
        panel_{weight_->data(), /*ready=*/nullptr, /*row_begin=*/0, kOut} {}

  double flops_per_s() {
    const Activations x{x_->data(), kRows, kIn, model_.image().input_dtype},
        out{out_->data(), kRows, kOut, DType::kF32};
    const double begin_s = now_s();
    model_.ops().gemm(model_.stream(), x, {{&panel_, 1}, kOut, kIn, dtype_}, /*bias=*/{}, Activation::kNone, out);
    model_.stream().synchronize();
    return 2.0 * kRows * kOut * kIn / (now_s() - begin_s);
  }

 private:
  static constexpr int kRows = 512, kOut = 8192, kIn = 4096;

  // Numbers of moderate size in any type, on pages that are there.
  std::unique_ptr<DeviceBuffer> filled(std::size_t bytes) {
    auto buffer = model_.device().allocate(bytes, "GEMM for the peak");
    std::memset(buffer->data(), 0x3c, buffer->bytes());
    return buffer;
  }

  ResidentModel& model_;
  DType dtype_;
  std::unique_ptr<DeviceBuffer> weight_, x_, out_;
  WeightPanel panel_;
};

// One kind of pass, measured again and again.
class MeasuredPass {
 public:
  MeasuredPass(ResidentModel& model, int sequences, int start, int rows)
      : model_(model), batch_(model.batch(sequences, start, rows)) {
    OpsProbe probe(model.ops(), OpsProbe::Runs::kGemmsOnly);
    model_.pass_s(model_.ops(), batch_);  // makes kernels, and numbers for those who leave operations out
    model_.pass_s(probe, batch_);
    figures_.sequences = sequences;
    figures_.rows = rows;
    figures_.weight_bytes = probe.weight_bytes();
    figures_.gemm_flops = probe.gemm_flops();
    figures_.cache_bytes = model_.cache_bytes(batch_);
  }

  void measure() {
    OpsProbe all(model_.ops(), OpsProbe::Runs::kAll), gemms(model_.ops(), OpsProbe::Runs::kGemmsOnly);
    figures_.gemms_s.push_back(model_.pass_s(gemms, batch_));
    figures_.pass_s.push_back(model_.pass_s(model_.ops(), batch_));
    model_.pass_s(all, batch_);
    costs_.push_back(all.costs());
  }

  PassFigures figures() const {
    PassFigures figures = figures_;
    for (std::size_t i = 0; i < costs_.front().size(); ++i) {
      std::vector<double> seconds;
      for (const auto& round : costs_) seconds.push_back(round[i].seconds);
      figures.costs.push_back(costs_.front()[i]);
      figures.costs.back().seconds = summary_of(std::move(seconds)).p50_s;
    }
    return figures;
  }

 private:
  ResidentModel& model_;
  Batch batch_;
  PassFigures figures_;
  std::vector<std::vector<OperationCost>> costs_;  // [round]
};

}  // namespace

ForwardFigures run_forward_experiment(const ForwardOptions& o) {
  const int most = *std::max_element(o.batches.begin(), o.batches.end());
  ResidentModel model(o.file, o.threads, std::max(o.prompt, most), most, std::max(o.prompt, o.context + 1));
  ForwardFigures figures;
  figures.architecture = model.config().architecture;
  figures.device = model.device().name();
  figures.weight_dtype = model.image().weight_dtype;
  PeakGemm peak(model);
  MeasuredPass prefill(model, /*sequences=*/1, /*start=*/0, o.prompt);
  std::vector<MeasuredPass> decode;
  for (const int batch : o.batches) decode.emplace_back(model, batch, o.context, /*rows=*/1);
  peak.flops_per_s();
  for (int round = 0; round < o.repeats; ++round) {
    figures.read_bytes_per_s.push_back(model.plain_read_bytes_per_s());
    for (MeasuredPass& pass : decode) pass.measure();
    figures.peak_flops_per_s.push_back(peak.flops_per_s());
    prefill.measure();
  }
  figures.prefill = prefill.figures();
  for (const MeasuredPass& pass : decode) figures.decode.push_back(pass.figures());
  return figures;
}

}  // namespace computron

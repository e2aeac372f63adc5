// The operations on the CUDA device: each checks its arguments, has the stream wait for the pages it needs, and gives
// it kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "computron/ops/ops.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/sample.h"
#include "src/ops/cuda/library_gemm.h"
#include "src/ops/cuda/panel_runs.h"
#include "src/ops/cuda/pass_state.h"
#include "src/ops/cuda/staging.h"
#include "src/ops/cuda/weight_format.h"

namespace computron {

// Serves one compute stream, on the thread that made the device, and outlives that stream's last synchronize().
class CudaOps final : public Ops {
 public:
  CudaOps(Device& device, bool tf32);

  const WeightFormat& weight_format() const override { return format_; }
  WeightType weight_type(const WeightType& checkpoint) const override;
  int padded_rows(int rows) const override;

  std::string begin_pass(const PassArrays& arrays) override;
  void upload_inputs(Stream&) override;
  void end_pass() override;

  void embed(Stream&, std::span<const TokenId> tokens, TokenId first_token, const Weight& weight,
             Activations out) override;
  void add_rows(Stream&, std::span<const std::int32_t> rows, int row_offset, const Table& table,
                Activations inout) override;
  void copy_vector(Stream&, Vector in, Activations out) override;
  void zero(Stream&, Activations out) override;
  void add_residual_and_norm(Stream&, Activations x, Vector bias, Activations inout, NormKind kind, Vector weight,
                             Vector norm_bias, float epsilon, Activations out) override;
  void norm(Stream&, NormKind kind, Activations in, Vector weight, Vector bias, float epsilon,
            Activations out) override;
  void gemm(Stream&, Activations x, const Weight& weight, Vector bias, Activation activation, Activations out) override;
  void add_residual(Stream&, Activations x, Vector bias, Activations inout) override;
  DType gate_dtype(int rows, const WeightType& weight) const override;
  void activate_gate(Stream&, const Gate& gate, Activations in, Activations out) override;
  void add_gated_rows(Stream&, Activations x, Activations gates, Activations inout) override;
  void norm_heads(Stream&, NormKind kind, const AttentionShape& shape, Vector weight, float epsilon,
                  Activations qkv) override;
  void square_heads(Stream&, const AttentionShape& shape, Activations qkv, std::span<const std::int32_t> heads,
                    Activations out) override;
  void norm_width(Stream&, NormKind kind, const AttentionShape& shape, Activations squares, int query_heads,
                  Vector weight, float epsilon, Activations qkv) override;
  void scale(Stream&, float factor, Activations inout) override;
  void soft_cap(Stream&, float cap, Activations inout) override;
  void rotary_angles(Stream&, std::span<const std::int32_t> positions, std::span<const float> frequencies,
                     Activations out) override;
  void apply_rope(Stream&, const AttentionShape& shape, Activations angles, Activations qkv) override;
  void convert(Stream&, Activations in, Activations out) override;
  void gather_rows(Stream&, Activations in, std::span<const std::int32_t> rows, Activations out) override;
  void copy_columns(Stream&, Activations in, int first, Activations out) override;
  void scatter_add(Stream&, Activations in, std::span<const std::int32_t> rows, std::span<const float> weights,
                   Activations inout) override;
  void attention(Stream&, const AttentionShape& shape, Activations qkv, std::span<const SequenceRows> sequences,
                 const KvCacheView& cache, int layer, Vector sinks, Activations out) override;
  void top_k_log_sum_exp(Stream&, Activations logits, const LogitColumns& columns, std::span<const std::int32_t> top,
                         std::span<const TokenId> targets, TopLogits* out) override;
  void sample(Stream&, Activations logits, const LogitColumns& columns, std::span<const RowSampling> rows,
              SliceSample* out) override;
  bool routes_experts() const override { return true; }
  std::size_t routing_bytes(int rows, const RoutingRule& rule) const override;
  void route(Stream&, Activations logits, std::span<const std::int32_t> real_rows, const ExpertRoutes& out) override;
  void expert_gemm(Stream&, Activations x, bool by_row, std::span<const ExpertWeight> weights, Vector biases,
                   const ExpertRoutes& routes, Activation activation, Activations out) override;
  void activate_expert_gates(Stream&, const Gate& gate, Activations in, const ExpertRoutes& routes, ExpertRange experts,
                             Activations out) override;
  void mix_experts(Stream&, Activations in, const ExpertRoutes& routes, ExpertRange experts,
                   Activations inout) override;
  void copy_from_host(Stream&, const void* in, Activations out) override;
  void copy_to_host(Stream&, Activations in, void* out) override;

 private:
  // What every operation begins with.
  CudaComputeStream& begin(Stream& stream);
  // Where the values are for whatever the stream is given next: an input of the pass, or a copy of their own.
  template <class T>
  const T* on_device(CudaComputeStream& stream, std::span<const T> values) {
    if (values.empty()) return nullptr;
    const T* const there = pass_.input(values);
    return there != nullptr ? there : staging_.upload(stream, values);
  }
  template <class T>
  T* scratch() const {
    return reinterpret_cast<T*>(scratch_->data());
  }

  void gemm_by_kernels(CudaComputeStream& stream, std::span<const PanelRun> runs, kernels::cuda::GemmCall call);
  std::vector<PanelRun> cut_for_expansion(const std::vector<PanelRun>& runs, const Weight& weight) const;
  PanelRun as_plain(CudaComputeStream& stream, const PanelRun& run, const kernels::cuda::QuantisedTiles& tiles);
  void gemm_by_library(CudaComputeStream& stream, std::span<const PanelRun> runs, const kernels::cuda::GemmCall& call,
                       const kernels::cuda::QuantisedTiles& tiles);
  void finish_run(CudaComputeStream& stream, const PanelRun& run, const kernels::cuda::GemmCall& call,
                  const float* bias, Activation activation);
  void multiply_experts(CudaComputeStream& stream, std::span<const ExpertWeight> weights,
                        kernels::cuda::ExpertGemmCall call);
  const std::byte* bias_as(CudaComputeStream& stream, const kernels::cuda::GemmCall& call);

  const AttentionTables& attention_tables(CudaComputeStream& stream, const AttentionShape& shape, int batch_rows,
                                          std::span<const SequenceRows> sequences, const KvCacheView& cache);
  void attend_decode(CudaComputeStream& stream, const kernels::cuda::AttentionCall& call,
                     const AttentionTables& tables);
  void sample_rows(CudaComputeStream& stream, const Activations& logits, const LogitColumns& columns,
                   const SampleLists& lists, const SampleResults& results);

  CudaWeightFormat format_;
  std::unique_ptr<DeviceBuffer> scratch_;  // of one operation at a time: the stream runs one after the other
  std::unique_ptr<DeviceBuffer> bias_;     // of one product, in the type of its output
  std::unique_ptr<DeviceBuffer> plain_;    // values of a run of a quantised weight
  const int shared_bytes_;                 // of shared memory, that a block of kernels may have
  LibraryGemm library_;
  Staging staging_;
  PassState pass_;
  AttentionTables attention_tables_;  // of the last call outside of a pass
  std::uint64_t tables_generation_ = 0;
};

}  // namespace computron

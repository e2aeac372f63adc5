// The operations on the CUDA device: each checks its arguments, has the stream wait for the pages it needs, and gives
// it kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "computron/ops/ops.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/sample.h"
#include "src/ops/cuda/attention_plan.h"
#include "src/ops/cuda/library_gemm.h"
#include "src/ops/cuda/panel_runs.h"
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

  void embed(Stream&, std::span<const TokenId> tokens, TokenId first_token, const Weight& weight,
             Activations out) override;
  void add_rows(Stream&, std::span<const std::int32_t> rows, int row_offset, const Table& table,
                Activations inout) override;
  void copy_vector(Stream&, Vector in, Activations out) override;
  void zero(Stream&, Activations out) override;
  void norm(Stream&, NormKind kind, Activations in, Vector weight, Vector bias, float epsilon,
            Activations out) override;
  void gemm(Stream&, Activations x, const Weight& weight, Vector bias, Activation activation, Activations out) override;
  void add_residual(Stream&, Activations x, Vector bias, Activations inout) override;
  void activate_gate(Stream&, Activation activation, Activations in, Activations out) override;
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
                 const KvCacheView& cache, int layer, Activations out) override;
  void top_k_log_sum_exp(Stream&, Activations logits, const LogitColumns& columns, std::span<const std::int32_t> top,
                         std::span<const TokenId> targets, TopLogits* out) override;
  void sample(Stream&, Activations logits, const LogitColumns& columns, std::span<const RowSampling> rows,
              SliceSample* out) override;
  void copy_from_host(Stream&, const void* in, Activations out) override;
  void copy_to_host(Stream&, Activations in, void* out) override;

 private:
  // The tables of an AttentionPlan on the device. Every layer of a pass is given the same sequences, which stay as they
  // are until the stream has run: the same spans are the same tables.
  struct AttentionTables {
    std::span<const SequenceRows> sequences;
    std::span<const FrameId> cache_frames;
    bool causal = true;
    std::uint64_t generation = 0;
    AttentionPlan plan;
    const kernels::cuda::AttentionRow* rows = nullptr;
    const int* row_ids = nullptr;
    const kernels::cuda::QueryTile* tiles = nullptr;
    const std::uint32_t* blocks = nullptr;
    const FrameId* frames = nullptr;
  };
  // The lists of rows that sample, one behind the other.
  struct SampleLists {
    std::vector<kernels::cuda::SampleRow> rows;
    std::vector<std::int32_t> row_ids;
    std::vector<TokenUse> used;
    std::vector<kernels::cuda::TokenBias> bias;
    std::vector<TokenId> banned;
    int truncating = 0;
    void add(int row, const RowSampling& sampling);
  };
  // Where the kernels put what is sampled, in host memory.
  struct SampleResults {
    Staging::Result<kernels::cuda::SampleResult> slices;
    Staging::Result<Candidate> candidates;
    Staging::Result<Candidate> all;
  };

  // What every operation begins with.
  CudaComputeStream& begin(Stream& stream);
  template <class T>
  T* scratch() const {
    return reinterpret_cast<T*>(scratch_->data());
  }

  void gemm_by_kernels(CudaComputeStream& stream, std::span<const PanelRun> runs, kernels::cuda::GemmCall call);
  std::vector<PanelRun> cut_for_expansion(const std::vector<PanelRun>& runs, const Weight& weight) const;
  PanelRun as_plain(CudaComputeStream& stream, const PanelRun& run, const kernels::cuda::QuantisedTiles& tiles);
  void give_gemm(CudaComputeStream& stream, bool skinny, const kernels::cuda::GemmCall& call);
  void gemm_by_library(CudaComputeStream& stream, std::span<const PanelRun> runs, const kernels::cuda::GemmCall& call,
                       const kernels::cuda::QuantisedTiles& tiles);
  void finish_run(CudaComputeStream& stream, const PanelRun& run, const kernels::cuda::GemmCall& call,
                  const float* bias, Activation activation);
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
  LibraryGemm library_;
  Staging staging_;
  AttentionTables attention_tables_;
};

}  // namespace computron

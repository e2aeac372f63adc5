// The operations on the CPU device: each checks its arguments, takes its event marks, and launches one closure that
// spreads a kernel over the compute pool.
#pragma once

#include <memory>
#include <vector>

#include "computron/device/cpu/cpu_stream.h"
#include "computron/ops/ops.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/gemm.h"
#include "src/ops/cpu/gemm_choices.h"
#include "src/ops/cpu/tasks.h"
#include "src/ops/cpu/weight_format.h"

namespace computron {

// Serves one compute stream at a time. Closures run one after the other on the stream's thread, which owns tasks_ and
// the list of workspaces; inside parallel_for each thread has a workspace of its own.
class CpuOps final : public Ops {
 public:
  const WeightFormat& weight_format() const override { return format_; }
  WeightType weight_type(const WeightType& checkpoint) const override;
  void choose_kernels(std::span<const WeightType> types) override;
  int padded_rows(int rows) const override { return rows; }

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
  void add_residual_and_norm(Stream&, Activations x, Vector bias, Activations inout, NormKind kind, Vector weight,
                             Vector norm_bias, float epsilon, Activations out) override;
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
  bool computes_adapters() const override { return true; }
  void add_low_rank_in(Stream&, Activations x, std::vector<LowRankPart> parts) override;
  void scale_low_rank(Stream&, std::vector<LowRankScale> scales) override;
  void add_low_rank_out(Stream&, std::vector<LowRankPart> parts, Activations out) override;
  void activate(Stream&, Activation activation, Activations in, Activations out) override;
  void copy_from_host(Stream&, const void* in, Activations out) override;
  void copy_to_host(Stream&, Activations in, void* out) override;

 private:
  // Rows of x of a GEMM, which is one of gemms_.
  struct TakenRows {
    long gemm = 0;
    int row = 0, rows = 0;
    bool operator==(const TakenRows&) const = default;
  };
  // What one thread of the pool needs; made by that thread, so that its memory is its own.
  struct Workspace {
    kernels::Gemm gemm;
    TakenRows taken;  // by gemm
    alignas(64) float tile[kTileFloats];
    kernels::AttentionScratch attention;
    std::vector<float> scaled;  // of a row of logits
    std::vector<float> wide;    // rows of x as float32
  };
  struct GemmCall;
  struct AttentionCall;

  Workspace& workspace(int thread);
  void reserve_workspaces(int threads);
  void run_gemm(CpuContext& context, const GemmCall& call);
  void run_gemm_task(CpuContext& context, int thread, const GemmCall& call, const GemmTask& task);
  void run_attention(CpuContext& context, AttentionCall call);

  CpuWeightFormat format_;
  GemmChoices choices_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;  // by thread
  long gemms_ = 0;  // run; changed by the stream's thread alone, before its threads take tasks
  std::vector<GemmTask> gemm_tasks_;
  std::vector<AttentionTask> attention_tasks_;
  std::vector<LowRankTask> low_rank_tasks_;
};

}  // namespace computron

// Operations that are looked at while they run: what each kind takes, and what a pass takes of which only the GEMMs are
// left. For what each kind takes, each is waited for.
#pragma once

#include <string_view>
#include <vector>

#include "computron/ops/ops.h"

namespace computron {

// Of all calls of one operation.
struct OperationCost {
  std::string_view name;
  int calls = 0;
  double seconds = 0;
};

class OpsProbe final : public Ops {
 public:
  enum class Runs { kAll, kGemmsOnly };  // of a pass; what does not run leaves its output as it was

  OpsProbe(Ops& ops, Runs runs) : ops_(ops), runs_(runs) {}

  // In the order of first calls.
  const std::vector<OperationCost>& costs() const { return costs_; }
  // Of the GEMMs: bytes of packed weights, each call counted, and 2 × rows × out × in.
  double weight_bytes() const { return weight_bytes_; }
  double gemm_flops() const { return gemm_flops_; }

  const WeightFormat& weight_format() const override { return ops_.weight_format(); }
  WeightType weight_type(const WeightType& checkpoint) const override { return ops_.weight_type(checkpoint); }
  bool routes_experts() const override { return ops_.routes_experts(); }
  std::size_t routing_bytes(int rows, const RoutingRule& rule) const override { return ops_.routing_bytes(rows, rule); }
  void route(Stream& stream, Activations logits, std::span<const std::int32_t> real_rows,
             const ExpertRoutes& out) override;
  void expert_gemm(Stream&, Activations x, bool by_row, std::span<const ExpertWeight> weights, Vector biases,
                   const ExpertRoutes& routes, Activation activation, Activations out) override;
  void activate_expert_gates(Stream&, const Gate& gate, Activations in, const ExpertRoutes& routes, ExpertRange experts,
                             Activations out) override;
  void mix_experts(Stream&, Activations in, const ExpertRoutes& routes, ExpertRange experts,
                   Activations inout) override;
  std::string begin_pass(const PassArrays& arrays) override { return ops_.begin_pass(arrays); }
  void upload_inputs(Stream& stream) override { ops_.upload_inputs(stream); }
  void end_pass() override { ops_.end_pass(); }
  int padded_rows(int rows) const override { return ops_.padded_rows(rows); }

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
  // Of GEMMs only: without bias and activation.
  void gemm(Stream&, Activations x, const Weight& weight, Vector bias, Activation activation, Activations out) override;
  void add_residual(Stream&, Activations x, Vector bias, Activations inout) override;
  DType gate_dtype(int rows, const WeightType& weight) const override { return ops_.gate_dtype(rows, weight); }
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
  void scatter_add(Stream&, Activations in, std::span<const std::int32_t> rows, std::span<const float> weights,
                   Activations inout) override;
  void attention(Stream&, const AttentionShape& shape, Activations qkv, std::span<const SequenceRows> sequences,
                 const KvCacheView& cache, int layer, Vector sinks, Activations out) override;
  void copy_columns(Stream&, Activations in, int first, Activations out) override;
  void top_k_log_sum_exp(Stream&, Activations logits, const LogitColumns& columns, std::span<const std::int32_t> top,
                         std::span<const TokenId> targets, TopLogits* out) override;
  void sample(Stream&, Activations logits, const LogitColumns& columns, std::span<const RowSampling> rows,
              SliceSample* out) override;
  void copy_from_host(Stream&, const void* in, Activations out) override;
  void copy_to_host(Stream&, Activations in, void* out) override;

 private:
  template <class Body>
  void beside_gemms(Stream& stream, std::string_view name, Body&& body);
  template <class Body>
  void timed(Stream& stream, std::string_view name, Body&& body);

  Ops& ops_;
  Runs runs_;
  std::vector<OperationCost> costs_;
  double weight_bytes_ = 0;
  double gemm_flops_ = 0;
};

}  // namespace computron

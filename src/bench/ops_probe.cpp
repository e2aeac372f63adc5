#include "src/bench/ops_probe.h"

#include <algorithm>
#include <cmath>

#include "computron/base/time.h"

namespace computron {

template <class Body>
void OpsProbe::timed(Stream& stream, std::string_view name, Body&& body) {
  const double begin_s = now_s();
  body();
  if (runs_ == Runs::kAll) stream.synchronize();
  const double seconds = now_s() - begin_s;
  auto cost = std::find_if(costs_.begin(), costs_.end(), [name](const OperationCost& c) { return c.name == name; });
  if (cost == costs_.end()) cost = costs_.insert(cost, {.name = name});
  ++cost->calls;
  cost->seconds += seconds;
}

template <class Body>
void OpsProbe::beside_gemms(Stream& stream, std::string_view name, Body&& body) {
  if (runs_ == Runs::kAll) timed(stream, name, body);
}

void OpsProbe::gemm(Stream& stream, Activations x, const Weight& weight, Vector bias, Activation activation,
                    Activations out) {
  for (const WeightPanel& panel : weight.panels) {
    if (x.rows == 0) break;
    weight_bytes_ += static_cast<double>(weight_format().panel_bytes(panel.rows, weight.in, weight.type));
    gemm_flops_ += 2.0 * x.rows * panel.rows * weight.in;
  }
  const bool alone = runs_ == Runs::kGemmsOnly;
  timed(stream, "gemm",
        [&] { ops_.gemm(stream, x, weight, alone ? Vector{} : bias, alone ? Activation::kNone : activation, out); });
}

void OpsProbe::embed(Stream& stream, std::span<const TokenId> tokens, TokenId first_token, const Weight& weight,
                     Activations out) {
  beside_gemms(stream, "embed", [&] { ops_.embed(stream, tokens, first_token, weight, out); });
}

void OpsProbe::add_rows(Stream& stream, std::span<const std::int32_t> rows, int row_offset, const Table& table,
                        Activations inout) {
  beside_gemms(stream, "add_rows", [&] { ops_.add_rows(stream, rows, row_offset, table, inout); });
}

void OpsProbe::copy_vector(Stream& stream, Vector in, Activations out) {
  beside_gemms(stream, "copy_vector", [&] { ops_.copy_vector(stream, in, out); });
}

void OpsProbe::zero(Stream& stream, Activations out) {
  beside_gemms(stream, "zero", [&] { ops_.zero(stream, out); });
}

void OpsProbe::add_residual_and_norm(Stream& stream, Activations x, Vector bias, Activations inout, NormKind kind,
                                     Vector weight, Vector norm_bias, float epsilon, Activations out) {
  beside_gemms(stream, "add_residual_and_norm",
               [&] { ops_.add_residual_and_norm(stream, x, bias, inout, kind, weight, norm_bias, epsilon, out); });
}
void OpsProbe::norm(Stream& stream, NormKind kind, Activations in, Vector weight, Vector bias, float epsilon,
                    Activations out) {
  beside_gemms(stream, "norm", [&] { ops_.norm(stream, kind, in, weight, bias, epsilon, out); });
}

void OpsProbe::add_residual(Stream& stream, Activations x, Vector bias, Activations inout) {
  beside_gemms(stream, "add_residual", [&] { ops_.add_residual(stream, x, bias, inout); });
}

void OpsProbe::activate_gate(Stream& stream, const Gate& gate, Activations in, Activations out) {
  beside_gemms(stream, "activate_gate", [&] { ops_.activate_gate(stream, gate, in, out); });
}

void OpsProbe::add_gated_rows(Stream& stream, Activations x, Activations gates, Activations inout) {
  beside_gemms(stream, "add_gated_rows", [&] { ops_.add_gated_rows(stream, x, gates, inout); });
}

void OpsProbe::norm_heads(Stream& stream, NormKind kind, const AttentionShape& shape, Vector weight, float epsilon,
                          Activations qkv) {
  beside_gemms(stream, "norm_heads", [&] { ops_.norm_heads(stream, kind, shape, weight, epsilon, qkv); });
}

void OpsProbe::square_heads(Stream& stream, const AttentionShape& shape, Activations qkv,
                            std::span<const std::int32_t> heads, Activations out) {
  beside_gemms(stream, "square_heads", [&] { ops_.square_heads(stream, shape, qkv, heads, out); });
}

void OpsProbe::norm_width(Stream& stream, NormKind kind, const AttentionShape& shape, Activations squares,
                          int query_heads, Vector weight, float epsilon, Activations qkv) {
  beside_gemms(stream, "norm_width",
               [&] { ops_.norm_width(stream, kind, shape, squares, query_heads, weight, epsilon, qkv); });
}

void OpsProbe::scale(Stream& stream, float factor, Activations inout) {
  beside_gemms(stream, "scale", [&] { ops_.scale(stream, factor, inout); });
}

void OpsProbe::soft_cap(Stream& stream, float cap, Activations inout) {
  beside_gemms(stream, "soft_cap", [&] { ops_.soft_cap(stream, cap, inout); });
}

void OpsProbe::rotary_angles(Stream& stream, std::span<const std::int32_t> positions,
                             std::span<const float> frequencies, Activations out) {
  beside_gemms(stream, "rotary_angles", [&] { ops_.rotary_angles(stream, positions, frequencies, out); });
}

void OpsProbe::apply_rope(Stream& stream, const AttentionShape& shape, Activations angles, Activations qkv) {
  beside_gemms(stream, "rotate", [&] { ops_.apply_rope(stream, shape, angles, qkv); });
}

void OpsProbe::convert(Stream& stream, Activations in, Activations out) {
  beside_gemms(stream, "convert", [&] { ops_.convert(stream, in, out); });
}

void OpsProbe::gather_rows(Stream& stream, Activations in, std::span<const std::int32_t> rows, Activations out) {
  beside_gemms(stream, "gather_rows", [&] { ops_.gather_rows(stream, in, rows, out); });
}

void OpsProbe::scatter_add(Stream& stream, Activations in, std::span<const std::int32_t> rows,
                           std::span<const float> weights, Activations inout) {
  beside_gemms(stream, "scatter_add", [&] { ops_.scatter_add(stream, in, rows, weights, inout); });
}

void OpsProbe::attention(Stream& stream, const AttentionShape& shape, Activations qkv,
                         std::span<const SequenceRows> sequences, const KvCacheView& cache, int layer, Vector sinks,
                         Activations out) {
  beside_gemms(stream, "attention", [&] { ops_.attention(stream, shape, qkv, sequences, cache, layer, sinks, out); });
}

void OpsProbe::copy_columns(Stream& stream, Activations in, int first, Activations out) {
  beside_gemms(stream, "copy_columns", [&] { ops_.copy_columns(stream, in, first, out); });
}

void OpsProbe::top_k_log_sum_exp(Stream& stream, Activations logits, const LogitColumns& columns,
                                 std::span<const std::int32_t> top, std::span<const TokenId> targets, TopLogits* out) {
  beside_gemms(stream, "summarize", [&] { ops_.top_k_log_sum_exp(stream, logits, columns, top, targets, out); });
}

void OpsProbe::sample(Stream& stream, Activations logits, const LogitColumns& columns,
                      std::span<const RowSampling> rows, SliceSample* out) {
  beside_gemms(stream, "draw", [&] { ops_.sample(stream, logits, columns, rows, out); });
}

void OpsProbe::route(Stream& stream, Activations logits, std::span<const std::int32_t> real_rows,
                     const ExpertRoutes& out) {
  timed(stream, "route", [&] { ops_.route(stream, logits, real_rows, out); });  // products need it
}

// Nobody learns which experts were chosen: so many as rows choose that know nothing of each other.
void OpsProbe::expert_gemm(Stream& stream, Activations x, bool by_row, std::span<const ExpertWeight> weights,
                           Vector biases, const ExpertRoutes& routes, Activation activation, Activations out) {
  const double of_row = static_cast<double>(routes.rule.per_token) / routes.rule.experts;
  const double chosen = 1 - std::pow(1 - of_row, routes.rows);
  for (const ExpertWeight& e : weights) {
    for (const WeightPanel& panel : e.weight.panels) {
      const std::size_t bytes = weight_format().panel_bytes(panel.rows, e.weight.in, e.weight.type);
      weight_bytes_ += chosen * static_cast<double>(bytes);
      gemm_flops_ += 2.0 * routes.rows * of_row * panel.rows * e.weight.in;
    }
  }
  timed(stream, "gemm", [&] { ops_.expert_gemm(stream, x, by_row, weights, biases, routes, activation, out); });
}

void OpsProbe::activate_expert_gates(Stream& stream, const Gate& gate, Activations in, const ExpertRoutes& routes,
                                     ExpertRange experts, Activations out) {
  beside_gemms(stream, "activate_gate", [&] { ops_.activate_expert_gates(stream, gate, in, routes, experts, out); });
}

void OpsProbe::mix_experts(Stream& stream, Activations in, const ExpertRoutes& routes, ExpertRange experts,
                           Activations inout) {
  beside_gemms(stream, "scatter_add", [&] { ops_.mix_experts(stream, in, routes, experts, inout); });
}

void OpsProbe::copy_from_host(Stream& stream, const void* in, Activations out) {
  beside_gemms(stream, "copy_from_host", [&] { ops_.copy_from_host(stream, in, out); });
}

void OpsProbe::copy_to_host(Stream& stream, Activations in, void* out) {
  beside_gemms(stream, "copy_to_host", [&] { ops_.copy_to_host(stream, in, out); });
}

}  // namespace computron

// What callers of every device's operations must keep to, and small questions about their arguments.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "computron/ops/ops.h"

namespace computron {

// The panel of `panels`, which follow each other in row order, that holds `row`; null if none does.
template <class Panel>
const Panel* panel_with(std::span<const Panel> panels, int row) {
  const auto after = std::upper_bound(panels.begin(), panels.end(), row,
                                      [](int r, const Panel& panel) { return r < panel.row_begin; });
  const bool found = after != panels.begin() && row < after[-1].row_begin + after[-1].rows;
  return found ? &after[-1] : nullptr;
}

inline void check_rows(const Activations& a, int rows, int columns, const char* what) {
  if (a.rows == rows && a.columns == columns) return;
  throw Error(ExitCode::kInternal,
              fmt::format("internal: {} is [{}, {}], not [{}, {}]", what, a.rows, a.columns, rows, columns));
}
inline void check_f32(const Activations& a, const char* what) { ensure(a.dtype == DType::kF32, what); }
inline void check_length(const Vector& vector, int length, const char* what) {
  ensure(vector.data == nullptr || vector.length == length, what);
}

// At least one panel, one behind the other, within `rows` rows.
template <class Panel>
void check_panels(std::span<const Panel> panels, int rows, const char* what) {
  ensure(!panels.empty(), what);
  int next = panels.front().row_begin;
  ensure(next >= 0, what);
  for (const Panel& panel : panels) {
    ensure(panel.row_begin == next, what);
    next += panel.rows;
  }
  ensure(next <= rows, what);
}

inline void check_embed(std::span<const TokenId> tokens, const Weight& weight, const Activations& out) {
  check_rows(out, static_cast<int>(tokens.size()), weight.in, "embedding output");
  check_f32(out, "embedding output is not float32");
  check_panels(weight.panels, weight.out, "panels of an embedding have gaps");
}

inline void check_add_rows(std::span<const std::int32_t> rows, const Table& table, const Activations& inout) {
  check_rows(inout, static_cast<int>(rows.size()), inout.columns, "rows to add to");
  check_f32(inout, "rows are added to float32 only");
  check_panels(table.panels, table.rows, "panels of a table have gaps");
}

inline void check_low_rank(const LowRankPart& part, int rows) {
  check_f32(part.sums, "low-rank sums are not float32");
  check_rows(part.sums, part.rows, part.rank() * kLowRankChains, "sums of a low-rank product");
  ensure(part.rank() > 0 && part.row >= 0 && part.row + part.rows <= rows, "a low-rank product beside the batch");
  ensure(part.table.dtype != DType::kF16, "an adapter of float16 where none is kept");
  check_panels(part.table.panels, part.table.rows, "panels of an adapter have gaps");
  for (const TablePanel& panel : part.table.panels) {
    ensure(panel.row_begin % kLowRankBlock == 0, "a panel of an adapter begins within a block");
  }
}

inline void check_low_rank_in(const Activations& x, const LowRankPart& part) {
  check_low_rank(part, x.rows);
  ensure(part.table.rows == x.columns, "a low-rank product with rows of another length");
}

inline void check_scale_low_rank(const LowRankScale& scale) {
  check_f32(scale.sums, "low-rank sums are not float32");
  ensure(scale.factor.length == 1, "a factor is one number");
}

inline void check_low_rank_out(const LowRankPart& part, const Activations& out) {
  check_low_rank(part, out.rows);
  check_f32(out, "a low-rank product is added to float32 only");
  ensure(part.column >= 0 && part.column + part.table.rows <= out.columns, "a low-rank product beside its output");
}

inline void check_activate(const Activations& in, const Activations& out) {
  check_rows(out, in.rows, in.columns, "output of an activation");
  check_f32(in, "an activation reads float32");
}

inline void check_copy_vector(const Vector& in, const Activations& out) {
  check_rows(out, 1, in.length, "copy of a vector");
  check_f32(out, "a vector is copied to float32 only");
}

inline void check_norm(const Activations& in, const Vector& weight, const Vector& bias, const Activations& out) {
  check_rows(out, in.rows, in.columns, "norm output");
  check_f32(in, "norm reads float32");
  check_length(weight, in.columns, "norm weight has another length than the row");
  check_length(bias, in.columns, "norm bias has another length than the row");
}

inline void check_gemm(const Activations& x, const Weight& weight, const Vector& bias, const Activations& out,
                       DType input) {
  check_rows(x, x.rows, weight.in, "gemm input");
  check_rows(out, x.rows, weight.out, "gemm output");
  check_length(bias, weight.out, "gemm bias has another length than the output");
  ensure(x.dtype == input, "gemm input has another type than its weight wants");
  check_panels(weight.panels, weight.out, "panels of a gemm weight have gaps");
}

inline void check_add_residual(const Activations& x, const Vector& bias, const Activations& inout) {
  check_rows(x, inout.rows, inout.columns, "what is added to the residual");
  check_f32(x, "the residual takes float32 only");
  check_f32(inout, "the residual is not float32");
  check_length(bias, x.columns, "residual bias has another length than the row");
}

inline void check_activate_gate(const Activations& in, const Activations& out) {
  check_rows(in, out.rows, 2 * out.columns, "gate and what it gates");
  ensure(in.dtype == DType::kF32 || in.dtype == out.dtype, "a gate is read as float32 or as it is written");
}

inline void check_add_gated_rows(const Activations& x, const Activations& gates, const Activations& inout) {
  check_rows(x, inout.rows, inout.columns, "rows that a gate weighs");
  check_rows(gates, inout.rows, 1, "gates of rows");
  for (const Activations& a : {x, gates, inout}) check_f32(a, "only float32 rows are weighed by a gate");
}

inline void check_rotary_angles(std::span<const std::int32_t> positions, std::span<const float> frequencies,
                                const Activations& out) {
  check_rows(out, static_cast<int>(positions.size()), 2 * static_cast<int>(frequencies.size()), "rotary angles");
  check_f32(out, "rotary angles are float32");
}

inline void check_apply_rope(const AttentionShape& shape, const Activations& angles, const Activations& qkv) {
  check_rows(qkv, qkv.rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, "queries and keys for RoPE");
  check_rows(angles, qkv.rows, angles.columns, "rotary angles");
  ensure(angles.columns <= shape.head_dim && angles.columns % 2 == 0, "more rotary angles than a head has elements");
  check_f32(qkv, "queries and keys for RoPE are not float32");
}

inline void check_heads(NormKind kind, const AttentionShape& shape, const Activations& qkv) {
  check_rows(qkv, qkv.rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, "queries and keys to normalise");
  check_f32(qkv, "queries and keys to normalise are not float32");
  ensure(kind != NormKind::kLayerNorm, "queries and keys are normalised by RMSNorm only");
}

inline void check_norm_heads(NormKind kind, const AttentionShape& shape, const Vector& weight, const Activations& qkv) {
  check_heads(kind, shape, qkv);
  ensure(weight.data != nullptr && weight.length == 2 * shape.head_dim,
         "weights of two heads are to be normalised with");
}

inline void check_square_heads(const AttentionShape& shape, const Activations& qkv, std::span<const std::int32_t> heads,
                               const Activations& out) {
  check_heads(NormKind::kRmsNorm, shape, qkv);
  check_rows(out, qkv.rows, static_cast<int>(heads.size()), "squares of heads");
  check_f32(out, "squares of heads are float32");
  for (const std::int32_t head : heads) {
    ensure(head >= -1 && head < shape.heads + shape.kv_heads, "a head to square does not exist");
  }
}

inline void check_norm_width(NormKind kind, const AttentionShape& shape, const Activations& squares, int query_heads,
                             const Vector& weight, const Activations& qkv) {
  check_heads(kind, shape, qkv);
  check_rows(squares, qkv.rows, squares.columns, "squares of heads");
  check_f32(squares, "squares of heads are float32");
  ensure(query_heads > 0 && query_heads < squares.columns, "squares without queries or without keys");
  ensure(weight.data != nullptr && weight.length == (shape.heads + shape.kv_heads) * shape.head_dim,
         "weights of all heads are to be normalised with");
}

inline void check_soft_cap(float cap, const Activations& inout) {
  ensure(cap > 0, "a soft cap that is not positive");
  check_f32(inout, "only float32 is capped");
}

inline void check_convert(const Activations& in, const Activations& out) {
  check_rows(out, in.rows, in.columns, "converted rows");
  check_f32(in, "only float32 is converted");
}

inline void check_gather(const Activations& in, std::span<const std::int32_t> rows, const Activations& out) {
  check_rows(out, static_cast<int>(rows.size()), in.columns, "gathered rows");
  ensure(in.dtype == DType::kF32 || in.dtype == out.dtype, "rows are gathered from float32 or as they are");
}

inline void check_copy_columns(const Activations& in, int first, const Activations& out) {
  check_rows(out, in.rows, out.columns, "copied columns");
  ensure(in.dtype == out.dtype && first >= 0 && first + out.columns <= in.columns, "no such columns to copy");
}

inline void check_scatter(const Activations& in, std::span<const std::int32_t> rows, std::span<const float> weights,
                          const Activations& inout) {
  check_rows(in, static_cast<int>(rows.size()), inout.columns, "rows to scatter");
  ensure(weights.size() == rows.size(), "a row to scatter lacks its weight");
  check_f32(in, "only float32 rows are scattered");
  check_f32(inout, "rows are scattered to float32 only");
}

inline void check_attention(const AttentionShape& shape, const Activations& qkv, const KvCacheView& cache, int layer,
                            const Vector& sinks, const Activations& out) {
  ensure(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "query heads are no multiple of key heads");
  check_rows(qkv, qkv.rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, "attention qkv");
  check_rows(out, qkv.rows, shape.heads * shape.head_dim, "attention output");
  check_f32(qkv, "attention reads float32");
  ensure(cache.kv_heads == shape.kv_heads && cache.head_dim == shape.head_dim, "cache and attention differ in shape");
  ensure(layer >= 0 && layer < cache.layers, "no such layer in the cache");
  check_length(sinks, shape.heads, "sinks are not of all query heads");
}

inline void check_sequences(std::span<const SequenceRows> sequences, int rows, int block_tokens) {
  for (const SequenceRows& s : sequences) {
    ensure(s.row >= 0 && s.rows >= 0 && s.row + s.rows <= rows, "a sequence lies outside its batch");
    const std::size_t tokens = static_cast<std::size_t>(s.start) + static_cast<std::size_t>(s.rows);
    ensure(tokens <= s.blocks.size() * static_cast<std::size_t>(block_tokens), "a sequence lacks a block");
  }
}

inline void check_logits(const Activations& logits, const LogitColumns& columns) {
  check_f32(logits, "logits are not float32");
  ensure(columns.real >= 0 && columns.real <= logits.columns, "more real columns of logits than columns");
  ensure(columns.slices > 0 && logits.columns % columns.slices == 0, "logits cannot be cut into equal slices");
}

}  // namespace computron

// The operations of a transformer on one device. Each runs on the compute stream it is given.
//
// Arrays are dense and row-major: [rows, columns], a row a token. `Activations` of dtype f32 or the model's own type
// live in device memory. Spans of host integers (tokens, positions, sequences, blocks) and of panels are borrowed
// until the stream has run the operation. On CPU a row's result has the same bits whatever other rows are there and
// however a weight is cut into panels; what other devices promise is in src/ops/README.md.
//
// "Narrow" is a two-byte type that the device multiplies (WeightFormat::input_dtype): bf16, and f16 where weights of
// f16 take rows of f16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "computron/base/types.h"
#include "computron/base/weight_type.h"
#include "computron/device/device.h"
#include "computron/kernels/sampling.h"
#include "computron/kernels/types.h"

namespace computron {

// [rows, columns] in device memory; not owned. The memory has room for Ops::padded_rows(rows) rows: rows past `rows`
// may be read (their values do not matter) but are never written.
struct Activations {
  std::byte* data = nullptr;
  int rows = 0;
  int columns = 0;
  DType dtype = DType::kF32;
  std::size_t bytes() const { return static_cast<std::size_t>(rows) * columns * size_of(dtype); }
  // Rows [first, first + count).
  Activations row_range(int first, int count) const {
    return {data + static_cast<std::size_t>(first) * columns * size_of(dtype), count, columns, dtype};
  }
};

// Rows [row_begin, row_begin + rows) of a GEMM weight [out, in], packed, at `data` once `ready` is reached.
// `rows` counts real rows; the packed bytes hold round_up(rows, row_block) with zeros behind.
struct WeightPanel {
  const std::byte* data = nullptr;
  const Event* ready = nullptr;  // null: there already
  int row_begin = 0;
  int rows = 0;
};

// A GEMM weight [out, in]: all its panels, or some that follow each other, in row order. An operation given a part of
// the panels does its work for their rows and leaves the rest of its output alone.
struct Weight {
  std::span<const WeightPanel> panels;
  int out = 0;
  int in = 0;
  WeightType type = {};
};

// A float32 vector [length] (bias, norm weight) at `data` once `ready` is reached. data == nullptr: absent.
struct Vector {
  const float* data = nullptr;
  const Event* ready = nullptr;
  int length = 0;
};

// Rows [row_begin, row_begin + rows) of a plain row-major table [.., columns] (learned positions), or of A or B of an
// adapter (LowRankPart).
struct TablePanel {
  const std::byte* data = nullptr;
  const Event* ready = nullptr;
  int row_begin = 0;
  int rows = 0;
};

// A table of `rows` rows: all its panels, or some that follow each other, in row order.
struct Table {
  std::span<const TablePanel> panels;
  int rows = 0;
  DType dtype = DType::kF32;  // of its elements; float32 but in adapters
};

// A part of what low-rank adapters add to a product: some rows of the batch and a matrix of the module whose rows they
// are. Panels begin at multiples of kLowRankBlock rows.
//
//   A  [in, rank], row by row
//   B  [outputs, rank], in blocks of kLowRankBlock outputs: [outputs / 16][rank][16], the last block padded
//
// A row's sums are made in kLowRankChains chains, the i-th product in chain i % 4, so that few rows keep a processor
// busy; a chain has one order, so that a row has the same bits alone and beside others.
inline constexpr int kLowRankBlock = 16;
inline constexpr int kLowRankChains = 4;
struct LowRankPart {
  Table table;
  int row = 0, rows = 0;   // of the batch
  Activations sums;        // [rows, kLowRankChains × rank] f32: chain by chain; scaled: `rank` sums, and room
  bool continues = false;  // A: the sums hold those of the rows of A before; else nothing
  int column = 0;          // B: of the output, where its outputs begin
  int rank() const { return sums.columns / kLowRankChains; }
};

// Sums that are complete, and what they are multiplied with: one number.
struct LowRankScale {
  Vector factor;
  Activations sums;
};

// How a shard's GEMM weights lie in memory, and the host-side packer that makes them so.
class WeightFormat {
 public:
  virtual ~WeightFormat() = default;
  virtual int row_block() const = 0;  // panels are multiples of this many rows
  // Bytes of a panel of `rows` rows (rounded up to the row block) of a weight with `in` columns.
  virtual std::size_t panel_bytes(int rows, int in, const WeightType& type) const = 0;
  // Writes a piece of a weight into its packed panel: rows [row, row + rows) within the panel × columns
  // [column, column + columns). Element (r, c) of the piece is source[r * row_stride + c * column_stride] (in
  // elements), so the same call packs [out][in] and transposed [in][out] sources. Elements are `type.values`, or codes,
  // a byte each (of those of four bits the low half counts). Pieces of one panel may come in any order; the panel's
  // bytes must be zero before the first.
  virtual void pack(std::byte* panel, int in, const WeightType& type, int row, int rows, int column, int columns,
                    const std::byte* source, std::size_t row_stride, std::size_t column_stride) const = 0;
  // The same for the scales of a quantised weight, of groups [group, group + groups) of rows: element (r, g) is
  // source[r * row_stride + g * group_stride], of `type.scales`.
  virtual void pack_scales(std::byte* panel, int in, const WeightType& type, int row, int rows, int group, int groups,
                           const std::byte* source, std::size_t row_stride, std::size_t group_stride) const = 0;
  // The factor of the scales of rows [row, row + rows), where type.has_factors(). A device whose weight_type() refuses
  // such types has no place for it.
  virtual void pack_factor(std::byte*, int /*in*/, const WeightType&, int /*row*/, int /*rows*/,
                           double /*factor*/) const {
    ensure(false, "a factor of scales where such weights are refused");
  }
  // Whether the device multiplies with panels that touch as if they were one, also across pages in neighbouring frames.
  virtual bool joins_pages() const { return false; }
  // What rows must be that weights of `type` are multiplied with. A cache holds what the first layer's queries are.
  virtual DType input_dtype(const WeightType& type) const { return type.values; }
};

// The host memory that the operations of a pass read and write. An operation is given the same arrays, or parts of
// them: it knows them by where they lie. Borrowed until Ops::end_pass().
struct PassArrays {
  std::vector<std::span<const std::byte>> inputs;  // tokens, positions, lists of rows, ...

  // attention(), where the pass has it.
  std::span<const SequenceRows> sequences;
  const KvCacheView* cache = nullptr;
  int rows = 0;  // of the batch
  bool causal = true;

  // top_k_log_sum_exp() and sample(): of all rows with outputs, slice by slice.
  std::span<TopLogits> logits;
  std::vector<std::span<const RowSampling>> sampling;  // [call of sample()] its rows, one behind the other
  std::span<SliceSample> samples;                      // empty where no row samples
  int logit_columns = 0;
  int logit_slices = 1;

  template <class T>
  void add_input(std::span<const T> values) {
    inputs.push_back(std::as_bytes(values));
  }
};

// Which rows of a batch go through which experts of a mixture, where the device has decided it: `data` holds
// Ops::routing_bytes() in device memory. A pair of a row and an expert that it has chosen has a *position*; positions
// are counted by expert, then by row.
struct ExpertRoutes {
  std::byte* data = nullptr;
  int rows = 0;
  RoutingRule rule;
  int positions() const { return rows * rule.per_token; }
};
// Experts [first, end).
struct ExpertRange {
  int first = 0;
  int end = 0;
};
struct ExpertWeight {
  int expert = 0;
  Weight weight;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Tells what host memory the next pass will work with. The stream has run the pass before, or end_pass() has not been
  // called for it. Returns what the launches of the pass depend on besides the arguments that operations are given:
  // where that and those are equal, the pass launches the same work (Stream::run_capturable). Empty: that cannot be
  // said, since the pass works with more than is kept for it. A device that computes in
  // host memory has nothing to do, and neither has one whose operations are called without a pass around them.
  virtual std::string begin_pass(const PassArrays& /*arrays*/) { return {}; }
  // The first operation of the pass: what it reads of host memory is in device memory from here on.
  virtual void upload_inputs(Stream&) {}
  // The stream has run the pass: what it writes of host memory is there when this returns.
  virtual void end_pass() {}

  virtual const WeightFormat& weight_format() const = 0;
  // What weights stored as `checkpoint` are kept as on this device: on a CPU without bf16 multiplication values of bf16
  // are f32. ConfigError for a type that it cannot multiply.
  virtual WeightType weight_type(const WeightType& checkpoint) const = 0;
  // Tells which types weights will have, as kept here, before any operation is called. The device may measure for a few
  // hundredths of a second a type which of its kernels suit this machine, where all give the same bits.
  virtual void choose_kernels(std::span<const WeightType> /*types*/) {}
  // Rows that a buffer must have room for when it holds `rows` rows of GEMM input (kernels come in classes of rows).
  virtual int padded_rows(int rows) const = 0;

  // out[r, :] = embedding row of tokens[r] where it lies in [first_token, first_token + weight.out), else zeros.
  // `weight` is packed as for gemm: the same pages serve a tied output head. out: f32. Given a part of the panels, it
  // writes the rows of tokens that lie in them; the zeros are written with the part that begins at row 0.
  virtual void embed(Stream&, std::span<const TokenId> tokens, TokenId first_token, const Weight& weight,
                     Activations out) = 0;
  // inout[r, :] += table[rows[r] + row_offset, :]. Table of float32; inout: f32. Given a part of the panels, it adds to
  // the rows whose table rows lie in them.
  virtual void add_rows(Stream&, std::span<const std::int32_t> rows, int row_offset, const Table& table,
                        Activations inout) = 0;
  // out[0, :] = in, so that the vector's page is not needed any longer. in.data != nullptr; out: f32 [1, length].
  virtual void copy_vector(Stream&, Vector in, Activations out) = 0;
  // out = 0. Any dtype.
  virtual void zero(Stream&, Activations out) = 0;
  // out = norm(in) × weight + bias over columns; statistics in float32. in: f32, out: f32 or narrow; out may be in.
  virtual void norm(Stream&, NormKind kind, Activations in, Vector weight, Vector bias, float epsilon,
                    Activations out) = 0;
  // out[r, n] = activation(Σ_k x[r, k] weight[n, k] + bias[n]). x: WeightFormat::input_dtype, sums in float32.
  // Every panel waits for its own page. Given a part of the panels, it computes their columns of `out`.
  virtual void gemm(Stream&, Activations x, const Weight& weight, Vector bias, Activation activation,
                    Activations out) = 0;
  // inout += x + bias (x + bias first). Both f32.
  virtual void add_residual(Stream&, Activations x, Vector bias, Activations inout) = 0;
  // Both, with the same bits: inout += x + bias; out = norm(inout). out may be inout. The vectors of this and of norm()
  // lie in pages: a device may read them before what the last operation writes is there.
  virtual void add_residual_and_norm(Stream& stream, Activations x, Vector bias, Activations inout, NormKind kind,
                                     Vector weight, Vector norm_bias, float epsilon, Activations out) {
    add_residual(stream, x, bias, inout);
    norm(stream, kind, inout, weight, norm_bias, epsilon, out);
  }
  // The type in which gemm() is to write what activate_gate() reads: that of the weight's values where `rows` of them
  // would take longer to move in f32 than to compute.
  virtual DType gate_dtype(int /*rows*/, const WeightType& /*weight*/) const { return DType::kF32; }
  // out[r, c] = gate of in[r, c] and in[r, n + c] for c < n: a gated MLP's two products, side by side in `in`
  // [rows, 2n], f32 or as gate_dtype() says. out: [rows, n] f32, or narrow of the type of a narrow `in`.
  virtual void activate_gate(Stream&, const Gate& gate, Activations in, Activations out) = 0;
  // inout[r, :] += σ(gates[r]) × x[r, :], σ being the logistic function. gates: [rows, 1]. All f32.
  virtual void add_gated_rows(Stream&, Activations x, Activations gates, Activations inout) = 0;
  // Normalises each query head and each key head of `qkv` (as attention() takes it) by itself over its head_dim
  // elements, by the root of their mean square. weight [2 × head_dim]: of queries | of keys.
  virtual void norm_heads(Stream&, NormKind kind, const AttentionShape& shape, Vector weight, float epsilon,
                          Activations qkv) = 0;
  // out[r, c] = Σ x² over the elements of head heads[c] of `qkv`, queries and keys counted as one list of
  // heads + kv_heads; 0 where heads[c] is -1. out: f32. Summed over the ranks that share the heads, it is what
  // norm_width() takes.
  virtual void square_heads(Stream&, const AttentionShape& shape, Activations qkv, std::span<const std::int32_t> heads,
                            Activations out) = 0;
  // Normalises the queries, and the keys, of `qkv` over the heads of all ranks together: by the root of the sum of
  // the first `query_heads` columns of `squares` over query_heads × head_dim elements, and of the columns behind
  // those, one after the other. weight [(heads + kv_heads) × head_dim]: of this rank's queries | keys.
  virtual void norm_width(Stream&, NormKind kind, const AttentionShape& shape, Activations squares, int query_heads,
                          Vector weight, float epsilon, Activations qkv) = 0;
  // inout × = factor. f32.
  virtual void scale(Stream&, float factor, Activations inout) = 0;
  // inout = cap × tanh(inout / cap), cap > 0. f32.
  virtual void soft_cap(Stream&, float cap, Activations inout) = 0;
  // out[r] = cos | sin of positions[r] × frequencies, [rows, 2 × frequencies] f32.
  virtual void rotary_angles(Stream&, std::span<const std::int32_t> positions, std::span<const float> frequencies,
                             Activations out) = 0;
  // Applies RoPE: rotates the queries and keys of `qkv` (as attention() takes it) by the angles of their rows, element
  // i of a head with element i + angles.columns / 2. What is behind angles.columns in a head stays as it is.
  virtual void apply_rope(Stream&, const AttentionShape& shape, Activations angles, Activations qkv) = 0;
  // out[r, :] = in[r, :] in out's dtype (f32 or narrow). in: f32.
  virtual void convert(Stream&, Activations in, Activations out) = 0;
  // out[i, :] = in[rows[i], :] in out's dtype (f32 or narrow). in: f32, or of out's dtype.
  virtual void gather_rows(Stream&, Activations in, std::span<const std::int32_t> rows, Activations out) = 0;
  // out[r, c] = in[r, first + c], as it is.
  virtual void copy_columns(Stream&, Activations in, int first, Activations out) = 0;
  // inout[rows[i], :] += weights[i] × in[i, :], one i after the other. Both f32.
  virtual void scatter_add(Stream&, Activations in, std::span<const std::int32_t> rows, std::span<const float> weights,
                           Activations inout) = 0;
  // out[r, heads × head_dim] = attention of row r over its sequence's keys up to its own position, or, where the shape
  // is not causal, over all of them, this pass's included: those of `qkv` [rows, (heads + 2 kv_heads) × head_dim]
  // (q | k | v, f32), and what earlier passes put into the cache. The pass's keys and values go there, too, but that a
  // device may leave it out where the shape is not causal and a sequence begins: it has no later pass. sinks [heads],
  // or absent: a score of each query head that belongs to no key, whose exponential joins the sum that the softmax
  // divides by (Xiao et al. 2024).
  virtual void attention(Stream&, const AttentionShape& shape, Activations qkv, std::span<const SequenceRows> sequences,
                         const KvCacheView& cache, int layer, Vector sinks, Activations out) = 0;
  // The top-k with log-sum-exp of each slice of each row of logits [rows, columns] (f32), out[row × slices + slice].
  // `top[r]` candidates are kept (≤ kTop, at least 1); targets[r] is a token whose logit is wanted, or -1.
  // `out` is host memory, filled when the stream has run.
  virtual void top_k_log_sum_exp(Stream&, Activations logits, const LogitColumns& columns,
                                 std::span<const std::int32_t> top, std::span<const TokenId> targets,
                                 TopLogits* out) = 0;
  // The candidates of each slice of each row of logits [rows, columns] (f32), out[row × slices + slice], for rows that
  // sample; others' stay as they are. `out` is host memory, filled when the stream has run.
  virtual void sample(Stream&, Activations logits, const LogitColumns& columns, std::span<const RowSampling> rows,
                      SliceSample* out) = 0;
  // ---- what a low-rank adapter adds to a product (model/adapter.h). A device of which computes_adapters() says no has
  // none of these. Lists are the operation's own: it keeps them until the stream has run.
  // NOLINTBEGIN(performance-unnecessary-value-param)
  virtual bool computes_adapters() const { return false; }
  // Of each part, for its rows r of x, f32 or narrow: sums[r, k] += Σ_i x[r, i] A[i, k] over the rows i of its panels.
  virtual void add_low_rank_in(Stream&, Activations /*x*/, std::vector<LowRankPart>) { ensure(false, kNoAdapters); }
  // sums[r, k] = factor × ((chain 0 + chain 1) + (chain 2 + chain 3)).
  virtual void scale_low_rank(Stream&, std::vector<LowRankScale>) { ensure(false, kNoAdapters); }
  // Of each part, for its rows r of out, f32: out[r, column + n] += Σ_k sums[r, k] B[n, k] for the rows n of its
  // panels, k ascending.
  virtual void add_low_rank_out(Stream&, std::vector<LowRankPart>, Activations /*out*/) { ensure(false, kNoAdapters); }
  // NOLINTEND(performance-unnecessary-value-param)
  // out = activation(in). in: f32, out: f32 or narrow.
  virtual void activate(Stream&, Activation, Activations /*in*/, Activations /*out*/) { ensure(false, kNoAdapters); }

  // ---- mixtures of experts, where the device decides who goes where and the host never learns it. A device of which
  // routes_experts() says no has none of these: the host chooses, and gathers and scatters rows.
  virtual bool routes_experts() const { return false; }
  virtual std::size_t routing_bytes(int /*rows*/, const RoutingRule&) const { return 0; }
  // Routes of the rows of logits [rows, experts] (f32), by the rule of `out`. `real_rows`: one number, from which on
  // rows are padding and go nowhere; empty: none is.
  virtual void route(Stream&, Activations /*logits*/, std::span<const std::int32_t> /*real_rows*/,
                     const ExpertRoutes& /*out*/) {
    ensure(false, kRoutesNothing);
  }
  // out[p, n] = activation(Σ_k x[r, k] weight[n, k] + biases[expert, n]) for the positions p of the weights' experts; r
  // is p's row of the batch where x is `by_row`, else p. The weights have one shape [out, in]; biases are of all
  // experts, [experts × out], or absent. Every panel waits for its own page. A position's result has the same bits
  // whatever else is multiplied in the call, or in the batch.
  virtual void expert_gemm(Stream&, Activations /*x*/, bool /*by_row*/, std::span<const ExpertWeight> /*weights*/,
                           Vector /*biases*/, const ExpertRoutes&, Activation, Activations /*out*/) {
    ensure(false, kRoutesNothing);
  }
  // activate_gate() of the positions of `experts`.
  virtual void activate_expert_gates(Stream&, const Gate&, Activations /*in*/, const ExpertRoutes&, ExpertRange,
                                     Activations /*out*/) {
    ensure(false, kRoutesNothing);
  }
  // inout[r] += Σ weight × in[p] over the positions of row r that are of `experts`, expert by expert. Both f32.
  virtual void mix_experts(Stream&, Activations /*in*/, const ExpertRoutes&, ExpertRange, Activations /*inout*/) {
    ensure(false, kRoutesNothing);
  }

  // Host to device; `in` is borrowed until the stream has run.
  virtual void copy_from_host(Stream&, const void* in, Activations out) = 0;
  // Device to host, filled when the stream has run.
  virtual void copy_to_host(Stream&, Activations in, void* out) = 0;

 private:
  static constexpr const char* kNoAdapters = "this device computes no adapters";
  static constexpr const char* kRoutesNothing = "this device leaves the choice of experts to the host";
};

// The operations of a CPU device, with the fastest GEMM kernels that this processor has (kernels/cpu/gemm.h).
std::unique_ptr<Ops> make_cpu_ops(Device& device);
// How they lay weights out, where there is no device.
std::unique_ptr<WeightFormat> make_cpu_weight_format();

// The operations of a CUDA device, for one compute stream, whose results are on the host once it has synchronized.
// `tf32`: float32 weights are multiplied with 10 bits of mantissa. NotCompiled in a build without CUDA.
std::unique_ptr<Ops> make_cuda_ops(Device& device, bool tf32 = false);

}  // namespace computron

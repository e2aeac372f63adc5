#include "src/ops/cuda/cuda_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/cuda/codes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/norm.h"
#include "src/ops/checks.h"
#include "src/ops/cuda/launch.h"

namespace computron {

namespace kernel = kernels::cuda;

namespace {

// The library's workspace, the parts of long attention rows, scaled logits.
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
constexpr std::size_t kBiasBytes = std::size_t{2} << 20;
constexpr std::size_t kPlainBytes = std::size_t{64} << 20;  // as many as a page of plain weights has
constexpr int kFewFloatRows = kernel::kPlainRows;           // of float32, that the plain kernel reads a weight once for
constexpr int kMaxGridItems = 65535;

// out[r, c] = in[rows[r], first + c] in out's dtype, which is in's or narrower than in's float32.
void copy_rows(CudaComputeStream& stream, const char* operation, const Activations& in, const std::int32_t* rows,
               int first, const Activations& out) {
  kernel::with_element(out.dtype, [&]<class T>(T) {
    const auto copy = [&]<class From>(const From* from) {
      run(stream, operation, out.rows, out.columns,
          kernel::CopyRows<From, T>{from, in.columns, rows, first, as<T>(out), out.columns});
    };
    in.dtype == out.dtype ? copy(as<const T>(in)) : copy(as<const float>(in));
  });
}

// Where runs of equal numbers begin, and the end of the last.
std::vector<std::int32_t> begins_of_runs(std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> begins;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i] != rows[i - 1]) begins.push_back(static_cast<std::int32_t>(i));
  }
  begins.push_back(static_cast<std::int32_t>(rows.size()));
  return begins;
}

// body(runs) for as many runs at a time as a kernel takes.
template <class Body>
void for_each_batch(std::span<const PanelRun> runs, Body&& body) {
  constexpr auto kMax = static_cast<std::size_t>(kernel::RowRuns::kMax);
  for (std::size_t i = 0; i < runs.size(); i += kMax) body(runs.subspan(i, std::min(kMax, runs.size() - i)));
}

// Whether a row's keys and values are stored by who decodes it.
bool stores_while_decoding(const kernel::AttentionCall& call, const AttentionTables& tables) {
  return tables.plan.one_row_each && kernel::decodes_on_tensor_cores(call);
}

kernel::HeadRows head_rows(const AttentionShape& shape, const Activations& qkv) {
  return {as<float>(qkv), qkv.rows, qkv.columns, shape.heads + shape.kv_heads, shape.heads, shape.head_dim};
}

// The current device's, which is the one that operations are for.
int most_shared_bytes() {
  int device = 0, bytes = 0;
  COMPUTRON_CUDA_CHECK(cudaGetDevice(&device));
  COMPUTRON_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

}  // namespace

CudaOps::CudaOps(Device& device, bool tf32)
    : scratch_(device.allocate(kScratchBytes, "scratch memory of operations")),
      bias_(device.allocate(kBiasBytes, "biases")),
      plain_(device.allocate(kPlainBytes, "expanded weights")),
      shared_bytes_(most_shared_bytes()),
      library_(tf32, scratch_->data(), kScratchBytes),
      staging_(device),
      pass_(device, shared_bytes_) {}

// ---- the pass

std::string CudaOps::begin_pass(const PassArrays& arrays) { return pass_.begin(arrays); }
void CudaOps::upload_inputs(Stream& stream) { pass_.upload(begin(stream)); }
void CudaOps::end_pass() { pass_.end(); }

CudaComputeStream& CudaOps::begin(Stream& stream) {
  CudaComputeStream& compute = cuda_compute(stream);
  staging_.make_room(compute);
  return compute;
}

WeightType CudaOps::weight_type(const WeightType& checkpoint) const {
  if (!checkpoint.quantised() || kernel::has_values(checkpoint.codes, checkpoint.scales)) return checkpoint;
  throw ConfigError(fmt::format("weights of {} with scales of {} are not supported on a CUDA device",
                                name_of(checkpoint), name_of(checkpoint.scales)));
}

// The product of few rows reads x in whole tiles.
int CudaOps::padded_rows(int rows) const {
  if (rows == 0 || rows > kernel::kSkinnyRows) return rows;
  return std::max(8, static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows))));
}

void CudaOps::embed(Stream& stream, std::span<const TokenId> tokens, TokenId first_token, const Weight& weight,
                    Activations out) {
  check_embed(tokens, weight, out);
  CudaComputeStream& compute = begin(stream);
  wait_for_all(compute, weight.panels);
  const TokenId* ids = on_device(compute, tokens);
  bool writes_zeros = weight.panels.front().row_begin == 0;
  const std::vector<PanelRun> all = merge_panels(weight.panels, CudaWeightFormat::row_bytes(weight.in, weight.type));
  for_each_batch(all, [&](std::span<const PanelRun> runs) {
    const auto embed_rows = [&]<class Rows>(const Rows& rows) {
      run(compute, "embed", out.rows, out.columns,
          kernel::Embed<Rows>{ids, first_token, weight.out, writes_zeros, out.columns, as<float>(out), rows,
                              kernel_runs(runs)});
    };
    if (weight.type.quantised()) {
      embed_rows(tiles_of(weight));
    } else {
      kernel::with_element(weight.type.values, [&]<class T>(T) { embed_rows(kernel::PlainRows<T>{weight.in}); });
    }
    writes_zeros = false;
  });
}

void CudaOps::add_rows(Stream& stream, std::span<const std::int32_t> rows, int row_offset, const Table& table,
                       Activations inout) {
  check_add_rows(rows, table, inout);
  for (const std::int32_t row : rows) {
    ensure(row + row_offset >= 0 && row + row_offset < table.rows, "a table has no such row");
  }
  CudaComputeStream& compute = begin(stream);
  wait_for_all(compute, table.panels);
  const std::int32_t* ids = on_device(compute, rows);
  for_each_batch(merge_panels(table.panels, inout.columns * sizeof(float)), [&](std::span<const PanelRun> runs) {
    run(compute, "add_rows", inout.rows, inout.columns,
        kernel::AddRows{ids, row_offset, inout.columns, as<float>(inout), kernel_runs(runs)});
  });
}

void CudaOps::copy_vector(Stream& stream, Vector in, Activations out) {
  check_copy_vector(in, out);
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, in.ready);
  run(compute, "copy_vector", 1, out.columns,
      kernel::CopyRows<float, float>{in.data, in.length, nullptr, 0, as<float>(out), out.columns});
}

void CudaOps::zero(Stream& stream, Activations out) {
  if (out.bytes() == 0) return;
  const auto clear = [&](cudaStream_t on) { COMPUTRON_CUDA_CHECK(cudaMemsetAsync(out.data, 0, out.bytes(), on)); };
  launch(begin(stream), "zero", clear);
}

void CudaOps::norm(Stream& stream, NormKind kind, Activations in, Vector weight, Vector bias, float epsilon,
                   Activations out) {
  check_norm(in, weight, bias, out);
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, weight.ready);
  wait_for(compute, bias.ready);
  const kernel::NormCall call{
      kind, as<const float>(in), in.rows, in.columns, weight.data, bias.data, epsilon, out.data, out.dtype};
  launch(compute, "norm", [&](cudaStream_t on) { kernel::norm(on, call); });
}

// ---- products: of few rows by own kernels, of quantised weights of some more, too; of many by the library, of odd
// ---- shapes by the plain kernel. For the last two, quantised weights are expanded, a run at a time.

void CudaOps::gemm(Stream& stream, Activations x, const Weight& weight, Vector bias, Activation activation,
                   Activations out) {
  check_gemm(x, weight, bias, out, format_.input_dtype(weight.type));
  CudaComputeStream& compute = begin(stream);
  std::vector<PanelRun> runs = merge_panels(weight.panels, CudaWeightFormat::row_bytes(weight.in, weight.type));
  wait_for(compute, bias.ready);
  kernel::GemmCall call{x.data,     weight.type.values, x.rows,    weight.in,   bias.data,
                        activation, out.data,           out.dtype, out.columns, {}};
  if (x.rows == 0) return wait_for_all(compute, weight.panels);
  const bool aligned =
      is_aligned(x.data) && std::all_of(runs.begin(), runs.end(), [](const PanelRun& r) { return is_aligned(r.data); });
  const bool skinny = aligned && kernel::is_skinny(call.dtype, call.rows, call.depth);
  const bool in_library = aligned && weight.in * size_of(call.dtype) % 16 == 0 &&
                          x.rows > (call.dtype == DType::kF32 ? kFewFloatRows : kernel::kSkinnyRows);
  const kernel::QuantisedTiles tiles = tiles_of(weight);
  const bool as_codes = tiles.quantised() && (skinny || (aligned && kernel::is_tiled(tiles, call.rows, call.depth)));
  if (tiles.quantised() && !as_codes) runs = cut_for_expansion(runs, weight);
  if (in_library && !as_codes) {
    gemm_by_library(compute, runs, call, tiles);
  } else if (tiles.quantised() && !as_codes) {
    for (const PanelRun& r : runs) gemm_by_kernels(compute, std::array{as_plain(compute, r, tiles)}, call);
  } else {
    call.tiles = tiles;
    gemm_by_kernels(compute, runs, call);
  }
}

// ---- expansion

// Into runs whose values there is room for.
std::vector<PanelRun> CudaOps::cut_for_expansion(const std::vector<PanelRun>& runs, const Weight& weight) const {
  const std::size_t row_bytes = CudaWeightFormat::row_bytes(weight.in, weight.type);
  const std::size_t room = plain_->bytes() / (weight.in * size_of(weight.type.values));
  const int most = static_cast<int>(room) / CudaWeightFormat::kRowBlock * CudaWeightFormat::kRowBlock;
  ensure(most > 0, "a quantised weight has longer rows than there is room for");
  std::vector<PanelRun> cut;
  for (const PanelRun& r : runs) {
    for (int row = 0; row < r.rows; row += most) {
      cut.push_back({r.data + row * row_bytes, r.ready, r.row_begin + row, std::min(most, r.rows - row)});
    }
  }
  return cut;
}

// The run, of whose weight the values are there for the next launch; a plain one as it is. Waits for it.
PanelRun CudaOps::as_plain(CudaComputeStream& stream, const PanelRun& run, const kernel::QuantisedTiles& tiles) {
  wait_for(stream, run.ready);
  if (!tiles.quantised()) return run;
  const kernel::ExpandCall call{run.data, tiles, round_up(run.rows, kernel::kTileRows), plain_->data()};
  launch(stream, "expansion of codes", [&](cudaStream_t on) { kernel::expand(on, call); });
  return {plain_->data(), nullptr, run.row_begin, run.rows};
}

// ---- the kernels

// Runs whose pages are there go together; bits do not depend on which those are.
void CudaOps::gemm_by_kernels(CudaComputeStream& stream, std::span<const PanelRun> runs, kernel::GemmCall call) {
  // Expanded weights go to the plain kernel: skinny_gemm begins to read weights before the last kernel ends.
  const bool aligned = is_aligned(call.x) && std::all_of(runs.begin(), runs.end(), [this](const PanelRun& r) {
                         return is_aligned(r.data) && r.data != plain_->data();
                       });
  const auto multiply = !aligned                                               ? kernel::plain_gemm
                        : kernel::is_skinny(call.dtype, call.rows, call.depth) ? kernel::skinny_gemm
                        : kernel::is_tiled(call.tiles, call.rows, call.depth)  ? kernel::tiled_gemm
                                                                               : kernel::plain_gemm;
  for (std::size_t begin = 0, end; begin < runs.size(); begin = end) {
    wait_for(stream, runs[begin].ready);
    const std::size_t limit = std::min(runs.size(), begin + kernel::RowRuns::kMax);
    for (end = begin + 1; end < limit; ++end) {
      const Event* ready = runs[end].ready;
      if (ready != nullptr && ready != runs[begin].ready && !ready->query()) break;
    }
    call.runs = kernel_runs(runs.subspan(begin, end - begin));
    launch(stream, "gemm", [&](cudaStream_t on) { multiply(on, call); });
  }
}

// The bias in the output's type, where the library takes it: null if there is no room for it, or it lies badly.
const std::byte* CudaOps::bias_as(CudaComputeStream& stream, const kernel::GemmCall& call) {
  if (call.out_dtype == DType::kF32) {
    const bool lies_well = reinterpret_cast<std::uintptr_t>(call.bias) % LibraryGemm::kBiasAlignment == 0;
    return lies_well ? reinterpret_cast<const std::byte*>(call.bias) : nullptr;
  }
  if (call.out_columns * size_of(call.out_dtype) > bias_->bytes()) return nullptr;
  kernel::with_element(call.out_dtype, [&]<class T>(T) {
    run(stream, "bias of a gemm", 1, call.out_columns,
        kernel::CopyRows<float, T>{call.bias, call.out_columns, nullptr, 0, reinterpret_cast<T*>(bias_->data()),
                                   call.out_columns});
  });
  return bias_->data();
}

// A run a call, expanded where the weight has tiles. What the library does not add or apply on the way is done to its
// output behind it.
void CudaOps::gemm_by_library(CudaComputeStream& stream, std::span<const PanelRun> runs, const kernel::GemmCall& call,
                              const kernel::QuantisedTiles& tiles) {
  const bool relu = call.activation == Activation::kRelu, simple = relu || call.activation == Activation::kNone;
  const std::byte* bias = call.bias != nullptr && simple ? bias_as(stream, call) : nullptr;
  const bool on_the_way = simple && (bias != nullptr) == (call.bias != nullptr);
  for (const PanelRun& stored : runs) {
    const PanelRun r = as_plain(stream, stored, tiles);
    const std::size_t first = r.row_begin * size_of(call.out_dtype);
    LibraryCall product{.x = call.x,
                        .weight = r.data,
                        .dtype = call.dtype,
                        .rows = call.rows,
                        .depth = call.depth,
                        .run_rows = r.rows,
                        .weight_rows = call.out_columns,
                        .bias = on_the_way && bias != nullptr ? bias + first : nullptr,
                        .relu = on_the_way && relu,
                        .out = call.out + first,
                        .out_dtype = call.out_dtype};
    if (on_the_way && library_.run(stream, product)) {
      finish_run(stream, r, call, /*bias=*/nullptr, Activation::kNone);
      continue;
    }
    product.bias = nullptr;
    product.relu = false;
    if (library_.run(stream, product)) {
      finish_run(stream, r, call, call.bias, call.activation);
    } else {
      gemm_by_kernels(stream, {&r, 1}, call);
    }
  }
}

// Float16 is always read once more: sums that are too large for it have to be clamped.
void CudaOps::finish_run(CudaComputeStream& stream, const PanelRun& r, const kernel::GemmCall& call, const float* bias,
                         Activation activation) {
  if (bias == nullptr && activation == Activation::kNone && call.out_dtype != DType::kF16) return;
  kernel::with_element(call.out_dtype, [&]<class T>(T) {
    const kernel::BiasActivate<T> each{activation, bias, r.row_begin, call.out_columns, reinterpret_cast<T*>(call.out)};
    constexpr int kPiece = kernel::BiasActivatePieces<T>::kPiece;
    if ((r.row_begin | r.rows | call.out_columns) % kPiece == 0 && is_aligned(call.out)) {
      run(stream, "activation of a gemm", call.rows, r.rows / kPiece, kernel::BiasActivatePieces<T>{each});
    } else {
      run(stream, "activation of a gemm", call.rows, r.rows, each);
    }
  });
}

// ---- rows

void CudaOps::add_residual(Stream& stream, Activations x, Vector bias, Activations inout) {
  check_add_residual(x, bias, inout);
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, bias.ready);
  run(compute, "add_residual", inout.rows, inout.columns,
      kernel::AddResidual{as<const float>(x), bias.data, inout.columns, as<float>(inout)});
}

void CudaOps::add_residual_and_norm(Stream& stream, Activations x, Vector bias, Activations inout, NormKind kind,
                                    Vector weight, Vector norm_bias, float epsilon, Activations out) {
  check_add_residual(x, bias, inout);
  check_norm(inout, weight, norm_bias, out);
  CudaComputeStream& compute = begin(stream);
  for (const Vector& vector : {bias, weight, norm_bias}) wait_for(compute, vector.ready);
  const kernel::NormCall call{.kind = kind,
                              .x = as<const float>(inout),
                              .rows = inout.rows,
                              .columns = inout.columns,
                              .weight = weight.data,
                              .bias = norm_bias.data,
                              .epsilon = epsilon,
                              .out = out.data,
                              .dtype = out.dtype,
                              .addend = as<const float>(x),
                              .addend_bias = bias.data,
                              .sum = as<float>(inout)};
  launch(compute, "add_residual_and_norm", [&](cudaStream_t on) { kernel::norm(on, call); });
}

void CudaOps::activate_gate(Stream& stream, const Gate& gate, Activations in, Activations out) {
  check_activate_gate(in, out);
  CudaComputeStream& compute = begin(stream);
  const auto activate = [&]<class From, class To>(const From* from, To* to) {
    const kernel::ActivateGate<From, To> each{gate, from, out.columns, to};
    if (in_fours(in, out)) {
      run(compute, "activate_gate", out.rows, out.columns / 4, kernel::ActivateGateFours<From, To>{each});
    } else {
      run(compute, "activate_gate", out.rows, out.columns, each);
    }
  };
  kernel::with_element(out.dtype, [&]<class T>(T) {
    in.dtype == DType::kF32 ? activate(as<const float>(in), as<T>(out)) : activate(as<const T>(in), as<T>(out));
  });
}

DType CudaOps::gate_dtype(int rows, const WeightType& weight) const {
  return rows > kernel::kSkinnyRows ? weight.values : DType::kF32;
}

void CudaOps::add_gated_rows(Stream& stream, Activations x, Activations gates, Activations inout) {
  check_add_gated_rows(x, gates, inout);
  run(begin(stream), "add_gated_rows", inout.rows, inout.columns,
      kernel::AddGated{as<const float>(x), as<const float>(gates), inout.columns, as<float>(inout)});
}

void CudaOps::norm_heads(Stream& stream, NormKind kind, const AttentionShape& shape, Vector weight, float epsilon,
                         Activations qkv) {
  check_norm_heads(kind, shape, weight, qkv);
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, weight.ready);
  const kernel::NormHeadsCall call{kind, head_rows(shape, qkv), weight.data, epsilon};
  launch(compute, "norm_heads", [&](cudaStream_t on) { kernel::norm_heads(on, call); });
}

void CudaOps::square_heads(Stream& stream, const AttentionShape& shape, Activations qkv,
                           std::span<const std::int32_t> heads, Activations out) {
  check_square_heads(shape, qkv, heads, out);
  CudaComputeStream& compute = begin(stream);
  const kernel::SquareHeadsCall call{head_rows(shape, qkv), on_device(compute, heads), out.columns, as<float>(out)};
  launch(compute, "square_heads", [&](cudaStream_t on) { kernel::square_heads(on, call); });
}

void CudaOps::norm_width(Stream& stream, NormKind kind, const AttentionShape& shape, Activations squares,
                         int query_heads, Vector weight, float epsilon, Activations qkv) {
  check_norm_width(kind, shape, squares, query_heads, weight, qkv);
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, weight.ready);
  const kernel::NormWidthCall call{
      kind, head_rows(shape, qkv), as<const float>(squares), squares.columns, query_heads, weight.data, epsilon};
  launch(compute, "norm_width", [&](cudaStream_t on) { kernel::norm_width(on, call); });
}

void CudaOps::scale(Stream& stream, float factor, Activations inout) {
  check_f32(inout, "only float32 is scaled");
  run(begin(stream), "scale", inout.rows, inout.columns, kernel::Scale{factor, inout.columns, as<float>(inout)});
}

void CudaOps::soft_cap(Stream& stream, float cap, Activations inout) {
  check_soft_cap(cap, inout);
  run(begin(stream), "soft_cap", inout.rows, inout.columns, kernel::SoftCap{cap, inout.columns, as<float>(inout)});
}

void CudaOps::rotary_angles(Stream& stream, std::span<const std::int32_t> positions, std::span<const float> frequencies,
                            Activations out) {
  check_rotary_angles(positions, frequencies, out);
  CudaComputeStream& compute = begin(stream);
  const int half = static_cast<int>(frequencies.size());
  run(compute, "rotary_angles", out.rows, half,
      kernel::RotaryAngles{on_device(compute, positions), on_device(compute, frequencies), half, as<float>(out)});
}

void CudaOps::apply_rope(Stream& stream, const AttentionShape& shape, Activations angles, Activations qkv) {
  check_apply_rope(shape, angles, qkv);
  const int half = angles.columns / 2;
  run(begin(stream), "apply_rope", qkv.rows, (shape.heads + shape.kv_heads) * half,
      kernel::ApplyRope{as<const float>(angles), half, shape.head_dim, qkv.columns, as<float>(qkv)});
}

void CudaOps::convert(Stream& stream, Activations in, Activations out) {
  check_convert(in, out);
  copy_rows(begin(stream), "convert", in, /*rows=*/nullptr, /*first=*/0, out);
}

void CudaOps::gather_rows(Stream& stream, Activations in, std::span<const std::int32_t> rows, Activations out) {
  check_gather(in, rows, out);
  for (const std::int32_t row : rows) ensure(row >= 0 && row < in.rows, "a row to gather does not exist");
  CudaComputeStream& compute = begin(stream);
  copy_rows(compute, "gather_rows", in, on_device(compute, rows), /*first=*/0, out);
}

void CudaOps::copy_columns(Stream& stream, Activations in, int first, Activations out) {
  check_copy_columns(in, first, out);
  copy_rows(begin(stream), "copy_columns", in, /*rows=*/nullptr, first, out);
}

void CudaOps::scatter_add(Stream& stream, Activations in, std::span<const std::int32_t> rows,
                          std::span<const float> weights, Activations inout) {
  check_scatter(in, rows, weights, inout);
  for (const std::int32_t row : rows) ensure(row >= 0 && row < inout.rows, "a row to scatter to does not exist");
  if (rows.empty()) return;
  CudaComputeStream& compute = begin(stream);
  const kernel::ScatterAdd add{as<const float>(in), on_device(compute, rows), on_device(compute, weights),
                               inout.columns, as<float>(inout)};
  const bool once_each = std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end();
  if (once_each) {
    run(compute, "scatter_add", in.rows, in.columns, add);
  } else if (std::ranges::is_sorted(rows)) {
    const std::vector<std::int32_t> begins = begins_of_runs(rows);
    run(compute, "scatter_add", static_cast<int>(begins.size()) - 1, in.columns,
        kernel::ScatterAddRuns{add, on_device(compute, std::span<const std::int32_t>(begins))});
  } else {
    run(compute, "scatter_add", 1, in.columns, kernel::ScatterAddInOrder{add, in.rows});
  }
}

// ---- attention

// Every layer is given the same sequences.
const AttentionTables& CudaOps::attention_tables(CudaComputeStream& stream, const AttentionShape& shape, int batch_rows,
                                                 std::span<const SequenceRows> sequences, const KvCacheView& cache) {
  if (const AttentionTables* of_pass = pass_.attention(sequences, cache, shape.causal)) return *of_pass;
  const bool lent = tables_generation_ == staging_.generation();
  if (lent && attention_tables_.are_of(sequences, cache, shape.causal)) return attention_tables_;
  attention_tables_ = AttentionTables(sequences, cache, batch_rows, shape.causal, shared_bytes_);
  attention_tables_.put([&]<class T>(std::span<const T> values) { return on_device(stream, values); });
  tables_generation_ = staging_.generation();
  return attention_tables_;
}

void CudaOps::attention(Stream& stream, const AttentionShape& shape, Activations qkv,
                        std::span<const SequenceRows> sequences, const KvCacheView& cache, int layer, Vector sinks,
                        Activations out) {
  check_attention(shape, qkv, cache, layer, sinks, out);
  check_sequences(sequences, qkv.rows, cache.block_tokens);
  ensure(shape.head_dim <= kernel::kMaxHeadDim, "attention heads are wider than the CUDA kernels take (256)");
  if (qkv.rows == 0) return;
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, sinks.ready);
  const AttentionTables& tables = attention_tables(compute, shape, qkv.rows, sequences, cache);
  const kernel::CacheLayer cache_layer{cache.pool,
                                       cache.frame_bytes,
                                       tables.frames,
                                       tables.blocks,
                                       static_cast<std::uint32_t>(cache.slots_per_frame),
                                       cache.slot_bytes,
                                       static_cast<std::uint32_t>(cache.layers),
                                       static_cast<std::uint32_t>(layer),
                                       cache.kv_heads,
                                       cache.head_dim,
                                       cache.block_tokens};
  const kernel::AttentionCall call{
      shape, as<const float>(qkv), tables.rows, cache_layer, cache.dtype, out.data, out.dtype, sinks.data};
  if (!stores_while_decoding(call, tables)) {
    launch(compute, "keys and values", [&](cudaStream_t on) { kernel::store_keys_values(on, call, qkv.rows); });
  }
  const int tiles = static_cast<int>(tables.plan.tiles.size());
  launch(compute, "tiled prefill attention",
         [&](cudaStream_t on) { kernel::attend_prefill(on, call, tables.tiles, tiles, tables.plan.tile_keys); });
  attend_decode(compute, call, tables);
}

// As many rows at a time as there is room for what their splits leave behind.
void CudaOps::attend_decode(CudaComputeStream& stream, const kernel::AttentionCall& call,
                            const AttentionTables& tables) {
  const int count = static_cast<int>(tables.plan.row_ids.size());
  const std::size_t of_split = kernel::partial_place(1, call.shape.heads, 0, /*splits=*/1, 0, call.shape.head_dim);
  const auto most_splits = static_cast<int>(kScratchBytes / sizeof(float) / of_split);
  const int splits = std::min(tables.plan.split_class(), most_splits);
  ensure(splits >= tables.plan.splits, "a row of attention leaves more partial results than there is room for");
  const std::size_t room = splits == 1 ? kMaxGridItems : static_cast<std::size_t>(most_splits / splits);
  const int step = static_cast<int>(std::min<std::size_t>(room, kMaxGridItems));
  for (int i = 0; i < count; i += step) {
    const kernel::DecodeRows part{tables.row_ids + i, std::min(step, count - i), splits, scratch<float>(),
                                  stores_while_decoding(call, tables)};
    launch(stream, "split-KV decode attention", [&](cudaStream_t on) { kernel::attend_decode(on, call, part); });
  }
}

// ---- logits

void CudaOps::top_k_log_sum_exp(Stream& stream, Activations logits, const LogitColumns& columns,
                                std::span<const std::int32_t> top, std::span<const TokenId> targets, TopLogits* out) {
  check_logits(logits, columns);
  const auto rows = static_cast<std::size_t>(logits.rows), slices = static_cast<std::size_t>(columns.slices);
  ensure(top.size() == rows && targets.size() == rows, "a row of logits lacks its top or its target");
  if (rows == 0) return;
  CudaComputeStream& compute = begin(stream);
  Staging::Result<TopLogits> top_logits{nullptr, pass_.top_logits(out)};
  const bool in_pass = top_logits.device != nullptr;
  if (!in_pass) top_logits = staging_.result<TopLogits>(compute, rows * slices);
  kernel::TopKCall call{.logits = as<const float>(logits),
                        .rows = 0,
                        .columns = logits.columns,
                        .of = columns,
                        .top = on_device(compute, top),
                        .targets = on_device(compute, targets),
                        .parts = scratch<kernel::TopKPart>(),
                        .out = top_logits.device};
  const std::size_t row_parts = std::max<std::size_t>(1, slices * static_cast<std::size_t>(call.blocks()));
  const auto step =
      static_cast<int>(std::min(kScratchBytes / sizeof(kernel::TopKPart) / row_parts, kMaxGridItems / slices));
  ensure(step > 0, "a row of logits has more parts than there is room for");
  for (int first = 0; first < logits.rows; first += step) {
    call.rows = std::min(step, logits.rows - first);
    launch(compute, "top_k_log_sum_exp", [&](cudaStream_t on) { kernel::top_k_log_sum_exp(on, call); });
    call.logits += static_cast<std::size_t>(step) * logits.columns;
    call.top += step;
    call.targets += step;
    call.out += step * slices;
  }
  if (!in_pass) compute.after([=] { std::copy_n(top_logits.host, rows * slices, out); });
}

void CudaOps::sample(Stream& stream, Activations logits, const LogitColumns& columns, std::span<const RowSampling> rows,
                     SliceSample* out) {
  check_logits(logits, columns);
  ensure(rows.size() == static_cast<std::size_t>(logits.rows), "a row of logits lacks its sampling");
  CudaComputeStream& compute = begin(stream);
  if (const PassState::SampleCall* call = pass_.sampling(rows)) {
    return sample_rows(compute, logits, columns, call->lists, pass_.results_on_device(*call));
  }
  const auto lists = std::make_shared<const SampleLists>(rows);
  if (lists->rows.empty()) return;
  const int slices = columns.slices, width = logits.columns / slices;
  const auto of_slices = staging_.result<kernel::SampleResult>(compute, lists->result_slices(slices));
  const auto candidates = staging_.result<Candidate>(compute, lists->result_candidates(slices));
  const auto all = staging_.result<Candidate>(compute, lists->result_columns(logits.columns));
  sample_rows(compute, logits, columns, *lists, {of_slices.device, candidates.device, all.device});
  compute.after([=] { lists->give({of_slices.host, candidates.host, all.host}, slices, width, out); });
}

// As many rows at a time as there is room for their scaled logits.
void CudaOps::sample_rows(CudaComputeStream& stream, const Activations& logits, const LogitColumns& columns,
                          const SampleLists& lists, const SampleResults& results) {
  const std::int32_t* row_ids = on_device(stream, std::span<const std::int32_t>(lists.row_ids));
  kernel::SampleCall call{.logits = as<const float>(logits),
                          .columns = logits.columns,
                          .of = columns,
                          .rows = on_device(stream, std::span<const kernel::SampleRow>(lists.rows)),
                          .count = 0,
                          .used = on_device(stream, std::span<const TokenUse>(lists.used)),
                          .bias = on_device(stream, std::span<const kernel::TokenBias>(lists.bias)),
                          .banned = on_device(stream, std::span<const TokenId>(lists.banned)),
                          .allowed = on_device(stream, std::span<const std::uint32_t>(lists.allowed)),
                          .scaled = nullptr,
                          .parts = scratch<kernel::SamplePart>(),
                          .out = results.slices,
                          .candidates = results.candidates,
                          .slices = results.all};
  const std::size_t slices = static_cast<std::size_t>(columns.slices);
  const std::size_t part_bytes = slices * static_cast<std::size_t>(call.blocks()) * sizeof(kernel::SamplePart);
  const std::size_t room = kScratchBytes / (part_bytes + logits.columns * sizeof(float));
  const int step = static_cast<int>(std::min(room, kMaxGridItems / slices));
  ensure(step > 0, "a row of logits is longer than there is room for");
  call.scaled = reinterpret_cast<float*>(scratch_->data() + step * part_bytes);
  const int count = static_cast<int>(lists.rows.size());
  for (int first = 0; first < count; first += step) {
    call.count = std::min(step, count - first);
    run(stream, "scaled logits", call.count, logits.columns,
        kernel::CopyRows<float, float>{as<const float>(logits), logits.columns, row_ids + first, 0, call.scaled,
                                       logits.columns});
    launch(stream, "sample", [&](cudaStream_t on) { kernel::sample(on, call); });
    call.rows += step;
    call.out += step * slices;
  }
}

// ---- copies

void CudaOps::copy_from_host(Stream& stream, const void* in, Activations out) {
  staging_.copy_to_device(begin(stream), out.data, {static_cast<const std::byte*>(in), out.bytes()});
}

void CudaOps::copy_to_host(Stream& stream, Activations in, void* out) {
  const std::size_t bytes = in.bytes();
  if (bytes == 0) return;
  CudaComputeStream& compute = begin(stream);
  const auto staged = staging_.result<std::byte>(compute, bytes);
  compute.copy_to_host(staged.host, in.data, bytes);
  compute.after([=] { std::memcpy(out, staged.host, bytes); });
}

std::unique_ptr<Ops> make_cuda_ops(Device& device, bool tf32) { return std::make_unique<CudaOps>(device, tf32); }

}  // namespace computron

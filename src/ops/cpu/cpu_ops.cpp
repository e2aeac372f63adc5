#include "src/ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "computron/base/convert.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/embed.h"
#include "kernels/cpu/gemm_measure.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/residual.h"
#include "kernels/cpu/rotary.h"
#include "kernels/cpu/sample.h"
#include "src/ops/checks.h"
#include "src/ops/cpu/rows.h"

namespace computron {
namespace {

// A fork and a join cost a few microseconds: less than this many elements are not worth another thread.
constexpr int kMinElementsPerItem = 16384;

// body(row) for all rows, several to an item where rows are short.
template <class Body>
void for_each_row(CpuContext& context, int rows, int columns, Body&& body) {
  const int step = std::max(1, kMinElementsPerItem / std::max(1, columns));
  context.parallel_for(ceil_div(rows, step), [&](int, int item) {
    for (int row = item * step; row < std::min(rows, (item + 1) * step); ++row) body(row);
  });
}

template <class Panel>
std::vector<CpuEventMark> marks_of(std::span<const Panel> panels) {
  std::vector<CpuEventMark> marks;
  marks.reserve(panels.size());
  for (const Panel& panel : panels) marks.push_back(mark_of(panel.ready));
  return marks;
}

void wait_for_all(CpuContext& context, const std::vector<CpuEventMark>& marks) {
  for (const CpuEventMark& mark : marks) context.wait(0, mark);
}

// ---- what callers of this device must keep to besides: it has no float16 but in weights

void check_narrow(const Activations& a, const char* what) { ensure(a.dtype != DType::kF16, what); }

// Slice `slice` of a row.
struct LogitSlice {
  int first, columns, real;  // of the row's columns

  LogitSlice(const Activations& logits, const LogitColumns& c, int slice)
      : first(slice * (logits.columns / c.slices)),
        columns(logits.columns / c.slices),
        real(std::clamp(c.real - first, 0, columns)) {}
};

}  // namespace

// Codes become what they are multiplied as; plain weights stay what they are.
WeightType CpuOps::weight_type(const WeightType& checkpoint) const {
  WeightType type = checkpoint;
  if (type.quantised()) type.values = kernels::gemm_input_dtype(type);
  return type;
}

void CpuOps::choose_kernels(std::span<const WeightType> types) {
  if (may_measure_kernels()) choices_.choose(types, gemm_choices_file(), kernels::kMeasurement_s);
}

CpuOps::Workspace& CpuOps::workspace(int thread) {
  auto& own = workspaces_[static_cast<std::size_t>(thread)];
  if (!own) own = std::make_unique<Workspace>();
  return *own;
}

void CpuOps::reserve_workspaces(int threads) {
  if (workspaces_.size() < static_cast<std::size_t>(threads)) workspaces_.resize(static_cast<std::size_t>(threads));
}

// All panels are waited for, in order, used or not: the operation's end is the end of every page's use.
void CpuOps::embed(Stream& stream, std::span<const TokenId> tokens, TokenId first_token, const Weight& weight,
                   Activations out) {
  check_embed(tokens, weight, out);
  cpu(stream).launch([=, marks = marks_of(weight.panels)](CpuContext& context) {
    wait_for_all(context, marks);
    for_each_row(context, out.rows, out.columns, [&](int r) {
      const std::int64_t row = std::int64_t{tokens[static_cast<std::size_t>(r)]} - first_token;
      if (row < 0 || row >= weight.out) {
        if (weight.panels.front().row_begin == 0) std::fill_n(f32_row(out, r), out.columns, 0.0f);
      } else if (const WeightPanel* panel = panel_with(weight.panels, static_cast<int>(row))) {
        const int panel_row = static_cast<int>(row) - panel->row_begin;
        kernels::embed_row(panel->data, panel_row, weight.in, weight.type, f32_row(out, r));
      }
    });
  });
}

void CpuOps::add_rows(Stream& stream, std::span<const std::int32_t> rows, int row_offset, const Table& table,
                      Activations inout) {
  check_add_rows(rows, table, inout);
  cpu(stream).launch([=, marks = marks_of(table.panels)](CpuContext& context) {
    wait_for_all(context, marks);
    for_each_row(context, inout.rows, inout.columns, [&](int r) {
      const int row = rows[static_cast<std::size_t>(r)] + row_offset;
      ensure(row >= 0 && row < table.rows, "a table has no such row");
      const TablePanel* panel = panel_with(table.panels, row);
      if (panel == nullptr) return;
      const auto* values = reinterpret_cast<const float*>(panel->data);
      kernels::add(values + static_cast<std::size_t>(row - panel->row_begin) * inout.columns, inout.columns,
                   f32_row(inout, r));
    });
  });
}

void CpuOps::activate(Stream& stream, Activation activation, Activations in, Activations out) {
  check_activate(in, out);
  check_narrow(out, "an activation is not written as float16");
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, in.rows, in.columns, [&](int r) {
      kernels::activate(activation, {.x = f32_row(in, r),
                                     .x_stride = 0,
                                     .bias = nullptr,
                                     .rows = 1,
                                     .columns = in.columns,
                                     .out = row_of(out, r),
                                     .out_stride = 0,
                                     .dtype = out.dtype});
    });
  });
}

void CpuOps::copy_vector(Stream& stream, Vector in, Activations out) {
  check_copy_vector(in, out);
  cpu(stream).launch([=, ready = mark_of(in.ready)](CpuContext& context) {
    context.wait(0, ready);
    std::memcpy(out.data, in.data, out.bytes());
  });
}

void CpuOps::zero(Stream& stream, Activations out) {
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, out.rows, out.columns,
                 [&](int r) { std::memset(row_of(out, r), 0, out.columns * size_of(out.dtype)); });
  });
}

void CpuOps::norm(Stream& stream, NormKind kind, Activations in, Vector weight, Vector bias, float epsilon,
                  Activations out) {
  check_norm(in, weight, bias, out);
  check_narrow(out, "norm writes no float16");
  const auto marks = std::vector{mark_of(weight.ready), mark_of(bias.ready)};
  cpu(stream).launch([=](CpuContext& context) {
    wait_for_all(context, marks);
    for_each_row(context, in.rows, in.columns, [&](int r) {
      kernels::norm(kind, f32_row(in, r), in.columns, weight.data, bias.data, epsilon, row_of(out, r), out.dtype);
    });
  });
}

struct CpuOps::GemmCall {
  Activations x;
  Weight weight;
  Vector bias;
  Activation activation;
  Activations out;
  std::vector<CpuEventMark> panels_ready;
  CpuEventMark bias_ready;
};

void CpuOps::gemm(Stream& stream, Activations x, const Weight& weight, Vector bias, Activation activation,
                  Activations out) {
  check_gemm(x, weight, bias, out, format_.input_dtype(weight.type));
  check_narrow(out, "gemm writes no float16");
  cpu(stream).launch([this, call = GemmCall{x, weight, bias, activation, out, marks_of(weight.panels),
                                            mark_of(bias.ready)}](CpuContext& context) { run_gemm(context, call); });
}

void CpuOps::run_gemm(CpuContext& context, const GemmCall& call) {
  if (call.x.rows == 0) return;
  reserve_workspaces(context.threads());
  const bool there = std::ranges::all_of(call.panels_ready, reached);
  cut_gemm(call.weight, there, call.x, context.threads(), gemm_tasks_);
  ++gemms_;
  context.parallel_for(static_cast<int>(gemm_tasks_.size()), [&](int thread, int item) {
    const GemmTask& task = gemm_tasks_[static_cast<std::size_t>(item)];
    context.wait(thread, call.panels_ready[static_cast<std::size_t>(task.panel)]);
    context.wait(thread, call.bias_ready);
    run_gemm_task(context, thread, call, task);
  });
}

// Rows of x, which may have to be made something else first, go by outermost: a task has but eight blocks of the
// weight. A tile goes to its place with bias, activation and conversion while it is in the second cache; sums that are
// neither activated nor converted go there from registers.
void CpuOps::run_gemm_task(CpuContext& context, int thread, const GemmCall& call, const GemmTask& task) {
  const auto& [x, weight, bias, activation, out, panels_ready, bias_ready] = call;
  Workspace& own = workspace(thread);
  const WeightPanel& panel = weight.panels[static_cast<std::size_t>(task.panel)];
  const int x_end = task.x_row + task.x_rows, x_rows = std::min(task.x_rows, kernels::kMaxGemmRows);
  for (int m = task.x_row; m < x_end; m += kernels::kMaxGemmRows) {
    const int rows = std::min(kernels::kMaxGemmRows, x_end - m);
    const TakenRows taken{gemms_, m, rows};
    if (own.taken != taken) {
      own.gemm.take_rows(weight.type, row_of(x, m), rows, weight.in);
      own.taken = taken;
    }
    for (int n = 0, width; n < task.rows; n += width) {
      width = gemm_width(round_up(task.rows - n, kernels::kRowBlock), x_rows);
      const std::byte* packed = panel.data + kernels::packed_bytes(task.row + n, weight.in, weight.type);
      const int column = panel.row_begin + task.row + n, real = std::min(width, task.rows - n);
      const float* of_columns = bias.data == nullptr ? nullptr : bias.data + column;
      std::byte* const to = row_of(out, m) + column * size_of(out.dtype);
      const std::size_t stride = out.columns * size_of(out.dtype);
      const bool of_sums = activation == Activation::kNone && out.dtype == DType::kF32 && real == width;
      const kernels::PanelResult result{
          .to = to, .stride = stride, .dtype = out.dtype, .of_sums = of_sums, .bias = of_columns};
      own.gemm.run(choices_.of(weight.type), packed, width, own.tile, &result);
      if (!of_sums) {
        kernels::activate(activation, {.x = own.tile,
                                       .x_stride = static_cast<std::size_t>(width),
                                       .bias = of_columns,
                                       .rows = rows,
                                       .columns = real,
                                       .out = to,
                                       .out_stride = stride,
                                       .dtype = out.dtype});
      }
      if (thread == 0) context.poll();
    }
  }
}

void CpuOps::add_residual(Stream& stream, Activations x, Vector bias, Activations inout) {
  check_add_residual(x, bias, inout);
  cpu(stream).launch([=, ready = mark_of(bias.ready)](CpuContext& context) {
    context.wait(0, ready);
    for_each_row(context, x.rows, x.columns,
                 [&](int r) { kernels::add_residual(f32_row(x, r), bias.data, x.columns, f32_row(inout, r)); });
  });
}

// A row at a time, while it is in the first cache.
void CpuOps::add_residual_and_norm(Stream& stream, Activations x, Vector bias, Activations inout, NormKind kind,
                                   Vector weight, Vector norm_bias, float epsilon, Activations out) {
  check_add_residual(x, bias, inout);
  check_norm(inout, weight, norm_bias, out);
  check_narrow(out, "norm writes no float16");
  const auto marks = std::vector{mark_of(bias.ready), mark_of(weight.ready), mark_of(norm_bias.ready)};
  cpu(stream).launch([=](CpuContext& context) {
    wait_for_all(context, marks);
    for_each_row(context, x.rows, x.columns, [&](int r) {
      kernels::add_residual(f32_row(x, r), bias.data, x.columns, f32_row(inout, r));
      kernels::norm(kind, f32_row(inout, r), x.columns, weight.data, norm_bias.data, epsilon, row_of(out, r),
                    out.dtype);
    });
  });
}

void CpuOps::activate_gate(Stream& stream, const Gate& gate, Activations in, Activations out) {
  check_activate_gate(in, out);
  check_f32(in, "a gate is read as float32");
  check_narrow(out, "a gated product is not written as float16");
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, out.rows, in.columns, [&](int r) {
      const float* both = f32_row(in, r);
      kernels::activate_gate(gate, both, both + out.columns, out.columns, row_of(out, r), out.dtype);
    });
  });
}

void CpuOps::add_gated_rows(Stream& stream, Activations x, Activations gates, Activations inout) {
  check_add_gated_rows(x, gates, inout);
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, x.rows, x.columns,
                 [&](int r) { kernels::add_gated(*f32_row(gates, r), f32_row(x, r), x.columns, f32_row(inout, r)); });
  });
}

// Queries and keys lie side by side, with their weights in the same order.
void CpuOps::norm_heads(Stream& stream, NormKind kind, const AttentionShape& shape, Vector weight, float epsilon,
                        Activations qkv) {
  check_norm_heads(kind, shape, weight, qkv);
  cpu(stream).launch([=, ready = mark_of(weight.ready)](CpuContext& context) {
    context.wait(0, ready);
    for_each_row(context, qkv.rows, qkv.columns, [&](int r) {
      for (int head = 0; head < shape.heads + shape.kv_heads; ++head) {
        float* x = f32_row(qkv, r) + head * shape.head_dim;
        const float* of_head = weight.data + (head < shape.heads ? 0 : shape.head_dim);
        kernels::norm(kind, x, shape.head_dim, of_head, /*bias=*/nullptr, epsilon, reinterpret_cast<std::byte*>(x),
                      DType::kF32);
      }
    });
  });
}

void CpuOps::square_heads(Stream& stream, const AttentionShape& shape, Activations qkv,
                          std::span<const std::int32_t> heads, Activations out) {
  check_square_heads(shape, qkv, heads, out);
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, qkv.rows, qkv.columns, [&](int r) {
      for (int c = 0; c < out.columns; ++c) {
        const std::int32_t head = heads[static_cast<std::size_t>(c)];
        const float* x = f32_row(qkv, r) + head * shape.head_dim;
        f32_row(out, r)[c] = head < 0 ? 0.0f : kernels::sum_of_squares(x, shape.head_dim);
      }
    });
  });
}

void CpuOps::norm_width(Stream& stream, NormKind kind, const AttentionShape& shape, Activations squares,
                        int query_heads, Vector weight, float epsilon, Activations qkv) {
  check_norm_width(kind, shape, squares, query_heads, weight, qkv);
  cpu(stream).launch([=, ready = mark_of(weight.ready)](CpuContext& context) {
    context.wait(0, ready);
    const int queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
    for_each_row(context, qkv.rows, qkv.columns, [&](int r) {
      const auto scale_of = [&](int first, int end) {
        const float sum = std::accumulate(f32_row(squares, r) + first, f32_row(squares, r) + end, 0.0f);
        return 1.0f / std::sqrt(sum / static_cast<float>((end - first) * shape.head_dim) + epsilon);
      };
      float* x = f32_row(qkv, r);
      kernels::apply_norm(kind, scale_of(0, query_heads), weight.data, queries, x);
      kernels::apply_norm(kind, scale_of(query_heads, squares.columns), weight.data + queries, keys, x + queries);
    });
  });
}

void CpuOps::scale(Stream& stream, float factor, Activations inout) {
  check_f32(inout, "only float32 is scaled");
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, inout.rows, inout.columns,
                 [&](int r) { kernels::scale(factor, inout.columns, f32_row(inout, r)); });
  });
}

void CpuOps::soft_cap(Stream& stream, float cap, Activations inout) {
  check_soft_cap(cap, inout);
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, inout.rows, 4 * inout.columns,  // an exponential costs as much as many sums
                 [&](int r) { kernels::soft_cap(cap, inout.columns, f32_row(inout, r)); });
  });
}

void CpuOps::rotary_angles(Stream& stream, std::span<const std::int32_t> positions, std::span<const float> frequencies,
                           Activations out) {
  const int half = static_cast<int>(frequencies.size());
  check_rotary_angles(positions, frequencies, out);
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, out.rows, 16 * out.columns, [&](int r) {  // a cosine costs as much as many sums
      kernels::rotary_angles(positions[static_cast<std::size_t>(r)], frequencies.data(), half, f32_row(out, r));
    });
  });
}

// Queries and keys lie side by side.
void CpuOps::apply_rope(Stream& stream, const AttentionShape& shape, Activations angles, Activations qkv) {
  check_apply_rope(shape, angles, qkv);
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, qkv.rows, qkv.columns, [&](int r) {
      for (int head = 0; head < shape.heads + shape.kv_heads; ++head) {
        kernels::apply_rope(f32_row(angles, r), angles.columns / 2, f32_row(qkv, r) + head * shape.head_dim);
      }
    });
  });
}

void CpuOps::convert(Stream& stream, Activations in, Activations out) {
  check_convert(in, out);
  check_narrow(out, "nothing is converted to float16");
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, in.rows, in.columns,
                 [&](int r) { kernels::convert(f32_row(in, r), in.columns, row_of(out, r), out.dtype); });
  });
}

void CpuOps::gather_rows(Stream& stream, Activations in, std::span<const std::int32_t> rows, Activations out) {
  check_gather(in, rows, out);
  check_narrow(out, "nothing is gathered to float16");
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, out.rows, in.columns, [&](int r) {
      const int row = rows[static_cast<std::size_t>(r)];
      ensure(row >= 0 && row < in.rows, "a row to gather does not exist");
      if (in.dtype == out.dtype) {
        std::memcpy(row_of(out, r), row_of(in, row), in.columns * size_of(in.dtype));
      } else {
        kernels::convert(f32_row(in, row), in.columns, row_of(out, r), out.dtype);
      }
    });
  });
}

void CpuOps::copy_columns(Stream& stream, Activations in, int first, Activations out) {
  check_copy_columns(in, first, out);
  const std::size_t size = size_of(in.dtype);
  cpu(stream).launch([=](CpuContext& context) {
    for_each_row(context, in.rows, out.columns,
                 [&](int r) { std::memcpy(row_of(out, r), row_of(in, r) + first * size, out.columns * size); });
  });
}

// A row of `inout` may come several times, so columns are what is spread over threads.
void CpuOps::scatter_add(Stream& stream, Activations in, std::span<const std::int32_t> rows,
                         std::span<const float> weights, Activations inout) {
  check_scatter(in, rows, weights, inout);
  cpu(stream).launch([=](CpuContext& context) {
    constexpr int kColumns = 512;
    context.parallel_for(rows.empty() ? 0 : ceil_div(inout.columns, kColumns), [&](int, int item) {
      const int first = item * kColumns, count = std::min(kColumns, inout.columns - first);
      for (int i = 0; i < in.rows; ++i) {
        const int row = rows[static_cast<std::size_t>(i)];
        ensure(row >= 0 && row < inout.rows, "a row to scatter to does not exist");
        kernels::add_scaled(f32_row(in, i) + first, weights[static_cast<std::size_t>(i)], count,
                            f32_row(inout, row) + first);
      }
    });
  });
}

struct CpuOps::AttentionCall {
  AttentionShape shape;
  Activations qkv;
  std::span<const SequenceRows> sequences;
  KvCacheView cache;
  int layer;
  const float* sinks;
  Activations out;
  kernels::OwnRows own_rows = kernels::OwnRows::kInCache;

  kernels::AttentionPart part_of(const AttentionTask& task) const {
    return {.shape = &shape,
            .cache = &cache,
            .sequence = &sequences[static_cast<std::size_t>(task.sequence)],
            .layer = layer,
            .kv_head = task.kv_head,
            .kv_heads = task.kv_head_end - task.kv_head,
            .row = task.row,
            .rows = task.rows,
            .sinks = sinks,
            .own_rows = own_rows};
  }
};

void CpuOps::attention(Stream& stream, const AttentionShape& shape, Activations qkv,
                       std::span<const SequenceRows> sequences, const KvCacheView& cache, int layer, Vector sinks,
                       Activations out) {
  check_attention(shape, qkv, cache, layer, sinks, out);
  check_narrow(out, "attention writes no float16");
  ensure(cache.dtype != DType::kF16, "the CPU keeps no float16 cache");
  cpu(stream).launch([this, call = AttentionCall{shape, qkv, sequences, cache, layer, sinks.data, out},
                      ready = mark_of(sinks.ready)](CpuContext& context) {
    check_sequences(call.sequences, call.qkv.rows, call.cache.block_tokens);
    context.wait(0, ready);
    run_attention(context, call);
  });
}

// Where every sequence is in one task a head (decoding), the task that attends stores what only it reads, and one
// parallel_for is enough. An encoder stores nothing.
void CpuOps::run_attention(CpuContext& context, AttentionCall call) {
  using kernels::OwnRows;
  reserve_workspaces(context.threads());
  const bool stored = !std::ranges::all_of(call.sequences, [&](const SequenceRows& sequence) {
    return kernels::sees_own_rows(call.shape, sequence, call.cache);
  });
  const bool in_one_task = cut_attention(call.shape, call.sequences, context.threads(), attention_tasks_);
  call.own_rows = !stored ? OwnRows::kNotInCache : in_one_task ? OwnRows::kToCache : OwnRows::kInCache;
  const int items = static_cast<int>(attention_tasks_.size());
  const auto part_of = [&](int item) { return call.part_of(attention_tasks_[static_cast<std::size_t>(item)]); };
  const float* qkv = f32_row(call.qkv, 0);
  if (call.own_rows == OwnRows::kInCache) {
    context.parallel_for(items, [&](int, int item) { kernels::store_keys_values(part_of(item), qkv); });
  }
  context.parallel_for(items, [&](int thread, int item) {
    kernels::attend(part_of(item), qkv, call.out.data, call.out.dtype, workspace(thread).attention);
  });
}

void CpuOps::top_k_log_sum_exp(Stream& stream, Activations logits, const LogitColumns& columns,
                               std::span<const std::int32_t> top, std::span<const TokenId> targets, TopLogits* out) {
  check_logits(logits, columns);
  const auto rows = static_cast<std::size_t>(logits.rows);
  ensure(top.size() == rows && targets.size() == rows, "a row of logits lacks its top or its target");
  cpu(stream).launch([=](CpuContext& context) {
    context.parallel_for(logits.rows * columns.slices, [&](int, int item) {
      const int r = item / columns.slices;
      const LogitSlice slice(logits, columns, item % columns.slices);
      out[item] =
          kernels::top_k_log_sum_exp(f32_row(logits, r) + slice.first, slice.real, columns.first_token + slice.first,
                                     top[static_cast<std::size_t>(r)], targets[static_cast<std::size_t>(r)]);
    });
  });
}

void CpuOps::copy_to_host(Stream& stream, Activations in, void* out) {
  cpu(stream).launch([=](CpuContext&) {
    if (in.bytes() > 0) std::memcpy(out, in.data, in.bytes());
  });
}

void CpuOps::sample(Stream& stream, Activations logits, const LogitColumns& columns, std::span<const RowSampling> rows,
                    SliceSample* out) {
  check_logits(logits, columns);
  ensure(rows.size() == static_cast<std::size_t>(logits.rows), "a row of logits lacks its sampling");
  cpu(stream).launch([=, this](CpuContext& context) {
    reserve_workspaces(context.threads());
    context.parallel_for(logits.rows * columns.slices, [&](int thread, int item) {
      const int r = item / columns.slices;
      const RowSampling& row = rows[static_cast<std::size_t>(r)];
      if (!row.samples) return;
      const LogitSlice slice(logits, columns, item % columns.slices);
      out[item] = kernels::sample(f32_row(logits, r) + slice.first, slice.real, columns.first_token + slice.first, row,
                                  workspace(thread).scaled);
    });
  });
}

void CpuOps::copy_from_host(Stream& stream, const void* in, Activations out) {
  cpu(stream).launch([=](CpuContext&) {
    if (out.bytes() > 0) std::memcpy(out.data, in, out.bytes());
  });
}

std::unique_ptr<Ops> make_cpu_ops(Device&) { return std::make_unique<CpuOps>(); }

std::unique_ptr<WeightFormat> make_cpu_weight_format() { return std::make_unique<CpuWeightFormat>(); }

}  // namespace computron

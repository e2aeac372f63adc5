// What one forward pass of one stage works with: the batch, the scratch memory, the pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/trace.h"
#include "computron/comm/all_reduce.h"
#include "computron/model/shard_layout.h"
#include "computron/ops/ops.h"

namespace computron {

// Of models that pool the mean: which rows are summed up, and what the sums are divided by.
struct RowMeans {
  std::vector<std::int32_t> sequence_of_row;  // [M]
  std::vector<float> ones;                    // [M]
  std::vector<float> carried;          // [sequences, hidden] sums of the rows of passes before; empty: there were none
  std::vector<std::int32_t> finished;  // [R] of the sequences, ascending
  std::vector<float> reciprocals;      // [R] of the numbers of their rows, those of passes before counted
  std::vector<std::int32_t> outputs;   // [R] 0, 1, 2, ...
};

// The input of one forward pass. M rows: tokens, or an image's class token and patches; R of them lead to outputs. The
// caller leaves it unchanged until the stream has run the pass.
struct Batch {
  std::vector<TokenId> tokens;          // [M]; images: empty
  std::vector<float> patches;           // images: [M, patch_values], channel by channel; class tokens' rows are zero
  std::vector<std::int32_t> positions;  // [M]
  std::vector<std::int32_t> token_type_ids;  // [M] for models that have token types (BERT's segments)
  std::vector<SequenceRows> sequences;       // cover the M rows in order
  std::vector<std::uint8_t> long_factors;    // longrope: [sequences] 1 where its long factors rotate; empty: nowhere
  std::vector<std::int32_t> output_rows;     // [R] rows of the batch, ascending
  std::vector<std::int32_t> top;             // decoders: [R] best logits to keep
  std::vector<TokenId> targets;              // decoders: [R] token whose logit is wanted, or -1
  std::vector<RowSampling> sampling;         // decoders: [R], or empty where no row samples
  std::vector<std::int32_t> real_rows;       // a number: rows from there on are padding; empty: none is
  RowMeans means = {};                       // where the model pools the mean; output_rows say only how many there are
  int rows() const { return static_cast<int>(positions.size()); }
  int output_count() const { return static_cast<int>(output_rows.size()); }

  // Wants the embedding of sequence `index`, whose last row is in the batch. Sequences in ascending order.
  void add_pooled(Pooling pooling, std::size_t index);
  // Sums up the rows of all sequences, which are complete.
  void sum_sequences();

  // This, with rows of no sequence behind, `rows` in all, and with outputs that nobody looks at, `outputs` in all.
  Batch padded_to(int rows, int outputs) const;
};

// Host memory that the last stage fills when the stream has run: `logits` for decoders, the others for encoders and
// embedders.
struct Outputs {
  TopLogits* logits = nullptr;         // [R]
  SliceSample* samples = nullptr;      // [R] of rows that sample
  float* pooled_embeddings = nullptr;  // [R, embedding size], not yet divided by their length
  float* scores = nullptr;             // [R, classes]
  float* sums = nullptr;               // [sequences, hidden] of rows, where the mean is pooled; null: not wanted
};

// The bytes of a page use are at `data` once `ready` is reached; null: they are there.
struct ResidentPage {
  const std::byte* data = nullptr;
  const Event* ready = nullptr;
};

// The pages of the pass's model. A pass acquires them in the order of ShardLayout::uses.
class PageSource {
 public:
  virtual ~PageSource() = default;
  // The page of `use`, whose fetch has been enqueued. Valid until the use is released.
  virtual ResidentPage acquire(PageUse use) = 0;
  // The caller has enqueued its last operation of every use ≤ `use` on the compute stream.
  virtual void release_through(PageUse use) = 0;
  // True where pages still to come wait for uses of this very pass: then a layer works through a tensor group by group,
  // and uses are released as ShardLayout::over_before says. Otherwise a tensor is one operation, which saves a join a
  // group (groups of 32 MiB on two threads: some 5 % of a gemm where other programs disturb one of them; within 1 % on
  // one thread).
  virtual bool group_by_group() const = 0;
  // Whether every page has its place and keeps it until the pass has been enqueued: then pages may be acquired in any
  // order, and released together at the end. Follows from the steps, not from how fast copies are.
  virtual bool at_rest() const { return false; }
};

// Scratch arrays of a pass, allocated once for the largest model and batch. M is rounded up to the rows that kernels
// may read (Ops::padded_rows); "input" is the type that GEMM weights are multiplied with. An array keeps its content
// until the next layer writes there.
//
//   hidden       [M, hidden] f32                                the residual stream
//   input        [M, hidden or patch_values] input              what a layer reads: the normalised residual stream
//   fused        [M, (q + 2 kv)/tp, gate_up/tp, experts, classes or patch_values] f32     results of wide products;
//                                                               of gates perhaps narrower (Ops::gate_dtype)
//   inner        [M, heads × head_dim/tp or ffn/tp] input       between a layer's two products
//   partial      [levels][M, hidden] f32                        a row-parallel product, then its sum over the ranks;
//                                                               the squares of heads; pooled rows, also behind the
//                                                               dense layers, which may be wider
//   angles       [M, rotary dimensions] f32                     rotary angles
//   window_angles
//                [M, rotary dimensions] f32                     those of layers with a window that have their own
//   logits       [kLogitRows, vocab/tp] f32
//   bias         [the longest, or of all experts] f32           a copy, so that its page can go
//   gathered     [M, hidden] input                              the rows of one expert
//   gathered_out [M, hidden] f32                                what the expert makes of them
//   routes                                                      Ops::route()
//   gates        [M, 1] f32                                     the shared expert's
//   mixture      [k_slices][M, hidden] f32                      the experts' weighted sum
//   low_rank     [M, chains × the ranks of a weight's modules] f32   what goes between the two products of an adapter
//   k_slice      [M, inner / k_slices] input                    the columns of one K slice of a reproducible sum
class Workspace {
 public:
  // Bytes of each array that a shard needs; the caller takes the maximum over all models of the rank.
  struct Sizes {
    std::size_t hidden = 0, partial = 0, input = 0, inner = 0, fused = 0, angles = 0, window_angles = 0, logits = 0,
                bias = 0, gathered = 0, gathered_out = 0, mixture = 0, k_slice = 0, routes = 0, gates = 0, low_rank = 0;
    int k_slices = 1;    // per rank, of a row-parallel weight
    int levels() const;  // of the tree that sums K slices: so many `partial` there are
    static Sizes of(const ShardPlan& plan, const Ops& ops, int max_rows);
    Sizes max(const Sizes& other) const;
    std::size_t total() const;
  };
  Workspace(Device& device, const Sizes& sizes);

  // Logits are computed for this many rows at a time, so that scoring a long prompt needs little memory.
  static constexpr int kLogitRows = 64;

  // Each is an Error{kInternal} where its array is too short.
  Activations hidden(int rows, int columns) const { return hidden_.as(rows, columns); }
  Activations partial(int rows, int columns, int level = 0) const {
    return partial_.piece(level * sizes_.partial, sizes_.partial).as(rows, columns);
  }
  Activations input(int rows, int columns, DType t) const { return input_.as(rows, columns, t); }
  Activations inner(int rows, int columns, DType t) const { return inner_.as(rows, columns, t); }
  Activations fused(int rows, int columns, DType t = DType::kF32) const { return fused_.as(rows, columns, t); }
  Activations angles(int rows, int columns) const { return angles_.as(rows, columns); }
  Activations window_angles(int rows, int columns) const { return window_angles_.as(rows, columns); }
  Activations logits(int rows, int columns) const { return logits_.as(rows, columns); }
  Activations bias(int length) const { return bias_.as(1, length); }
  Activations gathered(int rows, int columns, DType t) const { return gathered_.as(rows, columns, t); }
  Activations gathered_out(int rows, int columns) const { return gathered_out_.as(rows, columns); }
  Activations mixture(int k_slice, int rows, int columns) const {
    return mixture_.piece(k_slice * sizes_.mixture, sizes_.mixture).as(rows, columns);
  }
  Activations k_slice(int rows, int columns, DType t) const { return k_slice_.as(rows, columns, t); }
  Activations gates(int rows) const { return gates_.as(rows, 1); }
  // Behind `first` floats of others.
  Activations low_rank(std::size_t first, int rows, int rank) const {
    const std::size_t others = first * sizeof(float);
    return low_rank_.piece(others, low_rank_.bytes - others).as(rows, kLowRankChains * rank);
  }
  ExpertRoutes routes(int rows, const RoutingRule& rule) const { return {routes_.data, rows, rule}; }

 private:
  // One of the arrays.
  struct Part {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    const char* overflow = "";  // what an Error{kInternal} says where it is too short

    Part piece(std::size_t begin, std::size_t length) const {
      ensure(begin <= bytes && length <= bytes - begin, overflow);
      return {data + begin, length, overflow};
    }
    Activations as(int rows, int columns, DType dtype = DType::kF32) const {
      const Activations array{data, rows, columns, dtype};
      ensure(array.bytes() <= bytes, overflow);
      return array;
    }
  };

  std::unique_ptr<DeviceBuffer> buffer_;
  Sizes sizes_;
  Part hidden_, partial_, input_, inner_, fused_, angles_, window_angles_, logits_, bias_, gathered_, gathered_out_,
      mixture_, k_slice_, routes_, gates_, low_rank_;
};

class LowRanks;

// The rows of a model that differs from the pass's in its adapter alone (ShardLayout::family). Rows of riders stand
// behind those of the pass's model, and all products but its adapter's are that model's.
struct Rider {
  int row = 0, rows = 0;                          // of the batch
  std::size_t first_sequence = 0, sequences = 0;  // of the batch
  const KvCacheView* cache = nullptr;
  LowRanks* adapter = nullptr;  // null: it has none
  PageSource* pages = nullptr;  // of the adapter
};

// Everything a layer is handed. Borrowed by reference, valid for the pass.
struct Pass {
  Stream& stream;
  Ops& ops;
  AllReduce& all_reduce;  // over the tensor-parallel ranks of the stage
  PageSource& pages;
  Workspace& work;
  const Batch& batch;
  const KvCacheView& cache;  // of the pass's model
  Trace* trace = nullptr;
  std::span<const Rider> riders = {};  // in the order of their rows
};

}  // namespace computron

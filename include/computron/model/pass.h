// What one forward pass of one stage works with: the batch, the scratch memory, the pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "computron/base/trace.h"
#include "computron/comm/all_reduce.h"
#include "computron/model/image.h"
#include "computron/ops/ops.h"

namespace computron {

// The tokens of one forward pass. M rows, R of which get logits. Must stay unchanged until the stream has run the pass.
struct Batch {
  std::vector<TokenId> tokens;             // [M]
  std::vector<std::int32_t> positions;     // [M]
  std::vector<SequenceRows> sequences;     // cover the M rows in order
  std::vector<std::int32_t> logit_rows;    // [R] rows of the batch, ascending
  std::vector<std::int32_t> top;           // [R] candidates to keep
  std::vector<TokenId> targets;            // [R] token whose logit is wanted, or -1
  int rows() const { return static_cast<int>(tokens.size()); }
  int logit_count() const { return static_cast<int>(logit_rows.size()); }
};

// Where a page use's bytes are, once `ready` is reached.
struct ResidentPage {
  const std::byte* data = nullptr;
  const Event* ready = nullptr;
};

// The pages of the pass's model, asked for in the order of Image::uses.
class PageSource {
 public:
  virtual ~PageSource() = default;
  // The page of `use`; its fetch has been enqueued. Valid until the use is over.
  virtual ResidentPage acquire(PageUse use) = 0;
  // Every use ≤ `use` has been enqueued on the compute stream for the last time.
  virtual void uses_over(PageUse use) = 0;
  // True where pages still to come wait for uses of this very pass: then tensors are worked through group by group, and
  // uses end as Image::over_before says. Otherwise a tensor is one operation, which saves a join a group (groups of
  // 32 MiB on two threads: some 5 % of a gemm where other programs disturb one of them; within 1 % on one thread).
  virtual bool group_by_group() const = 0;
};

// Scratch arrays of a pass, allocated once for the largest model and batch.
//   hidden, partial [M, hidden] f32 · input [M, hidden] · inner [M, max(heads × head_dim, ffn)] ·
//   fused [M, q + 2 kv] f32 · logits [64, vocab/tp] f32 · bias [max(q + 2 kv, ffn)] f32; M rounded up to the rows
//   kernels may read
class Workspace {
 public:
  // Sizes it needs for a shard; take the maximum over all models and stages of the rank.
  struct Sizes {
    std::size_t hidden = 0, partial = 0, input = 0, inner = 0, fused = 0, logits = 0, bias = 0;
    static Sizes of(const ShardPlan& plan, const Ops& ops, int max_rows);
    Sizes max(const Sizes& other) const;
    std::size_t total() const { return hidden + partial + input + inner + fused + logits + bias; }
  };
  Workspace(Device& device, const Sizes& sizes);

  // Logits are computed for this many rows at a time, so that scoring a long prompt needs little memory.
  static constexpr int kLogitRows = 64;

  Activations hidden(int rows, int columns) const { return {hidden_, rows, columns, DType::kF32}; }
  Activations partial(int rows, int columns) const { return {partial_, rows, columns, DType::kF32}; }
  Activations input(int rows, int columns, DType t) const { return {input_, rows, columns, t}; }
  Activations inner(int rows, int columns, DType t) const { return {inner_, rows, columns, t}; }
  Activations fused(int rows, int columns) const { return {fused_, rows, columns, DType::kF32}; }
  Activations logits(int rows, int columns) const { return {logits_, rows, columns, DType::kF32}; }
  Activations bias(int length) const { return {bias_, 1, length, DType::kF32}; }

 private:
  std::unique_ptr<DeviceBuffer> buffer_;
  std::byte *hidden_, *partial_, *input_, *inner_, *fused_, *logits_, *bias_;
};

// Everything a layer is handed. Borrowed by reference, valid for the pass.
struct Pass {
  Stream& stream;
  Ops& ops;
  AllReduce& all_reduce;  // over the tensor-parallel ranks of the stage
  PageSource& pages;
  Workspace& work;
  const Batch& batch;
  const KvCacheView& cache;
  Trace* trace = nullptr;
};

}  // namespace computron

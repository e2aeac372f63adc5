#include "src/ops/cuda/attention_tables.h"

#include <limits>

#include "computron/base/error.h"
#include "src/ops/checks.h"

namespace computron {
namespace {

std::span<const SequenceRows> checked(std::span<const SequenceRows> sequences, const KvCacheView& cache, int rows) {
  check_sequences(sequences, rows, cache.block_tokens);
  return sequences;
}

// Tensor cores take elements of two bytes.
int tile_keys(const KvCacheView& cache, int shared_bytes) {
  return cache.dtype == DType::kF32 ? 0 : kernels::cuda::prefill_keys(cache.head_dim, shared_bytes);
}

}  // namespace

AttentionTables::AttentionTables(std::span<const SequenceRows> sequences, const KvCacheView& cache, int batch_rows,
                                 bool causal, int shared_bytes)
    : plan(AttentionPlan::make(causal, checked(sequences, cache, batch_rows), batch_rows, cache.block_tokens,
                               tile_keys(cache, shared_bytes))),
      sequences_(sequences),
      cache_frames_(cache.frames),
      causal_(causal) {
  const std::uint64_t slots = (std::uint64_t{plan.largest_block} + 1) * static_cast<unsigned>(cache.layers);
  ensure(slots <= std::numeric_limits<std::uint32_t>::max(), "a cache has more slots than kernels can count");
  ensure(plan.blocks.empty() || slots <= cache.frames.size() * static_cast<std::uint64_t>(cache.slots_per_frame),
         "a block lies behind the cache's frames");
}

bool AttentionTables::are_of(std::span<const SequenceRows> sequences, const KvCacheView& cache, bool causal) const {
  const auto same = [](const auto& a, const auto& b) { return a.data() == b.data() && a.size() == b.size(); };
  return rows != nullptr && same(sequences_, sequences) && same(cache_frames_, cache.frames) && causal_ == causal;
}

}  // namespace computron

// The template behind attend_avx2 and attend_avx512 (attention_tiles.h).
#pragma once

#include "kernels/cpu/attention_blocks_impl.h"
#include "kernels/cpu/attention_tiles_impl.h"

namespace computron::kernels {
namespace {

template <class Lanes, class T>
void attend_over(const AttentionTiles& tiles) {
  tiles.blocks ? BlockAttention<Lanes, T>(tiles).run() : TiledAttention<Lanes, T>(tiles).run();
}

template <class Lanes>
void attend_with(const AttentionTiles& tiles) {
  tiles.part->cache->dtype == DType::kF32 ? attend_over<Lanes, float>(tiles)
                                          : attend_over<Lanes, typename Lanes::Bf16>(tiles);
}

}  // namespace
}  // namespace computron::kernels

#include <bit>

#include "kernels/cpu/attention_tiles_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

// simd.h's vectors.
struct Lanes8 {
  using V = F8;
  using Bf16 = kernels::Bf16;
  static constexpr int kCount = kLanes;
  static constexpr int kWide = 2;  // vectors beside six queries: twelve sums, two keys and a query in 16 registers
  static float widen(float x) { return x; }
  static float widen(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
  template <class T>
  static V load(const T* p) {
    return kernels::load(p);
  }
  static void store(float* p, V x) { kernels::store(p, x); }
  static V splat(float x) { return kernels::splat(x); }
  static V add(V a, V b) { return kernels::add(a, b); }
  static V sub(V a, V b) { return kernels::sub(a, b); }
  static V mul(V a, V b) { return kernels::mul(a, b); }
  static V div(V a, V b) { return kernels::div(a, b); }
  static V fma(V a, V b, V c) { return kernels::fma(a, b, c); }
  static V max(V a, V b) { return kernels::max(a, b); }
  static V exp(V x) { return kernels::exp(x); }
  static float first(V x) { return _mm256_cvtss_f32(x); }
  static float sum_lanes(V x) { return kernels::sum_lanes(x); }
  static float max_lanes(V x) { return kernels::max_lanes(x); }
};

}  // namespace

void attend_avx2(const AttentionTiles& tiles) { attend_with<Lanes8>(tiles); }

}  // namespace computron::kernels

// 2^x, written once for all vectors. Everything is local to the including file: code compiled for AVX-512 must not be
// linked with anything else.
#pragma once

#include <initializer_list>

namespace computron::kernels {
namespace {

inline constexpr float kLog2E = 1.44269504f;  // e^x is 2^(x log2 e)

// 2^x within 2 units in the last place for x <= 127; 0 below -126.5, NaN for NaN. L: V; splat, sub, fma,
// nearest_integer, times_exp2. The polynomial is that of least relative error between -1/2 and 1/2, 2e-9 but for
// rounding.
template <class L>
typename L::V exp2(typename L::V x) {
  const typename L::V n = L::nearest_integer(x), r = L::sub(x, n);
  typename L::V p = L::splat(1.5345812e-4f);
  for (const float c : {1.3399931e-3f, 9.618489e-3f, 5.5503286e-2f, 2.4022646e-1f, 6.931472e-1f, 1.0f}) {
    p = L::fma(p, r, L::splat(c));
  }
  return L::times_exp2(p, n);
}

}  // namespace
}  // namespace computron::kernels

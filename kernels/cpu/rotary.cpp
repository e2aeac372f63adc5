#include "kernels/cpu/rotary.h"

#include <cmath>

#include "kernels/cpu/simd.h"

namespace computron::kernels {

void rotary_angles(std::int32_t position, const float* frequencies, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    out[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    out[n + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

void apply_rope(const float* angles, int n, float* head) {
  const auto rotate_pair = [](F8 x, F8 y, F8 c, F8 s, F8& u, F8& v) {
    u = fma(x, c, mul(sub(splat(0), y), s));
    v = fma(y, c, mul(x, s));
  };
  F8 u, v;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    rotate_pair(load(head + i), load(head + n + i), load(angles + i), load(angles + n + i), u, v);
    store(head + i, u);
    store(head + n + i, v);
  }
  if (i == n) return;
  const int rest = n - i;
  rotate_pair(load_first(head + i, rest), load_first(head + n + i, rest), load_first(angles + i, rest),
              load_first(angles + n + i, rest), u, v);
  store_first(head + i, u, rest);
  store_first(head + n + i, v, rest);
}

}  // namespace computron::kernels

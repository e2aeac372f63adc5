// Rotary positions (Su et al. 2021) in the half-split layout: element i of a head is paired with i + head_dim / 2.
#pragma once

#include <cstdint>

namespace computron::kernels {

// out[i] = cos(position × frequencies[i]), out[n + i] = sin(...) for i < n. The product is rounded to float32, as the
// models were trained with.
void rotary_angles(std::int32_t position, const float* frequencies, int n, float* out);

// Applies RoPE: rotates the pairs of one head [2n] by the angles [cos n | sin n].
void apply_rope(const float* angles, int n, float* head);

}  // namespace computron::kernels

#include "kernels/cpu/read.h"

#include "computron/base/vectors.h"

namespace computron::kernels {

void read(const std::byte* p, std::size_t bytes) {
  constexpr std::size_t kStep = 256;
  __m256i sums[8] = {};
  for (const std::byte* end = p + bytes; p != end; p += kStep) {
    for (int i = 0; i < 8; ++i) {
      sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(p) + i));
    }
  }
  for (const __m256i& sum : sums) keep_result(sum);  // else the compiler would leave the loads out
}

}  // namespace computron::kernels

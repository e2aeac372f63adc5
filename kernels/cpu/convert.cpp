#include "kernels/cpu/convert.h"

#include "kernels/cpu/simd.h"

namespace computron::kernels {

void convert(const float* in, int n, std::byte* out, DType dtype) {
  with_element(dtype, [&]<class T>(T) {
    map_lanes(
        n, reinterpret_cast<T*>(out), [](F8 x) { return x; }, in);
  });
}

}  // namespace computron::kernels

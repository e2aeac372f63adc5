// Numbers as weights, activations and caches hold them: widened to float32 and narrowed from it, with the same bits on
// host and device.
//
// Everything in this folder's headers compiles as plain C++ too, so that tests without a GPU can run it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "computron/base/host_device.h"
#include "computron/base/types.h"

namespace computron::kernels::cuda {

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

COMPUTRON_HOST_DEVICE inline float widen(float x) { return x; }
COMPUTRON_HOST_DEVICE inline float widen(BFloat16 x) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#else
  return f32_from_bf16(x.bits);
#endif
}
COMPUTRON_HOST_DEVICE inline float widen(Float16 x) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  return f32_from_f16(x.bits);
#endif
}

// To nearest even; a finite number too large for float16 becomes the largest one.
COMPUTRON_HOST_DEVICE inline void narrow(float x, float& out) { out = x; }
COMPUTRON_HOST_DEVICE inline void narrow(float x, BFloat16& out) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  out.bits = bf16_from_f32(x);
#endif
}
COMPUTRON_HOST_DEVICE inline void narrow(float x, Float16& out) {
#ifdef __CUDA_ARCH__
  if (fabsf(x) <= 3.4028235e38f) x = fminf(fmaxf(x, -65504.0f), 65504.0f);
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  out.bits = f16_from_f32(x);
#endif
}

// Widens what the library has narrowed. The library makes an infinity of a finite number that is too large for float16;
// this gives the largest float16 instead, as narrow() does. Finite weights and rows make no other infinities, since
// sums of products of float16 are finite in float32.
COMPUTRON_HOST_DEVICE inline float widen_clamped(float x) { return x; }
COMPUTRON_HOST_DEVICE inline float widen_clamped(BFloat16 x) { return widen(x); }
COMPUTRON_HOST_DEVICE inline float widen_clamped(Float16 x) {
  const float wide = widen(x);
  return wide > 65504.0f ? 65504.0f : wide < -65504.0f ? -65504.0f : wide;
}

// out[index] = x in `dtype`.
COMPUTRON_HOST_DEVICE inline void store(float x, std::byte* out, DType dtype, std::size_t index) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(out)[index] = x;
  } else if (dtype == DType::kBF16) {
    narrow(x, reinterpret_cast<BFloat16*>(out)[index]);
  } else {
    narrow(x, reinterpret_cast<Float16*>(out)[index]);
  }
}

// Calls body(T{}) with the type that stands for `dtype`, a plain one.
template <class Body>
void with_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF16:
      return body(Float16{});
    case DType::kBF16:
      return body(BFloat16{});
    default:
      ensure(false, "codes are no elements");
  }
}

}  // namespace computron::kernels::cuda

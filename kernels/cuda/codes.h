// From codes and scales to values of bfloat16, two at a time, in registers.
//
// A pair is two bfloat16 in a word, of the smaller k in the lower half. Codes are exact in bfloat16. A scale of bf16 or
// e8m0 is too, and one product of pairs rounds as float32 rounded to bfloat16 does: with no more than 16 bits, and none
// below 2^-142, it is exact in float32. Other scales are multiplied in float32.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/element.h"

namespace computron::kernels::cuda {

// a × b + c of each half, rounded once.
COMPUTRON_HOST_DEVICE inline unsigned fma_pairs(unsigned a, unsigned b, unsigned c) {
#ifdef __CUDA_ARCH__
  unsigned out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
#else
  const auto half = [](unsigned pair, int h) { return f32_from_bf16(static_cast<std::uint16_t>(pair >> 16 * h)); };
  unsigned out = 0;
  for (int h = 0; h < 2; ++h) {  // what is asked for below is exact in float32
    out |= static_cast<unsigned>(bf16_from_f32(half(a, h) * half(b, h) + half(c, h))) << 16 * h;
  }
  return out;
#endif
}
// With the sign that a product of zeros has.
COMPUTRON_HOST_DEVICE inline unsigned multiply_pairs(unsigned a, unsigned b) { return fma_pairs(a, b, 0x80008000u); }

COMPUTRON_HOST_DEVICE inline unsigned narrow_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return bf16_from_f32(low) | static_cast<unsigned>(bf16_from_f32(high)) << 16;
#endif
}

COMPUTRON_HOST_DEVICE inline float float_of(unsigned bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// Byte i of the result is the byte of `high`:`low` that nibble i of `selector` names.
COMPUTRON_HOST_DEVICE inline unsigned select_bytes(unsigned low, unsigned high, unsigned selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(low, high, selector);
#else
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
#endif
}

// ---- codes: pairs(piece) of the eight codes of a piece (quantised_tiles.h). Codes of another type are a struct more,
// ---- and a case of with_codes().

// 0x43 above a byte is 128 + its lower seven bits; with its highest bit alone, 128 or 256.
struct Int8Codes {
  static constexpr int kBits = 8;
  COMPUTRON_HOST_DEVICE static void pairs(const unsigned* piece, unsigned (&out)[4]) {
    for (int i = 0; i < 4; ++i) {
      const unsigned both = select_bytes(piece[i / 2], 0x43434343u, i % 2 == 0 ? 0x4140u : 0x4342u);
      out[i] = fma_pairs(both & 0xff80ff80u, 0xbf80bf80u, both & 0xff7fff7fu);
    }
  }
};

// Exponent and mantissa at their places in a bfloat16 are the value × 2^-120, subnormal ones too.
struct Fp8Codes {
  static constexpr int kBits = 8;
  COMPUTRON_HOST_DEVICE static void pairs(const unsigned* piece, unsigned (&out)[4]) {
    for (int i = 0; i < 4; ++i) {
      const unsigned both = select_bytes(piece[i / 2], 0u, i % 2 == 0 ? 0x1404u : 0x3424u);
      out[i] = multiply_pairs((both & 0x80008000u) | (both >> 4 & 0x07f007f0u), 0x7b807b80u);
    }
  }
};

// 128 + the code plus 8, less 136.
struct Int4Codes {
  static constexpr int kBits = 4;
  COMPUTRON_HOST_DEVICE static void pairs(const unsigned* piece, unsigned (&out)[4]) {
    for (int i = 0; i < 4; ++i) {
      out[i] = fma_pairs((*piece >> 4 * i & 0x000f000fu) ^ 0x43084308u, 0x3f803f80u, 0xc308c308u);
    }
  }
};

// As fp8: value × 2^-126.
struct Fp4Codes {
  static constexpr int kBits = 4;
  COMPUTRON_HOST_DEVICE static void pairs(const unsigned* piece, unsigned (&out)[4]) {
    for (int i = 0; i < 4; ++i) {
      const unsigned both = *piece >> 4 * i;
      out[i] = multiply_pairs((both << 12 & 0x80008000u) | (both << 6 & 0x01c001c0u), 0x7e807e80u);
    }
  }
};

// ---- scales: Two holds those of rows r and r + 8, of which factor() takes one

struct Bf16Scales {
  using Two = unsigned;
  COMPUTRON_HOST_DEVICE static unsigned factor(Two two, int row) {
    return select_bytes(two, 0u, row == 0 ? 0x1010u : 0x3232u);
  }
  COMPUTRON_HOST_DEVICE static unsigned scaled(unsigned pair, unsigned factor) { return multiply_pairs(pair, factor); }
};

struct E8m0Scales {
  using Two = unsigned short;
  COMPUTRON_HOST_DEVICE static unsigned factor(Two two, int row) {
    const unsigned exponent = two >> 8 * row & 0xffu;
    return (exponent << 7 | (exponent == 0 || exponent == 255 ? 0x40u : 0u)) * 0x00010001u;
  }
  COMPUTRON_HOST_DEVICE static unsigned scaled(unsigned pair, unsigned factor) { return multiply_pairs(pair, factor); }
};

struct F16Scales {
  using Two = unsigned;
  COMPUTRON_HOST_DEVICE static float factor(Two two, int row) {
    return widen(Float16{static_cast<std::uint16_t>(two >> 16 * row)});
  }
  COMPUTRON_HOST_DEVICE static unsigned scaled(unsigned pair, float factor) {
    return narrow_pair(float_of(pair << 16) * factor, float_of(pair & 0xffff0000u) * factor);
  }
};

struct F32Scales {
  using Two = unsigned long long;
  COMPUTRON_HOST_DEVICE static float factor(Two two, int row) {
    return float_of(static_cast<unsigned>(two >> 32 * row));
  }
  COMPUTRON_HOST_DEVICE static unsigned scaled(unsigned pair, float factor) { return F16Scales::scaled(pair, factor); }
};

// ---- Calls body(T{}) with the struct that stands for a type.

template <class Body>
void with_codes(DType codes, Body&& body) {
  switch (codes) {
    case DType::kInt8:
      return body(Int8Codes{});
    case DType::kFp8:
      return body(Fp8Codes{});
    case DType::kInt4:
      return body(Int4Codes{});
    case DType::kFp4:
      return body(Fp4Codes{});
    default:
      ensure(false, "codes that the CUDA kernels have no values of");
  }
}

template <class Body>
void with_scales(DType scales, Body&& body) {
  switch (scales) {
    case DType::kBF16:
      return body(Bf16Scales{});
    case DType::kE8M0:
      return body(E8m0Scales{});
    case DType::kF16:
      return body(F16Scales{});
    case DType::kF32:
      return body(F32Scales{});
    default:
      ensure(false, "scales that the CUDA kernels have no factors of");
  }
}

// Whether with_codes() and with_scales() take them.
constexpr bool has_values(DType codes, DType scales) {
  return is_code(codes) && (is_plain(scales) || scales == DType::kE8M0);
}

}  // namespace computron::kernels::cuda

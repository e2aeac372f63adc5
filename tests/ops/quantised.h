// Quantised weights for tests, and what they stand for by the definitions of their formats.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "computron/base/weight_type.h"
#include "kernels/cpu/quantised_panel.h"
#include "tests/ops/ops_fixture.h"

namespace computron::testing {

inline float value_of_fp8(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(code & 0x80 ? -size : size);
}
inline bool is_nan_fp8(unsigned code) { return (code & 0x7f) == 0x7f; }
// Of a number that fp8 has.
inline unsigned code_of_fp8(float value) {
  unsigned code = 0;
  while (value_of_fp8(code) != value || std::signbit(value_of_fp8(code)) != std::signbit(value)) ++code;
  return code;
}

inline float value_of_code(DType codes, unsigned code) {
  if (codes == DType::kFp8) return value_of_fp8(code);
  if (codes == DType::kFp4) {
    const int exponent = static_cast<int>(code >> 1 & 3), mantissa = static_cast<int>(code & 1);
    const double size = exponent == 0 ? mantissa / 2.0 : std::ldexp(2 + mantissa, exponent - 2);
    return static_cast<float>(code & 8 ? -size : size);
  }
  if (codes == DType::kInt8)
    return static_cast<float>(code < 128 ? static_cast<int>(code) : static_cast<int>(code) - 256);
  return static_cast<float>(code < 8 ? static_cast<int>(code) : static_cast<int>(code) - 16);
}

// Of quantised weights that are stored for bfloat16.
inline DType quantised_values(const Ops& ops) {
  return ops.weight_type({DType::kBF16, DType::kInt8, DType::kBF16, 32}).values;
}

// A weight [out, in] as checkpoints hold it: a byte a code, scales [out, groups]; factors [out] where these have some.
struct QuantisedWeight {
  WeightType type;
  int out, in;
  std::vector<std::byte> codes;
  Floats scales;
  std::vector<double> factors = {};

  static std::size_t place(int row, int columns, int column) {
    return static_cast<std::size_t>(row) * columns + column;
  }
  int groups() const { return type.groups(in); }
  float scale(int row, int k) const {
    const float stored = scales[place(row, groups(), type.group >= in ? 0 : k / type.group)];
    return factors.empty() ? stored : static_cast<float>(stored * factors[static_cast<std::size_t>(row)]);
  }
  std::byte& code(int row, int k) { return codes[place(row, in, k)]; }
  float value(int row, int k) const {
    const auto code = std::to_integer<unsigned>(codes[place(row, in, k)]);
    const float product = value_of_code(type.codes, code) * scale(row, k);
    return type.values == DType::kBF16 ? f32_from_bf16(bf16_from_f32(product)) : product;
  }
  Floats values() const {
    Floats values;
    for (int row = 0; row < out; ++row) {
      for (int k = 0; k < in; ++k) values.push_back(value(row, k));
    }
    return values;
  }
  std::vector<std::byte> scale_bytes() const {
    if (is_plain(type.scales)) return bytes_of(scales, type.scales);
    std::vector<std::byte> bytes;
    for (const float scale : scales) {
      bytes.push_back(
          static_cast<std::byte>(type.scales == DType::kE8M0 ? std::ilogb(scale) + 127 : code_of_fp8(scale)));
    }
    return bytes;
  }
};

// `scale` as its type can hold it; e4m3: one of that type's numbers, whatever `scale` is.
inline float rounded_scale(float scale, DType type, unsigned random = 0) {
  if (type == DType::kE4M3) return value_of_fp8(is_nan_fp8(random & 0xff) ? 0 : random & 0xff);
  if (type == DType::kE8M0) return std::ldexp(1.0f, scale == 0 ? -127 : std::max(-127, std::ilogb(scale)));
  return rounded_to({scale}, type)[0];
}

// Any codes but NaNs and those whose products are not finite; scales are taken from `scales` at random, or, of e4m3,
// their factors are, every other as the divisor.
inline QuantisedWeight random_quantised(const WeightType& type, int out, int in, unsigned seed, const Floats& scales) {
  std::mt19937 generator(seed);
  QuantisedWeight weight{type, out, in, std::vector<std::byte>(static_cast<std::size_t>(out) * in), {}};
  for (int i = 0; i < out * weight.groups(); ++i) {
    const float scale = scales[generator() % scales.size()];
    weight.scales.push_back(rounded_scale(scale, type.scales, static_cast<unsigned>(generator())));
  }
  for (int row = 0; type.has_factors() && row < out; ++row) {
    const double factor = std::min(std::abs(scales[generator() % scales.size()]), 0x1p119f);  // times 448 is finite
    weight.factors.push_back(factor > 0 && row % 2 == 1 ? 1 / static_cast<double>(static_cast<float>(1 / factor))
                                                        : factor);
  }
  for (int row = 0; row < out; ++row) {
    for (int k = 0; k < in; ++k) {
      const unsigned code = generator() % (two_in_a_byte(type.codes) ? 16 : 256);
      if (type.codes == DType::kFp8 && is_nan_fp8(code)) continue;
      weight.code(row, k) = static_cast<std::byte>(code);
      if (!std::isfinite(weight.value(row, k))) weight.code(row, k) = std::byte{0};
    }
  }
  return weight;
}

inline Floats ordinary_scales() {
  Floats scales = random_floats(61, 7);
  for (float& scale : scales) scale *= 0.05f;
  return scales;
}

// As files have them; kernels may have a shorter way for such.
inline Floats positive_scales() {
  Floats scales = ordinary_scales();
  for (float& scale : scales) scale = std::abs(scale);
  return scales;
}

// `codes` × `scales` × groups of 16, 32, 48, 64, 128 and of a whole row.
inline std::vector<WeightType> quantised_types(DType values) {
  std::vector<WeightType> types;
  for (const DType codes : kCodeDTypes) {
    for (const DType scales : kScaleDTypes) {
      for (const int group : {16, 32, 48, 64, 128, WeightType::kWholeRow}) {
        types.emplace_back(values, codes, scales, group);
      }
    }
  }
  return types;
}

// Neighbours in a row of x as integers of 16 bits, by gemm_integers.h; all zero and the step no number where one is not
// finite.
struct IntegerChunk {
  float step = 0;
  std::vector<int> integers;

  IntegerChunk(std::span<const float> x, int size) : integers(static_cast<std::size_t>(size)) {
    float largest = 0;
    for (const float element : x) largest = std::max(largest, std::isfinite(element) ? std::abs(element) : INFINITY);
    step = std::numeric_limits<float>::quiet_NaN();
    if (largest == INFINITY) return;
    int exponent = 0;
    std::frexp(largest, &exponent);  // largest < 2^exponent
    step = std::ldexp(1.0f, std::max(exponent - 15, -125));
    for (std::size_t k = 0; k < x.size(); ++k) {
      integers[k] = std::min(static_cast<int>(std::nearbyint(static_cast<double>(x[k]) / step)), 32767);
    }
  }
};

// x [rows, in] · wᵀ as gemm_integers.h defines it.
inline Floats integer_products(const QuantisedWeight& w, const Floats& x, int rows) {
  const int padded = (w.in + 31) / 32 * 32, chunk = std::min(w.type.group, padded) % 32 == 0 ? 32 : 16;
  std::vector<int> codes(static_cast<std::size_t>(w.out) * padded);  // twice each: those of fp4 have halves
  for (int n = 0; n < w.out; ++n) {
    for (int k = 0; k < w.in; ++k) {
      const auto code = std::to_integer<unsigned>(w.codes[QuantisedWeight::place(n, w.in, k)]);
      codes[QuantisedWeight::place(n, padded, k)] = static_cast<int>(2 * value_of_code(w.type.codes, code));
    }
  }
  Floats products(static_cast<std::size_t>(rows) * w.out);
  for (int m = 0; m < rows; ++m) {
    for (int first = 0; first < padded; first += chunk) {
      const int count = std::clamp(w.in - first, 0, chunk);  // a chunk may be padding alone
      const float* elements = x.data() + QuantisedWeight::place(m, w.in, std::min(first, w.in));
      const IntegerChunk of_x({elements, static_cast<std::size_t>(count)}, chunk);
      for (int n = 0; n < w.out; ++n) {
        const int* of_row = &codes[QuantisedWeight::place(n, padded, first)];
        int twice = 0;
        for (int k = 0; k < chunk; ++k) twice += of_x.integers[static_cast<std::size_t>(k)] * of_row[k];
        const float of_chunk = static_cast<float>(0.5 * twice) * of_x.step;
        float& product = products[QuantisedWeight::place(m, w.out, n)];
        product = std::fma(of_chunk, first / w.type.group < w.groups() ? w.scale(n, first) : 0.0f, product);
      }
    }
  }
  return products;
}

// Whether a bench's device multiplies such weights; a GPU has no scales of two levels.
inline bool is_taken(const Bench& bench, const WeightType& type) {
  return bench.traits().host_memory || !type.has_factors();
}

// Whether it multiplies codes of `type` as integers, by rows of x that are rounded to such.
inline bool multiplies_integers(const Bench& bench, const WeightType& type) {
  return bench.traits().host_memory && kernels::multiplies_integers(type);
}

// Whether so many rows of x and codes have an order of sums on CUDA that their values have not (kernels/cuda/gemm.h).
inline constexpr int kMostRowsOfOwnOrder = 64;
inline bool has_own_order(const Bench& bench, const WeightType& type, int rows, int depth) {
  return !bench.traits().host_memory && rows > 16 && rows <= kMostRowsOfOwnOrder && depth % 8 == 0 &&
         type.codes != DType::kFp4 && (type.scales == DType::kBF16 || type.scales == DType::kF16);
}

// `actual`, made with codes of `type`, is what their values made: to the bit, but near it where codes are integers.
inline void expect_like_values(const Bench& bench, const WeightType& type, const Floats& actual,
                               const Floats& of_values, const std::string& what) {
  if (!multiplies_integers(bench, type)) return expect_same(actual, of_values, what);
  expect_close(actual, {of_values.begin(), of_values.end()}, 1e-4, what);
}

inline std::string describe(const WeightType& type) {
  return fmt::format("{} as {} by {}", name_of(type), name_of(type.values), name_of(type.scales));
}

}  // namespace computron::testing

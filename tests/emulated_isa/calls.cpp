// Compiled twice (CMakeLists.txt); COMPUTRON_CALLS is the function that it defines.
#include "tests/emulated_isa/calls.h"

#include <immintrin.h>

namespace computron::emulated_isa {
namespace {

template <class Array>
__m512i load(const Array& x) {
  static_assert(sizeof x == 64);
  return _mm512_loadu_si512(&x);
}
template <class Array, class Vector>
Array stored(Vector x) {
  static_assert(sizeof(Array) == sizeof x);
  Array result;
  __builtin_memcpy(&result, &x, sizeof x);
  return result;
}
__m512 load_floats(const Floats16& x) { return _mm512_castsi512_ps(load(x)); }
__m512bh load_bf16(const Words& x) { return reinterpret_cast<__m512bh>(load(x)); }

Tile multiply_tiles(const Tile& sums, const Tile& x, const Tile& w, int rows, int pairs, int columns) {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } configuration;
  const int tile_rows[] = {rows, rows, pairs}, tile_columns[] = {columns, pairs, columns};
  for (int tile = 0; tile < 3; ++tile) {
    configuration.rows[tile] = static_cast<std::uint8_t>(tile_rows[tile]);
    configuration.row_bytes[tile] = static_cast<std::uint16_t>(4 * tile_columns[tile]);
  }
  Tile result = sums;
  asm volatile("" : : "m"(configuration), "m"(sums), "m"(x), "m"(w));
  _tile_loadconfig(&configuration);
  _tile_loadd(0, &sums, 64);
  _tile_loadd(1, &x, 64);
  _tile_loadd(2, &w, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, &result, 64);
  _tile_release();
  asm volatile("" : "+m"(result));
  return result;
}

}  // namespace

const Calls& COMPUTRON_CALLS() {
  static constexpr Calls kCalls = {
      .dot_products =
          [](const Floats16& sums, const Words& a, const Words& b) {
            return stored<Floats16>(_mm512_dpbf16_ps(load_floats(sums), load_bf16(a), load_bf16(b)));
          },
      .two_to_bf16 =
          [](const Floats16& above, const Floats16& below) {
            return stored<Words>(_mm512_cvtne2ps_pbh(load_floats(above), load_floats(below)));
          },
      .to_bf16 =
          [](const Floats16& x) { return stored<std::array<std::uint16_t, 16>>(_mm512_cvtneps_pbh(load_floats(x))); },
      .permuted = [](const Bytes& index,
                     const Bytes& x) { return stored<Bytes>(_mm512_permutexvar_epi8(load(index), load(x))); },
      .permuted_under_mask =
          [](const Bytes& other, std::uint64_t mask, const Bytes& index, const Bytes& x) {
            return stored<Bytes>(_mm512_mask_permutexvar_epi8(load(other), mask, load(index), load(x)));
          },
      .permuted_of_two =
          [](const Bytes& lower, const Bytes& index, const Bytes& upper) {
            return stored<Bytes>(_mm512_permutex2var_epi8(load(lower), load(index), load(upper)));
          },
      .multiply_tiles = multiply_tiles,
  };
  return kCalls;
}

}  // namespace computron::emulated_isa

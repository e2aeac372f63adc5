// Included before the source of a kernel: its instructions of AVX-512 BF16, VBMI and AMX become calls of
// instructions.h. The source is compiled without these extensions, so that the compiler cannot use them either.
#pragma once

#include <immintrin.h>

#include "tests/emulated_isa/instructions.h"

// They may be macros of the compiler's own.
#undef _mm512_dpbf16_ps
#undef _mm512_cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#undef _mm512_permutexvar_epi8
#undef _mm512_mask_permutexvar_epi8
#undef _mm512_permutex2var_epi8
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the names of others
// Arguments may have commas that only the compiler proper knows for those of a template.
#define _mm512_dpbf16_ps(sums, a, b) \
  ::computron::emulated_isa::dot_products(sums, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))
#define _mm512_cvtne2ps_pbh(...) reinterpret_cast<__m512bh>(::computron::emulated_isa::two_to_bf16(__VA_ARGS__))
#define _mm512_cvtneps_pbh(...) reinterpret_cast<__m256bh>(::computron::emulated_isa::to_bf16(__VA_ARGS__))
#define _mm512_permutexvar_epi8(...) ::computron::emulated_isa::permuted(__VA_ARGS__)
#define _mm512_mask_permutexvar_epi8(other, mask, ...) \
  _mm512_mask_mov_epi8(other, mask, ::computron::emulated_isa::permuted(__VA_ARGS__))
#define _mm512_permutex2var_epi8(...) ::computron::emulated_isa::permuted(__VA_ARGS__)

#define _tile_loadconfig ::computron::emulated_isa::load_tile_configuration
#define _tile_release ::computron::emulated_isa::release_tiles
#define _tile_zero ::computron::emulated_isa::zero_tile
#define _tile_loadd(tile, from, stride) \
  ::computron::emulated_isa::load_tile(tile, from, static_cast<std::size_t>(stride))
#define _tile_stored(tile, to, stride) ::computron::emulated_isa::store_tile(tile, to, static_cast<std::size_t>(stride))
#define _tile_dpbf16ps ::computron::emulated_isa::multiply_tiles
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

// Stands for the kernels that x86 alone has, of AVX-512, AMX and integers, where the program is for another processor:
// nothing chooses them there.
#include "computron/base/error.h"
#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/coded_blocks.h"
#include "kernels/cpu/expand.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/gemm_code_runs.h"
#include "kernels/cpu/gemm_codes.h"
#include "kernels/cpu/gemm_integers.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/low_rank_kernels.h"

namespace computron::kernels {
namespace {

[[noreturn]] void absent() { throw NotCompiled("AVX-512"); }

}  // namespace

ActivationKernels activation_avx512() { absent(); }
LowRankKernels low_rank_avx512() { absent(); }
void attend_avx512(const AttentionTiles&) { absent(); }
void decode_block_avx512(BlockEncoding, const CodedBlock&, std::uint8_t*, Stores) { absent(); }
std::size_t encode_block_avx512(BlockEncoding, const std::uint8_t*, std::uint8_t*) { absent(); }
void expand_f32_avx512(const Expansion&, const std::byte*, int, int, std::byte*) { absent(); }
void expand_bf16_avx512(const Expansion&, const std::byte*, int, int, std::byte*) { absent(); }
void expand_code_runs(const Expansion&, const std::byte*, int, int, std::byte*) { absent(); }
void gemm_amx(const PanelCall&) { absent(); }
void gemm_amx_block(const PanelCall&, const std::byte*, float*) { absent(); }
void gemm_code_runs(const PanelCall&, std::byte*) { absent(); }
void gemm_codes_bf16_avx512(const PanelCall&) { absent(); }
void gemm_codes_f32_avx512(const PanelCall&) { absent(); }
bool gemm_codes_as_amx(const PanelCall&) { absent(); }
void gemm_integers_avx2(const PanelCall&, const IntegerRows&) { absent(); }
void gemm_integers_avx512(const PanelCall&, const IntegerRows&) { absent(); }
void make_integers_avx2(const IntegerRows&, const float*, int, bool) { absent(); }
void make_integers_avx512(const IntegerRows&, const float*, int, bool) { absent(); }
void gemm_f32_avx512(const PanelCall&) { absent(); }
void gemm_f16_avx512(const PanelCall&) { absent(); }
void gemm_bf16_avx512(const PanelCall&) { absent(); }
void gemm_bf16_as_f32_avx512(const PanelCall&) { absent(); }

}  // namespace computron::kernels

#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "computron/base/error.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/gemm_code_runs.h"
#include "kernels/cpu/gemm_codes.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pack.h"

namespace computron::kernels {
namespace {

// So many rows pay for writing slices of 16-bit weights as float32: fewer widen them in registers, each group again.
// Time in registers to time in slices, Xeon of family 6, model 85, bfloat16 and float16: 24 rows 0.60 and 0.71, 48 0.97
// and 0.84, 64 0.83 and 0.99, 128 1.00 and 1.15; with AVX2 24 rows 0.80 and 0.89, 48 0.94 and 1.01.
constexpr int kWidenedRows = 65;

// 16-bit weights that are multiplied as float32.
bool widens(const WeightType& type) { return !type.quantised() && type.values != gemm_input_dtype(type); }

// Intel's processors gain by what Zen 4 loses by (perf/README.md, "Gemm").
PanelBlocking default_blocking() {
  static const bool intel = cpu_model().starts_with("GenuineIntel");
  PanelBlocking blocking;
  if (intel) {
    blocking.ahead_bytes = 2 << 10;
    blocking.blocks_at_once = PanelBlocking::kMostAtOnce;
    blocking.again_bytes = 0;
  }
  return blocking;
}

// What kernels that know the tile alone have left there goes to its place.
void take_from_tile(const PanelCall& call) {
  if (call.result == nullptr || !call.result->of_sums) return;
  activate(Activation::kNone, {.x = call.tile,
                               .x_stride = static_cast<std::size_t>(call.columns),
                               .bias = call.result->bias,
                               .rows = call.rows,
                               .columns = call.columns,
                               .out = call.result->to,
                               .out_stride = call.result->stride,
                               .dtype = DType::kF32});
}

void run_amx(const PanelCall& call) {
  if (call.expansion == nullptr || !gemm_codes_as_amx(call)) gemm_amx(call);
}

void run_values(GemmKernel kernel, DType values, const PanelCall& call) {
  static const bool byte_permutes = has_byte_permutes();
  const auto in_tile = [&](auto* multiply) {
    multiply(call);
    take_from_tile(call);
  };
  if (kernel == GemmKernel::kAmx) return in_tile(run_amx);
  const bool wide = kernel == GemmKernel::kAvx512;
  const bool few_codes = call.expansion != nullptr && call.expansion->type.quantised() && call.rows <= kMostCodesRows;
  if (wide && few_codes && values == DType::kF32) return in_tile(gemm_codes_f32_avx512);
  if (values == DType::kF32) return wide ? gemm_f32_avx512(call) : gemm_f32_avx2(call);
  if (values == DType::kF16) return wide ? gemm_f16_avx512(call) : gemm_f16_avx2(call);
  if (!multiplies_bf16()) return wide ? gemm_bf16_as_f32_avx512(call) : gemm_bf16_as_f32_avx2(call);
  if (byte_permutes && few_codes) return in_tile(gemm_codes_bf16_avx512);
  gemm_bf16_avx512(call);
}

auto* expand_with(GemmKernel kernel, DType values, const QuantisedLayout& layout) {
  ensure(values != DType::kF16, "weights are not expanded to float16");
  if (layout.in_runs) return expand_code_runs;
  if (values == DType::kBF16) return expand_bf16_avx512;
  return kernel == GemmKernel::kAvx512 ? expand_f32_avx512 : expand_f32_avx2;
}

}  // namespace

std::string_view name_of(GemmKernel kernel) {
  switch (kernel) {
    case GemmKernel::kAvx2:
      return "avx2";
    case GemmKernel::kAvx512:
      return "avx512";
    case GemmKernel::kVnni:
      return "vnni";
    case GemmKernel::kAmx:
      break;
  }
  return "amx";
}

bool multiplies_bf16() {
  static const bool dot_products = usable_isa() >= Isa::kAvx512Bf16;
  return dot_products;
}

std::vector<GemmKernel> gemm_kernels(const WeightType& type) {
  const Isa isa = usable_isa();
  if (type.values == DType::kBF16) {
    if (isa == Isa::kAmx) return {GemmKernel::kAmx};  // adds within a tile in an order of its own
    if (isa == Isa::kAvx512Bf16) return {GemmKernel::kAvx512};
    if (type.quantised()) return {};
  }
  if (isa == Isa::kAvx2) return {GemmKernel::kAvx2};
  if (multiplies_integers(type)) return {GemmKernel::kVnni};  // for many rows, too, which no measurement shows
  return {GemmKernel::kAvx2, GemmKernel::kAvx512};
}

GemmChoice default_gemm(const WeightType& type) {
  const auto kernels = gemm_kernels(type);
  ensure(!kernels.empty(), "weights of a type that this processor does not multiply");
  return {kernels.back(), default_blocking()};
}

DType gemm_input_dtype(const WeightType& type) {
  return type.values == DType::kBF16 && multiplies_bf16() ? DType::kBF16 : DType::kF32;
}

void Gemm::take_rows(const WeightType& type, const std::byte* x, int rows, int depth) {
  ensure(rows >= 1 && rows <= kMaxGemmRows, "a GEMM call with no rows or too many");
  type_ = type;
  x_ = x;
  rows_ = rows;
  depth_ = depth;
  if (multiplies_integers(type)) return take_integers();
  if (padded_depth(depth, type.values) != depth) pad_depth();
  if (widens(type) && rows > kMostUnpackedRows && rows < kWidenedRows && usable_isa() >= Isa::kAvx512) {
    const std::size_t floats = static_cast<std::size_t>(rows) * padded_depth(depth, type.values);
    packed_memory_.resize(std::max(packed_memory_.size(), floats));
  }
  packed_rows_ = {reinterpret_cast<std::byte*>(packed_memory_.data())};
}

void Gemm::run(const GemmChoice& choice, const std::byte* weight, int columns, float* tile, const PanelResult* result) {
  const int padded = padded_depth(depth_, type_.values);
  PanelCall call{x_, rows_, padded, weight, columns, tile, scratch_->bytes, choice.blocking};
  call.result = result;
  call.packed_rows = &packed_rows_;
  const DType input = gemm_input_dtype(type_);
  const bool widened = widens(type_) && rows_ >= kWidenedRows;
  if (!type_.quantised() && !widened) return run_values(choice.kernel, type_.values, call);
  const QuantisedLayout layout(depth_, type_);
  const bool integers = multiplies_integers(type_);
  const Expansion expansion{type_, layout, integers ? nullptr : expand_with(choice.kernel, input, layout)};
  call.expansion = &expansion;
  if (integers) {
    choice.kernel == GemmKernel::kVnni ? gemm_integers_avx512(call, integers_) : gemm_integers_avx2(call, integers_);
    take_from_tile(call);
  } else if (layout.in_runs && rows_ <= kMostRunRows) {
    pairs_.resize(code_runs_scratch(rows_, call.depth));
    gemm_code_runs(call, pairs_.data());
    take_from_tile(call);
  } else {
    run_values(choice.kernel, input, call);
  }
}

void Gemm::take_integers() {
  const QuantisedLayout layout(depth_, type_);
  integers_ = IntegerRows(rows_, layout);
  const auto padded_rows = static_cast<std::size_t>(integers_.padded_rows());
  const std::size_t lines = ceil_div(padded_rows * layout.depth * sizeof *integers_.integers, sizeof(Line));
  integer_memory_.resize(std::max(integer_memory_.size(), lines));
  steps_.resize(std::max(steps_.size(), padded_rows * integers_.chunks));
  integers_.integers = reinterpret_cast<std::int16_t*>(integer_memory_.data());
  integers_.steps = steps_.data();
  const auto make = usable_isa() == Isa::kAvx512Vnni ? make_integers_avx512 : make_integers_avx2;
  make(integers_, reinterpret_cast<const float*>(x_), depth_, type_.codes == DType::kFp4);
}

// So that no kernel meets a partial depth, whose last columns would have to be masked: garbage times a padding zero is
// not zero when it is a NaN.
void Gemm::pad_depth() {
  const std::size_t element = size_of(gemm_input_dtype(type_));
  const std::size_t from_bytes = depth_ * element, to_bytes = padded_depth(depth_, type_.values) * element;
  padded_.assign(rows_ * to_bytes, std::byte{0});
  for (int m = 0; m < rows_; ++m) std::memcpy(padded_.data() + m * to_bytes, x_ + m * from_bytes, from_bytes);
  x_ = padded_.data();
}

}  // namespace computron::kernels

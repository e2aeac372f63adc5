#include "kernels/cpu/gemm_onednn.h"

#include <fmt/format.h>
#include <omp.h>

#include <string_view>

#include "computron/base/error.h"

namespace computron::kernels {
namespace {

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// oneDNN 2.6 splits the sum over k differently for different M when it uses AMX, so that rows change bits (measured
// at M = 1..256, N = 64..512, 15 depths of 20..14336: up to 11 different results at one depth, none at AVX-512 level).
// AMX is ours (gemm_amx); oneDNN is kept below it. Must come before its first use in the process.
void hold_below_amx() {
  static const bool held = dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16) == dnnl::status::success;
  ensure(held, "oneDNN was used before its instruction set could be limited");
}

dnnl::engine make_engine() {
  hold_below_amx();
  omp_set_num_threads(1);  // of this thread only
  return {dnnl::engine::kind::cpu, 0};
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, DType dtype, int rows, int depth, int columns) {
  const auto [type, tag] =
      dtype == DType::kF32 ? std::pair(Type::f32, Tag::BA16a64b) : std::pair(Type::bf16, Tag::BA16a64b2a);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {{{{rows, depth}, type, Tag::ab}, {{depth, columns}, type, tag}, {{rows, columns}, Type::f32, Tag::ab}},
          attributes,
          engine};
}

bool is_reference(const dnnl::matmul::primitive_desc& description) {
  return std::string_view(description.impl_info_str()).find("ref") != std::string_view::npos;
}

void* writable(const std::byte* p) { return const_cast<std::byte*>(p); }

}  // namespace

OneDnnGemm::OneDnnGemm() : engine_(make_engine()), stream_(engine_) {}

bool OneDnnGemm::fast(DType dtype) {
  try {
    return !is_reference(describe(make_engine(), dtype, 1, 64, 64));
  } catch (const dnnl::error&) {
    return false;  // type not supported here
  }
}

void OneDnnGemm::run(DType dtype, const std::byte* x, int rows, int depth, const std::byte* weight, int columns,
                     float* tile) {
  try {
    Primitive& p = primitive(dtype, rows, depth, columns);
    p.x.set_data_handle(writable(x));
    p.weight.set_data_handle(writable(weight));
    p.tile.set_data_handle(tile);
    p.matmul.execute(stream_, p.arguments);
  } catch (const dnnl::error& e) {
    throw Error(ExitCode::kInternal, fmt::format("oneDNN matmul {} [{}, {}] x [{}, {}]: {}", name_of(dtype), rows,
                                                 depth, depth, columns, e.what()));
  }
}

OneDnnGemm::Primitive& OneDnnGemm::primitive(DType dtype, int rows, int depth, int columns) {
  const auto key = static_cast<std::uint64_t>(depth) << 32 | static_cast<std::uint64_t>(columns) << 12 |
                   static_cast<std::uint64_t>(rows) << 2 | static_cast<std::uint64_t>(dtype);
  const auto found = primitives_.find(key);
  if (found != primitives_.end()) return found->second;
  return primitives_.emplace(key, make(dtype, rows, depth, columns)).first->second;
}

OneDnnGemm::Primitive OneDnnGemm::make(DType dtype, int rows, int depth, int columns) {
  const auto description = describe(engine_, dtype, rows, depth, columns);
  if (is_reference(description)) throw dnnl::error(dnnl_unimplemented, "only its reference kernel would run");
  reserve_scratchpad(description.scratchpad_desc().get_size());
  const dnnl::memory x(description.src_desc(), engine_, DNNL_MEMORY_NONE);
  const dnnl::memory weight(description.weights_desc(), engine_, DNNL_MEMORY_NONE);
  const dnnl::memory tile(description.dst_desc(), engine_, DNNL_MEMORY_NONE);
  const dnnl::memory scratchpad(description.scratchpad_desc(), engine_, scratchpad_.data());
  return {dnnl::matmul(description),
          x,
          weight,
          tile,
          {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, tile}, {DNNL_ARG_SCRATCHPAD, scratchpad}}};
}

// A larger scratchpad moves; primitives made before must follow it.
void OneDnnGemm::reserve_scratchpad(std::size_t bytes) {
  if (bytes <= scratchpad_.size()) return;
  scratchpad_.resize(bytes);
  for (auto& [key, p] : primitives_) p.arguments.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratchpad_.data());
}

std::string onednn_library() {
  const dnnl::version_t* version = dnnl::version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace computron::kernels

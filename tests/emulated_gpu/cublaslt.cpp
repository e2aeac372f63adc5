// cuBLASLt: D = op(A) op(B) in float32, with the types, epilogues and alignments that it documents. What an algorithm
// was chosen for is kept in it, and a product for which that does not hold is refused. As in the library, the order of
// a sum depends on the algorithm, and so on the shape.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "computron/base/types.h"
#include "tests/emulated_gpu/stream.h"

struct cublasLtContext {};

namespace computron::emulated_gpu {
namespace {

// What lies in the library's opaque structs. Each begins with a number of its own, which says that it was initialized.
struct Layout {
  static constexpr std::uint64_t kKind = 0x11;
  std::uint64_t kind = kKind;
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t stride;  // from a column to the next

  std::size_t element() const { return type == CUDA_R_32F ? 4 : 2; }
  std::size_t bytes() const { return ((columns - 1) * static_cast<std::size_t>(stride) + rows) * element(); }
};

struct Description {
  static constexpr std::uint64_t kKind = 0x22;
  std::uint64_t kind = kKind;
  cublasComputeType_t compute;
  cudaDataType scale;
  std::int32_t turn_a = CUBLAS_OP_N, turn_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const std::byte* bias = nullptr;

  bool has_bias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS; }
  bool has_relu() const { return epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS; }
};

struct Preference {
  static constexpr std::uint64_t kKind = 0x33;
  std::uint64_t kind = kKind;
  std::uint64_t workspace_bytes = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

struct Algorithm {
  static constexpr std::uint64_t kKind = 0x44;
  std::uint64_t kind = kKind;
  std::uint16_t compute, epilogue, type, out_type, lanes;
  std::uint16_t alignment_a, alignment_b, alignment_d, alignment_bias;
  std::uint64_t depth, workspace_bytes;
};

template <class Ours, class Opaque>
Ours load(const Opaque* opaque, const char* what) {
  static_assert(sizeof(Ours) <= sizeof(Opaque) && std::is_trivially_copyable_v<Ours>);
  if (opaque == nullptr) refuse(fmt::format("cublasLt: no {}", what));
  Ours ours;
  std::memcpy(static_cast<void*>(&ours), opaque, sizeof ours);
  if (ours.kind != Ours::kKind) refuse(fmt::format("cublasLt: a {} that was not initialized", what));
  return ours;
}

template <class Ours, class Opaque>
void store(const Ours& ours, Opaque* opaque) {
  static_assert(sizeof(Ours) <= sizeof(Opaque));
  std::memcpy(opaque, &ours, sizeof ours);
}

// One attribute; its size must be that of its type.
template <class T>
cublasStatus_t take(T& attribute, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- what the library can do

struct Problem {
  Description description;
  Layout a, b, c, d;

  std::uint64_t depth() const { return a.rows; }
};

// Of the documentation's table, as far as it is of these types: compute type, A and B, C and D.
bool are_supported(const Problem& p) {
  const cudaDataType in = p.a.type, out = p.d.type;
  if (p.b.type != in || p.c.type != out || p.description.scale != CUDA_R_32F) return false;
  switch (p.description.compute) {
    case CUBLAS_COMPUTE_32F:
      return in == CUDA_R_32F ? out == CUDA_R_32F : out == in || out == CUDA_R_32F;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return in == CUDA_R_32F && out == CUDA_R_32F;
    default:
      return false;
  }
}

bool is_emulated(const Description& d) {
  const bool known = d.epilogue == CUBLASLT_EPILOGUE_DEFAULT || d.has_relu() || d.has_bias();
  return d.turn_a == CUBLAS_OP_T && d.turn_b == CUBLAS_OP_N && known;
}

bool has_shape(const Layout& layout, std::uint64_t rows, std::uint64_t columns) {
  return layout.rows == rows && layout.columns == columns;
}

cublasStatus_t check(const Problem& p) {
  if (!is_emulated(p.description)) refuse("cublasLt: a transposition or an epilogue that is not emulated");
  for (const Layout* m : {&p.a, &p.b, &p.c, &p.d}) {
    if (m->rows == 0 || m->columns == 0 || m->stride < static_cast<std::int64_t>(m->rows)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const bool fit = has_shape(p.b, p.depth(), p.b.columns) && has_shape(p.c, p.a.columns, p.b.columns) &&
                   has_shape(p.d, p.a.columns, p.b.columns) && p.c.stride == p.d.stride;
  if (!fit) return CUBLAS_STATUS_INVALID_VALUE;
  if (p.description.has_bias() && p.description.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  return are_supported(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// The largest power of two that divides all, up to 16 bytes, more than which no algorithm reads at once.
std::uint16_t alignment_of(std::uint64_t a, std::uint64_t b = 16) {
  return static_cast<std::uint16_t>(1 << std::countr_zero(a | b | 16));
}
std::uint16_t alignment_of(std::uint32_t told, const Layout& layout) {
  return alignment_of(told, static_cast<std::uint64_t>(layout.stride) * layout.element());
}

// Of a bias, as its address tells: no less than 16 bytes, for which algorithms of the library have not asked and that
// they needed, and up to the 256 that cudaMalloc aligns to.
std::uint16_t alignment_of_bias(const std::byte* bias) {
  const auto address = reinterpret_cast<std::uintptr_t>(bias);
  return static_cast<std::uint16_t>(std::clamp(1 << std::countr_zero(address | 256), 16, 256));
}

// Needs as much alignment as it was told of and the columns of the matrices have, and the whole workspace.
Algorithm choose(const Problem& p, const Preference& preference) {
  Algorithm algorithm{};
  algorithm.compute = static_cast<std::uint16_t>(p.description.compute);
  algorithm.epilogue = static_cast<std::uint16_t>(p.description.epilogue);
  algorithm.type = static_cast<std::uint16_t>(p.a.type);
  algorithm.out_type = static_cast<std::uint16_t>(p.d.type);
  algorithm.lanes = static_cast<std::uint16_t>(4 << (std::bit_width(p.b.columns) % 3));
  algorithm.alignment_a = alignment_of(preference.alignment_a, p.a);
  algorithm.alignment_b = alignment_of(preference.alignment_b, p.b);
  algorithm.alignment_d = alignment_of(preference.alignment_c | preference.alignment_d, p.d);
  algorithm.alignment_bias = alignment_of_bias(p.description.bias);
  algorithm.depth = p.depth();
  algorithm.workspace_bytes = preference.workspace_bytes;
  return algorithm;
}

bool was_chosen_for(const Algorithm& algorithm, const Problem& p) {
  return algorithm.compute == p.description.compute && algorithm.epilogue == p.description.epilogue &&
         algorithm.type == p.a.type && algorithm.out_type == p.d.type && algorithm.depth == p.depth();
}

// As an algorithm may that was chosen for a class of shapes: "64" pieces of so many rows of the weight, "epilogue"
// whatever has one.
bool is_refused(const Problem& p) {
  const char* refused = std::getenv("COMPUTRON_EMULATED_CUBLASLT_REFUSES");
  if (refused == nullptr) return false;
  if (std::string_view(refused) == "epilogue") return p.description.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  return p.d.rows == std::strtoull(refused, nullptr, 10);
}

// ---- one product

struct Product {
  Problem problem;
  Algorithm algorithm;
  const std::byte *a, *b;
  std::byte *d, *workspace;
};

void check_operand(const char* name, const std::byte* p, std::size_t bytes, std::size_t alignment) {
  if (!is_device_memory(p, bytes))
    refuse(fmt::format("cublasLtMatmul: {} is not in device memory, or leaves it", name));
  if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0) {
    refuse(fmt::format(
        "cublasLtMatmul: {} ({}) does not lie at a multiple of the {} bytes that its algorithm was chosen for", name,
        static_cast<const void*>(p), alignment));
  }
}

void check_operands(const Product& product) {
  const auto& [description, a, b, c, d] = product.problem;
  const Algorithm& algorithm = product.algorithm;
  check_operand("A", product.a, a.bytes(), algorithm.alignment_a);
  check_operand("B", product.b, b.bytes(), algorithm.alignment_b);
  check_operand("D", product.d, d.bytes(), algorithm.alignment_d);
  if (description.has_bias())
    check_operand("the bias", description.bias, d.rows * d.element(), algorithm.alignment_bias);
  if (algorithm.workspace_bytes > 0) {
    check_operand("the workspace", product.workspace, algorithm.workspace_bytes, /*alignment=*/256);
  }
}

// The algorithm may write all of its workspace; that takes too long here, so what it writes is strewn over it.
void spoil(std::byte* workspace, std::size_t bytes) {
  constexpr std::size_t kStep = std::size_t{64} << 10, kWord = 256;
  for (std::size_t at = 0; at < bytes; at += kStep) std::memset(workspace + at, 0xFF, std::min(kWord, bytes - at));
  const std::size_t last = std::min(kWord, bytes);
  std::memset(workspace + bytes - last, 0xFF, last);
}

// Rounded to the 10 bits of mantissa that tensor cores multiply.
float tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::isfinite(value) ? std::bit_cast<float>((bits + 0x1000) & ~0x1fffu) : value;
}

float widened(const std::byte* p, cudaDataType type) {
  if (type == CUDA_R_32F) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return type == CUDA_R_16F ? f32_from_f16(bits) : f32_from_bf16(bits);
}

// What is too large for float16 becomes infinite.
std::uint16_t narrowed(float value, cudaDataType type) {
  if (type == CUDA_R_16BF) return bf16_from_f32(value);
  constexpr float kFirstTooLarge = 65520;
  return f16_from_f32(std::abs(value) >= kFirstTooLarge ? std::copysign(INFINITY, value) : value);
}

void write(std::byte* p, cudaDataType type, float value) {
  if (type == CUDA_R_32F) {
    std::memcpy(p, &value, sizeof value);
  } else {
    const std::uint16_t bits = narrowed(value, type);
    std::memcpy(p, &bits, sizeof bits);
  }
}

// Columns without gaps: [columns, rows].
std::vector<float> widened(const std::byte* matrix, const Layout& layout, bool as_tf32) {
  std::vector<float> values;
  values.reserve(layout.columns * layout.rows);
  for (std::uint64_t column = 0; column < layout.columns; ++column) {
    const std::byte* from = matrix + column * static_cast<std::size_t>(layout.stride) * layout.element();
    for (std::uint64_t row = 0; row < layout.rows; ++row, from += layout.element()) {
      const float value = widened(from, layout.type);
      values.push_back(as_tf32 ? tf32(value) : value);
    }
  }
  return values;
}

template <int kLanes>
float dot(const float* a, const float* b, std::size_t depth) {
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= depth; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < depth; ++i) sums[i % kLanes] += a[i] * b[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

void multiply(const Product& product) {
  const auto& [description, a, b, c, d] = product.problem;
  spoil(product.workspace, product.algorithm.workspace_bytes);
  const bool as_tf32 = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<float> left = widened(product.a, a, as_tf32), right = widened(product.b, b, as_tf32);
  const auto sum = product.algorithm.lanes == 4 ? dot<4> : product.algorithm.lanes == 8 ? dot<8> : dot<16>;
  for (std::uint64_t column = 0; column < d.columns; ++column) {
    std::byte* to = product.d + column * static_cast<std::size_t>(d.stride) * d.element();
    for (std::uint64_t row = 0; row < d.rows; ++row, to += d.element()) {
      float value = sum(left.data() + row * a.rows, right.data() + column * b.rows, a.rows);
      if (description.has_bias()) value += widened(description.bias + row * d.element(), d.type);
      if (description.has_relu() && value < 0) value = 0;  // NaN stays
      write(to, d.type, value);
    }
  }
}

Problem problem_of(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {load<Description>(description, "description of a product"), load<Layout>(a, "layout of A"),
          load<Layout>(b, "layout of B"), load<Layout>(c, "layout of C"), load<Layout>(d, "layout of D")};
}

}  // namespace
}  // namespace computron::emulated_gpu

using namespace computron::emulated_gpu;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "a status that is not emulated";
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t /*size*/, cudaDataType type,
                                                 std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  Layout ours;
  ours.type = type;
  ours.rows = rows;
  ours.columns = columns;
  ours.stride = stride;
  store(ours, layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, std::size_t /*size*/,
                                               cublasComputeType_t compute, cudaDataType scale) {
  Description ours;
  ours.compute = compute;
  ours.scale = scale;
  store(ours, description);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  auto ours = load<Description>(description, "description of a product");
  const auto status = attribute == CUBLASLT_MATMUL_DESC_TRANSA         ? take(ours.turn_a, value, bytes)
                      : attribute == CUBLASLT_MATMUL_DESC_TRANSB       ? take(ours.turn_b, value, bytes)
                      : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE     ? take(ours.epilogue, value, bytes)
                      : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? take(ours.bias, value, bytes)
                                                                       : CUBLAS_STATUS_NOT_SUPPORTED;
  store(ours, description);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, std::size_t /*size*/) {
  store(Preference{}, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  auto ours = load<Preference>(preference, "preference");
  const auto set = [&](auto& of) { return take(of, value, bytes); };
  const auto status = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES     ? set(ours.workspace_bytes)
                      : attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? set(ours.schemes)
                      : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES ? set(ours.alignment_a)
                      : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? set(ours.alignment_b)
                      : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? set(ours.alignment_c)
                      : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? set(ours.alignment_d)
                                                                                : CUBLAS_STATUS_NOT_SUPPORTED;
  store(ours, preference);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem = problem_of(description, a, b, c, d);
  if (const auto status = check(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  const Algorithm algorithm = choose(problem, load<Preference>(preference, "preference"));
  results[0] = {};
  store(algorithm, &results[0].algo);
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* /*c*/,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  if (widened(static_cast<const std::byte*>(alpha), CUDA_R_32F) != 1) refuse("cublasLtMatmul: alpha is not 1");
  if (widened(static_cast<const std::byte*>(beta), CUDA_R_32F) != 0) refuse("cublasLtMatmul: beta is not 0");
  const Product product{problem_of(description, a_layout, b_layout, c_layout, d_layout),
                        load<Algorithm>(algorithm, "algorithm"),
                        static_cast<const std::byte*>(a),
                        static_cast<const std::byte*>(b),
                        static_cast<std::byte*>(d),
                        static_cast<std::byte*>(workspace)};
  if (const auto status = check(product.problem); status != CUBLAS_STATUS_SUCCESS) return status;
  if (!was_chosen_for(product.algorithm, product.problem)) return CUBLAS_STATUS_INVALID_VALUE;
  if (is_refused(product.problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (product.algorithm.workspace_bytes > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  check_operands(product);
  enqueue(stream, [product] { multiply(product); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

#include "src/ops/cuda/library_gemm.h"

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstdint>

#include "computron/base/error.h"
#include "computron/base/log.h"

namespace computron {
namespace {

void check_library(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::kDevice, fmt::format("cublas: {}: {}", call, cublasLtGetStatusString(status)));
}
#define COMPUTRON_CUBLAS_CHECK(call) check_library((call), #call)

cudaDataType type_of(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

cublasLtHandle_t create() {
  cublasLtHandle_t handle = nullptr;
  COMPUTRON_CUBLAS_CHECK(cublasLtCreate(&handle));
  return handle;
}

cublasLtEpilogue_t epilogue_of(const LibraryCall& call) {
  if (call.bias == nullptr) return call.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
  return call.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
}

// The library thinks in columns: a row-major [m, n] is its n × m, so out = weight · xᵀ with the weight turned.
struct Product {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t weight, x, out;

  Product(const LibraryCall& call, int weight_rows, int rows, bool tf32) {
    const bool fast = tf32 && call.dtype == DType::kF32;
    COMPUTRON_CUBLAS_CHECK(
        cublasLtMatmulDescInit(&product, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(call));
    if (call.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
    lay_out(weight, call.dtype, call.depth, weight_rows, call.depth);
    lay_out(x, call.dtype, call.depth, rows, call.depth);
    lay_out(out, call.out_dtype, weight_rows, rows, call.weight_rows);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    COMPUTRON_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof(value)));
  }
  static void lay_out(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int rows, int columns, int stride) {
    COMPUTRON_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&layout, type_of(dtype), static_cast<std::uint64_t>(rows),
                                                    static_cast<std::uint64_t>(columns), stride));
  }
};

struct Preference {
  cublasLtMatmulPreferenceOpaque_t preference;

  Preference(std::size_t workspace_bytes, int out_alignment) {
    COMPUTRON_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    // Parts of the depth may be summed, but not in the order in which they happen to be ready.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{16});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{16});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(out_alignment));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(out_alignment));
  }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    COMPUTRON_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  }
};

// Of the output's rows: 16 bytes, or no more than an element's.
int alignment_of(const LibraryCall& call) {
  const std::size_t element = size_of(call.out_dtype);
  const bool whole = (reinterpret_cast<std::uintptr_t>(call.out) | call.weight_rows * element) % 16 == 0;
  return whole ? 16 : static_cast<int>(element);
}

// Pages cut a weight while they arrive: a piece that another kernel has to multiply may differ in its last bits from
// the same rows at rest. Not seen on an H100.
void warn_of_refusal(const LibraryCall& call) {
  static std::atomic<bool> told = false;
  if (told.exchange(true)) return;
  spdlog::warn("cublas: an algorithm for [{}, {}] refuses {} of its rows: their last bits may depend on how pages lie",
               call.weight_rows, call.depth, call.run_rows);
}

// Who looks for an algorithm takes the bias's alignment from its address (cublasLt.h, BIAS_POINTER), which a piece of
// another weight has not: one that is aligned as all are, and no better.
LibraryCall with_any_bias(LibraryCall call) {
  if (call.bias != nullptr) call.bias = reinterpret_cast<const std::byte*>(LibraryGemm::kBiasAlignment);
  return call;
}

}  // namespace

void LibraryGemm::Destroy::operator()(cublasLtHandle_t handle) const {
  if (cublasLtDestroy(handle) != CUBLAS_STATUS_SUCCESS) spdlog::warn("cublas: cublasLtDestroy failed");
}

LibraryGemm::LibraryGemm(bool tf32, std::byte* workspace, std::size_t workspace_bytes)
    : handle_(create()), tf32_(tf32), workspace_(workspace), workspace_bytes_(workspace_bytes) {}

bool LibraryGemm::run(CudaComputeStream& stream, const LibraryCall& call) {
  const int row_class = static_cast<int>(std::bit_ceil(static_cast<unsigned>(call.rows)));
  const int alignment = alignment_of(call);
  const bool has_bias = call.bias != nullptr;
  const Key key{call.dtype, call.out_dtype, has_bias, call.relu, call.depth, call.weight_rows, row_class, alignment};
  auto found = algorithms_.find(key);
  if (found == algorithms_.end()) found = algorithms_.emplace(key, choose(call, row_class, alignment)).first;
  return found->second && multiply(stream, call, *found->second);
}

// False where the algorithm, chosen for a class of shapes, does not take this one.
bool LibraryGemm::multiply(CudaComputeStream& stream, const LibraryCall& call, const cublasLtMatmulAlgo_t& algorithm) {
  Product p(call, call.run_rows, call.rows, tf32_);
  const float one = 1, zero = 0;
  const auto status =
      cublasLtMatmul(handle_.get(), &p.product, &one, call.weight, &p.weight, call.x, &p.x, &zero, call.out, &p.out,
                     call.out, &p.out, &algorithm, workspace_, workspace_bytes_, stream.handle());
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    warn_of_refusal(call);
    return false;
  }
  check_library(status, "cublasLtMatmul");
  return true;
}

std::optional<cublasLtMatmulAlgo_t> LibraryGemm::choose(const LibraryCall& call, int row_class, int alignment) {
  Product p(with_any_bias(call), call.weight_rows, row_class, tf32_);
  Preference preference(workspace_bytes_, alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(handle_.get(), &p.product, &p.weight, &p.x, &p.out, &p.out,
                                                     &preference.preference, /*requestedAlgoCount=*/1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return std::nullopt;
  check_library(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return result.algo;
}

}  // namespace computron

// cuBLASLt, loaded when it is first called. Linked as usual it would be loaded whenever a program starts: 540 MB whose
// initialization writes 100 MB and takes a tenth of a second, in every process, with a GPU or without. These functions
// stand for those that Computron calls; nothing else knows.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "computron/base/error.h"

namespace {

using computron::Error, computron::ExitCode;

// By its name as the system finds libraries, or where it was when this was built.
void* open_library() {
  for (const char* name : {COMPUTRON_CUBLASLT_NAME, COMPUTRON_CUBLASLT_PATH}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw Error(ExitCode::kDevice, fmt::format("cannot load cuBLASLt, which multiplies matrices on GPUs: {}", dlerror()));
}

// Its functions, by their names. Never unloaded.
class Library {
  void* const library_ = open_library();

  template <class Function>
  Function find(const char* name) const {
    if (void* const found = dlsym(library_, name)) return reinterpret_cast<Function>(found);
    throw Error(ExitCode::kDevice, fmt::format("{} is another library than this was built with: it has no {}",
                                               COMPUTRON_CUBLASLT_NAME, name));
  }

 public:
#define COMPUTRON_FUNCTION(name) decltype(&cublasLt##name) name = find<decltype(&cublasLt##name)>("cublasLt" #name)
  COMPUTRON_FUNCTION(Create);
  COMPUTRON_FUNCTION(Destroy);
  COMPUTRON_FUNCTION(GetStatusString);
  COMPUTRON_FUNCTION(Matmul);
  COMPUTRON_FUNCTION(MatmulAlgoGetHeuristic);
  COMPUTRON_FUNCTION(MatmulDescInit_internal);
  COMPUTRON_FUNCTION(MatmulDescSetAttribute);
  COMPUTRON_FUNCTION(MatmulPreferenceInit_internal);
  COMPUTRON_FUNCTION(MatmulPreferenceSetAttribute);
  COMPUTRON_FUNCTION(MatrixLayoutInit_internal);
#undef COMPUTRON_FUNCTION
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return library().Create(handle); }

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return library().Destroy(handle); }

const char* cublasLtGetStatusString(cublasStatus_t status) { return library().GetStatusString(status); }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return library().Matmul(handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                          workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  return library().MatmulAlgoGetHeuristic(handle, product, a, b, c, d, preference, wanted, results, found);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, std::size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  return library().MatmulDescInit_internal(product, bytes, compute, scale);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return library().MatmulDescSetAttribute(product, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, std::size_t bytes) {
  return library().MatmulPreferenceInit_internal(preference, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  return library().MatmulPreferenceSetAttribute(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t bytes, cudaDataType type,
                                                 std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  return library().MatrixLayoutInit_internal(layout, bytes, type, rows, columns, stride);
}

// cuBLASLt is loaded when it is called, and not before. Needs the library, but no GPU.
#include <cublasLt.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace computron::testing {
namespace {

using ::testing::HasSubstr, ::testing::Not;

// The files that this process has mapped.
std::string mapped_files() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

// What an epilogue is set to comes back from the library's own function, which nobody stands for.
TEST(CublasLt, IsLoadedWhenItIsCalled) {
  ASSERT_THAT(mapped_files(), Not(HasSubstr("libcublasLt")));
  cublasLtMatmulDescOpaque_t product;
  ASSERT_EQ(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(mapped_files(), HasSubstr("libcublasLt"));
  const cublasLtEpilogue_t relu = CUBLASLT_EPILOGUE_RELU;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu),
            CUBLAS_STATUS_SUCCESS);
  const auto get = reinterpret_cast<decltype(&cublasLtMatmulDescGetAttribute)>(
      dlsym(dlopen("libcublasLt.so." COMPUTRON_CUDA_MAJOR, RTLD_NOW | RTLD_NOLOAD), "cublasLtMatmulDescGetAttribute"));
  ASSERT_NE(get, nullptr);
  cublasLtEpilogue_t epilogue{};
  ASSERT_EQ(get(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(epilogue, CUBLASLT_EPILOGUE_RELU);
}

TEST(CublasLt, NamesItsErrors) {
  EXPECT_STREQ(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED), "the requested functionality is not supported");
  cublasLtMatrixLayoutOpaque_t layout;
  EXPECT_EQ(cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, 8, 4, 8), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreferenceOpaque_t preference;
  EXPECT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace computron::testing

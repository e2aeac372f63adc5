// Kernels that a GPU has no shared memory for (ctest sets COMPUTRON_EMULATED_SHARED_MEMORY to 99 KiB).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/base/error.h"
#include "kernels/cuda/attention.h"
#include "src/device/cuda/cuda_stream.h"
#include "tests/device/device_support.h"
#include "tests/support/test_device.h"

namespace computron {
namespace {

using namespace kernels::cuda;

TEST(SharedMemory, ARefusalNamesTheKernelAndItsBytes) {
  if (!test::on_emulated_gpu()) GTEST_SKIP() << "of a GPU that has less than most";
  Progress progress{kTestIdle};
  const auto device = make_cuda_device(0);
  const auto stream = device->make_compute_stream(progress);
  AttentionCall call{};
  call.shape = {.heads = 1, .kv_heads = 1, .head_dim = 128};
  call.cache_dtype = DType::kBF16;
  const auto attend = [&] { attend_prefill(cuda(*stream), call, nullptr, /*count=*/1, kTileKeys); };
  for (int time = 0; time < 2; ++time) {
    try {
      attend();
      FAIL() << "105472 bytes are not there";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kDevice);
      EXPECT_THAT(e.what(), ::testing::HasSubstr("tiled prefill attention: 105472 bytes of shared memory"));
    }
  }
}

}  // namespace
}  // namespace computron

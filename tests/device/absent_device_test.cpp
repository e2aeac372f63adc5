#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/base/error.h"
#include "computron/device/device.h"

namespace computron {
namespace {

TEST(AbsentDevice, SaysThatItIsNotCompiled) {
  EXPECT_FALSE(cuda_device_present());
  try {
    make_cuda_device(0);
    FAIL() << "made a device that is not there";
  } catch (const NotCompiled& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 69);
    EXPECT_THAT(error.what(), testing::HasSubstr("-DCOMPUTRON_CUDA=ON"));
  }
}

}  // namespace
}  // namespace computron

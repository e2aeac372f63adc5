// A part of every test on emulated instructions.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cpu/isa.h"

namespace computron {
namespace {

TEST(EmulatedIsa, IsTheOneAskedFor) {
  const char* const asked_for = std::getenv("COMPUTRON_MAX_ISA");
  ASSERT_NE(asked_for, nullptr);
  EXPECT_EQ(kernels::name_of(kernels::usable_isa()), asked_for);
}

}  // namespace
}  // namespace computron

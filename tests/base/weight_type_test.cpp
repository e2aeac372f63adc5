#include "computron/base/weight_type.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace computron {
namespace {

// As what a checkpoint's scales are divided by: every mantissa, with every one of e4m3.
TEST(WeightType, ProductsWithAReciprocalAreTheQuotients) {
  std::size_t wrong = 0;
  for (int g = 1 << 23; g < 1 << 24; ++g) {
    const float divisor = static_cast<float>(g);
    const double factor = 1 / static_cast<double>(divisor);
    for (int c = 8; c < 16; ++c) {
      const float scale = static_cast<float>(c);
      wrong += static_cast<float>(scale * factor) != scale / divisor ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(WeightType, FactorsThatAreUsable) {
  for (const double factor : {0.0, 5e-324, 1.0, 7e35}) EXPECT_TRUE(usable_factor(factor)) << factor;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double factor : {-1.0, -5e-324, 1e36, infinity, std::nan("")})
    EXPECT_FALSE(usable_factor(factor)) << factor;
}

TEST(WeightType, BytesOfCodesScalesAndFactors) {
  EXPECT_EQ(WeightType(DType::kBF16, DType::kFp4, DType::kE8M0, 32).bytes(10, 64), 10 * (32 + 2));
  EXPECT_EQ(WeightType(DType::kBF16, DType::kFp4, DType::kE4M3, 16).bytes(10, 64), 10 * (32 + 4 + 8));
}

}  // namespace
}  // namespace computron

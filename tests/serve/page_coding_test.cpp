#include "computron/serve/page_coding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace computron {
namespace {

using testing::HasSubstr;

CodingRates rates(double link_gb_per_s, double decoded_gb_per_s) {
  return {.link_bytes_per_s = 1e9 * link_gb_per_s, .decoded_bytes_per_s = 1e9 * decoded_gb_per_s};
}

TEST(PageCoding, PaysWhereEveryRankDecodesWellAboveItsLink) {
  EXPECT_TRUE(coding_pays(std::vector{rates(8, 10)}));
  EXPECT_FALSE(coding_pays(std::vector{rates(8, 9.99)}));
  EXPECT_TRUE(coding_pays(std::vector{rates(1, 20), rates(8, 10), rates(2, 20)}));
  EXPECT_FALSE(coding_pays(std::vector{rates(1, 20), rates(8, 9.99), rates(2, 20)}));
}

TEST(PageCoding, DoesNotPayWhereSomebodyCannotDecode) {
  EXPECT_FALSE(coding_pays(std::vector{rates(0, 0)}));
  EXPECT_FALSE(coding_pays(std::vector{rates(1, 20), rates(0, 0)}));
  EXPECT_FALSE(coding_pays(std::vector{rates(1, 0)}));
}

// Not the one that is slowest by the clock.
TEST(PageCoding, IsDecidedByTheRankWithLeastToSpare) {
  const std::vector ranks = {rates(0.1, 5), rates(8, 12), rates(1, 20)};
  EXPECT_EQ(slowest_decoder(ranks).decoded_bytes_per_s, 12e9);
  EXPECT_THAT(coding_line(ranks), HasSubstr("coded"));
  EXPECT_THAT(coding_line(ranks), HasSubstr("decodes 12.00 GB/s, its link carries 8.00 GB/s"));
  EXPECT_THAT(coding_line(std::vector{rates(20, 12)}), HasSubstr("kept raw"));
  EXPECT_THAT(coding_line(std::vector{rates(0, 0), rates(1, 12)}), HasSubstr("not known"));
}

}  // namespace
}  // namespace computron

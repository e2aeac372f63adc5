#include "computron/serve/memory_plan.h"

#include <gtest/gtest.h>

#include <limits>

namespace computron {
namespace {

TEST(MemoryPlan, GuidesHaveWhatNothingElseNeeds) {
  EXPECT_TRUE(has_to_spare(/*needed_bytes=*/60, /*guide_bytes=*/40, /*limit_bytes=*/100));
  EXPECT_FALSE(has_to_spare(60, 41, 100));
  EXPECT_TRUE(has_to_spare(100, 0, 100)) << "where nothing is ever guided";
  EXPECT_FALSE(has_to_spare(101, 0, 100)) << "the job does not fit at all";
  EXPECT_FALSE(has_to_spare(60, std::numeric_limits<std::size_t>::max(), 100));
}

}  // namespace
}  // namespace computron

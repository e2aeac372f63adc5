#include "computron/storage/seen_ids.h"

#include <gtest/gtest.h>

#include <string>

namespace computron {
namespace {

TEST(SeenIds, KnowsWhatCame) {
  for (const std::size_t reserved : {std::size_t{0}, std::size_t{50}, std::size_t{100'000}, std::size_t{1} << 40}) {
    SeenIds ids;
    EXPECT_FALSE(ids.contains("0"));
    ids.reserve(reserved);
    constexpr int kIds = 20'000;
    for (int id = 0; id < kIds; ++id) {
      EXPECT_FALSE(ids.contains(std::to_string(id)));
      ids.insert(std::to_string(id));
      ids.insert(std::to_string(id / 2));  // again
    }
    ids.reserve(10);
    for (int id = 0; id < kIds; ++id) EXPECT_TRUE(ids.contains(std::to_string(id))) << id;
    for (int id = kIds; id < 2 * kIds; ++id) EXPECT_FALSE(ids.contains(std::to_string(id))) << id;
    EXPECT_FALSE(ids.contains(""));
    ids.insert("");
    EXPECT_TRUE(ids.contains(""));
  }
}

}  // namespace
}  // namespace computron

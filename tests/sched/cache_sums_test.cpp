// Sums over the caches of models against walks over them.
#include "computron/sched/cache_sums.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace computron::test {
namespace {

// Families, urgencies and caches drawn at random, and changed one after the other.
TEST(CacheSums, AreThoseOfWalks) {
  constexpr int kAlone = -1;
  constexpr std::size_t kModels = 9, kStages = 2;
  std::mt19937 random(5);
  const auto from = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int roster = 0; roster < 50; ++roster) {
    std::vector<int> families;
    for (std::size_t m = 0; m < kModels; ++m) families.push_back(from(kAlone, 1));
    CacheSums sums(families);
    std::vector<CacheSums::Part> parts(kModels);
    for (int change = 0; change < 40; ++change) {
      const auto changed = static_cast<ModelId>(from(0, kModels - 1));
      CacheSums::Part part{.goes_on = from(0, 2) > 0, .urgency = from(-1, 2)};
      const bool runs = from(0, 3) > 0;
      for (std::size_t stage = 0; runs && stage < kStages; ++stage) {
        part.in_use.push_back(from(0, 9));
        part.to_come.push_back(from(0, 9));
      }
      parts[changed] = part;
      sums.set(changed, part);

      const auto model = static_cast<ModelId>(from(0, kModels - 1)), aside = static_cast<ModelId>(from(0, kModels - 1));
      const int urgency = from(-2, 3);
      for (std::size_t stage = 0; stage < kStages; ++stage) {
        int in_use = 0, to_come = 0;
        for (ModelId other = 0; other < kModels; ++other) {
          const CacheSums::Part& of = parts[other];
          if (other == model || of.in_use.empty() || of.urgency > urgency) continue;
          in_use += of.goes_on ? of.in_use[stage] : 0;
          const bool sibling = families[model] != kAlone && families[other] == families[model];
          to_come += sibling && other != aside ? of.to_come[stage] : 0;
        }
        EXPECT_EQ(sums.in_use_beside(model, stage, urgency), in_use);
        EXPECT_EQ(sums.to_come_beside(model, aside, stage, urgency), to_come);
      }
    }
  }
}

}  // namespace
}  // namespace computron::test

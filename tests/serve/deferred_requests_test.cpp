#include "computron/serve/deferred_requests.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

namespace computron {
namespace {

using ::testing::ElementsAre;

DeferredLine line(RequestId number, ModelId model, double arrival_s = 0, std::int32_t priority = 0) {
  return {.place = {.line = number}, .arrival_s = arrival_s, .model = model, .priority = priority};
}

std::vector<RequestId> take_all(DeferredRequests& deferred, double now_s) {
  std::vector<RequestId> lines;
  while (const auto next = deferred.take(now_s)) lines.push_back(next->place.line);
  return lines;
}

std::vector<RequestId> take_all_ahead(DeferredRequests& deferred, double now_s, bool one_a_queue = false) {
  std::vector<RequestId> lines;
  while (const auto next = deferred.take_ahead(now_s, one_a_queue)) lines.push_back(next->place.line);
  return lines;
}

TEST(DeferredRequests, RoomIsGivenByPriorityThenArrivalThenLine) {
  DeferredRequests deferred({0, 2, 0, -1}, 1);
  deferred.push(line(1, 3));
  deferred.push(line(2, 0, 5));
  deferred.push(line(3, 2, 4));
  deferred.push(line(4, 0, 4));
  deferred.push(line(5, 1, 6));
  deferred.push(line(6, 1, 6));
  deferred.push(line(7, 0, 3));
  EXPECT_EQ(deferred.size(), 7u);
  EXPECT_THAT(take_all(deferred, 10), ElementsAre(5, 6, 7, 3, 4, 2, 1));
  EXPECT_TRUE(deferred.empty());
}

// A line that has not arrived is nobody's turn while others have; then the first of them is as good as any.
TEST(DeferredRequests, LinesThatHaveArrivedComeBeforeThoseThatHaveNot) {
  DeferredRequests deferred({0, 9}, 1);
  deferred.push(line(1, 1, 20));
  deferred.push(line(2, 1, 15));
  deferred.push(line(3, 0, 1));
  EXPECT_THAT(take_all(deferred, 10), ElementsAre(3, 2, 1));
}

TEST(DeferredRequests, EachModelMayHaveItsFirstLinesAhead) {
  DeferredRequests deferred({0, 0, 5}, 2);
  for (RequestId number = 0; number < 9; ++number) deferred.push(line(number, number < 5 ? 0 : number < 8 ? 1 : 2));
  // One of each model first, so that a short memory is fairly shared.
  EXPECT_THAT(take_all_ahead(deferred, 0, /*one_a_queue=*/true), ElementsAre(8, 0, 5));
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(1, 6));
  deferred.begun(1);
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(7));
  deferred.begun(0);
  deferred.begun(0);
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(2, 3));
  EXPECT_THAT(take_all(deferred, 0), ElementsAre(4));
}

TEST(DeferredRequests, InteractiveLinesAreTakenFirstAndHaveAPlaceAheadOfTheirOwn) {
  DeferredRequests deferred({0, 5}, 1);
  for (RequestId number = 0; number < 3; ++number) deferred.push(line(number, 0));
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(0));
  deferred.push(line(3, 1));
  deferred.push(line(4, 0, 0, 2));
  deferred.push(line(5, 0, 0, -1));
  deferred.push(line(6, 0, 0, -2));
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(6, 3)) << "there is one of the first model ahead";
  deferred.begun(0, 0);
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(1)) << "interactive ones wait, and one of them is ahead";
  deferred.begun(0, -2);
  EXPECT_THAT(take_all_ahead(deferred, 0), ElementsAre(5));
  EXPECT_THAT(take_all(deferred, 0), ElementsAre(2, 4));
}

TEST(DeferredRequests, NoLineGoesAheadBeforeItHasArrived) {
  DeferredRequests deferred({0}, 1);
  deferred.push(line(0, 0, 7));
  deferred.push(line(1, 0, 6));
  EXPECT_THAT(take_all_ahead(deferred, 5.9), ElementsAre());
  EXPECT_THAT(take_all_ahead(deferred, 6), ElementsAre(1));
  deferred.begun(0);
  EXPECT_THAT(take_all_ahead(deferred, 6.9), ElementsAre());
  EXPECT_THAT(take_all_ahead(deferred, 7), ElementsAre(0));
}

// Against a list that is looked through from end to end.
TEST(DeferredRequests, IsWhatItsRulesSay) {
  constexpr ModelId kModels = 4;
  constexpr std::size_t kAhead = 3;
  const std::vector<int> priorities{1, 0, 1, -2};
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    DeferredRequests deferred(priorities, kAhead);
    std::vector<DeferredLine> all;
    std::map<ModelId, std::size_t> ahead;
    double now_s = 0;
    const auto key = [&](const DeferredLine& l) { return std::tuple(-priorities[l.model], l.arrival_s, l.place.line); };
    const auto first = [&](const auto& is, const auto& by) {
      const DeferredLine* found = nullptr;
      for (const DeferredLine& l : all) {
        if (is(l) && (found == nullptr || by(l) < by(*found))) found = &l;
      }
      return found;
    };
    const auto arrived = [&](const DeferredLine& l) { return l.arrival_s <= now_s; };
    const auto expect = [&](const std::optional<DeferredLine>& taken, const DeferredLine* expected) {
      ASSERT_EQ(taken.has_value(), expected != nullptr);
      if (!taken) return;
      ASSERT_EQ(taken->place.line, expected->place.line);
      ASSERT_EQ(taken->model, expected->model);
      std::erase_if(all, [&](const DeferredLine& l) { return l.place.line == taken->place.line; });
    };
    for (RequestId step = 0; step < 400; ++step) {
      switch (random() % 5) {
        case 0:
        case 1:
          all.push_back(line(step, random() % kModels, static_cast<double>(random() % 40)));
          deferred.push(all.back());
          break;
        case 2: {
          const DeferredLine* expected = first(arrived, key);
          const auto by_arrival = [](const DeferredLine& l) { return std::tuple(l.arrival_s, l.place.line); };
          if (expected == nullptr) expected = first([](const auto&) { return true; }, by_arrival);
          expect(deferred.take(now_s), expected);
          break;
        }
        case 3: {
          const bool one = random() % 2 == 0;
          const auto may = [&](const DeferredLine& l) { return arrived(l) && ahead[l.model] < (one ? 1 : kAhead); };
          const auto by = [&](const DeferredLine& l) { return std::tuple(ahead[l.model] > 0, key(l)); };
          const std::optional<DeferredLine> taken = deferred.take_ahead(now_s, one);
          expect(taken, first(may, by));
          if (taken) ++ahead[taken->model];
          break;
        }
        default:
          now_s += static_cast<double>(random() % 3);
          if (const ModelId model = random() % kModels; ahead[model] > 0) {
            --ahead[model];
            deferred.begun(model);
          }
      }
      ASSERT_EQ(deferred.size(), all.size());
    }
  }
}

}  // namespace
}  // namespace computron

#include "computron/sched/agenda.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

ModelView waiting(ModelId model, double oldest_arrival_s) {
  return {.model = model,
          .waiting = 1,
          .oldest_arrival_s = oldest_arrival_s,
          .waiting_since_s = oldest_arrival_s,
          .arrivals_s = oldest_arrival_s,
          .compute_s = 0.1};
}

// Asked for every `gap_s`.
ModelView regular(ModelId model, double last_s, double gap_s) {
  return {.model = model, .last_arrival_s = last_s, .arrival_gap_s = gap_s, .arrival_gap2_s2 = gap_s * gap_s};
}

// Six models of two pages each, and a pool that holds all.
class AgendaTest : public ::testing::Test {
 protected:
  void show(const std::vector<ModelView>& views) {
    for (const ModelView& view : views) {
      agenda_.show(view);
      if (view.has_work()) with_work_.push_back(view.model);
    }
  }
  void decide(double now_s, bool expects_more = true) { agenda_.decide(with_work_, {}, expects_more, now_s); }
  std::vector<ModelId> run_order() const {
    const std::span<const ModelId> models = agenda_.run_order().models();
    return {models.begin(), models.end()};
  }
  void fetch(ModelId model, int pages) {
    EvictableModels nobody({});
    for (int page = 0; page < pages; ++page) pool_.prefetch(model, nobody, /*bytes=*/1, /*reserve=*/0);
  }
  std::optional<ModelId> first_to_lose(Evictable& evictable) {
    const std::optional<FrameId> frame = evictable.first(pool_, FrameKind::kWhole);
    return frame ? std::optional(pool_.state().owner(*frame).model) : std::nullopt;
  }
  std::optional<ModelId> first_to_lose(Agenda::EvictableFor evictable) {
    return first_to_lose(static_cast<Evictable&>(evictable));
  }
  // Candidates that lack pages, each with whom it would take pages from first.
  std::vector<std::pair<ModelId, std::optional<ModelId>>> candidates() {
    std::vector<std::pair<ModelId, std::optional<ModelId>>> found;
    agenda_.visit_candidates(pool_, [&](ModelId model, Evictable& evictable) {
      found.emplace_back(model, first_to_lose(evictable));
      return true;
    });
    return found;
  }

  FakeModelList list_{std::vector<FakeModel>(6, small_model(2))};
  StagePool pool_{list_.layouts(0), 12};
  Agenda agenda_{6, 1, make_fifo_policy()};
  std::vector<ModelId> with_work_;
};

TEST_F(AgendaTest, ModelsWithWorkAreInTheRunOrderAndKnowTheirPlaces) {
  show({waiting(1, 3), waiting(4, 1), waiting(2, 2)});
  decide(10);
  EXPECT_THAT(run_order(), ElementsAre(4, 2, 1));
  EXPECT_EQ(agenda_.run_order().place(2), 1u);
  EXPECT_EQ(agenda_.run_order().place(0), RunOrder::kNotInIt);
  EXPECT_TRUE(agenda_.is_first(4));
  with_work_.clear();
  decide(11);
  EXPECT_THAT(run_order(), IsEmpty());
  EXPECT_EQ(agenda_.run_order().place(4), RunOrder::kNotInIt);
}

// Whatever runs sooner, and the model itself, keeps its pages.
TEST_F(AgendaTest, PagesAreEvictedOfModelsThatRunLaterOrNotAtAll) {
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    agenda_ = Agenda(6, 1, make_policy(policy));
    with_work_.clear();
    ModelView pinned;
    pinned.model = 5;
    pinned.pinned = true;
    show({waiting(0, 1), waiting(1, 2), waiting(2, 3), pinned});
    pool_ = StagePool(list_.layouts(0), 12, 0, {false, false, false, false, false, true});
    for (const ModelId m : {0, 1, 2, 3, 5}) fetch(m, 2);
    decide(10);
    const std::vector<ModelId> order = run_order();
    ASSERT_EQ(order.size(), 3u);
    EXPECT_EQ(agenda_.evictable_for(order[0], 0).pages(pool_, FrameKind::kWhole), 6) << policy;
    EXPECT_EQ(agenda_.evictable_for(order[1], 0).pages(pool_, FrameKind::kWhole), 4) << policy;
    EXPECT_EQ(agenda_.evictable_for(order[2], 0).pages(pool_, FrameKind::kWhole), 2) << policy;
    EXPECT_EQ(first_to_lose(agenda_.evictable_for(order[2], 0)), 3u) << policy << ": nobody asks for it";
    EXPECT_EQ(agenda_.evictable_for(order[2], 0, /*and_itself=*/true).pages(pool_, FrameKind::kWhole), 4) << policy;
    EvictableModels idle({3});
    pool_.grow_cache(4, 4, idle);  // two free frames, and both of model 3
    EXPECT_EQ(first_to_lose(agenda_.evictable_for(order[2], 0)), std::nullopt) << policy;
    EXPECT_EQ(first_to_lose(agenda_.evictable_for(order[2], 0, /*and_itself=*/true)), order[2]) << policy;
    EXPECT_EQ(first_to_lose(agenda_.evictable_for(order[1], 0)), order[2]) << policy;
  }
}

TEST_F(AgendaTest, CandidatesAreModelsWithoutWorkThatAreExpected) {
  agenda_ = Agenda(6, 1, make_balanced_policy({}));
  ModelView bursts = regular(2, 9, 1.5), pinned = regular(3, 9.9, 100);
  bursts.arrival_gap2_s2 = 9;
  pinned.pinned = true;
  show({regular(0, 9, 2), regular(1, 8, 10), bursts, pinned, waiting(4, 9), regular(5, 9, 1.2)});
  for (ModelId m = 0; m < 5; ++m) fetch(m, 1);
  fetch(5, 2);
  decide(10);
  // In 1, 8 and 99 s; model 5, in 0.24 s, lacks no page. What is silent for twice as long may lose pages: not model 2,
  // at 1.75 s, and nothing pinned.
  EXPECT_THAT(candidates(), ElementsAre(Pair(0, 1), Pair(1, std::nullopt), Pair(3, std::nullopt)));
  EXPECT_EQ(agenda_.first_candidate(), 5u);
  decide(10, /*expects_more=*/false);
  EXPECT_THAT(candidates(), IsEmpty());
  EXPECT_EQ(agenda_.first_candidate(), std::nullopt);
  decide(50);
  EXPECT_THAT(candidates(), ElementsAre(Pair(3, std::nullopt))) << "who is long overdue is no longer expected";
  agenda_.show(regular(0, 49, 2));
  decide(50);
  EXPECT_EQ(candidates().front().first, 0u) << "until a request has come";
}

}  // namespace
}  // namespace computron::test

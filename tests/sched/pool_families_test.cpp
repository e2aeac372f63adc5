// A pool whose models have pages in common, against sets: random rosters, orders and plans.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "computron/base/digest.h"
#include "computron/sched/stage_pool.h"
#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

// What a page holds: pages with equal contents are one.
using Content = std::uint64_t;

constexpr FrameKind kKinds[] = {FrameKind::kWhole, FrameKind::kSlot};

class RandomRoster {
 public:
  explicit RandomRoster(std::uint64_t seed) : random_(seed) {
    const int models = from(2, 8);
    for (int m = 0; m < models; ++m) {
      FakeModel model = small_model(from(1, 12));
      const int family = from(0, 2);
      std::vector<Content>& contents = model.contents.emplace_back();
      for (int page = 0; page < model.pages[0]; ++page) {
        const int kind = from(0, 2);
        // The size of a page follows from its number modulo 5, so a page five further may be the same one.
        const int number = from(0, 9) == 0 ? page + 5 : page;
        contents.push_back(kind == 0   ? hash_tuple(number, family)
                           : kind == 1 ? hash_tuple(number, family, from(0, 1))
                                       : hash_tuple(number, m, 7, 7));
      }
      // The last pages may be an adapter's.
      model.family = 1;
      model.base = std::max(model.pages[0] - from(0, 4), 0);
      model.in_slots = from(0, 1) == 0;
      model.pinned = from(0, 9) == 0;
      models_.push_back(std::move(model));
    }
  }

  int from(int least, int most) { return least + static_cast<int>(random_() % (most - least + 1)); }
  std::mt19937_64& random() { return random_; }
  const std::vector<FakeModel>& models() const { return models_; }
  std::vector<bool> pinned() const {
    std::vector<bool> pinned;
    for (const FakeModel& model : models_) pinned.push_back(model.pinned);
    return pinned;
  }

 private:
  std::mt19937_64 random_;
  std::vector<FakeModel> models_;
};

// The same pool as sets. Of a model's equal pages the first one is the one that others have; the rest are alone.
class Sets {
 public:
  explicit Sets(const std::vector<FakeModel>& models, const FakeModelList& list) : models_(models) {
    for (ModelId m = 0; m < models.size(); ++m) {
      std::set<Content> seen;
      for (std::size_t page = 0; page < models[m].contents[0].size(); ++page) {
        const Content content = models[m].contents[0][page];
        const std::size_t bytes = list.shape(m).layouts[0]->used_bytes[page];
        const bool again = !seen.insert(hash_tuple(content, bytes)).second;
        const FrameKind kind = list.shape(m).layouts[0]->kind_of(static_cast<PageId>(page));
        const Content name = again ? hash_tuple(content, bytes, m, page) : hash_tuple(content, bytes);
        pages_[m].push_back(name);
        bytes_[name] = bytes;
        kinds_[name] = kind;
        owners_[name].insert(m);
      }
    }
  }

  const std::vector<Content>& pages(ModelId model) const { return pages_.at(model); }
  bool resident(Content page) const { return resident_.contains(page); }
  FrameKind kind(Content page) const { return kinds_.at(page); }
  int resident_count(FrameKind kind) const {
    return static_cast<int>(std::ranges::count_if(resident_, [&](Content page) { return kinds_.at(page) == kind; }));
  }
  void fetch(Content page) { ASSERT_TRUE(resident_.insert(page).second) << "fetched while it is there"; }
  std::size_t bytes(Content page) const { return bytes_.at(page); }

  std::size_t missing_bytes(const std::vector<ModelId>& models) const {
    std::set<Content> missing;
    for (const ModelId m : models) {
      for (const Content page : pages(m)) {
        if (!resident(page)) missing.insert(page);
      }
    }
    std::size_t bytes = 0;
    for (const Content page : missing) bytes += bytes_.at(page);
    return bytes;
  }
  int missing_pages(ModelId model) const {
    return static_cast<int>(std::ranges::count_if(pages(model), [&](Content page) { return !resident(page); }));
  }
  // Of all models that are not pinned, or of those of `models`.
  int unpinned(FrameKind kind) const {
    return static_cast<int>(
        std::ranges::count_if(resident_, [&](Content page) { return kinds_.at(page) == kind && !is_pinned(page); }));
  }
  int unpinned(const std::vector<ModelId>& models, FrameKind kind) const {
    return static_cast<int>(std::ranges::count_if(resident_, [&](Content page) {
      return kinds_.at(page) == kind && !is_pinned(page) &&
             std::ranges::any_of(owners_.at(page), [&](ModelId m) { return contains(models, m); });
    }));
  }
  // Pages that nobody but `models` has.
  int evictable(const std::vector<ModelId>& models, FrameKind kind) const {
    return static_cast<int>(std::ranges::count_if(
        resident_, [&](Content page) { return kinds_.at(page) == kind && all_of(page, models, models.size()); }));
  }
  // Evicts the page of a kind that goes first: the last page of the first model all of whose other owners come no
  // later.
  bool evict(const std::vector<ModelId>& models, FrameKind kind) {
    for (std::size_t i = 0; i < models.size(); ++i) {
      const std::vector<Content>& pages = this->pages(models[i]);
      for (std::size_t page = pages.size(); page-- > 0;) {
        if (kinds_.at(pages[page]) != kind || !resident(pages[page]) || !all_of(pages[page], models, i + 1)) continue;
        resident_.erase(pages[page]);
        return true;
      }
    }
    return false;
  }

 private:
  static bool contains(const std::vector<ModelId>& models, ModelId m) {
    return std::ranges::find(models, m) != models.end();
  }
  bool is_pinned(Content page) const {
    return std::ranges::any_of(owners_.at(page), [&](ModelId m) { return models_[m].pinned; });
  }
  bool all_of(Content page, const std::vector<ModelId>& models, std::size_t first) const {
    return std::ranges::all_of(owners_.at(page), [&](ModelId m) {
      return std::find(models.begin(), models.begin() + static_cast<std::ptrdiff_t>(first), m) !=
             models.begin() + static_cast<std::ptrdiff_t>(first);
    });
  }

  const std::vector<FakeModel>& models_;
  std::map<ModelId, std::vector<Content>> pages_;
  std::map<Content, std::set<ModelId>> owners_;
  std::map<Content, std::size_t> bytes_;
  std::map<Content, FrameKind> kinds_;
  std::set<Content> resident_;
};

class PoolFamilies {
 public:
  PoolFamilies(std::uint64_t seed)
      : roster_(seed),
        list_(roster_.models()),
        sets_(roster_.models(), list_),
        frames_{roster_.from(10, 28), roster_.from(0, 8)},
        pool_(list_.layouts(0), frames_[0], 0, roster_.pinned(), frames_[1]),
        rank_(list_.layouts(0), frames_[0], 0, frames_[1]) {
    for (ModelId model = 0; model < roster_.models().size(); ++model) order_.push_back(model);
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      const auto model = static_cast<ModelId>(roster_.from(0, static_cast<int>(roster_.models().size()) - 1));
      fill(model, evictable_for(model), roster_.from(0, 2) == 0);
      if (roster_.from(0, 4) > 0) {
        std::ranges::shuffle(order_, roster_.random());
        prefix_.reset();
      }
      check();
    }
  }
  std::size_t shared_fetches() const { return shared_fetches_; }
  std::size_t evictions() const { return evictions_; }

 private:
  // Some of the others that are not pinned, in some order.
  std::vector<ModelId> evictable_for(ModelId model) {
    std::vector<ModelId> others;
    for (ModelId m = 0; m < roster_.models().size(); ++m) {
      if (m != model && !roster_.models()[m].pinned && roster_.from(0, 3) > 0) others.push_back(m);
    }
    std::ranges::shuffle(others, roster_.random());
    return others;
  }

  // A prefetch or a pass, where the model fits; the sets do the same, page by page.
  void fill(ModelId model, const std::vector<ModelId>& others, bool prefetches) {
    EvictableModels evictable(others);
    ASSERT_EQ(pool_.counts().missing_bytes(std::span<const ModelId>(others)), sets_.missing_bytes(others));
    for (const FrameKind kind : kKinds) {
      ASSERT_EQ(evictable.pages(pool_, kind), sets_.evictable(others, kind));
      ASSERT_EQ(pool_.counts().unpinned_pages(others, kind), sets_.unpinned(others, kind));
      // Out-of-core: the scheduler's tests run that.
      if (!prefetches && pool_.available(evictable, kind) < pool_.missing_pages(model, kind)) return;
    }
    std::set<Content> fetched;
    for (const Content page : sets_.pages(model)) {
      if (sets_.resident(page)) continue;
      const FrameKind kind = sets_.kind(page);
      int free = frames_[static_cast<std::size_t>(kind)] - sets_.resident_count(kind);
      if (free == 0 && !sets_.evict(others, kind)) break;
      evictions_ += free == 0 ? 1 : 0;
      sets_.fetch(page);
      fetched.insert(page);
    }
    if (prefetches) {
      pool_.prefetch(model, evictable, std::size_t{1} << 40, /*reserve=*/0);
    } else {
      pool_.plan_pass(++step_, model, evictable, /*again=*/false);
    }
    const Step step{.id = ++step_, .model = model, .closed = {}, .chunks = {}, .stages = {pool_.take_plan()}};
    std::set<Content> planned;
    for (const Fetch& fetch : step.stages[0].fetches) planned.insert(sets_.pages(fetch.model)[fetch.page]);
    ASSERT_EQ(planned, fetched);
    shared_fetches_ += static_cast<std::size_t>(std::ranges::count_if(step.stages[0].fetches, [&](const Fetch& fetch) {
      return pool_.state().shared().set_of({fetch.model, fetch.page}) != SharedPages::kAlone;
    }));
    rank_.apply(step, 0);
    ASSERT_EQ(rank_.digest(), pool_.state().digest());
  }

  void check() {
    std::array<std::set<FrameId>, 2> taken;  // [FrameKind]
    for (ModelId m = 0; m < roster_.models().size(); ++m) {
      ASSERT_EQ(pool_.missing_pages(m), sets_.missing_pages(m));
      ASSERT_EQ(pool_.counts().missing_bytes(m), sets_.missing_bytes({m}));
      for (PageId page = 0; page < static_cast<PageId>(sets_.pages(m).size()); ++page) {
        const FrameId frame = pool_.state().frame_of(m, page);
        ASSERT_EQ(frame != kNoFrame, sets_.resident(sets_.pages(m)[page]));
        if (frame == kNoFrame) continue;
        ASSERT_EQ(frame < static_cast<FrameId>(frames_[0]), sets_.kind(sets_.pages(m)[page]) == FrameKind::kWhole);
        taken[static_cast<std::size_t>(pool_.state().kind_of(frame))].insert(frame);
      }
    }
    for (std::size_t n = 0; n <= order_.size(); ++n) {
      const std::span<const ModelId> first = std::span(order_).first(n);
      for (const FrameKind kind : kKinds) {
        ASSERT_EQ(prefix_.pages(pool_.counts(), first, kind), sets_.unpinned({first.begin(), first.end()}, kind));
      }
    }
    for (const FrameKind kind : kKinds) {
      const auto number = static_cast<std::size_t>(kind);
      ASSERT_EQ(static_cast<int>(taken[number].size()), sets_.resident_count(kind));
      ASSERT_EQ(pool_.free_frames(kind), frames_[number] - static_cast<int>(taken[number].size()));
      ASSERT_EQ(pool_.counts().unpinned_pages(kind), sets_.unpinned(kind));
    }
  }

  RandomRoster roster_;
  FakeModelList list_;
  Sets sets_;
  std::array<int, 2> frames_;  // [FrameKind]
  StagePool pool_;
  StageState rank_;
  StepId step_ = 0;
  std::vector<ModelId> order_;  // the models, in an order that changes at times
  UnpinnedPrefix prefix_;
  std::size_t shared_fetches_ = 0, evictions_ = 0;
};

TEST(PoolFamilies, DoWhatSetsOfPagesDo) {
  std::size_t shared_fetches = 0, evictions = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    PoolFamilies pool(seed);
    pool.run(/*steps=*/30);
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
    shared_fetches += pool.shared_fetches();
    evictions += pool.evictions();
  }
  EXPECT_GT(shared_fetches, 10000u);
  EXPECT_GT(evictions, 50000u);
}

}  // namespace
}  // namespace computron::test

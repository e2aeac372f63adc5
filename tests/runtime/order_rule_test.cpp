// Random steps against the order rule of frames and events (swapper.h), thousands of seeds.
//
// A random scheduler writes steps as rank 0 might: pages come and go, models share a pool too small for them, frames
// are refilled within a pass, other models' pages are prefetched, cache frames come and go, caches move to host memory
// and back. The real Residency carries them out on streams that an adversary interleaves. Checked: no frame is read
// before its fetch or overwritten while it may still be read, a cache holds what its last pass wrote wherever it has
// been meanwhile, nothing deadlocks, and the state equals rank 0's after every step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "computron/runtime/residency.h"
#include "tests/runtime/adversary_device.h"

namespace computron {
namespace {

using testing::Adversary;
using testing::AdversaryDevice;
using testing::AdversaryStream;

constexpr std::size_t kPageBytes = 64;
constexpr int kHostSlots = 4;

// What a page holds: recognisable by model and page.
std::uint64_t stamp_of(ModelId model, PageId page) { return (std::uint64_t{model} + 1) << 32 | (page + 1); }

// A made-up layout: `pages` pages visited in order, the first `revisited` of them again at the end (a tied head).
ShardLayout make_layout(int pages, int revisited) {
  ShardLayout layout;
  layout.page_bytes = kPageBytes;
  for (int p = 0; p < pages; ++p) {
    layout.used_bytes.push_back(8 + 8 * (p % 7));
    layout.uses.push_back(p);
  }
  for (int p = 0; p < revisited && p < pages - 1; ++p) layout.uses.push_back(p);
  return layout;
}

// How the passes of a model group their uses: an operation binds all its pages before any of its uses is over.
struct Pass {
  std::vector<std::pair<PageUse, PageUse>> groups;  // [first, last]
};

struct PlannedRun {
  Step step;
  Pass pass;
  StateDigest expected;

  int reloads() const {
    const auto& caches = step.stages[0].caches;
    return static_cast<int>(std::count_if(
        caches.begin(), caches.end(), [](const CacheChange& change) { return change.kind == CacheChange::kReload; }));
  }
};

// Writes random steps that keep the order rule.
class RandomScheduler {
 public:
  RandomScheduler(const std::vector<const ShardLayout*>& layouts, int frames, std::uint64_t seed)
      : layouts_(layouts),
        state_(layouts, frames, kHostSlots),
        last_use_(frames),
        cache_used_(layouts.size()),
        random_(seed) {}

  PlannedRun next() {
    PlannedRun run;
    run.step.id = ++last_step_;
    run.step.model = static_cast<ModelId>(below(layouts_.size()));
    run.step.chunks.resize(1);  // a pass; sequences play no part here
    run.step.stages.resize(1);
    StagePlan& plan = run.step.stages[0];
    for (ModelId m = 0; m < layouts_.size(); ++m) offload(m, plan);
    if (!state_.offloaded(run.step.model).empty()) bring_back(run.step.model, plan);
    change_cache(run.step.model, plan);
    run.pass = group_uses(*layouts_[run.step.model]);
    for (const auto& [first, last] : run.pass.groups) bring_in(run.step, first, last);
    prefetch(run.step);
    cache_used_[run.step.model] = run.step.id;
    run.expected = state_.digest();
    return run;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }

  Pass group_uses(const ShardLayout& layout) {
    Pass pass;
    for (PageUse use = 0; use < layout.uses.size();) {
      const PageUse last = std::min<PageUse>(use + static_cast<PageUse>(below(3)), layout.uses.size() - 1);
      pass.groups.emplace_back(use, last);
      use = last + 1;
    }
    return pass;
  }

  void change_cache(ModelId model, StagePlan& plan) {
    if (below(3) != 0) return;
    CacheChange change{.model = model, .taken = 0, .added = {}};
    const std::size_t has = state_.cache(model).size();
    if (has > 0 && below(2) == 0) {
      change.taken = static_cast<std::uint32_t>(1 + below(has));
      for (std::size_t i = has - change.taken; i < has; ++i) {
        last_use_[state_.cache(model)[i]] = {cache_used_[model], ReleasePoint::kEnd};
      }
    } else if (cache_frames() < 2) {
      change.added.push_back(victim({}));
      last_use_[change.added[0]] = {};
    } else {
      return;
    }
    apply(change, plan);
  }

  void apply(const CacheChange& change, StagePlan& plan) {
    state_.change_cache(change);
    plan.caches.push_back(change);
  }

  void offload(ModelId model, StagePlan& plan) {
    const std::vector<FrameId> list = state_.cache(model);
    CacheChange change{.model = model, .taken = static_cast<std::uint32_t>(list.size()), .kind = CacheChange::kOffload};
    for (HostSlot slot = kHostSlots; slot-- > 0 && change.slots.size() < list.size();) {
      if (!state_.slot_taken(slot)) change.slots.push_back(slot);
    }
    if (list.empty() || change.slots.size() < list.size() || below(3) != 0) return;
    change.after = {cache_used_[model], ReleasePoint::kEnd};
    for (const FrameId frame : list) last_use_[frame] = {};  // whatever comes into it comes behind the offload
    apply(change, plan);
  }

  void bring_back(ModelId model, StagePlan& plan) {
    if (below(5) == 0) return apply({.model = model, .kind = CacheChange::kDropOffloaded}, plan);
    CacheChange change{.model = model, .kind = CacheChange::kReload, .slots = state_.offloaded(model)};
    while (change.added.size() < change.slots.size()) {
      const FrameId frame = victim(change.added);
      change.added.push_back(frame);
      change.after = std::max(change.after, last_use_[frame].value_or(ReleasePoint{}));
      last_use_[frame] = {};
    }
    apply(change, plan);
  }

  std::size_t cache_frames() const {
    std::size_t count = 0;
    for (ModelId m = 0; m < layouts_.size(); ++m) count += state_.cache(m).size() + state_.offloaded(m).size();
    return count;
  }

  // Makes the pages of one group resident and marks their frames used by it.
  void bring_in(Step& step, PageUse first, PageUse last) {
    const ShardLayout& layout = *layouts_[step.model];
    std::vector<FrameId> busy;
    for (PageUse use = first; use <= last; ++use) {
      if (const FrameId frame = state_.frame_of(step.model, layout.uses[use]); frame != kNoFrame) busy.push_back(frame);
    }
    for (PageUse use = first; use <= last; ++use) {
      if (state_.frame_of(step.model, layout.uses[use]) != kNoFrame) continue;
      busy.push_back(fetch(step, step.model, layout.uses[use], busy));
    }
    for (const FrameId frame : busy) last_use_[frame] = {step.id, last};
  }

  void prefetch(Step& step) {
    for (std::size_t i = below(4); i > 0; --i) {
      const auto model = static_cast<ModelId>(below(layouts_.size()));
      const auto page = static_cast<PageId>(below(layouts_[model]->pages()));
      if (state_.frame_of(model, page) == kNoFrame) fetch(step, model, page, {});
    }
  }

  FrameId fetch(Step& step, ModelId model, PageId page, const std::vector<FrameId>& busy) {
    const FrameId frame = victim(busy);
    const Fetch fetch{.model = model, .page = page, .frame = frame, .after = last_use_[frame].value_or(ReleasePoint{})};
    last_use_[frame].reset();
    state_.place(fetch);
    step.stages[0].fetches.push_back(fetch);
    return frame;
  }

  FrameId victim(const std::vector<FrameId>& busy) {
    for (;;) {
      const auto frame = static_cast<FrameId>(below(last_use_.size()));
      const bool taken = std::find(busy.begin(), busy.end(), frame) != busy.end();
      if (!taken && state_.owner(frame).kind != StageState::Owner::kCache) return frame;
    }
  }

  std::vector<const ShardLayout*> layouts_;
  StageState state_;
  std::vector<std::optional<ReleasePoint>> last_use_;  // [frame] of what it holds now
  std::vector<StepId> cache_used_;                     // [model] last step whose pass used its cache
  StepId last_step_ = 0;
  std::mt19937_64 random_;
};

// One rank under the adversary.
class Rank {
 public:
  Rank(const std::vector<ShardLayout>& layouts, int frames, std::uint64_t seed)
      : random_(seed),
        adversary_(seed + 1),
        compute_(adversary_, 0),
        copy_(adversary_, 1),
        host_(device_),
        written_(layouts.size()) {
    for (const ShardLayout& layout : layouts) {
      layout_list_.push_back(&layout);
      const auto model = static_cast<ModelId>(layout_list_.size() - 1);
      host_.add(layout, "pages", [&](std::byte* pages, const std::vector<std::size_t>& offsets) {
        for (PageId p = 0; p < offsets.size(); ++p) {
          const std::uint64_t stamp = stamp_of(model, p);
          std::memcpy(pages + offsets[p], &stamp, sizeof stamp);
        }
      });
    }
    residency_.emplace(0, layout_list_, host_, device_,
                       Residency::Sizes{.frames = frames, .frame_bytes = kPageBytes, .host_slots = kHostSlots}, copy_,
                       compute_);
  }

  // Carries the steps out, some accepted ahead of their turn. Returns what went wrong, if anything.
  std::string run(std::vector<PlannedRun>& runs) {
    try {
      for (executing_ = 0; executing_ < runs.size(); ++executing_) {
        accept_some(runs);
        if (accepted_ == executing_) residency_->accept(runs[accepted_++].step);
        execute(runs);
        if (residency_->state().digest() != runs[executing_].expected) return "the state differs from rank 0's";
        if (!fault_.empty()) return fault_;
      }
      return adversary_.run_all() ? fault_ : "deadlock";
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  // Steps arrive at any time, at most two ahead of the one executing.
  void accept_some(std::vector<PlannedRun>& runs) {
    if (random_() % 3 == 0 && accepted_ < runs.size() && accepted_ < executing_ + 3) {
      residency_->accept(runs[accepted_++].step);
    }
    adversary_.run_some();
  }

  void execute(std::vector<PlannedRun>& runs) {
    PlannedRun& run = runs[executing_];
    Step step = run.step;
    step.chunks.clear();
    residency_->begin(step);
    StepPages pages(*residency_, run.step);
    use_cache(run.step);
    for (const auto& [first, last] : run.pass.groups) {
      std::vector<std::pair<const std::byte*, std::uint64_t>> bound;
      for (PageUse use = first; use <= last; ++use) {
        const ResidentPage page = pages.acquire(use);
        if (page.ready != nullptr) compute_.wait(*page.ready);
        bound.emplace_back(page.data, stamp_of(run.step.model, layout_list_[run.step.model]->uses[use]));
      }
      for (int phase = 0; phase < 2; ++phase) compute_.enqueue([this, bound] { check(bound); });
      pages.release_through(last);
      accept_some(runs);
    }
    pages.end();
    if (random_() % 3 == 0) finish(run.step);
  }

  // As the executor does behind every pass.
  void finish(const Step& step) {
    while (!adversary_.queue(0).empty()) {
      if (!adversary_.run(1)) throw Error(ExitCode::kInternal, "deadlock");
    }
    residency_->finished(step);
  }

  // The pass finds in its model's cache what the model's last pass wrote, and writes something new.
  void use_cache(const Step& step) {
    for (const CacheChange& change : step.stages[0].caches) forget_written(change);
    std::vector<std::uint64_t>& written = written_[step.model];
    const std::vector<FrameId>& list = residency_->state().cache(step.model);
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::byte* at = residency_->pool().frame(list[i]);
      const std::uint64_t stamp = stamp_of(step.model, static_cast<PageId>(step.id << 16 | (0x8000 + i)));
      const bool fresh = i >= written.size();
      if (fresh) written.push_back(stamp);
      compute_.enqueue([this, at, stamp, fresh, before = written[i]] {
        if (!fresh) check({{at, before}});
        std::memcpy(at, &stamp, sizeof stamp);
      });
      compute_.enqueue([this, at, stamp] { check({{at, stamp}}); });
      written[i] = stamp;
    }
  }

  void forget_written(const CacheChange& change) {
    std::vector<std::uint64_t>& written = written_[change.model];
    if (change.kind == CacheChange::kPlain) written.resize(written.size() - change.taken);
    if (change.kind == CacheChange::kDropOffloaded) written.clear();
  }

  void check(const std::vector<std::pair<const std::byte*, std::uint64_t>>& bound) {
    for (const auto& [at, stamp] : bound) {
      std::uint64_t found = 0;
      std::memcpy(&found, at, sizeof found);
      if (found != stamp) fault_ = "a frame holds something else than the pass relies on";
    }
  }

  std::mt19937_64 random_;
  Adversary adversary_;
  AdversaryStream compute_, copy_;
  AdversaryDevice device_;
  HostStore host_;
  std::vector<const ShardLayout*> layout_list_;
  std::optional<Residency> residency_;
  std::vector<std::vector<std::uint64_t>> written_;  // [model][index in the cache's list] by the last pass
  std::size_t executing_ = 0, accepted_ = 0;
  std::string fault_;
};

struct Scenario {
  std::vector<ShardLayout> layouts;
  int frames;
  std::vector<PlannedRun> runs;
};

Scenario make_scenario(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919);
  Scenario s;
  const std::size_t models = 1 + random() % 3;
  for (std::size_t m = 0; m < models; ++m) {
    s.layouts.push_back(make_layout(1 + static_cast<int>(random() % 12), static_cast<int>(random() % 4)));
  }
  s.frames = 6 + static_cast<int>(random() % 10);  // often fewer than one model's pages
  std::vector<const ShardLayout*> layouts;
  for (const ShardLayout& layout : s.layouts) layouts.push_back(&layout);
  RandomScheduler scheduler(layouts, s.frames, seed);
  for (int i = 0; i < 8; ++i) s.runs.push_back(scheduler.next());
  return s;
}

TEST(OrderRule, RandomStepsKeepFramesIntact) {
  int reloads = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Scenario s = make_scenario(seed);
    for (const PlannedRun& run : s.runs) reloads += run.reloads();
    Rank rank(s.layouts, s.frames, seed);
    ASSERT_EQ(rank.run(s.runs), "") << "seed " << seed;
  }
  EXPECT_GT(reloads, 1000);
}

// The check can fail: steps that forget to say when a frame is free are caught.
TEST(OrderRule, DroppedGatesAreCaught) {
  int broken = 0, caught = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Scenario s = make_scenario(seed);
    bool changed = false;
    for (PlannedRun& run : s.runs) {
      for (Fetch& fetch : run.step.stages[0].fetches) {
        changed |= fetch.after.step > 0;
        if (fetch.after.step != run.step.id) fetch.after = {};
      }
    }
    if (!changed) continue;
    ++broken;
    caught += !Rank(s.layouts, s.frames, seed).run(s.runs).empty();
  }
  EXPECT_GT(broken, 300);
  EXPECT_GT(caught, broken / 4);
}

TEST(OrderRule, DroppedGatesOfCachesAreCaught) {
  for (const CacheChange::Kind kind : {CacheChange::kOffload, CacheChange::kReload}) {
    int broken = 0, caught = 0;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
      Scenario s = make_scenario(seed);
      bool changed = false;
      for (PlannedRun& run : s.runs) {
        for (CacheChange& change : run.step.stages[0].caches) {
          if (change.kind != kind) continue;
          changed |= change.after.step > 0;
          change.after = {};
        }
      }
      if (!changed) continue;
      ++broken;
      caught += !Rank(s.layouts, s.frames, seed).run(s.runs).empty();
    }
    EXPECT_GT(broken, 100) << kind;
    EXPECT_GT(caught, broken / 10) << kind;
  }
}

Step one_stage_step() {
  Step step;
  step.id = 1;
  step.chunks.resize(1);
  step.stages.resize(1);
  return step;
}

// What a finished step used is fetched over while the next pass is under way; otherwise the copy waits for that, too.
TEST(OrderRule, AFinishedStepHoldsNoCopyUp) {
  for (const bool finished : {false, true}) {
    const ShardLayout layout = make_layout(2, 0);
    AdversaryDevice device;
    Adversary adversary(0);
    AdversaryStream compute(adversary, 0), copy(adversary, 1);
    HostStore host(device);
    host.add(layout, "pages", [](std::byte*, const std::vector<std::size_t>&) {});
    Residency residency(0, {&layout}, host, device, {.frames = 1, .frame_bytes = kPageBytes}, copy, compute);
    Step first = one_stage_step(), second = one_stage_step();
    first.stages[0].fetches = {{.model = 0, .page = 0, .frame = 0, .after = {}}};
    residency.accept(first);
    residency.begin(first);
    StepPages(residency, first).end();
    ASSERT_TRUE(adversary.run_all());
    if (finished) residency.finished(first);

    adversary.queue(0).push_back({[] { return false; }, [] {}});  // a pass that goes on and on
    second.id = first.id + 1;
    second.stages[0].fetches = {{.model = 0, .page = 1, .frame = 0, .after = {first.id}}};
    residency.accept(second);
    EXPECT_FALSE(adversary.run_all()) << "the pass does not end";
    residency.begin(second);
    StepPages pages(residency, second);
    EXPECT_EQ(pages.acquire(1).ready->query(), finished);
  }
}

// A step that only fetches is no pass: the one behind it waits for the pages.
TEST(OrderRule, PagesAreAtRestOnceAPassHasWaitedForThem) {
  const ShardLayout layout = make_layout(2, 0), other = make_layout(1, 0);
  AdversaryDevice device;
  Adversary adversary(0);
  AdversaryStream compute(adversary, 0), copy(adversary, 1);
  HostStore host(device);
  for (const ShardLayout* added : {&layout, &other}) {
    host.add(*added, "pages", [](std::byte*, const std::vector<std::size_t>&) {});
  }
  Residency residency(0, {&layout, &other}, host, device, {.frames = 2, .frame_bytes = kPageBytes}, copy, compute);
  StepId id = 0;
  const auto at_rest = [&](bool is_pass, const std::vector<Fetch>& fetches) {
    Step step = one_stage_step();
    step.id = ++id;
    if (!is_pass) step.chunks.clear();
    step.stages[0].fetches = fetches;
    residency.accept(step);
    residency.begin(step);
    StepPages pages(residency, step);
    const bool rests = pages.at_rest();
    pages.end();
    EXPECT_TRUE(adversary.run_all());
    residency.finished(step);
    return rests;
  };
  EXPECT_FALSE(at_rest(
      false, {{.model = 0, .page = 0, .frame = 0, .after = {}}, {.model = 0, .page = 1, .frame = 1, .after = {}}}));
  EXPECT_FALSE(at_rest(true, {})) << "no pass has waited for them yet";
  EXPECT_TRUE(at_rest(true, {}));
  EXPECT_TRUE(at_rest(false, {}));
  EXPECT_FALSE(at_rest(false, {{.model = 1, .page = 0, .frame = 1, .after = {3}}})) << "page 1 has lost its frame";
}

// A pass that wants no outputs waits for fewer pages than the model has.
TEST(OrderRule, APageAtRestHasAnEventUntilItsCopyHasEnded) {
  const ShardLayout layout = make_layout(1, 0);
  AdversaryDevice device;
  Adversary adversary(0);
  AdversaryStream compute(adversary, 0), copy(adversary, 1);
  HostStore host(device);
  host.add(layout, "pages", [](std::byte*, const std::vector<std::size_t>&) {});
  Residency residency(0, {&layout}, host, device, {.frames = 1, .frame_bytes = kPageBytes}, copy, compute);
  StepId id = 0;
  const auto event_at_rest = [&](const std::vector<Fetch>& fetches) -> std::optional<const Event*> {
    Step step = one_stage_step();
    step.id = ++id;
    step.stages[0].fetches = fetches;
    residency.accept(step);
    residency.begin(step);
    StepPages pages(residency, step);
    const Event* const ready = pages.acquire(0).ready;
    pages.end();
    return pages.at_rest() ? std::optional(ready) : std::nullopt;
  };
  EXPECT_EQ(event_at_rest({{.model = 0, .page = 0, .frame = 0, .after = {}}}), std::nullopt);
  const auto before = event_at_rest({});
  ASSERT_TRUE(before.has_value());
  EXPECT_NE(*before, nullptr) << "the copy is still on its way";
  EXPECT_TRUE(adversary.run_all());
  EXPECT_EQ(event_at_rest({}), std::optional<const Event*>(nullptr));
}

// A fetch that waits for a use whose own page comes later on the link would deadlock: refused, not hung.
TEST(OrderRule, WaitingForAnUnfetchedUseIsRefusedNotHung) {
  const std::vector<ShardLayout> layouts{make_layout(3, 0)};
  std::vector<PlannedRun> runs(1);
  runs[0].step = one_stage_step();
  runs[0].pass.groups = {{0, 0}, {1, 1}, {2, 2}};
  runs[0].step.stages[0].fetches = {{.model = 0, .page = 2, .frame = 0, .after = {1, 1}},
                                    {.model = 0, .page = 0, .frame = 1, .after = {}},
                                    {.model = 0, .page = 1, .frame = 2, .after = {}}};
  EXPECT_THAT(Rank(layouts, 3, 0).run(runs), ::testing::HasSubstr("no frame"));
}

// A cache that waits for the very step that moves it could never be moved before the pass: refused, not hung.
TEST(OrderRule, ACacheThatWaitsForItsOwnStepIsRefusedNotHung) {
  const std::vector<ShardLayout> layouts{make_layout(1, 0)};
  std::vector<PlannedRun> runs(1);
  runs[0].step = one_stage_step();
  runs[0].step.stages[0].caches = {
      {.model = 0, .added = {0}},
      {.model = 0, .taken = 1, .kind = CacheChange::kOffload, .slots = {0}, .after = {1, 0}}};
  EXPECT_THAT(Rank(layouts, 2, 0).run(runs), ::testing::HasSubstr("before its caches could be moved"));
}

// A page whose frame was given away in the same pass is noticed as absent.
TEST(OrderRule, UseOfAPageWithoutAFrameIsRefused) {
  const std::vector<ShardLayout> layouts{make_layout(2, 0)};
  std::vector<PlannedRun> runs(1);
  runs[0].step = one_stage_step();
  runs[0].pass.groups = {{0, 0}, {1, 1}};
  runs[0].step.stages[0].fetches = {{.model = 0, .page = 0, .frame = 0, .after = {}}};
  EXPECT_THAT(Rank(layouts, 2, 0).run(runs), ::testing::HasSubstr("no frame"));
}

}  // namespace
}  // namespace computron

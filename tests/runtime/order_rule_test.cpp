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

// A made-up image: `pages` pages visited in order, the first `revisited` of them again at the end (a tied head).
Image make_image(int pages, int revisited) {
  Image image;
  image.page_bytes = kPageBytes;
  for (int p = 0; p < pages; ++p) {
    image.used_bytes.push_back(8 + 8 * (p % 7));
    image.uses.push_back(p);
  }
  for (int p = 0; p < revisited && p < pages - 1; ++p) image.uses.push_back(p);
  return image;
}

// How the passes of a model group their uses: an operation binds all its pages before any of its uses is over.
struct Pass {
  std::vector<std::pair<PageUse, PageUse>> groups;  // [first, last]
};

struct PlannedRun {
  Step step;
  Pass pass;
  StateDigest expected;

  int restores() const {
    const auto& caches = step.stages[0].caches;
    return static_cast<int>(std::count_if(
        caches.begin(), caches.end(), [](const CacheChange& change) { return change.kind == CacheChange::kRestore; }));
  }
};

// Writes random steps that keep the order rule.
class RandomScheduler {
 public:
  RandomScheduler(std::vector<const Image*> images, int frames, std::uint64_t seed)
      : images_(images),
        state_(images, frames, kHostSlots),
        last_use_(frames),
        cache_used_(images.size()),
        random_(seed) {}

  PlannedRun next() {
    PlannedRun run;
    run.step.id = ++last_step_;
    run.step.model = static_cast<ModelId>(below(images_.size()));
    run.step.chunks.resize(1);  // a pass; sequences play no part here
    run.step.stages.resize(1);
    StagePlan& plan = run.step.stages[0];
    for (ModelId m = 0; m < images_.size(); ++m) spill(m, plan);
    if (!state_.spilled(run.step.model).empty()) bring_back(run.step.model, plan);
    change_cache(run.step.model, plan);
    run.pass = group_uses(*images_[run.step.model]);
    for (const auto& [first, last] : run.pass.groups) bring_in(run.step, first, last);
    prefetch(run.step);
    cache_used_[run.step.model] = run.step.id;
    run.expected = state_.digest();
    return run;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }

  Pass group_uses(const Image& image) {
    Pass pass;
    for (PageUse use = 0; use < image.uses.size();) {
      const PageUse last = std::min<PageUse>(use + static_cast<PageUse>(below(3)), image.uses.size() - 1);
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
        last_use_[state_.cache(model)[i]] = {cache_used_[model], UsePoint::kEnd};
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

  void spill(ModelId model, StagePlan& plan) {
    const std::vector<FrameId> list = state_.cache(model);
    CacheChange change{.model = model, .taken = static_cast<std::uint32_t>(list.size()), .kind = CacheChange::kSpill};
    for (HostSlot slot = kHostSlots; slot-- > 0 && change.slots.size() < list.size();) {
      if (!state_.slot_taken(slot)) change.slots.push_back(slot);
    }
    if (list.empty() || change.slots.size() < list.size() || below(3) != 0) return;
    change.after = {cache_used_[model], UsePoint::kEnd};
    for (const FrameId frame : list) last_use_[frame] = {};  // whatever comes into it comes behind the spill
    apply(change, plan);
  }

  void bring_back(ModelId model, StagePlan& plan) {
    if (below(5) == 0) return apply({.model = model, .kind = CacheChange::kDropSpilled}, plan);
    CacheChange change{.model = model, .kind = CacheChange::kRestore, .slots = state_.spilled(model)};
    while (change.added.size() < change.slots.size()) {
      const FrameId frame = victim(change.added);
      change.added.push_back(frame);
      change.after = std::max(change.after, last_use_[frame].value_or(UsePoint{}));
      last_use_[frame] = {};
    }
    apply(change, plan);
  }

  std::size_t cache_frames() const {
    std::size_t count = 0;
    for (ModelId m = 0; m < images_.size(); ++m) count += state_.cache(m).size() + state_.spilled(m).size();
    return count;
  }

  // Makes the pages of one group resident and marks their frames used by it.
  void bring_in(Step& step, PageUse first, PageUse last) {
    const Image& image = *images_[step.model];
    std::vector<FrameId> busy;
    for (PageUse use = first; use <= last; ++use) {
      if (const FrameId frame = state_.frame_of(step.model, image.uses[use]); frame != kNoFrame) busy.push_back(frame);
    }
    for (PageUse use = first; use <= last; ++use) {
      if (state_.frame_of(step.model, image.uses[use]) != kNoFrame) continue;
      busy.push_back(fetch(step, step.model, image.uses[use], busy));
    }
    for (const FrameId frame : busy) last_use_[frame] = {step.id, last};
  }

  void prefetch(Step& step) {
    for (std::size_t i = below(4); i > 0; --i) {
      const auto model = static_cast<ModelId>(below(images_.size()));
      const auto page = static_cast<PageId>(below(images_[model]->pages()));
      if (state_.frame_of(model, page) == kNoFrame) fetch(step, model, page, {});
    }
  }

  FrameId fetch(Step& step, ModelId model, PageId page, const std::vector<FrameId>& busy) {
    const FrameId frame = victim(busy);
    const Fetch fetch{.model = model, .page = page, .frame = frame, .after = last_use_[frame].value_or(UsePoint{})};
    last_use_[frame].reset();
    state_.place(fetch);
    step.stages[0].fetches.push_back(fetch);
    return frame;
  }

  FrameId victim(const std::vector<FrameId>& busy) {
    for (;;) {
      const auto frame = static_cast<FrameId>(below(state_.frames()));
      const bool taken = std::find(busy.begin(), busy.end(), frame) != busy.end();
      if (!taken && state_.owner(frame).kind != StageState::Owner::kCache) return frame;
    }
  }

  std::vector<const Image*> images_;
  StageState state_;
  std::vector<std::optional<UsePoint>> last_use_;  // [frame] of what it holds now
  std::vector<StepId> cache_used_;                 // [model] last step whose pass used its cache
  StepId last_step_ = 0;
  std::mt19937_64 random_;
};

// One rank under the adversary.
class Rank {
 public:
  Rank(const std::vector<Image>& images, int frames, std::uint64_t seed)
      : random_(seed),
        adversary_(seed + 1),
        compute_(adversary_, 0),
        copy_(adversary_, 1),
        host_(device_),
        written_(images.size()) {
    for (const Image& image : images) {
      image_list_.push_back(&image);
      const auto model = static_cast<ModelId>(image_list_.size() - 1);
      host_.add(image, "pages", [&](std::byte* pages, const std::vector<std::size_t>& offsets) {
        for (PageId p = 0; p < offsets.size(); ++p) {
          const std::uint64_t stamp = stamp_of(model, p);
          std::memcpy(pages + offsets[p], &stamp, sizeof stamp);
        }
      });
    }
    residency_.emplace(0, image_list_, host_, device_, frames, kPageBytes, kHostSlots, copy_, compute_);
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
        compute_.wait(*page.ready);
        bound.emplace_back(page.data, stamp_of(run.step.model, image_list_[run.step.model]->uses[use]));
      }
      for (int phase = 0; phase < 2; ++phase) compute_.enqueue([this, bound] { check(bound); });
      pages.uses_over(last);
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
    if (change.kind == CacheChange::kDropSpilled) written.clear();
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
  std::vector<const Image*> image_list_;
  std::optional<Residency> residency_;
  std::vector<std::vector<std::uint64_t>> written_;  // [model][index in the cache's list] by the last pass
  std::size_t executing_ = 0, accepted_ = 0;
  std::string fault_;
};

struct Scenario {
  std::vector<Image> images;
  int frames;
  std::vector<PlannedRun> runs;
};

Scenario make_scenario(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919);
  Scenario s;
  const std::size_t models = 1 + random() % 3;
  for (std::size_t m = 0; m < models; ++m) {
    s.images.push_back(make_image(1 + static_cast<int>(random() % 12), static_cast<int>(random() % 4)));
  }
  s.frames = 6 + static_cast<int>(random() % 10);  // often fewer than one model's pages
  std::vector<const Image*> images;
  for (const Image& image : s.images) images.push_back(&image);
  RandomScheduler scheduler(images, s.frames, seed);
  for (int i = 0; i < 8; ++i) s.runs.push_back(scheduler.next());
  return s;
}

TEST(OrderRule, RandomStepsKeepFramesIntact) {
  int restores = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Scenario s = make_scenario(seed);
    for (const PlannedRun& run : s.runs) restores += run.restores();
    Rank rank(s.images, s.frames, seed);
    ASSERT_EQ(rank.run(s.runs), "") << "seed " << seed;
  }
  EXPECT_GT(restores, 1000);
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
    caught += !Rank(s.images, s.frames, seed).run(s.runs).empty();
  }
  EXPECT_GT(broken, 300);
  EXPECT_GT(caught, broken / 4);
}

TEST(OrderRule, DroppedGatesOfCachesAreCaught) {
  for (const CacheChange::Kind kind : {CacheChange::kSpill, CacheChange::kRestore}) {
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
      caught += !Rank(s.images, s.frames, seed).run(s.runs).empty();
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
    const Image image = make_image(2, 0);
    AdversaryDevice device;
    Adversary adversary(0);
    AdversaryStream compute(adversary, 0), copy(adversary, 1);
    HostStore host(device);
    host.add(image, "pages", [](std::byte*, const std::vector<std::size_t>&) {});
    Residency residency(0, {&image}, host, device, /*frames=*/1, kPageBytes, /*host_slots=*/0, copy, compute);
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

// A fetch that waits for a use whose own page comes later on the link would deadlock: refused, not hung.
TEST(OrderRule, WaitingForAnUnfetchedUseIsRefusedNotHung) {
  const std::vector<Image> images{make_image(3, 0)};
  std::vector<PlannedRun> runs(1);
  runs[0].step = one_stage_step();
  runs[0].pass.groups = {{0, 0}, {1, 1}, {2, 2}};
  runs[0].step.stages[0].fetches = {{.model = 0, .page = 2, .frame = 0, .after = {1, 1}},
                                    {.model = 0, .page = 0, .frame = 1, .after = {}},
                                    {.model = 0, .page = 1, .frame = 2, .after = {}}};
  EXPECT_THAT(Rank(images, 3, 0).run(runs), ::testing::HasSubstr("no frame"));
}

// A cache that waits for the very step that moves it could never be moved before the pass: refused, not hung.
TEST(OrderRule, ACacheThatWaitsForItsOwnStepIsRefusedNotHung) {
  const std::vector<Image> images{make_image(1, 0)};
  std::vector<PlannedRun> runs(1);
  runs[0].step = one_stage_step();
  runs[0].step.stages[0].caches = {
      {.model = 0, .added = {0}}, {.model = 0, .taken = 1, .kind = CacheChange::kSpill, .slots = {0}, .after = {1, 0}}};
  EXPECT_THAT(Rank(images, 2, 0).run(runs), ::testing::HasSubstr("before its caches could be moved"));
}

// A page whose frame was given away in the same pass is noticed as absent.
TEST(OrderRule, UseOfAPageWithoutAFrameIsRefused) {
  const std::vector<Image> images{make_image(2, 0)};
  std::vector<PlannedRun> runs(1);
  runs[0].step = one_stage_step();
  runs[0].pass.groups = {{0, 0}, {1, 1}};
  runs[0].step.stages[0].fetches = {{.model = 0, .page = 0, .frame = 0, .after = {}}};
  EXPECT_THAT(Rank(images, 2, 0).run(runs), ::testing::HasSubstr("no frame"));
}

}  // namespace
}  // namespace computron

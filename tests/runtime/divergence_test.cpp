// A rank whose state differs from what rank 0 expects is found with the step after which it differs, before anything of
// that step is accepted: whichever field it is, on whichever rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "computron/runtime/report.h"

namespace computron {

// Changes what a field of the digest is of.
struct StageStateTables {
  // From here on `state` differs in what the field `name` is of; after `step`, which has a pass.
  static void diverge(StageState& state, std::string_view name, const Step& step) {
    if (name == "page_table") {
      ++state.page_tables_[step.model].back();
    } else if (name == "cache_list") {
      ++state.caches_[step.model].at(0);
    } else if (name == "sequences") {
      ++state.sequences_.at(step.chunks.at(0).sequence).length;
    } else {
      ++(state.digest_.*fields().at(name));
    }
  }

 private:
  // Of those that are kept with every change.
  static const std::map<std::string_view, std::uint64_t StateDigest::*>& fields() {
    static const std::map<std::string_view, std::uint64_t StateDigest::*> kFields = {
        {"pages", &StateDigest::pages},
        {"caches", &StateDigest::caches},
        {"offloaded", &StateDigest::offloaded},
        {"lengths", &StateDigest::lengths},
        {"blocks", &StateDigest::blocks},
        {"tokens", &StateDigest::tokens},
        {"bytes_fetched", &StateDigest::bytes_fetched},
        {"frames_moved", &StateDigest::frames_moved}};
    return kFields;
  }
};

namespace {

constexpr int kRanks = 4, kFrames = 12, kSlots = 4, kSteps = 40, kModels = 2;

ShardLayout make_layout() {
  ShardLayout layout;
  layout.page_bytes = 64;
  layout.used_bytes = {64, 32, 16};
  layout.uses = {0, 1, 2};
  return layout;
}
const ShardLayout kLayout = make_layout();

StageState make_state() { return StageState({&kLayout, &kLayout}, kFrames, kSlots); }

// Random steps that a right scheduler might send to a stage, and the state after each.
class Steps {
 public:
  explicit Steps(std::uint64_t seed) : random_(seed) {}

  const StageState& state() const { return state_; }
  Step next() {
    Step step;
    step.id = ++last_;
    step.model = pick(kModels);
    step.stages.resize(1);
    close_one(step);
    settle_cache(step);
    fetch(step);
    grow_one(step);
    return step;
  }

 private:
  std::uint32_t pick(std::size_t count) { return static_cast<std::uint32_t>(random_() % count); }

  void close_one(Step& step) {
    if (open_.size() < 4) return;
    const auto victim = std::next(open_.begin(), pick(open_.size()));
    step.closed.push_back(victim->first);
    state_.close(victim->first);
    open_.erase(victim);
  }

  void change(Step& step, const CacheChange& change) {
    step.stages[0].caches.push_back(change);
    state_.change_cache(change);
  }
  // The model that runs has two frames of cache, and the other one's is now and then in host memory.
  void settle_cache(Step& step) {
    const ModelId other = 1 - step.model;
    if (!state_.cache(other).empty() && pick(2) == 0) {
      const auto taken = static_cast<std::uint32_t>(state_.cache(other).size());
      change(step, {.model = other, .taken = taken, .kind = CacheChange::kOffload, .slots = free_slots(taken)});
    }
    if (!state_.offloaded(step.model).empty()) {
      change(step, {.model = step.model,
                    .added = free_frames(2),
                    .kind = CacheChange::kReload,
                    .slots = state_.offloaded(step.model)});
    } else if (state_.cache(step.model).empty()) {
      change(step, {.model = step.model, .added = free_frames(2)});
    }
  }
  // Often where the other model's page lies, which is forgotten.
  void fetch(Step& step) {
    for (PageId page = 0; page < kLayout.used_bytes.size(); ++page) {
      if (state_.frame_of(step.model, page) != kNoFrame) continue;
      const FrameId theirs = state_.frame_of(1 - step.model, page);
      const FrameId frame = theirs != kNoFrame && pick(2) == 0 ? theirs : free_frames(1).at(0);
      step.stages[0].fetches.push_back({.model = step.model, .page = page, .frame = frame, .after = {}});
      state_.place(step.stages[0].fetches.back());
    }
  }
  void grow_one(Step& step) {
    const auto of_model = std::ranges::find(open_, step.model, [](const auto& open) { return open.second; });
    const bool opened = of_model == open_.end() || pick(2) == 0;
    const SequenceId id = opened ? ++last_sequence_ : of_model->first;
    SequenceChunk chunk;
    chunk.sequence = id;
    chunk.start = opened ? 0 : state_.sequence(id).length;
    for (std::uint32_t i = 0; i < 1 + pick(30); ++i) chunk.tokens.push_back(static_cast<TokenId>(pick(100)));
    const std::size_t end = chunk.start + chunk.tokens.size();
    for (std::size_t have = opened ? 0 : state_.sequence(id).blocks.size(); have * 16 < end; ++have) {
      chunk.new_blocks.push_back(next_block_++);
    }
    open_[id] = step.model;
    state_.extend(step.model, chunk);
    step.chunks.push_back(std::move(chunk));
  }

  std::vector<FrameId> free_frames(std::size_t count) {
    std::vector<FrameId> free;
    for (FrameId frame = 0; frame < kFrames && free.size() < count; ++frame) {
      if (state_.owner(frame).kind == StageState::Owner::kFree) free.push_back(frame);
    }
    return free;
  }
  std::vector<HostSlot> free_slots(std::size_t count) {
    std::vector<HostSlot> free;
    for (HostSlot slot = 0; slot < kSlots && free.size() < count; ++slot) {
      if (!state_.slot_taken(slot)) free.push_back(slot);
    }
    return free;
  }

  std::mt19937_64 random_;
  StageState state_ = make_state();
  std::map<SequenceId, ModelId> open_;
  StepId last_ = 0;
  SequenceId last_sequence_ = 0;
  std::uint32_t next_block_ = 0;
};

FrameId free_frame(const StageState& state) {
  FrameId frame = 0;
  while (state.owner(frame).kind != StageState::Owner::kFree) ++frame;
  return frame;
}

// What one rank does otherwise than the step says, and the first field of the digest that tells. `change` returns
// whether the step has such a thing at all.
struct Difference {
  const char* field;
  std::function<bool(Step&, const StageState& after)> change;
};
std::vector<CacheChange>& caches(Step& step) { return step.stages[0].caches; }
std::vector<Fetch>& fetches(Step& step) { return step.stages[0].fetches; }
template <class Change>
bool first_of_kind(Step& step, CacheChange::Kind kind, Change&& change) {
  const auto found = std::ranges::find(caches(step), kind, &CacheChange::kind);
  if (found != caches(step).end()) change(*found);
  return found != caches(step).end();
}

const Difference kDifferences[] = {
    {"pages",
     [](Step& step, const StageState& after) {
       if (!fetches(step).empty()) fetches(step).back().frame = free_frame(after);
       return !fetches(step).empty();
     }},
    {"pages",
     [](Step& step, const StageState&) {
       const bool any = !fetches(step).empty();
       if (any) fetches(step).pop_back();
       return any;
     }},
    {"caches",
     [](Step& step, const StageState&) {
       return first_of_kind(step, CacheChange::kPlain, [](CacheChange& c) { std::swap(c.added[0], c.added[1]); });
     }},
    {"caches",
     [](Step& step, const StageState&) {
       return first_of_kind(step, CacheChange::kReload, [](CacheChange& c) { std::swap(c.added[0], c.added[1]); });
     }},
    {"offloaded",
     [](Step& step, const StageState&) {
       return first_of_kind(step, CacheChange::kOffload, [](CacheChange& c) { std::swap(c.slots[0], c.slots[1]); });
     }},
    {"lengths",
     [](Step& step, const StageState&) {
       step.chunks[0].tokens.pop_back();
       return !step.chunks[0].tokens.empty();
     }},
    {"lengths",
     [](Step& step, const StageState&) {
       const bool any = !step.closed.empty();
       step.closed.clear();
       return any;
     }},
    {"blocks",
     [](Step& step, const StageState&) {
       if (!step.chunks[0].new_blocks.empty()) step.chunks[0].new_blocks.back() += 5000;
       return !step.chunks[0].new_blocks.empty();
     }},
    {"tokens",
     [](Step& step, const StageState&) {
       ++step.chunks[0].tokens.front();
       return true;
     }},
};
// Of tables and counts themselves, behind a step that was done as it says.
const char* const kFields[] = {"pages",         "caches",       "offloaded",  "lengths",    "blocks",   "tokens",
                               "bytes_fetched", "frames_moved", "page_table", "cache_list", "sequences"};

// As rank 0 gets it.
StateDigest reported(const StageState& state, const Step& step) {
  Report report;
  report.step = step.id;
  report.digest = state.digest_after(step);
  return Report::decode(report.encode()).digest;
}

// Every rank follows the steps; `victim` is another from `at` on, or as soon after as `diverge` can make it so. The
// field by which it is found after that very step; "not found" and "never" otherwise.
template <class Diverge>
std::string found_by(std::uint64_t seed, int victim, StepId at, Diverge&& diverge) {
  Steps steps(seed);
  std::vector<StageState> ranks(kRanks, make_state());
  for (int i = 0; i < kSteps; ++i) {
    const Step sent = steps.next();
    const StateDigest expected = steps.state().digest_after(sent);
    bool diverged = false;
    for (int rank = 0; rank < kRanks; ++rank) {
      Step step = Step::decode(sent.encode(0), 0, 1);
      if (rank == victim && sent.id >= at) {
        diverged = diverge(ranks[rank], step, steps.state());
      } else {
        ranks[rank].apply(step, 0);
      }
      const std::string field = expected.first_difference(reported(ranks[rank], sent));
      if (rank != victim && !field.empty()) return fmt::format("rank {} differs in {}", rank, field);
      if (rank == victim && diverged) return field.empty() ? "not found" : field;
    }
  }
  return "never";
}

TEST(Divergence, AThousandAreFoundWithTheStepAfterWhichTheyAre) {
  int found = 0;
  std::map<const void*, int> found_of;
  for (std::uint64_t seed = 0; found < 1000; ++seed) {
    const int victim = static_cast<int>(seed % kRanks);
    const StepId at = 1 + seed % 20;
    const auto expect_found = [&](const void* kind, const char* field, const auto& diverge) {
      const std::string by = found_by(seed, victim, at, diverge);
      if (by == "never") return;  // no step had such a thing
      EXPECT_EQ(by, field) << "seed " << seed;
      ++found;
      ++found_of[kind];
    };
    for (const Difference& difference : kDifferences) {
      expect_found(&difference, difference.field, [&](StageState& rank, Step step, const StageState& after) {
        const Step as_sent = step;
        const bool differs = difference.change(step, after);
        rank.apply(differs ? step : as_sent, 0);
        return differs;
      });
    }
    for (const char* const& field : kFields) {
      expect_found(&field, field, [&](StageState& rank, const Step& step, const StageState&) {
        rank.apply(step, 0);
        StageStateTables::diverge(rank, field, step);
        return true;
      });
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(found_of.size(), std::size(kDifferences) + std::size(kFields)) << "a kind that never came up";
}

}  // namespace
}  // namespace computron

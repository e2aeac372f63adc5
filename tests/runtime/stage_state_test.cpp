#include "computron/runtime/stage_state.h"

#include <gtest/gtest.h>

namespace computron {
namespace {

class StageStateTest : public ::testing::Test {
 protected:
  StageStateTest() {
    layout_.page_bytes = 64;
    layout_.used_bytes = {64, 32, 16};
    layout_.uses = {0, 1, 2};
  }
  StageState make() { return StageState({&layout_, &layout_}, 4, /*host_slots=*/3); }
  ShardLayout layout_;
};

TEST_F(StageStateTest, AFetchForgetsWhatTheFrameHeld) {
  StageState state = make();
  state.place({.model = 0, .page = 1, .frame = 2, .after = {}});
  state.place({.model = 1, .page = 0, .frame = 2, .after = {}});
  EXPECT_EQ(state.frame_of(0, 1), kNoFrame);
  EXPECT_EQ(state.frame_of(1, 0), 2u);
  EXPECT_EQ(state.resident_pages(0), 0);
  EXPECT_EQ(state.digest().bytes_fetched, 96u);
}

TEST_F(StageStateTest, RefusesWhatARightSchedulerWouldNotSay) {
  StageState state = make();
  state.place({.model = 0, .page = 1, .frame = 2, .after = {}});
  EXPECT_THROW(state.place({.model = 0, .page = 1, .frame = 3, .after = {}}), Error);
  EXPECT_THROW(state.place({.model = 0, .page = 0, .frame = 9, .after = {}}), Error);
  EXPECT_THROW(state.place({.model = 5, .page = 0, .frame = 1, .after = {}}), Error);
  state.change_cache({.model = 1, .taken = 0, .added = {0}});
  EXPECT_THROW(state.place({.model = 0, .page = 0, .frame = 0, .after = {}}), Error);
  EXPECT_THROW(state.change_cache({.model = 1, .taken = 2, .added = {}}), Error);
  EXPECT_THROW(state.close(3), Error);
  state.extend(0, {.sequence = 3, .start = 0, .tokens = {1, 2}, .new_blocks = {0}});
  EXPECT_THROW(state.extend(0, {.sequence = 3, .start = 1, .tokens = {1}, .new_blocks = {}}), Error);
  EXPECT_THROW(state.extend(1, {.sequence = 3, .start = 2, .tokens = {1}, .new_blocks = {}}), Error);
}

TEST_F(StageStateTest, HistoriesOfAnotherStageAreTheSame) {
  StageState a = make(), b = make();
  std::vector<TokenId> prompt(20);
  for (TokenId t = 0; t < 20; ++t) prompt[static_cast<std::size_t>(t)] = 3 * t;
  const SequenceChunk first{.sequence = 3, .start = 0, .tokens = prompt, .new_blocks = {0, 1}};
  const SequenceChunk second{.sequence = 3, .start = 20, .tokens = {7}, .new_blocks = {}};
  const SequenceChunk prefix{.sequence = 4, .start = 16, .tokens = {8, 9}, .new_blocks = {0, 2}};
  for (const SequenceChunk& chunk : {first, second, prefix}) {
    const std::vector<std::uint64_t> histories = a.histories(0, std::span(&chunk, 1));
    a.extend(0, chunk, histories);
    b.extend(0, chunk);
    EXPECT_EQ(a.sequence(chunk.sequence).history, b.sequence(chunk.sequence).history);
    EXPECT_EQ(a.digest(), b.digest());
  }
  EXPECT_THROW(a.extend(0, {.sequence = 3, .start = 21, .tokens = {1, 2}, .new_blocks = {}}, std::vector{1ul}), Error);
}

// However many there are, and whichever ends first.
TEST_F(StageStateTest, HistoriesOfSeveralChunksAreThoseOfEach) {
  for (std::size_t count = 0; count < 12; ++count) {
    StageState state = make();
    std::vector<SequenceChunk> chunks;
    std::vector<std::uint64_t> each;
    for (std::size_t i = 0; i < count; ++i) {
      SequenceChunk& chunk = chunks.emplace_back();
      chunk.sequence = i + 1;
      for (std::size_t t = 0; t < 1 + i * 7 % 16; ++t) chunk.tokens.push_back(static_cast<TokenId>(100 * i + t));
      const std::vector<std::uint64_t> its_own = state.histories(0, std::span(&chunk, 1));
      each.insert(each.end(), its_own.begin(), its_own.end());
      state.extend(0, chunk);
      EXPECT_EQ(state.sequence(chunk.sequence).history, its_own.back());
      state.close(chunk.sequence);
    }
    EXPECT_EQ(state.histories(0, chunks), each);
  }
}

// The digest is of the state, not of how it came about; and every field notices its own changes.
TEST_F(StageStateTest, DigestIsOfTheState) {
  StageState a = make(), b = make();
  a.place({.model = 0, .page = 0, .frame = 0, .after = {}});
  a.place({.model = 0, .page = 1, .frame = 1, .after = {}});
  b.place({.model = 0, .page = 1, .frame = 1, .after = {}});
  b.place({.model = 0, .page = 0, .frame = 0, .after = {}});
  EXPECT_EQ(a.digest(), b.digest());

  b.change_cache({.model = 1, .taken = 0, .added = {3}});
  EXPECT_EQ(a.digest().first_difference(b.digest()), "caches");
  b.change_cache({.model = 1, .taken = 1, .added = {}});
  EXPECT_EQ(a.digest(), b.digest());

  b.extend(0, {.sequence = 3, .start = 0, .tokens = {1, 2}, .new_blocks = {0, 1}});
  EXPECT_EQ(a.digest().first_difference(b.digest()), "lengths");
  a.extend(0, {.sequence = 3, .start = 0, .tokens = {1}, .new_blocks = {0}});
  a.extend(0, {.sequence = 3, .start = 1, .tokens = {2}, .new_blocks = {1}});
  EXPECT_EQ(a.digest(), b.digest());
  a.close(3);
  b.close(3);
  EXPECT_EQ(a.digest(), b.digest());

  b.place({.model = 0, .page = 2, .frame = 2, .after = {}});
  EXPECT_EQ(a.digest().first_difference(b.digest()), "pages");
}

SequenceChunk chunk(SequenceId sequence, std::uint32_t start, std::vector<TokenId> tokens,
                    std::vector<std::uint32_t> new_blocks) {
  return {.sequence = sequence, .start = start, .tokens = std::move(tokens), .new_blocks = std::move(new_blocks)};
}

// Blocks are of 16 tokens.
TEST_F(StageStateTest, ASequenceBeginsBehindFullBlocksThatContinueEachOther) {
  const std::vector<TokenId> two_and_a_half(40, 7), one(16, 8);
  StageState state = make();
  state.change_cache({.model = 0, .added = {0, 1}});
  state.extend(0, chunk(1, 0, two_and_a_half, {0, 1, 2}));
  state.extend(0, chunk(2, 0, one, {3}));
  EXPECT_THROW(state.extend(0, chunk(3, 16, {5}, {3, 0})), Error) << "the second is written, and another's";
  state = make();
  state.change_cache({.model = 0, .added = {0, 1}});
  state.extend(0, chunk(1, 0, two_and_a_half, {0, 1, 2}));
  state.extend(0, chunk(2, 0, one, {3}));
  EXPECT_THROW(state.extend(0, chunk(4, 32, {5}, {0, 3, 4})), Error) << "another history";
  EXPECT_THROW(state.extend(0, chunk(5, 16, {5}, {1, 4})), Error) << "not from the beginning";
  EXPECT_THROW(state.extend(0, chunk(6, 48, {5}, {0, 1, 2, 4})), Error) << "the third is not full";
  EXPECT_THROW(state.extend(0, chunk(7, 24, {5}, {0, 1, 4})), Error) << "in the middle of one";
  EXPECT_THROW(state.extend(0, chunk(8, 32, {5}, {0})), Error) << "fewer blocks than it begins behind";
  EXPECT_THROW(state.extend(1, chunk(9, 16, {5}, {0, 4})), Error) << "another model's";
  SequenceChunk long_factors = chunk(15, 32, {5}, {0, 1, 4});
  long_factors.long_factors = true;
  EXPECT_THROW(state.extend(0, long_factors), Error) << "the same tokens, rotated otherwise";
  state.extend(0, chunk(10, 32, {5}, {0, 1, 4}));
  EXPECT_EQ(state.sequence(10).length, 33u);
  state.extend(0, chunk(1, 40, {9}, {}));
  EXPECT_THROW(state.extend(0, chunk(11, 0, {5}, {1})), Error) << "both have it";
  state.close(1);
  EXPECT_THROW(state.extend(0, chunk(12, 0, {5}, {1})), Error) << "one of them has it still";
  state.close(10);
  state.extend(0, chunk(13, 16, {5}, {0, 1})) /* full, though nobody's; the second is new */;
  EXPECT_THROW(state.extend(0, chunk(14, 32, {5}, {0, 1, 4})), Error) << "the second has been written since";
}

TEST_F(StageStateTest, WhatLiesInACacheThatHasGoneIsNotThereAfterwards) {
  StageState state = make();
  state.change_cache({.model = 0, .added = {0, 1}});
  state.extend(0, chunk(1, 0, std::vector<TokenId>(20, 7), {0, 1}));
  EXPECT_THROW(state.change_cache({.model = 0, .taken = 2}), Error) << "a sequence has it";
  state = make();
  state.change_cache({.model = 0, .added = {0, 1}});
  state.extend(0, chunk(1, 0, std::vector<TokenId>(20, 7), {0, 1}));
  state.close(1);
  state.change_cache({.model = 0, .taken = 2});
  state.change_cache({.model = 0, .added = {0, 1}});
  EXPECT_THROW(state.extend(0, chunk(2, 16, {5}, {0, 1})), Error);
}

const CacheChange kAdd{.model = 0, .added = {1, 2}};
const CacheChange kOffload{.model = 0, .taken = 2, .kind = CacheChange::kOffload, .slots = {2, 0}};
const CacheChange kReload{.model = 0, .added = {3, 1}, .kind = CacheChange::kReload, .slots = {2, 0}};
const CacheChange kDrop{.model = 0, .kind = CacheChange::kDropOffloaded};

TEST_F(StageStateTest, AnOffloadedCacheLeavesItsFramesAndComesBackIntoOthers) {
  StageState state = make(), plain = make();
  state.change_cache(kAdd);
  state.change_cache(kOffload);
  EXPECT_TRUE(state.cache(0).empty());
  EXPECT_EQ(state.offloaded(0), (std::vector<HostSlot>{2, 0}));
  EXPECT_TRUE(state.slot_taken(0) && !state.slot_taken(1) && state.slot_taken(2));
  EXPECT_EQ(state.owner(1).kind, StageState::Owner::kFree);
  EXPECT_EQ(state.digest().first_difference(plain.digest()), "offloaded");
  state.place({.model = 1, .page = 0, .frame = 2, .after = {}});
  state.change_cache(kReload);
  EXPECT_EQ(state.cache(0), (std::vector<FrameId>{3, 1}));
  EXPECT_TRUE(state.offloaded(0).empty());
  EXPECT_FALSE(state.slot_taken(0) || state.slot_taken(2));

  plain.place({.model = 1, .page = 0, .frame = 2, .after = {}});
  plain.change_cache({.model = 0, .added = {3, 1}});
  EXPECT_EQ(state.digest().frames_moved, 4u);
  EXPECT_EQ(state.digest().first_difference(plain.digest()), "frames_moved") << "the way there leaves no other trace";
}

TEST_F(StageStateTest, TheDigestTellsSlotsAndTheirOrder) {
  std::vector<StageState> states;
  for (const std::vector<HostSlot>& slots : {std::vector<HostSlot>{2, 0}, {0, 2}, {2, 1}}) {
    CacheChange offload = kOffload;
    offload.slots = slots;
    states.push_back(make());
    states.back().change_cache(kAdd);
    states.back().change_cache(offload);
  }
  EXPECT_EQ(states[0].digest().first_difference(states[1].digest()), "offloaded");
  EXPECT_EQ(states[0].digest().first_difference(states[2].digest()), "offloaded");
}

TEST_F(StageStateTest, SequencesEndWhileTheirCacheIsOffloadedButDoNotGrow) {
  StageState state = make();
  const SequenceChunk first{.sequence = 3, .start = 0, .tokens = {1, 2}, .new_blocks = {0}};
  const SequenceChunk second{.sequence = 3, .start = 2, .tokens = {1}, .new_blocks = {}};
  state.change_cache(kAdd);
  state.extend(0, first);
  state.change_cache(kOffload);
  EXPECT_THROW(state.extend(0, second), Error);
  EXPECT_NO_THROW(state.extend(1, {.sequence = 4, .start = 0, .tokens = {1}, .new_blocks = {}}));
  state.close(3);
  state.change_cache(kDrop);
  state.close(4);
  EXPECT_EQ(state.digest().first_difference(make().digest()), "frames_moved");
}

TEST_F(StageStateTest, RefusesMovesOfACacheThatAreNotWholeOrNotWhereItIs) {
  const auto refuses = [this](const std::vector<CacheChange>& before, const CacheChange& change) {
    StageState state = make();
    for (const CacheChange& c : before) state.change_cache(c);
    EXPECT_THROW(state.change_cache(change), Error);
  };
  const auto with = [](CacheChange change, auto member, auto value) {
    change.*member = value;
    return change;
  };
  using Slots = std::vector<HostSlot>;
  const CacheChange other{.model = 1, .added = {0}};
  refuses({}, kOffload);
  refuses({kAdd}, with(kOffload, &CacheChange::slots, Slots{2}));
  refuses({kAdd}, with(kOffload, &CacheChange::slots, Slots{2, 2}));
  refuses({kAdd}, with(kOffload, &CacheChange::slots, Slots{2, 3}));
  refuses({kAdd}, with(kOffload, &CacheChange::added, std::vector<FrameId>{3}));
  refuses({kAdd}, with(with(kOffload, &CacheChange::taken, 1u), &CacheChange::slots, Slots{2}));
  refuses({kAdd, kOffload, other}, {.model = 1, .taken = 1, .kind = CacheChange::kOffload, .slots = {0}});
  refuses({kAdd}, kReload);
  refuses({kAdd, kOffload}, with(kReload, &CacheChange::slots, Slots{0, 2}));
  refuses({kAdd, kOffload}, with(kReload, &CacheChange::model, ModelId{1}));
  refuses({kAdd, kOffload}, with(kReload, &CacheChange::added, std::vector<FrameId>{3}));
  refuses({kAdd, kOffload, other}, with(kReload, &CacheChange::added, std::vector<FrameId>{3, 0}));
  refuses({kAdd, kOffload}, {.model = 0, .added = {3}});
  refuses({kAdd, kOffload}, kOffload);
  refuses({kAdd}, kDrop);
  refuses({kAdd, kOffload, kDrop}, kReload);
  refuses({}, {.model = 0, .kind = static_cast<CacheChange::Kind>(9)});
}

}  // namespace
}  // namespace computron

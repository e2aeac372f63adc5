#include "computron/runtime/stage_state.h"

#include <gtest/gtest.h>

namespace computron {
namespace {

class StageStateTest : public ::testing::Test {
 protected:
  StageStateTest() {
    image_.page_bytes = 64;
    image_.used_bytes = {64, 32, 16};
    image_.uses = {0, 1, 2};
  }
  StageState make() { return StageState({&image_, &image_}, 4); }
  Image image_;
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
  EXPECT_EQ(a.digest().first_difference(b.digest()), "sequences");
  a.extend(0, {.sequence = 3, .start = 0, .tokens = {1}, .new_blocks = {0}});
  a.extend(0, {.sequence = 3, .start = 1, .tokens = {2}, .new_blocks = {1}});
  EXPECT_EQ(a.digest(), b.digest());
  a.close(3);
  b.close(3);
  EXPECT_EQ(a.digest(), b.digest());

  b.place({.model = 0, .page = 2, .frame = 2, .after = {}});
  EXPECT_EQ(a.digest().first_difference(b.digest()), "pages");
}

}  // namespace
}  // namespace computron

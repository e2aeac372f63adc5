#include "computron/base/watchdog.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "computron/base/time.h"
#include "computron/base/trace.h"

namespace computron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SignOfLife sign(std::string_view name, bool waits, std::uint64_t step, std::uint32_t detail = 0) {
  SignOfLife sign{.doing = {.waits = waits, .step = step, .detail = detail}, .phase = SignOfLife::kServe};
  std::copy(name.begin(), name.end(), sign.doing.name.begin());
  return sign;
}

TEST(FindBlame, TheOneThatIsSilentLongest) {
  const SignOfLife sum = sign("all-reduce", true, 7, 40);
  const Blame blame = find_blame({{sum, 0.1}, {sum, 4}, {sign("layer", false, 7), 9}, {sum, 1}}, /*old_s=*/3);
  EXPECT_EQ(blame.rank, 2);
  EXPECT_THAT(blame.why, HasSubstr("nothing has been heard of it for 9.0 s"));
  EXPECT_THAT(blame.why, HasSubstr("layer 0 of step 7"));
}

TEST(FindBlame, TheOneThatWaitsForNobody) {
  const SignOfLife sum = sign("all-reduce", true, 7, 40);
  EXPECT_EQ(find_blame({{sum, 0}, {sum, 0}, {sum, 0}, {sign("layer", false, 7, 3), 0}}, 3).rank, 3);
  EXPECT_EQ(find_blame({{sign("receive activation", true, 8), 0}, {sign("wait for page", false, 8, 5), 0}}, 3).rank, 1);
  EXPECT_EQ(find_blame({{sign("layer", false, 8), 0}, {sign("layer", false, 7), 0}}, 3).rank, 1) << "and is behind";
}

TEST(FindBlame, WhereAllWaitTheOneThatIsBehind) {
  EXPECT_EQ(find_blame({{sign("all-reduce", true, 7, 40), 0}, {sign("all-reduce", true, 7, 39), 0}}, 3).rank, 1);
  EXPECT_EQ(find_blame({{sign("all-reduce", true, 7, 2), 0}, {sign("", false, 6), 0}}, 3).rank, 1)
      << "which has not got the step";
}

// A watchdog with short limits, whose end is noted here.
class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() : folder_(std::filesystem::temp_directory_path()), recorder_(folder_, hash(), 0, 3) {}
  ~WatchdogTest() override { recorder_.remove(); }

  std::unique_ptr<Watchdog> make(int rank, const WatchdogLimits& limits) {
    return std::make_unique<Watchdog>(rank, std::vector<std::string>{"node0", "node1", "node2"}, limits, recorder_,
                                      [this](const std::string& line) {
                                        const std::lock_guard lock(mutex_);
                                        line_ = line;
                                      });
  }
  std::string line() {
    const std::lock_guard lock(mutex_);
    return line_;
  }
  // What a main thread and others do until the watchdog speaks; "" if it does not within a minute.
  template <class Meanwhile>
  std::string wait_for_end(Meanwhile&& meanwhile) {
    const double end_s = now_s() + 60;
    while (line().empty() && now_s() < end_s) {
      meanwhile();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return line();
  }
  static void pulse_for(Watchdog& watchdog, double seconds) {
    for (const double end_s = now_s() + seconds; now_s() < end_s;) {
      watchdog.pulse();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  static std::uint64_t hash() {
    return static_cast<std::uint64_t>(getpid()) << 32 |
           static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->current_test_info()->line());
  }

  static constexpr double kNever = 1e6;
  const WatchdogLimits never_{kNever, kNever, kNever, kNever, kNever, kNever, 4};
  std::string folder_;
  FlightRecorder recorder_;
  std::mutex mutex_;
  std::string line_;
};

TEST_F(WatchdogTest, AMainThreadThatDoesNotLookUpNamesItself) {
  WatchdogLimits limits = never_;
  limits.load = 0.1;
  const auto watchdog = make(1, limits);
  watchdog->enter(SignOfLife::kLoad);
  EXPECT_THAT(wait_for_end([] {}), HasSubstr("the main thread has not looked up"));
  EXPECT_THAT(line(), HasSubstr("rank 1 on node1: is loading"));
}

TEST_F(WatchdogTest, EachPhaseHasItsLimit) {
  WatchdogLimits limits = never_;
  limits.silence = 0.1;
  const auto watchdog = make(0, limits);
  for (const auto phase : {SignOfLife::kStart, SignOfLife::kLoad, SignOfLife::kFinish}) {
    watchdog->enter(phase);
    for (int rank : {1, 2}) {
      SignOfLife other = sign("", false, 1);
      other.phase = phase;
      watchdog->heard(rank, other);
    }
    pulse_for(*watchdog, 0.3);
    EXPECT_EQ(line(), "") << phase;
  }
}

TEST_F(WatchdogTest, OnlyWhoListensMayMissOthers) {
  WatchdogLimits limits = never_;
  limits.silence = 0.1;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kFinish);  // and waits for a disk, while what the others say is left lying
  for (int rank : {1, 2}) watchdog->heard(rank, sign("", false, 1));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(line(), "");
  watchdog->pulse();
  for (int rank : {1, 2}) watchdog->heard(rank, sign("", false, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(line(), "");
}

// Ranks 0 and 1 are a group that gets on; rank 2 is another, and hangs.
TEST_F(WatchdogTest, AGroupThatGetsOnHidesNoneThatHangs) {
  WatchdogLimits limits = never_;
  limits.step = 0.2;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->form_groups({0, 0, 1});
  watchdog->expect(5, 0, /*group=*/0);
  watchdog->expect(9, 0, /*group=*/1);
  SignOfLife busy = sign("layer", false, 5), stuck = sign("layer", false, 9, 3);
  busy.phase = stuck.phase = SignOfLife::kServe;
  const std::string end = wait_for_end([&] {
    watchdog->pulse();
    ++busy.records;
    watchdog->heard(1, busy);
    watchdog->heard(2, stuck);
  });
  EXPECT_THAT(end, HasSubstr("nobody gets on with step 9 of group 1"));
  EXPECT_THAT(end, HasSubstr("rank 2 (group 1) on node2: is in layer 3 of step 9"));
}

// What each group is owed is its own: short debts of many do not add up, and a step ends its group's.
TEST_F(WatchdogTest, DebtsOfGroupsDoNotAddUp) {
  WatchdogLimits limits = never_;
  limits.step = 0.2;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->form_groups({0, 1, 2});
  for (std::uint64_t round = 1; round <= 16; ++round) {
    const int group = static_cast<int>(round % 3);
    watchdog->expect_a_step("waits", group);
    pulse_for(*watchdog, 0.05);
    watchdog->expect(round, kNever, group);
    watchdog->expect(std::nullopt, 0, group);
  }
  EXPECT_EQ(line(), "");
  watchdog->expect_a_step("waits for itself", 2);
  EXPECT_THAT(wait_for_end([&] { watchdog->pulse(); }), HasSubstr("no step is sent to group 2"));
}

TEST_F(WatchdogTest, WhoWaitsForARankThatFellSilentBeforeNamesThatOne) {
  WatchdogLimits limits = never_;
  limits.silence = 0.4;
  limits.start = 1;
  const auto watchdog = make(0, limits);
  for (const double end_s = now_s() + 0.5; now_s() < end_s; pulse_for(*watchdog, 0.01)) watchdog->heard(1, {});
  EXPECT_THAT(wait_for_end([] {}), HasSubstr("rank 2 on node2: nothing has been heard of it"));
  EXPECT_THAT(line(), HasSubstr("the main thread has not looked up"));
}

// Nobody reads the log, and the main thread hangs in the logger.
void hang_in_the_log(FlightRecorder& recorder) {
  alarm(60);
  int ends[2];
  if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) _exit(1);
  const std::string text(4096, 'x');
  while (write(ends[1], text.data(), text.size()) > 0) {
  }
  fcntl(ends[1], F_SETFL, 0);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(ends[1], stream);
  WatchdogLimits limits;
  limits.start = 0.1;
  const Watchdog watchdog(0, {"node0"}, limits, recorder);
  spdlog::warn("a line that nobody takes");
}

TEST_F(WatchdogTest, EndsTheProcessThoughNobodyTakesItsLog) {
  EXPECT_EXIT(hang_in_the_log(recorder_), ::testing::ExitedWithCode(79), "");
}

TEST_F(WatchdogTest, TheEndIsWatchedToo) {
  WatchdogLimits limits = never_;
  limits.finish = 0.5;
  const auto watchdog = make(1, limits);
  watchdog->enter(SignOfLife::kFinish);
  SignOfLife other = sign("", false, 12);
  other.phase = SignOfLife::kFinish;
  watchdog->heard(0, other);
  EXPECT_THAT(wait_for_end([&] { watchdog->pulse(); }), HasSubstr("rank 0 on node0: nothing has been heard of it"));
}

TEST_F(WatchdogTest, ARankOfWhichNothingIsHeardIsNamed) {
  WatchdogLimits limits = never_;
  limits.silence = 0.5;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->heard(2, sign("layer", false, 12, 3));
  const std::string line = wait_for_end([&] {
    watchdog->pulse();
    watchdog->heard(1, sign("all-reduce", true, 12, 3));
  });
  EXPECT_THAT(line, HasSubstr("rank 2 on node2: nothing has been heard of it"));
  EXPECT_THAT(line, HasSubstr("in layer 3 of step 12"));
}

TEST_F(WatchdogTest, RanksMissRankZeroOnly) {
  WatchdogLimits limits = never_;
  limits.silence = 0.5;
  const auto watchdog = make(1, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->heard(0, sign("", false, 12));
  EXPECT_THAT(wait_for_end([&] { watchdog->pulse(); }), HasSubstr("rank 0 on node0: nothing has been heard of it"));
}

TEST_F(WatchdogTest, AStepThatNobodyGetsOnWithEndsTheJobAndOneThatTakesLongDoesNot) {
  WatchdogLimits limits = never_;
  limits.step = 0.5;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->expect(12, /*predicted_s=*/0.01);
  SignOfLife gets_on = sign("layer", false, 12), waits = sign("all-reduce", true, 12, 40);
  const double until_s = now_s() + 2.5;  // several times the limit
  while (now_s() < until_s) {
    watchdog->pulse();
    ++gets_on.records;
    watchdog->heard(1, gets_on);
    watchdog->heard(2, waits);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(line(), "");
  const std::string line = wait_for_end([&] {
    watchdog->pulse();
    watchdog->heard(1, gets_on);
    watchdog->heard(2, waits);
  });
  EXPECT_THAT(line, HasSubstr("nobody gets on with step 12"));
  EXPECT_THAT(line, HasSubstr("rank 1 on node1: is in layer"));
}

TEST_F(WatchdogTest, WithoutAStepInHandNothingIsDue) {
  WatchdogLimits limits = never_;
  limits.step = limits.swap = 0.02;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->expect(12, 0.001);
  watchdog->expect(std::nullopt);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(line(), "");
}

// All ranks look up and say so, and no step is in hand.
TEST_F(WatchdogTest, AStepThatRankZeroOwesAndDoesNotSendEndsTheJobWithWhatItWaitsFor) {
  WatchdogLimits limits = never_;
  limits.step = 0.2;
  const auto watchdog = make(0, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->expect(12, 0.001);
  watchdog->expect(std::nullopt);
  const double due_s = now_s() + 2 * limits.step;
  watchdog->expect_a_step("waits for the end of the input");
  const std::string line = wait_for_end([&] {
    watchdog->pulse();
    for (const int rank : {1, 2}) watchdog->heard(rank, sign("", false, 12));
    watchdog->expect_a_step("waits for itself");
  });
  EXPECT_GE(now_s(), due_s);
  EXPECT_THAT(line, HasSubstr("not all is done and no step is sent"));
  EXPECT_THAT(line, HasSubstr("rank 0 on node0: waits for itself"))
      << "the reason is the latest, the time is the first's";
}

TEST_F(WatchdogTest, WhereNoStepIsOwedOrOneIsInHandNoneIsDue) {
  WatchdogLimits limits = never_;
  limits.step = 0.05;
  const auto watchdog = make(0, limits);
  watchdog->expect_a_step("waits for itself");
  pulse_for(*watchdog, 0.2);
  EXPECT_EQ(line(), "") << "before it serves";
  watchdog->expect(12, /*predicted_s=*/1);
  watchdog->enter(SignOfLife::kServe);
  pulse_for(*watchdog, 0.2);
  EXPECT_EQ(line(), "") << "a step is in hand";
  watchdog->expect_a_step("");
  watchdog->expect(std::nullopt);
  pulse_for(*watchdog, 0.2);
  EXPECT_EQ(line(), "") << "an input that is open is waited for";
}

TEST_F(WatchdogTest, APageThatDoesNotComeIsThisRanksAffair) {
  WatchdogLimits limits = never_;
  limits.swap = 0.1;
  const auto watchdog = make(2, limits);
  watchdog->enter(SignOfLife::kServe);
  watchdog->expect(12, 0.001);
  Trace trace(0, &recorder_);
  trace.begin(TraceTrack::kCompute, kWaitForPage, now_s(), "opt", {{"page", 31}});
  EXPECT_THAT(wait_for_end([&] { watchdog->pulse(); }), HasSubstr("page 31 has not come"));
  EXPECT_THAT(line(), HasSubstr("rank 2 on node2"));
}

TEST(WatchdogLimits, AreScaledTogetherButForWhatIsPredicted) {
  const WatchdogLimits half = WatchdogLimits{}.times(0.5);
  EXPECT_EQ(half.step, 10);
  EXPECT_EQ(half.silence, 30);
  EXPECT_EQ(half.predicted, 4);
}

}  // namespace
}  // namespace computron

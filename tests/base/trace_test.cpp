#include "computron/base/trace.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace computron {
namespace {

TEST(Trace, SpansSayWhatAndWhen) {
  Trace trace;
  const double before_s = now_s();
  {
    const TraceSpan outer(&trace, TraceTrack::kCompute, "outer", "opt", {"step", 7});
    const TraceSpan inner(&trace, TraceTrack::kCompute, "inner");
  }
  trace.close();
  ASSERT_EQ(trace.events().size(), 2u);
  const TraceEvent &inner = trace.events()[0], &outer = trace.events()[1];
  EXPECT_STREQ(outer.name, "outer");
  EXPECT_EQ(outer.model, "opt");
  EXPECT_STREQ(outer.numbers[0].key, "step");
  EXPECT_EQ(outer.numbers[0].value, 7u);
  EXPECT_EQ(inner.numbers[0].key, nullptr);
  EXPECT_LE(before_s, outer.begin_s);
  EXPECT_LE(outer.begin_s, inner.begin_s);
  EXPECT_LE(inner.begin_s, inner.end_s);
  EXPECT_LE(inner.end_s, outer.end_s);
}

TEST(Trace, KeepsTheFirstEventsAndCountsTheRest) {
  Trace trace(10);
  for (int i = 0; i < 25; ++i) trace.add(TraceTrack::kCopy, "fetch", i, i + 1);
  trace.close();
  trace.add(TraceTrack::kCopy, "late", 99, 100);
  ASSERT_EQ(trace.events().size(), 10u);
  EXPECT_EQ(trace.events().back().begin_s, 9);
  EXPECT_EQ(trace.dropped(), 15u);
}

TEST(Trace, ManyThreadsAdd) {
  constexpr int kThreads = 4, kEach = 20000, kRoom = 50000;
  Trace trace(kRoom);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&trace, t] {
        for (int i = 0; i < kEach; ++i) trace.add(static_cast<TraceTrack>(t), "event", i, i + 1);
      });
    }
  }
  trace.close();
  EXPECT_EQ(trace.events().size(), kRoom);
  EXPECT_EQ(trace.dropped(), kThreads * kEach - kRoom);
  std::vector<double> next(kThreads, 0);  // each thread's events, in its order, none missing before the last kept
  for (const TraceEvent& event : trace.events()) EXPECT_EQ(event.begin_s, next[static_cast<int>(event.track)]++);
}

}  // namespace
}  // namespace computron

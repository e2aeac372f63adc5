#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include "computron/base/error.h"
#include "computron/report/trace_metrics.h"

namespace computron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kNames =
    R"({"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
    {"ph":"M","name":"thread_name","pid":0,"tid":2,"args":{"name":"copy"}},
    {"ph":"M","name":"thread_name","pid":0,"tid":3,"args":{"name":"communication"}},
    {"ph":"M","name":"computron_rank","pid":0,"args":{"host":"n1","clock_offset_s":0.1,"clock_error_s":1e-6,"events":3,"dropped_events":7}})";

std::string span(int tid, double begin_us, double length_us, const std::string& name, const std::string& args) {
  return fmt::format(R"({{"ph":"X","pid":0,"tid":{},"ts":{},"dur":{},"name":"{}","args":{{{}}}}})", tid, begin_us,
                     length_us, name, args);
}

std::string trace_of(const std::vector<std::string>& spans) {
  std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)" + kNames;
  for (const std::string& one : spans) text += ",\n" + one;
  return text + "]}";
}

RunTrace read(const std::string& text) {
  std::istringstream in(text);
  return read_run_trace(in, "t.json");
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    return error.what();
  }
  return "no error";
}

TEST(TraceReader, KeepsWhatPicturesAreMadeOf) {
  const RunTrace trace = read(trace_of({
      span(1, 100, 50, "step", R"("model":"a","step":1,"rows":2)"),
      span(1, 110, 10, "wait for page", R"("model":"a","page":3)"),
      span(1, 120, 10, "layer", R"("layer":3)"),
      span(1, 160, 50, "step", R"("model":"a","step":2,"rows":0)"),
      span(3, 160, 5, "receive activation", R"("bytes":8)"),
      span(2, 90, 20, "fetch", R"("model":"b","page":1,"bytes":4000,"link_bytes":2800,"attempts":1)"),
      span(2, 100, 5, "verify", R"("model":"b","page":1)"),
  }));
  const RankSpans& rank = trace.ranks.at(0);
  EXPECT_THAT(trace.models, ElementsAre("a", "b"));
  EXPECT_EQ(rank.host, "n1");
  EXPECT_EQ(rank.dropped, 7u);
  ASSERT_EQ(rank.steps.size(), 1u) << "a step of fetches only is no pass";
  EXPECT_NEAR(rank.steps[0].begin_s, 100e-6, 1e-12);
  EXPECT_NEAR(rank.steps[0].end_s, 150e-6, 1e-12);
  EXPECT_EQ(rank.page_waits.size(), 1u);
  EXPECT_EQ(rank.stage_waits.size(), 1u);
  ASSERT_EQ(rank.copies.size(), 1u);
  EXPECT_EQ(rank.copies[0].bytes, 2800u);
  EXPECT_EQ(trace.models[rank.copies[0].model], "b");
  EXPECT_NEAR(trace.end_s, 210e-6, 1e-12);
}

TEST(TraceReader, WhatElseIsInTheFileIsPassedOver) {
  const std::string step = span(1, 1, 2, "step", R"("model":"a","rows":1,"more":{"model":[{"rows":9}]})");
  const std::string text = R"({"traceEvents":[)" + kNames + "," + step + R"(,{"ph":"C","pid":0,"args":{"x":1}}],)" +
                           R"("otherData":{"traceEvents":[{"ph":3}],"ts":[true]}})";
  EXPECT_EQ(read(text).ranks.at(0).steps.size(), 1u);
  EXPECT_EQ(read("[" + kNames + "," + step + "]").ranks.at(0).steps.size(), 1u) << "a bare list is a trace, too";
}

TEST(TraceReader, WhatIsWrongIsNamed) {
  const auto error_of_span = [](const std::string& text) { return error_of(trace_of({text})); };
  EXPECT_THAT(error_of_span(R"({"ph":"X","pid":0,"tid":1,"dur":1,"name":"step"})"),
              HasSubstr("t.json: traceEvents[4] has no 'ts'"));
  EXPECT_THAT(error_of_span(R"({"ph":"X","pid":0,"tid":1,"ts":"1","dur":1,"name":"step"})"),
              HasSubstr("traceEvents[4] has a 'ts' that is text"));
  EXPECT_THAT(error_of_span(R"({"ph":"X","pid":0,"tid":1,"ts":1,"dur":-1,"name":"step"})"), HasSubstr("has dur -1"));
  EXPECT_THAT(error_of_span(R"({"ph":"X","pid":-3,"tid":1,"ts":1,"dur":1,"name":"step"})"), HasSubstr("has pid -3"));
  EXPECT_THAT(error_of_span(R"({"ph":"X","pid":0,"tid":9,"ts":1,"dur":1,"name":"step"})"), HasSubstr("thread 9"));
  EXPECT_THAT(error_of_span(R"({"ph":"X","pid":0,"tid":1,"ts":1e300,"dur":1,"name":"step"})"),
              HasSubstr("has ts 1e+300"));
  EXPECT_THAT(error_of_span(R"({"ph":1})"), HasSubstr("has a 'ph' that is a number"));
  EXPECT_THAT(error_of_span("{}"), HasSubstr("traceEvents[4] has no 'ph'"));
  EXPECT_THAT(error_of_span(span(2, 1, 1, "fetch", "")), HasSubstr("has no 'args.bytes'"));
}

TEST(TraceReader, AnotherProgramsFileIsRefused) {
  EXPECT_THAT(error_of(R"({"traceEvents":[{"ph":"M","name":"process_name","pid":1,"args":{"name":"chrome"}}]})"),
              AllOf(HasSubstr("t.json"), HasSubstr("not what computron serve --trace writes")));
  EXPECT_THAT(error_of(R"({"wall_s": 3})"), HasSubstr("not what computron serve --trace writes"));
  EXPECT_THAT(error_of("3"), HasSubstr("not what computron serve --trace writes"));
}

TEST(TraceReader, WhatIsNoJsonIsRefused) {
  const std::string whole = trace_of({span(1, 1, 1, "step", R"("model":"a","rows":1)")});
  for (std::size_t length = 0; length < whole.size(); length += 13) {
    EXPECT_THAT(error_of(whole.substr(0, length)), HasSubstr("t.json: not JSON from byte")) << length;
  }
  EXPECT_THAT(error_of(whole + "x"), HasSubstr("t.json: not JSON from byte"));
  EXPECT_THAT(error_of(std::string(1 << 20, '[')), HasSubstr("t.json: not JSON from byte")) << "depth costs nothing";
}

TEST(Times, SumsAndParts) {
  const Times a = united({{3, 4}, {0, 1}, {0.5, 2}, {2, 2.5}, {7, 7}});
  ASSERT_EQ(a.size(), 2u);
  EXPECT_DOUBLE_EQ(total_s(a), 3.5);
  const Times b = united({{1, 3.5}, {9, 10}});
  EXPECT_DOUBLE_EQ(total_s(common(a, b)), 2);
  EXPECT_DOUBLE_EQ(total_s(without(a, b)), 1.5);
  EXPECT_DOUBLE_EQ(total_s(without(b, a)), 1.5);
}

Times random_times(std::mt19937& random, int count) {
  std::uniform_real_distribution<double> at(0, 100), length(0, 3);
  Times times;
  for (int i = 0; i < count; ++i) {
    const double begin_s = at(random);
    times.push_back({begin_s, std::min(100.0, begin_s + length(random))});
  }
  return united(std::move(times));
}

TEST(Times, PicturesConserveTheSum) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const Times a = random_times(random, 1 + round), b = random_times(random, 40);
    EXPECT_NEAR(total_s(common(a, b)) + total_s(without(a, b)), total_s(a), 1e-9);
    EXPECT_NEAR(total_s(common(a, b)), total_s(common(b, a)), 1e-9);
    for (const std::size_t columns : {1u, 7u, 1000u}) {
      const auto seconds = by_column(a, 100, columns);
      EXPECT_NEAR(std::accumulate(seconds.begin(), seconds.end(), 0.0), total_s(a), 1e-9);
      for (const double s : seconds) EXPECT_LE(s, 100.0 / static_cast<double>(columns) + 1e-9);
    }
  }
}

TEST(RankActivity, TimesOfOneRankDoNotOverlap) {
  RankSpans spans;
  spans.steps = {{{0, 10}, 0}, {{9, 20}, 1}};  // the second begins before the first ends: not of ours
  spans.page_waits = {{2, 5}, {30, 31}};
  spans.stage_waits = {{4, 6}};
  spans.copies = {{{1, 4}, 1, 300}, {{12, 13}, 0, 100}};
  const RankActivity activity = activity_of(spans);
  EXPECT_DOUBLE_EQ(total_s(activity.page_waits), 3) << "within passes only";
  EXPECT_DOUBLE_EQ(total_s(activity.stage_waits), 1);
  EXPECT_DOUBLE_EQ(total_s(activity.compute.at(0)) + total_s(activity.compute.at(1)), 16);
  EXPECT_DOUBLE_EQ(total_s(activity.computing), 16);
  const OverlapMetrics overlap = overlap_of({activity, activity});
  EXPECT_DOUBLE_EQ(overlap.both_s, 2);
  EXPECT_DOUBLE_EQ(overlap.compute_only_s, 14);
  EXPECT_DOUBLE_EQ(overlap.copy_only_s, 2);
  EXPECT_DOUBLE_EQ(overlap.hidden_fraction(), 0.5);
  EXPECT_TRUE(std::isnan(overlap_of({}).hidden_fraction()));
}

TEST(LinkRate, BytesAreConserved) {
  RankSpans spans;
  spans.copies = {{{0.5, 2.5}, 0, 4'000'000'000}, {{3, 3.25}, 0, 1'000'000'000}};
  const auto rates = link_rate(spans, 4, 4);
  EXPECT_THAT(rates, ElementsAre(1.0, 2.0, 1.0, 1.0));
}

}  // namespace
}  // namespace computron

#include "computron/report/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "computron/base/error.h"

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kHead = "study,mesh,ranks,tp,pp,groups,repeat,metric,value,unit,bound,check,host,commit,date\n";
const std::string kSwap = kHead +
                          "# links: emulated, 1 GB/s a rank\n# machine: two cores\n# said by hand\n"
                          "strong swap,1x1,1,1,1,1,1,swap,8,s,7.6,ok,box,abc,today\n"
                          "strong swap,1x1,1,1,1,1,2,swap,10,s,7.6,ok,box,abc,today\n"
                          "strong swap,1x1,1,1,1,1,3,swap,9,s,7.6,ok,box,abc,today\n"
                          "strong swap,4x1,4,4,1,1,1,swap,3,s,2,ok,box,abc,today\n"
                          "strong swap,2x1,2,2,1,1,1,swap,4.5,s,3.8,\"no, 3 differ\",box,abc,today\n"
                          "strong swap,2x2,4,2,2,1,1,swap,2.5,s,,,box,abc,today\n"
                          "strong swap,1x1,1,1,1,1,1,link,0.95,GB/s,1,ok,box,abc,today\n"
                          "weak decode,1x1,1,1,1,1,1,time,2,s,,,box,abc,today\n"
                          "weak decode,2x1,2,2,1,1,1,time,2.5,s,,,box,abc,today\n"
                          "rate,1x1,1,1,1,1,1,tokens,100,tokens/s,,,box,abc,today\n"
                          "rate,2x1,2,2,1,1,1,tokens,150,tokens/s,,,box,abc,today\n";

StudyFile read(const std::string& text) {
  std::istringstream in(text);
  return read_study_file(in, "s.csv");
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

TEST(Study, RepeatsAreOneCell) {
  const StudyFile file = read(kSwap);
  EXPECT_EQ(file.links, "emulated, 1 GB/s a rank");
  EXPECT_EQ(file.machine, "two cores");
  EXPECT_THAT(file.notes, ElementsAre("said by hand"));
  ASSERT_EQ(file.studies.size(), 3u);
  const Study& swap = file.studies[0];
  EXPECT_FALSE(swap.weak);
  ASSERT_EQ(swap.metrics.size(), 2u);
  const auto& cells = swap.metrics[0].cells;
  ASSERT_EQ(cells.size(), 4u) << "by ranks, then by mesh";
  EXPECT_THAT(cells[0].values, ElementsAre(8, 9, 10));
  EXPECT_EQ(cells[0].median(), 9);
  EXPECT_EQ(cells[0].check, "ok");
  EXPECT_EQ(cells[1].check, "no, 3 differ");
  EXPECT_EQ(cells[2].pp, 1);
  EXPECT_EQ(cells[3].pp, 2);
}

TEST(Study, SpeedUpsHaveABase) {
  const StudyFile file = read(kSwap);
  const Study &swap = file.studies[0], &weak = file.studies[1], &rate = file.studies[2];
  const auto cell = [](const Study& study, std::size_t i) { return study.metrics[0].cells[i]; };
  EXPECT_DOUBLE_EQ(*swap.speed_up(cell(swap, 2)), 3);
  EXPECT_DOUBLE_EQ(*swap.efficiency(cell(swap, 2)), 0.75);
  EXPECT_DOUBLE_EQ(*swap.efficiency(cell(swap, 0)), 1);
  EXPECT_TRUE(weak.weak);
  EXPECT_DOUBLE_EQ(*weak.speed_up(cell(weak, 1)), 1.6) << "twice the work in 2.5 / 2 of the time";
  EXPECT_DOUBLE_EQ(*weak.efficiency(cell(weak, 1)), 0.8);
  EXPECT_DOUBLE_EQ(*rate.speed_up(cell(rate, 1)), 1.5) << "a rate: more is better";
  EXPECT_DOUBLE_EQ(*rate.efficiency(cell(rate, 1)), 0.75);
}

TEST(Study, SharesOfBounds) {
  const StudyFile file = read(kSwap);
  const auto& metrics = file.studies[0].metrics;
  EXPECT_DOUBLE_EQ(*share_of_bound(metrics[0], metrics[0].cells[2]), 2.0 / 3) << "a time";
  EXPECT_DOUBLE_EQ(*share_of_bound(metrics[1], metrics[1].cells[0]), 0.95) << "a rate";
  EXPECT_FALSE(share_of_bound(metrics[0], metrics[0].cells[3]));
}

TEST(Study, PlotsSayWhatWasEmulated) {
  const StudyFile file = read(kSwap);
  const auto charts = charts_of(file.studies[0], file);
  ASSERT_EQ(charts.size(), 4u);
  EXPECT_EQ(charts[1].name, "strong-swap-speed-up");
  for (const StudyChart& made : charts) {
    EXPECT_EQ(made.chart.subtitle, "two cores · links: emulated, 1 GB/s a rank");
    EXPECT_THAT(to_svg(made.chart, ChartPlace::kFile), HasSubstr("emulated, 1 GB/s a rank"));
  }
  const auto& lines = charts[1].chart.lines;  // tp, tp × pp, ideal
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].points.size(), 3u) << "one rank begins every line";
  EXPECT_EQ(lines[1].points.size(), 2u);
  EXPECT_EQ(lines[2].name, "ideal");
  EXPECT_EQ(lines[2].points.back().y, 4);
}

TEST(Study, HostsHaveLinesOfTheirOwn) {
  const std::string theirs = "strong swap,4x1,4,4,1,1,1,swap,1.5,s,,,Computron (A100),,\n";
  const StudyFile file = read(kSwap + theirs + "strong swap,2x1,2,2,1,1,1,swap,3,s,,,Computron (A100),,\n");
  const Study& swap = file.studies[0];
  const StudyCell like{4, 4, 1, 1, "Computron (A100)", {}, {}, {}};
  EXPECT_DOUBLE_EQ(*swap.speed_up(like), 2) << "against its own smallest mesh";
  EXPECT_DOUBLE_EQ(*swap.efficiency(like), 1);
  EXPECT_EQ(charts_of(swap, file)[1].chart.lines.size(), 4u);
}

TEST(Study, NamesOfFilesLeaveNoFolder) {
  const StudyFile file = read(kHead + "../../etc/x,1x1,1,1,1,1,1,a/b,1,s,,,,,\n");
  for (const StudyChart& made : charts_of(file.studies[0], file)) {
    EXPECT_EQ(made.name.find('/'), std::string::npos) << made.name;
    EXPECT_NE(made.name.front(), '.') << made.name;
  }
}

TEST(Study, WhatIsWrongIsNamed) {
  const std::string row = "s,1x1,1,1,1,1,1,m,1,s,,,h,c,d\n";
  EXPECT_THAT(error_of(""), HasSubstr("s.csv: empty"));
  EXPECT_THAT(error_of(kHead), HasSubstr("s.csv: no row"));
  EXPECT_THAT(error_of("a,b\n1,2\n"), HasSubstr("s.csv: line 1 has no column 'study'"));
  EXPECT_THAT(error_of("study,study\n"), HasSubstr("s.csv: line 1 names the column 'study' twice"));
  EXPECT_THAT(error_of(kHead + row + "s,1x1\n"), HasSubstr("s.csv: line 3 has 2 fields, the line of column names 15"));
  EXPECT_THAT(error_of(kHead + "s,1x1,1,1,1,1,1,m,fast,s,,,h,c,d\n"),
              HasSubstr("line 2: value should be a number, not 'fast'"));
  EXPECT_THAT(error_of(kHead + "s,1x1,1,1,1,1,1,m,nan,s,,,h,c,d\n"), HasSubstr("value should be a number, not 'nan'"));
  EXPECT_THAT(error_of(kHead + "s,1x1,0,1,1,1,1,m,1,s,,,h,c,d\n"), HasSubstr("ranks should be a whole number"));
  EXPECT_THAT(error_of(kHead + "s,1x1,1.5,1,1,1,1,m,1,s,,,h,c,d\n"), HasSubstr("ranks should be a whole number"));
  EXPECT_THAT(error_of(kHead + ",1x1,1,1,1,1,1,m,1,s,,,h,c,d\n"), HasSubstr("study should be a name"));
  EXPECT_THAT(error_of(kHead + row + "s,1x1,1,1,1,1,1,m,1,ms,,,h,c,d\n"), HasSubstr("line 3 gives metric 'm' in ms"));
  EXPECT_THAT(error_of(kHead + "s,\"1x1,1,1\n"), HasSubstr("line 2 has a quote that does not end"));
}

}  // namespace
}  // namespace computron

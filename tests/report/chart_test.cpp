#include "computron/report/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <regex>

namespace computron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Summed heights × widths of the rectangles of lane parts: "M x y h w v h h -w z".
double filled_area(const std::string& svg) {
  static const std::regex cell(R"(M[-\d.]+ [-\d.]+h([\d.]+)v([\d.]+)h-[\d.]+z)");
  double area = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), cell), end; at != end; ++at) {
    area += std::stod((*at)[1]) * std::stod((*at)[2]);
  }
  return area;
}

LaneChart lanes(std::vector<double> fractions) {
  LaneChart chart{"lanes", exact_axis("s", 0, 10), {}, {}};
  chart.lanes.push_back({"rank 0", {{"a <b>", "m0", std::move(fractions)}}});
  return chart;
}

TEST(LaneChart, FilledAreaIsTheTime) {
  const std::string half = to_svg(lanes({1, 0.5, 0, 0.5, 1, 0.5, 0.5, 0}), ChartPlace::kPage);
  const std::string full = to_svg(lanes({1, 1, 1, 1, 1, 1, 1, 1}), ChartPlace::kPage);
  EXPECT_NEAR(filled_area(half) / filled_area(full), 0.5, 0.01);
}

TEST(LaneChart, EqualColumnsAreOneRectangle) {
  const std::string svg = to_svg(lanes(std::vector<double>(1000, 0.5)), ChartPlace::kPage);
  EXPECT_LT(svg.size(), 4000u);
  EXPECT_THAT(svg, HasSubstr("<title>a &lt;b&gt;</title>"));
}

Chart line_chart() {
  Chart chart{"speed <up>", "links: emulated & slow", linear_axis("ranks", 0, 4), linear_axis("×", 0, 4)};
  chart.lines.push_back({"tp", "m0", {{1, 1}, {2, 1.9, 1.8, 2.0}, {4, 3.5}}, /*markers=*/true});
  chart.lines.push_back({"ideal", kReferenceClass, {{1, 1}, {4, 4}}});
  return chart;
}

TEST(Chart, AFileOfItsOwnStandsAlone) {
  const std::string svg = to_svg(line_chart(), ChartPlace::kFile);
  EXPECT_TRUE(svg.starts_with("<?xml")) << svg.substr(0, 60);
  EXPECT_THAT(svg, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("speed &lt;up&gt;"));
  EXPECT_THAT(svg, HasSubstr("links: emulated &amp; slow"));
  EXPECT_THAT(svg, HasSubstr("#0072b2"));
  EXPECT_THAT(svg, Not(HasSubstr("var(")));  // not every program that shows SVG knows variables
}

TEST(Chart, OnAPageItTakesThePagesStyle) {
  const std::string svg = to_svg(line_chart(), ChartPlace::kPage);
  EXPECT_THAT(svg, Not(HasSubstr("<style>")));
  EXPECT_THAT(svg, HasSubstr("class=\"mr line dashed\""));
  for (const char* colour : {"m0", "mr"}) EXPECT_THAT(chart_style(), HasSubstr(std::string(".") + colour + "{"));
}

TEST(Chart, BandsLieOnEachOther) {
  Chart chart{"", "", exact_axis("s", 0, 2), linear_axis("", 0, 4)};
  chart.bands = {{"low", "m0", {1, 1}}, {"high", "m1", {1, 3}}, {"none", "m2", {0, 0}}};
  const std::string svg = to_svg(chart, ChartPlace::kPage);
  EXPECT_THAT(svg, HasSubstr("<title>low</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>high</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("<title>none</title>"))) << "there is nothing to point at";
}

}  // namespace
}  // namespace computron

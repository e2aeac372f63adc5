// Charts as SVG: lines, stacked bands and lanes over time.
//
// Colours are classes (chart_style): m0, m1, ... of a palette that people who confuse colours can tell apart, and some
// with a meaning. What is drawn on a page takes the page's style, light or dark; a file of its own carries its style.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/report/axis.h"

namespace computron {

// A colour of the palette; past its end all are the same grey.
inline constexpr int kPaletteColours = 7;
std::string palette_class(std::size_t index);
inline constexpr const char* kOtherClass = "mo";      // grey: what has no colour of its own
inline constexpr const char* kWaitClass = "mw";       // compute stalls on pages
inline constexpr const char* kReferenceClass = "mr";  // bounds, ideals: dashed

struct ChartPoint {
  double x, y;
  std::optional<double> low = {}, high = {};  // ends of a whisker
  std::string note = {};                      // shown when it is pointed at
};

struct ChartLine {
  std::string name;
  std::string colour;  // class
  std::vector<ChartPoint> points;
  bool markers = false;
  bool steps = false;  // the value of a point holds until the next
};

// A band a column: columns divide the x axis evenly. Bands lie on each other in their order.
struct ChartBand {
  std::string name;
  std::string colour;
  std::vector<double> heights;  // [column]
};

struct Chart {
  std::string title;     // drawn in a file of its own only
  std::string subtitle;  // the same
  Axis x, y;
  std::vector<ChartBand> bands = {};
  std::vector<ChartLine> lines = {};
  double width = 560;
  double height = 300;
};

// A row of the same width for each of some things that one after the other were busy with one of several others.
struct LanePart {
  std::string name;  // shown when it is pointed at
  std::string colour;
  std::vector<double> fractions;  // [column] of the lane's height; parts of a lane add up to 1 at most
};
struct Lane {
  std::string label;
  std::vector<LanePart> parts;
  bool begins_group = true;  // with a gap above
};
struct LaneChart {
  std::string title;
  Axis x;
  std::vector<Lane> lanes;
  std::vector<std::pair<std::string, std::string>> legend;  // name, class
  double width = 1120;
  double lane_height = 14;
};

enum class ChartPlace { kPage, kFile };
std::string to_svg(const Chart& chart, ChartPlace place);
std::string to_svg(const LaneChart& chart, ChartPlace place);

// Of the classes that charts use, for the <style> of a page: the colours are variables that page_colours() sets.
std::string chart_style();
std::string page_colours();       // --name: value; ... of the light scheme
std::string page_dark_colours();  // of the dark one

}  // namespace computron

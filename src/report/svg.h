// Elements of SVG as text.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "computron/report/chart.h"

namespace computron {

inline constexpr double kTextHeight = 11;
// Of a run of letters in the charts' font, roughly.
double text_width(std::string_view text);

struct Box {
  double left, top, width, height;
  double right() const { return left + width; }
  double bottom() const { return top + height; }
};

// A coordinate, to a tenth of a pixel, without a trailing ".0".
std::string px(double value);

class Svg {
 public:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  void rect(const Box& box, std::string_view style);
  // `anchor`: start, middle or end. Escapes the text.
  void text(double x, double y, std::string_view text, std::string_view anchor = "start", std::string_view style = "");
  // A path of one colour; with a note where there is one.
  void path(std::string_view data, std::string_view style, std::string_view note = "");

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

struct LegendEntry {
  std::string name, colour;
  bool dashed = false, line = false;
};

// A row of swatches and names, broken where the width ends; the height that it takes.
double draw_legend(Svg& svg, const std::vector<LegendEntry>& entries, const Box& within);

// Ticks, grid and label of an axis of a plot.
void draw_x_axis(Svg& svg, const Axis& axis, const Box& plot, bool grid);
void draw_y_axis(Svg& svg, const Axis& axis, const Box& plot);

// <svg> around `content`; in a file of its own with its style, title and font.
std::string whole_svg(const std::string& content, std::string_view name, double width, double height, ChartPlace place);

// The head of a file of its own: title and subtitle; the height that it takes, 0 on a page.
double draw_head(Svg& svg, const std::string& title, const std::string& subtitle, ChartPlace place);

}  // namespace computron

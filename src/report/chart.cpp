#include "computron/report/chart.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/report/text.h"
#include "src/report/svg.h"

namespace computron {
namespace {

constexpr double kBelow = 42;  // of a plot: ticks and the label of the axis

class Plot {
 public:
  Plot(const Chart& chart, const Box& box) : chart_(chart), box_(box) {}

  double x(double value) const { return box_.left + chart_.x.place(value) * box_.width; }
  double y(double value) const { return box_.bottom() - chart_.y.place(value) * box_.height; }

  void draw(Svg& svg) const {
    draw_y_axis(svg, chart_.y, box_);
    draw_bands(svg);
    draw_x_axis(svg, chart_.x, box_, false);
    for (const ChartLine& line : chart_.lines) draw_line(svg, line);
  }

 private:
  void draw_bands(Svg& svg) const {
    if (chart_.bands.empty()) return;
    std::vector<double> base(chart_.bands.front().heights.size(), 0);
    for (const ChartBand& band : chart_.bands) {
      std::vector<double> top = base;
      for (std::size_t i = 0; i < top.size(); ++i) top[i] += band.heights[i];
      svg.path(outline(base, top), band.colour + " area", band.name);
      base = std::move(top);
    }
  }

  // The upper edge from left to right, then the lower one back; nothing if there is nothing between them.
  std::string outline(const std::vector<double>& base, const std::vector<double>& top) const {
    if (base == top) return {};
    return fmt::format("M{}L{}Z", edge(top, false), edge(base, true));
  }

  std::string edge(const std::vector<double>& heights, bool back) const {
    const std::size_t n = heights.size();
    const double step = box_.width / static_cast<double>(n);
    std::string data, last;
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t i = back ? n - 1 - k : k;
      const std::string height = px(y(heights[i]));
      const double left = box_.left + step * static_cast<double>(i);
      if (height == last && k + 1 < n) continue;  // a level stretch is its ends
      if (!last.empty()) data += fmt::format(" {} {}", px(back ? left + step : left), last);
      data += fmt::format(" {} {}", px(back ? left + step : left), height);
      if (k + 1 == n) data += fmt::format(" {} {}", px(back ? left : left + step), height);
      last = height;
    }
    return data;
  }

  void draw_line(Svg& svg, const ChartLine& line) const {
    const bool reference = line.colour == kReferenceClass;
    svg.path(route(line), line.colour + (reference ? " line dashed" : " line"), line.name);
    for (const ChartPoint& point : line.points) {
      if (point.low && point.high) draw_whisker(svg, line, point);
      if (line.markers) draw_marker(svg, line, point);
    }
  }

  std::string route(const ChartLine& line) const {
    std::string data, last;
    for (const ChartPoint& point : line.points) {
      const std::string to = px(x(point.x));
      if (line.steps && !last.empty()) data += fmt::format(" {} {}", to, last);
      last = px(y(point.y));
      data += fmt::format("{}{} {}", data.empty() ? "M" : data.find('L') == std::string::npos ? "L" : " ", to, last);
    }
    return line.points.size() > 1 ? data : std::string();
  }

  void draw_whisker(Svg& svg, const ChartLine& line, const ChartPoint& point) const {
    const double at = x(point.x), low = y(*point.low), high = y(*point.high);
    if (low - high < 2) return;  // hidden behind the marker
    svg.path(fmt::format("M{0} {2}L{0} {3}M{1} {2}h6M{1} {3}h6", px(at), px(at - 3), px(low), px(high)),
             line.colour + " line");
  }

  void draw_marker(Svg& svg, const ChartLine& line, const ChartPoint& point) const {
    svg.put("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"><title>{}</title></circle>\n", line.colour,
            px(x(point.x)), px(y(point.y)), escape_markup(point.note.empty() ? line.name : point.note));
  }

  const Chart& chart_;
  Box box_;
};

std::vector<LegendEntry> legend_of(const Chart& chart) {
  std::vector<LegendEntry> entries;
  for (const ChartBand& band : chart.bands) entries.push_back({band.name, band.colour});
  for (const ChartLine& line : chart.lines) {
    entries.push_back({line.name, line.colour, line.colour == kReferenceClass, true});
  }
  return entries;
}

double left_margin(const Axis& y) {
  double widest = 0;
  for (const Tick& tick : y.ticks) widest = std::max(widest, text_width(tick.text));
  return widest + 14;
}

// Of one part of a lane: a rectangle for each stretch of columns at the same height.
std::string stretches(const LanePart& part, std::vector<double>& base, const Box& lane) {
  const double step = lane.width / static_cast<double>(part.fractions.size());
  const auto height = [&](std::size_t i) { return px(part.fractions[i] * lane.height); };
  const auto top = [&](std::size_t i) { return px(lane.bottom() - (base[i] + part.fractions[i]) * lane.height); };
  std::string data;
  for (std::size_t i = 0; i < part.fractions.size();) {
    std::size_t end = i + 1;
    while (end < part.fractions.size() && height(end) == height(i) && top(end) == top(i)) ++end;
    if (height(i) != "0") {
      data += fmt::format("M{} {}h{}v{}h-{}z", px(lane.left + step * static_cast<double>(i)), top(i),
                          px(step * static_cast<double>(end - i)), height(i), px(step * static_cast<double>(end - i)));
    }
    i = end;
  }
  for (std::size_t i = 0; i < base.size(); ++i) base[i] += part.fractions[i];
  return data;
}

void draw_lane(Svg& svg, const Lane& lane, const Box& box) {
  svg.text(box.left - 7, box.top + box.height / 2 + 4, lane.label, "end");
  svg.rect(box, "grid");
  if (lane.parts.empty()) return;
  std::vector<double> base(lane.parts.front().fractions.size(), 0);
  for (const LanePart& part : lane.parts) svg.path(stretches(part, base, box), part.colour + " area", part.name);
}

}  // namespace

std::string to_svg(const Chart& chart, ChartPlace place) {
  Svg svg;
  double top = draw_head(svg, chart.title, chart.subtitle, place);
  top += draw_legend(svg, legend_of(chart), {4, top + 4, chart.width - 8, 0}) + 4;
  const double left = left_margin(chart.y);
  const Box box{left, top + 22, chart.width - left - 16, chart.height - kBelow};
  Plot(chart, box).draw(svg);
  return whole_svg(svg.take(), chart.title, chart.width, box.bottom() + kBelow, place);
}

std::string to_svg(const LaneChart& chart, ChartPlace place) {
  constexpr double kGroupGap = 10, kGap = 2;
  Svg svg;
  std::vector<LegendEntry> legend;
  double left = 0;
  for (const auto& [name, colour] : chart.legend) legend.push_back({name, colour});
  for (const Lane& lane : chart.lanes) left = std::max(left, text_width(lane.label) + 14);
  double y = draw_head(svg, chart.title, {}, place) + 4;
  y += draw_legend(svg, legend, {4, y, chart.width - 8, 0});
  const double top = y;
  for (const Lane& lane : chart.lanes) {
    y += lane.begins_group ? kGroupGap : kGap;
    draw_lane(svg, lane, {left, y, chart.width - left - 16, chart.lane_height});
    y += chart.lane_height;
  }
  draw_x_axis(svg, chart.x, {left, top, chart.width - left - 16, y + 4 - top}, false);
  return whole_svg(svg.take(), chart.title, chart.width, y + 4 + kBelow, place);
}

}  // namespace computron

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "computron/report/study.h"
#include "computron/report/text.h"

namespace computron {
namespace {

// Meshes that grow in one way belong to one line; one rank belongs to all.
std::string way_of(const StudyCell& cell) {
  std::string way = cell.pp == 1 ? "tp = ranks" : cell.tp == 1 ? "pp = ranks" : "tp × pp";
  if (cell.groups > 1) way = cell.groups == cell.ranks ? "groups = ranks" : "groups × " + way;
  return way;
}

std::string mesh_of(const StudyCell& cell) {
  const std::string mesh = fmt::format("tp {} × pp {}", cell.tp, cell.pp);
  return cell.groups > 1 ? fmt::format("{} groups of {}", cell.groups, mesh) : mesh;
}

using Value = std::function<std::optional<double>(const StudyCell&)>;

// What a chart shows of a metric.
struct Shown {
  std::string name, label, unit;
  Value median, low, high;
};

bool several_hosts(const StudyMetric& metric) {
  return std::any_of(metric.cells.begin(), metric.cells.end(),
                     [&](const StudyCell& cell) { return cell.host != metric.cells.front().host; });
}

ChartPoint point_of(const Shown& shown, const StudyCell& cell) {
  const double y = *shown.median(cell);
  return {double(cell.ranks), y, shown.low(cell), shown.high(cell),
          fmt::format("{} ranks, {}: {} {}", cell.ranks, mesh_of(cell), format_number(y), shown.unit)};
}

// The line of a way of growing and host, in the order of the cells.
ChartLine& line_of(std::vector<ChartLine>& lines, const std::string& name) {
  const auto same = [&](const ChartLine& line) { return line.name == name; };
  const auto found = std::find_if(lines.begin(), lines.end(), same);
  if (found != lines.end()) return *found;
  return lines.emplace_back(ChartLine{name, palette_class(lines.size()), {}, /*markers=*/true});
}

// Each line begins with its host's mesh of one rank, if there is one; of one rank alone there is a point.
std::vector<ChartLine> lines_of(const StudyMetric& metric, const Shown& shown) {
  std::vector<ChartLine> lines;
  std::map<std::string, ChartPoint> firsts;  // by host
  std::set<std::string> grown;               // hosts that have lines
  const bool hosts = several_hosts(metric);
  const auto name = [&](const StudyCell& cell) { return hosts ? cell.host + ", " + way_of(cell) : way_of(cell); };
  for (const StudyCell& cell : metric.cells) {
    if (!shown.median(cell)) continue;
    const ChartPoint point = point_of(shown, cell);
    if (cell.ranks == 1) {
      firsts.emplace(cell.host, point);
      continue;
    }
    ChartLine& line = line_of(lines, name(cell));
    if (line.points.empty() && firsts.contains(cell.host)) line.points.push_back(firsts.at(cell.host));
    line.points.push_back(point);
    grown.insert(cell.host);
  }
  for (const auto& [host, point] : firsts) {  // of hosts with nothing but one rank
    if (!grown.contains(host)) line_of(lines, host.empty() ? "1 rank" : host).points.push_back(point);
  }
  return lines;
}

std::vector<double> ranks_of(const StudyMetric& metric) {
  std::set<double> ranks;
  for (const StudyCell& cell : metric.cells) ranks.insert(cell.ranks);
  return {ranks.begin(), ranks.end()};
}

double highest(const std::vector<ChartLine>& lines) {
  double high = 0;
  for (const ChartLine& line : lines) {
    for (const ChartPoint& point : line.points) high = std::max({high, point.y, point.high.value_or(0)});
  }
  return high;
}

double lowest(const std::vector<ChartLine>& lines) {
  double low = INFINITY;
  for (const ChartLine& line : lines) {
    for (const ChartPoint& point : line.points) low = std::min({low, point.y, point.low.value_or(point.y)});
  }
  return low;
}

std::string subtitle_of(const StudyFile& file) {
  std::string text;
  const bool says_what = file.links.empty() || file.links.find("link") != std::string::npos;
  for (const std::string& part : {file.machine, says_what ? file.links : "links: " + file.links}) {
    if (!part.empty()) text += (text.empty() ? "" : " · ") + part;
  }
  return text;
}

// "strong swap / speed-up" as the name of a file.
std::string file_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.';
    if (plain) name += c;
    if (!plain && !name.empty() && name.back() != '-') name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  const std::size_t dots = name.find_first_not_of('.');
  return dots == std::string::npos ? "study" : name.substr(dots, 80);
}

StudyChart chart_of(const Study& study, const StudyFile& file, const StudyMetric& metric, const Shown& shown) {
  Chart chart;
  chart.title = fmt::format("{}: {}", study.name, shown.name);
  chart.subtitle = subtitle_of(file);
  chart.x = value_axis("ranks", ranks_of(metric));
  chart.lines = lines_of(metric, shown);
  chart.y = linear_axis(shown.label, 0, highest(chart.lines) * 1.05);
  return {file_name(study.name + "-" + shown.name), std::move(chart)};
}

Shown spread_of(const StudyMetric& metric) {
  return {metric.name,
          metric.unit.empty() ? metric.name : fmt::format("{}, {}", metric.name, metric.unit),
          metric.unit,
          [](const StudyCell& cell) { return std::optional(cell.median()); },
          [](const StudyCell& cell) { return std::optional(cell.values.front()); },
          [](const StudyCell& cell) { return std::optional(cell.values.back()); }};
}

const Value kNone = [](const StudyCell&) { return std::optional<double>(); };

ChartLine reference(std::string name, std::vector<ChartPoint> points) {
  return {std::move(name), kReferenceClass, std::move(points)};
}

// Bounds of the cells of the chart's first host, where they have some.
void add_bound(const StudyMetric& metric, Chart& chart) {
  std::map<double, double> bounds;
  for (const StudyCell& cell : metric.cells) {
    if (cell.host != metric.cells.front().host || !cell.bound()) continue;
    const auto [at, is_new] = bounds.emplace(cell.ranks, *cell.bound());
    if (!is_new)
      at->second = metric.is_time() ? std::min(at->second, *cell.bound()) : std::max(at->second, *cell.bound());
  }
  std::vector<ChartPoint> points;
  for (const auto& [ranks, bound] : bounds) points.push_back({ranks, bound});
  if (points.size() > 1) chart.lines.push_back(reference("bound", std::move(points)));
}

StudyChart metric_chart(const Study& study, const StudyFile& file, const StudyMetric& metric) {
  StudyChart made = chart_of(study, file, metric, spread_of(metric));
  add_bound(metric, made.chart);
  made.chart.y = linear_axis(made.chart.y.label, 0, highest(made.chart.lines) * 1.05);
  const double low = lowest(made.chart.lines), high = highest(made.chart.lines);
  if (metric.is_time() && low > 0 && high > 8 * low) made.chart.y = log_axis(made.chart.y.label, low / 1.3, high * 1.3);
  return made;
}

// Ticks at powers of two, as ranks grow.
Axis doubling_axis(std::string label, double low, double high) {
  Axis axis{std::move(label), low, high, true};
  for (double value = std::exp2(std::ceil(std::log2(low))); value <= high; value *= 2) {
    axis.ticks.push_back({value, format_number(value)});
  }
  return axis;
}

StudyChart speed_up_chart(const Study& study, const StudyFile& file) {
  const StudyMetric& metric = study.metrics.front();
  StudyChart made = chart_of(study, file, metric,
                             {"speed-up", study.weak ? "scaled speed-up" : "speed-up", "×",
                              [&](const StudyCell& cell) { return study.speed_up(cell); }, kNone, kNone});
  const double base = study.base_of(metric.cells.front())->ranks;
  std::vector<double> ranks = ranks_of(metric);
  std::vector<ChartPoint> ideal;
  for (const double r : ranks) ideal.push_back({r, r / base});
  made.chart.lines.push_back(reference("ideal", ideal));
  made.chart.y = doubling_axis(made.chart.y.label, std::min(0.9, lowest(made.chart.lines) / 1.1),
                               highest(made.chart.lines) * 1.15);
  return made;
}

StudyChart efficiency_chart(const Study& study, const StudyFile& file) {
  const StudyMetric& metric = study.metrics.front();
  const auto percent = [&](const StudyCell& cell) {
    const auto efficiency = study.efficiency(cell);
    return efficiency ? std::optional(100 * *efficiency) : std::nullopt;
  };
  StudyChart made = chart_of(study, file, metric, {"efficiency", "efficiency, %", "%", percent, kNone, kNone});
  const std::vector<double> ranks = ranks_of(metric);
  made.chart.lines.push_back(reference("ideal", {{ranks.front(), 100}, {ranks.back(), 100}}));
  made.chart.y = exact_axis(made.chart.y.label, 0, std::max(110.0, 1.05 * highest(made.chart.lines)), 7);
  return made;
}

}  // namespace

std::vector<StudyChart> charts_of(const Study& study, const StudyFile& file) {
  std::vector<StudyChart> charts = {metric_chart(study, file, study.metrics.front())};
  if (ranks_of(study.metrics.front()).size() > 1) {
    charts.push_back(speed_up_chart(study, file));
    charts.push_back(efficiency_chart(study, file));
  }
  for (std::size_t i = 1; i < study.metrics.size(); ++i) charts.push_back(metric_chart(study, file, study.metrics[i]));
  return charts;
}

}  // namespace computron

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "computron/report/text.h"
#include "computron/report/trace_metrics.h"
#include "src/report/sections.h"

namespace computron {
namespace {

constexpr std::size_t kColumns = 1000;     // of a wide chart: a pixel each
constexpr std::size_t kHalfColumns = 240;  // of a narrow one
constexpr std::size_t kCells = 16000;      // of all lanes: what keeps a page of many ranks small
constexpr std::size_t kMostRanks = 64;     // with lanes of their own
constexpr const char* kStageWaitClass = "mo";

struct RankView {
  int rank;
  const RankSpans* spans;
  RankActivity activity;
};

std::vector<RankView> views_of(const RunTrace& trace) {
  std::vector<RankView> views;
  for (const auto& [rank, spans] : trace.ranks) views.push_back({rank, &spans, activity_of(spans)});
  return views;
}

LanePart part_of(const std::string& name, const std::string& colour, const Times& times, double end_s,
                 std::size_t columns) {
  LanePart part{fmt::format("{}: {}", name, format_time(total_s(times))), colour, by_column(times, end_s, columns)};
  for (double& fraction : part.fractions) fraction *= static_cast<double>(columns) / end_s;
  return part;
}

// A part a model that has a colour, one for all the others.
void add_parts(const std::string& what, const std::map<std::uint32_t, Times>& by_model, const RunTrace& trace,
               const ModelColours& colours, std::size_t columns, Lane& lane) {
  Times others;
  for (const auto& [model, times] : by_model) {
    const std::string& id = trace.models[model];
    if (colours.own(id)) {
      lane.parts.push_back(part_of(what + " " + id, colours.of(id), times, trace.end_s, columns));
    } else {
      others.insert(others.end(), times.begin(), times.end());
    }
  }
  if (others.empty()) return;
  lane.parts.push_back(part_of(what + " another model", kOtherClass, united(std::move(others)), trace.end_s, columns));
}

void add_lanes(const RankView& view, const RunTrace& trace, const ModelColours& colours, std::size_t columns,
               std::vector<Lane>& lanes) {
  const std::string group = view.spans->group ? fmt::format(" (group {})", *view.spans->group) : std::string();
  const std::string rank = fmt::format("rank {}{}", view.rank, group);
  Lane compute{rank + " computes", {}, true}, copy{"copies", {}, false};
  add_parts(rank + " computes", view.activity.compute, trace, colours, columns, compute);
  compute.parts.push_back(
      part_of(rank + " waits for pages", kWaitClass, view.activity.page_waits, trace.end_s, columns));
  if (!view.activity.stage_waits.empty()) {
    compute.parts.push_back(part_of(rank + " waits for the stage before", std::string(kStageWaitClass) + " faint",
                                    view.activity.stage_waits, trace.end_s, columns));
  }
  add_parts(rank + " copies", view.activity.copies, trace, colours, columns, copy);
  lanes.push_back(std::move(compute));
  lanes.push_back(std::move(copy));
}

std::vector<std::pair<std::string, std::string>> lane_legend(const std::vector<RankView>& views,
                                                             const ModelColours& colours) {
  std::vector<std::pair<std::string, std::string>> legend;
  for (const std::string& id : colours.coloured()) legend.emplace_back(id, colours.of(id));
  if (colours.others() > 0) legend.emplace_back(colours.others_name(), kOtherClass);
  legend.emplace_back("waits for pages", kWaitClass);
  const bool stages =
      std::any_of(views.begin(), views.end(), [](const RankView& v) { return !v.activity.stage_waits.empty(); });
  if (stages) legend.emplace_back("waits for the stage before", std::string(kStageWaitClass) + " faint");
  return legend;
}

Axis time_axis(double end_s) {
  const TimeUnit unit = time_unit(end_s);
  return exact_axis(fmt::format("{} since the start of the service", unit.name), 0, end_s * unit.per_second);
}

std::string dropped_note(const RunTrace& trace, const std::optional<RunMetrics>& run) {
  std::uint64_t dropped = 0;
  for (const auto& [rank, spans] : trace.ranks) dropped += spans.dropped;
  if (dropped == 0) return {};
  const std::string of = run ? fmt::format(" of {}", format_time(run->wall_s)) : "";
  return fmt::format(" The trace was full and lacks {} later events: it ends at {}{}.", format_number(double(dropped)),
                     format_time(trace.end_s), of);
}

std::string lanes_figure(const RunTrace& trace, const std::vector<RankView>& views,
                         const std::optional<RunMetrics>& run, const ModelColours& colours) {
  const std::size_t shown = std::min(views.size(), kMostRanks);
  const std::size_t columns = std::clamp<std::size_t>(kCells / (2 * shown), 120, kColumns);
  LaneChart chart;
  chart.title = "What each rank did";
  chart.x = time_axis(trace.end_s);
  chart.legend = lane_legend(views, colours);
  chart.lane_height = views.size() > 16 ? 8 : views.size() > 4 ? 13 : 18;
  for (std::size_t i = 0; i < shown; ++i) add_lanes(views[i], trace, colours, columns, chart.lanes);
  std::string caption = fmt::format(
      "Upper row: the model whose pass the rank computes, and where compute stalled. Lower row: the model whose "
      "pages cross its link. A column is {}; the height that is filled is the time that it was so.",
      format_time(trace.end_s / static_cast<double>(columns)));
  if (shown < views.size()) caption += fmt::format(" The first {} of {} ranks.", shown, views.size());
  return figure(chart.title, to_svg(chart, ChartPlace::kPage), caption + dropped_note(trace, run), true);
}

// Percent of each column's time, mean over ranks.
std::vector<double> percent(const std::vector<RankView>& views, double end_s,
                            const std::function<Times(const RankActivity&)>& times) {
  std::vector<double> mean(kHalfColumns, 0);
  const double scale = 100.0 * kHalfColumns / end_s / static_cast<double>(views.size());
  for (const RankView& view : views) {
    const std::vector<double> seconds = by_column(times(view.activity), end_s, kHalfColumns);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += scale * seconds[i];
  }
  return mean;
}

std::string overlap_figure(const RunTrace& trace, const std::vector<RankView>& views) {
  Chart chart;
  chart.title = "Copying beside computing";
  chart.x = time_axis(trace.end_s);
  chart.y = {"% of the time, mean rank", 0, 100, false, {{0, "0"}, {50, "50"}, {100, "100"}}};
  chart.bands = {{"computes and copies", "m2",
                  percent(views, trace.end_s, [](const auto& a) { return common(a.computing, a.copying); })},
                 {"computes only", "m4",
                  percent(views, trace.end_s, [](const auto& a) { return without(a.computing, a.copying); })},
                 {"copies only", kWaitClass,
                  percent(views, trace.end_s, [](const auto& a) { return without(a.copying, a.computing); })}};
  std::vector<RankActivity> ranks;
  for (const RankView& view : views) ranks.push_back(view.activity);
  const OverlapMetrics sum = overlap_of(ranks);
  return figure(
      chart.title, to_svg(chart, ChartPlace::kPage),
      fmt::format("A mean rank computed for {}, copied for {}, {} of that at the same time ({} of the copying).",
                  format_time(sum.both_s + sum.compute_only_s), format_time(sum.both_s + sum.copy_only_s),
                  format_time(sum.both_s), format_percent(sum.hidden_fraction())));
}

std::string link_figure(const RunTrace& trace, const std::vector<RankView>& views,
                        const std::optional<RunMetrics>& run) {
  std::vector<double> mean(kHalfColumns, 0);
  for (const RankView& view : views) {
    const std::vector<double> rate = link_rate(*view.spans, trace.end_s, kHalfColumns);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += rate[i] / static_cast<double>(views.size());
  }
  double high = *std::max_element(mean.begin(), mean.end());
  if (high == 0) return {};
  Chart chart;
  chart.title = "Use of the links";
  chart.x = time_axis(trace.end_s);
  chart.bands = {{"copied, mean rank", "m0", mean}};
  if (run && run->link_gb_per_s) {
    const double rate = *run->link_gb_per_s;
    high = std::max(high, rate);
    chart.lines.push_back({fmt::format("{}link: {:.3g} GB/s", run->link_emulated ? "emulated " : "", rate),
                           kReferenceClass,
                           {{0, rate}, {chart.x.high, rate}}});
  }
  chart.y = linear_axis("GB/s a rank", 0, high * 1.05, 5);
  return figure(chart.title, to_svg(chart, ChartPlace::kPage),
                fmt::format("Bytes that crossed a rank's link{}, means over {}.",
                            chart.lines.empty() ? "" : ", against the rate that it is held to",
                            format_time(trace.end_s / double{kHalfColumns})));
}

}  // namespace

std::string trace_section(const RunTrace& trace, const std::optional<RunMetrics>& run, const ModelColours& colours) {
  if (!(trace.end_s > 0)) return section("Over time", "<p>The trace holds no span.</p>\n");
  const std::vector<RankView> views = views_of(trace);
  return section("Over time", figures(lanes_figure(trace, views, run, colours) + overlap_figure(trace, views) +
                                      link_figure(trace, views, run)));
}

}  // namespace computron

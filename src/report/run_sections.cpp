#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "computron/base/size.h"
#include "computron/report/text.h"
#include "computron/report/trace_metrics.h"
#include "src/report/sections.h"

namespace computron {
namespace {

std::string card(const std::string& name, const std::string& value, const std::string& more) {
  return fmt::format("<div class=\"card\"><b>{}</b><strong>{}</strong><small>{}</small></div>\n", name, value, more);
}

std::string count(const std::string& key, std::uint64_t value) {
  const auto number = static_cast<double>(value);
  return data(key, number, format_number(number));
}

std::string bytes(const std::string& key, std::uint64_t value) {
  return data(key, static_cast<double>(value), format_size(value));
}

std::string times_card(const std::string& name, const std::string& key, const DistributionMetrics& times) {
  return card(name, data(key + ".p50", times.p50, format_time),
              fmt::format("median · p90 {} · p99 {}", data(key + ".p90", times.p90, format_time),
                          data(key + ".p99", times.p99, format_time)));
}

// Failed requests catch the eye.
std::string failed(const std::string& key, std::uint64_t value) {
  return value > 0 ? "<span class=\"bad\">" + count(key, value) + "</span>" : count(key, value);
}

bool is_resumed(const RunMetrics& run) { return run.attempt > 1 || run.before > 0; }

std::string requests_card(const RunMetrics& run) {
  const GroupMetrics& job = run.job;
  std::string more =
      fmt::format("{} ok · {} failed", count("requests.ok", job.ok), failed("requests.failed", job.failed));
  if (is_resumed(run)) {
    more = fmt::format("{} here, {} by earlier attempts (attempt {})<br>{}", count("requests.total", job.total),
                       count("requests.before", run.before), count("attempt", run.attempt), more);
  }
  return card("Requests", count("requests.total", job.total), more);
}

std::string attempt_note(const RunMetrics& run) {
  if (!is_resumed(run)) return {};
  return fmt::format(
      "<p class=\"note\">This job was interrupted and went on: all figures are those of its attempt {} alone, but for "
      "the number of requests that earlier ones finished.</p>\n",
      run.attempt);
}

std::string microseconds(double us) { return format_time(1e-6 * us); }

std::string link_card(const RunMetrics& run) {
  const GroupMetrics& job = run.job;
  const std::string rate =
      data("swaps.gb_per_s_per_rank", job.gb_per_s_per_rank, format_number) + " GB/s a rank while it copies";
  if (!job.link_fraction) {
    return card("Link, GB/s", data("swaps.gb_per_s_per_rank", job.gb_per_s_per_rank, format_number),
                "a rank, while it copies");
  }
  return card("Link used", data("swaps.link_fraction", job.link_fraction, format_percent),
              rate + (run.link_emulated ? ", emulated" : ""));
}

// Of GPUs; there are none otherwise.
std::string graphs_note(const GroupMetrics& job) {
  return job.graphs > 0 ? fmt::format(" · {} passes as graphs", count("steps.graphs", job.graphs)) : "";
}

// Where pages are coded.
std::string over_links_note(const GroupMetrics& job) {
  return job.link_bytes < job.bytes ? fmt::format(" · {} over the links", bytes("swaps.link_bytes", job.link_bytes))
                                    : "";
}

std::string exposed_card(const RunMetrics& run) {
  const double share = run.wall_s > 0 ? run.job.exposed_s / run.wall_s : NAN;
  return card("Waited for pages", data("swaps.exposed_s", run.job.exposed_s, format_time(run.job.exposed_s)),
              fmt::format("{} of the run, slowest rank", format_percent(share)));
}

std::string hidden_card(const RunTrace& trace) {
  std::vector<RankActivity> ranks;
  for (const auto& [rank, spans] : trace.ranks) ranks.push_back(activity_of(spans));
  const OverlapMetrics overlap = overlap_of(ranks);
  return card("Copies hidden", format_percent(overlap.hidden_fraction()),
              fmt::format("{} beside compute, mean rank", format_time(overlap.both_s)));
}

// Of jobs whose requests had some.
std::string deadlines_card(const GroupMetrics& job) {
  if (job.deadlines == 0) return {};
  return card(
      "Deadlines met", data("deadlines.attainment", job.attainment, format_percent),
      fmt::format("{} of {} · {} not served", count("deadlines.met", job.deadlines_met),
                  count("deadlines.total", job.deadlines), failed("deadlines.unserved", job.deadlines_unserved)));
}

constexpr char kModelHead[] =
    "<tr class=\"groups\"><th></th><th class=\"group g\" colspan=\"2\">requests</th><th class=\"group g\" "
    "colspan=\"3\">tokens</th>"
    "<th class=\"group g\" colspan=\"2\">first token</th><th class=\"group g\" colspan=\"4\">latency</th>"
    "<th class=\"group g\" colspan=\"5\">swaps</th></tr>\n"
    "<tr><th>model</th><th class=\"g\">ok</th><th>failed</th><th class=\"g\">prompt</th><th>generated</th><th>per "
    "second</th>"
    "<th class=\"g\">p50</th><th>p99</th><th class=\"g\">p50</th><th>p90</th><th>p99</th><th>in time</th>"
    "<th class=\"g\">count</th><th>moved</th><th>GB/s</th><th>of link</th><th>waited</th></tr>\n";

std::string cell(const std::string& content) { return "<td>" + content + "</td>"; }
// Of a group of columns.
std::string first(const std::string& content) { return "<td class=\"g\">" + content + "</td>"; }

// `key`: where the group stands in the metrics file, ending with a dot or empty.
std::string model_row(const std::string& name, const std::string& key, const GroupMetrics& g) {
  std::string row = key.empty() ? "<tr class=\"all\">" : "<tr>";
  row += cell(escape_markup(name)) + first(count(key + "requests.ok", g.ok));
  row += cell(failed(key + "requests.failed", g.failed));
  row +=
      first(count(key + "tokens.prompt", g.prompt_tokens)) + cell(count(key + "tokens.generated", g.generated_tokens));
  row += cell(data(key + "tokens.generated_per_s", g.generated_per_s, format_number));
  row += first(data(key + "ttft_s.p50", g.ttft_s.p50, format_time));
  row += cell(data(key + "ttft_s.p99", g.ttft_s.p99, format_time));
  row += first(data(key + "latency_s.p50", g.latency_s.p50, format_time));
  row += cell(data(key + "latency_s.p90", g.latency_s.p90, format_time));
  row += cell(data(key + "latency_s.p99", g.latency_s.p99, format_time));
  row += cell(data(key + "deadlines.attainment", g.attainment, format_percent));
  row += first(count(key + "swaps.count", g.swaps)) + cell(bytes(key + "swaps.bytes", g.bytes));
  row += cell(data(key + "swaps.gb_per_s_per_rank", g.gb_per_s_per_rank, format_number));
  row += cell(data(key + "swaps.link_fraction", g.link_fraction, format_percent));
  row += cell(data(key + "swaps.exposed_s", g.exposed_s, format_time(g.exposed_s)));
  return row + "</tr>\n";
}

// The share of requests that took no longer, over time.
ChartLine cdf_line(const std::string& name, const std::string& colour, const DistributionMetrics& times,
                   double per_second) {
  ChartLine line{name, colour, {}, false, true};
  const auto& values = times.percentiles;
  for (std::size_t i = 0; i < values.size(); ++i) {
    line.points.push_back(
        {values[i] * per_second, 100.0 * double(i) / double(std::max<std::size_t>(1, values.size() - 1))});
  }
  return line;
}

bool worth_a_log(const std::vector<ChartLine>& lines) {
  double low = INFINITY, high = 0;
  for (const ChartLine& line : lines) {
    for (const ChartPoint& point : line.points) {
      if (point.x > 0) low = std::min(low, point.x);
      high = std::max(high, point.x);
    }
  }
  return high > 30 * low;
}

std::string cdf_figure(const std::string& heading, const RunMetrics& run, const ModelColours& colours,
                       DistributionMetrics GroupMetrics::*which) {
  const TimeUnit unit = time_unit((run.job.*which).max.value_or(0));
  Chart chart;
  for (const GroupMetrics& model : run.models) {
    if ((model.*which).percentiles.empty() || !colours.own(model.id)) continue;
    chart.lines.push_back(cdf_line(model.id, colours.of(model.id), model.*which, unit.per_second));
  }
  if (run.models.size() > 1 || chart.lines.empty()) {
    chart.lines.push_back(cdf_line("all models", kReferenceClass, run.job.*which, unit.per_second));
  }
  if (chart.lines.back().points.empty()) return {};
  double low = INFINITY, high = 0;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      low = point.x > 0 ? std::min(low, point.x) : low;
      high = std::max(high, point.x);
    }
  }
  chart.title = heading;
  const std::string label = fmt::format("time, {}", unit.name);
  chart.x = worth_a_log(chart.lines) ? log_axis(label, low, high) : linear_axis(label, 0, high);
  chart.y = linear_axis("% of requests", 0, 100, 6);
  return figure(heading, to_svg(chart, ChartPlace::kPage), "");
}

std::vector<double> doubles(const std::vector<std::uint64_t>& values, std::size_t columns) {
  std::vector<double> out(values.begin(), values.end());
  out.resize(columns, 0);
  return out;
}

// Models with a colour each, then the others together.
std::vector<ChartBand> unfinished_bands(const RunMetrics& run, const ModelColours& colours) {
  const std::size_t columns = run.job.unfinished.size();
  std::vector<ChartBand> bands;
  ChartBand others{colours.others_name(), kOtherClass, std::vector<double>(columns, 0)};
  for (const GroupMetrics& model : run.models) {
    const std::vector<double> heights = doubles(model.unfinished, columns);
    if (colours.own(model.id)) bands.push_back({model.id, colours.of(model.id), heights});
    for (std::size_t i = 0; i < columns && !colours.own(model.id); ++i) others.heights[i] += heights[i];
  }
  if (colours.others() > 0) bands.push_back(std::move(others));
  return bands;
}

}  // namespace

std::string run_summary(const RunMetrics& run, const std::optional<RunTrace>& trace) {
  const GroupMetrics& job = run.job;
  std::string cards = requests_card(run);
  cards += card("Wall time", data("wall_s", run.wall_s, format_time(run.wall_s)), "from the start of the service");
  cards += card("Tokens a second", data("tokens.generated_per_s", job.generated_per_s, format_number),
                fmt::format("{} generated · {} of prompts", count("tokens.generated", job.generated_tokens),
                            count("tokens.prompt", job.prompt_tokens)));
  cards += times_card("First token", "ttft_s", job.ttft_s);
  cards += times_card("Latency", "latency_s", job.latency_s);
  cards += deadlines_card(job);
  cards += card("Swaps", count("swaps.count", job.swaps),
                fmt::format("{} in {} pages{}", bytes("swaps.bytes", job.bytes), count("swaps.pages", job.pages),
                            over_links_note(job)));
  cards += link_card(run);
  cards += exposed_card(run);
  if (trace) cards += hidden_card(*trace);
  cards += card("Steps", count("steps.count", job.steps),
                fmt::format("{} each · deciding {}{}", data("steps.mean_us", job.step_mean_us, microseconds),
                            data("steps.overhead_us", job.step_overhead_us, microseconds), graphs_note(job)));
  return "<div class=\"cards\">\n" + cards + "</div>\n" + attempt_note(run);
}

std::string model_table(const RunMetrics& run) {
  std::string rows = model_row("all models", "", run.job);
  for (const GroupMetrics& model : run.models) rows += model_row(model.id, "models." + model.id + ".", model);
  for (std::size_t g = 0; g < run.rank_groups.size(); ++g) {
    rows += model_row(run.rank_groups[g].id, fmt::format("groups.{}.", g), run.rank_groups[g]);
  }
  return fmt::format(
      "<div class=\"scroll\"><table>\n<thead>{}</thead>\n<tbody>\n{}</tbody></table></div>\n"
      "<p class=\"note\">First token and latency count from a request's arrival; percentiles by nearest rank. In time: "
      "of requests "
      "with a deadline, those that met it. Moved: "
      "bytes of pages fetched, all ranks. GB/s: of a rank while it copies. Waited: compute stalled for pages, "
      "slowest rank. Failed lines that name "
      "no model are in the first row only.</p>\n",
      kModelHead, rows);
}

std::string latency_section(const RunMetrics& run, const ModelColours& colours) {
  return section("Latency", figures(cdf_figure("Time to the first token", run, colours, &GroupMetrics::ttft_s) +
                                    cdf_figure("Time to the last token", run, colours, &GroupMetrics::latency_s)));
}

std::string queue_figure(const RunMetrics& run, const ModelColours& colours) {
  if (run.interval_s <= 0 || run.job.unfinished.size() < 2) return {};
  const double end_s = run.interval_s * double(run.job.unfinished.size());
  const TimeUnit unit = time_unit(end_s);
  Chart chart;
  chart.title = "Requests waiting and running";
  chart.width = 1120;
  chart.height = 260;
  chart.x = exact_axis(fmt::format("{} since the start of the service", unit.name), 0, end_s * unit.per_second);
  chart.bands = unfinished_bands(run, colours);
  ChartLine waiting{"of these waiting, all models", kReferenceClass, {}, false, true};
  for (std::size_t i = 0; i < run.waiting.size(); ++i) {
    waiting.points.push_back({run.interval_s * unit.per_second * double(i), double(run.waiting[i])});
  }
  chart.lines.push_back(std::move(waiting));
  chart.y =
      linear_axis("requests", 0, double(*std::max_element(run.job.unfinished.begin(), run.job.unfinished.end())), 5);
  return figure(
      chart.title, to_svg(chart, ChartPlace::kPage),
      fmt::format("By model, as known every {}; lines that wait in the input are not counted before they are read.",
                  format_time(run.interval_s)),
      true);
}

// "commit abc · build Release · ... · Slurm job 7"; nothing where the file does not say.
std::string provenance_note(const RunMetrics& run) {
  std::string text;
  const auto add = [&text](const std::string& what, const std::string& value) {
    if (!value.empty()) text += (text.empty() ? "" : " · ") + escape_markup(what + value);
  };
  add("commit ", run.commit);
  add("build ", run.build);
  add("compiler ", run.compiler);
  for (const std::string& library : run.libraries) add("", library);
  add("Slurm job ", run.slurm_job_id);
  return text.empty() ? "" : "<p class=\"note\">" + text + "</p>\n";
}

std::string configuration_section(const RunMetrics& run) {
  std::string rows;
  for (const auto& [option, value] : run.configuration) {
    rows += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_markup(option),
                        value.empty() ? "–" : escape_markup(value));
  }
  if (!rows.empty()) rows = "<dl class=\"settings\">\n" + rows + "</dl>\n";
  return section("Configuration", rows + provenance_note(run));
}

}  // namespace computron

#include "computron/report/trace_metrics.h"

#include <algorithm>
#include <limits>

namespace computron {
namespace {

// Calls put(column, seconds) for the parts of a span.
template <class F>
void for_each_column(const TraceTime& time, double end_s, std::size_t columns, const F& put) {
  const double width_s = end_s / static_cast<double>(columns);
  const double stop_s = std::min(time.end_s, end_s);
  double at_s = time.begin_s;
  for (auto i = static_cast<std::size_t>(std::max(0.0, at_s) / width_s); i < columns && at_s < stop_s; ++i) {
    const double next_s = std::min(stop_s, width_s * static_cast<double>(i + 1));
    put(i, std::max(0.0, next_s - at_s));
    at_s = std::max(at_s, next_s);
  }
}

// What lies of a span in `rest`, which begins with the first that ends behind it, goes to `out`.
void append_common(const TraceTime& time, Times::const_iterator first, Times::const_iterator end, Times& out) {
  for (; first != end && first->begin_s < time.end_s; ++first) {
    const TraceTime part{std::max(time.begin_s, first->begin_s), std::min(time.end_s, first->end_s)};
    if (part.length_s() > 0) out.push_back(part);
  }
}

Times::const_iterator first_behind(const Times& times, double at_s) {
  return std::partition_point(times.begin(), times.end(), [at_s](const TraceTime& t) { return t.end_s <= at_s; });
}

// Ranks do one thing after the other; where a trace says otherwise, what began first has the time.
template <class Span>
std::map<std::uint32_t, Times> by_model(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin_s < b.begin_s; });
  std::map<std::uint32_t, Times> times;
  double free_s = 0;
  for (const Span& span : spans) {
    const TraceTime time{std::max(span.begin_s, free_s), span.end_s};
    if (time.length_s() > 0) times[span.model].push_back(time);
    free_s = std::max(free_s, span.end_s);
  }
  return times;
}

template <class Span>
Times all_of(const std::vector<Span>& spans) {
  return united(Times(spans.begin(), spans.end()));
}

}  // namespace

Times united(Times spans) {
  std::sort(spans.begin(), spans.end(), [](const TraceTime& a, const TraceTime& b) { return a.begin_s < b.begin_s; });
  Times out;
  for (const TraceTime& span : spans) {
    if (!out.empty() && span.begin_s <= out.back().end_s) {
      out.back().end_s = std::max(out.back().end_s, span.end_s);
    } else if (span.length_s() > 0) {
      out.push_back(span);
    }
  }
  return out;
}

Times common(const Times& a, const Times& b) {
  Times out;
  for (const TraceTime& time : a) append_common(time, first_behind(b, time.begin_s), b.end(), out);
  return out;
}

Times without(const Times& times, const Times& cut) {
  Times out;
  for (TraceTime time : times) {
    for (auto hole = first_behind(cut, time.begin_s); hole != cut.end() && hole->begin_s < time.end_s; ++hole) {
      if (hole->begin_s > time.begin_s) out.push_back({time.begin_s, hole->begin_s});
      time.begin_s = hole->end_s;
    }
    if (time.length_s() > 0) out.push_back(time);
  }
  return out;
}

double total_s(const Times& times) {
  double sum = 0;
  for (const TraceTime& time : times) sum += time.length_s();
  return sum;
}

std::vector<double> by_column(const Times& times, double end_s, std::size_t columns) {
  std::vector<double> seconds(columns, 0);
  for (const TraceTime& time : times) {
    for_each_column(time, end_s, columns, [&](std::size_t column, double s) { seconds[column] += s; });
  }
  return seconds;
}

RankActivity activity_of(const RankSpans& spans) {
  RankActivity activity;
  activity.compute = by_model(spans.steps);
  activity.copies = by_model(spans.copies);
  const Times passes = all_of(spans.steps);
  activity.page_waits = common(passes, all_of(spans.page_waits));
  activity.stage_waits = without(common(passes, all_of(spans.stage_waits)), activity.page_waits);
  Times waits = activity.page_waits;
  waits.insert(waits.end(), activity.stage_waits.begin(), activity.stage_waits.end());
  waits = united(std::move(waits));
  for (auto& [model, times] : activity.compute) times = without(times, waits);
  activity.computing = without(passes, waits);
  activity.copying = all_of(spans.copies);
  return activity;
}

double OverlapMetrics::hidden_fraction() const {
  const double copying_s = both_s + copy_only_s;
  return copying_s > 0 ? both_s / copying_s : std::numeric_limits<double>::quiet_NaN();
}

OverlapMetrics overlap_of(const std::vector<RankActivity>& ranks) {
  OverlapMetrics sum;
  const double share = 1.0 / static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  for (const RankActivity& rank : ranks) {
    const double both_s = total_s(common(rank.computing, rank.copying));
    sum.both_s += share * both_s;
    sum.compute_only_s += share * (total_s(rank.computing) - both_s);
    sum.copy_only_s += share * (total_s(rank.copying) - both_s);
  }
  return sum;
}

std::vector<double> link_rate(const RankSpans& spans, double end_s, std::size_t columns) {
  std::vector<double> rates(columns, 0);
  const double width_s = end_s / static_cast<double>(columns);
  for (const TraceCopy& copy : spans.copies) {
    if (copy.length_s() <= 0) continue;
    const double gb_per_s = 1e-9 * static_cast<double>(copy.bytes) / copy.length_s();
    for_each_column(copy, end_s, columns,
                    [&](std::size_t column, double s) { rates[column] += gb_per_s * s / width_s; });
  }
  return rates;
}

}  // namespace computron

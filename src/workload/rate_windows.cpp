#include "computron/workload/rate_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "computron/base/error.h"

namespace computron {
namespace {

constexpr std::size_t kFewestToFit = 3;
constexpr double kGapFloor_s = 1e-6;     // added to every gap, whose logarithm is wanted
constexpr double kMostTimesOwnRate = 5;  // a fitted rate that is higher is not believed
constexpr double kLargestShape = 1e4;    // gaps that are all equal would have an infinite one
constexpr double kMostWindows = 1e6;     // of a model
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void bad_windows(const std::string& why) { throw Error(ExitCode::kUsage, "workload: " + why); }

std::uint32_t model_of(std::uint32_t source, std::uint32_t sources, std::uint32_t models, SourceMapping mapping) {
  if (mapping != SourceMapping::kBlocks) return source % models;
  return static_cast<std::uint32_t>(std::uint64_t{source} * models / sources);
}

void check_models(std::uint32_t models) {
  if (models == 0) bad_windows("a trace is to be mapped to no models");
}

// The requests in `span`, with times from its begin, and in place of the source the model.
std::vector<Arrival> mapped(const RequestTrace& trace, std::uint32_t models, SourceMapping mapping, TimeSpan span) {
  check_models(models);
  if (!(std::isfinite(span.duration_s) && span.duration_s > 0))
    bad_windows("the part of a trace must be longer than 0 s");
  const auto inside = [&span](const TracedRequest& request) {
    return request.time_s >= span.start_s && request.time_s < span.start_s + span.duration_s;
  };
  if (mapping == SourceMapping::kDealt && trace.sources > models) bad_windows("a trace is dealt to other models");
  std::vector<std::uint32_t> number(trace.sources, kNone);
  for (const TracedRequest& request : trace.requests) {
    if (inside(request)) number[request.source] = 0;
  }
  std::uint32_t sources = 0;
  for (std::uint32_t& source : number) {
    if (source != kNone) source = sources++;
  }
  if (mapping == SourceMapping::kDealt) std::iota(number.begin(), number.end(), 0u);
  std::vector<Arrival> arrivals;
  for (const TracedRequest& request : trace.requests) {
    if (!inside(request)) continue;
    arrivals.push_back({request.time_s - span.start_s, model_of(number[request.source], sources, models, mapping)});
  }
  sort_arrivals(arrivals);
  return arrivals;
}

// ψ and its derivative: by recurrence up to 6, then the asymptotic series (Abramowitz and Stegun 6.3.18, 6.4.12).
double digamma(double x) {
  double sum = 0;
  for (; x < 6; ++x) sum -= 1 / x;
  const double y = 1 / (x * x);
  return sum + std::log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y / 240)));
}

double trigamma(double x) {
  double sum = 0;
  for (; x < 6; ++x) sum += 1 / (x * x);
  const double y = 1 / (x * x);
  return sum + 1 / x + y / 2 + y / x * (1.0 / 6 - y * (1.0 / 30 - y * (1.0 / 42 - y / 30)));
}

RateWindow fitted(std::uint32_t model, TimeSpan span, std::span<const double> times) {
  const auto gaps = static_cast<double>(times.size() - 1);
  double sum = 0, logarithms = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1] + kGapFloor_s;
    sum += gap;
    logarithms += std::log(gap);
  }
  const double mean = sum / gaps, own_rate = static_cast<double>(times.size()) / span.duration_s;
  const double rate = 1 / mean > kMostTimesOwnRate * own_rate ? own_rate : 1 / mean;
  const double shape = gamma_shape_of(std::log(mean) - logarithms / gaps);
  return {.model = model, .span = span, .rate_per_s = rate, .cv = std::sqrt(1 / shape)};
}

void fit_model(std::uint32_t model, std::span<const double> times, double duration_s, double window_s,
               std::vector<RateWindow>& windows) {
  const auto count = static_cast<std::uint32_t>(std::ceil(duration_s / window_s));
  for (std::uint32_t i = 0; i < count && i * window_s < duration_s; ++i) {
    const double start = i * window_s;
    const TimeSpan span{start, std::min(window_s, duration_s - start)};
    const auto begin = std::ranges::lower_bound(times, start);
    const auto end = std::lower_bound(begin, times.end(), start + window_s);
    const auto requests = static_cast<std::size_t>(end - begin);
    if (requests >= kFewestToFit) windows.push_back(fitted(model, span, {begin, requests}));
  }
}

}  // namespace

double gamma_shape_of(double gap) {
  if (!(gap > 0.5 / kLargestShape)) return kLargestShape;
  double shape = (3 - gap + std::sqrt((gap - 3) * (gap - 3) + 24 * gap)) / (12 * gap);  // Minka 2002
  for (int i = 0; i < 50; ++i) {
    const double step = (std::log(shape) - digamma(shape) - gap) / (1 / shape - trigamma(shape));
    shape = step < shape ? shape - step : shape / 2;
    if (std::abs(step) < 1e-13 * shape) break;
  }
  return shape;
}

std::vector<RateWindow> windows_of_counts(const CallCounts& counts, std::uint32_t models, SourceMapping mapping) {
  check_models(models);
  const auto functions = static_cast<std::uint32_t>(counts.functions.size());
  std::vector<std::vector<std::uint64_t>> calls(models, std::vector<std::uint64_t>(counts.minutes));
  for (std::uint32_t f = 0; f < functions; ++f) {
    auto& own = calls[model_of(f, functions, models, mapping)];
    for (std::uint32_t minute = 0; minute < counts.minutes; ++minute) own[minute] += counts.functions[f][minute];
  }
  std::vector<RateWindow> windows;
  for (std::uint32_t m = 0; m < models; ++m) {
    for (std::uint32_t minute = 0; minute < counts.minutes; ++minute) {
      if (calls[m][minute] == 0) continue;
      windows.push_back({.model = m,
                         .span = {60.0 * minute, 60.0},
                         .rate_per_s = static_cast<double>(calls[m][minute]) / 60.0,
                         .cv = 1});
    }
  }
  return windows;
}

std::vector<RateWindow> fit_windows(const RequestTrace& trace, std::uint32_t models, SourceMapping mapping,
                                    TimeSpan span, double window_s) {
  if (!(window_s > 0)) bad_windows(fmt::format("windows of {} s", window_s));
  if (span.duration_s / window_s > kMostWindows) {
    bad_windows(
        fmt::format("{} s in windows of {} s are more than {:g} windows", span.duration_s, window_s, kMostWindows));
  }
  std::vector<std::vector<double>> times(models);
  for (const Arrival& arrival : mapped(trace, models, mapping, span)) times[arrival.model].push_back(arrival.time_s);
  std::vector<RateWindow> windows;
  for (std::uint32_t m = 0; m < models; ++m) fit_model(m, times[m], span.duration_s, window_s, windows);
  return windows;
}

std::vector<Arrival> arrivals_of_windows(std::span<const RateWindow> windows, WindowScales scales, std::uint32_t seed) {
  const auto gaps_of = [&scales](const RateWindow& window) {
    return GammaGaps{std::max(window.cv * scales.cv, kMinCv)};
  };
  double expected = 0;
  for (const RateWindow& window : windows) {
    expected += expected_arrivals(gaps_of(window), window.rate_per_s * scales.rate, window.span.duration_s);
  }
  check_expected(expected);
  std::vector<Arrival> arrivals;
  for (const RateWindow& window : windows) {
    for (const double time : arrival_times(gaps_of(window), window.rate_per_s * scales.rate, window.span, seed++)) {
      arrivals.push_back({time, window.model});
    }
  }
  sort_arrivals(arrivals);
  return arrivals;
}

std::vector<Arrival> replay(const RequestTrace& trace, std::uint32_t models, TimeSpan span,
                            const ReplayOptions& options) {
  if (!(std::isfinite(options.speed) && options.speed > 0)) bad_windows(fmt::format("a speed of {}", options.speed));
  if (options.copies < 1) bad_windows(fmt::format("{} copies of each request", options.copies));
  std::vector<Arrival> arrivals;
  for (const Arrival& arrival : mapped(trace, models, options.mapping, span)) {
    for (int i = 0; i < options.copies; ++i) arrivals.push_back({arrival.time_s / options.speed, arrival.model});
  }
  return arrivals;
}

}  // namespace computron

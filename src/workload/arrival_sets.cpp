#include "computron/workload/arrival_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "computron/base/error.h"
#include "computron/workload/numpy_random.h"
#include "computron/workload/servegen.h"
#include "computron/workload/trace.h"

namespace computron {
namespace {

constexpr double kMinute_s = 60;

[[noreturn]] void refuse(const TraceUse& use, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("trace '{}': {}", use.file, why));
}

void check(const TraceUse& use) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  if (!(std::isfinite(use.span.start_s) && use.span.start_s >= 0)) refuse(use, "its part begins before 0 s");
  if (!(std::isfinite(use.span.duration_s) && use.span.duration_s >= 0)) refuse(use, "its part is shorter than 0 s");
  if (!(std::isfinite(use.window_s) && use.window_s >= 0)) refuse(use, "windows are shorter than 0 s");
  if (!positive(use.scales.rate) || !positive(use.scales.cv)) refuse(use, "rate and cv are scaled by what is above 0");
  const bool has_windows = use.window_s > 0 || use.format == TraceFormat::kAzureFunctions2019;
  if (use.scales.cv != 1 && !has_windows) refuse(use, "without windows a trace has the cv that it has");
  if (use.window_s > 0 && use.format == TraceFormat::kAzureFunctions2019) refuse(use, "its windows are its minutes");
}

[[noreturn]] void refuse_shares(const TraceUse& use) {
  refuse(use, "its requests have sources, which are mapped to models: shares of the models have no use");
}

// Each request gets a source of its own accord: the models, by their shares.
void deal_to_models(RequestTrace& trace, std::uint32_t models, const TraceUse& use, std::uint32_t seed) {
  const std::vector<double> even(models, 1);
  if (!use.shares.empty() && use.shares.size() != models) refuse(use, "there is not one share a model");
  std::vector<double> up_to = weighted_rates(use.shares.empty() ? even : use.shares, 1);
  std::partial_sum(up_to.begin(), up_to.end(), up_to.begin());
  NumpyRandom random(seed);
  for (TracedRequest& request : trace.requests) {
    const auto model = std::ranges::upper_bound(up_to, random.uniform()) - up_to.begin();
    request.source = std::min(static_cast<std::uint32_t>(model), models - 1);
  }
  trace.sources = models;
}

RequestTrace read_requests(const TraceUse& use) {
  switch (use.format) {
    case TraceFormat::kAzureFunctions2021:
      return read_azure_functions_2021(use.file);
    case TraceFormat::kAzureLlm:
      return read_azure_llm(use.file);
    case TraceFormat::kMooncake:
      return read_mooncake(use.file);
    default:
      throw Error(ExitCode::kInternal, "a trace that is no list of requests is read as one");
  }
}

// The part of the trace, to its end where the use does not say.
TimeSpan part_of(const TraceUse& use, double end_s) {
  if (use.span.duration_s > 0) return use.span;
  if (!(end_s > use.span.start_s)) refuse(use, fmt::format("it ends before {} s", use.span.start_s));
  return {use.span.start_s, end_s - use.span.start_s};
}

double end_of(const RequestTrace& trace) {
  return trace.requests.empty() ? 0 : std::nextafter(trace.requests.back().time_s, std::numeric_limits<double>::max());
}

ArrivalSets sets_of_windows(const std::vector<RateWindow>& windows, WindowScales scales, double duration_s,
                            std::uint32_t seed) {
  const auto next = seed + static_cast<std::uint32_t>(windows.size());
  return {.training = arrivals_of_windows(windows, scales, seed),
          .test = arrivals_of_windows(windows, scales, next),
          .duration_s = duration_s};
}

ArrivalSets sets_of_counts(const TraceUse& use, std::uint32_t models, std::uint32_t seed) {
  const TimeSpan part = part_of(use, kMinute_s * kMinutesADay);
  if (part.start_s + part.duration_s > kMinute_s * kMinutesADay) refuse(use, "it is of one day");
  const auto first = static_cast<std::uint32_t>(part.start_s / kMinute_s);
  const auto minutes = static_cast<std::uint32_t>(std::ceil(part.duration_s / kMinute_s));
  const CallCounts counts = read_azure_functions_2019(use.file, first, minutes);
  return sets_of_windows(windows_of_counts(counts, models, use.mapping), use.scales, kMinute_s * minutes, seed);
}

// The first half of the time, and the second one.
ArrivalSets halves(std::vector<Arrival> arrivals, double duration_s) {
  const double half_s = duration_s / 2;
  const auto middle = std::ranges::lower_bound(arrivals, half_s, {}, &Arrival::time_s);
  ArrivalSets sets{.training = {arrivals.begin(), middle}, .test = {middle, arrivals.end()}, .duration_s = half_s};
  for (Arrival& arrival : sets.test) arrival.time_s -= half_s;
  return sets;
}

ArrivalSets sets_of_requests(const TraceUse& use, std::uint32_t models, std::uint32_t seed) {
  RequestTrace trace = read_requests(use);
  const TimeSpan part = part_of(use, end_of(trace));
  const bool dealt = trace.sources == 1;
  if (!dealt && !use.shares.empty()) refuse_shares(use);
  if (dealt) deal_to_models(trace, models, use, seed);
  const SourceMapping mapping = dealt ? SourceMapping::kDealt : use.mapping;
  if (use.window_s > 0) {
    const auto windows = fit_windows(trace, models, mapping, part, use.window_s);
    return sets_of_windows(windows, use.scales, part.duration_s, seed);
  }
  const ReplayOptions options{.mapping = mapping, .speed = use.scales.rate};
  return halves(replay(trace, models, part, options), part.duration_s / use.scales.rate);
}

ArrivalSets sets_of_servegen(const TraceUse& use, std::uint32_t models, std::uint32_t seed) {
  const auto clients = read_servegen(use.file);
  double end_s = 0;
  std::uint32_t all_windows = 0;
  for (const ServeGenClient& client : clients) {
    all_windows += static_cast<std::uint32_t>(client.size());
    for (const ServeGenWindow& window : client) end_s = std::max(end_s, window.span.start_s + window.span.duration_s);
  }
  const TimeSpan part = part_of(use, end_s);
  std::uint32_t next = seed;  // seeds are used once
  const auto sampled = [&] {
    const RequestTrace trace = sample_servegen(clients, part, use.scales.rate, next);
    next += all_windows;
    const TimeSpan all{0, part.duration_s};
    if (use.window_s == 0) return replay(trace, models, all, {.mapping = use.mapping});
    const auto windows = fit_windows(trace, models, use.mapping, all, use.window_s);
    const std::uint32_t first = next;
    next += static_cast<std::uint32_t>(windows.size());
    return arrivals_of_windows(windows, {.rate = 1, .cv = use.scales.cv}, first);
  };
  ArrivalSets sets{.training = sampled(), .test = {}, .duration_s = part.duration_s};
  sets.test = sampled();
  return sets;
}

}  // namespace

ArrivalSets sets_by_rule(const ArrivalProcess& process, std::span<const double> rates_per_s, double duration_s,
                         std::uint32_t seed) {
  const TimeSpan span{0, duration_s};
  const auto next = seed + static_cast<std::uint32_t>(rates_per_s.size());
  return {.training = make_arrivals(process, rates_per_s, span, seed),
          .test = make_arrivals(process, rates_per_s, span, next),
          .duration_s = duration_s};
}

ArrivalSets sets_of_known(std::span<const std::uint32_t> counts) {
  ArrivalSets sets;
  for (std::uint32_t m = 0; m < counts.size(); ++m) sets.training.insert(sets.training.end(), counts[m], {0, m});
  sets.test = sets.training;
  return sets;
}

std::vector<std::uint32_t> divided_requests(std::uint32_t total, std::span<const double> weights) {
  std::vector<std::uint32_t> counts;
  std::vector<double> rest;
  for (const double part : weighted_rates(weights, total)) {
    counts.push_back(static_cast<std::uint32_t>(part));
    rest.push_back(part - std::floor(part));
  }
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&rest](std::size_t i) { return rest[i]; });
  std::uint32_t left = total - std::min(total, std::accumulate(counts.begin(), counts.end(), 0u));
  for (std::size_t i = 0; left > 0; --left) ++counts[order[i++ % order.size()]];
  return counts;
}

ArrivalSets sets_of_trace(const TraceUse& use, std::uint32_t models, std::uint32_t seed) {
  check(use);
  const bool counts = use.format == TraceFormat::kAzureFunctions2019, clients = use.format == TraceFormat::kServeGen;
  if (!counts && !clients) return sets_of_requests(use, models, seed);
  if (!use.shares.empty()) refuse_shares(use);
  return counts ? sets_of_counts(use, models, seed) : sets_of_servegen(use, models, seed);
}

}  // namespace computron

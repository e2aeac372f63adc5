// What a run's trace adds up to: times that touch nowhere, sums by column of a picture. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "computron/report/trace_spans.h"

namespace computron {

// Sorted, apart or touching.
using Times = std::vector<TraceTime>;

// The times that any of `spans` takes.
Times united(Times spans);
Times common(const Times& a, const Times& b);         // in both; both as united() gives them
Times without(const Times& times, const Times& cut);  // in the first only; the same
double total_s(const Times& times);

// Seconds of `times` in each of `columns` equal parts of [0, end_s). Their sum is that of what lies in it.
std::vector<double> by_column(const Times& times, double end_s, std::size_t columns);

// A rank's time, by what it did.
struct RankActivity {
  std::map<std::uint32_t, Times> compute;  // by model, stalls left out
  Times page_waits, stage_waits;           // of passes
  std::map<std::uint32_t, Times> copies;   // by model
  Times computing, copying;                // of any model
};
RankActivity activity_of(const RankSpans& spans);

// Means over ranks, seconds.
struct OverlapMetrics {
  double both_s = 0, compute_only_s = 0, copy_only_s = 0;
  double hidden_fraction() const;  // of the copying: with compute beside it; NaN: nothing was copied
};
OverlapMetrics overlap_of(const std::vector<RankActivity>& ranks);

// GB/s that crossed a rank's link in each of `columns` equal parts of [0, end_s), as if each copy were even.
std::vector<double> link_rate(const RankSpans& spans, double end_s, std::size_t columns);

}  // namespace computron

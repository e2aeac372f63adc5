#include "computron/placement/page_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "computron/base/error.h"

namespace computron {
namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();

void check(const CopyCosts& costs) {
  const auto is_cost = [](double time_s) { return std::isfinite(time_s) && time_s >= 0; };
  const bool rate = std::isfinite(costs.bytes_per_s) && costs.bytes_per_s > 0;
  if (is_cost(costs.copy_s) && is_cost(costs.event_s) && rate) return;
  throw Error(ExitCode::kUsage, fmt::format("page size: a copy of {} s and {} bytes/s, an event of {} s cannot be",
                                            costs.copy_s, costs.bytes_per_s, costs.event_s));
}

// [i] of the units before i.
struct Sums {
  explicit Sums(std::span<const TransferUnit> units) : bytes(1), compute_s(1) {
    for (const TransferUnit& unit : units) {
      bytes.push_back(bytes.back() + unit.bytes);
      compute_s.push_back(compute_s.back() + unit.compute_s);
    }
  }
  std::vector<double> bytes, compute_s;
};

}  // namespace

double grouped_pass_s(std::span<const TransferUnit> units, std::span<const std::size_t> ends, const CopyCosts& costs) {
  ensure(units.empty() ? ends.empty() : !ends.empty() && ends.back() == units.size(), "groups leave units out");
  double arrival_s = 0, done_s = 0;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    double bytes = 0, compute_s = 0;
    for (; begin < end; ++begin) {
      bytes += units[begin].bytes;
      compute_s += units[begin].compute_s;
    }
    arrival_s += costs.copy_s + bytes / costs.bytes_per_s;
    done_s = std::max(arrival_s, done_s) + costs.event_s + compute_s;
  }
  return done_s;
}

Grouping best_grouping(std::span<const TransferUnit> units, const CopyCosts& costs) {
  check(costs);
  const std::size_t n = units.size();
  if (n == 0) return {};
  const Sums sums(units);
  // [groups][units] When the pass is done with so many units in so many groups, at best; and where the last begins.
  std::vector<std::vector<double>> done_s(n + 1, std::vector<double>(n + 1, kUnreached));
  std::vector<std::vector<std::size_t>> begins(n + 1, std::vector<std::size_t>(n + 1));
  done_s[0][0] = 0;
  for (std::size_t groups = 1; groups <= n; ++groups) {
    for (std::size_t end = groups; end <= n; ++end) {
      const double arrival_s = static_cast<double>(groups) * costs.copy_s + sums.bytes[end] / costs.bytes_per_s;
      for (std::size_t begin = groups - 1; begin < end; ++begin) {
        const double own_s = costs.event_s + sums.compute_s[end] - sums.compute_s[begin];
        const double end_s = std::max(arrival_s, done_s[groups - 1][begin]) + own_s;
        if (end_s < done_s[groups][end]) done_s[groups][end] = end_s, begins[groups][end] = begin;
      }
    }
  }
  std::size_t groups = 1;
  for (std::size_t g = 2; g <= n; ++g) {
    if (done_s[g][n] < done_s[groups][n]) groups = g;
  }
  Grouping best{.ends = std::vector<std::size_t>(groups), .pass_s = done_s[groups][n]};
  for (std::size_t end = n; groups > 0; end = begins[groups][end], --groups) best.ends[groups - 1] = end;
  return best;
}

// All full pages are alike: the slower of copying and computing sets their pace.
double paged_pass_s(const ShardBytes& shard, double page_bytes, double compute_s_per_byte, const CopyCosts& costs) {
  const double link_share = shard.bytes > 0 ? shard.link_bytes / shard.bytes : 1;
  const auto copy_s = [&](double bytes) { return costs.copy_s + link_share * bytes / costs.bytes_per_s; };
  const auto pass_s = [&](double bytes) { return costs.event_s + bytes * compute_s_per_byte; };
  const double full = std::floor(shard.bytes / page_bytes), rest = shard.bytes - full * page_bytes;
  double arrival_s = 0, done_s = 0;
  if (full > 0) {
    arrival_s = full * copy_s(page_bytes);
    done_s = copy_s(page_bytes) + (full - 1) * std::max(copy_s(page_bytes), pass_s(page_bytes)) + pass_s(page_bytes);
  }
  if (rest > 0) done_s = std::max(arrival_s + copy_s(rest), done_s) + pass_s(rest);
  return done_s;
}

PageSizeChoice best_page_size(std::span<const ShardBytes> shards, double compute_s_per_byte, const CopyCosts& costs,
                              std::int64_t least, std::int64_t most) {
  check(costs);
  if (!(std::isfinite(compute_s_per_byte) && compute_s_per_byte >= 0)) {
    throw Error(ExitCode::kUsage, fmt::format("page size: {} s a byte cannot be", compute_s_per_byte));
  }
  PageSizeChoice best;
  auto size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(least, 1))));
  for (; best.page_bytes == 0 || size <= most; size *= 2) {
    double sum_s = 0;
    for (const ShardBytes& shard : shards) {
      sum_s += paged_pass_s(shard, static_cast<double>(size), compute_s_per_byte, costs);
    }
    if (best.page_bytes == 0 || sum_s < best.pass_s) best = {size, sum_s};
  }
  return best;
}

}  // namespace computron

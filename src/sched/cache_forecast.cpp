#include "computron/sched/cache_forecast.h"

#include <algorithm>
#include <cmath>

namespace computron {
namespace {

constexpr double kLatestWeight = 0.05;  // of the latest sequence that ended

}  // namespace

CacheNeed& CacheNeed::operator+=(const CacheNeed& other) {
  blocks += other.blocks;
  growth += other.growth;
  return *this;
}

CacheNeed& CacheNeed::operator-=(const CacheNeed& other) {
  blocks -= other.blocks;
  growth -= other.growth;
  return *this;
}

CacheNeed cache_need(const Request& request, int tokens, int block_tokens) {
  const int most = ceil_div(request.cache_tokens(), block_tokens);
  const int now = std::min(ceil_div(tokens, block_tokens), most);
  return {now, most - now};
}

int expected_growth(int growth, double ratio) { return static_cast<int>(std::ceil(growth * ratio)); }

void CacheForecast::add(const CacheNeed& need) {
  Group& group = groups_[need.growth];
  ++group.sequences;
  group.blocks += need.blocks;
  sum_ += need;
}

void CacheForecast::remove(const CacheNeed& need) {
  const auto group = groups_.find(need.growth);
  group->second.blocks -= need.blocks;
  sum_ -= need;
  if (--group->second.sequences == 0) groups_.erase(group);
}

int CacheForecast::peak(const CacheNeed& more, double growth_ratio) const {
  int sequences = 0, blocks = 0, peak = 0;
  bool counted = false;
  const auto add = [&](int growth, int count, int now) {
    sequences += count;
    blocks += now;
    peak = std::max(peak, blocks + sequences * expected_growth(growth, growth_ratio));
  };
  for (const auto& [growth, group] : groups_) {
    if (!counted && more.growth >= growth) add(more.growth, 1, more.blocks), counted = true;
    add(growth, group.sequences, group.blocks);
  }
  if (!counted) add(more.growth, 1, more.blocks);
  return peak;
}

void GrowthRatio::observe(const Request& request, const Completion& completion) {
  if (request.encodes() || request.max_tokens < 2 || !completion.error_code.empty()) return;
  const double weight = std::max(kLatestWeight, 1.0 / static_cast<double>(++observed_ + 1));
  value_ += weight * (completion.generated_tokens / static_cast<double>(request.max_tokens) - value_);
}

}  // namespace computron

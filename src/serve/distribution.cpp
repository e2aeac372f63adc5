#include "computron/serve/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace computron {
namespace {

constexpr int kMantissaBits = 23;  // of a float

}  // namespace

void Distribution::add(double value) {
  value = std::max(value, 0.0);
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  sum_ += value;
  ++count_;
  constexpr int kDropped = kMantissaBits - kDigits;
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const std::uint32_t key = (bits + (1u << (kDropped - 1))) >> kDropped;  // rounded, perhaps into the next octave
  ++octaves_[key >> kDigits][key & ((1u << kDigits) - 1)];
}

void Distribution::merge(const Distribution& other) {
  if (other.empty()) return;
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = count_ == 0 ? other.max_ : std::max(max_, other.max_);
  sum_ += other.sum_;
  count_ += other.count_;
  for (const auto& [octave, counts] : other.octaves_) {
    Counts& mine = octaves_[octave];
    for (std::size_t i = 0; i < counts.size(); ++i) mine[i] += counts[i];
  }
}

double Distribution::percentile(double p) const {
  const double rank = std::max(1.0, std::ceil(p * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (const auto& [octave, counts] : octaves_) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      seen += counts[i];
      if (static_cast<double>(seen) < rank) continue;
      const auto key = static_cast<std::uint32_t>(octave << kDigits | i);
      return std::clamp<double>(std::bit_cast<float>(key << (kMantissaBits - kDigits)), min_, max_);
    }
  }
  return max_;
}

}  // namespace computron

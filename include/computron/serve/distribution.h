// How a quantity is distributed, in memory that does not grow with the number of values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

namespace computron {

// Values from 0 on are counted by their 12 leading binary digits: a percentile is within 1/4096 of the value that it
// stands for, whole numbers up to 4096 are themselves. Mean, least and largest are exact.
class Distribution {
 public:
  void add(double value);  // not NaN
  void merge(const Distribution& other);

  bool empty() const { return count_ == 0; }
  // Of those that are not empty:
  double mean() const { return sum_ / static_cast<double>(count_); }
  double max() const { return max_; }
  // Nearest rank: the smallest value that at least the fraction `p` of all values do not exceed.
  double percentile(double p) const;

 private:
  static constexpr int kDigits = 11;  // behind the leading one
  using Counts = std::array<std::uint64_t, std::size_t{1} << kDigits>;

  std::map<std::uint32_t, Counts> octaves_;  // by the exponent
  std::uint64_t count_ = 0;
  double sum_ = 0, min_ = 0, max_ = 0;
};

}  // namespace computron

// An axis of a chart: from values to places, with ticks at round values.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace computron {

struct Tick {
  double value;
  std::string text;
};

struct Axis {
  std::string label;  // with its unit
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks = {};

  // 0 at `low`, 1 at `high`; what lies outside is moved to the end.
  double place(double value) const;
};

// Multiples of 1, 2 or 5 times a power of ten in [low, high], at most `most` of them. Requires low < high.
std::vector<double> round_values(double low, double high, int most);

// From zero, or from what is below it, to the round value that takes `high` in.
Axis linear_axis(std::string label, double low, double high, int most_ticks = 6);
// Ends exactly at `low` and `high`.
Axis exact_axis(std::string label, double low, double high, int most_ticks = 10);
// Ticks at powers of ten, and at 2 and 5 times these where there is room. Both ends are above 0.
Axis log_axis(std::string label, double low, double high, int most_ticks = 8);
// A logarithmic axis with a tick at each of some values above 0: numbers of ranks.
Axis value_axis(std::string label, std::span<const double> values);

// A unit in which times up to `longest_s` are written without long numbers.
struct TimeUnit {
  const char* name;
  double per_second;
};
TimeUnit time_unit(double longest_s);

}  // namespace computron

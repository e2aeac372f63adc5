#include "computron/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "computron/report/text.h"

namespace computron {
namespace {

// The smallest of 1, 2, 5, 10, ... times a power of ten that is not below `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// All with as many decimals as the step needs.
std::vector<Tick> ticks_at(const std::vector<double>& values) {
  const double step = values.size() > 1 ? values[1] - values[0] : std::abs(values.empty() ? 1 : values[0]);
  const int decimals = step > 0 ? std::clamp(static_cast<int>(-std::floor(std::log10(step * 1.0000001))), 0, 9) : 0;
  std::vector<Tick> ticks;
  for (const double value : values) {
    ticks.push_back(
        {value, decimals == 0 ? format_number(std::round(value)) : fmt::format("{:.{}f}", value, decimals)});
  }
  return ticks;
}

// Of a round value: "0.002", "5", "20,000".
std::string short_text(double value) { return value >= 1000 ? format_number(value) : fmt::format("{:g}", value); }

std::vector<double> log_values(double low, double high, std::span<const double> factors) {
  std::vector<double> values;
  for (double power = std::pow(10.0, std::floor(std::log10(low))); power <= high * 1.000001; power *= 10) {
    for (const double factor : factors) {
      const double value = factor * power;
      if (value >= low * 0.999999 && value <= high * 1.000001) values.push_back(value);
    }
  }
  return values;
}

}  // namespace

double Axis::place(double value) const {
  const double share =
      logarithmic ? std::log(std::max(value, low) / low) / std::log(high / low) : (value - low) / (high - low);
  return std::clamp(share, 0.0, 1.0);
}

std::vector<double> round_values(double low, double high, int most) {
  const double step = round_step((high - low) / std::max(1, most - 1));
  std::vector<double> values;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i)
    values.push_back(i * step + 0.0);  // no minus zero
  return values;
}

Axis linear_axis(std::string label, double low, double high, int most_ticks) {
  low = std::min(low, 0.0);
  if (!(high > low)) high = low + 1;
  const double step = round_step((high - low) / std::max(1, most_ticks - 1));
  const Axis axis{std::move(label), step * std::floor(low / step + 1e-9), step * std::ceil(high / step - 1e-9)};
  return {axis.label, axis.low, axis.high, false, ticks_at(round_values(axis.low, axis.high, most_ticks + 1))};
}

Axis exact_axis(std::string label, double low, double high, int most_ticks) {
  if (!(high > low)) high = low + 1;
  return {std::move(label), low, high, false, ticks_at(round_values(low, high, most_ticks))};
}

Axis log_axis(std::string label, double low, double high, int most_ticks) {
  constexpr double kAll[] = {1, 2, 5}, kPowers[] = {1};
  if (!(high > low * 1.1)) {  // a range to look at around one value
    low /= 2;
    high *= 2;
  }
  std::vector<double> values = log_values(low, high, kAll);
  if (values.size() > static_cast<std::size_t>(most_ticks)) values = log_values(low, high, kPowers);
  std::vector<Tick> ticks;
  const std::size_t every = values.size() / static_cast<std::size_t>(most_ticks) + 1;
  for (std::size_t i = 0; i < values.size(); i += every) ticks.push_back({values[i], short_text(values[i])});
  return {std::move(label), low, high, true, std::move(ticks)};
}

Axis value_axis(std::string label, std::span<const double> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Axis axis{std::move(label), *low / 1.25, *high * 1.25, true};
  for (const double value : values) axis.ticks.push_back({value, format_number(value)});
  return axis;
}

TimeUnit time_unit(double longest_s) {
  if (longest_s < 2e-3) return {"µs", 1e6};
  if (longest_s < 2) return {"ms", 1e3};
  if (longest_s < 600) return {"s", 1};
  if (longest_s < 4 * 3600) return {"min", 1.0 / 60};
  return {"h", 1.0 / 3600};
}

}  // namespace computron

// When requests arrive at which model: by rule, with the numbers of NumPy's legacy generator, so that the workloads of
// AlpaServe's experiments come out request for request. A simulator takes them as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace computron {

struct Arrival {
  double time_s = 0;
  std::uint32_t model = 0;
};

// How the arrivals at one model follow each other. The mean rate is given apart: these are its shape.
struct GammaGaps {
  double cv = 1;  // of the times between arrivals, which are Gamma(1/cv²): 1 is a Poisson process, more is bursts
};
struct ParetoGaps {
  double shape = 3;  // above 1; the times between are Pareto II (Lomax), below 2 of infinite variance
};
struct WeibullGaps {
  double shape = 1;  // 1 is a Poisson process, less is bursts
};
struct EvenGaps {};
// A Markov-modulated Poisson process: within a state arrivals are Poisson, a state lasts an exponential time, and the
// next one is any other with equal probability. Only the ratios of the rates count: the mean rate is given apart.
struct MarkovModulated {
  struct State {
    double mean_s = 1;
    double rate = 1;
  };
  std::vector<State> states;  // at least two; it begins in the first
};
using ArrivalProcess = std::variant<GammaGaps, ParetoGaps, WeibullGaps, EvenGaps, MarkovModulated>;

// [start_s, start_s + duration_s)
struct TimeSpan {
  double start_s = 0;
  double duration_s = 0;
};

constexpr double kMinCv = 0.01, kMaxCv = 100;  // of times between arrivals
constexpr double kMostArrivals = 5e7;          // that are drawn at once, of all models or windows

// About how many a process has in so many seconds, and rather too many: rate · duration, and (cv² - 1) / 2 where it
// begins with a burst. Error{kUsage} naming what is out of range.
double expected_arrivals(const ArrivalProcess& process, double rate_per_s, double duration_s);
// Error{kUsage} where more than kMostArrivals are expected.
void check_expected(double arrivals);

// Of one model, in order. The first arrival lies one gap after the start. Error{kUsage} naming what is out of range.
std::vector<double> arrival_times(const ArrivalProcess& process, double rate_per_s, TimeSpan span, std::uint32_t seed);

// Of all models, in order of time. Model m has the seed `seed` + m, so the others make no difference to it.
std::vector<Arrival> make_arrivals(const ArrivalProcess& process, std::span<const double> rates_per_s, TimeSpan span,
                                   std::uint32_t seed);

// In order of time; those at the same time in order of models.
void sort_arrivals(std::vector<Arrival>& arrivals);

// Rates of `models` models whose sum is `total_per_s`.
// ∝ (m + 1)^-skew: 0 makes them equal. AlpaServe's skew is 0.5.
std::vector<double> power_law_rates(std::size_t models, double total_per_s, double skew);
// One model of weight 1, two of 1/2, four of 1/4, ...
std::vector<double> triangle_decay_rates(std::size_t models, double total_per_s);
// ∝ the weights.
std::vector<double> weighted_rates(std::span<const double> weights, double total_per_s);

}  // namespace computron

#include "computron/workload/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "computron/base/error.h"
#include "computron/workload/numpy_random.h"

namespace computron {
namespace {

[[noreturn]] void bad_arrivals(const std::string& why) { throw Error(ExitCode::kUsage, "arrivals: " + why); }

double positive(double value, const char* name) {
  if (!(std::isfinite(value) && value > 0)) bad_arrivals(fmt::format("{} is {}, expected more than 0", name, value));
  return value;
}

double checked_cv(double cv) {
  if (!(cv >= kMinCv && cv <= kMaxCv)) {
    bad_arrivals(fmt::format("the coefficient of variation is {}, expected {} to {}", cv, kMinCv, kMaxCv));
  }
  return cv;
}

// The square of the coefficient of variation; 1 where it is not known, or infinite.
double squared_cv(const GammaGaps& gaps) { return checked_cv(gaps.cv) * gaps.cv; }
double squared_cv(const WeibullGaps& gaps) {
  const double mean = std::tgamma(1 + 1 / positive(gaps.shape, "the Weibull shape"));
  const double square = std::tgamma(1 + 2 / gaps.shape) / (mean * mean) - 1;
  if (!std::isfinite(square)) bad_arrivals(fmt::format("the Weibull shape is {}, which is too small", gaps.shape));
  return square;
}
double squared_cv(const auto&) { return 1; }

// Times between the arrivals of a renewal process.
class Gaps {
 public:
  Gaps(const GammaGaps& gaps, double rate_per_s) {
    const double cv = checked_cv(gaps.cv);
    shape_ = 1 / (cv * cv);
    scale_ = cv * cv / rate_per_s;
    draw_ = &Gaps::gamma;
  }
  Gaps(const ParetoGaps& gaps, double rate_per_s) : shape_(gaps.shape), draw_(&Gaps::pareto) {
    if (!(gaps.shape > 1)) bad_arrivals(fmt::format("the Pareto shape is {}, expected more than 1", gaps.shape));
    scale_ = (shape_ - 1) / rate_per_s;
  }
  Gaps(const WeibullGaps& gaps, double rate_per_s)
      : shape_(positive(gaps.shape, "the Weibull shape")),
        scale_(1 / (rate_per_s * std::tgamma(1 + 1 / shape_))),
        draw_(&Gaps::weibull) {
    if (!(scale_ > 0)) bad_arrivals(fmt::format("the Weibull shape is {}, which is too small", gaps.shape));
  }
  Gaps(const EvenGaps&, double rate_per_s) : scale_(1 / rate_per_s), draw_(&Gaps::even) {}

  double next(NumpyRandom& random) const { return scale_ * (this->*draw_)(random); }

 private:
  double gamma(NumpyRandom& random) const { return random.standard_gamma(shape_); }
  double pareto(NumpyRandom& random) const { return random.pareto(shape_); }
  double weibull(NumpyRandom& random) const { return random.weibull(shape_); }
  double even(NumpyRandom&) const { return 1; }

  double shape_ = 1, scale_ = 1;
  double (Gaps::*draw_)(NumpyRandom&) const = nullptr;
};

template <class Shape>
std::vector<double> times_of(const Shape& shape, double rate_per_s, TimeSpan span, NumpyRandom random) {
  const Gaps gaps(shape, rate_per_s);
  const double end = span.start_s + span.duration_s;
  std::vector<double> times;
  for (double time = span.start_s + gaps.next(random); time < end; time += gaps.next(random)) {
    times.push_back(time);
    if (static_cast<double>(times.size()) > 2 * kMostArrivals) bad_arrivals("there are too many");
  }
  return times;
}

void check(const MarkovModulated& process) {
  if (process.states.size() < 2) bad_arrivals("a Markov-modulated process has at least two states");
  double rates = 0;
  for (const auto& state : process.states) {
    positive(state.mean_s, "a state's mean time");
    if (!(std::isfinite(state.rate) && state.rate >= 0)) bad_arrivals(fmt::format("a state's rate is {}", state.rate));
    rates += state.rate;
  }
  positive(rates, "the sum of the states' rates");
}

std::size_t other_state(std::size_t state, std::size_t states, NumpyRandom& random) {
  const auto step = states == 2 ? 0 : static_cast<std::size_t>(random.uniform() * static_cast<double>(states - 1));
  return (state + 1 + step) % states;
}

// Each state is as likely at any change, so a state's share of the time is that of its mean time.
std::vector<double> times_of(const MarkovModulated& process, double rate_per_s, TimeSpan span, NumpyRandom random) {
  check(process);
  double all_s = 0, weighted = 0;
  for (const auto& state : process.states) {
    all_s += state.mean_s;
    weighted += state.mean_s * state.rate;
  }
  const double scale = rate_per_s * all_s / weighted, end = span.start_s + span.duration_s;
  std::vector<double> times;
  std::size_t at = 0;
  for (double begin = span.start_s; begin < end;) {
    const double until = std::min(end, begin + process.states[at].mean_s * random.standard_exponential());
    const double rate = scale * process.states[at].rate;
    for (double time = begin; rate > 0;) {
      time += random.standard_exponential() / rate;
      if (time >= until) break;
      times.push_back(time);
    }
    begin = until;
    at = other_state(at, process.states.size(), random);
  }
  return times;
}

void check(double rate_per_s, TimeSpan span) {
  if (!(std::isfinite(rate_per_s) && rate_per_s >= 0)) {
    bad_arrivals(fmt::format("the rate is {}, expected requests per second >= 0", rate_per_s));
  }
  if (!std::isfinite(span.start_s)) bad_arrivals(fmt::format("the start is {}", span.start_s));
  positive(span.duration_s, "the duration");
}

}  // namespace

double expected_arrivals(const ArrivalProcess& process, double rate_per_s, double duration_s) {
  check(rate_per_s, {0, duration_s});
  if (rate_per_s == 0) return 0;
  const double square = std::visit([](const auto& shape) { return squared_cv(shape); }, process);
  return rate_per_s * duration_s + std::max(0.0, (square - 1) / 2);
}

void check_expected(double arrivals) {
  if (arrivals <= kMostArrivals) return;
  bad_arrivals(
      fmt::format("rate, duration and cv make about {:.3g} requests, expected at most {:g}", arrivals, kMostArrivals));
}

std::vector<double> arrival_times(const ArrivalProcess& process, double rate_per_s, TimeSpan span, std::uint32_t seed) {
  check(rate_per_s, span);
  check_expected(expected_arrivals(process, rate_per_s, span.duration_s));
  if (rate_per_s == 0) return {};
  return std::visit([&](const auto& shape) { return times_of(shape, rate_per_s, span, NumpyRandom(seed)); }, process);
}

std::vector<Arrival> make_arrivals(const ArrivalProcess& process, std::span<const double> rates_per_s, TimeSpan span,
                                   std::uint32_t seed) {
  double expected = 0;
  for (const double rate_per_s : rates_per_s) expected += expected_arrivals(process, rate_per_s, span.duration_s);
  check_expected(expected);
  std::vector<Arrival> arrivals;
  for (std::uint32_t m = 0; m < rates_per_s.size(); ++m) {
    for (const double time : arrival_times(process, rates_per_s[m], span, seed + m)) arrivals.push_back({time, m});
  }
  sort_arrivals(arrivals);
  return arrivals;
}

void sort_arrivals(std::vector<Arrival>& arrivals) {
  std::ranges::stable_sort(arrivals, {}, [](const Arrival& a) { return std::tuple(a.time_s, a.model); });
}

std::vector<double> power_law_rates(std::size_t models, double total_per_s, double skew) {
  std::vector<double> weights(models);
  for (std::size_t m = 0; m < models; ++m) weights[m] = std::pow(static_cast<double>(m + 1), -skew);
  return weighted_rates(weights, total_per_s);
}

std::vector<double> triangle_decay_rates(std::size_t models, double total_per_s) {
  std::vector<double> weights(models);
  double weight = 1;
  for (std::size_t m = 0, end = 1; m < models; ++m) {
    if (m == end) {
      end = 2 * end + 1;
      weight /= 2;
    }
    weights[m] = weight;
  }
  return weighted_rates(weights, total_per_s);
}

std::vector<double> weighted_rates(std::span<const double> weights, double total_per_s) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  positive(sum, "the sum of the models' weights");
  std::vector<double> rates(weights.begin(), weights.end());
  for (double& rate : rates) {
    if (rate < 0) bad_arrivals(fmt::format("a model's weight is {}", rate));
    rate *= total_per_s / sum;
  }
  return rates;
}

}  // namespace computron

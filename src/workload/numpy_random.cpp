// Compiled without fused multiply-add (CMakeLists.txt): NumPy's own results have none.
#include "computron/workload/numpy_random.h"

#include <cmath>

namespace computron {

double NumpyRandom::uniform() {
  const std::uint32_t high = engine_() >> 5, low = engine_() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

double NumpyRandom::standard_exponential() { return -std::log(1.0 - uniform()); }

// Marsaglia's polar method; the pair's second number is kept for the next call.
double NumpyRandom::standard_normal() {
  if (normal_) {
    const double kept = *normal_;
    normal_.reset();
    return kept;
  }
  for (;;) {
    const double x = 2.0 * uniform() - 1.0, y = 2.0 * uniform() - 1.0;
    const double square = x * x + y * y;
    if (square >= 1.0 || square == 0.0) continue;
    const double factor = std::sqrt(-2.0 * std::log(square) / square);
    normal_ = factor * x;
    return factor * y;
  }
}

double NumpyRandom::standard_gamma(double shape) {
  if (shape == 1.0) return standard_exponential();
  return shape < 1.0 ? gamma_below_one(shape) : gamma_above_one(shape);
}

// Ahrens and Dieter's rejection, as NumPy has it.
double NumpyRandom::gamma_below_one(double shape) {
  for (;;) {
    const double u = uniform(), v = standard_exponential();
    if (u <= 1.0 - shape) {
      const double x = std::pow(u, 1.0 / shape);
      if (x <= v) return x;
      continue;
    }
    const double y = -std::log((1.0 - u) / shape);
    const double x = std::pow(1.0 - shape + shape * y, 1.0 / shape);
    if (x <= v + y) return x;
  }
}

// Marsaglia and Tsang (2000).
double NumpyRandom::gamma_above_one(double shape) {
  const double b = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * b);
  for (;;) {
    double x = 0, v = 0;
    do {
      x = standard_normal();
      v = 1.0 + c * x;
    } while (v <= 0.0);
    v = v * v * v;
    const double u = uniform();
    if (u < 1.0 - 0.0331 * (x * x) * (x * x)) return b * v;
    if (std::log(u) < 0.5 * x * x + b * (1.0 - v + std::log(v))) return b * v;
  }
}

double NumpyRandom::pareto(double shape) { return std::exp(standard_exponential() / shape) - 1.0; }

double NumpyRandom::weibull(double shape) { return std::pow(standard_exponential(), 1.0 / shape); }

}  // namespace computron

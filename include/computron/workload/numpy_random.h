// The numbers of numpy.random.RandomState(seed), bit for bit: workloads that were made with NumPy's legacy generator
// come out here request for request. NumPy has frozen that stream (NEP 19).
#pragma once

#include <cstdint>
#include <optional>
#include <random>

namespace computron {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  double uniform();  // in [0, 1), of 53 bits
  double standard_normal();
  double standard_exponential();
  double standard_gamma(double shape);  // of scale 1; shape > 0
  double pareto(double shape);          // Pareto II (Lomax) of scale 1: from 0 on, mean 1 / (shape - 1)
  double weibull(double shape);         // of scale 1: mean Γ(1 + 1/shape)

 private:
  double gamma_below_one(double shape);
  double gamma_above_one(double shape);

  std::mt19937 engine_;
  std::optional<double> normal_;  // the second of the last pair
};

}  // namespace computron

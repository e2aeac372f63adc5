// How far rows of logits, vectors or scores lie from those of a reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

namespace computron::test {

// The largest difference; infinite where one is not a number.
inline double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

// ÷ the largest of b.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (const float value : b) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return distance(a, b) == 0 ? 0 : distance(a, b) / largest;
}

inline double cosine(std::span<const float> a, std::span<const float> b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  return ab / std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0) *
                        std::inner_product(b.begin(), b.end(), b.begin(), 0.0));
}

inline std::vector<double> softmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp(x - max));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Of the distribution that the actual logits mean from the expected one.
inline double divergence(std::span<const float> actual, std::span<const float> expected) {
  const std::vector<double> p = softmax(expected), q = softmax(actual);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
  return sum;
}

inline auto best(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

}  // namespace computron::test

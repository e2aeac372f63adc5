#include "src/requests/pooled_scores.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace computron {
namespace {

// Lengths are at least that much, as in torch's cosine_similarity: vectors of zeros have a cosine, 0.
constexpr double kLeastLength = 1e-8;

double product(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double length(const std::vector<float>& vector) { return std::sqrt(product(vector, vector)); }

float cosine(const std::vector<float>& a, const std::vector<float>& b) {
  return static_cast<float>(product(a, b) / (std::max(length(a), kLeastLength) * std::max(length(b), kLeastLength)));
}

std::vector<float> softmax(const std::vector<float>& scores) {
  const double highest = *std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - highest);
  std::vector<float> probabilities;
  for (const float score : scores) probabilities.push_back(static_cast<float>(std::exp(score - highest) / sum));
  return probabilities;
}

float sigmoid(float score) { return static_cast<float>(1 / (1 + std::exp(-static_cast<double>(score)))); }

}  // namespace

void scale_to_length_1(std::vector<float>& vector) {
  const double divisor = std::max(length(vector), kLeastLength);
  for (float& value : vector) value = static_cast<float>(value / divisor);
}

std::vector<float> activated(const std::vector<float>& scores, ClassScores kind) {
  // The softmax of one score is 1, whatever the score: one class is a probability by itself.
  const bool one = scores.size() == 1;
  if (kind == ClassScores::kSoftmax && !one) return softmax(scores);
  std::vector<float> values = scores;
  if (kind != ClassScores::kRaw) std::ranges::transform(values, values.begin(), sigmoid);
  return values;
}

std::vector<float> pair_scores(std::span<const Completion> parts, const PooledOutput& output,
                               const ModelConfig& config) {
  std::vector<float> scores;
  if (output.firsts == 0) {
    const ClassScores kind = output.activation ? config.class_scores : ClassScores::kRaw;
    for (const Completion& part : parts) scores.push_back(activated(part.values, kind).front());
    return scores;
  }
  const auto firsts = parts.first(output.firsts), seconds = parts.subspan(output.firsts);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    scores.push_back(cosine(firsts[firsts.size() == 1 ? 0 : i].values, seconds[i].values));
  }
  return scores;
}

std::vector<std::size_t> best_first(const std::vector<float>& scores, std::size_t most) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return scores[i]; });
  if (most > 0) order.resize(std::min(most, order.size()));
  return order;
}

}  // namespace computron

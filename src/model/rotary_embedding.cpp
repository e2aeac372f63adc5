// The rotary embedding: the angles by which queries and keys are turned, and how models stretch them.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "computron/model/layers.h"

namespace computron {
namespace {

float llama3_frequency(const ModelConfig& c, float f) {
  const float turns = static_cast<float>(c.rope_original_positions) * f / (2 * std::numbers::pi_v<float>);
  const float s = (turns - c.rope_low_frequency_factor) / (c.rope_high_frequency_factor - c.rope_low_frequency_factor);
  if (s > 1) return f;
  return s < 0 ? f / c.rope_factor : (1 - s) * f / c.rope_factor + s * f;
}

// The pair of elements, between two of them, that turns so many times within the original positions.
float yarn_pair(const ModelConfig& c, float turns) {
  const float positions = static_cast<float>(c.rope_original_positions) / (turns * 2 * std::numbers::pi_v<float>);
  return static_cast<float>(c.rotated()) * std::log(positions) / (2 * std::log(c.rope_theta));
}

float yarn_frequency(const ModelConfig& c, float f, int pair) {
  float first = yarn_pair(c, c.rope_beta_fast), last = yarn_pair(c, c.rope_beta_slow);
  if (c.rope_whole_dims) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0f);
  last = std::min(last, static_cast<float>(c.rotated() - 1));
  const float steps = first == last ? 0.001f : last - first;
  const float s = std::clamp((static_cast<float>(pair) - first) / steps, 0.0f, 1.0f);
  return (1 - s) * f + s * f / c.rope_factor;
}

float scaled_frequency(const ModelConfig& c, float f, int pair, RotaryKind kind) {
  if (kind == RotaryKind::kWindow) return f;
  switch (c.rope_scaling) {
    case RopeScaling::kNone:
      return f;
    case RopeScaling::kLinear:
      return f / c.rope_factor;
    case RopeScaling::kLlama3:
      return llama3_frequency(c, f);
    case RopeScaling::kYarn:
      return yarn_frequency(c, f, pair);
    case RopeScaling::kLongRope:
      return f / (kind == RotaryKind::kLong ? c.rope_long_factors : c.rope_short_factors)[pair];
  }
  return f;
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const ModelConfig& config)
    : frequencies_(frequencies(config)), scale_(config.rope_attention_factor) {
  if (config.rope_scaling == RopeScaling::kLongRope) long_frequencies_ = frequencies(config, RotaryKind::kLong);
  if (config.rope_window_theta > 0) window_frequencies_ = frequencies(config, RotaryKind::kWindow);
}

void RotaryEmbedding::add_to(PassArrays& arrays) const {
  for (const auto* list : {&frequencies_, &long_frequencies_, &window_frequencies_}) arrays.add_input(std::span(*list));
}

void RotaryEmbedding::forward(Pass& pass) {
  const Batch& batch = pass.batch;
  const int columns = 2 * static_cast<int>(frequencies_.size());
  const Activations angles = pass.work.angles(batch.rows(), columns);  // [M, rotary dimensions]
  if (batch.long_factors.empty()) {
    rotate_rows(pass, 0, batch.rows(), frequencies_, angles);
  } else {
    for (std::size_t begin = 0, end = 0; begin < batch.sequences.size(); begin = end) {
      const auto kind = batch.long_factors[begin];
      while (end < batch.sequences.size() && batch.long_factors[end] == kind) ++end;
      const SequenceRows& last = batch.sequences[end - 1];
      rotate_rows(pass, batch.sequences[begin].row, last.row + last.rows, kind != 0 ? long_frequencies_ : frequencies_,
                  angles);
    }
  }
  if (scale_ != 1) pass.ops.scale(pass.stream, scale_, angles);
  if (window_frequencies_.empty()) return;
  rotate_rows(pass, 0, batch.rows(), window_frequencies_, pass.work.window_angles(batch.rows(), columns));
}

void RotaryEmbedding::rotate_rows(Pass& pass, int first, int end, const std::vector<float>& frequencies,
                                  Activations angles) {
  const std::span positions(pass.batch.positions);
  pass.ops.rotary_angles(pass.stream, positions.subspan(first, end - first), frequencies,
                         angles.row_range(first, end - first));
}

std::vector<float> RotaryEmbedding::frequencies(const ModelConfig& c, RotaryKind kind) {
  const float theta = kind == RotaryKind::kWindow ? c.rope_window_theta : c.rope_theta;
  std::vector<float> frequencies;
  for (int i = 0; i < c.rotated() / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.rotated());
    frequencies.push_back(scaled_frequency(c, 1.0f / std::pow(theta, exponent), i, kind));
  }
  return frequencies;
}

}  // namespace computron

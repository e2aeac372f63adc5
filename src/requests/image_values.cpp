#include "src/requests/image_values.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace computron {
namespace {

constexpr int kChannels = 3;
constexpr int kWeightBits = 32 - 8 - 2;  // 8 bits of a pixel, 2 for sums beyond 1 of weights of either sign

double triangle(double x) { return std::max(1 - std::fabs(x), 0.0); }

// Keys' cubic convolution with a = -1/2.
double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

// The source pixels [first, first + weights.size()) that make an output pixel of a line.
struct Taps {
  int first = 0;
  std::vector<int> weights;
};

Taps taps_of(int position, double scale, int length, Resampling resampling) {
  const bool bilinear = resampling == Resampling::kBilinear;
  const double stretch = std::max(scale, 1.0), support = (bilinear ? 1.0 : 2.0) * stretch;
  const double center = (position + 0.5) * scale;
  const int first = std::max(static_cast<int>(std::floor(center - support + 0.5)), 0);
  const int end = std::min(static_cast<int>(std::floor(center + support + 0.5)), length);
  std::vector<double> weights;
  double sum = 0;
  for (int x = first; x < end; ++x) {
    const double distance = (x - center + 0.5) * (1 / stretch);
    sum += weights.emplace_back(bilinear ? triangle(distance) : cubic(distance));
  }
  Taps taps{first, {}};
  for (const double weight : weights) {
    const double fixed = (sum != 0 ? weight / sum : weight) * (1 << kWeightBits);
    taps.weights.push_back(static_cast<int>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
  }
  return taps;
}

std::vector<Taps> all_taps(int from, int to, Resampling resampling) {
  std::vector<Taps> taps;
  for (int i = 0; i < to; ++i) taps.push_back(taps_of(i, static_cast<double>(from) / to, from, resampling));
  return taps;
}

// `pixels` points at the first tap's; the next one's is `stride` further.
std::uint8_t weighted(const Taps& taps, const std::uint8_t* pixels, std::size_t stride) {
  int sum = 1 << (kWeightBits - 1);
  for (const int weight : taps.weights) {
    sum += *pixels * weight;
    pixels += stride;
  }
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

RgbImage resize_rows(const RgbImage& image, int width, Resampling resampling) {
  const std::vector<Taps> taps = all_taps(image.width, width, resampling);
  RgbImage out{width, image.height, {}};
  out.pixels.reserve(std::size_t{kChannels} * width * image.height);
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* row = image.pixels.data() + std::size_t{kChannels} * image.width * y;
    for (const Taps& tap : taps) {
      for (int c = 0; c < kChannels; ++c)
        out.pixels.push_back(weighted(tap, row + kChannels * tap.first + c, kChannels));
    }
  }
  return out;
}

RgbImage resize_columns(const RgbImage& image, int height, Resampling resampling) {
  const std::size_t row_bytes = std::size_t{kChannels} * image.width;
  RgbImage out{image.width, height, {}};
  out.pixels.reserve(row_bytes * height);
  for (const Taps& tap : all_taps(image.height, height, resampling)) {
    const std::uint8_t* first = image.pixels.data() + row_bytes * tap.first;
    for (std::size_t x = 0; x < row_bytes; ++x) out.pixels.push_back(weighted(tap, first + x, row_bytes));
  }
  return out;
}

// Pillow 13's rule, found by trying sizes; before, rows always came first, which makes single levels of difference.
bool columns_first(const RgbImage& image, int width, int height) {
  return height < image.height && image.height - height > 2 * (image.width - width);
}

float element_or_half(const std::vector<float>& list, int channel) {
  return list.empty() ? 0.5f : list[static_cast<std::size_t>(channel)];
}

}  // namespace

RgbImage resize(const RgbImage& image, int width, int height, Resampling resampling) {
  const bool rows = width != image.width, columns = height != image.height;
  if (!columns) return rows ? resize_rows(image, width, resampling) : image;
  if (!rows) return resize_columns(image, height, resampling);
  return columns_first(image, width, height)
             ? resize_rows(resize_columns(image, height, resampling), width, resampling)
             : resize_columns(resize_rows(image, width, resampling), height, resampling);
}

std::vector<float> image_values(const RgbImage& image, const ModelConfig& config) {
  const RgbImage square = resize(image, config.image_size, config.image_size, config.image_resampling);
  const std::size_t plane = square.pixels.size() / kChannels;
  std::vector<float> values;
  values.reserve(square.pixels.size());
  for (int c = 0; c < kChannels; ++c) {
    const float mean = element_or_half(config.image_mean, c), deviation = element_or_half(config.image_std, c);
    for (std::size_t i = 0; i < plane; ++i) {
      const auto value = static_cast<float>(square.pixels[kChannels * i + static_cast<std::size_t>(c)] * (1 / 255.0));
      values.push_back((value - mean) / deviation);
    }
  }
  return values;
}

std::vector<float> cut_into_patches(const std::vector<float>& values, const ModelConfig& config) {
  const auto side = static_cast<std::size_t>(config.image_size), p = static_cast<std::size_t>(config.patch_size);
  const auto channels = static_cast<std::size_t>(config.channels);
  std::vector<float> patches(static_cast<std::size_t>(config.patch_values()), 0.0f);  // the class token
  patches.reserve(patches.size() * static_cast<std::size_t>(config.patches() + 1));
  for (std::size_t y = 0; y + p <= side; y += p) {
    for (std::size_t x = 0; x + p <= side; x += p) {
      for (std::size_t row = 0; row < channels * p; ++row) {  // row % p of channel row / p
        const auto* first = values.data() + (row / p * side + y + row % p) * side + x;
        patches.insert(patches.end(), first, first + p);
      }
    }
  }
  return patches;
}

}  // namespace computron

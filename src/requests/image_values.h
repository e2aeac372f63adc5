// From pictures to what a vision encoder takes, as transformers' ViTImageProcessor does it with Pillow and NumPy.
#pragma once

#include <vector>

#include "computron/model/config.h"
#include "src/requests/image_file.h"

namespace computron {

// Pillow's Image.resize with its 8-bit arithmetic: the filter is stretched by the factor of shrinking, its weights are
// fixed-point numbers of 22 bits, and the values between the pass along rows and the one along columns are 8 bits. As
// in Pillow 13, the columns come first where the height shrinks by more than twice as many pixels as the width.
RgbImage resize(const RgbImage& image, int width, int height, Resampling resampling);

// [3, image_size, image_size]: resized, 0..1 a channel, less the mean, over the deviation. The model has 3 channels.
std::vector<float> image_values(const RgbImage& image, const ModelConfig& config);

// `values` [channels, image_size, image_size] as a SequenceChunk has them: [1 + patches, patch_values], the class
// token's row first and zero, patches row by row, each channel by channel. Pixels beyond the last whole patch are left.
std::vector<float> cut_into_patches(const std::vector<float>& values, const ModelConfig& config);

}  // namespace computron

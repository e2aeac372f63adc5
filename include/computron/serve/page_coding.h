// --coded auto: whether coded pages would come faster than others.
#pragma once

#include <span>
#include <string>

#include "computron/device/device.h"

namespace computron {

// A coded page takes less on the link; decoding should not take back what that gains.
inline constexpr double kLeastDecodingRate = 1.25;  // times the link's rate

// Of `ranks`, which are not empty, the one that decodes slowest, measured by what its link carries.
const CodingRates& slowest_decoder(std::span<const CodingRates> ranks);

// Whether every rank decodes at kLeastDecodingRate times the rate of its link at least. Not where any has no rate.
bool coding_pays(std::span<const CodingRates> ranks);

// One line: the two rates of the slowest decoder, and what follows.
std::string coding_line(std::span<const CodingRates> ranks);

}  // namespace computron

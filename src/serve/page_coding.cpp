#include "computron/serve/page_coding.h"

#include <fmt/format.h>

#include <algorithm>

namespace computron {
namespace {

double decoding_ratio(const CodingRates& rank) {
  return rank.link_bytes_per_s > 0 ? rank.decoded_bytes_per_s / rank.link_bytes_per_s : 0;
}

}  // namespace

const CodingRates& slowest_decoder(std::span<const CodingRates> ranks) {
  return *std::ranges::min_element(ranks, {}, decoding_ratio);
}

bool coding_pays(std::span<const CodingRates> ranks) {
  return decoding_ratio(slowest_decoder(ranks)) >= kLeastDecodingRate;
}

std::string coding_line(std::span<const CodingRates> ranks) {
  const CodingRates& slowest = slowest_decoder(ranks);
  if (slowest.decoded_bytes_per_s == 0)
    return "pages are kept raw in host memory: how fast this device decodes is not known";
  return fmt::format("pages are kept {} in host memory: a rank decodes {:.2f} GB/s, its link carries {:.2f} GB/s",
                     coding_pays(ranks) ? "coded" : "raw", 1e-9 * slowest.decoded_bytes_per_s,
                     1e-9 * slowest.link_bytes_per_s);
}

}  // namespace computron

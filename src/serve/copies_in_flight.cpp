#include "computron/serve/copies_in_flight.h"

#include <algorithm>
#include <utility>

namespace computron {

std::vector<CopiesInFlight::Copy> CopiesInFlight::take_landed(std::size_t frame_bytes) {
  std::vector<Copy> landed;
  std::size_t bytes = frame_bytes - std::exchange(reported_bytes_, frame_bytes);
  while (bytes > 0 && !copies_.empty()) {
    Copy& copy = copies_.front();
    const bool whole = copy.frame_bytes <= bytes;
    const Copy part = whole ? copy : Copy{copy.fetched, bytes, std::min(bytes, copy.link_bytes)};
    copy.frame_bytes -= part.frame_bytes;
    copy.link_bytes -= part.link_bytes;
    bytes -= part.frame_bytes;
    landed_link_bytes_ += part.link_bytes;
    landed.push_back(part);
    if (whole) copies_.pop_front();
  }
  return landed;
}

}  // namespace computron

// What a rank's link has been given to copy and has not copied yet, as rank 0 knows it.
//
// The rank reports how many bytes its copies have in frames. The same on every rank of a stage, those say how far it
// has come; what its coded pages take over its link differs from rank to rank, and the layout knows the most of it
// (ShardLayout::link_bytes). So rank 0 counts in the layout's link bytes throughout, in what it gives to a link as in
// what the link has done.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "computron/base/types.h"

namespace computron {

class CopiesInFlight {
 public:
  struct Copy {
    std::optional<ModelId> fetched;  // none: a cache moved
    std::size_t frame_bytes = 0, link_bytes = 0;
  };

  // In the order of the link.
  void add(const Copy& copy) { copies_.push_back(copy); }
  // What has been copied since the last call, when the rank reports `frame_bytes` from the start on. Only caches come
  // in parts, and those are not coded.
  std::vector<Copy> take_landed(std::size_t frame_bytes);
  // Of all that has landed so far.
  std::size_t landed_link_bytes() const { return landed_link_bytes_; }

 private:
  std::deque<Copy> copies_;
  std::size_t reported_bytes_ = 0;  // in frames
  std::size_t landed_link_bytes_ = 0;
};

}  // namespace computron

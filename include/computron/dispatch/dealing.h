// Deals the requests of models to groups when all of them are known, so that the last group to end ends as early as
// possible.
//
//   end of a group = max(Σ transfers + least compute, least transfer + Σ computes, longest transfer + compute)
//
// over its shares of models, as of two machines in series: no order ends sooner, and Johnson's (policy.h) about then.
// Largest model first to the group that then ends first. After that the group that ends last hands on a share, or a
// part of one, to where the model lives as well, which may hand on something itself for that, as long as all of them
// end earlier: the other's swap is in its end. Times in seconds.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace computron {

struct DealtModel {
  struct Host {
    std::size_t group = 0;
    double transfer_s = 0;  // of what the group lacks of the model
  };
  std::size_t requests = 0;
  std::vector<Host> hosts;  // one at least
};

// Compute of so many requests, 1 at least, for a model on the host of that position; more requests take no less.
using ComputeTimes = std::function<double(std::size_t model, std::size_t host, std::size_t requests)>;

// Returns [model][host] how many of the model's requests it gets.
std::vector<std::vector<std::size_t>> deal(const std::vector<DealtModel>& models, std::size_t groups,
                                           const ComputeTimes& compute_s);

// When the last group ends that way.
double latest_end_s(const std::vector<DealtModel>& models, std::size_t groups, const ComputeTimes& compute_s,
                    const std::vector<std::vector<std::size_t>>& shares);

}  // namespace computron

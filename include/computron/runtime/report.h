// A done record: what a rank tells rank 0 about a step that it has executed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "computron/model/sampler.h"
#include "computron/runtime/stage_state.h"

namespace computron {

struct Report {
  StepId step = 0;
  StateDigest digest;          // of the rank's state after the step
  std::uint64_t received = 0;  // Step::digest: covers sampling and the like, which the state's digest does not
  // Of the copy stream since the start (device.h, CopyStatistics).
  std::uint64_t link_bytes = 0;
  std::uint64_t frame_bytes = 0;
  double busy_s = 0;
  std::uint64_t pages_verified = 0;
  std::uint64_t pages_refetched = 0;
  // Of the compute stream.
  double exposed_s = 0;                     // stalls on pages so far
  double compute_s = 0;                     // of this step's pass, without stalls for pages or the stage before
  bool launched_as_graph = false;           // the pass was given as one piece (Stream::run_capturable)
  std::vector<SampledRow> rows;             // t = 0 of the last stage: one a logit row of the step; empty elsewhere
  std::vector<std::vector<float>> encoded;  // there, too: the values of each chunk with a vector or scores

  std::vector<std::byte> encode() const;
  static Report decode(std::span<const std::byte> bytes);  // Error{kInternal}
  // The longest encoding of a report with `rows` rows and `encoded_rows` with `values` values together: what rank 0
  // posts a receive for.
  static std::size_t max_bytes(int rows, int encoded_rows = 0, std::size_t values = 0);
};

}  // namespace computron

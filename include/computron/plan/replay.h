// A record played again in virtual time, as it was or on other machines: what would they have given?
//
//   replay_steps      the steps that were sent, each when what its decision followed (a report, a request) has come and
//                     rank 0 has taken as long as it did; passes take what was measured of each. What ranks did under
//                     other conditions, and nobody decided anew.
//   replay_requests   the requests, through a Dispatcher and Schedulers like the job's; passes take what passes of
//                     about as many rows took. What the job would have decided.
//
// The links' rates, what a pass takes beyond its compute and the time from a rank to rank 0 are taken from the record.
#pragma once

#include <cstdint>
#include <optional>

#include "computron/plan/record.h"

namespace computron {

struct WhatIf {
  double link_scale = 1;                         // times the rate of each host link
  std::optional<double> link_bytes_per_s = {};   // the rate of each host link
  double compute_scale = 1;                      // times the speed of each rank
  std::optional<std::size_t> device_bytes = {};  // of each rank's pool; replay_requests() only
  std::optional<std::size_t> page_bytes = {};    // replay_requests() only

  // Other frames or pages than the steps were made for.
  bool changes_pages() const { return device_bytes || page_bytes; }
};

// What a job, or its replay, came to.
struct ReplayOutcome {
  double wall_s = 0;  // until the last report
  std::uint64_t steps = 0;
  std::uint64_t swaps = 0;
  std::size_t moved_bytes = 0;                   // over all links
  double exposed_s = 0;                          // compute stalled for pages, of all groups
  std::size_t served = 0;                        // requests that ended without an error
  double mean_latency_s = 0, p99_latency_s = 0;  // of these
};

// What a rank needs beyond its passes and copies, seconds, as the record tells.
struct Overheads {
  double pass_s =
      0;  // between a pass and the next one, which is there already; less than 0 where ranks' passes overlap
  double report_s = 0;  // from sending a step to its report where nothing is in flight, without compute
  double decide_s = 0;  // from a report to the next step, where that follows it
};
Overheads overheads_of(const Record& record, std::size_t group);
// Bytes a second of a rank's host link, as reported; nothing where none has copied anything.
std::optional<double> link_bytes_per_s(const Record& record, std::size_t group, std::size_t stage);

ReplayOutcome recorded_outcome(const Record& record);
ReplayOutcome replay_steps(const Record& record, const WhatIf& what_if);
// ConfigError where a model does not fit the pool or the pages. Requests without an end in the record are left out.
ReplayOutcome replay_requests(const Record& record, const WhatIf& what_if);

// Requests that the record holds no end of.
std::size_t unfinished_requests(const Record& record);

}  // namespace computron

// What a swap costs and what it must cost: metrics of the swap experiment beside their bound, and how they are shown.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "computron/base/types.h"
#include "computron/comm/mesh.h"
#include "src/bench/link_rates.h"

namespace computron {

// A rank's copies: seconds its copy stream was busy, used bytes.
struct RankCopies {
  double busy_s = 0;
  std::uint64_t bytes = 0;
};

// A request that found its model swapped out.
struct SwapSample {
  ModelId model = 0;
  double response_s = 0;           // arrival to completion
  double exec_s = 0;               // the same of the same request when the model was resident
  std::vector<RankCopies> copies;  // [rank]
};

// What the samples are held against.
struct SwapConditions {
  MeshShape mesh;
  std::string device;
  double link_gb_per_s = 0;  // emulated; 0: the machine's own
  std::size_t page_bytes = 0;
  std::size_t page_link_bytes = 0;  // of the largest page, over the link
  int frames = 0;
  int prompt_tokens = 0;
  // The ranks of a stage, which compute at once, leave no core to the copies: computing and copying share the cores.
  bool cores_busy = false;
  std::vector<std::vector<double>> stage_shares;  // [model][stage] of a pass's multiplications; sums to 1 a model
  std::vector<LinkRates> links;                   // [rank]
};

// Response of a swapped request, perf/README.md, "Swap": with T_s the transfer and C_s the compute of stage s,
//
//   max(Σ C_s + copying, max over s of (T_s + Σ over later stages of C)) + one page
//
// T_s: bytes moved ÷ the slowest link of the stage (upper quartile of its plain copies). C_s: the resident response
// times the stage's share of the multiplications. copying: where the cores are busy, the longest any rank's bytes take
// at the rate of plain copies past an emulated link; else 0. Everything as measured in the same run.
struct SwapBound {
  double transfer_and_compute_s = 0;
  double page_s = 0;
  double seconds() const { return transfer_and_compute_s + page_s; }
};
SwapBound bound_of(const SwapSample& sample, const SwapConditions& conditions);

// Median and extremes.
struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread_of(std::vector<double> values);  // not empty

struct SwapSummary {
  int requests = 0;
  double shard_bytes = 0;  // moved by the rank that moves most; median
  Spread load_s;           // of the rank whose copies took longest
  Spread exec_s, response_s, bound_s;
  Spread response_over_bound;
  Spread response_over_limit;            // the limit: 1.05 × the bound without its page, plus the page and 3 ms
  Spread gb_per_s;                       // of the slowest rank
  Spread link_fraction;                  // of its own plain copies: the rank with the lowest
  std::optional<Spread> skew;            // fastest over slowest rank of a stage, less one; stages of several ranks only
  Spread fetch_fraction;                 // nothing computing: fetched page by page ÷ plain, slowest rank, a round each
  std::optional<double> speed_up;        // one rank's load ÷ this one's
  std::optional<double> ideal_speed_up;  // one rank's bytes ÷ the largest shard's
};

// One rank's run of the same models, for the speed-up.
struct SwapBaseline {
  double load_s = 0;
  double shard_bytes = 0;
};

SwapSummary metrics_of(const std::vector<SwapSample>& samples, const SwapConditions& conditions,
                       const std::optional<SwapBaseline>& baseline);

std::string swap_table(const SwapSummary& summary, const SwapConditions& conditions);
std::string swap_csv(const SwapSummary& summary, const SwapConditions& conditions);  // a head and a line
std::string swap_json(const SwapSummary& summary, const SwapConditions& conditions,
                      const std::vector<SwapSample>& samples);
// From what swap_json() wrote for one rank. Error{kData} naming `file`.
SwapBaseline read_baseline(const std::string& text, const std::string& file);

}  // namespace computron

// The file of `serve --trace` as a report reads it: of every rank the spans that say when it computed, waited and
// copied. The file is read as a stream; of a span 32 bytes are kept, and nothing of those inside a step.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace computron {

struct TraceTime {
  double begin_s = 0;  // since the start of the service, on rank 0's clock
  double end_s = 0;
  double length_s() const { return end_s - begin_s; }
};

struct TraceCopy : TraceTime {
  std::uint32_t model = 0;  // of RunTrace::models
  std::uint64_t bytes = 0;  // over the link
};
struct TraceStep : TraceTime {
  std::uint32_t model = 0;
};

struct RankSpans {
  std::string host;
  std::optional<int> group;  // of ranks, in a job of several
  double clock_error_s = 0;
  std::uint64_t dropped = 0;     // events for which there was no room; the last ones
  std::vector<TraceStep> steps;  // passes: waits included
  std::vector<TraceTime> page_waits;
  std::vector<TraceTime> stage_waits;  // for the stage before
  std::vector<TraceCopy> copies;       // over the link
};

struct RunTrace {
  std::vector<std::string> models;
  std::map<int, RankSpans> ranks;
  double end_s = 0;  // of the last span
  std::uint64_t events = 0;
};

// `file` is named in what is wrong: Error{kData} for what is no trace of `serve`, with the event and field at fault.
RunTrace read_run_trace(std::istream& in, const std::string& file);

}  // namespace computron

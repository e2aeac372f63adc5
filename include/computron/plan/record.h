// The record of a job (dispatch/job_record.h), read back.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "computron/dispatch/job_record.h"

namespace computron {

struct Record {
  // A step with what the ranks reported of it, and what its group knew when it was sent.
  struct Step {
    RecordedStep sent;
    RecordedReport report;
    std::size_t reports_before = 0;  // of its group
  };
  // What the dispatcher was told, in order.
  using Input = std::variant<RecordedRequest, RecordedInputEnd>;

  RecordHeader header;
  std::vector<Input> inputs;
  std::vector<std::vector<Step>> steps;  // [group] that have been reported
  std::vector<RecordedCompletion> completions;
  std::optional<RecordEnd> end;
  std::size_t unreported = 0;  // steps that were sent and of which no report is there
  std::size_t requests = 0;
  std::size_t lost_bytes = 0;  // behind the last whole frame

  // When the last report came; 0 where there is none.
  double wall_s() const;
  // Why it ends before its job did; empty if it does not.
  std::string why_cut() const;
};

// Error{kNoInput} where the file cannot be read, {kData} where it is no record, or frames that are whole hold nonsense:
// names the file and the place.
Record read_record(const std::string& path);

}  // namespace computron

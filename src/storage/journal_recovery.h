// What a job finds when it is run again: from the journal and the results, read only, what is done and what of the two
// files is sound. Pure but for the two functions that read.
//
//   1. The journal is read up to its first torn or damaged record. If more than a torn one follows, it was damaged, and
//      what it said of the rest of the results comes from these and the input.
//   2. Every COMMIT that still counts is held against the bytes it describes; from the first that does not fit on,
//      results are void.
//   3. Behind the last COMMIT, whole result lines of lines that were read and are not done count too: the process
//      ended, not the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/storage/line_history.h"
#include "src/storage/journal_records.h"
#include "src/storage/result_line.h"

namespace computron {

struct Recovered {
  LineHistory history;
  std::optional<journal::Header> header;  // none: there was no journal
  std::uint32_t attempts = 0;
  std::uint64_t epoch = 0;
  int fruitless = 0;                       // last attempts in a row that ran requests and left no result
  int without_result = 0;                  // last ones in a row that left none, with or without running requests
  bool in_order = true;                    // the last attempt ended so
  std::optional<std::uint64_t> input_end;  // bytes of standard input, if an attempt saw its end
  bool complete = false;                   // the last attempt was about to rename the results
  std::uint64_t journal_bytes = 0;         // sound ones
  std::uint64_t journal_lost = 0;          // bytes behind them, among which are records
  std::uint64_t committed = 0;             // bytes of results that fit their COMMITs
  std::uint64_t lost = 0;                  // bytes of which COMMITs speak that are not so
  std::vector<journal::Commit> tail;       // of what else is kept, behind them
  std::vector<journal::Keys> keys;         // that the journal has lost, to be written again

  std::uint64_t kept() const { return tail.empty() ? committed : tail.back().end; }
};

using ReadAt = FileLines::ReadAt;

// `result_bytes`: of the results. `max_crashes`: so many times may a line be running while the job goes down, the last
// of them alone; 0: any number of times.
Recovered recover(const ReadAt& journal, const ReadAt& results, std::uint64_t result_bytes, int max_crashes);

// Where the journal is lost or damaged: the same of the results behind kept(), from these and the input that they must
// belong to. Error{kCannotCreate} naming `path` and the line if they do not.
void rebuild(Recovered& state, const ReadAt& results, std::uint64_t result_bytes, const ReadAt& input,
             std::size_t max_line_bytes, const std::string& path);

}  // namespace computron

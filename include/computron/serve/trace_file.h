// The file of `--trace`: Chrome trace events of all ranks (opens in Perfetto, chrome://tracing).
//
// A process a rank, a thread a track; where there are several groups, the process's name says which. Times are
// microseconds of rank 0's clock since the start of its service; a metadata event "computron_rank" a rank says by how
// much its clock was moved, how far that may be wrong, and how many events it had to drop.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "computron/base/trace.h"
#include "computron/comm/clock.h"
#include "computron/comm/mesh.h"
#include "computron/device/progress.h"

namespace computron {

struct RankTrace {
  Trace& trace;
  int rank;  // of the job
  ClockOffset clock;
  std::optional<int> group = {};  // of a job of several
};

// The events of the rank's closed trace as elements of "traceEvents", each after a comma and a line break but for the
// first of rank 0. `put` is given pieces of about `piece_bytes`. `start_s`: time zero, of rank 0's clock.
void format_trace(const RankTrace& trace, double start_s, std::size_t piece_bytes,
                  const std::function<void(std::string_view)>& put);

// Collects the traces of all ranks into `path`, rank by rank, so that rank 0 holds one piece of one of them at a time.
// Closes them. Collective; `path` and `start_s` are rank 0's. Appears when complete. Error{kCannotCreate} or {kIo}.
void write_trace(const std::string& path, const Mesh& mesh, Progress& progress, const RankTrace& trace, double start_s);

}  // namespace computron

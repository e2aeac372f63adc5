// serve --dry-run: the plan instead of the run.
#pragma once

#include <optional>

#include "computron/requests/request_reader.h"
#include "computron/serve/job.h"
#include "src/apps/known_costs.h"

namespace computron {

// Collective, after a Job that loads nothing: reads every request (rank 0's `reader`; null elsewhere), lets the
// scheduler run against ranks that exist in time only, at rates measured here, and prints the plan to stdout.
// Requests arrive when their `arrival` says if `replay`, otherwise all at once. Passes, link and latency of `profiles`,
// which rank 0 alone may have, go before what is measured here. `coded`: pages cross the links coded, and take what is
// estimated from a sample of the models' files, which the plan says.
void dry_run(Job& job, RequestReader* reader, bool replay, const std::optional<NamedProfiles>& profiles, bool coded);

}  // namespace computron

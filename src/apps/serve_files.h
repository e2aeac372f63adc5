// The files of `computron serve`: where requests come from, and where results go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "computron/requests/request_reader.h"
#include "computron/serve/job.h"
#include "computron/serve/step_recorder.h"
#include "computron/storage/result_journal.h"
#include "computron/storage/result_writer.h"
#include "src/apps/known_costs.h"
#include "src/apps/serve_options.h"

namespace computron {

// The two ends of a flow of requests.
struct InputFiles {
  std::string requests;  // "-": standard input
  std::string output;
  std::optional<FoundOutput> found = {};  // until the writer has it
  std::unique_ptr<ResultWriter> writer = {};
  std::unique_ptr<RequestReader> reader = {};
};

// What only rank 0 has.
struct ServeFiles {
  std::vector<CheckpointIndex> indices;  // of the models, until the job has them
  std::optional<NamedProfiles> profiles;
  std::vector<InputFiles> inputs;    // but for those whose results are all there; of a dry run one, without an output
  std::uint64_t complete_lines = 0;  // of those others
  std::unique_ptr<StepRecorder> recorder;  // null: none is wanted
};

// Rank 0, before anything is loaded: the journal of results goes on where an earlier job ended, and whatever is written
// at the end is refused now if it cannot be. Error{kNoInput}, {kCannotCreate} and those of claim_output(),
// check_progress() and read_profiles(). An attempt that is refused here has not begun.
void open_output(const ServeOptions& options, int ranks, ServeFiles& files);

// Collective. Of --page-size auto, what an earlier attempt chose, as the journal that rank 0 has claimed keeps it;
// otherwise the option's.
std::size_t kept_page_bytes(const Communicator& world, const JobOptions& job, const ServeFiles& files);

// Collective. Rank 0 tells all whether the results of all inputs are there already.
bool is_complete(const Communicator& world, const ServeFiles& files);

// Rank 0, when the models are there: begins to read the requests, and to write results unless the run is a dry one.
void open_input(const ServeOptions& options, const Job& job, ServeFiles& files);

}  // namespace computron

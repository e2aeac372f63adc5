// What the results of a job depend on: a job that goes on with another's results must agree in it.
#pragma once

#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/serve/job_groups.h"
#include "computron/storage/result_journal.h"

namespace computron {

// Of the models and how they are computed with, by names that people know. The tp of a model counts unless the job is
// reproducible, since sums over ranks are taken in an order of it; so do its pp and --page-size on GPUs, where pieces
// of products follow the pages of a stage: a size that the program chooses follows from the models and their tp and pp.
// How matrices are multiplied counts as far as bits depend on it: on the CPU by which of its instructions
// (arithmetic_of() in cpu_probe.h), on GPUs whether in TF32; and --transport, where more than two GPUs add. Which ranks
// serve a model, and how many there are, counts nowhere: a job may go on under another placement. `indices` by model;
// they have been read.
Settings job_settings(const JobOptions& options, const std::vector<CheckpointIndex>& indices,
                      const std::vector<JobGroup>& groups);

// Under which a journal keeps the size that --page-size auto chose, beside the settings: nothing is compared with it.
inline constexpr const char* kKeptPageSize = "page size of --page-size auto";

// `before`, in which a version without groups may have named the one mesh of its job, as job_settings() says it of a
// job with the options of now. What an earlier version did not name, such as the page size, counts as in `today`, the
// settings of now; what is kept beside the settings is left out.
Settings upgraded(const JobOptions& now, const Settings& today, Settings before);

}  // namespace computron

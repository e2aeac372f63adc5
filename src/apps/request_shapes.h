// A request file as a simulation needs it: which model each request is for, when it arrives and how many tokens it has.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "computron/placement/profile.h"
#include "computron/sched/request.h"

namespace computron {

// The requests of `file`, as `computron serve` takes them, with the place of their models in `models`; ids are lines.
// Prompts are token ids, since nothing is known of tokenizers; every request generates all its max_tokens. Deadlines of
// those that give none are slo_s[model]. Without `replay` all are there from the start. Error{kNoInput} where the file
// cannot be read, and Error{kUsage} naming the first line that is no request, and why.
std::vector<Request> requests_in(const std::string& file, const std::vector<ModelProfile>& models,
                                 std::span<const float> slo_s, bool replay);

}  // namespace computron

// Requests that are all known, dealt to groups (dealing.h): lines whole, and of each model in the order of arrival.
#pragma once

#include <span>
#include <vector>

#include "computron/dispatch/serving_group.h"

namespace computron {

// `requests` in order of arrival, with the job's numbers of models, of which there are `models`; each model is in a
// group at least. Returns [group] what it should be given.
std::vector<std::vector<Request>> deal_requests(std::vector<Request> requests, std::size_t models,
                                                std::span<const ServingGroup> groups);

}  // namespace computron

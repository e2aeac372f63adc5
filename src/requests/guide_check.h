// What an answer is asked to be: the fields of a body as the text of a guide (guided/guide_spec.h).
#pragma once

#include <memory>
#include <string>

#include "computron/guided/guide_spec.h"
#include "src/requests/request_fields.h"

namespace computron {

// Null where the body asks for nothing. RequestError{invalid_parameter} naming the field, and within a schema keyword
// and place, where it asks for what is not served.
std::shared_ptr<const std::string> guide_of(const JsonFields& body, GuideChecker& guides);

// Refuses what does not go with a guided answer: `request` is what the body asks for besides, with all stop tokens.
void check_guided(const Request& request, const ServedModel& model);

// For encoders: nothing is generated that could be guided.
void refuse_guides(const JsonFields& body, const ServedModel& model);

}  // namespace computron

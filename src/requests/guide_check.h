// What an answer is asked to be: the fields of a body as the text of a guide (guided/guide_spec.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "computron/guided/guide_spec.h"
#include "src/requests/request_fields.h"

namespace computron {

struct RequestedGuide {
  std::string path;                         // the field that asks for it
  std::shared_ptr<const std::string> text;  // null where the body asks for nothing
};

// RequestError{invalid_parameter} naming the field, and within a schema keyword and place, where it asks for what is
// not served. `refusal`: why nothing is, whatever is asked for; empty: guided answers are served.
RequestedGuide guide_of(const JsonFields& body, GuideChecker& guides, std::string_view refusal);

// Refuses what does not go with a guided answer, and an answer that no token of the model begins: `request` is what the
// body asks for besides, with all stop tokens. `guides` has checked the guide last.
void check_guided(const Request& request, const ServedModel& model, const RequestedGuide& guide, GuideChecker& guides);

// For encoders: nothing is generated that could be guided.
void refuse_guides(const JsonFields& body, const ServedModel& model);

}  // namespace computron

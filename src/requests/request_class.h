// Whose a request is and how urgent: the fields by which classes of requests are told apart.
//
//   service_tier   "priority": interactive (Request::kInteractive); "auto", "default", "flex", "scale": batch (0)
//   priority       an integer, the lower the sooner, as vLLM's; it wins over service_tier
//   tenant, user   among equally urgent requests the one goes first whose tenant has had fewest tokens; tenant wins
#pragma once

#include <cstdint>
#include <string_view>

#include "src/requests/request_draft.h"

namespace computron {

inline constexpr std::string_view kClassFields[] = {"priority", "service_tier", "tenant", "user"};

struct RequestClass {
  std::int32_t priority = 0;
  std::uint64_t tenant = 0;  // a digest of its name; 0: nobody is named
};

// Of a body. RequestError: invalid_parameter for a tier that is not known and a priority that is no such integer,
// invalid_request for a tenant or user that is no text.
RequestClass class_of(const JsonFields& body);

}  // namespace computron

// What a guide is refused with.
#pragma once

#include <string>

#include "computron/base/error.h"

namespace computron {

[[noreturn]] inline void refuse_guide(const std::string& why) { throw RequestError(400, "invalid_parameter", why); }

}  // namespace computron

// What is said of a page that arrives wrong as often as it is copied.
#pragma once

#include <fmt/format.h>

#include "computron/base/error.h"
#include "computron/device/device.h"

namespace computron {

inline constexpr int kPageCopies = 2;  // a page is copied this often at most before its wrong digest is an error

// Host memory is what both copies have in common, and a link that changes bits hardly changes the same ones twice.
inline Error wrong_page(const PageName& name, bool is_decoded, bool is_same_each_time) {
  return Error(ExitCode::kDevice,
               fmt::format("page {} of model {} arrived damaged in device memory {} times: {}{}", name.page, name.owner,
                           kPageCopies, is_decoded ? "its digest is wrong" : "it cannot be decoded",
                           is_same_each_time ? ", the same each time: the page is damaged in host memory, and copying "
                                               "it again cannot mend that"
                                             : ""));
}

}  // namespace computron

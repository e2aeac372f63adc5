// Which build of the program this is.
#pragma once

#include <string>

namespace computron {

// The linker's build id of the running program, in hexadecimal; of one without, the digest of its file.
std::string build_id();

}  // namespace computron

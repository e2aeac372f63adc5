// What this program is: version, commit, build, and the libraries it runs with.
#pragma once

#include <string>

#include "computron/serve/metrics.h"

namespace computron {

// "0.1.0".
std::string version_number();
// Libraries: those of this build, in the order of the floors; what it was made without is left out.
ProgramInfo program_info();
// Lines: the program; how it was built; the libraries.
std::string version_text();

}  // namespace computron

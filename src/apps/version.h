// What this program is: version, commit, build, and the libraries it runs with.
#pragma once

#include <string>

namespace computron {

// "0.1.0".
std::string version_number();
// Lines: the program; how it was built; the libraries.
std::string version_text();

}  // namespace computron

// The manual page, made from the same table of options that the program parses.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace computron {

// computron(1) in the macros of man(7).
std::string man_page(const CLI::App& app);

}  // namespace computron

// The groups in which --help shows options.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>

namespace computron {

// Shows the options of these names, which the command has, under the heading `group`.
inline void group_options(CLI::App& command, const char* group, std::initializer_list<const char*> names) {
  for (const char* name : names) command.get_option(name)->group(group);
}

}  // namespace computron

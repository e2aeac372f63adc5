// Where a test finds what was built with it. Asked at run time, so that a test is compiled alike in every build folder
// and ccache knows it again (jobs/test.sh builds two).
#pragma once

#include <filesystem>
#include <string_view>

namespace computron::test {

// `name` in the folder of the test's own executable: a program, or checkpoints that another test has converted.
inline std::filesystem::path beside_test(std::string_view name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace computron::test

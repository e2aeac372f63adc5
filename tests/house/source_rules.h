// The rules of the house that a source file can break by itself (src/README.md, "The floors").
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace computron::test {

struct Violation {
  std::string file;  // as given
  int line = 0;
  std::string what;
};

// `text` with comments and the content of string and character literals blanked; line breaks and the names in #include
// lines stay.
std::string code_only(std::string_view text);

// Every rule over one file. `file` is its path from the repository's root ("src/comm/mesh.cpp"), which says what it may
// do: a file includes its own floor and floors below it; no public header includes MPI, HDF5 or CUDA; CUDA is named
// under */cuda/ only, but for the factories that choose it; nobody uses OpenMP's pragmas; checkpoints are parsed apart;
// names of one MPI library's are in computron/base/launcher.h, intrinsics in kernels/cpu and computron/base/vectors.h.
std::vector<Violation> check_source(std::string_view file, std::string_view text);

// The rule that tests and benchmarks keep as well: an include in quotes names the whole path from a root
// ("computron/comm/mesh.h", "src/comm/staged.h", "kernels/cpu/gemm.h", "tests/support/job.h"); only "git_revision.h",
// which the build writes, has none.
std::vector<Violation> check_include_paths(std::string_view file, std::string_view text);

}  // namespace computron::test

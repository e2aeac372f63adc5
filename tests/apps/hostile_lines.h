// Request files with bad lines of every kind (tests/faults.md, I01 to I13), mixed among sound ones by a fixed seed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace computron::test {

inline constexpr std::size_t kHostileLineBytes = 4096;  // --max-line-bytes of a job that reads such a file

struct HostileFile {
  std::string text;                            // the whole file
  std::string healthy;                         // its healthy lines alone
  std::map<std::uint64_t, std::string> codes;  // of each line that has a result, by its number; "": it is healthy
};

// `lines` lines that have results, one in ten of them bad, and some that are blank. Healthy ones ask the model `id`, a
// decoder of 128 tokens and 64 positions without a tokenizer, for one or two tokens.
HostileFile hostile_file(int lines, const std::string& id, std::uint64_t seed);

}  // namespace computron::test

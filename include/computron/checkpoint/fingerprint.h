// Whether two ranks see the same file, told from a little of it.
#pragma once

#include <string>

namespace computron {

// Its length, and a digest of its first and last 64 KiB, as text. Error{kNoInput} or {kIo} naming the path; a FIFO or a
// device is refused, not waited for.
std::string file_fingerprint(const std::string& path);

}  // namespace computron

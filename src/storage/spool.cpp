#include "computron/storage/spool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace computron {

Spool::Spool(AppendFile file, bool durable, DiskWait wait, std::optional<std::uint64_t> known_end)
    : file_(std::move(file)), durable_(durable), wait_(std::move(wait)), known_end_(known_end) {}

std::string_view Spool::take(std::string_view bytes) {
  const std::uint64_t known = taken_ < file_.end() ? std::min<std::uint64_t>(bytes.size(), file_.end() - taken_) : 0;
  if (known > 0 && file_.read(taken_, known) != bytes.substr(0, known)) {
    throw Error(ExitCode::kData,
                fmt::format("standard input has changed since the last attempt, near byte {}: give the same again, or "
                            "nothing, to go on with '{}'",
                            taken_, file_.path()));
  }
  taken_ += bytes.size();
  bytes.remove_prefix(known);
  if (bytes.empty()) return bytes;
  append_all(file_, bytes, /*lines=*/false, wait_);
  if (durable_) file_.sync_data();
  return bytes;
}

void Spool::end() const {
  if (taken_ > 0 ? taken_ >= file_.end() : known_end_ == file_.end()) return;
  if (taken_ == 0) {
    throw Error(
        ExitCode::kData,
        fmt::format("standard input is empty, but the last attempt ended before it had seen all of it ({} bytes "
                    "are in '{}'): give the same input again",
                    file_.end(), file_.path()));
  }
  throw Error(ExitCode::kData,
              fmt::format("standard input has become shorter: {} bytes; the last attempt had {} ('{}')", taken_,
                          file_.end(), file_.path()));
}

}  // namespace computron

// Standard input on disk, so that a job can be run again: OUT.spool.
//
// A job that is run again gets the same bytes over standard input once more, or none: what came before is compared,
// what is new is appended. None is enough only if an earlier attempt saw the end: what a killed job had read of a pipe
// may be any part of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "computron/storage/files.h"

namespace computron {

class Spool {
 public:
  // `durable`: bytes are on disk before anything is done about them. `known_end`: the length of standard input if an
  // earlier attempt has seen its end, 0 where there was none; none: no attempt has seen it.
  Spool(AppendFile file, bool durable, DiskWait wait, std::optional<std::uint64_t> known_end);

  // At most `count` bytes of what came in earlier attempts, from `offset` on.
  std::string read(std::uint64_t offset, std::size_t count) const { return file_.read(offset, count); }
  std::uint64_t bytes() const { return file_.end(); }
  // What comes next over standard input. Returns what of it is new. Error{kData} if it is not what came before.
  std::string_view take(std::string_view bytes);
  // Standard input has ended. Error{kData} if it has given some, but not all, of what came before, or nothing of what
  // nobody has seen the end of.
  void end() const;
  // How to sleep while the disk is full.
  void set_pause(std::function<bool(double seconds)> pause) { wait_.pause = std::move(pause); }

 private:
  AppendFile file_;
  bool durable_;
  DiskWait wait_;
  std::optional<std::uint64_t> known_end_;
  std::uint64_t taken_ = 0;
};

}  // namespace computron

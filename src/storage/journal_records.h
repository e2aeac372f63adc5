// The records of OUT.journal and how they lie in the file:
//
//   [payload bytes u32 | check u32 | type u8 | payload]        little-endian
//
// after LevelDB's log, without its blocks. The check is the low half of XXH3-64 over type and payload: the digest the
// program has already, and as good as a CRC against what ends of processes and disks do. A record whose check fails
// ends the journal: what follows was never acted upon.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/types.h"

namespace computron::journal {

inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::size_t kMaxPayload = std::size_t{16} << 20;
inline constexpr std::size_t kLinesInRecord = 4096;  // at most, of those that may be any number

// Which job this is. Each attempt writes its own; they agree, but for what a person allowed to differ.
struct Header {
  std::uint32_t version = kVersion;
  std::uint64_t input_bytes = 0;                              // of a file, as the attempt found it
  std::vector<std::pair<std::string, std::string>> settings;  // what results depend on, by name
};

// An attempt begins. Whatever was recorded of bytes of OUT.partial from `kept` on is void.
struct Open {
  std::uint32_t attempt = 0;
  std::uint64_t epoch = 0;
  std::uint64_t kept = 0;
  std::string holder;  // host, process and job, for people
};

// Lines of the input that were read, with the digests of their bytes. Before anything else is said of them.
struct LineKey {
  RequestId line = 0;
  Digest128 key{};
};
struct Keys {
  std::vector<LineKey> lines;
};

// Lines that a step computes on from now on. `alone`: nothing else runs.
struct Begun {
  bool alone = false;
  std::vector<RequestId> lines;
};

// Bytes [begin, end) of OUT.partial are durable and hold the results of `lines`, in this order.
struct Commit {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t digest = 0;  // chain_digest() over the lines, from 0
  std::vector<RequestId> lines;
};

// Standard input came to its end, and this is how long it was: nothing is missing in OUT.spool.
struct InputEnd {
  std::uint64_t bytes = 0;
};

// Of OUT.done: what OUT holds the results of, and how long it is.
struct Done {
  std::uint64_t lines = 0;   // that are not blank
  std::uint64_t digest = 0;  // LineHistory::digest() of them
  std::uint64_t output_bytes = 0;

  bool same_input(const Done& other) const { return lines == other.lines && digest == other.digest; }
};

// The attempt ended in order.
struct Close {
  bool complete = false;  // every line has its result: OUT.partial is about to become OUT
};

using Record = std::variant<Header, Open, Keys, Begun, Commit, Close, InputEnd, Done>;

std::string encode(const Record& record);
// Type and payload with their length and check in front.
std::string frame(std::string_view body);

// Of a result line with its newline, behind those whose digest is `before`.
std::uint64_t chain_digest(std::uint64_t before, std::string_view line);

// Reads records from the start of a journal for as long as they are sound, in constant memory.
class Reader {
 public:
  // At most so many bytes from an offset; fewer only at the end.
  using ReadAt = std::function<std::string(std::uint64_t offset, std::size_t count)>;

  explicit Reader(ReadAt read_at) : read_at_(std::move(read_at)) {}

  // None at the end, or where a record is torn or damaged.
  std::optional<Record> next();
  // Of the records returned so far.
  std::uint64_t bytes() const { return bytes_; }
  // Bytes from `begin` on if a sound record begins anywhere among them: then `begin` is not the end, but damaged. Else
  // 0.
  std::uint64_t lost_from(std::uint64_t begin) const;

 private:
  bool record_at(std::uint64_t offset, std::string_view head) const;
  bool fill(std::size_t count);

  ReadAt read_at_;
  std::string buffer_;
  std::size_t used_ = 0;  // of the buffer
  std::uint64_t bytes_ = 0;
};

// OUT.done: what made OUT, and what of. None if it is damaged.
struct DoneFile {
  Header made_by;
  Done made;
};
std::optional<DoneFile> read_done_file(Reader::ReadAt read_at);

}  // namespace computron::journal

#include <fmt/format.h>

#include "computron/base/bytes.h"
#include "computron/comm/mpi.h"

namespace computron {

VoteError::VoteError(ExitCode code, int rank, const std::string& host, const std::string& reason, bool is_own)
    : Error(code, fmt::format("rank {} {}: {}", rank, host, reason)), rank_(rank), reason_(reason), is_own_(is_own) {}

namespace {

std::vector<std::byte> encode(const Error& error) {
  ByteWriter out;
  out.put(static_cast<std::int32_t>(error.code()));
  out.put_string(host_name());
  out.put_string(error.what());
  return out.take();
}

[[noreturn]] void throw_decoded(int rank, std::span<const std::byte> bytes, bool is_own) {
  ByteReader in(bytes);
  const auto code = static_cast<ExitCode>(in.get<std::int32_t>());
  const std::string host = in.get_string();
  const std::string reason = in.get_string();
  throw VoteError(code, rank, host, reason, is_own);
}

}  // namespace

void vote(const Communicator& world, const Error* mine) {
  // The largest of size − rank over the failing ranks belongs to the lowest of them.
  const auto failed = world.all_reduce_max(mine ? world.size() - world.rank() : 0);
  if (failed == 0) return;
  const int lowest = world.size() - static_cast<int>(failed);
  const bool speaks = world.rank() == lowest;
  throw_decoded(lowest, world.broadcast(speaks ? encode(*mine) : std::vector<std::byte>{}, lowest), speaks);
}

}  // namespace computron

// MPI as this program uses it: one thread, non-blocking after start-up, every error an exception (Error{kComm} with
// MPI's own words). Message tags: comm/tags.h.
//
// Ownership: MpiSession brackets main(); a Communicator owns its MPI_Comm; a MessageRequest owns its MPI_Request, and
// its buffer must stay valid until done() has returned true. No MPI type appears here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "computron/base/error.h"

namespace computron {

// Initialises MPI (funneled) and finalises it; while an exception unwinds it leaves MPI alone, since ranks that fail
// must not wait for others in MPI_Finalize.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // `poll` is called while this rank waits for others in a collective of Communicator, below; {}: nothing is.
  static void while_waiting(std::function<void()> poll);
  // Calls it: for waits at the start that are not MPI's.
  static void poll_while_waiting();

  // MPI_Finalize waits for all ranks. Where some rank does not arrive, this one ends after `limit_s` seconds with
  // `code`; without this call it waits for ever. The last call holds.
  static void finalize_within(double limit_s, ExitCode code = ExitCode::kWatchdog);
  static bool finalize_is_limited();

  // Ends every rank of the job with `code`; does not return. A launcher that does not act on it is waited for
  // kAbortLimit_s seconds: then this process ends with `code` alone, which launchers take for a failure as well.
  [[noreturn]] static void abort(ExitCode code) noexcept;
  static constexpr unsigned kAbortLimit_s = 5;
};

// The MPI library, as it names itself: "Open MPI v4.1.4". Needs no session.
std::string mpi_library();

// An operation in flight. Default-constructed: done.
class MessageRequest {
 public:
  MessageRequest() noexcept = default;
  ~MessageRequest();  // an unfinished receive is cancelled, an unfinished send is logged and leaked
  MessageRequest(MessageRequest&&) noexcept;
  MessageRequest& operator=(MessageRequest&&) noexcept;

  // Tests (never blocks) and stays true once true. Throws Error{kComm} naming peer and tag when the operation failed,
  // a message longer than the receive buffer included; the operation is over then. Not a check to lean on: Open MPI 4.1
  // may write a too long message past the buffer before it says so, and cuts short ones to oneself silently.
  bool done();
  // Bytes received; valid once done().
  std::size_t received_bytes() const;

 private:
  friend class Communicator;
  enum class Kind : std::uint8_t { kNone, kSend, kReceive };
  MessageRequest(Kind kind, std::size_t bytes, int peer, int tag)
      : bytes_(bytes), peer_(peer), tag_(tag), kind_(kind) {}
  void abandon() noexcept;
  std::string to_string() const;

  std::uintptr_t handle_ = 0;  // the MPI_Request, kept without its type; meaningful while !done_
  std::size_t bytes_ = 0;      // given to send, offered to or received by receive
  int peer_ = -1;
  int tag_ = 0;
  Kind kind_ = Kind::kNone;
  bool done_ = true;
};

class Communicator {
 public:
  static Communicator world();  // a duplicate of MPI_COMM_WORLD; collective
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;
  int size() const;

  // The end of this object does not free the communicator: MPI_Finalize does. For one to which messages may be on their
  // way that nobody receives: Open MPI 4.1 hands what comes for a freed communicator to the next one with its number,
  // where it takes the place of a message that is then waited for for ever.
  void leave_to_finalize() noexcept;

  // Never block. At most 2^31 - 1 bytes. The communicator must outlive the request.
  MessageRequest send(std::span<const std::byte> bytes, int to, int tag) const;
  MessageRequest receive(std::span<std::byte> bytes, int from, int tag) const;

  // Collective, for the start only: these block, and every rank must call them. A rank that waits here sleeps between
  // its tests, so that ranks that still load keep the cores.
  Communicator split(int color, int key) const;
  Communicator split_shared_memory() const;  // the ranks of this node
  void barrier() const;
  std::vector<std::byte> broadcast(std::vector<std::byte> bytes, int root) const;          // bytes of root
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) const;  // by rank, any lengths
  std::uint64_t all_reduce_max(std::uint64_t value) const;

  struct Impl;

 private:
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

std::string host_name();

// What every rank throws when vote() found a failing rank; what() is "rank r host: reason". The failing rank, and no
// other, reports it: report_failure(rank, reason()).
class VoteError : public Error {
 public:
  // `is_own`: this rank is the one that failed.
  VoteError(ExitCode code, int rank, const std::string& host, const std::string& reason, bool is_own = false);
  int rank() const noexcept { return rank_; }  // of the communicator that voted
  const std::string& reason() const noexcept { return reason_; }
  bool is_own() const noexcept { return is_own_; }

 private:
  int rank_;
  std::string reason_;
  bool is_own_;
};

// Whether all ranks of `group` say true. Collective, at any time: waits by `wait_until(done)`, as of Progress.
bool all_agree(const Communicator& group, const std::function<void(const std::function<bool()>& done)>& wait_until,
               bool mine);

// All ranks learn whether any of them failed; every rank then throws the error of the lowest failing rank, or returns.
// `mine`: null if this rank is fine. Start-up only; collective.
void vote(const Communicator& world, const Error* mine);

}  // namespace computron

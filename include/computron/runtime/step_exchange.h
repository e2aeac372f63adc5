// Steps and done records on the wire. Nothing here blocks; poll() moves everything along, and belongs to the thread
// that owns MPI.
//
//   rank 0   expect(n) ── send(n) ── note_sent(n)            expect(n + 1) ...            poll(): all reports of n
//                  \__ fragments                                            report __/
//   rank r             poll(): step n ── Executor::accept ── run ── Report ── Outbox
//
// Steps: rank 0 sends each rank its step in fragments of at most 3500 bytes, which every transport sends eagerly, into
// a ring of receives that the rank keeps posted. A message is [length][bytes], cut into fragments; messages of one rank
// arrive in order, so a fragment needs no number. A step with pictures is megabytes: a length with a flag announces it,
// and the step travels as one message with its own tag, for which the rank then posts a receive. The steps behind it
// wait in the ring meanwhile, so steps never overtake each other.
//
// Reports: rank 0 posts a receive of the right size for every rank before the step is sent, so that a report always
// finds its buffer. Steps complete in order.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "computron/comm/mesh.h"
#include "computron/runtime/report.h"
#include "computron/runtime/step.h"

namespace computron {

// Sent messages in flight: keeps their bytes until MPI has taken them.
class Outbox {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  void send(const Communicator& comm, std::vector<std::byte> bytes, int to, int tag);
  // A part of `bytes`, which may go to several ranks.
  void send(const Communicator& comm, const Bytes& bytes, std::span<const std::byte> part, int to, int tag);
  void poll();
  bool empty() const { return sending_.empty(); }

 private:
  struct Message {
    Bytes bytes;
    MessageRequest request;
  };
  std::vector<Message> sending_;
};

// Sends the steps of one group; on rank 0 of the job. A step is encoded once for all ranks of a stage.
class StepSender {
 public:
  // Borrows `job`, the communicator of all ranks.
  StepSender(const Communicator& job, const RankGroup& group) : job_(job), group_(group) {}
  // Sends the step to every rank of the group but this one, and returns the digests of the bytes that it sends:
  // [stage], 0 for a stage that has no other rank.
  std::vector<std::uint64_t> send(const Step& step);
  void poll() { outbox_.poll(); }
  bool idle() const { return outbox_.empty(); }

 private:
  // A stage's message: the length in front of `body`, or where that is large, the announcement alone.
  struct Encoded {
    Outbox::Bytes message;
    Outbox::Bytes large;  // null: the message is the whole step
    std::uint64_t digest = 0;
  };
  static Encoded encode(const Step& step, int stage);
  void send(const Encoded& encoded, int rank);

  const Communicator& job_;
  const RankGroup group_;
  Outbox outbox_;
};

// Receives the steps of this rank's group; on every rank of the job but 0.
class StepReceiver {
 public:
  // Borrows `mesh`. `steps_in_flight`: the most steps that rank 0 sends before it has a report of the first.
  StepReceiver(const Mesh& mesh, int steps_in_flight);
  // Tests the posted receives and returns the next step if it has arrived whole. Never blocks. Error{kInternal} for
  // bytes that are no step.
  std::optional<Step> poll();
  // The same, as its bytes.
  std::optional<std::vector<std::byte>> poll_bytes();

 private:
  // Appends the fragment to message_; true when the message is whole. An announcement of a large step posts large_.
  bool take_fragment(std::span<const std::byte> fragment);

  const Mesh& mesh_;
  struct Slot {
    std::vector<std::byte> bytes;
    MessageRequest request;
  };
  std::deque<Slot> ring_;                // receives of fragments, in the order posted
  std::vector<std::byte> message_;       // the fragments received so far, without the length
  std::size_t missing_ = 0;              // bytes of message_ that have not arrived
  std::optional<MessageRequest> large_;  // the receive into message_ of a large step, while it is in flight
};

// Collects the done records of one group; on rank 0 of the job. A step is complete when the records of all ranks of the
// group have arrived.
class ReportCollector {
 public:
  // Borrows `job`, the communicator of all ranks. `names_group`: errors name the group beside the rank.
  ReportCollector(const Communicator& job, const RankGroup& group, bool names_group = false)
      : job_(job), group_(group), names_group_(names_group) {}

  // Posts the receives of the step's reports. To be called before the step is sent. `expected[stage]`: the state that
  // the stage's ranks must report.
  void expect(const Step& step, std::vector<StateDigest> expected);
  // The step of the latest expect() has been sent. `digests[stage]`: of its bytes, which the other ranks must report.
  void note_sent(StepId step, std::vector<std::uint64_t> digests);
  // Rank 0's own report, of its own group.
  void put_own(Report report);
  // The reports of the oldest step [rank of the group], once all have arrived. Error{kInternal} naming rank (of the
  // job), group, step and field where one does not agree with what was expected. Never blocks.
  std::optional<std::vector<Report>> poll();

 private:
  struct Pending {
    StepId step;
    std::vector<StateDigest> expected;          // [stage]
    std::vector<std::uint64_t> sent;            // [stage]
    std::vector<std::byte> bytes;               // what the requests receive
    std::vector<std::span<std::byte>> buffers;  // [rank of the group] parts of `bytes`, as are
    std::vector<MessageRequest> requests;
    std::vector<std::optional<Report>> reports;
    std::deque<int> awaited;  // ranks of the group whose reports have not come, but for rank 0
  };
  bool is_own(int rank) const { return group_.job_rank(rank) == 0; }
  void check(const Pending& pending, int rank) const;
  std::string name_of(int rank) const;

  const Communicator& job_;
  const RankGroup group_;
  const bool names_group_;
  std::deque<Pending> pending_;
};

}  // namespace computron

// Steps and done records on the wire. Nothing here blocks; poll() moves everything along.
//
// Steps: rank 0 sends each rank its step in fragments small enough to be sent eagerly, into a ring of receives that
// the rank keeps posted. A step with images is megabytes: a fragment announces it, and it comes as one message of its
// own, for which the rank posts a receive then; steps behind it wait in the ring. Reports: rank 0 posts a receive of
// the right size a rank and step before the step goes out.
#pragma once

#include <deque>
#include <list>
#include <optional>
#include <vector>

#include "computron/comm/mesh.h"
#include "computron/runtime/report.h"
#include "computron/runtime/step.h"

namespace computron {

// Messages on their way: keeps their bytes until they have left.
class Outbox {
 public:
  void send(const Communicator& comm, std::vector<std::byte> bytes, int to, int tag);
  void poll();
  bool empty() const { return sending_.empty(); }

 private:
  struct Message {
    std::vector<std::byte> bytes;
    MessageRequest request;
  };
  std::list<Message> sending_;
};

// Rank 0's end.
class StepSender {
 public:
  explicit StepSender(const Mesh& mesh) : mesh_(mesh) {}
  // To every other rank. Returns digests of what it sends, [stage]; 0 of a stage that has no other rank.
  std::vector<std::uint64_t> send(const Step& step);
  void poll() { outbox_.poll(); }
  bool idle() const { return outbox_.empty(); }

 private:
  const Mesh& mesh_;
  Outbox outbox_;
};

// Every other rank's end.
class StepReceiver {
 public:
  StepReceiver(const Mesh& mesh, int steps_in_flight);
  // Tests the ring and returns a step if one has arrived whole. Never blocks.
  std::optional<Step> poll();

 private:
  bool take_fragment(std::span<const std::byte> fragment);
  Step decode_message();

  const Mesh& mesh_;
  struct Slot {
    std::vector<std::byte> bytes;
    MessageRequest request;
  };
  std::deque<Slot> ring_;                // receives in the order posted
  std::vector<std::byte> message_;       // of the fragments so far
  std::size_t missing_ = 0;              // bytes of the message still to come
  std::optional<MessageRequest> large_;  // the message, if it comes whole
};

// Rank 0's end of done records. A step's record is complete when every rank's has come.
class ReportCollector {
 public:
  explicit ReportCollector(const Mesh& mesh) : mesh_(mesh) {}

  // Before the step goes out. `expected[stage]` is the state its ranks must report.
  void expect(const Step& step, std::vector<StateDigest> expected);
  // When it has gone out, with digests [stage] of its bytes, which other ranks must report.
  void note_sent(StepId step, std::vector<std::uint64_t> digests);
  // Rank 0's own.
  void put_own(Report report);
  // The oldest step's reports by rank, once all are there and agree with what was expected; Error{kInternal} naming
  // rank, step and field otherwise. Never blocks.
  std::optional<std::vector<Report>> poll();

 private:
  struct Pending {
    StepId step;
    std::vector<StateDigest> expected;            // [stage]
    std::vector<std::uint64_t> sent;              // [stage]
    std::vector<std::vector<std::byte>> buffers;  // [rank]
    std::vector<MessageRequest> requests;         // [rank]
    std::vector<std::optional<Report>> reports;   // [rank]
  };
  void check(const Pending& pending, int rank) const;

  const Mesh& mesh_;
  std::deque<Pending> pending_;
};

}  // namespace computron

// What the ranks of an emulated NCCL communicator share: processes of one machine, and a segment of its memory.
//
//   RankPlace [ranks]          what a rank says of itself, and its piece of a sum
//   Channel [ranks][ranks]     pieces on their way, [from][to]
//
// The segment has a name only until all ranks have joined. A process that dies before leaves the name behind; sweep()
// takes it away.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace computron::emulated_gpu {

constexpr std::size_t kPieceFloats = 16384;
constexpr int kMaxRanks = 64;

// What all ranks do together on the host, in the same order.
enum class MeetingKind : int { kJoin = 1, kSplit, kFinalize };
struct Meeting {
  MeetingKind kind;
  int color, key;           // kSplit
  std::uint64_t host, gpu;  // kJoin
};

// What all ranks of a sum, or both of a transfer, must mean by it.
struct Description {
  std::uint64_t number;  // of the communicator's sums, or of the transfers from here to there
  std::uint64_t count;   // floats
  bool in_graph;
};

struct Piece {
  Description of;
  float floats[kPieceFloats];
};

// Of two meetings or pieces, one may still be read while the next is written: whoever has come to the next one has read
// the one before, and nobody writes the one after until all have come to the next one.
struct alignas(64) RankPlace {
  std::atomic<std::uint64_t> meetings;  // come to
  Meeting met[2];
  std::atomic<std::uint64_t> pieces;  // of sums, given
  Piece given[2];
  std::atomic<std::uint64_t> doing;  // an operation on the device (nccl.cpp), 0: none
  std::atomic<bool> sums;            // has come to connect for sums
  std::atomic<bool> aborted;
};

struct alignas(64) Channel {
  std::atomic<bool> has_sender, has_receiver;  // have come to connect
  std::atomic<std::uint64_t> written, read;    // pieces
  Piece pieces[2];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

class Segment {
 public:
  // Makes the segment of that name or finds it: zeros to begin with.
  Segment(std::string name, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  RankPlace& rank(int r) { return places_[r]; }
  Channel& channel(int from, int to) { return channels_[from * ranks_ + to]; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  // All have joined: nobody looks for it any longer.
  void forget_name();

 private:
  std::string name_;
  int ranks_;
  std::size_t bytes_;
  RankPlace* places_;
  Channel* channels_;
};

// A name that no other communicator has, with the process in it that made it.
std::string new_segment_name();
// Takes away the names that processes which are no more have left behind.
void sweep_segment_names();

// Ends the process, saying why (stream.h): on a GPU it would hang, or touch what is not its own.
[[noreturn]] void give_up(const std::string& why);

// Until `ready`; false where `stop` is set first.
template <class Ready>
bool wait_until(const std::atomic<bool>& stop, Ready&& ready) {
  for (int turn = 0; !ready(); ++turn) {
    if (stop) return false;
    if (turn < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 1000 ? 20 : 200));
    }
  }
  return true;
}

}  // namespace computron::emulated_gpu

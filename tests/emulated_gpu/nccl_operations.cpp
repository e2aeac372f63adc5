// The operations of an emulated NCCL communicator: they run on the stream's thread and wait there for the other ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/emulated_gpu/nccl_communicator.h"
#include "tests/emulated_gpu/stream.h"

namespace computron::emulated_gpu {
namespace {

// RankPlace::doing. `number`: of the sums, or of the transfers with this peer in this direction.
struct Doing {
  OperationKind kind;
  int peer;
  std::uint64_t number;
};
std::uint64_t pack(const Doing& doing) {
  return static_cast<std::uint64_t>(doing.kind) << 56 | static_cast<std::uint64_t>(doing.peer) << 48 | doing.number;
}
Doing unpack(std::uint64_t bits) {
  return {OperationKind{bits >> 56}, static_cast<int>(bits >> 48 & 0xFF), bits & 0xFFFF'FFFF'FFFF};
}

void expect_device_memory(const float* at, std::size_t count, const char* what) {
  if (is_device_memory(at, count * sizeof(float))) return;
  give_up(fmt::format("{} of {} floats at {}: not memory of the device", what, count, fmt::ptr(at)));
}

void expect_same_or_apart(const Operation& operation) {
  if (operation.in == operation.out) return;
  const auto in = reinterpret_cast<std::uintptr_t>(operation.in);
  const auto out = reinterpret_cast<std::uintptr_t>(operation.out);
  const std::size_t bytes = operation.count * sizeof(float);
  if (in < out + bytes && out < in + bytes) give_up("the two buffers of a sum overlap and are not the same");
}

// Until it is over nobody may rely on what lies there.
void spoil(float* out, std::size_t count) { std::memset(out, 0xFF, count * sizeof(float)); }

// Floats that a rank of the ring is the last to add to; NCCL too takes it from the count.
std::size_t chunk_of(std::size_t count, int ranks) {
  const std::size_t even = (count + ranks - 1) / ranks;
  return std::min((even + 3) / 4 * 4, kPieceFloats / ranks);
}

}  // namespace

void expect_memory(const Operation& operation) {
  if (operation.kind != OperationKind::kReceive) {
    expect_device_memory(operation.in, operation.count, "what is sent or summed");
  }
  if (operation.kind != OperationKind::kSend) {
    expect_device_memory(operation.out, operation.count, "room for what comes");
  }
  if (operation.kind == OperationKind::kSum) expect_same_or_apart(operation);
}

void Communicator::run(const Operation& operation) {
  if (!wait_until(family_->stop, [&] { return family_->done == operation.turn; })) return;
  const std::lock_guard lock(running_);
  if (family_->stop) return;
  if (late_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(late_() % 3000));
  expect_memory(operation);
  const bool over = operation.kind == OperationKind::kSum    ? sum(operation)
                    : operation.kind == OperationKind::kSend ? send(operation)
                                                             : receive(operation);
  place().doing = 0;
  if (over) {
    ++done_;
    ++family_->done;
  } else if (operation.out != nullptr) {
    spoil(operation.out, operation.count);
  }
}

void Communicator::expect(const Description& mine, const Description& theirs, const char* what, int peer) const {
  if (mine.in_graph != theirs.in_graph) {
    give_up(fmt::format("of rank {} and rank {} one launches {} {} from a graph, the other as it is", rank_, peer, what,
                        mine.number));
  }
  if (mine.number == theirs.number && mine.count == theirs.count) return;
  give_up(fmt::format("rank {} of {} is at {} {} of {} floats, rank {} at {} of {} floats", rank_, ranks_, what,
                      mine.number, mine.count, peer, theirs.number, theirs.count));
}

bool Communicator::sum(const Operation& operation) {
  const Description what{sums_, operation.count, operation.in_graph};
  place().doing = pack({OperationKind::kSum, 0, sums_});
  if (operation.in != operation.out) spoil(operation.out, operation.count);
  const std::size_t chunk = chunk_of(operation.count, ranks_);
  const std::size_t step = chunk * ranks_;
  for (std::size_t first = 0; first < operation.count; first += step) {
    if (!sum_piece(operation, what, first, std::min(step, operation.count - first), chunk)) return false;
  }
  ++sums_;
  return true;
}

// Chunk c goes round the ring from rank c + 1 to rank c: another order of ranks for every chunk.
bool Communicator::sum_piece(const Operation& operation, const Description& what, std::size_t first, std::size_t count,
                             std::size_t chunk) {
  const std::uint64_t number = place().pieces;
  Piece& mine = place().given[number % 2];
  mine.of = what;
  std::memcpy(mine.floats, operation.in + first, count * sizeof(float));
  place().pieces = number + 1;
  for (int r = 0; r < ranks_; ++r) {
    if (!wait_until(family_->stop, [&] { return segment_->rank(r).pieces > number; })) return false;
    expect(what, segment_->rank(r).given[number % 2].of, "ncclAllReduce", r);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const int last = static_cast<int>(i / chunk);
    float sum = segment_->rank((last + 1) % ranks_).given[number % 2].floats[i];
    for (int step = 2; step <= ranks_; ++step) {
      sum += segment_->rank((last + step) % ranks_).given[number % 2].floats[i];
    }
    operation.out[first + i] = sum;
  }
  return true;
}

bool Communicator::waits_elsewhere(OperationKind kind, int peer) const {
  const Doing theirs = unpack(segment_->rank(peer).doing);
  const std::uint64_t answered = kind == OperationKind::kSend ? received_[peer] : sent_[peer];
  const bool in_a_sum = theirs.kind == OperationKind::kSum && theirs.number >= sums_;
  const bool in_the_same = theirs.kind == kind && theirs.peer == rank_ && theirs.number >= answered;
  return in_a_sum || in_the_same;
}

// Asked twice, because the peer goes elsewhere when it has counted.
bool Communicator::await_peer(const Operation& operation, const std::atomic<std::uint64_t>& counted,
                              std::uint64_t pieces) const {
  return wait_until(family_->stop, [&] {
    if (counted >= pieces) return true;
    if (!waits_elsewhere(operation.kind, operation.peer) || counted >= pieces) return counted >= pieces;
    give_up(fmt::format("rank {} of {} stands in {} with rank {}, which stands in the same or in ncclAllReduce", rank_,
                        ranks_, operation.kind == OperationKind::kSend ? "ncclSend" : "ncclRecv", operation.peer));
  });
}

// Ends when the peer has taken everything.
bool Communicator::send(const Operation& operation) {
  Channel& channel = segment_->channel(rank_, operation.peer);
  place().doing = pack({operation.kind, operation.peer, sent_[operation.peer]});
  for (std::size_t first = 0; first < operation.count; first += kPieceFloats) {
    const std::uint64_t number = channel.written;
    if (number >= 2 && !await_peer(operation, channel.read, number - 1)) return false;
    Piece& piece = channel.pieces[number % 2];
    piece.of = {sent_[operation.peer], operation.count, operation.in_graph};
    std::memcpy(piece.floats, operation.in + first, std::min(kPieceFloats, operation.count - first) * sizeof(float));
    channel.written = number + 1;
  }
  if (!await_peer(operation, channel.read, channel.written)) return false;
  ++sent_[operation.peer];
  return true;
}

bool Communicator::receive(const Operation& operation) {
  Channel& channel = segment_->channel(operation.peer, rank_);
  const Description what{received_[operation.peer], operation.count, operation.in_graph};
  place().doing = pack({operation.kind, operation.peer, what.number});
  spoil(operation.out, operation.count);
  for (std::size_t first = 0; first < operation.count; first += kPieceFloats) {
    const std::uint64_t number = channel.read;
    if (!await_peer(operation, channel.written, number + 1)) return false;
    const Piece& piece = channel.pieces[number % 2];
    expect(what, piece.of, "transfer", operation.peer);
    std::memcpy(operation.out + first, piece.floats, std::min(kPieceFloats, operation.count - first) * sizeof(float));
    channel.read = number + 1;
  }
  ++received_[operation.peer];
  return true;
}

}  // namespace computron::emulated_gpu

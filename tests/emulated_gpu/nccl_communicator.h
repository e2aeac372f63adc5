// A communicator of the emulated NCCL, as one rank has it. What differs between NCCL's releases is as in 2.28's source.
//
//   calling thread   init, split, finalize ──> job       give ──> enqueue (now and then by a job, late)
//   job's thread     waits for the other ranks, then ncclInProgress ends
//   stream's thread  operations, one after the other in the order given, waiting there for the other ranks
//
// A call while a job is under way is refused, and so is every call after that. The first sum connects all ranks, and
// the first transfer from one to another those two: its job waits until they have come to the same. Once `stop` is set,
// every wait on this rank ends at once, and what an operation was writing is left as 0xFF.
//
// An operation that a stream captures takes its turn at every launch of the graph, where all ranks have to launch it
// from a graph, too. A communicator that is destroyed before such a graph ends the process.
//
// Communicators that share what they have (splitShare) are a family: a rank's operations on them run in the order
// given, whatever their streams.
#pragma once

#include <nccl.h>

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/emulated_gpu/nccl_segment.h"

namespace computron::emulated_gpu {

enum class OperationKind : std::uint64_t { kSum = 1, kSend, kReceive };

struct Operation {
  OperationKind kind;
  const float* in;         // null: kReceive
  float* out;              // null: kSend
  std::size_t count;       // floats
  int peer;                // of a transfer
  std::uint64_t turn = 0;  // in the family
  bool in_graph = false;
};

// Gives up unless the operation may touch its memory.
void expect_memory(const Operation& operation);

// What ncclGetLastError() tells, of any communicator.
void set_last_nccl_error(const std::string& text);
const char* last_nccl_error();

// What a rank's communicators of one family share.
struct Family {
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> given = 0, done = 0;  // operations
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Place {
    std::string segment;
    int rank, ranks;
  };
  struct Options {
    bool blocking;
    bool share;  // splitShare: to abort one of parent and children ends what all of them have under way
  };

  Communicator(Place place, Options options, std::shared_ptr<Family> family);

  // Waits for all ranks; refuses two with one GPU on one host (NCCL_HOSTID, where that is set).
  ncclResult_t init();
  // Gives the child, or null, to `done` on the job's thread.
  ncclResult_t split(int color, int key, const Options* options,
                     std::function<void(std::shared_ptr<Communicator>)> done);
  ncclResult_t give(Operation operation, cudaStream_t stream);
  ncclResult_t finalize();
  // After either, nothing uses the communicator but operations that still wait in a stream: they do nothing.
  ncclResult_t destroy();
  ncclResult_t abort();
  ncclResult_t state();
  Options options() const { return options_; }

 private:
  ncclResult_t refuse(ncclResult_t status, const std::string& why);
  // ncclSuccess, or why no call may be made now.
  ncclResult_t ready();
  ncclResult_t start(std::function<ncclResult_t()> work);
  // Until `stop`.
  std::optional<std::vector<Meeting>> meet(const Meeting& mine, const std::atomic<bool>& stop);
  ncclResult_t refuse_shared_gpu(const std::vector<Meeting>& all);
  std::shared_ptr<Communicator> child_of(const std::vector<Meeting>& all, const Options& options);
  // Whether the operation is the first of its kind, with this peer.
  bool connects(const Operation& operation);
  bool connect(const Operation& operation);

  void run(const Operation& operation);
  bool sum(const Operation& operation);
  bool sum_piece(const Operation& operation, const Description& what, std::size_t first, std::size_t count,
                 std::size_t chunk);
  bool send(const Operation& operation);
  bool receive(const Operation& operation);
  void expect(const Description& mine, const Description& theirs, const char* what, int peer) const;
  // Whether `peer` stands in something that only this rank could end, which stands in a transfer with it: operations of
  // a communicator run one after the other, so none of them would ever end.
  bool waits_elsewhere(OperationKind kind, int peer) const;
  // Until the peer of a transfer has counted up to `pieces`.
  bool await_peer(const Operation& operation, const std::atomic<std::uint64_t>& counted, std::uint64_t pieces) const;
  RankPlace& place() const { return segment_->rank(rank_); }

  const int rank_, ranks_;
  const Options options_;
  const std::shared_ptr<Family> family_;
  const std::unique_ptr<Segment> segment_;
  const std::shared_ptr<bool> in_graphs_ = std::make_shared<bool>();  // whose other owners are operations of graphs
  std::atomic<ncclResult_t> state_ = ncclSuccess;
  std::thread job_;
  std::minstd_rand random_;
  std::uint64_t splits_ = 0;
  bool finalized_ = false;
  bool connected_ = false;  // for sums
  std::array<bool, kMaxRanks> connected_to_{}, connected_from_{};

  std::atomic<std::uint64_t> given_ = 0, done_ = 0;  // operations
  std::mutex running_;                               // an operation; what follows belongs to it
  std::minstd_rand late_;                            // as if the link were busy
  std::uint64_t sums_ = 0;
  std::array<std::uint64_t, kMaxRanks> sent_{}, received_{};  // transfers, by peer
};

}  // namespace computron::emulated_gpu

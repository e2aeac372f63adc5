// The NCCL communicators of a rank, and the watch over their operations in flight.
//
//   world ──split──> tensor   the tp ranks of the stage, by t
//         ──split──> pairs    (stage, t) and (stage + 1, t), the lower stage being rank 0; of even stages, then of odd
//
// No communicator blocks: a call that is in progress is tested, and this rank polls meanwhile. NCCL launches an
// operation from a thread of its own, so the operation is on its stream only when the communicator is no longer in
// progress; events are recorded after that.
//
// What must hold:
//   * One order for all communicators: all ranks enqueue operations in the order of their steps, and a rank enqueues
//     the next one only when the call before it is over. The children share the world's resources (splitShare), so the
//     operations of a rank run in that order, whatever their streams.
//   * An operation waits for the other ranks on the device. One that does not end within the deadline, or an error that
//     NCCL reports, aborts every communicator (to abort one aborts all), so that the device gets free, and throws.
#pragma once

#include <nccl.h>

#include <array>
#include <deque>
#include <functional>

#include "computron/comm/alarm.h"
#include "computron/comm/mesh.h"
#include "computron/device/device.h"
#include "computron/device/progress.h"
#include "src/device/cuda/cuda_handles.h"

namespace computron {

// Operations on one stream that the device may not have reached yet.
class NcclWatch {
 public:
  // Records an event behind the operation, or the graph of operations, that has just been enqueued on `stream`.
  void add(cudaStream_t stream);
  // Forgets the operations that are over; returns how many are left.
  std::size_t left();
  // Seconds since an operation last ended, while others are awaited; 0 where none is.
  double stalled_s() const;

 private:
  std::deque<CudaEventHandle> awaited_;  // in order
  std::deque<CudaEventHandle> free_;
  double since_s_ = 0;  // the last end, or the first operation after a time without any
};

class NcclWorld {
 public:
  // Collective: fails on all ranks or on none (VoteError), at once. Borrows `progress`. `device` is the current one.
  // When it returns, the ranks are connected for every kind of operation that is to come.
  NcclWorld(const Mesh& mesh, Device& device, Progress& progress);
  // Finalizes the communicators, which all ranks do at the end of a job; aborts them while an exception unwinds, or
  // where an operation does not end.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  ncclComm_t tensor() const { return tensor_; }  // null where the stage has one rank
  // With the neighbours; null at the ends of the pipeline.
  ncclComm_t with_stage_before() const { return pairs_[parity_before_]; }
  ncclComm_t with_stage_behind() const { return pairs_[1 - parity_before_]; }

  // Enqueues an operation of `comm` on `stream`; `watch` is the stream's. Waits, polling, while kAhead operations are
  // in flight: a host that runs further ahead of its device would end up waiting inside a launch, where it polls
  // nothing, and other ranks may wait for its messages.
  using Operation = std::function<ncclResult_t()>;
  void enqueue(ncclComm_t comm, cudaStream_t stream, NcclWatch& watch, const char* what, const Operation& operation);
  // Gives an operation of `comm` to a stream that captures. Whoever launches the graph adds it to the stream's watch.
  void capture(ncclComm_t comm, const char* what, const Operation& operation);
  // Waits, polling, until all operations of `watch` are over.
  void finish(NcclWatch& watch);
  // Throws what has gone wrong since the last call: a communicator's error, or an operation beyond its deadline.
  void poll();

  // NCCL waits, in an abort as well, until no graph holds an operation of a communicator.
  void before_abort(std::function<void()> drop_graphs) { drop_graphs_ = std::move(drop_graphs); }

  NcclWatch& compute_watch() { return compute_; }
  NcclWatch& send_watch() { return sends_; }

 private:
  static constexpr std::size_t kAhead = 8;

  void start(const Mesh& mesh, Device& device, const ncclUniqueId& id);
  void join(const Mesh& mesh, const ncclUniqueId& id);
  void split(const Mesh& mesh);
  void connect(const Mesh& mesh, Device& device);
  // At the start: throws where another rank has raised the alarm.
  void listen();
  // Waits until the call in progress on `comm` is over; polling, or idle while a stream captures, of which nobody else
  // may make use meanwhile.
  void settle(ncclComm_t comm, const char* what);
  void settle_idly(ncclComm_t comm, const char* what);
  bool is_settled(ncclComm_t comm, const char* what, double end_s);
  ncclResult_t state_of(ncclComm_t comm, const char* what);
  [[noreturn]] void fail(ExitCode code, const std::string& what);
  void abort() noexcept;
  bool take_down() noexcept;
  // Children first.
  template <class Do>
  void for_each(Do&& act);

  Progress& progress_;
  std::function<void()> drop_graphs_;
  Alarm* alarm_ = nullptr;               // borrowed, at the start
  std::unique_ptr<DeviceBuffer> first_;  // what the ranks connect with: goes behind the communicators that may use it
  int parity_before_;                    // of the pair with the stage before
  ncclComm_t world_ = nullptr;
  ncclComm_t tensor_ = nullptr;
  std::array<ncclComm_t, 2> pairs_{};  // [parity]
  NcclWatch compute_, sends_;
};

}  // namespace computron

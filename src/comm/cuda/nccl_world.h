// The NCCL communicators of a rank, and the watch over what has been given to them.
//
//   world ──split──> tensor   the tp ranks of the stage, by t
//         ──split──> pairs    (stage, t) and (stage + 1, t), the lower stage being rank 0; of even stages, then of odd
//
// No communicator blocks: a call that is in progress is tested, and this rank polls meanwhile. An operation is launched
// by a thread that NCCL starts for it, so it lies in its stream only when the communicator is no longer in progress:
// events are recorded behind that. The children share what the world has, so operations of a rank run in the order
// given, whatever their streams, and one that is aborted aborts all. An operation waits for the other ranks on the
// device; one that does not come to an end within the deadline, or an error that NCCL reports, aborts every
// communicator, so that the device gets free, and throws. All ranks give operations in the order of their steps, and a
// rank gives the next one only when the call before it is over: one order for all communicators.
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
  // Behind an operation just given to `stream`.
  void add(cudaStream_t stream);
  // Forgets those that are over; how many are left.
  std::size_t left();
  // How long nothing has come to an end although something is awaited.
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
  // Takes the communicators down in peace if nothing is under way, otherwise aborts them.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  ncclComm_t tensor() const { return tensor_; }  // null where the stage has one rank
  // With the neighbours; null at the ends of the pipeline.
  ncclComm_t with_stage_before() const { return pairs_[parity_before_]; }
  ncclComm_t with_stage_behind() const { return pairs_[1 - parity_before_]; }

  // Gives an operation of `comm` to `stream`; `watch` is the stream's. Waits, polling, while kAhead of them are under
  // way: a host that runs further ahead of its device would end up waiting inside a launch, where it polls nothing, and
  // others may wait for its messages.
  using Operation = std::function<ncclResult_t()>;
  void enqueue(ncclComm_t comm, cudaStream_t stream, NcclWatch& watch, const char* what, const Operation& operation);
  // Returns when everything under `watch` is over.
  void finish(NcclWatch& watch);
  // Throws what has gone wrong since the last time.
  void poll();

  NcclWatch& compute_watch() { return compute_; }
  NcclWatch& send_watch() { return sends_; }

 private:
  static constexpr std::size_t kAhead = 8;

  void start(const Mesh& mesh, Device& device, const ncclUniqueId& id);
  void join(const Mesh& mesh, const ncclUniqueId& id);
  void split(const Mesh& mesh);
  void connect(const Mesh& mesh, Device& device);
  // Throws, at the start, where another rank has failed.
  void listen();
  // Until the call that `comm` has been given is over.
  void settle(ncclComm_t comm, const char* what);
  ncclResult_t state_of(ncclComm_t comm, const char* what);
  [[noreturn]] void fail(ExitCode code, const std::string& what);
  void abort() noexcept;
  bool take_down() noexcept;
  // Children first.
  template <class Do>
  void for_each(Do&& act);

  Progress& progress_;
  Alarm* alarm_ = nullptr;               // borrowed, at the start
  std::unique_ptr<DeviceBuffer> first_;  // what the ranks connect with: goes behind the communicators that may use it
  int parity_before_;                    // of the pair with the stage before
  ncclComm_t world_ = nullptr;
  ncclComm_t tensor_ = nullptr;
  std::array<ncclComm_t, 2> pairs_{};  // [parity]
  NcclWatch compute_, sends_;
};

}  // namespace computron

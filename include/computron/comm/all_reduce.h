// Sum over the tensor-parallel ranks of a stage, in float32 and in a fixed order.
//
// Powers of two: the tree of recursive doubling, ((0 + 1) + (2 + 3)) + ...; other counts: by rank, ((0 + 1) + 2) + ...
// The order depends on neither the message size nor the rank, so all ranks get the same bits (of NaNs: the same
// NaN-ness). MPI's own all-reduce changes its order with the message size.
#pragma once

#include <functional>
#include <memory>

#include "computron/base/trace.h"
#include "computron/comm/mpi.h"
#include "computron/device/device.h"

namespace computron {

class AllReduce {
 public:
  virtual ~AllReduce() = default;
  // data[0, count), which lies in device memory, becomes the sum over the group; enqueued on `stream`. Never blocks
  // inside MPI: polls `progress` while it waits. All ranks of the group call in the same order, with the same count.
  virtual void sum(Stream& stream, float* data, std::size_t count) = 0;
  // Whether Stream::run_capturable() may be given work with sums: they are enqueued, and nobody waits for them.
  virtual bool is_capturable() const { return false; }
  // `drop_graphs` is called before operations that graphs hold are torn down because something has failed.
  virtual void before_abort(const std::function<void()>& /*drop_graphs*/) {}
  // To be called when `stream` has been given a graph with sums: they are watched like others.
  virtual void watch_graph(Stream& /*stream*/) {}
};

// For a group of one: does nothing.
std::unique_ptr<AllReduce> make_local_all_reduce();
// For CPU streams, over `group`. Borrows all; `trace` may be null. `max_count`: floats of the longest vector, for which
// buffers are allocated once. Short vectors travel whole (a round a doubling); long ones in slices, each summed by one
// rank for all (two rounds, 2 (p - 1) / p of the vector sent). Both ways give the same bits.
std::unique_ptr<AllReduce> make_mpi_all_reduce(const Communicator& group, Progress& progress, std::size_t max_count,
                                               Trace* trace = nullptr);

}  // namespace computron

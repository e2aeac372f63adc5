// Copies pages of the host store into frames, beside the compute stream, in the order that rank 0 wrote.
//
//   submitted --its frame's last use enqueued--> enqueued on the copy stream --filled event--> readable
//
// Fetches wait in one queue in order of submission. The first is enqueued as soon as the compute stream has been given
// everything up to its `after` point; the copy then waits for the frame's drained event, recorded at that moment.
// Nothing is waited for on the host. Used by the thread that owns the compute stream.
#pragma once

#include <deque>
#include <vector>

#include "computron/runtime/frame_pool.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/step.h"

namespace computron {

class Swapper {
 public:
  // Borrows all four.
  Swapper(const HostStore& host, FramePool& pool, CopyStream& link, Stream& compute);

  // A step has arrived: its fetches join the queue.
  void submit(const std::vector<Fetch>& fetches);
  // The compute stream has been given everything up to `point`.
  void passed(UsePoint point);

  // The event after which `frame` holds `page`; Error{kInternal} if that fetch has not been enqueued yet: waiting for
  // it would be waiting for an event before it is recorded, a deadlock that the order rule excludes.
  const Event& ready(ModelId model, PageId page, FrameId frame);

 private:
  void enqueue_due();

  const HostStore& host_;
  FramePool& pool_;
  CopyStream& link_;
  Stream& compute_;

  UsePoint passed_{.step = 0, .use = UsePoint::kEnd};
  std::deque<Fetch> queue_;
  struct Content {
    ModelId model = 0xffffffff;
    PageId page = 0;
  };
  std::vector<Content> contents_;  // [frame] of the latest enqueued fetch
};

}  // namespace computron

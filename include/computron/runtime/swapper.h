// Copies pages of the host store into frames, and caches between frames and the offload area, beside the compute
// stream, in the order that rank 0 wrote.
//
//   submitted --its release point enqueued--> enqueued on the copy stream --filled event--> readable
//
// Transfers wait in one queue in the order of submission. The first one is enqueued as soon as the compute stream holds
// every use up to the transfer's release point, `after`. At that moment the frame's drained event is recorded on the
// compute stream, and the copy waits for it, unless the step of `after` is known to be over on the device. The host
// waits for nothing.
//
// What must hold, or the job ends with Error{kInternal}: a use finds its page's fetch enqueued (ready), and a step
// finds its cache moves enqueued (expect_caches_moved). Otherwise the compute stream would wait for an event before it
// is recorded. Steps that keep the order rule never get there: a transfer of step s waits for uses of steps up to s
// that precede every use of what it brings.
//
// Belongs to the thread that owns the compute stream.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "computron/runtime/frame_pool.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/offload_area.h"
#include "computron/runtime/step.h"

namespace computron {

// Which copies of pages are digested in their frames before anything may use them.
enum class VerifySwap : std::uint8_t {
  kOff,
  kFirst,  // the first of each page on this rank: finds a host link or memory that damages what it carries
  kEvery,
};
// "off", "first" or "every"; Error{kUsage} naming `text` otherwise.
VerifySwap parse_verify_swap(std::string_view text);

// One copy over the host link.
struct Transfer {
  enum Kind : std::uint8_t { kFetch, kOffload, kReload };
  Kind kind = kFetch;
  StepId step = 0;          // the one that orders the copy
  ReleasePoint after = {};  // of what the frame (kReload: and the slot) held before
  FrameId frame = 0;
  ModelId model = 0;
  std::uint32_t place = 0;  // kFetch: page; otherwise slot
};

class Swapper {
 public:
  // Borrows all five; the streams enqueue and record on their frames' events.
  Swapper(const HostStore& host, const OffloadArea& offload_area, FramePool& pool, CopyStream& copy_stream,
          Stream& compute, VerifySwap verify = VerifySwap::kOff);

  // A step has arrived: its transfers join the queue, in the order in which they are to be copied.
  void submit(const std::vector<Transfer>& transfers);
  // The compute stream holds every use up to `point`: enqueues the transfers that waited for one of them.
  void released(ReleasePoint point);
  // The compute stream has run everything of the steps up to `step`: their release points hold up no copy any longer.
  // Without this call a copy would wait for all work that is on the compute stream when the copy is enqueued.
  void finished(StepId step) { finished_ = step; }

  // The event after which `frame` holds `page`. Error{kInternal} if that fetch has not been enqueued yet: waiting for
  // it would be waiting for an event before it is recorded, a deadlock that the order rule excludes.
  const Event& ready(ModelId model, PageId page, FrameId frame);
  // Error{kInternal} if a cache move of the steps up to `step` has not been enqueued yet: the same deadlock.
  void expect_caches_moved(StepId step) const;

 private:
  void enqueue_due();
  void enqueue(const Transfer& transfer);
  void fetch(const Transfer& transfer);
  // The digest that this copy of the page must have in its frame; nothing where the copy is not verified.
  std::optional<std::uint64_t> digest_to_find(ModelId model, PageId page);

  const HostStore& host_;
  const OffloadArea& offload_area_;
  FramePool& pool_;
  CopyStream& copy_stream_;
  Stream& compute_;

  ReleasePoint released_{.step = 0, .use = ReleasePoint::kEnd};
  StepId finished_ = 0;         // the last step that is over on the device
  std::deque<Transfer> queue_;  // submitted, not enqueued
  struct Content {
    ModelId model = 0xffffffff;
    PageId page = 0;
  };
  std::vector<Content> contents_;  // [frame or slot] what the latest enqueued transfer brings: a page, or none

  VerifySwap verify_;
  std::vector<std::vector<bool>> fetched_;  // [model][page] whether it has been fetched before
};

}  // namespace computron

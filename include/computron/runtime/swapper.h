// Copies pages of the host store into frames, and caches between frames and the offload area, beside the compute
// stream, in the order that rank 0 wrote.
//
//   submitted --its frame's last use enqueued--> enqueued on the copy stream --filled event--> readable
//
// Transfers wait in one queue in order of submission. The first is enqueued as soon as the compute stream has been
// given everything up to its `after` point; the copy then waits for the frame's drained event, recorded at that moment,
// unless that step is known to be over on the device. Nothing is waited for on the host. Used by the thread that owns
// the compute stream.
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
  kFirst,  // the first of each page on this rank: finds a link or memory that damages what it carries
  kEvery,
};
// "off", "first" or "every"; Error{kUsage} naming `text` otherwise.
VerifySwap parse_verify_swap(std::string_view text);

// One copy over the link.
struct Transfer {
  enum Kind : std::uint8_t { kFetch, kOffload, kReload };
  Kind kind = kFetch;
  StepId step = 0;  // that orders it
  ReleasePoint after = {};
  FrameId frame = 0;
  ModelId model = 0;
  std::uint32_t place = 0;  // kFetch: page; otherwise slot
};

class Swapper {
 public:
  // Borrows all five.
  Swapper(const HostStore& host, const OffloadArea& offload_area, FramePool& pool, CopyStream& copy_stream,
          Stream& compute, VerifySwap verify = VerifySwap::kOff);

  // A step has arrived: its transfers join the queue.
  void submit(const std::vector<Transfer>& transfers);
  // The compute stream has been given everything up to `point`.
  void released(ReleasePoint point);
  // Whether a transfer waits for a use of `step`, or one before it.
  bool waits_for(StepId step) const { return !queue_.empty() && queue_.front().after.step <= step; }
  // The compute stream has run everything of the steps up to `step`: their last uses hold no copy up any longer.
  // Without this a copy would wait for all that the stream has been given by the time the copy is enqueued.
  void finished(StepId step) { finished_ = step; }

  // The event after which `frame` holds `page`; Error{kInternal} if that fetch has not been enqueued yet: waiting for
  // it would be waiting for an event before it is recorded, a deadlock that the order rule excludes.
  const Event& ready(ModelId model, PageId page, FrameId frame);
  // Error{kInternal} if a cache that steps up to `step` move has not been enqueued yet: the same deadlock.
  void expect_caches_moved(StepId step) const;

 private:
  void enqueue_due();
  void enqueue(const Transfer& transfer);
  void fetch(const Transfer& transfer);
  // What the page must be found to be in its frame, if this copy of it is verified.
  std::optional<std::uint64_t> digest_to_find(ModelId model, PageId page);

  const HostStore& host_;
  const OffloadArea& offload_area_;
  FramePool& pool_;
  CopyStream& copy_stream_;
  Stream& compute_;

  ReleasePoint released_{.step = 0, .use = ReleasePoint::kEnd};
  StepId finished_ = 0;
  std::deque<Transfer> queue_;
  struct Content {
    ModelId model = 0xffffffff;
    PageId page = 0;
  };
  std::vector<Content> contents_;  // [frame] of the latest enqueued transfer: a page, or none

  VerifySwap verify_;
  std::vector<std::vector<bool>> fetched_;  // [model][page] before; of kFirst
};

}  // namespace computron

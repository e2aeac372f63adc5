#include "computron/runtime/swapper.h"

#include <fmt/format.h>

#include <algorithm>

namespace computron {

VerifySwap parse_verify_swap(std::string_view text) {
  if (text == "off") return VerifySwap::kOff;
  if (text == "first") return VerifySwap::kFirst;
  if (text == "every") return VerifySwap::kEvery;
  throw Error(ExitCode::kUsage, fmt::format("'{}' is not off, first or every", text));
}

Swapper::Swapper(const HostStore& host, const OffloadArea& offload_area, FramePool& pool, CopyStream& copy_stream,
                 Stream& compute, VerifySwap verify)
    : host_(host),
      offload_area_(offload_area),
      pool_(pool),
      copy_stream_(copy_stream),
      compute_(compute),
      contents_(pool.frames_and_slots()),
      verify_(verify) {
  for (int m = 0; m < host.models(); ++m) fetched_.emplace_back(host.pages(static_cast<ModelId>(m)), false);
}

void Swapper::submit(const std::vector<Transfer>& transfers) {
  queue_.insert(queue_.end(), transfers.begin(), transfers.end());
  enqueue_due();
}

void Swapper::released(ReleasePoint point) {
  released_ = std::max(released_, point);
  enqueue_due();
}

void Swapper::enqueue_due() {
  for (; !queue_.empty() && queue_.front().after <= released_; queue_.pop_front()) enqueue(queue_.front());
}

// A frame's filled event is recorded for an offload, too, and means there that the frame's bytes have been read: the
// next copy into the frame is on the same stream, and a cache that the frame joins waits for the event
// (Residency::begin).
void Swapper::enqueue(const Transfer& t) {
  std::byte* frame = pool_.frame(t.frame);
  if (t.after.step > finished_) {
    compute_.record(pool_.drained(t.frame));
    copy_stream_.wait(pool_.drained(t.frame));
  }
  contents_[t.frame] = {};
  switch (t.kind) {
    case Transfer::kFetch:
      fetch(t);
      break;
    case Transfer::kOffload:
      copy_stream_.copy_to_host(offload_area_.slot(t.place), frame, pool_.frame_bytes());
      break;
    case Transfer::kReload:
      copy_stream_.copy_to_device(frame, offload_area_.slot(t.place), pool_.frame_bytes());
      break;
  }
  copy_stream_.record(pool_.filled(t.frame));
}

void Swapper::fetch(const Transfer& t) {
  const PageName name = host_.page_name(t.model, t.place);
  copy_stream_.fetch(pool_.frame(t.frame), host_.page(t.model, t.place), name, digest_to_find(t.model, t.place));
  pool_.filled(t.frame).set_page(name);
  contents_[t.frame] = {t.model, t.place};
}

void Swapper::expect_caches_moved(StepId step) const {
  const bool waiting = std::any_of(queue_.begin(), queue_.end(),
                                   [step](const Transfer& t) { return t.kind != Transfer::kFetch && t.step <= step; });
  ensure(!waiting, "a step begins before its caches could be moved: the steps break the order rule");
}

std::optional<std::uint64_t> Swapper::digest_to_find(ModelId model, PageId page) {
  const bool again = fetched_[model][page];
  fetched_[model][page] = true;
  if (verify_ == VerifySwap::kOff || (verify_ == VerifySwap::kFirst && again)) return std::nullopt;
  return host_.page_digest(model, page);
}

const Event& Swapper::ready(ModelId model, PageId page, FrameId frame) {
  const Content& content = contents_[frame];
  if (content.model != model || content.page != page) {
    throw Error(ExitCode::kInternal,
                fmt::format("internal: page {} of model {} is used in frame {} before its fetch could be enqueued: the "
                            "steps break the order rule",
                            page, model, frame));
  }
  return pool_.filled(frame);
}

}  // namespace computron

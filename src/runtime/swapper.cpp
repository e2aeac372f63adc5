#include "computron/runtime/swapper.h"

#include <fmt/format.h>

namespace computron {

VerifySwap parse_verify_swap(std::string_view text) {
  if (text == "off") return VerifySwap::kOff;
  if (text == "first") return VerifySwap::kFirst;
  if (text == "every") return VerifySwap::kEvery;
  throw Error(ExitCode::kUsage, fmt::format("'{}' is not off, first or every", text));
}

Swapper::Swapper(const HostStore& host, FramePool& pool, CopyStream& link, Stream& compute, VerifySwap verify)
    : host_(host), pool_(pool), link_(link), compute_(compute), contents_(pool.frames()), verify_(verify) {
  for (int m = 0; m < host.models(); ++m) fetched_.emplace_back(host.pages(static_cast<ModelId>(m)), false);
}

void Swapper::submit(const std::vector<Fetch>& fetches) {
  queue_.insert(queue_.end(), fetches.begin(), fetches.end());
  enqueue_due();
}

void Swapper::passed(UsePoint point) {
  passed_ = std::max(passed_, point);
  enqueue_due();
}

void Swapper::enqueue_due() {
  for (; !queue_.empty() && queue_.front().after <= passed_; queue_.pop_front()) {
    const Fetch& f = queue_.front();
    if (f.after.step > 0) {
      compute_.record(pool_.drained(f.frame));
      link_.wait(pool_.drained(f.frame));
    }
    const PageName name = host_.page_name(f.model, f.page);
    link_.fetch(pool_.frame(f.frame), host_.page(f.model, f.page), host_.page_used_bytes(f.model, f.page), name,
                digest_to_find(f.model, f.page));
    pool_.filled(f.frame).set_page(name);
    link_.record(pool_.filled(f.frame));
    contents_[f.frame] = {f.model, f.page};
  }
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

#include <nvtx3/nvToolsExt.h>

#include "computron/device/profiler.h"

namespace computron {
namespace {

// Categories are numbers from 1 on.
std::uint32_t category_of(TraceTrack track) { return static_cast<std::uint32_t>(track) + 1; }

class NvtxRanges : public TraceRanges {
 public:
  NvtxRanges() : domain_(nvtxDomainCreateA("computron")) {
    for (std::size_t track = 0; track < kTraceTrackNames.size(); ++track) {
      nvtxDomainNameCategoryA(domain_, category_of(static_cast<TraceTrack>(track)), kTraceTrackNames[track]);
    }
  }
  void push(TraceTrack track, const char* name, std::uint64_t detail) noexcept override {
    nvtxEventAttributes_t range = {};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.category = category_of(track);
    range.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    range.payload.ullValue = detail;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    nvtxDomainRangePushEx(domain_, &range);
  }
  void pop() noexcept override { nvtxDomainRangePop(domain_); }

 private:
  nvtxDomainHandle_t domain_;  // null while no tool is attached
};

}  // namespace

TraceRanges* profiler_ranges() {
  static NvtxRanges ranges;
  return &ranges;
}

}  // namespace computron

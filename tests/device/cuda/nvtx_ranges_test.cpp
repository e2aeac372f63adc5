// A tool that is linked in is told of what a profiler is told of.
#include <gmock/gmock.h>
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include "computron/device/profiler.h"

namespace computron {
namespace {

std::vector<std::string> told;

nvtxDomainHandle_t create_domain(const char* name) {
  told.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&told);
}
void name_category(nvtxDomainHandle_t /*domain*/, std::uint32_t category, const char* name) {
  told.push_back("category " + std::to_string(category) + " " + name);
}
int push(nvtxDomainHandle_t /*domain*/, const nvtxEventAttributes_t* range) {
  told.push_back("push " + std::to_string(range->category) + " " + range->message.ascii + " " +
                 std::to_string(range->payload.ullValue));
  return 0;
}
int pop(nvtxDomainHandle_t /*domain*/) {
  told.push_back("pop");
  return 0;
}

int attach(NvtxGetExportTableFunc_t table_of) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainNameCategoryA] = reinterpret_cast<NvtxFunctionPointer>(name_category);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

TEST(NvtxRanges, TellWhatTheTraceTells) {
  InitializeInjectionNvtx2_fnptr = attach;  // before NVTX is first called
  Trace trace(0, nullptr, profiler_ranges());
  EXPECT_THAT(told, testing::ElementsAre("domain computron", "category 1 control", "category 2 compute",
                                         "category 3 copy", "category 4 communication"));
  told.clear();
  {
    const TraceSpan step(&trace, TraceTrack::kCompute, "step", "opt", {"rows", 3}, {"step", 7});
    const TraceSpan sample(&trace, TraceTrack::kCommunication, "sample", {}, {"rows", 2});
  }
  EXPECT_THAT(told, testing::ElementsAre("push 2 step 7", "push 4 sample 2", "pop", "pop"));
}

}  // namespace
}  // namespace computron

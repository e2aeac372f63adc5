// What the user asked of a job: plain values, the same on every rank, which nothing changes once they have been read.
// What is left open here is chosen by the program and stands in a JobPlan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/idle.h"
#include "computron/requests/model_list.h"
#include "computron/requests/placement.h"
#include "computron/runtime/swapper.h"
#include "computron/sched/deadlines.h"
#include "computron/sched/policy.h"

namespace computron {

enum class DeviceChoice : std::uint8_t {
  kAuto,  // GPUs where every rank has one for itself, else the CPU
  kCpu,
  kGpu,
};

// How sums and activations go between GPUs.
enum class TransportChoice : std::uint8_t {
  kAuto,    // what fits
  kDirect,  // from device to device
  kStaged,  // by MPI, through host memory
};

// Whether pages lie in host memory, and cross the host link, coded where they gain by it.
enum class CodedChoice : std::uint8_t {
  kAuto,  // where every rank decodes enough faster than its link carries (page_coding.h)
  kOn,
  kOff,
};

enum class PolicyChoice : std::uint8_t { kFifo, kBalanced, kThroughput };

// As they are written on the command line.
std::string_view name_of(DeviceChoice device);
std::string_view name_of(PolicyChoice policy);

// A number that is 0 is chosen by the program.
struct JobOptions {
  std::vector<ModelEntry> models = {};
  int tp = 0;  // with pp: of every group, where `placement` is empty
  int pp = 0;
  int groups = 0;                         // equal ones, each with every model; 0: one
  std::vector<GroupSpec> placement = {};  // groups over consecutive ranks; empty: as tp, pp and groups say
  std::string predicted = {};             // of the placement, by computron plan: JSON, for the metrics; empty: nothing
  DeviceChoice device = DeviceChoice::kAuto;
  bool share_gpu = false;  // ranks may have the same one
  bool tf32 = false;       // for float32 weights, where the device has it
  TransportChoice transport = TransportChoice::kAuto;
  std::size_t device_memory_bytes = 0;  // of the pool
  // Where device_memory_bytes is 0 and pool_for_tokens is not: the pool is the largest `pool_models` models, for each
  // of them a cache of so many tokens, a frame, and what coded pages land in. What benchmarks of swapping want: so many
  // models resident and no further one.
  int pool_for_tokens = 0;
  int pool_models = 1;
  std::size_t page_bytes = 0;
  // The size of pages is the one with which passes are predicted to be shortest, of what copies are measured to cost at
  // the start; page_bytes: what an earlier attempt of the job chose so.
  bool measure_page_size = false;
  double link_gb_per_s = 0;  // of the emulated link; 0: copies are not held up
  int threads = 0;
  std::optional<IdlePolicy> idle = {};  // none: chosen by the program
  int max_batch_tokens = 2048;          // a job raises it to the longest input of an encoder
  int max_seqs = 64;
  bool share_prefixes = false;
  PolicyChoice policy = PolicyChoice::kBalanced;
  double max_wait_s = PolicyOptions{}.max_wait_s;
  OnLate on_late = OnLate::kServe;
  CodedChoice coded = CodedChoice::kAuto;
  bool share_host_pages = true;   // ranks of a node that need the same pages hold them once
  bool share_model_pages = true;  // pages that models of a group have in common are one page, here and on the device
  // Host memory of a rank for caches of models that are swapped out; none: an eighth of the pool.
  std::optional<std::size_t> host_cache_bytes = {};
  // Host memory of a rank of a last stage for guides, beside vocabularies: 0, and guided requests are refused, or at
  // least GuideCompiler::kLeastBytes. None: GuideCompiler::kMaxBytes where every node has them to spare, otherwise 0.
  std::optional<std::size_t> guide_bytes = {};
  std::optional<VerifySwap> verify_swap = {};  // none: kFirst on the CPU, kOff on GPUs
  bool reproducible = false;                   // the same bits at tp 1, 2, 4, 8
  bool load = true;  // false: everything is planned and checked, no page is read, nothing can run
  bool trace = false;
  std::uint64_t seed = 0;
};

}  // namespace computron

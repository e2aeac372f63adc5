#include "src/device/cuda/graph_cache.h"

#include <algorithm>

#include "src/device/cuda/cuda_check.h"

namespace computron {
namespace {

constexpr std::size_t kMaxGraphs = 64;

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { COMPUTRON_CUDA_LOG(cudaGraphDestroy(graph)); }
};
using GraphHandle = std::unique_ptr<CUgraph_st, GraphDeleter>;

// Puts a stream into capture until end() or, where something was thrown, until the destructor. The mode is relaxed:
// only this thread launches on the device, and what else it may call meanwhile, as cudaEventQuery, harms no capture.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    COMPUTRON_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  }
  ~Capture() {
    if (over_) return;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) GraphHandle(graph).reset();
    cudaGetLastError();  // clears the error of the failed capture
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  GraphHandle end() {
    over_ = true;
    cudaGraph_t graph = nullptr;
    COMPUTRON_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    return GraphHandle(graph);
  }

 private:
  cudaStream_t stream_;
  bool over_ = false;
};

}  // namespace

void GraphCache::Destroy::operator()(cudaGraphExec_t graph) const { COMPUTRON_CUDA_LOG(cudaGraphExecDestroy(graph)); }

bool GraphCache::launch(const LaunchRecord& record, cudaStream_t stream) {
  const auto found = entries_.find(record.bytes());
  if (found == entries_.end() || found->second.graph == nullptr) return false;
  found->second.last_seen = ++clock_;
  COMPUTRON_CUDA_CHECK(cudaGraphLaunch(found->second.graph.get(), stream));
  ++launches_;
  return true;
}

bool GraphCache::note(const LaunchRecord& record) {
  if (!captures_) return false;
  const auto [entry, is_new] = entries_.try_emplace(record.bytes());
  entry->second.last_seen = ++clock_;
  if (entries_.size() > kMaxGraphs) evict_oldest();
  return !is_new && entry->second.reproducible;
}

bool GraphCache::capture(const LaunchRecord& record, cudaStream_t stream, const std::function<LaunchRecord()>& work) {
  Capture capture(stream);
  Entry& entry = entries_[record.bytes()];
  entry.reproducible = work().bytes() == record.bytes();
  const GraphHandle graph = capture.end();
  if (!entry.reproducible) return false;
  cudaGraphExec_t made = nullptr;
  auto status = cudaGraphInstantiateWithFlags(&made, graph.get(), /*flags=*/0);
  std::unique_ptr<CUgraphExec_st, Destroy> ready(made);
  if (status == cudaSuccess) status = cudaGraphUpload(made, stream);  // takes the graph's memory
  if (status == cudaErrorMemoryAllocation) {
    stop_capturing();
    return false;
  }
  check_cuda(status, "a graph of a pass");
  entry.graph = std::move(ready);
  return launch(record, stream);
}

void GraphCache::stop_capturing() {
  cudaGetLastError();  // not sticky: nothing is wrong but the size
  captures_ = false;
  entries_.clear();
  spdlog::warn("cuda: no device memory is left for graphs: passes are launched kernel by kernel");
}

void GraphCache::evict_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_seen < b.second.last_seen;
  }));
}

}  // namespace computron

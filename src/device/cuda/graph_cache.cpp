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

GraphCache::Course GraphCache::next(const std::string& key) {
  if (!captures_) return Course::kPlain;
  const auto [entry, is_new] = entries_.try_emplace(key);
  entry->second.last_seen = ++clock_;
  if (entries_.size() > kMaxGraphs) evict_oldest();
  if (is_new) return Course::kPlain;
  return entry->second.graph ? Course::kReplay : Course::kCapture;
}

void GraphCache::launch(const std::string& key, cudaStream_t stream) {
  COMPUTRON_CUDA_CHECK(cudaGraphLaunch(entries_.at(key).graph.get(), stream));
  ++launches_;
}

bool GraphCache::capture(const std::string& key, cudaStream_t stream, const std::function<void()>& work,
                         const Agreement& agree) {
  Capture capture(stream);
  work();
  const GraphHandle graph = capture.end();
  Graph ready = make_ready(graph.get(), stream);
  const bool there_is_room = ready != nullptr;
  if (agree ? agree(there_is_room) : there_is_room) {
    entries_.at(key).graph = std::move(ready);
    return true;
  }
  stop_capturing();
  return false;
}

GraphCache::Graph GraphCache::make_ready(cudaGraph_t graph, cudaStream_t stream) {
  cudaGraphExec_t made = nullptr;
  auto status = cudaGraphInstantiateWithFlags(&made, graph, /*flags=*/0);
  Graph ready(made);
  if (status == cudaSuccess) status = cudaGraphUpload(made, stream);  // takes the graph's memory
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: nothing is wrong but the size
    return nullptr;
  }
  check_cuda(status, "a graph of a pass");
  return ready;
}

void GraphCache::stop_capturing() {
  captures_ = false;
  drop();
  spdlog::warn("cuda: no device memory is left for graphs: passes are launched kernel by kernel");
}

void GraphCache::drop() { entries_.clear(); }

void GraphCache::evict_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_seen < b.second.last_seen;
  }));
}

}  // namespace computron

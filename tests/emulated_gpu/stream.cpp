// Streams and events. Each stream has a thread, which outlives the stream until everything given to it has run. Handles
// are numbers that never come twice, so that one that was destroyed is known for what it is.
#include "tests/emulated_gpu/stream.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace computron::emulated_gpu {
namespace {

using Clock = std::chrono::steady_clock;

thread_local cudaError_t last_error = cudaSuccess;

std::atomic<std::uint64_t> given = 0;  // calls so far that gave a stream something

// One operation in four begins late, by a time mixed from its number (splitmix64): the same in every run.
std::chrono::microseconds lateness(std::uint64_t number) {
  static const std::uint64_t most_us = setting("COMPUTRON_EMULATED_DELAY_US", 100);
  std::uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  mixed ^= mixed >> 31;
  return std::chrono::microseconds(mixed % 4 == 0 ? (mixed >> 8) % (most_us + 1) : 0);
}

class WorkQueue {
 public:
  // While it captures, work is kept and does not run.
  void push(const MakeWork& make, bool in_graph) {
    static std::atomic<std::uint64_t> operations = 0;
    const std::lock_guard lock(mutex_);
    if (captured_) return captured_->push_back(make);
    waiting_.push_back({operations++, make(in_graph)});
    changed_.notify_all();
  }
  void begin_capture() {
    const std::lock_guard lock(mutex_);
    if (captured_) refuse("a stream that captures is to capture");
    captured_.emplace();
  }
  std::vector<MakeWork> end_capture() {
    const std::lock_guard lock(mutex_);
    if (!captured_) refuse("a stream that does not capture is to end that");
    return *std::exchange(captured_, std::nullopt);
  }
  bool captures() {
    const std::lock_guard lock(mutex_);
    return captured_.has_value();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  // Until it is closed and everything has run.
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Operation operation = std::move(waiting_.front());
      lock.unlock();
      if (const auto late = lateness(operation.number); late.count() > 0) std::this_thread::sleep_for(late);
      operation.work();
      operation.work = nullptr;
      lock.lock();
      waiting_.pop_front();
      if (waiting_.empty()) changed_.notify_all();
    }
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return waiting_.empty();
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.empty(); });
  }

 private:
  struct Operation {
    std::uint64_t number;
    std::function<void()> work;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> waiting_;  // the first is under way
  std::optional<std::vector<MakeWork>> captured_;
  bool closed_ = false;
};

// One recording of an event: what waits for it waits for this one, however often the event is recorded again.
class Mark {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    at_ = Clock::now();
    reached_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }
  bool is_reached() {
    const std::lock_guard lock(mutex_);
    return reached_;
  }
  Clock::time_point at() {
    const std::lock_guard lock(mutex_);
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  Clock::time_point at_;
};

struct EventState {
  unsigned flags = cudaEventDefault;
  std::shared_ptr<Mark> mark;  // null: never recorded
  bool is_reached() const { return mark == nullptr || mark->is_reached(); }
};

struct Registry {
  std::mutex mutex;
  std::uintptr_t handles = 0x1000;  // smaller ones have a meaning of their own: cudaStreamLegacy, ...
  std::map<cudaStream_t, std::shared_ptr<WorkQueue>> streams;
  std::map<cudaEvent_t, EventState> events;
  std::set<cudaStream_t> with_kernels;
  std::set<void*> uploaded;                       // of the graphs
  std::map<void*, std::vector<MakeWork>> graphs;  // cudaGraph_t and cudaGraphExec_t
  std::set<std::shared_ptr<WorkQueue>> running;   // those of `streams`, and of destroyed ones that are not over

  template <class Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(handles += 0x10);
  }
};

// Not destroyed at exit: threads of streams go on until the process is gone.
Registry& registry() {
  static auto& made = *new Registry;
  return made;
}

// The entry of a handle; its owner holds the registry's mutex.
template <class Handle, class Value>
Value& entry(std::map<Handle, Value>& known, Handle handle, const char* kind) {
  const auto found = known.find(handle);
  if (found == known.end()) {
    refuse(fmt::format("{} {} is none, or was destroyed", kind, static_cast<const void*>(handle)));
  }
  return found->second;
}

std::shared_ptr<WorkQueue> queue_of(cudaStream_t stream) {
  if (stream == nullptr) refuse("the default stream was used, for which every other stream would wait");
  const std::lock_guard lock(registry().mutex);
  return entry(registry().streams, stream, "stream");
}

EventState state_of(cudaEvent_t event) {
  const std::lock_guard lock(registry().mutex);
  return entry(registry().events, event, "event");
}

void run_stream(const std::shared_ptr<WorkQueue>& queue) {
  prctl(PR_SET_TIMERSLACK, 1ul);  // or every sleep takes 50 us more
  queue->run();
  const std::lock_guard lock(registry().mutex);
  registry().running.erase(queue);
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  enqueue_made(stream, [work = std::move(work)](bool) { return work; });
}

void enqueue_made(cudaStream_t stream, const MakeWork& make) {
  ++given;
  queue_of(stream)->push(make, /*in_graph=*/false);
}

void wait_for(cudaStream_t stream) { queue_of(stream)->wait_until_idle(); }

void wait_for_all_streams() {
  std::unique_lock lock(registry().mutex);
  const auto running = registry().running;
  lock.unlock();
  for (const auto& queue : running) queue->wait_until_idle();
}

void note_kernel(cudaStream_t stream) {
  const std::lock_guard lock(registry().mutex);
  registry().with_kernels.insert(stream);
}

bool runs_kernels(cudaStream_t stream) {
  const std::lock_guard lock(registry().mutex);
  return registry().with_kernels.contains(stream);
}

bool captures(cudaStream_t stream) { return queue_of(stream)->captures(); }

void set_last_error(cudaError_t error) { last_error = error; }

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void refuse(const std::string& what) {
  fmt::print(stderr, "emulated GPU: {}\n", what);
  std::abort();
}

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

namespace {

void refuse_capturing(cudaStream_t stream) {
  if (queue_of(stream)->captures())
    refuse("what cannot be captured, or is not emulated, is asked of a stream that captures");
}

// With the registry locked.
const std::vector<MakeWork>& graph_of(void* graph) {
  const auto found = registry().graphs.find(graph);
  if (found == registry().graphs.end()) refuse("a graph is used that does not exist");
  return found->second;
}

cudaError_t destroy_graph(void* graph) {
  const std::lock_guard lock(registry().mutex);
  graph_of(graph);
  registry().graphs.erase(graph);
  registry().uploaded.erase(graph);
  return cudaSuccess;
}

}  // namespace
}  // namespace computron::emulated_gpu

using namespace computron::emulated_gpu;

extern "C" {

std::uint64_t computron_emulated_calls() { return given; }

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// Priorities change when something runs and not what it does: here everything runs late.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (priority < -5 || priority > 0) refuse("a stream has a priority that the device does not have");
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) refuse("a stream that waits for the default stream was made");
  const auto queue = std::make_shared<WorkQueue>();
  const std::lock_guard lock(registry().mutex);
  *stream = registry().new_handle<cudaStream_t>();
  registry().streams.emplace(*stream, queue);
  registry().running.insert(queue);
  std::thread(run_stream, queue).detach();
  return cudaSuccess;
}

// Does not wait: what was given still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  queue_of(stream)->close();
  const std::lock_guard lock(registry().mutex);
  registry().streams.erase(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  refuse_capturing(stream);
  return told(queue_of(stream)->is_idle() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  refuse_capturing(stream);
  wait_for(stream);
  return cudaSuccess;
}

// Graphs of kernels, copies and fills; events in them are not emulated.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  queue_of(stream)->begin_capture();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto work = queue_of(stream)->end_capture();
  const std::lock_guard lock(registry().mutex);
  *graph = registry().new_handle<cudaGraph_t>();
  registry().graphs[*graph] = std::move(work);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long /*flags*/) {
  const std::lock_guard lock(registry().mutex);
  *ready = registry().new_handle<cudaGraphExec_t>();
  registry().graphs[*ready] = graph_of(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ++given;
  refuse_capturing(stream);
  std::unique_lock lock(registry().mutex);
  const auto work = graph_of(graph);
  lock.unlock();
  const auto queue = queue_of(stream);
  for (const MakeWork& node : work) queue->push(node, /*in_graph=*/true);
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
  refuse_capturing(stream);
  const std::lock_guard lock(registry().mutex);
  graph_of(graph);
  if (registry().uploaded.size() >= setting("COMPUTRON_EMULATED_GRAPHS", ~std::uint64_t{0})) {
    return told(cudaErrorMemoryAllocation);
  }
  registry().uploaded.insert(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy_graph(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return destroy_graph(graph); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  refuse_capturing(stream);
  if (const auto mark = state_of(event).mark) enqueue(stream, [mark] { mark->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const std::lock_guard lock(registry().mutex);
  *event = registry().new_handle<cudaEvent_t>();
  registry().events[*event].flags = flags;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  state_of(event);
  const std::lock_guard lock(registry().mutex);
  registry().events.erase(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  refuse_capturing(stream);
  const auto mark = std::make_shared<Mark>();
  state_of(event);
  enqueue(stream, [mark] { mark->reach(); });
  const std::lock_guard lock(registry().mutex);
  registry().events[event].mark = mark;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return told(state_of(event).is_reached() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const EventState from = state_of(start), to = state_of(end);
  if (((from.flags | to.flags) & cudaEventDisableTiming) != 0) return told(cudaErrorInvalidResourceHandle);
  if (from.mark == nullptr || to.mark == nullptr) return told(cudaErrorInvalidResourceHandle);
  if (!from.is_reached() || !to.is_reached()) return told(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(to.mark->at() - from.mark->at()).count();
  return cudaSuccess;
}

}  // extern "C"

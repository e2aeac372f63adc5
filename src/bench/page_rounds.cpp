#include "src/bench/page_rounds.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/comm/gather.h"

namespace computron {
namespace {

constexpr std::size_t kFramesBytes = std::size_t{256} << 20;  // far more than the caches hold
constexpr auto kSampleEvery = std::chrono::milliseconds(5);

// Bytes behind `key` in a file of a process's folder of /proc; 0 where there is none.
std::size_t bytes_in(pid_t process, const char* name, std::string_view key) {
  std::ifstream file(fmt::format("/proc/{}/{}", process, name));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream fields(line.substr(key.size()));
    std::size_t kib = 0;
    fields >> kib;
    return kib * 1024;
  }
  return 0;
}

std::size_t sum_of(const std::vector<pid_t>& processes, std::string_view key) {
  std::size_t bytes = 0;
  for (const pid_t process : processes) bytes += bytes_in(process, "smaps_rollup", key);
  return bytes;
}

// What is left of their Pss without files: what a process has of the libraries that it maps changes whenever any other
// program on the machine begins or ends.
std::size_t settled(const std::vector<pid_t>& processes) {
  return sum_of(processes, "Pss_Anon:") + sum_of(processes, "Pss_Shmem:");
}

// The same as settled(), but for its error while others begin to map what one has: read one process after
// another, that counts pages in full there and in part here. Here one process, the holder, maps all shared memory.
std::size_t taken_by(const std::vector<pid_t>& processes) {
  std::size_t shared = 0;
  for (const pid_t process : processes) shared = std::max(shared, bytes_in(process, "status", "RssShmem:"));
  return sum_of(processes, "Pss_Anon:") + shared;
}

std::size_t less(std::size_t now, std::size_t before) { return now - std::min(now, before); }

// Watches what processes take together, from its making until its end.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::vector<pid_t> processes)
      : processes_(std::move(processes)),
        before_(taken_by(processes_)),
        watcher_([this](const std::stop_token& stop) { watch(stop); }) {}
  // Beyond what they took in the beginning.
  std::size_t most() {
    watcher_.request_stop();
    watcher_.join();
    return less(most_, before_);
  }

 private:
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      most_ = std::max<std::size_t>(most_, taken_by(processes_));
      std::this_thread::sleep_for(kSampleEvery);
    }
  }

  const std::vector<pid_t> processes_;
  const std::size_t before_;
  std::atomic<std::size_t> most_ = 0;
  std::jthread watcher_;
};

// Other work on the machine slows and never speeds up.
double lower_quartile(std::vector<double> values) {
  const auto quarter = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::ranges::nth_element(values, quarter);
  return *quarter;
}

}  // namespace

PageRounds::PageRounds(const Communicator& world, Device& device, ShardSource shard, int threads)
    : world_(world),
      device_(device),
      shard_(std::move(shard)),
      threads_(threads),
      copy_stream_(device.make_copy_stream()),
      frames_(device.allocate(kFramesBytes / shard_.layout->page_bytes * shard_.layout->page_bytes, "frames")) {
  ensure(frames_->bytes() > 0, "pages larger than all frames");
}

double PageRounds::slowest_s(double seconds) const {
  return 1e-15 * static_cast<double>(world_.all_reduce_max(static_cast<std::uint64_t>(1e15 * seconds)));
}

// The first rank watches all: the others are of its node, and of its user.
template <class Load>
PagesMemory PageRounds::measure(const Load& load) {
  const std::vector<pid_t> processes = gather(world_, getpid());
  const bool watches = world_.rank() == 0;
  std::optional<MemoryWatch> watch;
  std::size_t before = 0;
  if (watches) {
    before = settled(processes);
    watch.emplace(processes);
  }
  world_.barrier();
  const double start = now_s();
  load();
  const double seconds = slowest_s(now_s() - start);
  world_.barrier();
  PagesMemory memory{.load_s = seconds};
  if (watches) {
    memory.most_bytes = watch->most();
    memory.settled_bytes = less(settled(processes), before);
    memory.huge_bytes = sum_of(processes, "ShmemPmdMapped:");
  }
  std::vector<std::byte> bytes(sizeof memory);
  std::memcpy(bytes.data(), &memory, sizeof memory);
  bytes = world_.broadcast(std::move(bytes), 0);
  std::memcpy(&memory, bytes.data(), sizeof memory);
  return memory;
}

// As a job does it.
std::unique_ptr<HostStore> PageRounds::load(HostPages pages) {
  auto host = std::make_unique<HostStore>(device_);
  PageStore store(world_, device_.numa_node(), {shard_}, pages);
  if (!store.refusal().empty()) throw Error(ExitCode::kSystem, "pages cannot be shared: " + store.refusal());
  agreed(world_, [&] { host->load_next(store, threads_); });
  agreed(world_, [&] { host->map_held_by_others(store); });
  return host;
}

PagesMemory PageRounds::load_own() {
  return measure([&] { own_ = load(HostPages::kPrivate); });
}

PagesMemory PageRounds::load_shared() {
  return measure([&] { shared_ = load(HostPages::kShared); });
}

PagesMemory PageRounds::load_shared_small() {
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const PagesMemory memory = measure([&] { shared_small_ = load(HostPages::kShared); });
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  return memory;
}

// Seconds a byte.
double PageRounds::copy(const HostStore& host, PageId page) {
  const std::size_t page_bytes = shard_.layout->page_bytes, bytes = host.page_used_bytes(0, page);
  std::byte* frame = frames_->data() + next_frame_++ % (frames_->bytes() / page_bytes) * page_bytes;
  const double start = now_s();
  copy_stream_->copy_to_device(frame, host.page(0, page).data, bytes);
  copy_stream_->synchronize();
  return (now_s() - start) / static_cast<double>(bytes);
}

// Page by page from each of the three, so that they meet the same other work on the machine; each page begins with
// another one.
CopyRates PageRounds::copy_in_turns(bool takes_part) {
  const std::array hosts = {own_.get(), shared_.get(), shared_small_.get()};
  std::array<std::vector<double>, 3> seconds;
  world_.barrier();
  for (PageId page = 0; takes_part && page < static_cast<PageId>(own_->pages(0)); ++page) {
    for (PageId turn = 0; turn < hosts.size(); ++turn) {
      const std::size_t which = (page + turn) % hosts.size();
      seconds[which].push_back(copy(*hosts[which], page));
    }
  }
  std::array<double, 3> rates{};
  for (std::size_t which = 0; which < hosts.size(); ++which) {
    rates[which] = 1e-9 / slowest_s(takes_part ? lower_quartile(std::move(seconds[which])) : 0);
  }
  return {rates[0], rates[1], rates[2]};
}

CopyRates PageRounds::copy_together() { return copy_in_turns(/*takes_part=*/true); }
CopyRates PageRounds::copy_alone() { return copy_in_turns(/*takes_part=*/world_.rank() == 0); }

}  // namespace computron

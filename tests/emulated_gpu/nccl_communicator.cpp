#include "tests/emulated_gpu/nccl_communicator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "tests/emulated_gpu/stream.h"

namespace computron::emulated_gpu {
namespace {

std::mutex last_error_lock;
std::array<char, 1024> last_error{};

// NCCL's own way to tell hosts apart.
std::uint64_t host_hash() {
  std::array<char, 256> name{};
  if (const char* given = std::getenv("NCCL_HOSTID")) return std::hash<std::string_view>{}(given);
  gethostname(name.data(), name.size() - 1);
  return std::hash<std::string_view>{}(name.data());
}

// Whether this rank's calls of that name fail, of which the other ranks hear nothing.
bool fails(const char* call) {
  const char* failing = std::getenv("COMPUTRON_EMULATED_NCCL_FAILS");
  if (failing == nullptr || std::string_view(failing) != call) return false;
  set_last_nccl_error(fmt::format("COMPUTRON_EMULATED_NCCL_FAILS={}", call));
  return true;
}

// Of the runtime's only device.
std::uint64_t gpu_hash() {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) give_up("cudaGetDeviceProperties fails");
  return std::hash<std::string_view>{}({properties.uuid.bytes, sizeof properties.uuid.bytes});
}

}  // namespace

void set_last_nccl_error(const std::string& text) {
  const std::lock_guard lock(last_error_lock);
  std::strncpy(last_error.data(), text.c_str(), last_error.size() - 1);
}

const char* last_nccl_error() { return last_error.data(); }

Communicator::Communicator(Place place, Options options, std::shared_ptr<Family> family)
    : rank_(place.rank),
      ranks_(place.ranks),
      options_(options),
      family_(std::move(family)),
      segment_(std::make_unique<Segment>(std::move(place.segment), place.ranks)),
      random_(static_cast<unsigned>(1000 * place.ranks + place.rank + 1)),
      late_(random_()) {}

ncclResult_t Communicator::refuse(ncclResult_t status, const std::string& why) {
  set_last_nccl_error(why);
  if (!options_.blocking) state_ = status;
  return status;
}

ncclResult_t Communicator::state() {
  const ncclResult_t state = state_;
  if (state != ncclSuccess && state != ncclInProgress) return state;
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_ || !segment_->rank(r).aborted) continue;
    set_last_nccl_error(fmt::format("rank {} of {} has aborted the communicator", r, ranks_));
    return state_ = ncclRemoteError;
  }
  return state;
}

ncclResult_t Communicator::ready() {
  const ncclResult_t state = this->state();
  if (state != ncclInProgress) return state;
  return refuse(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
}

// An error that has come meanwhile stays.
ncclResult_t Communicator::start(std::function<ncclResult_t()> work) {
  if (options_.blocking) return work();
  if (job_.joinable()) job_.join();
  const std::chrono::microseconds late(random_() % 1000);
  state_ = ncclInProgress;
  job_ = std::thread([this, late, work = std::move(work)] {
    std::this_thread::sleep_for(late);
    const ncclResult_t result = work();
    ncclResult_t expected = ncclInProgress;
    state_.compare_exchange_strong(expected, result);
  });
  return ncclInProgress;
}

std::optional<std::vector<Meeting>> Communicator::meet(const Meeting& mine, const std::atomic<bool>& stop) {
  const std::uint64_t number = place().meetings;
  place().met[number % 2] = mine;
  place().meetings = number + 1;
  std::vector<Meeting> all;
  for (int r = 0; r < ranks_; ++r) {
    if (!wait_until(stop, [&] { return segment_->rank(r).meetings > number; })) return std::nullopt;
    all.push_back(segment_->rank(r).met[number % 2]);
    if (all.back().kind == mine.kind) continue;
    give_up(fmt::format("rank {} splits where rank {} finalizes", mine.kind == MeetingKind::kSplit ? rank_ : r,
                        mine.kind == MeetingKind::kSplit ? r : rank_));
  }
  return all;
}

ncclResult_t Communicator::init() {
  return start([this] {
    if (fails("ncclCommInitRankConfig")) return ncclSystemError;
    const auto all =
        meet({.kind = MeetingKind::kJoin, .color = 0, .key = 0, .host = host_hash(), .gpu = gpu_hash()}, family_->stop);
    if (!all) return ncclInternalError;
    if (rank_ == 0) segment_->forget_name();
    return refuse_shared_gpu(*all);
  });
}

ncclResult_t Communicator::refuse_shared_gpu(const std::vector<Meeting>& all) {
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_ || all[r].host != all[rank_].host || all[r].gpu != all[rank_].gpu) continue;
    set_last_nccl_error(fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device 0", rank_, r));
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

// NCCL 2.28 says ncclSuccess here although the parent is in progress.
ncclResult_t Communicator::split(int color, int key, const Options* options,
                                 std::function<void(std::shared_ptr<Communicator>)> done) {
  if (const ncclResult_t status = ready(); status != ncclSuccess) return status;
  if (finalized_) return refuse(ncclInvalidUsage, "ncclCommSplit after ncclCommFinalize");
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, "ncclCommSplit: a negative color");
  ++splits_;
  const auto split = [this, color, key, options = options != nullptr ? *options : options_, done = std::move(done)] {
    if (fails("ncclCommSplit")) return ncclSystemError;
    const auto all =
        meet({.kind = MeetingKind::kSplit, .color = color, .key = key, .host = 0, .gpu = 0}, family_->stop);
    if (!all) return ncclInternalError;
    auto child = color == NCCL_SPLIT_NOCOLOR ? nullptr : child_of(*all, options);
    if (child != nullptr && !child->meet({MeetingKind::kJoin, 0, 0, 0, 0}, family_->stop)) return ncclInternalError;
    if (child != nullptr && child->rank_ == 0) child->segment_->forget_name();
    done(std::move(child));
    return ncclSuccess;
  };
  const ncclResult_t status = start(split);
  return status == ncclInProgress ? ncclSuccess : status;
}

std::shared_ptr<Communicator> Communicator::child_of(const std::vector<Meeting>& all, const Options& options) {
  std::vector<std::tuple<int, int>> members;  // by key, then by rank of the parent
  for (int r = 0; r < ranks_; ++r) {
    if (all[r].color == all[rank_].color) members.emplace_back(all[r].key, r);
  }
  std::sort(members.begin(), members.end());
  const auto me = std::find(members.begin(), members.end(), std::tuple(all[rank_].key, rank_));
  Place place{fmt::format("{}.{}.{}", segment_->name(), splits_, all[rank_].color),
              static_cast<int>(me - members.begin()), static_cast<int>(members.size())};
  auto family = options_.share ? family_ : std::make_shared<Family>();
  return std::make_shared<Communicator>(std::move(place), options, std::move(family));
}

bool Communicator::connects(const Operation& operation) {
  bool& connected = operation.kind == OperationKind::kSum    ? connected_
                    : operation.kind == OperationKind::kSend ? connected_to_[operation.peer]
                                                             : connected_from_[operation.peer];
  if (std::exchange(connected, true)) return false;
  if (setting("COMPUTRON_EMULATED_CONNECT", 1) == 0) {
    give_up(fmt::format("rank {} of {} connects for {}, later than it should", rank_, ranks_,
                        operation.kind == OperationKind::kSum ? "sums" : "transfers"));
  }
  return true;
}

// On the host, until all that it is to reach have come to the same.
bool Communicator::connect(const Operation& operation) {
  if (operation.kind == OperationKind::kSum) {
    place().sums = true;
    for (int r = 0; r < ranks_; ++r) {
      if (!wait_until(family_->stop, [&] { return segment_->rank(r).sums.load(); })) return false;
    }
    return true;
  }
  const bool sends = operation.kind == OperationKind::kSend;
  Channel& channel = sends ? segment_->channel(rank_, operation.peer) : segment_->channel(operation.peer, rank_);
  (sends ? channel.has_sender : channel.has_receiver) = true;
  return wait_until(family_->stop, [&] { return channel.has_sender && channel.has_receiver; });
}

ncclResult_t Communicator::give(Operation operation, cudaStream_t stream) {
  if (const ncclResult_t status = ready(); status != ncclSuccess) return status;
  if (finalized_) return refuse(ncclInvalidUsage, "an operation after ncclCommFinalize");
  if (operation.kind == OperationKind::kSum && fails("ncclAllReduce"))
    return refuse(ncclSystemError, last_nccl_error());
  if (operation.kind != OperationKind::kSum &&
      (operation.peer < 0 || operation.peer >= ranks_ || operation.peer == rank_)) {
    return refuse(ncclInvalidArgument, fmt::format("rank {} of {}: no such peer: {}", rank_, ranks_, operation.peer));
  }
  if (operation.count == 0) return ncclSuccess;
  expect_memory(operation);
  const bool connects = this->connects(operation), captured = captures(stream);
  if (connects && captured) give_up("a graph would connect ranks");
  const auto take_turn = [self = shared_from_this(), held = captured ? in_graphs_ : nullptr,
                          operation](bool in_graph) -> std::function<void()> {
    Operation mine = operation;
    mine.turn = self->family_->given++;
    mine.in_graph = in_graph;
    ++self->given_;
    return [self, mine] { self->run(mine); };
  };
  const auto enqueue_it = [self = shared_from_this(), operation, stream, connects, take_turn] {
    if (connects && !self->connect(operation)) return ncclInternalError;
    enqueue_made(stream, take_turn);
    return ncclSuccess;
  };
  if (!options_.blocking && (connects || random_() % 4 == 0)) return start(enqueue_it);
  return enqueue_it();
}

ncclResult_t Communicator::finalize() {
  if (const ncclResult_t status = ready(); status != ncclSuccess) return status;
  if (finalized_) return refuse(ncclInvalidArgument, "ncclCommFinalize for the second time");
  finalized_ = true;
  return start([this] {
    if (!wait_until(family_->stop, [this] { return done_ == given_; })) return ncclInternalError;
    return meet({MeetingKind::kFinalize, 0, 0, 0, 0}, family_->stop) ? ncclSuccess : ncclInternalError;
  });
}

ncclResult_t Communicator::destroy() {
  if (const ncclResult_t status = ready(); status != ncclSuccess) return status;
  if (job_.joinable()) job_.join();
  if (in_graphs_.use_count() > 1) give_up("a communicator is destroyed before a graph with operations of it");
  if (!finalized_) wait_until(family_->stop, [this] { return done_ == given_; });
  return ncclSuccess;
}

ncclResult_t Communicator::abort() {
  family_->stop = true;
  if (job_.joinable()) job_.join();
  if (in_graphs_.use_count() > 1) give_up("a communicator is aborted before a graph with operations of it");
  place().aborted = std::getenv("COMPUTRON_EMULATED_NCCL_FAILS") == nullptr;
  const std::lock_guard until_it_has_ended(running_);
  return ncclSuccess;
}

}  // namespace computron::emulated_gpu

#include "src/comm/cuda/nccl_world.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <cstring>
#include <exception>

#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "src/comm/cuda/nccl_call.h"
#include "src/device/cuda/cuda_check.h"

namespace computron {
namespace {

// A step of the slowest kind, a swap in front of it included, takes a fraction of this.
constexpr double kDeadline_s = 120;
// For leaving in peace: nobody computes any longer.
constexpr double kGoodbye_s = 10;
// What NCCL says at the start may be the echo of another rank's failure, which raises the alarm before it lets go.
constexpr double kEcho_s = 0.2;

// One algorithm, and of its protocols the one for short and the one for long vectors: what is chosen depends on the
// count alone, so that a run repeats. Whoever sets them otherwise gets that.
void fix_choices() {
  setenv("NCCL_ALGO", "Ring", /*overwrite=*/0);
  setenv("NCCL_PROTO", "LL,Simple", /*overwrite=*/0);
  // What a graph sums is not registered with the network, which would keep it registered until the graph dies.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
}

std::vector<std::byte> new_id() {
  ncclUniqueId id;
  COMPUTRON_NCCL_CHECK(ncclGetUniqueId(&id));
  const auto bytes = std::as_bytes(std::span(&id, 1));
  return {bytes.begin(), bytes.end()};
}

ncclUniqueId id_of(const std::vector<std::byte>& bytes) {
  ncclUniqueId id;
  ensure(bytes.size() == sizeof id, "an NCCL id of another size");
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

}  // namespace

void NcclWatch::add(cudaStream_t stream) {
  if (left() == 0) since_s_ = now_s();
  if (free_.empty()) free_.push_back(make_cuda_event(cudaEventDisableTiming));
  COMPUTRON_CUDA_CHECK(cudaEventRecord(free_.front().get(), stream));
  awaited_.push_back(std::move(free_.front()));
  free_.pop_front();
}

std::size_t NcclWatch::left() {
  while (!awaited_.empty() && is_over(cudaEventQuery(awaited_.front().get()), "cudaEventQuery")) {
    free_.push_back(std::move(awaited_.front()));
    awaited_.pop_front();
    since_s_ = now_s();
  }
  return awaited_.size();
}

double NcclWatch::stalled_s() const { return awaited_.empty() ? 0 : now_s() - since_s_; }

NcclWorld::NcclWorld(const Mesh& mesh, Device& device, Progress& progress)
    : progress_(progress), parity_before_((mesh.stage + 1) % 2) {
  std::vector<std::byte> id;
  agreed(mesh.group, [&] {
    fix_choices();
    if (mesh.rank == 0) id = new_id();
  });
  id = mesh.group.broadcast(std::move(id), 0);
  Alarm alarm(mesh.group);
  alarm_ = &alarm;
  try {
    agreed(mesh.group, [&] { start(mesh, device, id_of(id)); });
  } catch (...) {
    abort();
    throw;
  }
  alarm_ = nullptr;
}

// NCCL need not tell a rank that another has failed: those that wait for it in the same calls hear the alarm. Whoever
// fails because of another leaves the reason to that one.
void NcclWorld::start(const Mesh& mesh, Device& device, const ncclUniqueId& id) try {
  join(mesh, id);
  connect(mesh, device);
} catch (...) {
  const bool echo = alarm_->heard_within(kEcho_s);
  if (!echo) alarm_->raise();
  abort();
  if (!echo) throw;
}

void NcclWorld::listen() {
  if (alarm_ == nullptr) return;
  MpiSession::poll_while_waiting();
  if (alarm_->heard()) throw Error(ExitCode::kComm, "nccl: another rank has failed");
}

void NcclWorld::join(const Mesh& mesh, const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  COMPUTRON_NCCL_CHECK(ncclCommInitRankConfig(&world_, mesh.shape.ranks(), id, mesh.rank, &config));
  settle(world_, "ncclCommInitRankConfig");
  split(mesh);
}

// Every rank takes part in every split. A child is there when its parent's call is over; then it has its own to end.
void NcclWorld::split(const Mesh& mesh) {
  const auto child = [&](int color, int key, ncclComm_t& comm) {
    COMPUTRON_NCCL_CHECK(ncclCommSplit(world_, color, key, &comm, /*config=*/nullptr));  // null: the parent's
    settle(world_, "ncclCommSplit");
    if (comm != nullptr) settle(comm, "ncclCommSplit");
  };
  if (mesh.shape.tp > 1) child(mesh.stage, mesh.t, tensor_);
  for (int parity = 0; parity < 2 && mesh.shape.pp > 1; ++parity) {
    const auto lower = mesh.shape.pair_of(mesh.stage, parity);
    child(lower ? mesh.shape.rank_of(*lower, mesh.t) : NCCL_SPLIT_NOCOLOR, mesh.stage, pairs_[parity]);
  }
}

// NCCL connects the ranks of a ring, and two that exchange something, at the first operation that needs it; that may
// take seconds. Even pairs come first: a stage between two others is in one of each.
void NcclWorld::connect(const Mesh& mesh, Device& device) {
  const CudaStreamHandle stream = make_cuda_stream();
  first_ = device.allocate(sizeof(float), "what the ranks connect with");
  auto* const value = reinterpret_cast<float*>(first_->data());
  if (tensor_ != nullptr) {
    enqueue(tensor_, stream.get(), compute_, "the first ncclAllReduce",
            [&] { return ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, tensor_, stream.get()); });
  }
  for (int parity = 0; parity < 2; ++parity) {
    const ncclComm_t pair = pairs_[parity];
    if (pair == nullptr) continue;
    const bool lower = mesh.stage % 2 == parity;
    enqueue(pair, stream.get(), compute_, lower ? "the first ncclSend" : "the first ncclRecv", [&] {
      return lower ? ncclSend(value, 1, ncclFloat32, /*peer=*/1, pair, stream.get())
                   : ncclRecv(value, 1, ncclFloat32, /*peer=*/0, pair, stream.get());
    });
  }
  finish(compute_);
  first_.reset();
}

NcclWorld::~NcclWorld() {
  if (world_ == nullptr) return;
  const bool in_peace = std::uncaught_exceptions() == 0 && take_down();
  if (!in_peace) abort();
}

void NcclWorld::enqueue(ncclComm_t comm, cudaStream_t stream, NcclWatch& watch, const char* what,
                        const Operation& operation) {
  ensure(comm != nullptr, "an NCCL operation without its communicator");
  if (watch.left() >= kAhead) {
    progress_.wait_until([&] {
      poll();
      return watch.left() < kAhead;
    });
  }
  check_nccl(operation(), what);
  settle(comm, what);
  watch.add(stream);
}

void NcclWorld::capture(ncclComm_t comm, const char* what, const Operation& operation) {
  ensure(comm != nullptr, "an NCCL operation without its communicator");
  check_nccl(operation(), what);
  settle_idly(comm, what);
}

void NcclWorld::finish(NcclWatch& watch) {
  progress_.wait_until([&] {
    poll();
    return watch.left() == 0;
  });
}

void NcclWorld::poll() {
  if (world_ == nullptr) return;
  listen();
  for_each([this](ncclComm_t& comm) { state_of(comm, "an operation under way"); });
  for (NcclWatch* watch : {&compute_, &sends_}) {
    if (watch->left() == 0 || watch->stalled_s() < kDeadline_s) continue;
    fail(ExitCode::kWatchdog,
         fmt::format("a {} has waited {:.0f} s for the other ranks",
                     watch == &sends_ ? "transfer to the next stage" : "sum or transfer", watch->stalled_s()));
  }
}

void NcclWorld::settle(ncclComm_t comm, const char* what) {
  const double end_s = now_s() + kDeadline_s;
  progress_.wait_until([&] { return is_settled(comm, what, end_s); });
}

void NcclWorld::settle_idly(ncclComm_t comm, const char* what) {
  const double end_s = now_s() + kDeadline_s;
  for (Idler idler(progress_.idle()); !is_settled(comm, what, end_s);) idler.pause();
}

bool NcclWorld::is_settled(ncclComm_t comm, const char* what, double end_s) {
  listen();
  const bool over = state_of(comm, what) == ncclSuccess;
  if (!over && now_s() > end_s) fail(ExitCode::kWatchdog, fmt::format("{} has taken {} s", what, kDeadline_s));
  return over;
}

ncclResult_t NcclWorld::state_of(ncclComm_t comm, const char* what) {
  ncclResult_t state = ncclSuccess;
  ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) {
    fail(ExitCode::kComm, fmt::format("{}: {}", what, nccl_text(state)));
  }
  return state;
}

// At the start the others are told first.
void NcclWorld::fail(ExitCode code, const std::string& what) {
  if (alarm_ == nullptr) abort();
  throw Error(code, "nccl: " + what);
}

void NcclWorld::abort() noexcept {
  if (drop_graphs_) drop_graphs_();
  for_each([](ncclComm_t& comm) {
    const ncclResult_t status = ncclCommAbort(comm);
    if (status != ncclSuccess && status != ncclInProgress) spdlog::warn("nccl: ncclCommAbort: {}", nccl_text(status));
    comm = nullptr;
  });
}

// All ranks do this at the end of a job. False where something is still under way, or a peer does not come.
bool NcclWorld::take_down() noexcept try {
  bool gone = true;
  const double end_s = now_s() + kGoodbye_s;
  for (Idler idler(IdlePolicy{}); compute_.left() + sends_.left() > 0; idler.pause()) {
    if (now_s() > end_s) return false;
  }
  for_each([&](ncclComm_t& comm) {
    ncclResult_t state = ncclCommFinalize(comm);
    Idler idler(IdlePolicy{});
    while (state == ncclInProgress && now_s() < end_s) {
      idler.pause();
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
    }
    if (state != ncclSuccess || ncclCommDestroy(comm) != ncclSuccess) {
      gone = false;
      return;
    }
    comm = nullptr;
  });
  return gone;
} catch (const std::exception& error) {
  spdlog::warn("nccl: taking the communicators down: {}", error.what());
  return false;
}

template <class Do>
void NcclWorld::for_each(Do&& act) {
  for (ncclComm_t* comm : {&pairs_[1], &pairs_[0], &tensor_, &world_}) {
    if (*comm != nullptr) act(*comm);
  }
}

}  // namespace computron

#include "computron/runtime/heartbeat.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <future>

#include "computron/base/digest.h"
#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/comm/tags.h"

namespace computron {
namespace {

constexpr int kLooksABeat = 4;
constexpr std::chrono::milliseconds kBetweenPolls{10};  // while another thread works

// The same on all ranks, and no other job's.
std::uint64_t job_number(const Communicator& world) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::uint64_t own = hash_tuple(static_cast<std::uint64_t>(now.tv_sec), now.tv_nsec, getpid());
  const auto bytes = std::as_bytes(std::span(&own, 1));
  std::uint64_t number = 0;
  std::memcpy(&number, world.broadcast({bytes.begin(), bytes.end()}, 0).data(), sizeof number);
  return number;
}

std::vector<std::string> hosts_of(const Communicator& world) {
  std::vector<std::string> hosts;
  const std::string own = host_name();
  for (const auto& bytes : world.all_gather(std::as_bytes(std::span(own)))) {
    hosts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return hosts;
}

}  // namespace

Heartbeat::Heartbeat(const Communicator& world, const HeartbeatOptions& options)
    : world_(world.split(/*color=*/0, world.rank())), beat_s_(options.limits.value_or(WatchdogLimits{}).beat_s()) {
  const std::uint64_t job = job_number(world_);
  agreed(world_, [&] {
    recorder_ = std::make_unique<FlightRecorder>(options.folder, job, world_.rank(), world_.size());
    if (!recorder_->why().empty()) spdlog::warn("what this rank does is not recorded: {}", recorder_->why());
  });
  watchdog_ = std::make_unique<Watchdog>(world_.rank(), hosts_of(world_), options.limits, *recorder_);
  for (int rank = 0; rank < (world_.rank() == 0 ? world_.size() : 1); ++rank) {
    if (rank != world_.rank()) peers_.emplace_back().rank = rank;
  }
  for (Peer& peer : peers_) post(peer);
  MpiSession::while_waiting([this] { poll(); });
}

Heartbeat::~Heartbeat() {
  MpiSession::while_waiting({});
  if (watchdog_->limits()) MpiSession::finalize_within(2 * watchdog_->limits()->finish);
  world_.leave_to_finalize();  // a sign may be on its way
}

void Heartbeat::post(Peer& peer) {
  peer.receiving = world_.receive(std::as_writable_bytes(std::span(&peer.received, 1)), peer.rank, tags::kSign);
}

void Heartbeat::poll() {
  watchdog_->pulse();
  const double now = now_s();
  if (now < look_at_s_) return;
  look_at_s_ = now + beat_s_ / kLooksABeat;
  const bool speak = now >= speak_at_s_;
  if (speak) speak_at_s_ = now + beat_s_;
  for (Peer& peer : peers_) exchange(peer, speak);
}

// A peer that does not take what it is sent is sent nothing more.
void Heartbeat::exchange(Peer& peer, bool speak) {
  while (peer.receiving.done()) {
    ensure(peer.receiving.received_bytes() == sizeof peer.received, "a sign of life of another length");
    watchdog_->heard(peer.rank, peer.received);
    post(peer);
  }
  if (!peer.sending.done() || !speak) return;
  peer.sent = watchdog_->sign();
  peer.sending = world_.send(std::as_bytes(std::span(&peer.sent, 1)), peer.rank, tags::kSign);
}

void Heartbeat::enter(SignOfLife::Phase phase) {
  watchdog_->enter(phase);
  look_at_s_ = speak_at_s_ = 0;
  poll();
}

void Heartbeat::run_beside(const std::function<void()>& work) {
  std::future<void> end = std::async(std::launch::async, work);
  do {
    poll();
  } while (end.wait_for(kBetweenPolls) != std::future_status::ready);
  end.get();
}

}  // namespace computron

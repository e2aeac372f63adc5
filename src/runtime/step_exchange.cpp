#include "computron/runtime/step_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "computron/base/digest.h"
#include "computron/comm/tags.h"

namespace computron {
namespace {

constexpr std::size_t kFragmentBytes = 3500;           // stays below the eager limit of every transport
constexpr std::size_t kLargestInFragments = 64 << 10;  // bytes; larger steps travel as one message
using Length = std::uint32_t;                          // in front of a message's first fragment
constexpr Length kComesWhole = Length{1} << 31;        // a flag of Length: so many bytes come as one kLargeStep message

Outbox::Bytes shared(std::vector<std::byte> bytes) {
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

}  // namespace

void Outbox::send(const Communicator& comm, std::vector<std::byte> bytes, int to, int tag) {
  const Bytes owned = shared(std::move(bytes));
  send(comm, owned, *owned, to, tag);
}

// What MPI takes at once, as it does small messages, is not kept.
void Outbox::send(const Communicator& comm, const Bytes& bytes, std::span<const std::byte> part, int to, int tag) {
  MessageRequest request = comm.send(part, to, tag);
  if (!request.done()) sending_.push_back({bytes, std::move(request)});
}

void Outbox::poll() {
  std::erase_if(sending_, [](Message& message) { return message.request.done(); });
}

StepSender::Encoded StepSender::encode(const Step& step, int stage) {
  std::vector<std::byte> body = step.encode(stage);
  const std::uint64_t digest = digest64(body);
  auto length = static_cast<Length>(body.size());
  const bool is_large = body.size() > kLargestInFragments;
  if (is_large) length |= kComesWhole;
  const auto head = std::as_bytes(std::span(&length, 1));
  if (is_large) return {shared({head.begin(), head.end()}), shared(std::move(body)), digest};
  body.insert(body.begin(), head.begin(), head.end());
  return {shared(std::move(body)), nullptr, digest};
}

std::vector<std::uint64_t> StepSender::send(const Step& step) {
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(group_.shape.pp));
  for (int stage = 0; stage < group_.shape.pp; ++stage) {
    std::optional<Encoded> encoded;
    for (int t = 0; t < group_.shape.tp; ++t) {
      const int rank = group_.job_rank(group_.shape.rank_of(stage, t));
      if (rank == 0) continue;
      if (!encoded) encoded = encode(step, stage);
      send(*encoded, rank);
    }
    if (encoded) digests[static_cast<std::size_t>(stage)] = encoded->digest;
  }
  return digests;
}

void StepSender::send(const Encoded& encoded, int rank) {
  const std::span<const std::byte> message(*encoded.message);
  for (std::size_t at = 0; at < message.size(); at += kFragmentBytes) {
    const std::size_t bytes = std::min(kFragmentBytes, message.size() - at);
    outbox_.send(job_, encoded.message, message.subspan(at, bytes), rank, tags::kStep);
  }
  if (encoded.large) outbox_.send(job_, encoded.large, *encoded.large, rank, tags::kLargeStep);
}

StepReceiver::StepReceiver(const Mesh& mesh, int steps_in_flight) : mesh_(mesh) {
  for (int i = 0; i < steps_in_flight + 1; ++i) {
    Slot& slot = ring_.emplace_back(Slot{std::vector<std::byte>(kFragmentBytes), {}});
    slot.request = mesh_.job.receive(slot.bytes, 0, tags::kStep);
  }
}

std::optional<Step> StepReceiver::poll() {
  const std::optional<std::vector<std::byte>> message = poll_bytes();
  if (!message) return std::nullopt;
  return Step::decode(*message, mesh_.stage, mesh_.shape.pp);
}

std::optional<std::vector<std::byte>> StepReceiver::poll_bytes() {
  if (large_) {
    if (!large_->done()) return std::nullopt;
    ensure(large_->received_bytes() == message_.size(), "a large step of another length than announced");
    large_.reset();
    return std::exchange(message_, {});
  }
  while (ring_.front().request.done()) {
    Slot slot = std::move(ring_.front());
    ring_.pop_front();
    const bool whole = take_fragment(std::span<const std::byte>(slot.bytes).first(slot.request.received_bytes()));
    slot.request = mesh_.job.receive(slot.bytes, 0, tags::kStep);
    ring_.push_back(std::move(slot));
    if (large_) return std::nullopt;
    if (whole) return std::exchange(message_, {});
  }
  return std::nullopt;
}

bool StepReceiver::take_fragment(std::span<const std::byte> fragment) {
  if (missing_ == 0) {
    Length length = 0;
    ensure(fragment.size() >= sizeof length, "step fragment too short");
    std::memcpy(&length, fragment.data(), sizeof length);
    fragment = fragment.subspan(sizeof length);
    if ((length & kComesWhole) != 0) {
      message_.resize(length & ~kComesWhole);
      large_ = mesh_.job.receive(message_, 0, tags::kLargeStep);
      return false;
    }
    missing_ = length;
    message_.reserve(missing_);
  }
  ensure(fragment.size() <= missing_, "step fragment too long");
  message_.insert(message_.end(), fragment.begin(), fragment.end());
  missing_ -= fragment.size();
  return missing_ == 0;
}

void ReportCollector::expect(const Step& step, std::vector<StateDigest> expected) {
  const int ranks = group_.shape.ranks();
  const std::size_t most = Report::max_bytes(step.logit_rows(), step.encoded_rows(), step.encoded_values());
  const std::size_t others = Report::max_bytes(0);
  Pending& pending = pending_.emplace_back();
  pending.step = step.id;
  pending.expected = std::move(expected);
  pending.bytes.resize(most + others * static_cast<std::size_t>(ranks - 1));
  pending.requests.resize(ranks);
  pending.reports.resize(ranks);
  std::span<std::byte> left = pending.bytes;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::span<std::byte> buffer = left.first(rank == group_.sampler() ? most : others);
    left = left.subspan(buffer.size());
    pending.buffers.push_back(buffer);
    if (is_own(rank)) continue;
    pending.awaited.push_back(rank);
    pending.requests[rank] = job_.receive(buffer, group_.job_rank(rank), tags::kReport);
  }
}

void ReportCollector::note_sent(StepId step, std::vector<std::uint64_t> digests) {
  ensure(!pending_.empty() && pending_.back().step == step, "a step was sent that was not expected");
  pending_.back().sent = std::move(digests);
}

void ReportCollector::put_own(Report report) {
  for (Pending& pending : pending_) {
    if (pending.step != report.step) continue;
    pending.reports[0] = std::move(report);
    check(pending, 0);
    return;
  }
  ensure(false, "a report of a step that was not expected");
}

// Tests the receive of one rank that has not reported, another one each time, and goes on while there are reports: a
// test lets MPI look at all of its messages, which takes as long as everything else here.
std::optional<std::vector<Report>> ReportCollector::poll() {
  if (pending_.empty()) return std::nullopt;
  Pending& oldest = pending_.front();
  while (!oldest.awaited.empty()) {
    const int rank = oldest.awaited.front();
    oldest.awaited.pop_front();
    if (!oldest.requests[rank].done()) {
      oldest.awaited.push_back(rank);
      return std::nullopt;
    }
    oldest.reports[rank] = Report::decode(oldest.buffers[rank].first(oldest.requests[rank].received_bytes()));
    check(oldest, rank);
  }
  if (!oldest.reports.front()) return std::nullopt;  // rank 0's own
  std::vector<Report> reports;
  for (std::optional<Report>& report : oldest.reports) reports.push_back(std::move(*report));
  pending_.pop_front();
  return reports;
}

void ReportCollector::check(const Pending& pending, int rank) const {
  const Report& report = *pending.reports[rank];
  if (report.step != pending.step) {
    throw Error(ExitCode::kInternal,
                fmt::format("{} reports step {} where step {} was due", name_of(rank), report.step, pending.step));
  }
  const auto stage = static_cast<std::size_t>(group_.shape.stage_of(rank));
  if (!is_own(rank) && report.received != pending.sent.at(stage)) {
    throw Error(ExitCode::kInternal,
                fmt::format("{} received another step {} than rank 0 sent: digest {:016x}, not {:016x}", name_of(rank),
                            pending.step, report.received, pending.sent[stage]));
  }
  const StateDigest& expected = pending.expected[stage];
  const std::string field = expected.first_difference(report.digest);
  if (!field.empty()) {
    throw Error(ExitCode::kInternal,
                fmt::format("{} disagrees with rank 0 after step {}: {} differ", name_of(rank), pending.step, field));
  }
}

std::string ReportCollector::name_of(int rank) const {
  const std::string name = fmt::format("rank {}", group_.job_rank(rank));
  return names_group_ ? fmt::format("{} (group {})", name, group_.index) : name;
}

}  // namespace computron

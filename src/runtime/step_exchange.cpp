#include "computron/runtime/step_exchange.h"

#include <fmt/format.h>

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

std::vector<std::byte> bytes_of(Length length) {
  const auto bytes = std::as_bytes(std::span(&length, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void Outbox::send(const Communicator& comm, std::vector<std::byte> bytes, int to, int tag) {
  Message& message = sending_.emplace_back(Message{std::move(bytes), {}});
  message.request = comm.send(message.bytes, to, tag);
}

void Outbox::poll() {
  std::erase_if(sending_, [](Message& message) { return message.request.done(); });
}

std::vector<std::uint64_t> StepSender::send(const Step& step) {
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(group_.shape.pp));
  for (int r = 0; r < group_.shape.ranks(); ++r) {
    const int rank = group_.job_rank(r);
    if (rank == 0) continue;
    const int stage = group_.shape.stage_of(r);
    std::vector<std::byte> body = step.encode(stage);
    std::uint64_t& digest = digests[static_cast<std::size_t>(stage)];
    if (digest == 0) digest = digest64(body);
    const auto length = static_cast<Length>(body.size());
    if (body.size() > kLargestInFragments) {
      outbox_.send(job_, bytes_of(length | kComesWhole), rank, tags::kStep);
      outbox_.send(job_, std::move(body), rank, tags::kLargeStep);
      continue;
    }
    std::vector<std::byte> message = bytes_of(length);
    message.insert(message.end(), body.begin(), body.end());
    for (std::size_t at = 0; at < message.size(); at += kFragmentBytes) {
      const std::size_t end = std::min(at + kFragmentBytes, message.size());
      outbox_.send(job_, {message.begin() + at, message.begin() + end}, rank, tags::kStep);
    }
  }
  return digests;
}

StepReceiver::StepReceiver(const Mesh& mesh, int steps_in_flight) : mesh_(mesh) {
  for (int i = 0; i < steps_in_flight + 1; ++i) {
    Slot& slot = ring_.emplace_back(Slot{std::vector<std::byte>(kFragmentBytes), {}});
    slot.request = mesh_.job.receive(slot.bytes, 0, tags::kStep);
  }
}

std::optional<Step> StepReceiver::poll() {
  if (large_) {
    if (!large_->done()) return std::nullopt;
    ensure(large_->received_bytes() == message_.size(), "a large step of another length than announced");
    large_.reset();
    return decode_message();
  }
  while (ring_.front().request.done()) {
    Slot slot = std::move(ring_.front());
    ring_.pop_front();
    const bool whole = take_fragment(std::span<const std::byte>(slot.bytes).first(slot.request.received_bytes()));
    slot.request = mesh_.job.receive(slot.bytes, 0, tags::kStep);
    ring_.push_back(std::move(slot));
    if (large_) return std::nullopt;
    if (whole) return decode_message();
  }
  return std::nullopt;
}

Step StepReceiver::decode_message() {
  const std::vector<std::byte> message = std::exchange(message_, {});
  return Step::decode(message, mesh_.stage, mesh_.shape.pp);
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
  Pending& pending = pending_.emplace_back();
  pending.step = step.id;
  pending.expected = std::move(expected);
  pending.buffers.resize(ranks);
  pending.requests.resize(ranks);
  pending.reports.resize(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    if (is_own(rank)) continue;
    const bool samples = rank == group_.sampler();
    pending.buffers[rank].resize(samples
                                     ? Report::max_bytes(step.logit_rows(), step.encoded_rows(), step.encoded_values())
                                     : Report::max_bytes(0));
    pending.requests[rank] = job_.receive(pending.buffers[rank], group_.job_rank(rank), tags::kReport);
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

std::optional<std::vector<Report>> ReportCollector::poll() {
  if (pending_.empty()) return std::nullopt;
  Pending& oldest = pending_.front();
  bool complete = true;
  for (int rank = 0; rank < group_.shape.ranks(); ++rank) {
    std::optional<Report>& report = oldest.reports[rank];
    if (!report && !is_own(rank) && oldest.requests[rank].done()) {
      report = Report::decode(std::span(oldest.buffers[rank]).first(oldest.requests[rank].received_bytes()));
      check(oldest, rank);
    }
    complete &= report.has_value();
  }
  if (!complete) return std::nullopt;
  std::vector<Report> reports;
  for (auto& report : oldest.reports) reports.push_back(std::move(*report));
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

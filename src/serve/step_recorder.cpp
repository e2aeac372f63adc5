#include "computron/serve/step_recorder.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/size.h"
#include "computron/base/time.h"

namespace computron {
namespace {

constexpr std::size_t kEndBytes = 64;  // that the last frame may take beyond the limit

std::uint64_t random_salt() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

// Layouts by what is recorded of them: equal ones stand there once.
class LayoutTable {
 public:
  explicit LayoutTable(RecordHeader& header) : header_(header) {}

  std::uint32_t index_of(const ShardLayout& layout) {
    const auto number = static_cast<std::uint32_t>(header_.layouts.size());
    const auto [entry, is_new] = known_.try_emplace(digest128(encode_layout(layout)), number);
    if (is_new) header_.layouts.push_back(layout);
    return entry->second;
  }

 private:
  RecordHeader& header_;
  std::map<Digest128, std::uint32_t> known_;
};

RecordHeader::Group group_of(const Job& job, const Dispatcher& dispatcher, const RankGroup& group,
                             LayoutTable& layouts) {
  const auto number = static_cast<std::size_t>(group.index);
  RecordHeader::Group recorded{.tp = group.shape.tp,
                               .pp = group.shape.pp,
                               .first_rank = group.first_rank,
                               .options = dispatcher.scheduler(number).options(),
                               .models = {}};
  ModelId local = 0;
  for (const ModelShape& shape : job.models().shapes(group.index)) {
    RecordHeader::Model& model = recorded.models.emplace_back();
    model.job_model = dispatcher.job_model(number, local++);
    model.pinned = shape.pinned;
    model.priority = shape.priority;
    for (const ShardLayout* layout : shape.layouts) model.layouts.push_back(layouts.index_of(*layout));
  }
  return recorded;
}

}  // namespace

RecordHeader record_header(const Job& job, const Dispatcher& dispatcher, std::string program, std::string started) {
  RecordHeader header;
  header.program = std::move(program);
  header.host = host_name();
  header.started = std::move(started);
  header.policy = name_of(job.options().policy);
  header.max_wait_s = job.options().max_wait_s;
  header.models = job.models().names();
  LayoutTable layouts(header);
  for (const RankGroup& group : job.mesh().groups) header.groups.push_back(group_of(job, dispatcher, group, layouts));
  return header;
}

StepRecorder::StepRecorder(const RecorderOptions& options, SystemCalls& calls)
    : options_(options), file_(options.file, options.most_waiting_bytes, calls), salt_(random_salt()) {}

void StepRecorder::begin(const RecordHeader& header) {
  for (const RecordHeader::Group& group : header.groups) with_prefix_ |= group.options.prefix_caching;
  const auto magic = std::as_bytes(std::span(kRecordMagic));
  file_.put(magic, std::as_bytes(std::span(&kRecordVersion, 1)));
  bytes_ = magic.size() + sizeof kRecordVersion;
  const std::vector<std::byte> payload = encode(header);
  const bool fits = bytes_ + kFrameHeadBytes + payload.size() + kEndBytes <= options_.limit_bytes;
  if (fits && put_frame(payload)) return;
  gave_up_ = true;
  why_ = RecordEnd::kLimit;
  spdlog::warn("nothing is recorded: what {} would begin with takes {}, more than it may", options_.file,
               format_size(payload.size()));
}

template <class MakeEvent>
void StepRecorder::put(double now, const MakeEvent& make_event) {
  if (gave_up_) return;
  const double begin_s = now_s();
  now_ = now;
  const std::vector<std::byte> payload = encode(RecordedEvent(make_event()));
  if (bytes_ + kFrameHeadBytes + payload.size() + kEndBytes > options_.limit_bytes) {
    give_up(RecordEnd::kLimit);
    spdlog::warn("the record {} has reached {}: nothing more is recorded", options_.file,
                 format_size(options_.limit_bytes));
  } else if (!put_frame(payload)) {
    give_up(RecordEnd::kTooSlow);
    spdlog::warn("the disk does not keep up with the record {}: nothing more is recorded", options_.file);
  } else if (!file_.fault().empty()) {
    gave_up_ = true;
    spdlog::warn("nothing more is recorded: {}", file_.fault());
  }
  taken_s_ += now_s() - begin_s;
}

void StepRecorder::submitted(const Request& request, bool deferred, double now) {
  requests_ += gave_up_ ? 0 : 1;
  put(now, [&] { return recorded(request, now, deferred, with_prefix_, salt_); });
}

void StepRecorder::input_ended(bool closed, bool deferred, double now) {
  put(now, [&] { return RecordedInputEnd{.time_s = now, .closed = closed, .deferred = deferred}; });
}

void StepRecorder::sent(std::size_t group, const PlannedStep& planned, double now) {
  steps_ += gave_up_ ? 0 : 1;
  put(now, [&] { return recorded(static_cast<std::uint32_t>(group), planned, now); });
}

void StepRecorder::reported(std::size_t group, StepId step, std::span<const StageTimes> times,
                            std::span<const Report> reports, int tp, double now) {
  put(now, [&] {
    RecordedReport report{.reported_s = now, .group = static_cast<std::uint32_t>(group), .step = step, .stages = {}};
    for (std::size_t stage = 0; stage < times.size(); ++stage) {
      double exposed_s = 0;
      for (const Report& rank : reports.subspan(stage * static_cast<std::size_t>(tp), static_cast<std::size_t>(tp))) {
        exposed_s = std::max(exposed_s, rank.exposed_s);
      }
      report.stages.push_back({times[stage], exposed_s});
    }
    return report;
  });
}

void StepRecorder::ended(const Completion& completion) {
  put(now_, [&] { return recorded(completion); });
}

void StepRecorder::finish(bool all_done, double now) {
  now_ = now;
  if (!gave_up_) give_up(all_done ? RecordEnd::kAllDone : RecordEnd::kStopped);
  file_.close();
}

bool StepRecorder::put_frame(std::span<const std::byte> payload) {
  if (!file_.put(frame_head(payload), payload)) return false;
  bytes_ += kFrameHeadBytes + payload.size();
  return true;
}

// The file says why it ends, where there is room for that.
void StepRecorder::give_up(RecordEnd::Why why) {
  gave_up_ = true;
  why_ = why;
  put_frame(encode(RecordedEvent(RecordEnd{.time_s = now_, .why = why})));
}

std::string StepRecorder::summary() const {
  std::string text = fmt::format("record {}: {} requests and {} steps in {}, for which rank 0 took {:.3f} ms",
                                 options_.file, requests_, steps_, format_size(bytes_), 1e3 * taken_s_);
  if (why_ == RecordEnd::kLimit) text += fmt::format("; it ends at {:.3f} s, where it reached its limit", now_);
  if (why_ == RecordEnd::kTooSlow) text += fmt::format("; it ends at {:.3f} s, as the disk did not keep up", now_);
  const std::string fault = file_.fault();
  return fault.empty() ? text : text + "; incomplete: " + fault;
}

}  // namespace computron

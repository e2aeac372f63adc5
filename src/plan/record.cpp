#include "computron/plan/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace computron {
namespace {

constexpr std::size_t kLongestFrame = std::size_t{1} << 30;

// The frames of a file, until it ends or one is torn.
class FrameReader {
 public:
  explicit FrameReader(const std::string& path) : path_(path), in_(path, std::ios::binary | std::ios::ate) {
    if (!in_) throw Error(ExitCode::kNoInput, fmt::format("cannot read the record {}", path));
    size_ = static_cast<std::size_t>(std::max<std::streamoff>(in_.tellg(), 0));
    in_.seekg(0);
    read_magic();
  }

  // The next payload; false: there is none, whole.
  bool next() {
    const std::size_t begin = at_;
    std::vector<std::byte> head(kFrameHeadBytes);
    if (!read(head)) return false;
    ByteReader reader(head);
    const auto length = reader.get<std::uint32_t>(), check = reader.get<std::uint32_t>();
    if (length == 0 || length > kLongestFrame || length > size_ - at_) return end_at(begin);
    payload_.resize(length);
    if (!read(payload_) || check_value(payload_) != check) return end_at(begin);
    whole_ = at_;
    return true;
  }
  // Decodes it; nonsense is told with its place.
  template <class Decode>
  auto decode(const Decode& decode) const try {
    return decode(payload_);
  } catch (const Error& error) {
    throw Error(ExitCode::kData, fmt::format("{}: the frame that ends at byte {}: {}", path_, at_, error.what()));
  }
  std::uint32_t version() const { return version_; }
  std::size_t lost_bytes() const { return size_ - whole_; }
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ExitCode::kData, fmt::format("{} {}", path_, why));
  }

 private:
  void read_magic() {
    std::vector<std::byte> head(kRecordMagic.size() + sizeof kRecordVersion);
    if (!read(head) ||
        !std::ranges::equal(std::span(head).first(kRecordMagic.size()), std::as_bytes(std::span(kRecordMagic)))) {
      fail("is not a record of a job (serve --record)");
    }
    ByteReader reader(std::span<const std::byte>(head).subspan(kRecordMagic.size()));
    version_ = reader.get<std::uint32_t>();
    if (version_ < 1 || version_ > kRecordVersion) {
      fail(fmt::format("is a record of version {}, and this program reads up to {}", version_, kRecordVersion));
    }
    whole_ = at_;
  }
  bool read(std::vector<std::byte>& bytes) {
    if (bytes.size() > size_ - at_) return false;
    in_.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!in_) throw Error(ExitCode::kIo, fmt::format("cannot read the record {}", path_));
    at_ += bytes.size();
    return true;
  }
  bool end_at(std::size_t begin) {
    at_ = size_;
    whole_ = begin;
    return false;
  }

  std::string path_;
  std::ifstream in_;
  std::vector<std::byte> payload_;
  std::uint32_t version_ = 0;
  std::size_t size_ = 0, at_ = 0, whole_ = 0;
};

// Puts events in their places, each of which must make sense behind those before.
class Collector {
 public:
  explicit Collector(Record& record) : record_(record), sent_(record.header.groups.size()) {
    record_.steps.resize(sent_.size());
  }

  void operator()(RecordedRequest& request) {
    ensure(request.model < record_.header.models.size(), "a request for a model that is not there");
    ++record_.requests;
    record_.inputs.emplace_back(std::move(request));
  }
  void operator()(RecordedInputEnd& end) { record_.inputs.emplace_back(end); }
  void operator()(RecordedStep& step) {
    const RecordHeader::Group& group = group_of(step.group);
    ensure(step.model < group.models.size() && std::cmp_equal(step.stages.size(), group.pp), "step out of range");
    for (std::size_t stage = 0; stage < step.stages.size(); ++stage) check(step.stages[stage], group, stage);
    std::vector<Record::Step>& steps = sent_[step.group];
    const std::size_t before = reported_of(step.group);
    steps.push_back({std::move(step), {}, before});
  }
  void operator()(RecordedReport& report) {
    const RecordHeader::Group& group = group_of(report.group);
    const std::size_t number = reported_of(report.group);
    ensure(number < sent_[report.group].size() && sent_[report.group][number].sent.id == report.step &&
               std::cmp_equal(report.stages.size(), group.pp),
           "a report of no step");
    Record::Step& step = sent_[report.group][number];
    const std::size_t of_group = report.group;
    step.report = std::move(report);
    record_.steps[of_group].push_back(std::move(step));
  }
  void operator()(RecordedCompletion& completion) {
    group_of(completion.group);
    record_.completions.push_back(completion);
  }
  void operator()(RecordEnd& end) { record_.end = end; }

  void finish() {
    for (std::size_t group = 0; group < sent_.size(); ++group) {
      record_.unreported += sent_[group].size() - reported_of(group);
    }
  }

 private:
  std::size_t reported_of(std::size_t group) const { return record_.steps[group].size(); }
  const RecordHeader::Group& group_of(std::size_t group) const {
    ensure(group < sent_.size(), "a group that is not there");
    return record_.header.groups[group];
  }
  void check(const StagePlan& plan, const RecordHeader::Group& group, std::size_t stage) const {
    for (const Fetch& fetch : plan.fetches) {
      ensure(fetch.model < group.models.size() &&
                 fetch.page < record_.header.layouts[group.models[fetch.model].layouts[stage]].used_bytes.size(),
             "a fetch of a page that is not there");
    }
    for (const CacheChange& change : plan.caches) ensure(change.model < group.models.size(), "a cache of no model");
  }

  Record& record_;
  std::vector<std::vector<Record::Step>> sent_;  // [group]
};

}  // namespace

double Record::wall_s() const {
  double wall_s = 0;
  for (const auto& of_group : steps) {
    if (!of_group.empty()) wall_s = std::max(wall_s, of_group.back().report.reported_s);
  }
  return wall_s;
}

std::string Record::why_cut() const {
  if (!end)
    return fmt::format("the job went down while it was written ({} bytes at its end are no whole event)", lost_bytes);
  switch (end->why) {
    case RecordEnd::kAllDone:
      return {};
    case RecordEnd::kStopped:
      return "the job was stopped";
    case RecordEnd::kLimit:
      return fmt::format("it reached its limit at {:.3f} s", end->time_s);
    case RecordEnd::kTooSlow:
      return fmt::format("the disk did not keep up at {:.3f} s", end->time_s);
  }
  return {};
}

Record read_record(const std::string& path) {
  FrameReader frames(path);
  Record record;
  if (!frames.next()) frames.fail("ends before its first frame is whole");
  record.header = frames.decode([&](const auto& payload) { return decode_header(payload, frames.version()); });
  Collector collector(record);
  while (!record.end && frames.next()) {
    frames.decode([&](std::span<const std::byte> payload) {
      RecordedEvent event = decode_event(payload);
      std::visit(collector, event);
    });
  }
  collector.finish();
  record.lost_bytes = frames.lost_bytes();
  return record;
}

}  // namespace computron

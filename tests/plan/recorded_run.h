// A job in virtual time, with the record that rank 0 would have left of it.
#pragma once

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "computron/plan/replay.h"
#include "tests/plan/virtual_groups.h"

namespace computron::test {

inline std::string framed(const std::vector<std::byte>& payload) {
  std::string text;
  for (const std::vector<std::byte>& part : {frame_head(payload), payload}) {
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return text;
}

inline std::string record_head(std::uint32_t version = kRecordVersion) {
  return std::string(kRecordMagic) + std::string(reinterpret_cast<const char*>(&version), sizeof version);
}

// A file of its own for as long as it lives.
class RecordFile {
 public:
  RecordFile() : path_(testing::TempDir() + "record_" + std::to_string(getpid())) {}
  ~RecordFile() { std::remove(path_.c_str()); }
  const std::string& write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return path_;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What it did, and what was recorded of it: whole frames in order.
struct RecordedRun {
  VirtualRun run;
  std::vector<std::size_t> moved_bytes;  // [group], of a stage
  RecordHeader header;
  std::vector<RecordedEvent> events;

  std::string bytes() const {
    std::string text = record_head() + framed(encode(header));
    for (const RecordedEvent& event : events) text += framed(encode(event));
    return text;
  }
  Record record() const {
    const RecordFile file;
    return read_record(file.write(bytes()));
  }
};

inline RecordHeader header_of(const VirtualGroups& job, VirtualGroupSet& set) {
  RecordHeader header{.program = "1", .host = "here", .started = "now", .policy = job.policy, .max_wait_s = 30};
  int first_rank = 0;
  for (std::size_t m = 0; m < job.pages.size(); ++m) header.models.push_back("model-" + std::to_string(m));
  for (std::size_t g = 0; g < job.groups.size(); ++g) {
    RecordHeader::Group& group = header.groups.emplace_back();
    group.pp = job.groups[g].stages;
    group.first_rank = first_rank;
    group.options = set.scheduler(g).options();
    first_rank += group.pp;
    for (ModelId local = 0; local < job.groups[g].models.size(); ++local) {
      RecordHeader::Model& model = group.models.emplace_back();
      model.job_model = job.groups[g].models[local];
      for (int stage = 0; stage < group.pp; ++stage) {
        model.layouts.push_back(static_cast<std::uint32_t>(header.layouts.size()));
        header.layouts.push_back(set.scheduler(g).layout(local, static_cast<std::size_t>(stage)));
      }
    }
  }
  return header;
}

// Events at one time: the input, reports, what ended with them, decisions.
inline RecordedRun recorded_run(const VirtualGroups& job) {
  VirtualGroupSet set(job);
  RecordedRun result;
  result.header = header_of(job, set);
  std::map<std::pair<double, int>, std::vector<RecordedEvent>> events;
  Dispatcher dispatcher(set.groups(), job.pages.size());
  for (const Request& request : job.requests) {
    events[{0, 0}].push_back(recorded(request, 0, /*deferred=*/false, /*with_prefix=*/false, 0));
    dispatcher.submit(request);
  }
  dispatcher.close_input();
  events[{0, 0}].push_back(RecordedInputEnd{.time_s = 0, .closed = true});
  std::vector<double> exposed_s(job.groups.size(), 0.0);
  const std::vector<VirtualMesh*> meshes = set.meshes();
  result.run = run_virtually(dispatcher, meshes, [&](const VirtualRun::SentStep& sent) {
    const auto group = static_cast<std::uint32_t>(sent.group);
    events[{sent.sent_s, 3}].push_back(recorded(group, sent.planned, sent.sent_s));
    RecordedReport report{.reported_s = sent.execution.reported_s, .group = group, .step = sent.planned.step.id};
    exposed_s[group] += sent.execution.exposed_s;
    for (const StageTimes& times : sent.execution.times) report.stages.push_back({times, exposed_s[group]});
    events[{sent.execution.reported_s, 1}].push_back(report);
  });
  for (const Completion& completion : result.run.completions) {
    events[{completion.finished_s, 2}].push_back(recorded(completion));
  }
  events[{result.run.end_s, 4}].push_back(RecordEnd{.time_s = result.run.end_s, .why = RecordEnd::kAllDone});
  for (auto& [when, here] : events) std::ranges::move(here, std::back_inserter(result.events));
  for (const VirtualMesh* mesh : meshes) result.moved_bytes.push_back(mesh->bytes(0));
  return result;
}

}  // namespace computron::test

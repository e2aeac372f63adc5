// How a running job stands: for people the block that SIGUSR2 prints and `--status FILE` holds, for programs the JSON
// object that `--progress FILE` holds. Both files stay when the job ends, with its end in them: nobody removes them,
// and of a job that went down the last one is there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "computron/serve/queue_history.h"

namespace computron {

struct ModelStatus {
  std::string id;
  QueueDepth queue;
  std::uint64_t done = 0;
  double resident = 0;  // share of its pages that are in the pools, as planned
};

// A group of ranks.
struct GroupStatus {
  std::string running = {};  // model; empty: none
  bool swapping = false;
  std::size_t open = 0;  // requests that it was given and that are not done
};

// What has been done since the start.
struct JobCounts {
  double time_s = 0;
  std::uint64_t done = 0;  // requests
  std::uint64_t tokens = 0;
  std::uint64_t steps = 0;
  std::uint64_t swaps = 0;
  std::uint64_t swap_bytes = 0;
};

struct JobStatus {
  JobCounts counts = {};
  JobCounts before = {};  // some seconds ago: rates are since then
  std::uint64_t total = 0;
  bool total_known = false;
  std::uint64_t failed = 0;
  std::uint64_t known_before = 0;  // lines that earlier attempts have read
  std::uint64_t done_before = 0;   // lines that had their results when the job began: in no other count
  std::string end = {};            // "finished", "stopped"; empty: it goes on
  std::vector<ModelStatus> models = {};
  std::vector<GroupStatus> groups = {};  // with a line each where there are several
};

// Lines, the last with its end. Models that nothing is known of but that they are there are counted only.
std::string status_block(const JobStatus& status);

// One line: `total` (lines read so far, by earlier attempts or this one; all of them once `predicted_end` is known) and
// `done` of them, both with `done_before`; `failed` since the start, `tokens_per_s` lately, `predicted_end` and
// `updated` as ISO 8601 has it; `predicted_end` is null while nobody can say. `unix_s`: seconds since 1970, now.
std::string progress_json(const JobStatus& status, double unix_s);

// Seconds until all requests are done if the others take as long as those that are; absent when that is unknown.
std::optional<double> time_left_s(double elapsed_s, std::uint64_t done, std::uint64_t total, bool total_known);

// Prints and writes from a thread of its own, so that no slow terminal or file system holds up its caller.
class StatusWriter {
 public:
  // The files of --status and --progress, which each status replaces as a whole (FILE.partial and rename); empty: none.
  explicit StatusWriter(std::string status_file, std::string progress_file = {});
  ~StatusWriter();  // what has been given is written first
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  bool has_file() const { return !status_file_.path.empty() || !progress_file_.path.empty(); }
  // Takes the place of what has not been written yet. `print`: on standard error, too. Never waits for the writing.
  void put(JobStatus status, bool print);

 private:
  // Of the thread.
  struct File {
    const std::string path = {};
    bool warned = false;
  };
  void run(const std::stop_token& stop);
  static void replace(File& file, const std::string& text);

  File status_file_, progress_file_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::optional<JobStatus> status_;
  bool print_ = false;
  std::jthread thread_;
};

}  // namespace computron

// What people and programs see of a job while it serves batches: the progress line, how the job stands (live_view.h),
// and, afterwards, how many requests waited and ran. Of all batches of the job, which have one dispatcher.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "computron/requests/request_reader.h"
#include "computron/serve/front_end.h"
#include "computron/serve/live_view.h"
#include "computron/serve/metrics.h"

namespace computron {

struct ViewOptions {
  bool progress_line = true;
  std::string status_file = {};    // with how the job stands, each second; empty: none
  std::string progress_file = {};  // the same for programs
  std::uint64_t done_before = 0;   // lines of further inputs, of which every one had its result before the job began
};

// What a batch counts of itself.
struct BatchCounts {
  RequestReader* reader = nullptr;      // of its lines; borrowed
  std::uint64_t known_before = 0;       // lines that earlier attempts have read, as far as the journal says
  std::uint64_t done_before = 0;        // those of them that had their results when the job began
  std::uint64_t generated_tokens = 0;   // of finished requests
  std::vector<QueueDepth> queues = {};  // [model]; deferred lines wait, too
};

class BatchView {
 public:
  // Of the job's batches, one at least. Borrows what they point at and `metrics`. `models`: their ids by ModelId.
  // `start_s`: now_s() at the start of the job's clock, of which every `now` is.
  BatchView(std::vector<const BatchCounts*> batches, Metrics& metrics, std::vector<std::string> models, double start_s,
            const ViewOptions& options);

  // As FrontEnd's.
  void step_done(const std::vector<Report>& reports);
  void show(const Activity& activity, double now);
  // For the last time, that the job has ended: "finished" or "stopped".
  void end(const char* how, double now);

 private:
  void update_status(const Activity& activity, double now);
  ProgressLine::State progress(const Activity& activity) const;
  JobStatus status(const Activity& activity, double now) const;
  JobCounts counts(double now) const;
  std::vector<QueueDepth> queues() const;
  std::string running_models(const Activity& activity) const;

  std::vector<const BatchCounts*> batches_;
  Metrics& metrics_;
  std::vector<std::string> models_;  // ids
  double start_s_;
  std::uint64_t known_before_, done_before_;  // lines; of all inputs
  ProgressLine progress_line_;
  StatusWriter status_writer_;
  std::uint64_t sampled_tokens_ = 0;
  std::deque<JobCounts> past_;              // of the last seconds, one each
  int status_requests_ = 0;                 // that have been seen
  double status_s_ = -1;                    // when the last of them was answered
  const Dispatcher* dispatcher_ = nullptr;  // of the last activity
};

}  // namespace computron

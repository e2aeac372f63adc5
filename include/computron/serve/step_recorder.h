// Keeps a job's record (dispatch/job_record.h) while it serves: what was submitted, the steps as they are sent, the
// times that ranks report, the ends of requests. On rank 0, by the thread that owns MPI, which never waits for the
// disk: bytes go to a thread of the file's own. Whatever becomes of the record, results do not depend on it: behind its
// limit, or where the disk fails or does not keep up, nothing more is recorded, which the log and summary() say.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "computron/dispatch/job_record.h"
#include "computron/runtime/report.h"
#include "computron/serve/job.h"
#include "computron/storage/background_file.h"

namespace computron {

struct RecorderOptions {
  std::string file;
  std::size_t limit_bytes = std::size_t{1} << 30;
  // Of bytes that wait for the disk.
  std::size_t most_waiting_bytes = std::size_t{64} << 20;
};

// What decides in the job. `program` and `started` (ISO 8601) say where the record comes from.
RecordHeader record_header(const Job& job, const Dispatcher& dispatcher, std::string program, std::string started);

class StepRecorder {
 public:
  // Replaces the file. Error{kPermission} or {kCannotCreate} naming it. Borrows `calls`.
  explicit StepRecorder(const RecorderOptions& options, SystemCalls& calls = system_calls());

  // Before all that follows, once.
  void begin(const RecordHeader& header);
  // Times in seconds of the job's clock.
  void submitted(const Request& request, bool deferred, double now);
  void input_ended(bool closed, bool deferred, double now);
  void sent(std::size_t group, const PlannedStep& planned, double now);
  // `times` by stage, `reports` by rank of the group, of `tp` ranks a stage.
  void reported(std::size_t group, StepId step, std::span<const StageTimes> times, std::span<const Report> reports,
                int tp, double now);
  void ended(const Completion& completion);
  // Writes the rest. Nothing is recorded any more.
  void finish(bool all_done, double now);

  // Once it is finished: nothing that was to be recorded is missing.
  bool is_whole() const { return why_ <= RecordEnd::kStopped && file_.fault().empty(); }
  // What the file holds and what time it took, in a line for people; why it ends early, if it does.
  std::string summary() const;

 private:
  template <class MakeEvent>
  void put(double now, const MakeEvent& make_event);
  bool put_frame(std::span<const std::byte> payload);
  void give_up(RecordEnd::Why why);

  RecorderOptions options_;
  BackgroundFile file_;
  std::uint64_t salt_;
  bool with_prefix_ = false;
  bool gave_up_ = false;  // or has finished
  RecordEnd::Why why_ = RecordEnd::kAllDone;
  double now_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t steps_ = 0, requests_ = 0;
  double taken_s_ = 0;  // of the calling thread, by all of this
};

}  // namespace computron

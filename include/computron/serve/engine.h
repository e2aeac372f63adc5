// The progress loop of a rank.
//
// Tasks of rank 0, in one thread, and what orders them:
//
//   input     reader → scheduler; lines that are not requests → writer
//   dispatch  scheduler → step → every rank; receives for its reports are posted first; its fetches start
//   execute   the oldest dispatched step, in order; the progress hook runs inside it, between panels and in every wait
//   reports   done records of all ranks agree → scheduler → completions → writer
//
// Up to `steps_in_flight` steps are between dispatch and reports, so fetches and other stages go on while this rank
// computes. The other ranks only take steps, execute and report. No MPI call blocks: everything is tested and polled.
// The reader, the writer and the copy stream have threads of their own and exchange plain queues with this one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "computron/runtime/step_exchange.h"
#include "computron/sched/scheduler.h"
#include "computron/serve/job.h"
#include "computron/serve/metrics.h"
#include "computron/serve/request_reader.h"
#include "computron/serve/result_writer.h"

namespace computron {

// The loop of every rank but 0: returns when rank 0 says that the job is over.
void run_worker(Job& job);

struct EngineOptions {
  bool replay = false;  // honour arrival times
  bool show_progress = true;
  double start_s = 0;  // now_s() at the start of the job's clock
};

// The loop of rank 0. Borrows everything.
class Engine {
 public:
  Engine(Job& job, Scheduler& scheduler, RequestReader& reader, ResultWriter& writer, Metrics& metrics,
         const EngineOptions& options);

  // Serves until the input has ended and every request has its result, then ends the other ranks' loops.
  void run();

 private:
  struct InFlight {
    StepId id;
    ModelId model;
    double sent_s;
    bool swap;
  };

  void poll_network();
  bool take_input();
  bool take_reports();
  bool put_results();
  bool dispatch();
  void execute();
  void send(PlannedStep planned);
  void account(const Step& step, bool swap);
  void account(const InFlight& step, const std::vector<Report>& reports);
  void show_progress();
  ProgressLine::State progress();
  void shut_down();
  double now() const;

  Job& job_;
  Scheduler& scheduler_;
  RequestReader& reader_;
  ResultWriter& writer_;
  Metrics& metrics_;
  EngineOptions options_;

  StepSender sender_;
  ReportCollector collector_;
  std::deque<Step> todo_;                      // dispatched, not executed
  std::deque<InFlight> in_flight_;             // dispatched, not reported by all
  std::map<RequestId, IncomingRequest> open_;  // by line, until their result is written
  bool all_done_ = false;

  ProgressLine progress_line_;
  std::uint64_t generated_tokens_ = 0;
  struct RankTimes {
    double busy_s = 0;  // latest cumulative figures of the rank
    double exposed_s = 0;
    std::uint64_t verified = 0;
    std::uint64_t refetched = 0;
    std::vector<double> busy_by_model, exposed_by_model;
  };
  std::vector<RankTimes> times_;                         // [rank]
  std::vector<std::vector<std::uint64_t>> shard_bytes_;  // [model][stage] fetched by each rank of the stage
};

}  // namespace computron

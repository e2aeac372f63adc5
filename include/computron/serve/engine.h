// The progress loop of a rank.
//
// Tasks of rank 0, in one thread, and what orders them:
//
//   input     front end → scheduler
//   reports   done records of all ranks agree → scheduler
//   dispatch  scheduler → step → every rank; receives for its reports are posted first; its fetches start
//   results   completions → front end
//   execute   the oldest dispatched step, in order
//   stall     no step is in hand, there is work, and nobody outside the job is waited for → the watchdog is told
//
// The progress hook runs inside execute, between panels and in every wait: it takes reports and dispatches, so that
// fetches and other stages go on while this rank computes. How many steps are between dispatch and reports is the
// scheduler's affair. It is asked again only when something has happened (input, a report) or the time it named has
// come, and never from within itself. The other ranks only take steps, execute and report. No MPI call blocks:
// everything is tested and polled. The copy stream, and a front end's reader and writer, have threads of their own and
// exchange plain queues with this one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "computron/runtime/step_exchange.h"
#include "computron/runtime/stop_exchange.h"
#include "computron/serve/front_end.h"
#include "computron/serve/job.h"
#include "computron/serve/metrics.h"

namespace computron {

// The loop of every rank but 0: returns when rank 0 says that the job is over. False: it stops early.
bool run_worker(Job& job, const JobHeartbeat& heartbeat = {});

// How long steps on their way may go on when the job is asked to stop, in seconds.
struct Drain {
  double asked_s = 0.5;  // mpirun leaves two seconds
  double warned_s = 60;  // by SIGUSR1, which comes long before the end
};

// The loop of rank 0.
class Engine {
 public:
  // Borrows the first four. Steps and swaps are counted in `metrics`. `start_s`: now_s() at the start of the job's
  // clock, which the scheduler and the front end see.
  Engine(Job& job, Scheduler& scheduler, FrontEnd& front_end, Metrics& metrics, double start_s, const Drain& drain = {},
         const JobHeartbeat& heartbeat = {});

  // Serves until the input has ended and every request has its result, then ends the other ranks' loops. False: some
  // rank was asked to stop (base/stop.h). No step is sent any more then, those on their way are finished if they are
  // predicted to end within the drain, and what is complete is kept. Where they are not, or do not, or a second signal
  // comes, what is complete is kept and the whole job ended with ExitCode::kStopped: then this does not return. That is
  // in order if every rank is still there; one that is not may be why somebody ends the job, and the requests that ran
  // are suspected.
  bool run();

 private:
  struct InFlight {
    StepId id;
    ModelId model;
    double sent_s;
    double predicted_s;  // from then
    bool swap, pass;
  };

  struct Todo {
    Step step;
    Ticket begun;  // of the front end
  };

  // A copy over a rank's link.
  struct Copy {
    std::optional<ModelId> fetched;  // none: a cache moved
    std::size_t bytes = 0;
  };
  struct RankTimes {
    double busy_s = 0;  // latest cumulative counts of the rank
    double exposed_s = 0;
    std::uint64_t verified = 0;
    std::uint64_t refetched = 0;
    std::size_t link_bytes = 0;
    std::deque<Copy> copies;  // sent and not reported as copied
    std::vector<double> busy_by_model, exposed_by_model;
  };

  bool poll();
  void look_for_stop();
  void begin_to_stop();
  [[noreturn]] void leave(bool in_order);
  bool take_input();
  bool take_reports();
  bool put_results();
  bool dispatch();
  void expect_oldest();
  bool execute();
  void look_for_stall();
  bool owes_a_step() const;
  std::string what_it_waits_for() const;
  void send(PlannedStep planned);
  void account(const PlannedStep& planned);
  std::vector<StageTimes> stage_times(const std::vector<Report>& reports) const;
  void account(const InFlight& step, const std::vector<Report>& reports);
  void note_copies(int rank, const Step& step);
  void share_out_busy_time(RankTimes& times, const Report& report);
  Activity activity() const;
  void shut_down(Step::Kind kind);
  double now() const;

  Job& job_;
  Scheduler& scheduler_;
  FrontEnd& front_end_;
  Metrics& metrics_;
  double start_s_;

  StepSender sender_;
  ReportCollector collector_;
  std::deque<Todo> todo_;           // dispatched, not executed
  std::deque<InFlight> in_flight_;  // dispatched, not reported by all
  double ask_at_s_ = 0;             // when the scheduler is to be asked again
  bool all_done_ = false;
  bool stalls_ = false;   // a step is due, and the watchdog knows
  double say_why_s_ = 0;  // when it is told again why there is none

  JobHeartbeat heartbeat_;
  StopListener stops_;
  Drain drain_;
  bool stopping_ = false;
  bool too_late_ = false;  // steps on their way are not predicted to end in time
  double leave_at_s_ = 0;  // when it stops

  std::vector<RankTimes> times_;                         // [rank]
  std::vector<std::vector<std::uint64_t>> shard_bytes_;  // [model][stage] fetched by each rank of the stage
};

}  // namespace computron

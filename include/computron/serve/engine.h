// The progress loop of a rank.
//
// Tasks of rank 0, in one thread, and what orders them:
//
//   input     front end → scheduler
//   reports   done records of all ranks agree → scheduler
//   dispatch  scheduler → step → every rank of its group; receives for its reports are posted first; its fetches start
//   results   completions → front end
//   execute   the oldest dispatched step, in order
//   stall     a group has work and no step, and nobody outside the job is waited for → the watchdog is told
//
// The progress hook runs inside execute, between panels and in every wait: it takes reports and dispatches, so that
// fetches and other stages go on while this rank computes. How many steps are between dispatch and reports is the
// scheduler's affair. It is asked again only when something has happened (input, a report) or the time it named has
// come, and never from within itself. Each group has a scheduler; the dispatcher says which is to be asked, in turn,
// and so are the groups' reports looked for: after a while rank 0 goes back to its own work, and the next poll goes on
// where this one has left off. The other ranks only take steps, execute and report. No MPI call
// blocks: everything is tested and polled. The copy stream, and a front end's reader and writer, have threads of their
// own and exchange plain queues with this one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "computron/dispatch/dispatcher.h"
#include "computron/runtime/stop_exchange.h"
#include "computron/serve/front_end.h"
#include "computron/serve/group_engine.h"
#include "computron/serve/job.h"
#include "computron/serve/metrics.h"
#include "computron/serve/step_recorder.h"

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
  // clock, which the schedulers and the front end see. Borrows `recorder`, which has begun, or null: steps and their
  // reports go there.
  Engine(Job& job, Dispatcher& dispatcher, FrontEnd& front_end, Metrics& metrics, double start_s,
         const Drain& drain = {}, const JobHeartbeat& heartbeat = {}, StepRecorder* recorder = nullptr);

  // Serves until the input has ended and every request has its result, then ends the other ranks' loops. False: some
  // rank was asked to stop (base/stop.h). No step is sent any more then, those on their way are finished if they are
  // predicted to end within the drain, and what is complete is kept. Where they are not, or do not, or a second signal
  // comes, what is complete is kept and the whole job ended with ExitCode::kStopped: then this does not return. That is
  // in order if every rank is still there; one that is not may be why somebody ends the job, and the requests that ran
  // are suspected.
  bool run();

 private:
  // A step of rank 0's own group, dispatched and not executed here.
  struct Todo {
    Step step;
    Ticket begun;  // of the front end
  };

  bool poll();
  void look_for_stop();
  void begin_to_stop();
  [[noreturn]] void leave(bool in_order);
  bool take_input();
  bool take_reports();
  bool take_reports(GroupEngine& group);
  void show();
  bool put_results();
  bool dispatch();
  void dispatch(GroupEngine& group, PlannedStep planned);
  bool send_held();
  void expect_oldest(const GroupEngine& group);
  bool execute();
  void look_for_stall();
  void look_for_stall(const GroupEngine& group);
  bool owes_a_step(const GroupEngine& group) const;
  bool any_in_flight() const;
  const Scheduler& scheduler_of(const GroupEngine& group) const {
    return dispatcher_.scheduler(static_cast<std::size_t>(group.index()));
  }
  std::string what_it_waits_for(const GroupEngine& group) const;
  Activity activity();
  void shut_down(Step::Kind kind);
  double now() const;

  Job& job_;
  Dispatcher& dispatcher_;
  FrontEnd& front_end_;
  double start_s_;
  StepRecorder* recorder_;

  std::deque<GroupEngine> groups_;       // [group]
  std::size_t next_group_ = 0;           // whose reports are looked for first
  std::deque<Todo> todo_;                // of group 0
  std::vector<GroupActivity> activity_;  // [group]
  std::vector<bool> stalls_;             // [group] it is owed a step, and the watchdog knows
  double look_for_stall_s_ = 0;          // when the groups are looked at again
  double show_s_ = 0;                    // when the front end is shown them again

  JobHeartbeat heartbeat_;
  StopListener stops_;
  Drain drain_;
  bool stopping_ = false;
  bool too_late_ = false;  // steps on their way are not predicted to end in time
  double leave_at_s_ = 0;  // when it stops
};

}  // namespace computron

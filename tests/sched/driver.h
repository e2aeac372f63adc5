// Drives a Scheduler under virtual time as an engine with faithful ranks would, and holds every step against the rules.
//
//   submit() → Scheduler → step → a Replica a stage, fed only what travels → fake rows → completed() → completions
//
// Steps pass the stages as a pipeline does: a stage takes 1 ms, 0.1 ms a row and 0.5 ms a fetch. Checked for each step,
// whatever the policy:
//   its number; its size against max_batch_tokens, max_seqs and steps_in_flight; no sequence in two steps in flight;
//   chunks that continue their sequences, an encoder's whole; each stage's digest against what the scheduler expects of
//   it; every page of the model there when its use comes; no fetch into a frame that an unfinished step may still read;
//   riders of the step's family, all of whose pages are there before the pass and until its end;
//   cache frames for every block in use, which hold what was written to them or brought back; no block in two open
//   sequences, unless it is full and both begin with its tokens; no running sequence without a chunk for more than so
//   many passes of its model, or, where requests are of several priorities, no request that is its model's oldest
//   without a token for more than max_wait_s in which more urgent ones were open, and as many passes as those that go
//   before it may take; pinned models stay; no waiting for nothing.
// Requests may be held back until others are done: nobody then waits for those.
// And at the end: every request has exactly one completion, the one it deserves. Where late ones are dropped, that may
// be deadline_exceeded: of a request that was in no step, behind its deadline.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sched/fake_model.h"

namespace computron::test {

// A rule was broken.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool condition, const std::string& rule);

// One stage's ranks: carry out what reaches them, as Residency does, and refuse what would go wrong there.
class Replica {
 public:
  Replica(const FakeModelList& model_list, int stage, int frames, int adapter_slots);

  // `completed`: the last step whose done records rank 0 had when it decided this one.
  void execute(const Step& step, StepId completed);
  const StageState& state() const { return state_; }

 private:
  void begin(const Step& step, StepId completed);
  void place_until(ReleasePoint point, StepId completed);
  void run_pass(const Step& step, StepId completed);
  void expect_cache_covers(const Step& step) const;

  const FakeModelList& model_list_;
  int stage_;
  StageState state_;
  std::deque<Fetch> refills_;           // of the step, not in the state yet
  std::vector<ReleasePoint> last_use_;  // [frame or slot]
};

struct ExecutedStep {
  Step step;
  std::vector<ModelId> swaps = {};
  double planned_s = 0, finished_s = 0;
  std::size_t waiting_before = 0, waiting_after = 0;  // Scheduler::waiting() around the decision
  std::size_t in_flight = 0;                          // passes, this one included
  StepId completed = 0;                               // the last step reported before the decision
};

struct SubmittedRequest {
  Request request;
  double at_s = 0;  // when it was handed over: before or after its arrival
};

class Driver {
 public:
  // Borrows the model list.
  static constexpr double kMaxWait_s = 0.2;
  Driver(const FakeModelList& model_list, const SchedulerOptions& options, std::string_view policy = "fifo");

  // To be handed over at `at_s` of virtual time. After the last one the input is closed.
  void submit(Request request, double at_s = 0);
  // To be handed over when the input has ended and all that were handed over before are done, one at a time; the input
  // is closed after the last.
  void hold_back(Request request) { held_back_.push_back(std::move(request)); }
  // From now on completed() is given times, with copies that are late now and then.
  void report_times() { reports_times_ = true; }
  // Until the scheduler is done. Returns the rule that was broken, or ""; that there are more than `most` steps is one.
  std::string run(std::size_t most = 50000);

  const FakeModelList& model_list() const { return model_list_; }
  const SchedulerOptions& options() const { return options_; }
  const std::vector<SubmittedRequest>& submitted() const { return submitted_; }
  const std::vector<ExecutedStep>& steps() const { return steps_; }
  // Throws std::out_of_range when the request has none.
  const Completion& completion(RequestId id) const { return completions_.at(id); }
  // Requests in the order in which they completed.
  const std::vector<RequestId>& finished() const { return finished_; }
  const StageState& stage(int stage) const { return replicas_[stage].state(); }
  std::size_t preemptions() const {
    std::size_t count = 0;
    for (ModelId m = 0; m < model_list_.shapes().size(); ++m) count += scheduler_.cache_use(m).preemptions;
    return count;
  }

 private:
  struct RunningSequence {
    ModelId model = 0;
    std::optional<RequestId> request = {};       // once the token that tells it has been seen
    std::uint64_t prefix = 0, block_before = 0;  // of all tokens, and of those before the block it writes
    bool poisoned = false;
    std::uint32_t length = 0;
    std::vector<std::uint32_t> blocks;
    bool in_flight = false;
    int passes_without = 0;  // of its model since its last chunk, while it could have had one
  };
  // What a full block of cache holds.
  struct Content {
    std::uint64_t before = 0, after = 0;  // prefixes
    bool poisoned = false;
    std::optional<RequestId> request = {};
  };
  struct InFlight {
    StepId id;
    std::vector<SequenceId> members;
    std::vector<SampledRow> rows;
    std::vector<std::vector<float>> values;
    bool pass;
    double finish_s;
    std::vector<StageTimes> times;
  };

  void hand_over();
  void hand_over_held_back();
  bool decide();  // all steps that can be planned now; true when all is done
  std::size_t passes_in_flight() const;
  bool has_work() const;
  void take(PlannedStep planned, std::size_t waiting_before);
  void check_size(const Step& step) const;
  void check_riders(const Step& step) const;
  void close_sequences(const Step& step);
  std::vector<SampledRow> extend_sequence(const Step& step, const SequenceChunk& chunk);
  void begin_behind(const SequenceChunk& chunk, RunningSequence& sequence) const;
  void write(TokenId token, RunningSequence& sequence);
  void check_blocks(ModelId model) const;
  void check_released_caches(const Step& step);
  int blocks_in_use(ModelId model) const;
  void check_nobody_starves(const Step& step);
  void check_oldest_get_on(const Step& step);
  void check_pinned() const;
  void execute(const PlannedStep& planned);
  double pass_stages(const Step& step);
  std::vector<StageTimes> times_of(const Step& step);
  void complete_steps();
  void take_completions();
  double next_event() const;
  void check_completions() const;
  bool may_be_dropped(const Request& request, const Completion& found) const;
  Completion deserved(const Request& request) const;

  const FakeModelList& model_list_;
  SchedulerOptions options_;
  bool plans_ahead_;
  Scheduler scheduler_;
  std::vector<Replica> replicas_;            // [stage]
  std::vector<double> stage_free_s_;         // [stage]
  std::vector<SubmittedRequest> submitted_;  // by at_s once running
  std::vector<std::size_t> given_to_link_;   // [stage] bytes of all steps so far
  bool reports_times_ = false;
  std::size_t handed_over_ = 0;
  std::deque<Request> held_back_;
  double now_s_ = 0;
  double wait_until_s_ = 0;

  std::map<SequenceId, RunningSequence> running_;
  std::set<SequenceId> seen_;
  std::map<std::pair<ModelId, std::uint32_t>, Content> contents_;  // of full blocks
  std::deque<InFlight> in_flight_;
  StepId completed_ = 0;
  std::vector<ExecutedStep> steps_;
  std::set<RequestId> begun_;  // requests
  bool any_priority_ = false;  // of a request that was handed over
  struct Oldest {
    RequestId id = 0;
    double at_s = 0;         // of the latest pass
    bool passed_by = false;  // somebody more urgent was open then
    double passed_s = 0;     // all of such times since its last token, or since it is the oldest
  };
  std::map<ModelId, Oldest> oldest_;
  double longest_pass_s_ = 0;
  std::map<RequestId, Completion> completions_;
  std::vector<RequestId> finished_;
};

}  // namespace computron::test

// What rank 0 does for one group of ranks: sends its steps, collects its reports, and counts what they say.
//
//   planned ──> held, until it is noted which requests it begins ──> sent ──> in flight ──> reported by all
//
// The group of rank 0 itself holds no step: rank 0 computes its part only when the note is down, and may compute
// nothing of any other. Where rank 0 is not of the group, a step that begins requests, and those behind it, are sent
// when the note is down: should the job go down then, it is known whom to suspect.
//
// Models bear their numbers in the group here; in metrics, too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "computron/runtime/step_exchange.h"
#include "computron/sched/scheduler.h"
#include "computron/serve/copies_in_flight.h"
#include "computron/serve/front_end.h"
#include "computron/serve/metrics.h"

namespace computron {

class GroupEngine {
 public:
  // A step that was sent and that not all ranks have reported.
  struct InFlight {
    StepId id;
    ModelId model;
    double sent_s;       // of now_s()
    double predicted_s;  // from then
    bool swap, pass;
    std::vector<ModelId> riders;  // of the pass
  };
  // A step that all ranks have executed, with their reports [rank of the group].
  struct Done {
    InFlight step;
    std::vector<Report> reports;
  };

  // Is told of each step that is about to be sent.
  using StepWatch = std::function<void(const PlannedStep&)>;

  // Borrows `job`, the communicator of all ranks, the group's scheduler and the metrics. `names_group`: errors name the
  // group beside the rank. `watch` may be empty.
  GroupEngine(const Communicator& job, const RankGroup& group, bool names_group, const Scheduler& scheduler,
              Metrics& metrics, StepWatch watch = {});

  int index() const { return group_.index; }
  int tp() const { return group_.shape.tp; }
  bool has_rank_0() const { return group_.has(0); }

  // Sends the step to the group, at once or once `begun` is noted. Steps go in the order given. Returns what rank 0
  // itself is to run of it: the step where it is of the group.
  std::optional<Step> send(PlannedStep planned, Ticket begun);
  // Sends held steps of which `noted` says that they may go.
  bool send_held(const std::function<bool(Ticket)>& noted);
  // Forgets held steps: none is sent any more.
  void drop_held() { held_.clear(); }
  bool holds() const { return !held_.empty(); }

  // Moves messages along.
  void poll() { sender_.poll(); }
  // The oldest step in flight, when all ranks have reported it. Its times are counted.
  std::optional<Done> take_reports();
  // Rank 0's own.
  void put_own(Report report) { collector_.put_own(std::move(report)); }

  const std::deque<InFlight>& in_flight() const { return in_flight_; }
  // The slowest rank of each stage; the reports are those that were taken last.
  std::vector<StageTimes> stage_times(const std::vector<Report>& reports) const;
  // Tells every rank of the group, but not rank 0, that the job is over.
  void shut_down(Step::Kind kind);
  bool idle() const { return sender_.idle(); }
  StepMetrics& steps_of(ModelId model) { return metrics_.model(model, group_.index).steps; }

 private:
  struct Held {
    PlannedStep planned;
    Ticket begun;
  };
  struct RankTimes {
    double busy_s = 0;  // latest cumulative counts of the rank
    double exposed_s = 0;
    std::uint64_t verified = 0;
    std::uint64_t refetched = 0;
    CopiesInFlight copies;
    std::vector<double> busy_by_model, exposed_by_model;
  };

  ModelMetrics& metrics_of(ModelId model) { return metrics_.model(model, group_.index); }
  Step send_now(PlannedStep planned);
  void count_sent(const PlannedStep& planned);
  void count_reported(const InFlight& step, const std::vector<Report>& reports);
  void count_cache(ModelId model);
  void note_copies(int rank, const Step& step);
  void share_out_busy_time(RankTimes& times, const Report& report);

  const RankGroup group_;
  const Scheduler& scheduler_;
  Metrics& metrics_;
  StepWatch watch_;
  StepSender sender_;
  ReportCollector collector_;
  std::deque<Held> held_;
  std::deque<InFlight> in_flight_;
  std::vector<RankTimes> times_;  // [rank of the group]
  std::vector<std::vector<std::uint64_t>>
      shard_bytes_;  // [model][stage] fetched over its link by each rank of the stage
};

}  // namespace computron

// Ranks that exist in time only: how long a mesh of given links and processors takes for the steps it is sent.
//
//   link of a stage      copies in order, each once it has been sent and the use it waits for is over
//   compute of a stage   passes in order, each after the stage before; use by use, each once its page is resident
//
// So copies run beside compute, passes trail their own pages, and refills wait for uses, exactly as ranks do it; what
// is not modelled is noise, and copies and compute slowing each other. A pass of a model whose pages have all landed
// takes one sum instead of one for each use. A pass with riders (src/sched/README.md) begins when all of its caches are
// there, takes what its own model takes for so many rows, and waits for the riders' pages, too. Purely a function of
// the steps and their times, in virtual seconds. Error{kInternal} for steps that would stall a rank for ever.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "computron/runtime/shared_pages.h"
#include "computron/runtime/step.h"
#include "computron/sched/cost_model.h"
#include "computron/sched/scheduler.h"

namespace computron {

class VirtualMesh {
 public:
  // `costs` are what passes and transfers really take; `latency_s` from rank 0 to a rank and back to it, each way.
  // Borrows the layouts ([model][stage]).
  VirtualMesh(std::vector<std::vector<const ShardLayout*>> layouts, CostModel costs, double latency_s);
  VirtualMesh(const VirtualMesh&) = delete;  // its parts point to each other
  VirtualMesh& operator=(const VirtualMesh&) = delete;

  struct Execution {
    double begin_s = 0;     // of the first stage's compute
    double reported_s = 0;  // rank 0 has every report
    double exposed_s = 0;   // compute stalled for pages, slowest stage
    std::vector<StageTimes> times;
  };
  // A step sent at `now_s`; steps in order, times not decreasing.
  Execution execute(const Step& step, double now_s);

  // What a pass takes, by stage, where the costs are not to say it; empty for those of which they are.
  using PassTimes = std::function<std::vector<double>(const Step& step)>;
  void take_times_from(PassTimes pass_times) { pass_times_ = std::move(pass_times); }

  std::size_t stages() const { return stages_.size(); }
  double busy_s(std::size_t stage) const { return stages_[stage].busy_s; }
  // That its link has been given: of coded pages the coded ones.
  std::size_t bytes(std::size_t stage) const { return stages_[stage].bytes; }

 private:
  struct Transfer {
    ReleasePoint after;
    std::size_t bytes = 0;       // over the link
    double* landed_s = nullptr;  // where the time of its end goes
    PageRef page;                // of a page
    bool cache = false;          // of page.model, instead
  };
  // [use] The bytes of the pages of all uses up to and with this one: a pass's compute is shared out by them.
  using UsedBytes = std::vector<double>;  // in frames, where the pass reads them
  struct Pass {
    StepId step = 0;
    const UsedBytes* used = nullptr;
    bool unhindered = false;  // no use of it waits: then the next two say when each ends
    double begin_s = 0, compute_s = 0;
    std::vector<double> ends_s = {};  // else: of the uses so far
  };
  struct Stage {
    double link_free_s = 0, compute_free_s = 0;
    std::size_t bytes = 0;  // given to the link
    double busy_s = 0;
    std::deque<Transfer> queue;                         // given to the link, not timed yet
    std::deque<std::pair<double, std::size_t>> copied;  // (end, bytes given so far)
    std::vector<std::vector<double>> landed_s;          // [model][page]; of pages that are one, the first one's counts
    std::vector<double> all_landed_s;                   // [model] its latest copy that is not in the queue
    std::vector<double> cache_landed_s;                 // [model]
    std::vector<const UsedBytes*> used;                 // [model]
    std::optional<SharedPages> shared;
    std::deque<Pass> passes;  // the latest few
  };

  void enqueue(const Step& step, std::size_t stage);
  static double& landed_s(Stage& stage, PageRef page);
  std::vector<bool> awaits_copies(const Stage& stage) const;
  const UsedBytes* used_bytes(const ShardLayout& layout);
  double pass(const Step& step, std::size_t stage, double begin_s, double compute_s, Execution& execution);
  std::vector<std::pair<PageUse, PageRef>> pages_of_riders(const Step& step, std::size_t stage) const;
  double pass_by_use(const Step& step, std::size_t stage, Execution& execution);
  // The link gets on with its queue as far as it can be known.
  void drain(Stage& stage, std::size_t number, double sent_s);
  bool use_is_over(const Stage& stage, ReleasePoint point, double& when_s) const;
  StageTimes times_at(Stage& stage, double now_s, double compute_s);

  std::vector<std::vector<const ShardLayout*>> layouts_;
  std::map<const ShardLayout*, UsedBytes> used_;
  CostModel costs_;
  PassTimes pass_times_;
  double latency_s_;
  double reported_s_ = 0;
  std::vector<Stage> stages_;
};

}  // namespace computron

// Where requests come from and where completions go, as the progress loop of rank 0 sees it: a file of requests and a
// file of results (BatchFrontEnd), a benchmark.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "computron/dispatch/dispatcher.h"
#include "computron/runtime/report.h"
#include "computron/runtime/step.h"

namespace computron {

// What the ranks are at, for whoever shows it.
struct GroupActivity {
  std::optional<ModelId> running = {};  // by the job's number
  bool swapping = false;                // a step in flight is the first of a turn whose model missed pages
};
struct Activity {
  std::span<const GroupActivity> groups = {};
  const Dispatcher* dispatcher = nullptr;
  int status_requests = 0;  // grows when somebody wants to know how the job stands
};

// A note that the front end keeps of what is about to run; 0: none.
using Ticket = std::uint64_t;

// Called by the thread of the progress loop. Nothing here may block for long; times are seconds of the job's clock.
class FrontEnd {
 public:
  virtual ~FrontEnd() = default;

  // Submits requests that are there, notes the end of the input where it still holds some back, and closes it, once,
  // when none will follow. True when it did any of these: the scheduler is asked again then.
  virtual bool take_input(Dispatcher& dispatcher, double now) = 0;
  // Whether requests may still come from outside the job: whoever sends them may take any time.
  virtual bool input_open() const { return false; }
  // What it has not finished and what that waits for, for the report of a job that stalls.
  virtual std::string unfinished() const { return {}; }
  // Called between passes with at least one completion.
  virtual void put_results(std::vector<Completion> completions, double now) = 0;
  // A step has been planned, and will be sent: at once, or when what begins in it is noted.
  virtual void step_planned(const Step& /*step*/, double /*now*/) {}
  // All ranks of a group have executed a step; their done records by rank of the group. Also called from within a pass.
  virtual void step_done(const std::vector<Report>& /*reports*/, double /*now*/) {}
  // Called about every millisecond, from within a pass too: cheap when there is nothing to show.
  virtual void show(const Activity& /*activity*/, double /*now*/) {}
  // A step is about to be sent in which these requests begin. Rank 0 computes nothing of it before noted(): should it
  // go down then, it is known whom to suspect. The other ranks of its group need not wait: if one of them goes down,
  // rank 0 has the second or so that a launcher leaves it. Other groups are sent the step only then (GroupEngine).
  virtual Ticket begin(const std::vector<RequestId>& /*requests*/) { return 0; }
  virtual bool noted(Ticket /*ticket*/) { return true; }
  // Throws what went wrong outside this thread.
  virtual void check() {}
  // Every completion has been put; before the other ranks are told that the job is over.
  virtual void finish(double /*now*/) {}
  // The same where the job stops early. `in_order`: as somebody wanted it, not because something seems to hang.
  virtual void stop(bool /*in_order*/, double /*now*/) {}
};

}  // namespace computron

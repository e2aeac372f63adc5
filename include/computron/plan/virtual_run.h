// Schedulers driven in virtual time: what they would make of their requests on ranks of given speed.
//
//   Dispatcher (dispatch/dispatcher.h) ──step──> VirtualMesh of its group ──> reported at ──> Dispatcher, next event
//
// Events are ordered by time, equal ones by group, so a run is a function of its input, to the last bit.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "computron/dispatch/dispatcher.h"
#include "computron/plan/virtual_mesh.h"

namespace computron {

struct VirtualRun {
  // What a group's ranks did.
  struct Group {
    double end_s = 0;  // its last step was reported
    std::uint64_t steps = 0;
    std::uint64_t swaps = 0;
    double exposed_s = 0;                // compute stalled for pages
    std::vector<double> compute_s = {};  // [stage] of its passes
  };
  struct SentStep {
    double sent_s = 0;
    VirtualMesh::Execution execution;
    PlannedStep planned;  // with the group's numbers of models
    std::size_t group = 0;
  };

  double end_s = 0;
  std::vector<Completion> completions;  // in the order in which they ended
  std::vector<SentStep> steps;          // empty unless they were to be kept
  std::vector<Group> groups;
  std::uint64_t swaps = 0;
  std::uint64_t link_bytes = 0;  // that links of one rank of each stage were given
  double exposed_s = 0;
};

// What comes to the dispatcher while it runs.
class VirtualInput {
 public:
  virtual ~VirtualInput() = default;
  // When feed() has something to do, unless a report makes it possible before; infinity: never.
  virtual double due_s() const = 0;
  // Submits what is there by `now_s`; closes the dispatcher's input when nothing follows.
  virtual void feed(Dispatcher& dispatcher, double now_s) = 0;
};

// Where the time of a run itself goes, for whoever wants to know; `clock_s` reads the seconds of some clock. What is
// left of all of it is bookkeeping.
struct RunTimes {
  std::function<double()> clock_s;
  double decide_s = 0;  // the dispatcher and its schedulers
  double mesh_s = 0;    // the virtual ranks
  double all_s = 0;
};

// Takes over a step that was sent; the next one is planned after it returns.
using StepObserver = std::function<void(VirtualRun::SentStep)>;

// Drives the groups, to whose dispatcher everything has been submitted and the input closed, until all is done;
// `meshes` are the groups' ranks. Borrows all of them during the call. Every token that a pass samples is one that ends
// nothing. Error{kInternal} if the dispatcher waits for something that cannot happen.
VirtualRun run_virtually(Dispatcher& dispatcher, std::span<VirtualMesh* const> meshes, const StepObserver& observe = {},
                         RunTimes* times = nullptr);
// The same where nothing has been submitted yet: `input` does it.
VirtualRun run_virtually(Dispatcher& dispatcher, std::span<VirtualMesh* const> meshes, VirtualInput& input,
                         const StepObserver& observe = {});
// The same for one group.
VirtualRun run_virtually(Scheduler& scheduler, VirtualMesh& mesh, const StepObserver& observe = {});
// The same, keeping every step.
VirtualRun run_keeping_steps(Scheduler& scheduler, VirtualMesh& mesh);

}  // namespace computron

// Where a program may stand between the parts of a serving job. The product changes nothing there; programs of the
// tests make a rank, its link or the whole job fail.
#pragma once

#include <memory>
#include <vector>

#include "computron/device/device.h"
#include "computron/runtime/executor.h"
#include "computron/runtime/host_store.h"
#include "computron/serve/copy_costs.h"
#include "computron/serve/front_end.h"
#include "computron/serve/preflight.h"

namespace computron {

// Every call is made on every rank, unless it says otherwise, by the thread that owns MPI.
class ServeHooks {
 public:
  virtual ~ServeHooks() = default;

  // What rank `rank` will compare with the others' before anything is loaded.
  virtual void compare(int /*rank*/, std::vector<RankProperty>& /*properties*/) {}
  // What follows each copy over the link of rank `rank`; empty: nothing. Asked for before a CPU device is made.
  virtual CopyHook copy_hook(int /*rank*/) { return {}; }
  // All pages of rank `rank` are in host memory, and read-only.
  virtual void loaded(int /*rank*/, const HostStore& /*host*/) {}
  // What rank `rank` has measured for --page-size auto.
  virtual void measured(int /*rank*/, MeasuredCosts& /*costs*/) {}
  // How the groups' schedulers are made.
  virtual void schedule(SchedulerOptions& /*options*/) {}
  // What stands between this rank's passes and their pages; empty: nothing. It may wait, by `progress`, which outlives
  // it.
  virtual PageSourceWrapper page_wrapper(Progress& /*progress*/) { return {}; }
  // Rank `rank` has executed a step and is about to report this.
  virtual void executed(int /*rank*/, Report& /*report*/) {}
  // The front end that the loop of rank 0 uses instead of `front_end`, which outlives it. Null: that one itself.
  virtual std::unique_ptr<FrontEnd> around(FrontEnd& /*front_end*/) { return nullptr; }
};

// Hooks that do nothing.
ServeHooks& no_hooks();

}  // namespace computron

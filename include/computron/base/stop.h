// Signals that ask the process to stop: SIGTERM, SIGINT, SIGHUP, SIGUSR1. They are only counted; whoever can stop
// looks.
#pragma once

#include <string>

namespace computron {

// From now on such signals are counted instead of ending the process, but for those that are ignored (nohup). The one
// after `max_signals` ends it at once, with ExitCode::kStopped, in case nobody looks any more.
void catch_stop_signals(int max_signals = 3);

// How many have come. 0 for ever unless they are caught.
int stop_signals() noexcept;
// Whether the only one was SIGUSR1: by that a batch system warns long before it ends a job.
bool only_warned() noexcept;
// "SIGTERM": of the first one.
std::string stop_signal_name();

// What a job that ends early says.
std::string stopped_early();

// Error{kStopped} if one has come: for phases at the start that have nothing to save.
void throw_if_stopped();

}  // namespace computron

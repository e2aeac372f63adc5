// Signals that ask the process to stop: SIGTERM, SIGINT, SIGHUP, SIGUSR1. The handler only counts them; code that can
// stop polls the count.
#pragma once

#include <string>

namespace computron {

// From here on such signals are counted instead of ending the process, but for those that are ignored (nohup). The one
// after `max_signals` ends it at once, with ExitCode::kStopped, in case the process no longer polls.
void catch_stop_signals(int max_signals = 3);

// How many signals have been counted so far; 0 before catch_stop_signals().
int stop_signals() noexcept;
// Whether the only signal so far was SIGUSR1: a batch system sends it as a warning, long before it ends a job.
bool only_warned() noexcept;
// The name of the first signal: "SIGTERM".
std::string stop_signal_name();

// The message of a job that ends early.
std::string stopped_early();

// Throws Error{kStopped} if a signal has been counted: for phases at the start that have nothing to save.
void throw_if_stopped();

}  // namespace computron

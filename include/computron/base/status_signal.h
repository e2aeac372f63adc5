// SIGUSR2: somebody wants to know how far the process has come. Only counted; whoever can tell looks.
#pragma once

namespace computron {

// From now on SIGUSR2 is counted instead of ending the process, unless it is ignored.
void catch_status_signal();

// How many have come.
int status_signals() noexcept;

}  // namespace computron

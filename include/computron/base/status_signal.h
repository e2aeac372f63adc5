// SIGUSR2 asks for the job's status. The handler only counts; code that can write the status polls the count.
#pragma once

namespace computron {

// From now on SIGUSR2 is counted instead of ending the process, unless it is ignored.
void catch_status_signal();

// How many signals have been counted so far.
int status_signals() noexcept;

}  // namespace computron

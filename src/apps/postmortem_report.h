// What the flight recorders of a job's ranks tell together.
#pragma once

#include <string>
#include <vector>

#include "computron/base/flight_recorder.h"

namespace computron {

// The files' flights of the job that moved last; flights of other jobs are left out.
std::vector<Flight> flights_of_last_job(std::vector<Flight> flights);

// The rank that stopped first, and how that shows; of one job, not empty.
struct FirstToStop {
  int rank = 0;
  std::string why;
};
FirstToStop first_to_stop(const std::vector<Flight>& flights);

// A table of the ranks, the first that stopped, and the last `events` records of all in order of time.
std::string postmortem_report(const std::vector<Flight>& flights, std::size_t events);

}  // namespace computron

// What the flight recorders of a job's ranks tell together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "computron/base/flight_recorder.h"

namespace computron {

// The flights of the job of that number, by rank; without one, of the job that moved last among those that have gone
// down: a job of which a process lives on this node is still running. Empty if there is none.
std::vector<Flight> flights_of_job(std::vector<Flight> flights, std::optional<std::uint64_t> job = std::nullopt);

// A line for each job: number, ranks and files, and when it moved last or that it is running; the latest last.
std::string list_of_jobs(const std::vector<Flight>& flights);

// The rank that stopped first, and how that shows; of one job, not empty.
struct FirstToStop {
  int rank = 0;
  std::string why;
};
FirstToStop first_to_stop(const std::vector<Flight>& flights);

// A table of the ranks, the first that stopped, and the last `events` records of all in order of time.
std::string postmortem_report(const std::vector<Flight>& flights, std::size_t events);

}  // namespace computron

#include "src/apps/postmortem_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "computron/base/trace.h"
#include "computron/base/watchdog.h"

namespace computron {
namespace {

constexpr double kApart_s = 0.3;  // of two ranks' last moves, which are known to a tenth of a second

double wall_s(const FlightInfo& info, double time_s) { return info.clock_offset_s + time_s; }
double stopped_s(const Flight& flight) { return wall_s(flight.info, flight.info.moved_s); }

bool of_main_thread(const FlightRecord& record) { return record.track != static_cast<std::uint8_t>(TraceTrack::kCopy); }

// Spans that had begun and not ended: the innermost last.
std::vector<FlightRecord> open_spans(const Flight& flight) {
  std::vector<FlightRecord> open;
  for (const FlightRecord& record : flight.records) {
    if (!of_main_thread(record)) continue;
    if (record.kind == FlightRecord::kBegin) {
      open.push_back(record);
    } else if (!open.empty() && open.back().name == record.name) {
      open.pop_back();
    }
  }
  return open;
}

std::string describe(const FlightRecord& record) {
  std::string text = fmt::format("{} {}", text_of(record.name), record.detail);
  if (record.step > 0) text += fmt::format(" of step {}", record.step);
  if (!text_of(record.model).empty()) text += fmt::format(", model {}", text_of(record.model));
  return text;
}

std::string last_deed(const Flight& flight) {
  const std::vector<FlightRecord> open = open_spans(flight);
  if (!open.empty()) return "in " + describe(open.back());
  if (flight.records.empty()) return "before its first event";
  return "without work after " + describe(flight.records.back());
}

// How far a rank got: the last step and the last sum over ranks that it entered.
std::pair<std::uint64_t, std::uint32_t> place(const Flight& flight) {
  std::uint64_t step = 0;
  std::uint32_t sum = 0;
  for (const FlightRecord& record : flight.records) {
    if (!of_main_thread(record)) continue;
    step = std::max(step, record.step);
    if (text_of(record.name) == "all-reduce") sum = std::max(sum, record.detail);
  }
  return {step, sum};
}

std::string clock_text(double wall_s) {
  const double whole_s = std::floor(wall_s);
  return fmt::format("{:%H:%M:%S}.{:03}", fmt::gmtime(static_cast<std::time_t>(whole_s)),
                     static_cast<int>((wall_s - whole_s) * 1000));
}

std::string date_text(double wall_s) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(std::floor(wall_s))));
}

// "3", or in a job of several groups "3 (group 1)".
std::string name_of(const FlightInfo& info) {
  return info.group ? fmt::format("{} (group {})", info.rank, *info.group) : fmt::format("{}", info.rank);
}

std::string table(const std::vector<Flight>& flights) {
  const std::size_t width = flights.front().info.group ? 12 : 4;
  std::string text = fmt::format("{:>{}}  {:<20}{:>10}{:>15}{:>15}{:>12}  {}\n", "rank", width, "host", "process",
                                 "moved (UTC)", "alive (UTC)", "events", "then it was");
  for (const Flight& flight : flights) {
    const FlightInfo& info = flight.info;
    text += fmt::format("{:>{}}  {:<20}{:>10}{:>15}{:>15}{:>12}  {}\n", name_of(info), width, info.host, info.process,
                        clock_text(stopped_s(flight)), clock_text(wall_s(info, info.alive_s)),
                        flight.records.empty() ? 0 : flight.records.back().number, last_deed(flight));
  }
  const auto ranks = static_cast<std::size_t>(flights.front().info.ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const bool there =
        std::ranges::any_of(flights, [rank](const Flight& f) { return f.info.rank == static_cast<int>(rank); });
    if (!there) text += fmt::format("{:>{}}  no file: look on the rank's own node\n", rank, width);
  }
  return text;
}

std::string last_events(const std::vector<Flight>& flights, std::size_t count) {
  struct Event {
    double wall_s;
    int rank;
    FlightRecord record;
  };
  std::vector<Event> events;
  for (const Flight& flight : flights) {
    for (const FlightRecord& record : flight.records) {
      events.push_back({wall_s(flight.info, record.time_s), flight.info.rank, record});
    }
  }
  std::ranges::stable_sort(events, {}, &Event::wall_s);
  if (events.size() > count) events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(count));
  std::string text = fmt::format("the last {} events (UTC)\n", events.size());
  for (const auto& [time_s, rank, record] : events) {
    text += fmt::format("{}  rank {:<5}{:<15}{:<7}{}\n", clock_text(time_s), rank,
                        kTraceTrackNames.at(record.track % kTraceTrackNames.size()),
                        record.kind == FlightRecord::kBegin ? "begins" : "ends", describe(record));
  }
  return text;
}

// A rank that was stopped is continued when the launcher ends it, and may move behind those that gave it up.
std::optional<FirstToStop> blamed_by_a_watchdog(const std::vector<Flight>& flights) {
  for (const Flight& flight : flights) {
    for (const FlightRecord& record : flight.records) {
      if (text_of(record.name) != kWatchdogEnds) continue;
      return FirstToStop{static_cast<int>(record.detail),
                         fmt::format("the watchdog of rank {} gave it up at {}", flight.info.rank,
                                     clock_text(wall_s(flight.info, record.time_s)))};
    }
  }
  return std::nullopt;
}

// What the files of one job say together.
struct JobFiles {
  int ranks = 0;
  std::size_t files = 0;
  double moved_s = 0;  // CLOCK_REALTIME
  bool running = false;
};

std::map<std::uint64_t, JobFiles> jobs_of(const std::vector<Flight>& flights) {
  std::map<std::uint64_t, JobFiles> jobs;
  for (const Flight& flight : flights) {
    JobFiles& job = jobs[flight.info.job];
    job.ranks = flight.info.ranks;
    job.moved_s = job.files++ == 0 ? stopped_s(flight) : std::max(job.moved_s, stopped_s(flight));
    job.running |= still_runs(flight.info);
  }
  return jobs;
}

}  // namespace

std::vector<Flight> flights_of_job(std::vector<Flight> flights, std::optional<std::uint64_t> job) {
  const std::map<std::uint64_t, JobFiles> jobs = jobs_of(flights);
  const bool named = job.has_value();
  double last_s = -std::numeric_limits<double>::infinity();
  for (const auto& [number, files] : jobs) {
    if (named || files.running || files.moved_s <= last_s) continue;
    job = number;
    last_s = files.moved_s;
  }
  std::erase_if(flights, [job](const Flight& flight) { return flight.info.job != job; });
  std::ranges::sort(flights, {}, [](const Flight& flight) { return flight.info.rank; });
  return flights;
}

std::string list_of_jobs(const std::vector<Flight>& flights) {
  const std::map<std::uint64_t, JobFiles> jobs = jobs_of(flights);
  std::vector<std::pair<double, std::uint64_t>> order;
  for (const auto& [number, files] : jobs) order.emplace_back(files.moved_s, number);
  std::ranges::sort(order);
  std::string text = fmt::format("{:<18}{:>6}{:>7}  {}\n", "job", "ranks", "files", "moved last (UTC)");
  for (const auto& [moved_s, number] : order) {
    const JobFiles& files = jobs.at(number);
    text += fmt::format("{:016x}  {:>6}{:>7}  {}\n", number, files.ranks, files.files,
                        files.running ? "is running" : date_text(moved_s));
  }
  return text;
}

FirstToStop first_to_stop(const std::vector<Flight>& flights) {
  if (const auto blamed = blamed_by_a_watchdog(flights)) return *blamed;
  std::vector<const Flight*> order;
  for (const Flight& flight : flights) order.push_back(&flight);
  std::ranges::stable_sort(order, {}, [](const Flight* flight) { return stopped_s(*flight); });
  const double lead_s = order.size() > 1 ? stopped_s(*order[1]) - stopped_s(*order[0]) : 0;
  if (lead_s > kApart_s) {
    return {order[0]->info.rank, fmt::format("its main thread moved last {:.1f} s before any other's", lead_s)};
  }
  // Each group counts steps of its own: who got least far is asked of the group that stopped first.
  std::erase_if(order, [group = order[0]->info.group](const Flight* flight) { return flight->info.group != group; });
  const Flight& behind = **std::ranges::min_element(order, {}, [](const Flight* flight) { return place(*flight); });
  const auto [step, sum] = place(behind);
  return {behind.info.rank, fmt::format("all moved to the end; it got least far: step {}, sum {}", step, sum)};
}

std::string postmortem_report(const std::vector<Flight>& flights, std::size_t events) {
  const FirstToStop first = first_to_stop(flights);
  const auto found = std::ranges::find(flights, first.rank, [](const Flight& flight) { return flight.info.rank; });
  const std::string where =
      found == flights.end() ? "" : fmt::format(" on {}, {}", found->info.host, last_deed(*found));
  const FlightInfo& info = flights.front().info;
  return fmt::format("job {:016x}, {} ranks\n{}\nrank {}{}, stopped first: {}\n\n{}", info.job, info.ranks,
                     table(flights), found == flights.end() ? fmt::format("{}", first.rank) : name_of(found->info),
                     where, first.why, last_events(flights, events));
}

}  // namespace computron

// The file of --trace, as tests look at it.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace computron::test {

// A span as the file tells it, in nanoseconds.
struct Span {
  int rank;
  std::string track;
  std::string name;
  long begin_ns, end_ns;
  nlohmann::json args;

  bool holds(const Span& other) const { return begin_ns <= other.begin_ns && other.end_ns <= end_ns; }
};

struct TraceFile {
  // An exception when there is no such file or it is no JSON.
  explicit TraceFile(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::map<std::pair<int, int>, std::string> tracks;
    const auto content = nlohmann::json::parse(file);
    for (const auto& event : content.at("traceEvents")) {
      if (event.at("ph") == "M") {
        read_metadata(event, tracks);
      } else {
        const long begin = std::lround(event.at("ts").get<double>() * 1000);
        const long duration = std::lround(event.at("dur").get<double>() * 1000);
        spans.push_back({event.at("pid"), tracks.at({event.at("pid"), event.at("tid")}), event.at("name"), begin,
                         begin + duration, event.at("args")});
      }
    }
    for (const auto& [place, track] : tracks) tracks_of[place.first].insert(track);
  }
  std::vector<Span> select(const std::string& track, const std::string& name) const {
    std::vector<Span> found;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(found),
                 [&](const Span& span) { return span.track == track && span.name == name; });
    return found;
  }

  std::vector<Span> spans;
  std::map<int, std::string> processes;            // by rank
  std::map<int, std::set<std::string>> tracks_of;  // by rank
  std::map<int, nlohmann::json> ranks;             // by rank

 private:
  void read_metadata(const nlohmann::json& event, std::map<std::pair<int, int>, std::string>& tracks) {
    const int rank = event.at("pid");
    if (event.at("name") == "process_name") processes[rank] = event.at("args").at("name");
    if (event.at("name") == "thread_name") tracks[{rank, event.at("tid")}] = event.at("args").at("name");
    if (event.at("name") == "computron_rank") ranks[rank] = event.at("args");
  }
};

}  // namespace computron::test

#include "computron/serve/topology.h"

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "computron/base/bytes.h"

namespace computron {
namespace {

std::vector<int> usable_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// A core's folder links to that of its node, "node1"; -1 where there is none.
int node_of(int cpu) {
  std::error_code error;
  const std::filesystem::path folder = fmt::format("/sys/devices/system/cpu/cpu{}", cpu);
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node") && name.size() > 4) return std::atoi(name.c_str() + 4);
  }
  return -1;
}

std::vector<int> node_of_each(const std::vector<int>& cpus) {
  std::vector<int> nodes;
  for (const int cpu : cpus) nodes.push_back(node_of(cpu));
  return nodes;
}

std::vector<int> nodes_of(const std::vector<int>& cpus) {
  const std::vector<int> all = node_of_each(cpus);
  std::set<int> nodes(all.begin(), all.end());
  nodes.erase(-1);
  return {nodes.begin(), nodes.end()};
}

RankPlace own_place(const Device& device, int threads) {
  const std::vector<int> cpus = usable_cpus();
  return {.host = host_name(),
          .cpus = cpus,
          .nodes = nodes_of(cpus),
          .device = device.name(),
          .hardware_id = device.hardware_id(),
          .device_node = device.numa_node(),
          .threads = threads,
          .bus_path = device.bus_path()};
}

std::vector<std::byte> encode(const RankPlace& place) {
  ByteWriter out;
  for (const std::string* text : {&place.host, &place.device, &place.hardware_id, &place.bus_path}) {
    out.put_string(*text);
  }
  out.put_list(place.cpus);
  out.put_list(place.nodes);
  out.put(place.device_node);
  out.put(place.threads);
  return out.take();
}

RankPlace decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  RankPlace place;
  for (std::string* text : {&place.host, &place.device, &place.hardware_id, &place.bus_path}) {
    *text = in.get_string();
  }
  place.cpus = in.get_list<int>();
  place.nodes = in.get_list<int>();
  place.device_node = in.get<int>();
  place.threads = in.get<int>();
  return place;
}

bool same_hardware(const RankPlace& a, const RankPlace& b) {
  return !a.hardware_id.empty() && a.hardware_id == b.hardware_id;
}

std::string device_column(const RankPlace& place) {
  if (place.hardware_id.empty()) return place.device;
  const std::string node = place.device_node < 0 ? "" : fmt::format(", NUMA node {}", place.device_node);
  return fmt::format("{} ({}{})", place.device, place.hardware_id, node);
}

// Sorted sets.
std::vector<int> together(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

bool within(const std::vector<int>& inner, const std::vector<int>& outer) {
  return std::includes(outer.begin(), outer.end(), inner.begin(), inner.end());
}

std::string counted(int count, const std::string& one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

// Ranks that may run on `cpus` of `host` only, if they have more threads than there are; else nothing.
std::string crowd_on(const std::vector<RankPlace>& places, const std::string& host, const std::vector<int>& cpus) {
  std::vector<int> ranks;
  int threads = 0;
  for (std::size_t r = 0; r < places.size(); ++r) {
    if (places[r].host != host || !within(places[r].cpus, cpus)) continue;
    ranks.push_back(static_cast<int>(r));
    threads += places[r].threads;
  }
  const int cores = static_cast<int>(cpus.size());
  if (threads <= cores) return {};
  return fmt::format(
      "{} {} on {} {} {} for {} ({}): fewer --threads, fewer ranks, or more cores (--cpus-per-task; "
      "mpirun --bind-to none)",
      ranks.size() == 1 ? "rank" : "ranks", ranges_of(ranks), host, ranks.size() == 1 ? "has" : "have",
      counted(threads, "busy thread"), counted(cores, "core"), ranges_of(cpus));
}

// The smallest crowd of a host: what a whole host lacks is said where no part of it says more.
std::string crowd_of(const std::vector<RankPlace>& places, const std::string& host) {
  std::vector<int> all;
  std::set<std::pair<std::size_t, std::vector<int>>> parts;  // by size
  for (const RankPlace& place : places) {
    if (place.host != host || place.cpus.empty()) continue;
    parts.emplace(place.cpus.size(), place.cpus);
    all = together(all, place.cpus);
  }
  parts.emplace(all.size(), all);
  for (const auto& [cores, cpus] : parts) {
    if (std::string crowd = crowd_on(places, host, cpus); !crowd.empty()) return crowd;
  }
  return {};
}

std::string far_device(const RankPlace& place, std::size_t rank) {
  if (place.device_node < 0 || place.nodes.empty() || within({place.device_node}, place.nodes)) return {};
  return fmt::format(
      "rank {} on {} has cores of NUMA node {}, but its GPU hangs from node {}: every copy crosses between "
      "them (srun --cpu-bind, --distribution)",
      rank, place.host, ranges_of(place.nodes), place.device_node);
}

// Ranks by the port of the PCI bus that their devices' copies go through.
std::map<std::pair<std::string, std::string>, std::vector<int>> ranks_by_port(const std::vector<RankPlace>& places) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> ranks;
  for (std::size_t r = 0; r < places.size(); ++r) {
    const std::string& path = places[r].bus_path;
    if (sharers_of(places, static_cast<int>(r)) > 1 || path.empty()) continue;
    ranks[{places[r].host, path.substr(0, path.find('/'))}].push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace

std::vector<std::string> placement_warnings(const std::vector<RankPlace>& places) {
  std::vector<std::string> warnings;
  std::set<std::string> hosts;
  for (const RankPlace& place : places) {
    if (hosts.insert(place.host).second) warnings.push_back(crowd_of(places, place.host));
  }
  for (std::size_t r = 0; r < places.size(); ++r) warnings.push_back(far_device(places[r], r));
  for (const auto& [place, ranks] : ranks_by_port(places)) {
    if (ranks.size() == 1) continue;
    warnings.push_back(
        fmt::format("the GPUs of ranks {} on {} are below one PCIe switch (port {}): when they swap at "
                    "the same time they share its way to memory",
                    ranges_of(ranks), place.first, place.second));
  }
  std::erase(warnings, "");
  return warnings;
}

std::vector<int> cpus_near(const std::vector<int>& cpus, const std::vector<int>& node_of_cpu, int node) {
  std::vector<int> near;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (node >= 0 && node_of_cpu[i] == node) near.push_back(cpus[i]);
  }
  return near.empty() ? cpus : near;
}

void keep_near(int node) {
  const std::vector<int> cpus = usable_cpus();
  const std::vector<int> near = cpus_near(cpus, node_of_each(cpus), node);
  if (near == cpus) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : near) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    spdlog::warn("cannot stay on cores {}, near the device: {}", ranges_of(near), std::strerror(errno));
  }
}

std::string ranges_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += i == last ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text.empty() ? "?" : text;
}

std::vector<RankPlace> gather_places(const Communicator& world, const Device& device, int threads) {
  std::vector<RankPlace> places;
  for (const std::vector<std::byte>& bytes : world.all_gather(encode(own_place(device, threads)))) {
    places.push_back(decode(bytes));
  }
  return places;
}

int sharers_of(const std::vector<RankPlace>& places, int rank) {
  const RankPlace& own = places[static_cast<std::size_t>(rank)];
  const auto same =
      std::count_if(places.begin(), places.end(), [&own](const RankPlace& place) { return same_hardware(place, own); });
  return std::max(1, static_cast<int>(same));
}

bool shares_hardware(const std::vector<RankPlace>& places) {
  for (int rank = 0; rank < static_cast<int>(places.size()); ++rank) {
    if (sharers_of(places, rank) > 1) return true;
  }
  return false;
}

void refuse_sharing(const std::vector<RankPlace>& places) {
  for (std::size_t b = 0; b < places.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (!same_hardware(places[a], places[b])) continue;
      throw Error(
          ExitCode::kDevice,
          fmt::format("ranks {} and {} have the same GPU, {} on {}: start at most as many ranks a node as it has "
                      "GPUs, or give --share-gpu (slow: for tests)",
                      a, b, places[a].hardware_id, places[a].host));
    }
  }
}

std::string placement_table(const std::vector<RankPlace>& places, const std::vector<RankGroup>& groups) {
  std::size_t host = 4, cpus = 4;
  for (const RankPlace& place : places) {
    host = std::max(host, place.host.size());
    cpus = std::max(cpus, ranges_of(place.cpus).size());
  }
  const auto line = [&](const auto& rank, const auto& group, const auto& stage, const auto& t, const auto& rest) {
    const std::string of_group = groups.size() > 1 ? fmt::format("{:<8}", group) : std::string();
    return fmt::format("{:<6}{}{:<8}{:<6}{}", rank, of_group, stage, t, rest);
  };
  std::string table = line("rank", "group", "stage", "t",
                           fmt::format("{:<{}}  {:<{}}  {:<7}device", "host", host, "cpus", cpus, "nodes"));
  for (const RankGroup& group : groups) {
    for (int r = 0; r < group.shape.ranks(); ++r) {
      const RankPlace& place = places[static_cast<std::size_t>(group.job_rank(r))];
      table += '\n';
      table += line(group.job_rank(r), group.index, group.shape.stage_of(r), group.shape.t_of(r),
                    fmt::format("{:<{}}  {:<{}}  {:<7}{}", place.host, host, ranges_of(place.cpus), cpus,
                                ranges_of(place.nodes), device_column(place)));
    }
  }
  return table;
}

}  // namespace computron

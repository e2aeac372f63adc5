#include "computron/serve/placement.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <set>

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

std::vector<int> nodes_of(const std::vector<int>& cpus) {
  std::set<int> nodes;
  for (const int cpu : cpus) nodes.insert(node_of(cpu));
  nodes.erase(-1);
  return {nodes.begin(), nodes.end()};
}

RankPlace own_place(const Device& device) {
  const std::vector<int> cpus = usable_cpus();
  return {.host = host_name(),
          .cpus = ranges_of(cpus),
          .nodes = ranges_of(nodes_of(cpus)),
          .device = device.name(),
          .hardware_id = device.hardware_id(),
          .device_node = device.numa_node()};
}

std::vector<std::byte> encode(const RankPlace& place) {
  ByteWriter out;
  for (const std::string* text : {&place.host, &place.cpus, &place.nodes, &place.device, &place.hardware_id}) {
    out.put_string(*text);
  }
  out.put(place.device_node);
  return out.take();
}

RankPlace decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  RankPlace place;
  for (std::string* text : {&place.host, &place.cpus, &place.nodes, &place.device, &place.hardware_id}) {
    *text = in.get_string();
  }
  place.device_node = in.get<int>();
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

}  // namespace

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

std::vector<RankPlace> gather_places(const Communicator& world, const Device& device) {
  std::vector<RankPlace> places;
  for (const std::vector<std::byte>& bytes : world.all_gather(encode(own_place(device)))) {
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

std::string placement_table(const std::vector<RankPlace>& places, const MeshShape& shape) {
  std::size_t host = 4, cpus = 4;
  for (const RankPlace& place : places) {
    host = std::max(host, place.host.size());
    cpus = std::max(cpus, place.cpus.size());
  }
  std::string table = fmt::format("{:<6}{:<8}{:<6}{:<{}}  {:<{}}  {:<7}device", "rank", "stage", "t", "host", host,
                                  "cpus", cpus, "nodes");
  for (std::size_t r = 0; r < places.size(); ++r) {
    const RankPlace& place = places[r];
    const int rank = static_cast<int>(r);
    table += fmt::format("\n{:<6}{:<8}{:<6}{:<{}}  {:<{}}  {:<7}{}", rank, shape.stage_of(rank), shape.t_of(rank),
                         place.host, host, place.cpus, cpus, place.nodes, device_column(place));
  }
  return table;
}

}  // namespace computron

// Where the ranks of a job are: which hosts, cores, NUMA nodes and devices. Printed before anything is loaded, because
// a wrong binding costs more than any tuning gains.
#pragma once

#include <string>
#include <vector>

#include "computron/comm/mesh.h"
#include "computron/device/device.h"

namespace computron {

struct RankPlace {
  std::string host;
  std::vector<int> cpus;    // that the rank may run on; ascending, as are
  std::vector<int> nodes;   // NUMA nodes of these
  std::string device;       // "cpu (2 threads)", "cuda 0: NVIDIA H200"
  std::string hardware_id;  // Device::hardware_id()
  int device_node = -1;     // Device::numa_node()
  int threads = 1;          // that want a core each: those that compute, or the one that waits for a GPU
  std::string bus_path;     // Device::bus_path()
};

// Of `cpus`, with the NUMA node of each, those of `node`; all of them where there are none, or `node` is -1.
std::vector<int> cpus_near(const std::vector<int>& cpus, const std::vector<int>& node_of_cpu, int node);
// Keeps the calling thread, and those it makes from here on, to the cores near NUMA node `node` among those it has been
// given: a launcher that binds decides, one that does not costs no bandwidth.
void keep_near(int node);

// Collective: everybody's place, by rank. May be called again for another device.
std::vector<RankPlace> gather_places(const Communicator& world, const Device& device, int threads);

// Ranks that have the same hardware as `rank`, itself included; 1 where hardware is not a rank's own.
int sharers_of(const std::vector<RankPlace>& places, int rank);
bool shares_hardware(const std::vector<RankPlace>& places);  // any of them
// Error{kDevice} naming two ranks that have the same hardware, and what to do, if there are such.
void refuse_sharing(const std::vector<RankPlace>& places);

// A line a rank.
std::string placement_table(const std::vector<RankPlace>& places, const std::vector<RankGroup>& groups);

// What makes ranks slower than they need be, a sentence each: more threads than cores, on a whole host or where ranks
// are bound; cores far from the rank's GPU; GPUs that reach memory through the same port.
std::vector<std::string> placement_warnings(const std::vector<RankPlace>& places);

// "0-3,8" for {0, 1, 2, 3, 8}; numbers ascend.
std::string ranges_of(const std::vector<int>& numbers);

}  // namespace computron

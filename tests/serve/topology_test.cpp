#include "computron/serve/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace computron {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(CpusNear, AreThoseOfTheDevicesNodeAmongTheGiven) {
  const std::vector<int> cpus = {0, 1, 4, 5}, nodes = {0, 0, 1, 1};
  EXPECT_EQ(cpus_near(cpus, nodes, 1), (std::vector<int>{4, 5}));
  EXPECT_EQ(cpus_near(cpus, nodes, 2), cpus) << "the launcher gave none";
  EXPECT_EQ(cpus_near(cpus, nodes, -1), cpus) << "nobody knows";
  EXPECT_EQ(cpus_near(cpus, {-1, -1, -1, -1}, -1), cpus);
}

// Every core of a machine with one node is near it; no other can be asked for.
TEST(KeepNear, NeverLeavesTheGivenCores) {
  std::thread([] {
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    for (const int node : {-1, 1 << 20}) {
      keep_near(node);
      ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
      EXPECT_TRUE(CPU_EQUAL(&before, &after)) << node;
    }
    keep_near(0);
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_GT(CPU_COUNT(&after), 0);
    CPU_OR(&after, &after, &before);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }).join();
}

TEST(RangesOf, JoinsNeighbours) {
  EXPECT_EQ(ranges_of({}), "?");
  EXPECT_EQ(ranges_of({3}), "3");
  EXPECT_EQ(ranges_of({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ranges_of({1, 3, 4, 6, 7, 8}), "1,3-4,6-8");
}

RankPlace on_gpu(const std::string& id) {
  return {.host = "node7",
          .cpus = {0, 1, 2, 3, 4, 5, 6, 7},
          .nodes = {0},
          .device = "cuda 0: NVIDIA H200",
          .hardware_id = id,
          .device_node = 1,
          .bus_path = ""};
}

TEST(Sharing, IsOfTheSameHardwareOnly) {
  const std::vector<RankPlace> apart = {on_gpu("GPU-a"), on_gpu("GPU-b")};
  EXPECT_FALSE(shares_hardware(apart));
  EXPECT_NO_THROW(refuse_sharing(apart));

  const std::vector<RankPlace> shared = {on_gpu("GPU-a"), on_gpu("GPU-b"), on_gpu("GPU-a")};
  EXPECT_TRUE(shares_hardware(shared));
  EXPECT_EQ(sharers_of(shared, 0), 2);
  EXPECT_EQ(sharers_of(shared, 1), 1);
  try {
    refuse_sharing(shared);
    FAIL() << "two ranks on one GPU went unnoticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    EXPECT_THAT(error.what(), HasSubstr("ranks 0 and 2"));
    EXPECT_THAT(error.what(), HasSubstr("GPU-a on node7"));
    EXPECT_THAT(error.what(), HasSubstr("--share-gpu"));
  }
}

TEST(Sharing, AnyNumberOfRanksSharesAProcessor) {
  const RankPlace cpu{
      .host = "node7", .cpus = {0, 1}, .nodes = {0}, .device = "cpu (2 threads)", .hardware_id = "", .bus_path = ""};
  EXPECT_FALSE(shares_hardware({cpu, cpu, cpu}));
  EXPECT_EQ(sharers_of({cpu, cpu, cpu}, 1), 1);
}

TEST(PlacementTable, HasALineARank) {
  RankPlace far = on_gpu("GPU-b");
  far.host = "a-host-with-a-long-name";
  const std::string table = placement_table({on_gpu("GPU-a"), far}, {{.shape = {.tp = 1, .pp = 2}}});
  EXPECT_THAT(table, ContainsRegex("^rank +stage +t +host +cpus +nodes +device\n"));
  EXPECT_THAT(table, ContainsRegex("\n0 +0 +0 +node7 +0-7 +0 +cuda 0: NVIDIA H200 \\(GPU-a, NUMA node 1\\)\n"));
  EXPECT_THAT(table, ContainsRegex("\n1 +1 +0 +a-host-with-a-long-name +0-7 +0 +cuda 0: NVIDIA H200 \\(GPU-b.*\\)$"));
}

RankPlace on_cores(const std::vector<int>& cpus, int threads, const std::string& host = "node7") {
  return {
      .host = host, .cpus = cpus, .nodes = {0}, .device = "cpu", .hardware_id = "", .threads = threads, .bus_path = ""};
}

TEST(PlacementWarnings, AreOfCrowdedHosts) {
  EXPECT_THAT(placement_warnings({on_cores({0, 1, 2, 3}, 2), on_cores({0, 1, 2, 3}, 2)}), IsEmpty());
  EXPECT_THAT(placement_warnings({on_cores({0, 1}, 1), on_cores({0, 1}, 1), on_cores({0, 1}, 1, "node8")}), IsEmpty());
  EXPECT_THAT(placement_warnings({on_cores({0, 1}, 1), on_cores({0, 1}, 1, "node8"), on_cores({0, 1}, 1),
                                  on_cores({0, 1}, 1), on_cores({0, 1}, 2, "node8")}),
              ElementsAre(HasSubstr("ranks 0,2-3 on node7 have 3 busy threads for 2 cores (0-1)"),
                          HasSubstr("ranks 1,4 on node8 have 3 busy threads for 2 cores (0-1)")));
}

// Cores that one rank leaves idle are of no use to another.
TEST(PlacementWarnings, AreOfBoundRanks) {
  EXPECT_THAT(placement_warnings({on_cores({0, 1, 2, 3}, 1), on_cores({4}, 2)}),
              ElementsAre(HasSubstr("rank 1 on node7 has 2 busy threads for 1 core (4)")));
  EXPECT_THAT(placement_warnings({on_cores({4}, 1), on_cores({0, 1, 2, 3}, 1), on_cores({4}, 1)}),
              ElementsAre(HasSubstr("ranks 0,2 on node7 have 2 busy threads for 1 core (4)")));
  EXPECT_THAT(placement_warnings({on_cores({0, 1}, 2), on_cores({1, 2}, 2)}),
              ElementsAre(HasSubstr("ranks 0-1 on node7 have 4 busy threads for 3 cores (0-2)")));
}

TEST(PlacementWarnings, AreOfGpusFarFromTheirCores) {
  RankPlace near = on_gpu("GPU-a"), far = on_gpu("GPU-b"), unknown = on_gpu("GPU-c");
  near.nodes = {0, 1};
  unknown.device_node = -1;
  EXPECT_THAT(placement_warnings({near, far, unknown}),
              ElementsAre(HasSubstr("rank 1 on node7 has cores of NUMA node 0, but its GPU hangs from node 1")));
}

TEST(PlacementWarnings, AreOfGpusBelowOneSwitch) {
  std::vector<RankPlace> places = {on_gpu("GPU-a"), on_gpu("GPU-b"), on_gpu("GPU-c"), on_gpu("GPU-d"), on_gpu("GPU-e")};
  for (RankPlace& place : places) place.device_node = 0;
  places[0].bus_path = "0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0";
  places[1].bus_path = "0000:5a:00.0/0000:5b:00.0";
  places[2].bus_path = "0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0";
  places[3].bus_path = places[0].bus_path;
  places[3].host = "node8";
  EXPECT_THAT(placement_warnings(places),
              ElementsAre(HasSubstr("the GPUs of ranks 0,2 on node7 are below one PCIe switch (port 0000:3a:00.0)")));
  places[2].hardware_id = "GPU-a";  // one GPU: what ranks that share it should know is said elsewhere
  EXPECT_THAT(placement_warnings(places), IsEmpty());
}

// On the machine that the test runs on.
TEST(GatherPlaces, SaysWhereThisRankIs) {
  const auto device = make_cpu_device({.threads = 2});
  const Communicator world = Communicator::world();
  const std::vector<RankPlace> places = gather_places(world, *device, 2);
  ASSERT_EQ(static_cast<int>(places.size()), world.size());
  for (const RankPlace& place : places) {
    EXPECT_EQ(place.host, host_name());
    EXPECT_FALSE(place.cpus.empty());
    EXPECT_EQ(place.threads, 2);
    EXPECT_EQ(place.bus_path, "");
    EXPECT_EQ(place.device, "cpu (2 threads)");
    EXPECT_EQ(place.hardware_id, "");
  }
}

}  // namespace
}  // namespace computron

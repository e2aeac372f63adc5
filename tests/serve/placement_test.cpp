#include "computron/serve/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace computron {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(RangesOf, JoinsNeighbours) {
  EXPECT_EQ(ranges_of({}), "?");
  EXPECT_EQ(ranges_of({3}), "3");
  EXPECT_EQ(ranges_of({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ranges_of({1, 3, 4, 6, 7, 8}), "1,3-4,6-8");
}

RankPlace on_gpu(const std::string& id) {
  return {.host = "node7",
          .cpus = "0-7",
          .nodes = "0",
          .device = "cuda 0: NVIDIA H200",
          .hardware_id = id,
          .device_node = 1};
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
  const RankPlace cpu{.host = "node7", .cpus = "0-1", .nodes = "0", .device = "cpu (2 threads)", .hardware_id = ""};
  EXPECT_FALSE(shares_hardware({cpu, cpu, cpu}));
  EXPECT_EQ(sharers_of({cpu, cpu, cpu}, 1), 1);
}

TEST(PlacementTable, HasALineARank) {
  RankPlace far = on_gpu("GPU-b");
  far.host = "a-host-with-a-long-name";
  const std::string table = placement_table({on_gpu("GPU-a"), far}, {.tp = 1, .pp = 2});
  EXPECT_THAT(table, ContainsRegex("^rank +stage +t +host +cpus +nodes +device\n"));
  EXPECT_THAT(table, ContainsRegex("\n0 +0 +0 +node7 +0-7 +0 +cuda 0: NVIDIA H200 \\(GPU-a, NUMA node 1\\)\n"));
  EXPECT_THAT(table, ContainsRegex("\n1 +1 +0 +a-host-with-a-long-name +0-7 +0 +cuda 0: NVIDIA H200 \\(GPU-b.*\\)$"));
}

// On the machine that the test runs on.
TEST(GatherPlaces, SaysWhereThisRankIs) {
  const auto device = make_cpu_device({.threads = 2});
  const Communicator world = Communicator::world();
  const std::vector<RankPlace> places = gather_places(world, *device);
  ASSERT_EQ(static_cast<int>(places.size()), world.size());
  for (const RankPlace& place : places) {
    EXPECT_EQ(place.host, host_name());
    EXPECT_NE(place.cpus, "?");
    EXPECT_EQ(place.device, "cpu (2 threads)");
    EXPECT_EQ(place.hardware_id, "");
  }
}

}  // namespace
}  // namespace computron

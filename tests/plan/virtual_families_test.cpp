// Models of a placement that share weights: swaps by what differs, adapters in slots, passes with riders.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "computron/plan/predicted_run.h"
#include "computron/plan/virtual_cluster.h"

namespace computron::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMB = 1'000'000, kGroupPage = 10 * kMB;
constexpr double kGroupLink = 1e9;

// A decoder on one rank: a pass takes 10 ms and 0.1 ms a row; 10 kB of cache a token. `common` bytes are the part's.
ModelProfile member_of(const std::string& id, const std::string& part, std::int64_t common, std::int64_t own) {
  ShapeProfile profile{.stage_s = {.1f}, .stage_bytes = {common + own}, .cache_token_bytes = {10'000}};
  for (int rows = 1; rows <= 64; rows *= 2) {
    profile.passes.push_back({rows, {.01f + .0001f * static_cast<float>(rows)}});
  }
  if (!part.empty()) profile.shared = {{.name = part, .stage_bytes = {common}}};
  return {.id = id, .shapes = {{{1, 1}, profile}}};
}

ClusterOptions pool_of(std::int64_t bytes) {
  return {.policy = "balanced",
          .device_bytes = bytes,
          .page_bytes = kGroupPage,
          .most_pages = 0,
          .link_bytes_per_s = kGroupLink,
          .latency_s = 0};
}

ModelPlacement one_group(const std::vector<ModelProfile>& models) {
  PlacedGroup group{.shape = {1, 1}, .models = {}};
  for (std::uint32_t m = 0; m < models.size(); ++m) group.models.push_back(m);
  return {group};
}

struct Played {
  VirtualRun run;
  std::int64_t bytes;               // over the link
  std::vector<std::size_t> riding;  // models of each pass
};

// A request of 8 tokens for each arrival.
Played play_group(const std::vector<ModelProfile>& models, const std::vector<Arrival>& arrivals,
                  const ClusterOptions& options) {
  VirtualCluster cluster(models, one_group(models), options);
  const std::vector<float> slo_s(models.size(), std::numeric_limits<float>::infinity());
  Played outcome;
  outcome.run = cluster.run(requests_of(arrivals, models, slo_s, 4, 8), [&](const VirtualRun::SentStep& sent) {
    if (!sent.planned.step.chunks.empty()) outcome.riding.push_back(sent.planned.step.by_model().size());
  });
  outcome.bytes = static_cast<std::int64_t>(cluster.mesh(0).bytes(0));
  return outcome;
}

std::vector<Arrival> in_turn(std::uint32_t models, int rounds, double gap_s) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < rounds * static_cast<int>(models); ++i) {
    arrivals.push_back({.time_s = gap_s * i, .model = static_cast<std::uint32_t>(i) % models});
  }
  return arrivals;
}

// Eight variants with a frozen half of 400 MB, in a pool of one and a cache: the first request brings all of it, the
// others the half that differs.
TEST(VirtualFamilies, SwapByTheirDifference) {
  std::vector<ModelProfile> shared, apart;
  for (int m = 0; m < 8; ++m) {
    shared.push_back(member_of(std::to_string(m), "lower", 400 * kMB, 400 * kMB));
    apart.push_back(member_of(std::to_string(m), "", 400 * kMB, 400 * kMB));
  }
  const auto arrivals = in_turn(8, 3, 2);
  ClusterOptions options = pool_of(830 * kMB);
  options.policy = "fifo";  // which fetches nothing ahead
  EXPECT_EQ(play_group(shared, arrivals, options).bytes, 400 * kMB + 24 * 400 * kMB);
  EXPECT_EQ(play_group(apart, arrivals, options).bytes, 24 * 800 * kMB);
  // The wait is half of what it is without: the transfer, trailed by a pass.
  const auto waited_s = [](const Completion& c) { return c.first_token_s - c.arrival_s; };
  const VirtualRun run = play_group(shared, arrivals, options).run;
  for (std::size_t i = 1; i < run.completions.size(); ++i) EXPECT_NEAR(waited_s(run.completions[i]), .4, .03) << i;
  EXPECT_NEAR(waited_s(run.completions[0]), .8, .03);
}

// A base and adapters of 1.5 MB, which take two slots of 1 MB each or a page.
std::vector<ModelProfile> base_and_adapters(int adapters, const std::string& family, std::int64_t slot_bytes) {
  std::vector<ModelProfile> models = {member_of("base", "base", 400 * kMB, 0)};
  for (int m = 1; m <= adapters; ++m) {
    models.push_back(member_of("adapter-" + std::to_string(m), "base", 400 * kMB, 3 * kMB / 2));
    models.back().shapes.begin()->second.slot_bytes = slot_bytes;
  }
  for (ModelProfile& model : models) model.family = family;
  return models;
}

// Ten requests at once are passes of ten rows, as those of one model; without a family each model has its own.
TEST(VirtualFamilies, RideTogether) {
  const std::vector<Arrival> at_once = in_turn(10, 1, 0);
  const Played riding = play_group(base_and_adapters(9, "base", 0), at_once, pool_of(900 * kMB));
  const Played alone = play_group(base_and_adapters(9, "", 0), at_once, pool_of(900 * kMB));
  EXPECT_EQ(*std::ranges::max_element(riding.riding), 10u);
  EXPECT_EQ(*std::ranges::max_element(alone.riding), 1u);
  EXPECT_EQ(riding.bytes, alone.bytes);
  EXPECT_EQ(riding.bytes, 400 * kMB + 9 * 3 * kMB / 2);
  const double loaded_s = .4135, pass_s = .0101, pass_of_ten_s = .011;
  EXPECT_LT(riding.run.end_s, loaded_s + 3 * pass_s + 9 * pass_of_ten_s);
  EXPECT_GT(alone.run.end_s, .4 + 10 * 7 * pass_s);
}

// 60 adapters take 120 slots of 1 MB: they stay beside the base in a pool that has not 60 pages to spare.
TEST(VirtualFamilies, StayInSlots) {
  const std::vector<Arrival> arrivals = in_turn(61, 2, .5);
  const std::int64_t once = 400 * kMB + 60 * 3 * kMB / 2;
  EXPECT_EQ(play_group(base_and_adapters(60, "base", kMB), arrivals, pool_of(700 * kMB)).bytes, once);
  EXPECT_GT(play_group(base_and_adapters(60, "base", 0), arrivals, pool_of(700 * kMB)).bytes, once);
  // Slots for a few: what is asked for in turn is copied each time, and some of it ahead.
  const Played few = play_group(base_and_adapters(60, "base", kMB), arrivals, pool_of(440 * kMB));
  EXPECT_GE(few.bytes, 400 * kMB + 2 * 60 * 3 * kMB / 2);
}

TEST(VirtualFamilies, CountOnceInWhatARankHolds) {
  const std::vector<ModelProfile> models = base_and_adapters(9, "base", kMB);
  const std::vector<float> slo_s(models.size(), std::numeric_limits<float>::infinity());
  const Prediction prediction =
      play(models, one_group(models), requests_of(in_turn(10, 1, 0), models, slo_s, 4, 8), 0, pool_of(900 * kMB));
  EXPECT_EQ(prediction.groups[0].rank_bytes, 400 * kMB + 9 * 3 * kMB / 2);
}

// Slots take what there is of a pool, or more: it is said which.
TEST(VirtualFamilies, AreRefusedWhereSlotsAreTooLargeOrTooMany) {
  const auto refusal = [](std::vector<ModelProfile> models, std::int64_t slot_bytes, std::int64_t device_bytes) {
    for (std::size_t m = 1; m < models.size(); ++m) models[m].shapes.begin()->second.slot_bytes = slot_bytes;
    try {
      VirtualCluster(models, one_group(models), pool_of(device_bytes));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const std::vector<ModelProfile> small = base_and_adapters(2, "base", kMB);
  EXPECT_EQ(refusal(small, kMB, 900 * kMB), "none");
  EXPECT_THAT(refusal(small, 3 * kGroupPage, 2 * kGroupPage), HasSubstr("beside 1 slots of 28.61 MiB for adapters"));
  EXPECT_THAT(refusal(small, std::int64_t{1} << 50, 900 * kMB), HasSubstr("beside 1 slots of 1024.00 TiB"));
  std::vector<ModelProfile> large = base_and_adapters(1, "base", kMB);
  large[1].shapes.begin()->second.stage_bytes = {1400 * kMB};
  EXPECT_THAT(refusal(large, 1, 2000 * kMB),
              AllOf(HasSubstr("stage 0 of adapter-1 has 1000000040 pages, 1000000000 in slots of 1 B"),
                    HasSubstr("larger ones are needed (slot_bytes of the profiles)")));
  EXPECT_THAT(refusal({member_of("whole", "", 0, std::int64_t{1} << 54)}, 0, 100 * kMB),
              AllOf(HasSubstr("in frames of 9.54 MiB"), HasSubstr("larger ones are needed (--page-size)")));
}

// --- Passes with riders
// -------------------------------------------------------------------------------------------------

// A base of eight pages of a millisecond each, and an adapter of one more, the last one of its own pass.
class RiderOfAPass : public ::testing::Test {
 protected:
  RiderOfAPass() {
    for (std::size_t m = 0; m < 2; ++m) {
      ShardLayout& layout = layouts_[m];
      layout.page_bytes = 1000;
      for (PageId page = 0; page < 8 + m; ++page) {
        layout.used_bytes.push_back(1000);
        layout.uses.push_back(page);
        layout.over_before.push_back(static_cast<std::int64_t>(page) - 1);
        layout.contents.push_back({static_cast<std::uint8_t>(page < 8 ? page : 8 + m)});
      }
    }
    mesh_.emplace(std::vector<std::vector<const ShardLayout*>>{{&layouts_[0]}, {&layouts_[1]}},
                  CostModel({{&layouts_[0]}, {&layouts_[1]}},
                            {.link_bytes_per_s = 1e6, .memory_bytes_per_s = 1e18, .flops_per_s = 1e18, .step_s = 8e-3}),
                  /*latency_s=*/0);
  }
  static Step fetches(StepId id, ModelId model, PageId first, PageId end) {
    Step step;
    step.id = id;
    step.model = model;
    StagePlan& plan = step.stages.emplace_back();
    for (PageId page = first; page < end; ++page) plan.fetches.push_back({model, page, page, {}});
    return step;
  }
  static Step pass(StepId id, bool with_rider) {
    Step step;
    step.id = id;
    step.stages.emplace_back();
    step.chunks.resize(with_rider ? 2 : 1);
    for (SequenceChunk& chunk : step.chunks) chunk.tokens = {5};
    if (with_rider) step.chunks[1].rider = 1;
    return step;
  }

  ShardLayout layouts_[2];
  std::optional<VirtualMesh> mesh_;
};

TEST_F(RiderOfAPass, WaitsForItsOwnPages) {
  mesh_->execute(fetches(1, 0, 0, 8), 0);    // there at 8 ms
  mesh_->execute(fetches(2, 1, 8, 9), 0.1);  // at 101 ms
  const auto execution = mesh_->execute(pass(3, /*with_rider=*/true), 0.1);
  // Wanted behind 8 of 9 uses of its own pass, so with the eighth of the lead's: until then nobody waits.
  EXPECT_NEAR(execution.reported_s, 0.108, 1e-9);
  EXPECT_NEAR(execution.exposed_s, 0, 1e-9);
  mesh_->execute(fetches(4, 1, 8, 9), 0.2);  // once more, as if it had been evicted
  mesh_->execute(fetches(5, 0, 0, 8), 0.2);  // what others have copied behind it
  const auto late = mesh_->execute(pass(6, /*with_rider=*/true), 0.2);
  EXPECT_NEAR(late.reported_s, 0.210, 2e-9);
}

TEST_F(RiderOfAPass, IsHeldUpByAPageThatComesLate) {
  mesh_->execute(fetches(1, 0, 0, 8), 0);
  Step late = fetches(2, 1, 8, 9);
  for (int i = 0; i < 20; ++i) late.stages[0].fetches.push_back({1, 8, 8, {}});  // 21 ms in all
  mesh_->execute(late, 0.1);
  EXPECT_NEAR(mesh_->execute(pass(3, /*with_rider=*/false), 0.1).reported_s, 0.108, 1e-9);
  const auto execution = mesh_->execute(pass(4, /*with_rider=*/true), 0.108);
  EXPECT_NEAR(execution.reported_s, 0.121 + 0.001, 1e-9);
  EXPECT_NEAR(execution.exposed_s, 0.121 - 0.115, 1e-9);
}

}  // namespace
}  // namespace computron::test

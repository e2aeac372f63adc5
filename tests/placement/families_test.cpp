// Models that share weights: what they take in memory, over links, and where a search puts them.
#include <gmock/gmock.h>

#include <algorithm>
#include <list>
#include <random>
#include <set>

#include "computron/base/error.h"
#include "computron/placement/group_search.h"
#include "computron/placement/model_search.h"
#include "computron/placement/prediction.h"
#include "tests/placement/profiles.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMB = 1'000'000;

// --- A group's memory
// -------------------------------------------------------------------------------------------------

using Piece = SwappingGroup::Piece;

// The same with sets of pages, one at a time: a page has its models, a pass wants all of its model's.
class SetsOfPages {
 public:
  SetsOfPages(std::uint32_t models, const std::vector<Piece>& pieces, std::int64_t frames) : frames_(frames) {
    for (const Piece& piece : pieces) {
      for (std::int64_t i = 0; i < piece.bytes[0]; ++i) {
        pages_.push_back({piece.models, static_cast<std::int64_t>(pages_.size()) < frames});
      }
    }
    for (std::uint32_t m = 0; m < models; ++m) used_.push_front(m);
  }

  // Returns how many pages are copied.
  std::int64_t pass(std::uint32_t model) {
    const auto has = [model](const Page& page) { return std::ranges::count(page.models, model) > 0; };
    const auto all = std::ranges::count_if(pages_, has);
    const auto missing = std::ranges::count_if(pages_, [&](const Page& page) { return has(page) && !page.resident; });
    while (resident_of(model) < std::min<std::int64_t>(all, frames_)) {
      while (std::ranges::count_if(pages_, &Page::resident) >= frames_) evict(model);
      std::ranges::find_if(pages_, [&](const Page& page) { return has(page) && !page.resident; })->resident = true;
    }
    used_.remove(model);
    used_.push_back(model);
    return missing;
  }

  std::int64_t resident_of(std::uint32_t model) const {
    return std::ranges::count_if(
        pages_, [&](const Page& page) { return page.resident && std::ranges::count(page.models, model) > 0; });
  }

 private:
  struct Page {
    std::vector<std::uint32_t> models;
    bool resident;
  };

  // At the turn of the last of its models, and of those the last.
  void evict(std::uint32_t for_model) {
    std::set<std::uint32_t> passed;
    for (const std::uint32_t turn : used_) {
      if (turn == for_model) continue;
      passed.insert(turn);
      const auto is_passed = [&](std::uint32_t model) { return passed.contains(model); };
      const auto last = std::find_if(pages_.rbegin(), pages_.rend(), [&](const auto& page) {
        return page.resident && std::ranges::all_of(page.models, is_passed);
      });
      if (last == pages_.rend()) continue;
      last->resident = false;
      return;
    }
    ADD_FAILURE() << "nothing to evict";
  }

  std::int64_t frames_;
  std::vector<Page> pages_;
  std::list<std::uint32_t> used_;  // the least recently used first
};

// Each model has its own pages and some of others.
std::vector<Piece> random_pieces(std::uint32_t models, std::minstd_rand& random) {
  std::vector<Piece> pieces;
  for (std::uint32_t common = random() % 3; common > 0; --common) {
    Piece piece{{static_cast<std::int64_t>(random() % 6)}, {}, {}};
    for (std::uint32_t m = 0; m < models; ++m) {
      if (random() % 2 == 0) piece.models.push_back(m);
    }
    if (!piece.models.empty()) pieces.push_back(piece);
  }
  for (std::uint32_t m = 0; m < models; ++m) pieces.push_back({{1 + static_cast<std::int64_t>(random() % 5)}, {}, {m}});
  return pieces;
}

TEST(SwappingGroupOfFamilies, IsSetsOfPages) {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    std::minstd_rand random(seed);
    random.discard(3);
    const std::uint32_t models = 1 + random() % 5;
    const auto pieces = random_pieces(models, random);
    const std::int64_t frames = 1 + random() % 16;
    SwappingGroup group(models, pieces, {.device_bytes = frames, .page_bytes = 1, .link_bytes_per_s = 1});
    SetsOfPages pages(models, pieces, frames);
    double copied = 0;
    for (int pass = 0; pass < 30; ++pass) {
      const std::uint32_t model = random() % models;
      std::vector<double> ends(1);
      group.predict(model, pass, std::vector<double>{.1}, std::vector<double>{0}, ends);
      group.commit(model, ends);
      copied += static_cast<double>(pages.pass(model));
      ASSERT_EQ(group.swapped_bytes(), copied) << seed << ' ' << pass;
      for (std::uint32_t m = 0; m < models; ++m) {
        ASSERT_EQ(group.resident_bytes(m, 0), pages.resident_of(m)) << seed << ' ' << pass << ' ' << m;
      }
    }
  }
}

// A quarter is the model's own; the pass trails what is copied, page by page.
TEST(SwappingGroupOfFamilies, SiblingsSwapByTheirDifference) {
  const std::vector<Piece> pieces = {{{750}, {}, {0, 1}}, {{250}, {}, {0}}, {{250}, {}, {1}}};
  SwappingGroup group(2, pieces, {.device_bytes = 1000, .page_bytes = 10, .link_bytes_per_s = 100});
  EXPECT_EQ(group.resident_bytes(0, 0), 1000);
  EXPECT_EQ(group.resident_bytes(1, 0), 750);
  EXPECT_DOUBLE_EQ(group.missing_s(1), 2.5);
  std::vector<double> ends(1);
  group.predict(1, /*now=*/0, std::vector<double>{.1}, std::vector<double>{0}, ends);
  EXPECT_NEAR(ends[0], 2.5 + .1 * 10 / 1000, 1e-9);
  group.commit(1, ends);
  EXPECT_EQ(group.swapped_bytes(), 250);
  EXPECT_DOUBLE_EQ(group.missing_s(0), 2.5);
  EXPECT_EQ(group.missing_s(1), 0);
}

// --- Profiles --------------------------------------------------------------------------------------------------------

// One rank, `own` and `common` megabytes; those of one `part` have these in common.
ModelProfile variant(const std::string& id, const std::string& part, std::int64_t common, std::int64_t own) {
  ModelProfile model = single_gpu_model(id, .1, 1e-3 * static_cast<double>(common + own));
  model.shapes.begin()->second.shared = {{.name = part, .stage_bytes = {common * kMB}}};
  return model;
}

TEST(SharedParts, CountOnceInAGroup) {
  const std::vector<ModelProfile> models = {variant("a", "x", 1500, 500), variant("b", "y", 1500, 500),
                                            variant("c", "x", 1500, 100)};
  EXPECT_THAT(bytes_together(models, {{1, 1}, {0, 1, 2}}), ElementsAre((2000 + 2000 + 100) * kMB));
}

TEST(SharedParts, MakeSiblings) {
  std::vector<ModelProfile> models = {variant("a", "x", 1, 1),      variant("b", "y", 1, 1),
                                      variant("c", "z", 1, 1),      variant("d", "x", 1, 1),
                                      single_gpu_model("e", .1, 1), single_gpu_model("f", .1, 1)};
  models[5].family = models[1].family = "x";  // a name of its own
  models[3].shapes.begin()->second.shared.push_back({.name = "y", .stage_bytes = {0}});
  EXPECT_THAT(siblings_of(models), ElementsAre(ElementsAre(0, 1, 3, 5), ElementsAre(0, 1, 3, 5), IsEmpty(),
                                               ElementsAre(0, 1, 3, 5), IsEmpty(), ElementsAre(0, 1, 3, 5)));
}

std::string fault(const std::vector<ModelProfile>& models) {
  try {
    check_profiles(models);
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(SharedParts, AreChecked) {
  EXPECT_EQ(fault({variant("a", "x", 10, 0), variant("b", "x", 10, 5)}), "none");
  EXPECT_THAT(fault({variant("a", "x", 10, 1), variant("b", "x", 11, 1)}), HasSubstr("'x' is of another size"));
  EXPECT_THAT(fault({variant("a", "x", 10, -1)}), HasSubstr("more bytes than all"));
  ModelProfile twice = variant("a", "x", 1, 5);
  auto& shared = twice.shapes.begin()->second.shared;
  shared.push_back(shared[0]);
  EXPECT_THAT(fault({twice}), HasSubstr("'x' is shared twice"));
  shared[1] = {.name = "y", .stage_bytes = {1, 1}};
  EXPECT_THAT(fault({twice}), HasSubstr("'y' has 2 stages"));
  shared[1] = {.name = "y", .stage_bytes = {-1}};
  EXPECT_THAT(fault({twice}), HasSubstr("fewer bytes than none"));
  shared[1] = {.name = "y", .stage_bytes = {kMB}, .link_bytes = {}, .frame_bytes = {6 * kMB}};
  EXPECT_THAT(fault({twice}), HasSubstr("more bytes than all"));
}

// --- Placements ------------------------------------------------------------------------------------------------------

// Two ranks of 2.6 GB; two families of two variants of 2 GB, of which 1.5 GB are the family's. A family takes 2.5 GB,
// and is resident. Two that are no siblings take 4 GB: 2.6 GB of them are resident, so that whoever is asked for in
// turn finds 1.4 GB missing. Ten requests are of one family, its two models in turn, ten of the other one: who does not
// know that they share would keep them apart.
SearchProblem two_families(bool shared) {
  SearchProblem problem;
  problem.models = {variant("a0", "a", 1500, 500), variant("b0", "b", 1500, 500), variant("a1", "a", 1500, 500),
                    variant("b1", "b", 1500, 500)};
  for (ModelProfile& model : problem.models) {
    if (!shared) model.shapes.begin()->second.shared.clear();
  }
  problem.slo_s.assign(4, 10);
  for (std::uint32_t i = 0; i < 400; ++i) {
    problem.arrivals.push_back({.time_s = 1. * i, .model = i / 10 % 2 + 2 * (i % 2)});
  }
  problem.ranks = 2;
  problem.objective = Objective::kMeanLatency;
  problem.complete = true;
  problem.memory = {
      .device_bytes = 2600 * kMB,
      .swapping = ClusterMemory::Swapping{
          .host_bytes = 20'000 * kMB, .ranks_per_node = 2, .page_bytes = 10 * kMB, .link_bytes_per_s = 5e9}};
  return problem;
}

std::vector<std::string> group_of(const SearchProblem& problem, const ModelPlacement& placement, std::uint32_t model) {
  std::set<std::string> ids;
  for (const PlacedGroup& group : placement) {
    if (std::ranges::count(group.models, model) == 0) continue;
    for (const std::uint32_t m : group.models) ids.insert(problem.models[m].id);
  }
  return {ids.begin(), ids.end()};
}

TEST(Families, ArePlacedTogetherWhereThatSavesBytes) {
  const SearchProblem problem = two_families(/*shared=*/true);
  PlacementEvaluator knowing(problem), blind(two_families(/*shared=*/false));
  const ScoredPlacement found = search_placement(knowing);
  EXPECT_THAT(group_of(problem, found.placement, 0), ElementsAre("a0", "a1"));
  EXPECT_THAT(group_of(problem, found.placement, 1), ElementsAre("b0", "b1"));
  EXPECT_EQ(found.result.swapped_bytes, 0);  // 2.5 GB of 2.6: both are there from the start

  // Apart, each time that the other one of the group was asked for last.
  const ModelPlacement apart = {{{1, 1}, {0, 1}}, {{1, 1}, {2, 3}}};
  std::int64_t turns = 0;
  std::vector<std::uint32_t> last = {0, 2};  // of each group: the first model is resident
  for (const Arrival& arrival : problem.arrivals) {
    std::uint32_t& used = last[arrival.model / 2];
    turns += used == arrival.model ? 0 : 1;
    used = arrival.model;
  }
  const SimulationResult mixed = knowing.simulate(apart, problem.arrivals);
  EXPECT_EQ(mixed.swapped_bytes, static_cast<double>(turns * 1400 * kMB));
  EXPECT_GT(turns, 50);

  // A search that does not know of them.
  const ScoredPlacement unaware = search_placement(blind);
  EXPECT_GT(blind.simulate(unaware.placement, problem.arrivals).swapped_bytes, 0);
  EXPECT_GT(knowing.evaluate(unaware.placement).result.swapped_bytes, 0);
  EXPECT_LT(knowing.evaluate(unaware.placement).score, found.score);
}

// Nodes of one rank hold 2.6 GB: a family each, not two models of different ones.
TEST(Families, ShareHostMemory) {
  SearchProblem problem = two_families(/*shared=*/true);
  problem.memory.swapping->ranks_per_node = 1;
  problem.memory.swapping->host_bytes = 2600 * kMB;
  EXPECT_TRUE(fits(problem, {{{1, 1}, {0, 2}}, {{1, 1}, {1, 3}}}));
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}, {{1, 1}, {2, 3}}}));
  // Groups of one shape on one node hold a part once, too.
  problem.memory.swapping->ranks_per_node = 2;
  problem.memory.swapping->host_bytes = 2500 * kMB;
  EXPECT_TRUE(fits(problem, {{{1, 1}, {0, 1}}, {{1, 1}, {2, 3}}}));
  problem.memory.swapping->host_bytes = 2499 * kMB;
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}, {{1, 1}, {2, 3}}}));
  problem.memory.swapping->ranks_per_node = 1;
  problem.memory.swapping->host_bytes = 2600 * kMB;
  PlacementEvaluator crowded(problem);
  EXPECT_FALSE(crowded.lacks_models(search_placement(crowded).placement));
}

TEST(Families, FitDevicesThatHoldEveryModel) {
  SearchProblem problem = two_families(/*shared=*/true);
  problem.memory.swapping.reset();
  EXPECT_TRUE(fits(problem, {{{1, 1}, {0, 2}}, {{1, 1}, {1, 3}}}));
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}, {{1, 1}, {2, 3}}}));
  PlacementEvaluator evaluator(problem);
  EXPECT_FALSE(evaluator.lacks_models(search_placement(evaluator).placement));
}

TEST(Families, AreBroughtTogetherByImprovement) {
  PlacementEvaluator evaluator(two_families(/*shared=*/true));
  const ScoredPlacement improved = improve(evaluator, evaluator.evaluate({{{1, 1}, {0, 1}}, {{1, 1}, {2, 3}}}));
  EXPECT_THAT(group_of(evaluator.problem(), improved.placement, 0), ElementsAre("a0", "a1"));
  EXPECT_EQ(improved.result.swapped_bytes, 0);
}

}  // namespace
}  // namespace computron

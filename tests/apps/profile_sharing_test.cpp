// What profiles say that models have in common, from layouts made by hand.
#include "src/apps/profile_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "computron/base/digest.h"
#include "computron/checkpoint/reader.h"
#include "computron/device/device.h"
#include "computron/runtime/page_contents.h"
#include "tests/support/job.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Bytes = std::vector<std::int64_t>;

constexpr std::size_t kPage = 1000;
constexpr GroupShape kOne{1, 1}, kStages{1, 2}, kRanks{2, 1};

struct Page {
  char holds = 0;
  std::size_t used_bytes = 900;
  std::size_t link_bytes = 0;  // 0: the layout does not say
};

ShardLayout stage_of(std::initializer_list<Page> pages, std::size_t page_bytes = kPage) {
  ShardLayout layout;
  layout.page_bytes = page_bytes;
  for (const Page& page : pages) {
    layout.contents.push_back(digest128(std::as_bytes(std::span(&page.holds, 1))));
    layout.used_bytes.push_back(page.used_bytes);
    if (page.link_bytes > 0) layout.link_bytes.push_back(page.link_bytes);
  }
  return layout;
}

TensorEntry tensor_of(std::vector<std::size_t> shape, char holds) {
  TensorEntry entry;
  entry.shape = std::move(shape);
  entry.digests = {digest128(std::as_bytes(std::span(&holds, 1)))};
  return entry;
}

// Models of a job to be, and their profiles as measured.
class SharedParts : public ::testing::Test {
 protected:
  // `link_share`: of its bytes, what the model takes over links on shapes that nobody measured; 1: pages are raw.
  void add(ShapeLayouts layouts, double link_share = 1) {
    const std::string id(1, static_cast<char>('a' + models_.size()));
    ModelProfile& model = models_.emplace_back(ModelProfile{.id = id, .shapes = {}});
    for (const auto& [shape, stages] : layouts) {
      ShapeProfile profile;
      for (const ShardLayout& layout : stages) {
        profile.stage_s.push_back(1);
        profile.stage_bytes.push_back(static_cast<std::int64_t>(layout.total_used_bytes()));
        profile.frame_bytes.push_back(static_cast<std::int64_t>(layout.frame_bytes()));
        const bool says = !layout.link_bytes.empty();
        const double link_bytes = says ? static_cast<double>(layout.total_link_bytes())
                                       : link_share * static_cast<double>(layout.total_used_bytes());
        if (says || link_share < 1) profile.link_bytes.push_back(static_cast<std::int64_t>(link_bytes));
      }
      model.shapes.emplace(shape, std::move(profile));
    }
    layouts_.push_back(std::move(layouts));
  }
  void share() {
    add_shared_parts(layouts_, models_);
    check_profiles(models_);
  }
  const std::vector<SharedPart>& parts(std::size_t model, const GroupShape& shape = kOne) const {
    return models_[model].shapes.at(shape).shared;
  }

  std::vector<ShapeLayouts> layouts_;
  std::vector<ModelProfile> models_;
};

TEST_F(SharedParts, AreOfTheModelsThatHaveThemAndNoOthers) {
  add({{kOne, {stage_of({{'x', 10}, {'y', 20}, {'z', 40}, {'1', 80}})}}});
  add({{kOne, {stage_of({{'2', 80}, {'x', 10}, {'y', 20}})}}});
  add({{kOne, {stage_of({{'x', 10}, {'3', 80}, {'z', 40}})}}});
  add({{kOne, {stage_of({{'4', 80}})}}});
  share();
  ASSERT_THAT(parts(0), SizeIs(3));  // of a, b and c: x; of a and b: y; of a and c: z
  ASSERT_THAT(parts(1), SizeIs(2));
  ASSERT_THAT(parts(2), SizeIs(2));
  EXPECT_THAT(parts(3), IsEmpty());
  const auto bytes_of = [&](std::size_t model) {
    std::map<std::string, Bytes> bytes;
    for (const SharedPart& part : parts(model)) bytes[part.name] = part.stage_bytes;
    return bytes;
  };
  const auto of_a = bytes_of(0), of_b = bytes_of(1), of_c = bytes_of(2);
  ASSERT_THAT(of_a, SizeIs(3)) << "no two of one name";
  std::map<Bytes, int> sharers;
  for (const auto& [name, bytes] : of_a) {
    for (const auto* other : {&of_b, &of_c}) {
      const auto found = other->find(name);
      if (found == other->end()) continue;
      EXPECT_EQ(found->second, bytes) << name;
      sharers[bytes] += other == &of_b ? 1 : 10;
    }
  }
  EXPECT_EQ(sharers, (std::map<Bytes, int>{{Bytes{10}, 11}, {Bytes{20}, 1}, {Bytes{40}, 10}}));
  for (const SharedPart& part : parts(0)) {
    EXPECT_THAT(part.frame_bytes, ElementsAre(kPage)) << "a page, full or not";
    EXPECT_THAT(part.link_bytes, IsEmpty()) << "pages are raw";
  }
}

// What all have is first in a pass here, what only some have next: a model that is evicted loses its last pages first.
TEST_F(SharedParts, AreInTheOrderOfAPass) {
  add({{kOne, {stage_of({{'x', 10}, {'y', 20}, {'z', 40}, {'1', 80}})}}});
  add({{kOne, {stage_of({{'x', 10}, {'y', 20}, {'2', 80}})}}});
  add({{kOne, {stage_of({{'x', 10}, {'z', 40}, {'3', 80}})}}});
  share();
  ASSERT_THAT(parts(0), SizeIs(3));
  EXPECT_THAT(parts(0)[0].stage_bytes, ElementsAre(10));
  EXPECT_THAT(parts(0)[1].stage_bytes, ElementsAre(20));
  EXPECT_THAT(parts(0)[2].stage_bytes, ElementsAre(40));
}

TEST_F(SharedParts, AreTheSameOnAllShapesStageByStage) {
  const ShardLayout first = stage_of({{'x', 10}, {'1', 80}}), last = stage_of({{'y', 20}, {'2', 80}});
  const ShardLayout other_first = stage_of({{'x', 10}, {'3', 80}}), other_last = stage_of({{'y', 20}, {'z', 40}});
  const ShardLayout of_third = stage_of({{'9'}}), last_of_third = stage_of({{'z', 40}});
  add({{kOne, {stage_of({{'x', 10}, {'y', 20}, {'1', 80}})}}, {kStages, {first, last}}});
  add({{kOne, {stage_of({{'x', 10}, {'y', 20}, {'3', 80}})}}, {kStages, {other_first, other_last}}});
  add({{kStages, {of_third, last_of_third}}});
  share();
  ASSERT_THAT(parts(0), SizeIs(1));
  ASSERT_THAT(parts(0, kStages), SizeIs(1));
  EXPECT_THAT(parts(0)[0].stage_bytes, ElementsAre(30));
  EXPECT_THAT(parts(0, kStages)[0].stage_bytes, ElementsAre(10, 20));
  EXPECT_THAT(parts(0, kStages)[0].frame_bytes, ElementsAre(kPage, kPage));
  EXPECT_EQ(parts(0)[0].name, parts(0, kStages)[0].name);
  EXPECT_EQ(parts(1, kStages)[0].name, parts(0)[0].name);
  // Of the second and the third one, on the last stage alone.
  ASSERT_THAT(parts(2, kStages), SizeIs(1));
  EXPECT_THAT(parts(2, kStages)[0].stage_bytes, ElementsAre(0, 40));
  EXPECT_THAT(parts(2, kStages)[0].frame_bytes, ElementsAre(0, kPage));
  EXPECT_NE(parts(2, kStages)[0].name, parts(0)[0].name);
}

TEST_F(SharedParts, AreOfPagesOfOneSizeOnOneShape) {
  add({{kOne, {stage_of({{'x'}, {'1'}})}}});
  add({{kOne, {stage_of({{'x'}, {'2'}}, 2 * kPage)}}});
  add({{kRanks, {stage_of({{'x'}, {'3'}})}}});
  // The first two have a vector in common, the first and the third a matrix, of which one has another shape.
  const auto index_of = [](char vector, char matrix) {
    CheckpointIndex index;
    index.tensors["v"] = tensor_of({8}, vector);
    index.tensors["m"] = tensor_of({2, 4}, matrix);
    return index;
  };
  std::vector<CheckpointIndex> indices = {index_of('0', 'x'), index_of('0', 'y'), index_of('1', 'x')};
  EXPECT_EQ(page_sizes_text(layouts_, models_, indices), "") << "they are no siblings";
  indices[1] = index_of('2', 'x');
  EXPECT_THAT(page_sizes_text(layouts_, models_, indices),
              AllOf(HasSubstr("tp 1 x pp 1"), HasSubstr("1000 B (a)"), HasSubstr("1.95 KiB (b)")));
  share();
  for (const ModelProfile& model : models_) EXPECT_THAT(model.shapes.begin()->second.shared, IsEmpty()) << model.id;
  add({{kOne, {stage_of({{'x'}, {'4'}}, 2 * kPage)}}});
  for (ModelProfile& model : models_) model.shapes.begin()->second.shared.clear();
  share();
  EXPECT_THAT(parts(0), IsEmpty());
  EXPECT_EQ(parts(1).at(0).name, parts(3).at(0).name);
  layouts_.erase(layouts_.begin());
  indices = {3, index_of('0', 'x')};
  EXPECT_EQ(page_sizes_text(layouts_, models_, indices), "");
}

TEST_F(SharedParts, TakeTheLinkBytesOfTheirPages) {
  add({{kOne, {stage_of({{'x', 900, 500}, {'y', 900, 900}, {'1', 900, 100}})}}});
  add({{kOne, {stage_of({{'y', 900, 900}, {'2', 900, 700}, {'x', 900, 500}})}}});
  share();
  for (const std::size_t model : {0, 1}) {
    EXPECT_THAT(parts(model).at(0).stage_bytes, ElementsAre(1800));
    EXPECT_THAT(parts(model)[0].link_bytes, ElementsAre(1400));
  }
}

// Variants that gain more or less than each other where pages are coded: of shapes that nobody measured their totals
// are estimates, and what they share is no more than the whole of any of them.
TEST_F(SharedParts, TakeNoMoreThanAllOfAnyModelDoes) {
  add({{kOne, {stage_of({{'x'}, {'y'}, {'1'}})}}}, 0.9);
  add({{kOne, {stage_of({{'x'}, {'y'}})}}}, 0.6);
  add({{kOne, {stage_of({{'x'}, {'y'}})}}});  // its pages are raw
  share();
  for (const std::size_t model : {0, 1, 2}) EXPECT_THAT(parts(model).at(0).link_bytes, ElementsAre(1080));
}

// A stage of 100 bytes that all have, and an adapter in two slots of 64.
ShardLayout beside_slots(char own, std::initializer_list<Page> more = {}) {
  ShardLayout layout = stage_of({{'x', 100}, {'s', 50}, {own, 60}});
  const ShardLayout rest = stage_of(more);
  layout.contents.insert(layout.contents.end(), rest.contents.begin(), rest.contents.end());
  layout.used_bytes.insert(layout.used_bytes.end(), rest.used_bytes.begin(), rest.used_bytes.end());
  layout.slot_bytes = 64;
  layout.adapter_pages = {1, 2};
  return layout;
}

ShardLayout without_slots(char all) {
  ShardLayout layout = stage_of({{all, 100}});
  layout.slot_bytes = 64;
  return layout;
}

TEST_F(SharedParts, AreNotFoundInSlots) {
  add({{kStages, {without_slots('w'), beside_slots('1')}}});
  add({{kStages, {without_slots('w'), beside_slots('2')}}});
  add({{kStages, {without_slots('w'), without_slots('x')}}});
  share();
  for (const std::size_t model : {0, 1, 2}) {
    ASSERT_THAT(parts(model, kStages), SizeIs(1));
    EXPECT_THAT(parts(model, kStages)[0].stage_bytes, ElementsAre(100, 100)) << "and not what two adapters have";
  }
  EXPECT_EQ(models_[0].shapes.at(kStages).slot_bytes, 64);
  EXPECT_EQ(models_[1].shapes.at(kStages).slot_bytes, 64);
  EXPECT_EQ(models_[2].shapes.at(kStages).slot_bytes, 0);
}

// A profile says that all that is not shared lies in slots: so not where a part of the base is the model's alone.
TEST_F(SharedParts, AreAllButAnAdapterWhereThatLiesInSlots) {
  add({{kOne, {beside_slots('1')}}});
  add({{kOne, {beside_slots('2', {{'m', 30}})}}});
  add({{kOne, {stage_of({{'x', 100}})}}});
  share();
  EXPECT_EQ(models_[0].shapes.at(kOne).slot_bytes, 64);
  EXPECT_EQ(models_[1].shapes.at(kOne).slot_bytes, 0);
  layouts_.pop_back();
  layouts_.pop_back();
  models_.resize(1);
  models_[0].shapes.at(kOne).shared.clear();
  models_[0].shapes.at(kOne).slot_bytes = 0;
  share();
  EXPECT_EQ(models_[0].shapes.at(kOne).slot_bytes, 0) << "no base beside it";
}

// --- Families ---------------------------------------------------------------------------------------------------

// A stage whose family is of this name; 0: none.
ShardLayout stage_of_family(char family, bool adapted) {
  ShardLayout layout = stage_of({{'x'}});
  if (family != 0) layout.family = digest128(std::as_bytes(std::span(&family, 1)));
  if (adapted) layout.plan.config.adapter_ranks["layers.0.attention.q"] = 4;
  return layout;
}

TEST_F(SharedParts, AndFamiliesAreEqualOnAllStagesOfAllShapes) {
  const auto stages = [](char first, char last, bool adapted) {
    return ShapeLayouts{{kOne, {stage_of_family(first, adapted)}},
                        {kStages, {stage_of_family(first, adapted), stage_of_family(last, adapted)}}};
  };
  add(stages('z', 'z', false));  // alone
  add(stages('f', 'l', false));
  add(stages('f', 'm', true));
  add(stages('f', 'l', true));
  add(stages('f', 0, true));
  add(stages('f', 0, true));                    // on one stage a pass takes no riders
  add({{kOne, {stage_of_family('f', true)}}});  // is served on one shape only
  share();
  std::vector<std::string> families;
  for (const ModelProfile& model : models_) families.push_back(model.family);
  EXPECT_THAT(families, ElementsAre("", "b", "", "b", "", "", ""));
}

TEST_F(SharedParts, AndThereAreNoFamiliesWithoutAdapters) {
  for (int m = 0; m < 2; ++m) add({{kOne, {stage_of_family('f', false)}}});
  share();
  EXPECT_EQ(models_[0].family, "");
  EXPECT_EQ(models_[1].family, "");
  EXPECT_THAT(parts(0), SizeIs(1));
}

// --- What checkpoints say ---------------------------------------------------------------------------------------

// Words of two megabytes, the unit in which stored bytes have digests; the second one is another's.
TEST(ContentsOfLayouts, AreOfAllRanksOfAStage) {
  const TinyModel model{.layers = 1, .vocab = 8192, .seed = 9};
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "base.h5", model);
  const CheckpointIndex base = read_checkpoint_index(folder / "base.h5");
  CheckpointIndex words = base;
  std::vector<Digest128>& digests = words.tensors.at("embedding.tokens.weight").digests;
  ASSERT_THAT(digests, SizeIs(2));
  digests[1] = digests[0];
  const auto device = make_cpu_device({.threads = 1});
  const auto ops = make_cpu_ops(*device);
  const auto layouts_at = [&](const GroupShape& shape) {
    const ShardPlan plan = ShardPlan::make(opt_config(model), {shape.tp, shape.pp}, /*stage=*/0);
    const auto types = ops->weight_type(model.dtype);
    return ShapeLayouts{{shape, {ShardLayout::make(plan, ops->weight_format(), types, 64 << 10)}}};
  };
  for (const GroupShape& shape : {kOne, kRanks}) {
    const ShardLayout of_base = with_contents(layouts_at(shape), base).at(shape)[0];
    const ShardLayout of_words = with_contents(layouts_at(shape), words).at(shape)[0];
    ASSERT_EQ(of_base.contents.size(), of_base.used_bytes.size());
    std::size_t differ = 0;
    for (std::size_t p = 0; p < of_base.contents.size(); ++p) differ += of_base.contents[p] != of_words.contents[p];
    EXPECT_GE(differ, 16u) << "a megabyte of a rank's";
    EXPECT_LT(differ, of_base.contents.size());
    ASSERT_TRUE(of_base.family.has_value());
    EXPECT_NE(of_base.family, of_words.family);
    EXPECT_EQ(of_base.family, with_contents(layouts_at(shape), base).at(shape)[0].family);
  }
}

}  // namespace
}  // namespace computron::test

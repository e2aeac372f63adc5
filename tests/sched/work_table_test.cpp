#include "computron/sched/work_table.h"

#include <gmock/gmock.h>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int kModels = 4;

class WorkTableTest : public ::testing::Test {
 protected:
  static std::vector<ModelWork> models() {
    std::vector<ModelWork> models;
    for (int m = 0; m < kModels; ++m) models.emplace_back(kBlockTokens, std::vector<TokenId>{});
    return models;
  }
  void enqueue(ModelId model) {
    table_.edit(model, [&](ModelWork& work) { work.enqueue(make_request(++last_request_, model, 5, 1)); });
  }
  void admit(ModelId model) {
    table_.edit(model, [&](ModelWork& work) { work.admit_next(++last_sequence_); });
  }
  std::vector<ModelId> edited() {
    std::vector<ModelId> models;
    table_.visit_edited(WorkTable::Reader::kPolicy, [&models](ModelId model) { models.push_back(model); });
    return models;
  }
  WorkTable table_{models()};
  RequestId last_request_ = 0;
  SequenceId last_sequence_ = 0;
};

TEST_F(WorkTableTest, ListsFollowEveryEdit) {
  EXPECT_THAT(table_.with_work(), IsEmpty());
  enqueue(2);
  enqueue(0);
  EXPECT_THAT(table_.with_work(), UnorderedElementsAre(0, 2));
  EXPECT_THAT(table_.with_running(), IsEmpty());
  admit(2);
  EXPECT_THAT(table_.with_work(), UnorderedElementsAre(0, 2));
  EXPECT_THAT(table_.with_running(), ElementsAre(2));
  table_.edit(2, [](ModelWork& work) { work.set_blocks(3); });
  EXPECT_THAT(table_.with_cache(), ElementsAre(2));

  PassResults results;
  const SampledRow row{.token = 3, .top = {}};
  results.rows = {&row, 1};
  table_.edit(2, [&](ModelWork& work) {
    const PassPlan pass = work.choose({.tokens = 100, .prompt_tokens = 100, .logit_rows = 100, .blocks = 3});
    std::vector<SequenceChunk> chunks;
    const auto members = work.begin_pass(pass, /*step=*/1, /*now_s=*/0, chunks);
    EXPECT_TRUE(work.take_results(members.at(0), results, 1).has_value());
  });
  EXPECT_THAT(table_.with_work(), ElementsAre(0)) << "the only request has ended";
  EXPECT_THAT(table_.with_running(), IsEmpty());
  EXPECT_THAT(table_.with_cache(), ElementsAre(2)) << "blocks outlive their sequences";
  table_.edit(2, [](ModelWork& work) { work.set_blocks(0); });
  EXPECT_THAT(table_.with_cache(), IsEmpty());
}

TEST_F(WorkTableTest, CountsWhatWaits) {
  for (const ModelId model : {0, 1, 1}) enqueue(model);
  EXPECT_EQ(table_.waiting(), 3u);
  EXPECT_EQ(table_.waiting_bytes(), 3 * make_request(1, 0, 5, 1).bytes());
  admit(1);
  EXPECT_EQ(table_.waiting(), 2u);
  EXPECT_EQ(table_.edit(1, [](ModelWork& work) { return work.take_youngest(9); }).size(), 1u);
  EXPECT_EQ(table_.waiting(), 1u);
  EXPECT_EQ(table_.waiting_bytes(), make_request(1, 0, 5, 1).bytes());
}

TEST_F(WorkTableTest, NamesEachEditedModelOnce) {
  EXPECT_THAT(edited(), UnorderedElementsAre(0, 1, 2, 3)) << "nobody has seen them yet";
  enqueue(1);
  enqueue(1);
  enqueue(3);
  EXPECT_THAT(edited(), UnorderedElementsAre(1, 3));
  EXPECT_THAT(edited(), IsEmpty());
}

TEST(ModelList, IsASet) {
  ModelList list(5);
  for (const ModelId model : {3, 1, 4, 1}) list.insert(model);
  EXPECT_THAT(list.models(), UnorderedElementsAre(1, 3, 4));
  list.erase(3);
  list.erase(0);
  list.set(4, true);
  list.set(1, false);
  EXPECT_THAT(list.models(), ElementsAre(4));
  EXPECT_FALSE(list.contains(3));
  list.clear();
  EXPECT_TRUE(list.empty());
  EXPECT_FALSE(list.contains(4));
}

}  // namespace
}  // namespace computron::test

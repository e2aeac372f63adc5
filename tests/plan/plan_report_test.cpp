#include "computron/plan/plan_report.h"

#include <gmock/gmock.h>

namespace computron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanReportTest : public ::testing::Test {
 protected:
  PlanReportTest() {
    layout_.page_bytes = 1 << 20;
    layout_.used_bytes = {1 << 20, 1 << 19};
    layout_.uses = {0, 1};
    layout_.over_before = {-1, 0};
    run_.groups.resize(1);
  }

  // A pass of `model` that fetches both pages of `fetched`.
  void pass(ModelId model, double begin_s, double end_s, std::optional<ModelId> fetched, double exposed_s = 0) {
    VirtualRun::SentStep& sent = run_.steps.emplace_back();
    sent.execution = {.begin_s = begin_s, .reported_s = end_s, .exposed_s = exposed_s, .times = {}};
    Step& step = sent.planned.step;
    step.id = run_.steps.size();
    step.model = model;
    step.chunks.push_back({.sequence = 1, .tokens = {5, 6}, .new_blocks = {}});
    step.stages.resize(1);
    if (fetched) step.stages[0].fetches = {{*fetched, 0, 0, {}}, {*fetched, 1, 1, {}}};
    run_.groups[0].end_s = end_s;
  }
  Plan plan() const {
    const std::vector<std::vector<const ShardLayout*>> layouts{{&layout_}, {&layout_}};
    PlanRecorder recorder(layouts, /*tp=*/2);
    for (const VirtualRun::SentStep& sent : run_.steps) recorder.add(sent);
    return recorder.finish(run_, /*group=*/0, VirtualMesh(layouts, CostModel(layouts, {}), 0));
  }

  ShardLayout layout_;
  VirtualRun run_;
};

TEST_F(PlanReportTest, ConsecutivePassesAreOnePeriodAndPayForTheirOwnPages) {
  pass(0, 0, 1, 0, 0.25);
  pass(0, 1, 2, 1);  // fetches ahead for the other model
  pass(1, 2, 4, std::nullopt);
  const Plan plan = this->plan();
  ASSERT_EQ(plan.periods.size(), 2u);
  EXPECT_EQ(plan.periods[0].passes, 2);
  EXPECT_EQ(plan.periods[0].rows, 4);
  EXPECT_EQ(plan.periods[0].begin_s, 0);
  EXPECT_EQ(plan.periods[0].end_s, 2);
  EXPECT_EQ(plan.periods[0].exposed_s, 0.25);
  EXPECT_EQ(plan.periods[0].fetched_bytes, 3u << 19);
  EXPECT_EQ(plan.periods[1].model, 1u);
  EXPECT_EQ(plan.periods[1].fetched_bytes, 3u << 19) << "what was fetched before its period";
  EXPECT_EQ(plan.fetched_bytes, 2 * 2 * (3u << 19)) << "both models on two ranks";
}

TEST_F(PlanReportTest, SaysWhatCrossesTheLinksWherePagesAreCoded) {
  pass(0, 0, 1, 0);
  EXPECT_EQ(plan().link_bytes, plan().fetched_bytes);
  EXPECT_THAT(format_plan(plan(), {"alpha", "beta"}, {}), Not(HasSubstr("over the links")));
  layout_.link_bytes = {1 << 19, 1 << 18};
  EXPECT_EQ(plan().fetched_bytes, 2 * (3u << 19));
  EXPECT_EQ(plan().link_bytes, 2 * (3u << 18));
  EXPECT_THAT(format_plan(plan(), {"alpha", "beta"}, {}), HasSubstr("move 3.00 MiB, 1.50 MiB over the links; links"));
}

TEST_F(PlanReportTest, TheTableNamesModelsAndStopsAtItsLimit) {
  for (int i = 0; i < 6; ++i) pass(static_cast<ModelId>(i % 2), i, i + 1, std::nullopt);
  const std::string text = format_plan(plan(), {"alpha", "beta"}, {}, /*max_periods=*/1);
  EXPECT_THAT(text, AllOf(HasSubstr("alpha"), Not(HasSubstr("beta")), HasSubstr("5 turns more"), HasSubstr("6.000")));
}

TEST_F(PlanReportTest, DeadlinesAreCountedByLineAndModel) {
  EXPECT_EQ(format_deadlines(run_, {"alpha", "beta"}), "");
  const auto end = [this](RequestId id, ModelId model, double finished_s, double due_s, const char* error = "") {
    Completion& completion = run_.completions.emplace_back();
    completion.id = id;
    completion.model = model;
    completion.finished_s = finished_s;
    completion.due_s = due_s;
    completion.error_code = error;
  };
  end(0, 1, 5, kNoDeadline);
  EXPECT_EQ(format_deadlines(run_, {"alpha", "beta"}), "");
  end(1, 0, 1, 2);
  end(2, 0, 1, 2);  // and its other part is late
  end(2, 0, 3, 2);
  end(3, 1, 3, 2, "deadline_exceeded");
  const std::string text = format_deadlines(run_, {"alpha", "beta"});
  EXPECT_THAT(text, ::testing::ContainsRegex("alpha +50.0 % of +2 met, 0 not served\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("beta +0.0 % of +1 met, 1 not served\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("all models +33.3 % of +3 met, 1 not served\n"));
}

TEST_F(PlanReportTest, NothingToDoIsAPlanToo) {
  EXPECT_THAT(format_plan(plan(), {"alpha", "beta"}, {}), HasSubstr("0 requests"));
}

}  // namespace
}  // namespace computron

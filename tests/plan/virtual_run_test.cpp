#include "computron/plan/virtual_run.h"

#include <gmock/gmock.h>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::DoubleNear;

constexpr double kTransfer_s = 1e-3, kPass_s = 2e-3, kLatency_s = 10e-6;  // of a page; of a pass on a stage

// Models of five pages a stage, the first of them used twice.
class VirtualRunTest : public ::testing::Test {
 protected:
  static SchedulerOptions options(int frames) {
    return {.frames = frames,
            .max_seqs = 8,
            .steps_in_flight = 3,
            .costs = {.link_bytes_per_s = kPageBytes / kTransfer_s,
                      .memory_bytes_per_s = 1e15,
                      .flops_per_s = 1e15,
                      .step_s = kPass_s}};
  }
  VirtualRun run(const std::vector<Request>& requests, int frames, const char* policy = "balanced") {
    std::vector<std::vector<const ShardLayout*>> layouts;
    for (const ModelShape& shape : model_list_.shapes()) layouts.push_back(shape.layouts);
    Scheduler scheduler(model_list_.shapes(), model_list_.names(), make_policy(policy), options(frames));
    for (const Request& request : requests) scheduler.submit(request);
    scheduler.close_input();
    VirtualMesh mesh(layouts, CostModel(layouts, options(frames).costs), kLatency_s);
    VirtualRun result = run_keeping_steps(scheduler, mesh);
    bytes_ = {mesh.bytes(0), mesh.bytes(1)};
    busy_s_ = mesh.busy_s(0);
    return result;
  }
  // Bytes of a model on a stage: the fakes' pages are not quite full.
  std::size_t shard_bytes() const { return model_list_.shape(0).layouts[0]->total_used_bytes(); }

  FakeModelList model_list_{{{.pages = {5, 5}, .layers = {1, 1}}, {.pages = {5, 5}, .layers = {1, 1}}}};
  std::vector<std::size_t> bytes_;
  double busy_s_ = 0;
};

TEST_F(VirtualRunTest, ASwapEndsBehindItsLastPage) {
  const VirtualRun alone = run({make_request(0, 0, 4, 1)}, 20);
  EXPECT_EQ(bytes_, std::vector(2, shard_bytes()));
  EXPECT_EQ(alone.swaps, 1u);
  const double transfer_s = kTransfer_s * static_cast<double>(shard_bytes()) / kPageBytes;
  EXPECT_THAT(busy_s_, DoubleNear(transfer_s, 1e-9));
  // Both stages fetch at once; after the last page come its use, the tied one, and the second stage's pass, whose pages
  // are all there.
  const double seconds = alone.completions.at(0).finished_s;
  EXPECT_GT(seconds, transfer_s + kPass_s);
  EXPECT_LT(seconds, transfer_s + 2 * kPass_s);
}

TEST_F(VirtualRunTest, AResidentModelTakesItsPassesOnly) {
  const VirtualRun two = run({make_request(0, 0, 4, 1), make_request(1, 0, 4, 1, /*arrival_s=*/1)}, 20);
  const Completion& second = two.completions.at(1);
  EXPECT_THAT(second.finished_s - second.arrival_s, DoubleNear(2 * kPass_s + 2 * kLatency_s, 1e-6));
  EXPECT_EQ(two.swaps, 1u);
}

TEST_F(VirtualRunTest, APoolForOneModelSwapsInTurn) {
  std::vector<Request> requests;
  for (RequestId id = 0; id < 6; ++id) requests.push_back(make_request(id, id % 2, 4, 1, static_cast<double>(id)));
  const VirtualRun run_of_two = run(requests, 6);
  EXPECT_EQ(run_of_two.swaps, 6u);
  EXPECT_EQ(bytes_, std::vector(2, 6 * shard_bytes()));
}

// The same requests, the same run: to the last bit of every time.
TEST_F(VirtualRunTest, IsAFunctionOfItsInput) {
  std::vector<Request> requests;
  for (RequestId id = 0; id < 60; ++id) {
    requests.push_back(make_request(id, id * 7 % 3 % 2, 4 + static_cast<int>(id % 3), 1 + static_cast<int>(id % 4),
                                    2.5e-3 * static_cast<double>(id)));
  }
  const VirtualRun first = run(requests, 9), second = run(requests, 9);
  ASSERT_EQ(first.completions.size(), requests.size());
  ASSERT_EQ(first.completions.size(), second.completions.size());
  for (std::size_t i = 0; i < first.completions.size(); ++i) {
    EXPECT_EQ(first.completions[i].id, second.completions[i].id);
    EXPECT_EQ(first.completions[i].finished_s, second.completions[i].finished_s);
  }
  EXPECT_EQ(first.steps.size(), second.steps.size());
  EXPECT_GT(first.swaps, 2u);
}

}  // namespace
}  // namespace computron::test

#include "computron/comm/stage_transfer.h"

#include <gtest/gtest.h>

#include <numeric>

namespace computron {
namespace {

std::vector<float> activations(int t, int step, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(1000 * t + 100 * step));
  return values;
}

// Ranks in a pipeline of pp stages, with the stages' own transfers polled from the hook.
class StageTransferTest : public testing::TestWithParam<int> {
 protected:
  static constexpr std::size_t kMaxCount = 300000;
  static constexpr int kBuffers = 2;

  StageTransferTest() {
    progress_.set_hook([this] { transfer_.poll(); });
  }
  static MeshShape shape() {
    const int ranks = Communicator::world().size();
    return ranks % GetParam() == 0 ? MeshShape{.tp = GetParam(), .pp = ranks / GetParam()} : MeshShape{.tp = ranks};
  }

  Progress progress_{IdlePolicy{}};
  Mesh mesh_{shape(), Communicator::world()};
  StageTransfer transfer_{mesh_, progress_, kMaxCount, kBuffers};
  std::unique_ptr<Device> device_ = make_cpu_device({});
  std::unique_ptr<Stream> stream_ = device_->make_compute_stream(progress_);
};

// The first stage runs ahead by as many steps as there are buffers and then waits; every stage adds one.
TEST_P(StageTransferTest, CarriesEveryStepThroughAllStages) {
  for (int step = 0; step < 30; ++step) {
    const std::size_t count = step % 7 == 0 ? kMaxCount : 10 + step;
    std::vector<float> data = activations(mesh_.t, step, count);
    if (!mesh_.first_stage()) {
      std::fill(data.begin(), data.end(), -1.0f);
      transfer_.receive(*stream_, data.data(), count);
      stream_->synchronize();
    }
    std::vector<float> expected = activations(mesh_.t, step, count);
    for (float& x : expected) x += static_cast<float>(mesh_.stage);
    ASSERT_EQ(data, expected) << "step " << step;
    for (float& x : data) x += 1;
    if (!mesh_.last_stage()) transfer_.send(*stream_, data.data(), count);
    stream_->synchronize();
    std::fill(data.begin(), data.end(), -2.0f);  // free again: what was sent must not change with it
  }
  mesh_.world.barrier();
}

INSTANTIATE_TEST_SUITE_P(TensorRanks, StageTransferTest, testing::Values(1, 2));

}  // namespace
}  // namespace computron

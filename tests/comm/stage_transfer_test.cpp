#include "computron/comm/stage_transfer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/test_communicators.h"

namespace computron {
namespace {

std::vector<float> activations(int t, int step, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(1000 * t + 100 * step));
  return values;
}

struct Case {
  const char* name;
  int tp;
  TransportKind kind;
};

// Ranks in a pipeline of pp stages, with the stages' own transfers polled from the hook.
class StageTransferTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::size_t kMaxCount = 300000;
  static constexpr int kBuffers = 2;

  StageTransferTest() {
    progress_.set_hook([this] { communicators_.transfer->poll(); });
  }
  static MeshShape shape() {
    const int ranks = Communicator::world().size(), tp = GetParam().tp;
    return ranks % tp == 0 ? MeshShape{.tp = tp, .pp = ranks / tp} : MeshShape{.tp = ranks};
  }

  Progress progress_{IdlePolicy{}};
  Mesh mesh_{shape(), Communicator::world()};
  std::unique_ptr<Device> device_ = test::make_test_device({}, mesh_.rank);
  std::unique_ptr<Stream> stream_ = device_->make_compute_stream(progress_);
  Communicators communicators_ =
      test::make_test_communicators(test::test_transport(GetParam().kind, mesh_.rank), mesh_, *device_, progress_,
                                    {.max_count = kMaxCount, .buffers = kBuffers});
};

// The first stage runs ahead by as many steps as there are buffers and then waits; every stage adds one.
TEST_P(StageTransferTest, CarriesEveryStepThroughAllStages) {
  for (int step = 0; step < 30; ++step) {
    const std::size_t count = step % 7 == 0 ? kMaxCount : 10 + step;
    std::vector<float> data = activations(mesh_.t, step, count);
    if (!mesh_.first_stage()) {
      const test::OnDevice<float> received(*device_, *stream_, std::vector<float>(count, -1.0f));
      communicators_.transfer->receive(*stream_, received.data(), count);
      data = received.values();
    }
    std::vector<float> expected = activations(mesh_.t, step, count);
    for (float& x : expected) x += static_cast<float>(mesh_.stage);
    ASSERT_EQ(data, expected) << "step " << step;
    for (float& x : data) x += 1;
    if (mesh_.last_stage()) continue;
    const test::OnDevice<float> sent(*device_, *stream_, data);
    communicators_.transfer->send(*stream_, sent.data(), count);
    const std::vector<float> other(count, -2.0f);
    stream_->copy_to_device(reinterpret_cast<std::byte*>(sent.data()), reinterpret_cast<const std::byte*>(other.data()),
                            count * sizeof(float));  // free again: what was sent must not change with it
    stream_->synchronize();
  }
  mesh_.group.barrier();
}

INSTANTIATE_TEST_SUITE_P(Meshes, StageTransferTest,
                         testing::Values(Case{"tp1", 1, TransportKind::kHost}, Case{"tp2", 2, TransportKind::kHost},
                                         Case{"tp1Staged", 1, TransportKind::kStaged}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace computron

#include "tests/support/emulated_processor.h"

#include <gtest/gtest.h>

#include "tests/plan/virtual_job.h"

namespace computron::test {
namespace {

// Pages that lie nowhere; those with an event are there when it is reached.
class SomePages final : public PageSource {
 public:
  ResidentPage acquire(PageUse use) override { return {nullptr, use == awaited ? ready : nullptr}; }
  void release_through(PageUse use) override { released.push_back(use); }
  bool group_by_group() const override { return false; }

  PageUse awaited = 0;
  const Event* ready = nullptr;
  std::vector<PageUse> released;
};

Step step_of(int rows) {
  Step step;
  step.chunks.emplace_back().tokens.resize(static_cast<std::size_t>(rows));
  return step;
}

class EmulatedProcessorTest : public ::testing::Test {
 protected:
  static constexpr int kPages = 4;
  static constexpr double kRow_s = 0.02;

  EmulatedProcessorTest() {
    layout_.used_bytes = {4000, 1000, 4000, 1000};  // a page use each
    progress_.set_hook([this] { ++polls_; });
  }

  Progress progress_{IdlePolicy{}};
  int polls_ = 0;
  std::unique_ptr<Device> device_ = make_cpu_device({.link_gb_per_s = 0.001});
  std::unique_ptr<Stream> compute_ = device_->make_compute_stream(progress_);
  ShardLayout layout_ = virtual_layout(kPages, 1);
  SomePages pages_;
  EmulatedProcessor processor_{[](const ShardLayout&, int rows) { return rows * kRow_s; }, progress_};
  const Step step_ = step_of(5);  // 0.1 s
};

TEST_F(EmulatedProcessorTest, AUseEndsNoEarlierThanItsShareOfThePass) {
  const auto given = processor_.wrapper()(step_, layout_, *compute_, pages_);
  const double begin_s = now_s(), before_s = EmulatedProcessor::thread_cpu_s();
  for (PageUse use = 0; use < 3; ++use) given->acquire(use);
  given->release_through(0);
  EXPECT_GE(now_s() - begin_s, 0.04);
  given->release_through(2);
  EXPECT_GE(now_s() - begin_s, 0.09);
  given->acquire(3);
  given->release_through(3);
  EXPECT_GE(now_s() - begin_s, 0.1);
  EXPECT_EQ(pages_.released, (std::vector<PageUse>{0, 2, 3}));
  EXPECT_GT(polls_, 1) << "nobody could dispatch meanwhile";
  EXPECT_LT(EmulatedProcessor::thread_cpu_s() - before_s, 0.1 / 3) << "a held rank keeps the core from others";
  EXPECT_DOUBLE_EQ(processor_.busy_s(), 0.1);
  EXPECT_EQ(compute_->exposed_s(), 0);
}

// The copy of the third page takes 0.4 s, and 0.05 s of the pass lie before it.
TEST_F(EmulatedProcessorTest, AUseBeginsWhenItsPageIsThere) {
  std::vector<std::byte> from(400'000), to(from.size());
  const auto copies = device_->make_copy_stream();
  const auto landed = device_->make_event();
  pages_.awaited = 2;
  pages_.ready = landed.get();
  const auto given = processor_.wrapper()(step_, layout_, *compute_, pages_);
  const double begin_s = now_s();
  copies->copy_to_device(to.data(), from.data(), from.size());
  copies->record(*landed);
  for (PageUse use = 0; use < 4; ++use) given->acquire(use);
  given->release_through(3);
  EXPECT_GE(now_s() - begin_s, 0.4 + 0.05);
  EXPECT_TRUE(landed->query());
  EXPECT_GT(compute_->exposed_s(), 0);
  EXPECT_LE(compute_->exposed_s(), now_s() - begin_s - 0.1) << "what the processor computed is no stall";
  copies->synchronize();
}

// What the rank really computes is a part of the pass.
TEST_F(EmulatedProcessorTest, RealWorkDelaysNoOtherUse) {
  const auto given = processor_.wrapper()(step_, layout_, *compute_, pages_);
  given->acquire(0);
  const double begin_s = now_s();
  while (now_s() < begin_s + 0.07) {
  }
  given->release_through(0);
  EXPECT_EQ(polls_, 0) << "held, though its share was over";
  given->acquire(3);
  given->release_through(3);
  EXPECT_GE(now_s() - begin_s, 0.099);
}

TEST(ProfileOfRate, IsWhatTheCostModelSays) {
  const ShardLayout layout = virtual_layout(3, 1);  // a weight [1, 1]
  EXPECT_DOUBLE_EQ(profile_of_rate(100)(layout, 7), 7 * 2 / 100.0);
}

TEST(WithOverheads, TakesAFactorByTp) {
  ShardLayout layout = virtual_layout(3, 1);
  const PassProfile profile = with_overheads(profile_of_rate(100), {{2, 1.5}});
  EXPECT_DOUBLE_EQ(profile(layout, 10), 10 * 2 / 100.0);
  layout.plan.mesh.tp = 2;
  EXPECT_DOUBLE_EQ(profile(layout, 10), 1.5 * 10 * 2 / 100.0);
  layout.plan.mesh.tp = 4;
  EXPECT_DOUBLE_EQ(profile(layout, 10), 10 * 2 / 100.0);
}

}  // namespace
}  // namespace computron::test

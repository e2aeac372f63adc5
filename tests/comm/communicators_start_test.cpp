// What every rank hears when one of them cannot connect. On the emulated NCCL, which fails as it is told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_communicators.h"

namespace computron {
namespace {

using testing::HasSubstr;

class CommunicatorsStart : public testing::TestWithParam<const char*> {
 protected:
  Communicators make() {
    return make_communicators(test::test_transport(TransportKind::kHost, mesh_.rank), mesh_, *device_, progress_,
                              {.max_count = 1000, .buffers = 2});
  }
  void expect_sum() {
    const Communicators communicators = make();
    const auto stream = device_->make_compute_stream(progress_);
    const test::OnDevice<float> values(*device_, *stream, std::vector<float>(1000, 1.0f));
    communicators.all_reduce->sum(*stream, values.data(), values.size());
    EXPECT_EQ(values.values(), std::vector<float>(1000, static_cast<float>(mesh_.shape.tp)));
  }

  Progress progress_{IdlePolicy{}};
  Mesh mesh_{{.tp = Communicator::world().size(), .pp = 1}, Communicator::world()};
  std::unique_ptr<Device> device_ = test::make_test_device({}, mesh_.rank);
};

// The others stand in NCCL, which tells them nothing: a rank that did not hear the alarm would wait for its deadline,
// and give that as the reason.
TEST_P(CommunicatorsStart, AFailingRankIsHeardByAllWithItsReason) {
  if (test::environment("COMPUTRON_TEST_TRANSPORT") != "direct") GTEST_SKIP() << "for NCCL that fails when it is to";
  const int failing = mesh_.group.size() - 1;
  if (mesh_.rank == failing) setenv("COMPUTRON_EMULATED_NCCL_FAILS", GetParam(), /*overwrite=*/1);
  try {
    make();
    ADD_FAILURE() << "no rank has failed";
  } catch (const VoteError& error) {
    EXPECT_EQ(error.rank(), failing) << error.what();
    EXPECT_EQ(error.code(), ExitCode::kComm);
    EXPECT_THAT(error.reason(), HasSubstr(std::string(GetParam()) + ": unhandled system error"));
  }
  unsetenv("COMPUTRON_EMULATED_NCCL_FAILS");
  expect_sum();
}

INSTANTIATE_TEST_SUITE_P(Calls, CommunicatorsStart,
                         testing::Values("ncclCommInitRankConfig", "ncclCommSplit", "ncclAllReduce"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace computron

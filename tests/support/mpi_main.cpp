// main() of tests that run under mpirun. Every rank runs every test; rank 0 prints as usual, other ranks print only
// what fails, tagged with their rank. A rank that fails an assertion may have left the collective that the others
// stand in, so a fatal failure (or an exception) on any rank ends the whole job.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>

#include "computron/comm/mpi.h"

namespace computron::test {
namespace {

// After a fatal failure on a rank other than 0: time for rank 0 to say that it fails too.
constexpr useconds_t kGrace_us = 200'000;

class FailureListener : public testing::EmptyTestEventListener {
 public:
  FailureListener(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed() && rank_ != 0) print(result);
    if (result.fatally_failed() && ranks_ > 1) {
      if (rank_ != 0) usleep(kGrace_us);
      MpiSession::abort(ExitCode::kInternal);
    }
  }
  void print(const testing::TestPartResult& result) const {
    const char* file = result.file_name() ? result.file_name() : "exception";
    std::fprintf(stderr, "rank %d: %s: %s:%d: %s\n", rank_, test_.c_str(), file, result.line_number(),
                 result.summary());
  }

  int rank_;
  int ranks_;
  std::string test_ = "outside of tests";
};

// GoogleTest owns listeners that are appended and destroys none that are released.
void install_listeners(int rank, int ranks) {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
  }
  listeners.Append(new FailureListener(rank, ranks));
}

// With --gtest_shuffle the ranks must draw the same order.
void share_seed(const Communicator& world) {
  const auto seed = static_cast<std::uint64_t>(testing::GTEST_FLAG(random_seed));
  const auto chosen = seed != 0 ? seed : static_cast<std::uint64_t>(std::time(nullptr)) % 99999 + 1;
  testing::GTEST_FLAG(random_seed) = static_cast<std::int32_t>(world.all_reduce_max(chosen));
}

}  // namespace
}  // namespace computron::test

int main(int argc, char** argv) {
  computron::MpiSession session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  const auto world = computron::Communicator::world();
  computron::test::share_seed(world);
  computron::test::install_listeners(world.rank(), world.size());
  const auto failed = static_cast<std::uint64_t>(RUN_ALL_TESTS());
  return static_cast<int>(world.all_reduce_max(failed));
}

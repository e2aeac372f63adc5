// OUT.lock where the file system has no locks, or keeps that of a machine that is gone.
#include "src/storage/output_lock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

// Locks that end with an error as long as `tries` last; nothing else goes wrong.
class FailingLocks : public SystemCalls {
 public:
  explicit FailingLocks(int error, int tries = 1 << 30) : error_(error), tries_(tries) {}
  int lock(int fd) override { return ++calls_ > tries_ ? SystemCalls::lock(fd) : (errno = error_, -1); }
  int fsync(int) override { return before_sync_(), 0; }
  int calls() const { return calls_; }
  void before_sync(std::function<void()> action) { before_sync_ = std::move(action); }

 private:
  int error_, tries_, calls_ = 0;
  std::function<void()> before_sync_ = [] {};
};

const std::string kForeign = "epoch=7 host=elsewhere pid=1 boot=b job=42 restart=0 time=5\n";

// The file "out.lock" of a folder, as jobs find it.
class LockFile {
 public:
  explicit LockFile(SystemCalls& calls) : output_(folder_ / "out", calls) {}
  OutputLock take() const { return {output_, "out.lock", /*take_over=*/false}; }
  void write(const std::string& text) const { folder_.write("out.lock", text); }
  std::string text() const { return read_file(folder_ / "out.lock"); }
  bool exists() const { return output_.exists("out.lock"); }

 private:
  TemporaryFolder folder_;
  OutputFolder output_;
};

// As Lustre without flock and NFS without its daemon have it.
TEST(OutputLock, IsHadWhereTheFileSystemHasNoLocks) {
  for (const int error : {ENOLCK, ENOSYS}) {
    FailingLocks calls(error);
    const LockFile file(calls);
    {
      OutputLock lock = file.take();
      lock.claim(1, {});
      lock.check();
      expect_error(ExitCode::kCannotCreate, fmt::format("process {}", getpid()), [&] { file.take(); });
    }
    EXPECT_FALSE(file.exists());
    file.write("");  // of a job that ended before it wrote its name
    OutputLock lock = file.take();
    lock.claim(1, {});
    EXPECT_EQ(LockHolder::parse(file.text()).pid, getpid());
  }
}

TEST(OutputLock, WithoutLocksIsTheLastJobsThatWroteItsName) {
  FailingLocks calls(ENOLCK);
  const LockFile file(calls);
  OutputLock first = file.take(), second = file.take();
  first.claim(1, {});
  second.claim(1, {});
  second.check();
  expect_error(ExitCode::kCannotCreate, "has taken over", [&] { first.check(); });
  calls.before_sync([&] { file.write(kForeign); });
  expect_error(ExitCode::kCannotCreate, "host elsewhere, process 1, job 42 has taken over",
               [&] { second.claim(2, {}); });
  EXPECT_EQ(file.text(), kForeign);
}

TEST(OutputLock, WithoutLocksAJobOfAnotherHostIsNotTakenForGone) {
  FailingLocks calls(ENOLCK);
  const LockFile file(calls);
  file.write(kForeign);
  expect_error(ExitCode::kCannotCreate, "host elsewhere", [&] { file.take(); });
  file.write("what is this?");
  expect_error(ExitCode::kCannotCreate, "a job that left no name", [&] { file.take(); });
}

class RestartedJob : public testing::Test {
 protected:
  RestartedJob() {
    setenv("SLURM_JOB_ID", "42", 1);
    setenv("SLURM_RESTART_COUNT", "1", 1);
  }
  ~RestartedJob() override {
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_RESTART_COUNT");
  }
};

// A file server keeps the lock of a machine that has gone for as long as that might come back.
TEST_F(RestartedJob, WaitsForTheLockOfItsPredecessor) {
  constexpr int kTries = 4;
  FailingLocks calls(EAGAIN, kTries);
  const LockFile file(calls);
  file.write(kForeign);
  OutputLock lock = file.take();
  EXPECT_EQ(calls.calls(), kTries + 1);
  EXPECT_EQ(lock.epoch(), 7u);
}

TEST_F(RestartedJob, WaitsForNoOtherJobsLock) {
  FailingLocks calls(EAGAIN);
  const LockFile file(calls);
  file.write("epoch=7 host=elsewhere pid=1 boot=b job=41 restart=0 time=5\n");
  expect_error(ExitCode::kCannotCreate, "job 41", [&] { file.take(); });
  EXPECT_EQ(calls.calls(), 1);
}

}  // namespace
}  // namespace computron

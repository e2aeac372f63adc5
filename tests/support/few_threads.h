// What a program does that is given too few threads, as by `ulimit -u`.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>

#include "computron/base/error.h"

namespace computron {

enum class WithFewThreads { kNoError, kSystemError, kNotToBeHad };

// Of `action` in a process that may have two threads, which are root's to give: kNotToBeHad without root. An action
// that ends in no way is ended after a minute and fails the test.
template <class Action>
WithFewThreads with_two_threads(Action action) {
  constexpr uid_t kNobodyElse = 61999;  // a user of whom nothing runs
  constexpr int kSystem = static_cast<int>(ExitCode::kSystem), kNotToBeHad = 77;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit two{2, 2};
    if (getuid() != 0 || setuid(kNobodyElse) != 0 || setrlimit(RLIMIT_NPROC, &two) != 0) _exit(kNotToBeHad);
    alarm(60);
    try {
      action();
    } catch (const Error& error) {
      _exit(static_cast<int>(error.code()));
    } catch (const std::system_error&) {
      _exit(kSystem);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNotToBeHad) return WithFewThreads::kNotToBeHad;
  return WEXITSTATUS(status) == kSystem ? WithFewThreads::kSystemError : WithFewThreads::kNoError;
}

}  // namespace computron

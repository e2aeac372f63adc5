#include "computron/base/stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "computron/base/error.h"
#include "computron/base/status_signal.h"

namespace computron {
namespace {

// The exit code of a process of its own that takes `signals` one after the other and then ends with `code`.
template <class Code>
int exit_code_after(std::initializer_list<int> signals, Code code) {
  const pid_t child = fork();
  if (child == 0) {
    catch_stop_signals(2);
    for (const int signal : signals) raise(signal);
    _exit(code());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Stop, SignalsAreCounted) {
  EXPECT_EQ(exit_code_after({}, stop_signals), 0);
  EXPECT_EQ(exit_code_after({SIGTERM}, stop_signals), 1);
  const auto warned = [] { return only_warned() ? 1 : 0; };
  EXPECT_EQ(exit_code_after({}, warned), 0);
  EXPECT_EQ(exit_code_after({SIGUSR1}, warned), 1);
  EXPECT_EQ(exit_code_after({SIGTERM}, warned), 0);
  EXPECT_EQ(exit_code_after({SIGUSR1, SIGTERM}, warned), 0);
  EXPECT_EQ(exit_code_after({SIGUSR1, SIGHUP}, stop_signals), 2);
}

TEST(Stop, IgnoredSignalsStayIgnored) {
  const auto before = signal(SIGHUP, SIG_IGN);
  EXPECT_EQ(exit_code_after({SIGHUP, SIGTERM}, stop_signals), 1);
  signal(SIGHUP, before);
}

TEST(Stop, OneTooManyEndsTheProcess) {
  EXPECT_EQ(exit_code_after({SIGINT, SIGINT, SIGINT}, stop_signals), static_cast<int>(ExitCode::kStopped));
}

TEST(Stop, FirstSignalIsNamed) {
  EXPECT_EQ(exit_code_after({SIGHUP, SIGTERM}, [] { return stop_signal_name() == "SIGHUP" ? 1 : 0; }), 1);
}

TEST(Status, RequestsAreCountedAndStopNothing) {
  catch_status_signal();
  EXPECT_EQ(exit_code_after({SIGUSR2, SIGUSR2, SIGUSR2}, stop_signals), 0);
  EXPECT_EQ(exit_code_after({SIGUSR2, SIGTERM, SIGUSR2, SIGUSR2}, status_signals), 3);
}

TEST(Stop, PhasesOfTheStartEnd) {
  const auto code_of_throw = [] {
    try {
      throw_if_stopped();
    } catch (const Error& error) {
      return static_cast<int>(error.code());
    }
    return 0;
  };
  EXPECT_EQ(exit_code_after({}, code_of_throw), 0);
  EXPECT_EQ(exit_code_after({SIGTERM}, code_of_throw), static_cast<int>(ExitCode::kStopped));
}

}  // namespace
}  // namespace computron

// Runs the program `computron` once, without MPI, and keeps what it says.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/beside.h"

extern char** environ;

namespace computron::test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Outcome {
  int code = -1;  // exit code; 128 + signal if it was killed
  std::string output, errors;
};

// A folder of its own for each test, removed at its end, and the program run in it.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("computron_") + info->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::binary) << text;
    return file(name);
  }

  Outcome run(std::vector<std::string> arguments) const { return ended(start(std::move(arguments))); }

  // The same, with that file as its stdout.
  Outcome run_into(const std::string& output, std::vector<std::string> arguments) const {
    return ended(start(std::move(arguments), output));
  }

  // As run(); it gets `signal` once it has said `text` on stderr.
  Outcome run_until(std::vector<std::string> arguments, const std::string& text, int signal) const {
    const pid_t child = start(std::move(arguments));
    siginfo_t state{};
    while (read_file(file("stderr")).find(text) == std::string::npos) {
      if (waitid(P_PID, static_cast<id_t>(child), &state, WEXITED | WNOHANG | WNOWAIT) != 0 || state.si_pid == child)
        break;
      usleep(1000);
    }
    kill(child, signal);
    return ended(child);
  }

 private:
  Outcome ended(pid_t child) const {
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.output = read_file(file("stdout"));
    outcome.errors = read_file(file("stderr"));
    return outcome;
  }

  // Its stdout and stderr go to files of those names, or its stdout to `output`.
  pid_t start(std::vector<std::string> arguments, const std::string& output = "") const {
    arguments.insert(arguments.begin(), beside_test("computron"));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (output.empty() ? file("stdout") : output).c_str(),
                                     kFlags, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, file("stderr").c_str(), kFlags, 0600);
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ), 0) << argv[0];
    posix_spawn_file_actions_destroy(&actions);
    return child;
  }

  std::filesystem::path folder_;
};

}  // namespace computron::test

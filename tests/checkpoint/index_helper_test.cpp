// The helper that reads an index apart: the same answers as in this process, and whatever it does - dies, hangs, says
// too much, says nonsense - costs only the file. Shell scripts stand for a library that a hostile file has taken over.
#include "computron/checkpoint/index_helper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "computron/base/digest.h"
#include "computron/base/time.h"
#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

class Helper : public testing::Test {
 protected:
  Helper() { write_sample(path_); }

  // Why the sample is refused if this is what reads it; the code must be 65.
  std::string refusal_by(const std::string& script, double limit_s = 60) const {
    ExitCode code{};
    const std::string message = failure_by(script, limit_s, code);
    EXPECT_EQ(code, ExitCode::kData) << message;
    EXPECT_THAT(message, StartsWith(path_ + ": rejected"));
    return message;
  }
  // The same of the storage or the system, which is no fault of the file.
  std::string failure_by(const std::string& script, double limit_s, ExitCode& code) const {
    const std::string program = folder_.file("helper");
    write_text(program, "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return message_of([&] { read_index_apart(path_, {.program = program, .limit_s = limit_s}); }, &code);
  }

  static void write_text(const std::string& path, const std::string& text) {
    write_file(path, std::vector<char>(text.begin(), text.end()));
  }

  const Folder folder_;
  const std::string path_ = folder_.file("m.h5");
};

TEST_F(Helper, SaysWhatThisProcessReads) {
  EXPECT_EQ(read_index_apart(path_).serialize(), read_checkpoint_index(path_).serialize());
}

TEST_F(Helper, RefusesWithTheSameWords) {
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  ExitCode code{};
  const std::string apart = message_of([&] { read_index_apart(path_); }, &code);
  EXPECT_EQ(apart, message_of([&] { read_checkpoint_index(path_); }));
  EXPECT_THAT(apart, HasSubstr("truncated"));
  EXPECT_EQ(code, ExitCode::kData);
  message_of([&] { read_index_apart(folder_.file("none.h5")); }, &code);
  EXPECT_EQ(code, ExitCode::kNoInput);
}

// Bytes of the metadata overwritten, eight a file: whatever HDF5 does with them, this process lives and the file is
// refused, or reads as before.
TEST_F(Helper, DamagedFilesCostOnlyThemselves) {
  const auto original = read_index_apart(path_).serialize();
  const std::vector<char> sound = read_file(path_);
  int refused = 0;
  for (std::uint64_t file = 0; file < 40; ++file) {
    std::vector<char> bytes = sound;
    for (std::uint64_t k = 0, changed = 0; changed < 8; ++k) {
      char& byte = bytes[hash_tuple(file, k) % 4096];
      if (byte == 0) continue;  // most of it is padding
      byte = static_cast<char>(hash_tuple(file, k, 1));
      ++changed;
    }
    write_file(path_, bytes);
    ExitCode code = ExitCode::kData;
    const auto read = [&] { EXPECT_EQ(read_index_apart(path_).serialize(), original) << file; };
    refused += message_of(read, &code).empty() ? 0 : 1;
    EXPECT_EQ(code, ExitCode::kData);
  }
  EXPECT_GT(refused, 20);
}

TEST_F(Helper, ThatDies) {
  EXPECT_THAT(refusal_by("kill -SEGV $$"), HasSubstr("rejected by parser (signal 11)"));
  EXPECT_THAT(refusal_by("kill -XCPU $$"), HasSubstr("rejected by parser (signal 24)"));
  EXPECT_THAT(refusal_by("exit 3"), HasSubstr("rejected by parser (exit code 3)"));
  EXPECT_THAT(refusal_by("echo computron-index 1; exit 3"), HasSubstr("exit code 3"));
}

// As one whose disk does not answer: that is no damage.
TEST_F(Helper, ThatHangs) {
  const double begin_s = now_s();
  for (const std::string script : {"sleep 1000", "exec >&-; sleep 1000", "sleep 1000 & exit 0"}) {
    ExitCode code{};
    EXPECT_THAT(failure_by(script, 0.2, code),
                AllOf(StartsWith(path_), HasSubstr("no answer within 0.2 s"), HasSubstr("disk")));
    EXPECT_EQ(code, ExitCode::kIo) << script;
  }
  EXPECT_LT(now_s() - begin_s, 100);  // nobody waited for the sleepers
}

TEST_F(Helper, ThatIsGoneBeforeItIsAskedHowItEnded) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(read_index_apart(path_).serialize(), read_checkpoint_index(path_).serialize());
  EXPECT_EQ(std::signal(SIGCHLD, SIG_IGN), SIG_IGN) << "not as it was";
  std::signal(SIGCHLD, SIG_DFL);
  // Ignored while it runs: whoever asks then is told nothing, and at once.
  const std::string started = folder_.file("started"), ignored = folder_.file("ignored");
  std::jthread thief([&] {
    while (!std::filesystem::exists(started)) usleep(1000);
    std::signal(SIGCHLD, SIG_IGN);
    write_text(ignored, "x");
  });
  ExitCode code{};
  const std::string script = "exec >&-; echo x >" + started + "; while [ ! -e " + ignored + " ]; do sleep 0.01; done";
  EXPECT_THAT(failure_by(script, 60, code), HasSubstr("how its parser"));
  EXPECT_EQ(code, ExitCode::kSystem);
  std::signal(SIGCHLD, before);
}

TEST_F(Helper, ThatFloods) {
  EXPECT_THAT(refusal_by("exec yes"), ContainsRegex("rejected by parser \\(more than [0-9]+ bytes of answer\\)"));
}

TEST_F(Helper, ThatSaysNonsense) {
  EXPECT_THAT(refusal_by("true"), HasSubstr("line 1 of the parser's answer: missing"));
  EXPECT_THAT(refusal_by("head -c 5000 /dev/urandom"), HasSubstr("of the parser's answer"));
}

TEST_F(Helper, ThatIsNotThereIsNoFaultOfTheFile) {
  ExitCode code{};
  const std::string program = folder_.file("absent");
  EXPECT_THAT(message_of([&] { read_index_apart(path_, {.program = program}); }, &code),
              AllOf(StartsWith(program), HasSubstr("No such file")));
  EXPECT_EQ(code, ExitCode::kSystem);
}

// Nothing of this process's is open there, no variable of HDF5's is set, no signal is blocked or ignored.
TEST_F(Helper, InheritsNothing) {
  setenv("HDF5_PLUGIN_PATH", "/tmp", 1);
  setenv("HDF5_VOL_CONNECTOR", "x", 1);
  const char* preloaded = getenv("LD_PRELOAD");
  const std::string preloaded_before = preloaded != nullptr ? preloaded : "";
  setenv("LD_PRELOAD", "", 1);
  setenv("LD_AUDIT", "", 1);
  sigset_t terminate, before;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  sigprocmask(SIG_BLOCK, &terminate, &before);
  const auto on_broken_pipe = std::signal(SIGPIPE, SIG_IGN);
  const std::string seen = folder_.file("seen");
  refusal_by("{ env; grep Sig /proc/self/status; } >" + seen);
  std::signal(SIGPIPE, on_broken_pipe);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  unsetenv("HDF5_PLUGIN_PATH");
  unsetenv("HDF5_VOL_CONNECTOR");
  unsetenv("LD_AUDIT");
  preloaded != nullptr ? setenv("LD_PRELOAD", preloaded_before.c_str(), 1) : unsetenv("LD_PRELOAD");
  const std::vector<char> text = read_file(seen);
  EXPECT_THAT(
      std::string(text.begin(), text.end()),
      AllOf(testing::Not(HasSubstr("HDF5_")), testing::Not(HasSubstr("LD_")), HasSubstr("SigBlk:\t0000000000000000"),
            ContainsRegex("SigIgn:\t.{8}[08]0000000\n")));  // 32 is the C library's own
}

bool limited_to(__rlimit_resource resource, rlim_t value) {
  rlimit found{};
  return getrlimit(resource, &found) == 0 && found.rlim_cur == value && found.rlim_max == value;
}

// What the real one does to itself before it touches the file.
TEST_F(Helper, GivesUpItsMeans) {
  const int left_open = open("/dev/null", O_WRONLY);  // as a library does, without close-on-exec
  const std::string written = folder_.file("written");
  const auto answer_and_look = [&] {
    dup2(left_open, STDOUT_FILENO);
    const bool answered = answer_with_index(path_) == 0;
    const bool closed = fcntl(left_open, F_GETFD) < 0;
    const bool limited = limited_to(RLIMIT_CPU, 120) && limited_to(RLIMIT_FSIZE, 0) && limited_to(RLIMIT_CORE, 0) &&
                         limited_to(RLIMIT_NOFILE, 16);
    const int file = open(written.c_str(), O_WRONLY | O_CREAT, 0600);  // as a preloaded library may at the end
    const bool lives = write(file, "x", 1) < 0 && errno == EFBIG;
    _exit(answered && closed && limited && lives ? 0 : 1);
  };
  EXPECT_EXIT(answer_and_look(), testing::ExitedWithCode(0), "");
  close(left_open);
}

}  // namespace
}  // namespace computron::test

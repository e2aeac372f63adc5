// The side of whoever serves: starts the helper, collects what it says within bounds, and believes none of it.
#include "computron/checkpoint/index_helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "computron/base/time.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/index_text.h"

namespace computron {
namespace {

constexpr char kHelperName[] = "computron-checkpoint-index";
constexpr useconds_t kWaitUs = 200;  // between looks at a helper that is about to end
constexpr double kReap_s = 1;        // for a helper that is killed; one that a dead disk holds cannot even end then

std::string program_of(const IndexHelper& helper) {
  if (!helper.program.empty()) return helper.program;
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / kHelperName).string();
}

// This process's environment without what HDF5 reads from it, and what would load more into the helper than it needs:
// such a library may write at its end, which the helper may not.
std::vector<char*> harmless_environment() {
  std::vector<char*> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto names = [text](const char* begin) { return text.starts_with(begin); };
    if (!names("HDF5_") && !names("LD_PRELOAD=") && !names("LD_AUDIT=")) kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

// How posix_spawn is to start the helper: its output into `output`, no signal blocked or ignored, a process group of
// its own. Descriptors that have no close-on-exec it closes itself.
class SpawnPlan {
 public:
  explicit SpawnPlan(int output) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

// While it lives, children that end wait for whoever asks how: where SIGCHLD is ignored, as a parent may have left it,
// they are gone at once.
class KeptChildren {
 public:
  KeptChildren() {
    struct sigaction kept {};
    kept.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, nullptr, &before_);
    changed_ = before_.sa_handler == SIG_IGN || (before_.sa_flags & SA_NOCLDWAIT) != 0;
    if (changed_) sigaction(SIGCHLD, &kept, nullptr);
  }
  KeptChildren(const KeptChildren&) = delete;
  KeptChildren& operator=(const KeptChildren&) = delete;
  ~KeptChildren() {
    if (changed_) sigaction(SIGCHLD, &before_, nullptr);
  }

 private:
  struct sigaction before_ {};
  bool changed_ = false;
};

// A helper under way; ended and reaped at the latest by the destructor, unless it cannot be ended.
class HelperProcess {
 public:
  HelperProcess(const std::string& program, const std::string& path) : path_(path) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(ExitCode::kSystem, program, "no pipe for it");
    output_ = FileDescriptor(ends[0]);
    const FileDescriptor input(ends[1]);
    const SpawnPlan plan(input.get());
    std::string name = program, file = path;
    char* const arguments[] = {name.data(), file.data(), nullptr};
    const std::vector<char*> environment = harmless_environment();
    errno = posix_spawn(&process_, program.c_str(), plan.actions(), plan.attributes(), arguments, environment.data());
    if (errno != 0) fail_errno(ExitCode::kSystem, program, "cannot be started to read a checkpoint");
  }
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;
  ~HelperProcess() {
    if (process_ <= 0) return;
    kill(-process_, SIGKILL);  // and whatever it may have started
    try {
      wait_until(now_s() + kReap_s);
    } catch (const Error&) {  // gone already
    }
  }

  int output() const { return output_.get(); }

  // The status of waitpid; nothing if it has not ended by then. Error{kSystem} if somebody else was told it.
  std::optional<int> wait_until(double deadline_s) {
    for (int status = 0;; usleep(kWaitUs)) {
      const pid_t ended = waitpid(process_, &status, WNOHANG);
      if (ended < 0 && errno == EINTR) continue;
      if (ended != 0) {
        const pid_t process = std::exchange(process_, -1);  // may be another one's from here on
        if (ended < 0) fail_errno(ExitCode::kSystem, path_, fmt::format("how its parser {} ended is lost", process));
        return status;
      }
      if (now_s() > deadline_s) return std::nullopt;
    }
  }

  // Seconds of processor time so far.
  double cpu_s() const {
    clockid_t clock{};
    timespec t{};
    if (process_ <= 0 || clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

 private:
  const KeptChildren kept_;
  const std::string path_;
  pid_t process_ = -1;
  FileDescriptor output_;
};

[[noreturn]] void reject(const std::string& path, const std::string& why) {
  throw CheckpointError(fmt::format("{}: rejected by parser ({})", path, why));
}

// A hostile file takes processor time, which is limited apart (index_answer.cpp); a slow disk takes none.
[[noreturn]] void fail_slow(const std::string& path, double limit_s, double cpu_s) {
  throw Error(ExitCode::kIo, fmt::format("{}: its parser has no answer within {:g} s, of which it computed {:.1f} s: "
                                         "look whether its disk answers",
                                         path, limit_s, cpu_s));
}

// Waits until there is something to read; false once `deadline_s` is over.
bool wait_for_output(int fd, double deadline_s) {
  for (;;) {
    const double left_s = deadline_s - now_s();
    if (left_s <= 0) return false;
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&one, 1, static_cast<int>(1000 * left_s) + 1) > 0) return true;
  }
}

// All that the helper says before it closes its end; nothing if it has not by then.
std::optional<std::string> collect(const HelperProcess& helper, const std::string& path, std::size_t limit_bytes,
                                   double deadline_s) {
  std::string text;
  std::vector<char> piece(std::size_t{1} << 16);
  while (wait_for_output(helper.output(), deadline_s)) {
    const ssize_t got = read(helper.output(), piece.data(), piece.size());
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) fail_errno(ExitCode::kSystem, path, "what its parser says cannot be read");
    text.append(piece.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (text.size() > limit_bytes) reject(path, fmt::format("more than {} bytes of answer", limit_bytes));
  }
  return std::nullopt;
}

void check_status(int status, const std::string& path) {
  if (WIFSIGNALED(status)) reject(path, fmt::format("signal {}", WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) reject(path, fmt::format("exit code {}", WEXITSTATUS(status)));
}

}  // namespace

CheckpointIndex read_index_apart(const std::string& path, const IndexHelper& options) {
  const FileDescriptor fd = open_input(path);
  const std::size_t bytes = file_bytes(fd.get(), path);
  const double deadline_s = now_s() + options.limit_s;
  HelperProcess helper(program_of(options), path);
  const auto text = collect(helper, path, index_text_limit(bytes), deadline_s);
  const auto status = text ? helper.wait_until(deadline_s) : std::nullopt;
  if (!status) fail_slow(path, options.limit_s, helper.cpu_s());
  check_status(*status, path);
  return parse_index_text(*text, path, bytes);
}

}  // namespace computron

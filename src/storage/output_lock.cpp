#include "src/storage/output_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "computron/base/log.h"
#include "computron/base/stop.h"

namespace computron {
namespace {

constexpr std::size_t kMaxLine = 4096;
constexpr useconds_t kLockPause_us = 100000;
constexpr int kTakeOverTries = 100;  // for the one taken over to notice and leave
constexpr int kRestartTries = 1200;  // for a file server to give up a machine that is gone, as NFS does after 90 s

std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "";
}

// Of the words of a line, which are name=value.
std::string without_spaces(std::string text) {
  for (char& c : text) c = c <= ' ' ? '_' : c;
  return text;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string host() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string LockHolder::to_string() const {
  return fmt::format("epoch={} host={} pid={} boot={} job={} restart={} time={}\n", epoch, host, pid, boot, job,
                     restart, time_ns);
}

LockHolder LockHolder::parse(const std::string& line) {
  LockHolder holder;
  std::istringstream words(line.substr(0, line.find('\n')));
  for (std::string word; words >> word;) {
    const std::string name = word.substr(0, word.find('='));
    const std::string value = word.substr(std::min(word.size(), name.size() + 1));
    if (name == "epoch") holder.epoch = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "host") holder.host = value;
    if (name == "pid") holder.pid = std::strtol(value.c_str(), nullptr, 10);
    if (name == "boot") holder.boot = value;
    if (name == "job") holder.job = value;
    if (name == "restart") holder.restart = std::atoi(value.c_str());
    if (name == "time") holder.time_ns = std::strtoull(value.c_str(), nullptr, 10);
  }
  return holder;
}

LockHolder LockHolder::self(std::uint64_t epoch) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return {.epoch = epoch,
          .host = without_spaces(computron::host()),
          .pid = getpid(),
          .boot = without_spaces(boot_id()),
          .job = without_spaces(environment({"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"})),
          .restart = std::atoi(environment({"SLURM_RESTART_COUNT"}).c_str()),
          .time_ns = static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec)};
}

std::string LockHolder::shown() const {
  if (host.empty()) return "a job that left no name";
  return fmt::format("host {}, process {}, {}", host, pid, job.empty() ? "no batch job" : "job " + job);
}

bool was_restarted(const LockHolder& earlier, const LockHolder& self) {
  return !earlier.job.empty() && earlier.job == self.job && self.restart > earlier.restart;
}

bool is_gone(const LockHolder& earlier, const LockHolder& self, bool locked) {
  if (earlier.host.empty()) return locked;  // ended before it wrote its name, unless that is just about to come
  if (was_restarted(earlier, self)) return true;
  if (earlier.host != self.host) return false;
  return locked || earlier.boot != self.boot || (kill(static_cast<pid_t>(earlier.pid), 0) != 0 && errno == ESRCH);
}

OutputLock::OutputLock(const OutputFolder& folder, std::string name, bool take_over)
    : folder_(folder), name_(std::move(name)) {
  do {
    open(take_over);
  } while (!same_file());  // its last holder gave it back between opening and locking
  const std::string line = content(fd_);
  earlier_ = LockHolder::parse(line);
  if (take_over || is_free(line)) return;
  throw Error(
      ExitCode::kCannotCreate,
      fmt::format("cannot create '{}': its output belongs to another job ({}); if that one is gone for certain, "
                  "--take-over",
                  folder_.path_of(name_), earlier_.shown()));
}

OutputLock::~OutputLock() { give_back(); }

void OutputLock::give_back() noexcept try {
  if (!std::exchange(claimed_, false) || !is_mine()) return;
  if (folder_.calls().unlinkat(folder_.fd(), name_.c_str()) != 0) {
    spdlog::warn("'{}' could not be removed", folder_.path_of(name_));
  }
} catch (const std::exception& error) {
  spdlog::warn("{}", error.what());
}

void OutputLock::open(bool take_over) {
  fd_ = folder_.open(name_, "");
  state_ = try_lock();
  if (state_ != State::kHeld || take_over) return;
  earlier_ = LockHolder::parse(content(fd_));
  if (!was_restarted(earlier_, LockHolder::self(0))) return;
  spdlog::info("waiting for the lock of '{}', which this job's last attempt held ({})", folder_.path_of(name_),
               earlier_.shown());
  if (wait_for_lock(kRestartTries)) state_ = State::kFree;
}

// `line`: of the file. Without locks, a file that nobody has written to is anybody's: whoever writes last has it.
bool OutputLock::is_free(const std::string& line) const {
  if (state_ == State::kHeld) return false;
  if (state_ == State::kUnknown && line.empty()) return true;
  return is_gone(earlier_, LockHolder::self(0), state_ == State::kFree);
}

OutputLock::State OutputLock::try_lock() const {
  if (folder_.calls().lock(fd_.get()) == 0) return State::kFree;
  return errno == EAGAIN || errno == EACCES ? State::kHeld : State::kUnknown;
}

bool OutputLock::same_file() const {
  struct stat mine {
  }, named{};
  if (fstatat(folder_.fd(), name_.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    fail_io("look at", folder_.path_of(name_), errno);
  }
  if (fstat(fd_.get(), &mine) != 0) fail_io("look at", folder_.path_of(name_), errno);
  return mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

std::string OutputLock::content(const FileDescriptor& fd) const {
  std::string text(kMaxLine, '\0');
  ssize_t count = 0;
  while ((count = folder_.calls().pread(fd.get(), text.data(), text.size(), 0)) < 0) {
    if (errno != EINTR) fail_io("read", folder_.path_of(name_), errno);
  }
  text.resize(static_cast<std::size_t>(count));
  return text;
}

void OutputLock::claim(std::uint64_t epoch, const DiskWait& wait) {
  mine_ = LockHolder::self(epoch);
  AppendFile file(FileDescriptor(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3)), folder_.path_of(name_), folder_.calls());
  file.cut(0);
  append_all(file, mine_.to_string(), /*lines=*/false, wait);
  file.sync();
  claimed_ = true;
  if (state_ == State::kUnknown) check();  // that nobody else did so at the same time
  // The one taken over looks at the file once a second, ends, and lets go of the lock. If it does not (it is stalled),
  // its own look before the next write is what holds it back.
  if (state_ != State::kHeld || wait_for_lock(kTakeOverTries)) return;
  spdlog::warn("the job that held '{}' ({}) has not ended; it will when it wants to write", folder_.path_of(name_),
               earlier_.shown());
}

bool OutputLock::wait_for_lock(int tries) const {
  for (int i = 0; i < tries; ++i) {
    throw_if_stopped();
    if (try_lock() == State::kFree) return true;
    usleep(kLockPause_us);
  }
  return false;
}

bool OutputLock::is_mine() const { return same_file() && content(fd_) == mine_.to_string(); }

void OutputLock::check() const {
  if (is_mine()) return;
  if (folder_.is_gone()) throw Error(ExitCode::kIo, fmt::format("the folder of '{}' is gone", folder_.path_of(name_)));
  const FileDescriptor now = folder_.open_existing(name_);
  throw Error(ExitCode::kCannotCreate,
              fmt::format("'{}' is no longer this job's: {}; nothing more is written", folder_.path_of(name_),
                          now ? LockHolder::parse(content(now)).shown() + " has taken over" : "it was removed"));
}

}  // namespace computron

// The helper's side: limits first, then the file.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <vector>

#include "computron/checkpoint/index_helper.h"
#include "computron/checkpoint/reader.h"
#include "src/checkpoint/index_text.h"

namespace computron {
namespace {

// A file of 10 TB has 160 MB of digests, two to four times that as text.
constexpr rlim_t kMemoryBytes = rlim_t{4} << 30;
// The 72,000 tensors of a large mixture with quantised experts take 8 s on one core of a virtual machine.
constexpr rlim_t kCpuSeconds = 120;
constexpr rlim_t kOpenFiles = 16;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsMemory = false;  // shadow memory is address space
#else
constexpr bool kLimitsMemory = true;
#endif

bool limit(__rlimit_resource resource, rlim_t value) {
  const rlimit both{value, value};
  return setrlimit(resource, &both) == 0;
}

// What was open without close-on-exec where the helper was started, by MPI for example.
void close_inherited() {
  std::vector<int> inherited;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (fd > STDERR_FILENO) inherited.push_back(fd);
  }
  for (const int fd : inherited) close(fd);
}

// Memory, processor time, files written, files open, core dumps; and no longer than whoever asked. Libraries that come
// with the system may still try to write when the helper ends: that fails, but is no reason to die.
bool limit_means() {
  close_inherited();
  std::signal(SIGXFSZ, SIG_IGN);
  return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && (!kLimitsMemory || limit(RLIMIT_AS, kMemoryBytes)) &&
         limit(RLIMIT_CPU, kCpuSeconds) && limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_NOFILE, kOpenFiles) &&
         limit(RLIMIT_CORE, 0);
}

std::string answer(const std::string& path) try {
  return index_text(read_checkpoint_index(path));
} catch (const std::bad_alloc&) {
  return index_text(CheckpointError(path + ": rejected by parser (out of memory)"));
} catch (const Error& error) {
  return index_text(error);
}

}  // namespace

int answer_with_index(const std::string& path) {
  if (!limit_means()) return static_cast<int>(ExitCode::kSystem);
  const std::string text = answer(path);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return static_cast<int>(written ? ExitCode::kOk : ExitCode::kIo);
}

}  // namespace computron

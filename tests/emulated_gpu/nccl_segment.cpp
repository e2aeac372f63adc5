#include "tests/emulated_gpu/nccl_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "tests/emulated_gpu/stream.h"

namespace computron::emulated_gpu {
namespace {

constexpr char kPrefix[] = "computron-emulated-nccl.";

void check(bool good, const std::string& name, const char* call) {
  if (!good) give_up(fmt::format("{} of /dev/shm/{}: {}", call, name, std::strerror(errno)));
}

// Zeros cost nothing until they are touched.
void* map_segment(const std::string& name, std::size_t bytes) {
  const int file = shm_open(("/" + name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  check(file >= 0, name, "shm_open");
  check(ftruncate(file, static_cast<off_t>(bytes)) == 0, name, "ftruncate");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  check(at != MAP_FAILED, name, "mmap");
  close(file);
  return at;
}

}  // namespace

Segment::Segment(std::string name, int ranks)
    : name_(std::move(name)),
      ranks_(ranks),
      bytes_(ranks * sizeof(RankPlace) + static_cast<std::size_t>(ranks) * ranks * sizeof(Channel)),
      places_(static_cast<RankPlace*>(map_segment(name_, bytes_))),
      channels_(reinterpret_cast<Channel*>(places_ + ranks)) {}

Segment::~Segment() { munmap(places_, bytes_); }

void Segment::forget_name() { shm_unlink(("/" + name_).c_str()); }

std::string new_segment_name() {
  std::random_device random;
  return fmt::format("{}{}.{:08x}{:08x}", kPrefix, getpid(), random(), random());
}

void sweep_segment_names() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    const pid_t maker = std::atoi(name.c_str() + sizeof kPrefix - 1);
    if (kill(maker, 0) != 0 && errno == ESRCH) shm_unlink(("/" + name).c_str());
  }
}

void give_up(const std::string& why) { refuse("NCCL: " + why); }

}  // namespace computron::emulated_gpu

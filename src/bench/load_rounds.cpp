#include "src/bench/load_rounds.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "computron/base/file_descriptor.h"
#include "computron/base/parallel.h"
#include "computron/base/time.h"

namespace computron {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::size_t kPartBytes = std::size_t{2} << 20;  // parts are multiples: no two threads fill one huge page

FileDescriptor open_file(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw Error(ExitCode::kNoInput, path + ": " + std::strerror(errno));
  return file;
}

}  // namespace

LoadRounds::LoadRounds(Job& job)
    : job_(job),
      index_(job.models().index(/*model=*/0)),
      layout_(*job.models().shapes().front().layouts.at(job.mesh().stage)) {}

// Part `reader` of as many as there are readers, to where it lies in `fresh`, or all into one buffer if that is null.
void LoadRounds::read(int reader, int readers, std::byte* fresh) const {
  const FileDescriptor file = open_file(index_.path);
  const std::size_t part = round_up(ceil_div<std::size_t>(index_.file_bytes, readers), kPartBytes);
  const std::size_t begin = std::min(index_.file_bytes, part * reader);
  const std::size_t end = std::min(index_.file_bytes, begin + part);
  std::vector<std::byte> reused(fresh == nullptr ? kReadBytes : 0);
  for (std::size_t at = begin; at < end;) {
    std::byte* to = fresh == nullptr ? reused.data() : fresh + at;
    const ssize_t got = pread(file.get(), to, std::min(kReadBytes, end - at), static_cast<off_t>(at));
    if (got <= 0) throw Error(ExitCode::kIo, fmt::format("{}: cannot be read at byte {}", index_.path, at));
    at += static_cast<std::size_t>(got);
  }
}

// This rank's threads read their parts. `fresh` is where byte 0 of the file would lie.
void LoadRounds::read_parts(std::byte* fresh) const {
  const int threads = job_.plan().threads, readers = threads * job_.mesh().shape.tp;
  parallel_for(static_cast<std::size_t>(threads), threads, [&](int, std::size_t thread) {
    read(job_.mesh().t * threads + static_cast<int>(thread), readers, fresh);
  });
}

// Seconds that `body` takes on the slowest rank.
template <class Body>
double LoadRounds::together(const Body& body) const {
  job_.mesh().job.barrier();
  const double start = now_s();
  body();
  const double seconds = now_s() - start;
  return 1e-9 * static_cast<double>(job_.mesh().job.all_reduce_max(static_cast<std::uint64_t>(1e9 * seconds)));
}

void LoadRounds::warm_up() {
  together([&] {
    if (job_.mesh().rank == 0) read(0, 1, nullptr);
  });
}

LoadRound LoadRounds::measure() {
  LoadRound round;
  round.plain_s = together([&] {
    if (job_.mesh().rank == 0) read(0, 1, nullptr);
  });
  round.parts_s = together([&] { read_parts(nullptr); });
  std::unique_ptr<HostBuffer> memory;  // of the whole file's size: each rank touches its part
  round.fresh_s = together([&] {
    memory = job_.device().allocate_host(index_.file_bytes, "the file");
    read_parts(memory->data());
  });
  memory.reset();
  round.load_s = load(PageCoding::kRaw, round.of_load);
  round.coded_s = load(PageCoding::kCoded, round.of_coded);
  return round;
}

// Seconds; `times` is set to what all threads of all ranks took.
double LoadRounds::load(PageCoding coding, LoadTimes& times) const {
  HostStore store(job_.device(), coding);
  LoadTimes mine;
  const double seconds = together([&] {
    store.load(index_, "model", layout_, job_.mesh().t, job_.ops().weight_format(), job_.plan().threads, &mine);
  });
  times = sum(mine);
  return seconds;
}

LoadTimes LoadRounds::sum(const LoadTimes& mine) const {
  LoadTimes sum;
  for (const std::vector<std::byte>& bytes : job_.mesh().job.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    LoadTimes one;
    std::memcpy(&one, bytes.data(), sizeof one);
    sum += one;
  }
  return sum;
}

}  // namespace computron

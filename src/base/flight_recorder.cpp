#include "computron/base/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <new>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/time.h"
#include "computron/base/trace.h"

namespace computron {
namespace {

constexpr std::uint64_t kMagic = 0x31544847494c4643;  // "CFLIGHT1"
constexpr std::size_t kFileBytes = kFlightHeaderBytes + kFlightRecords * sizeof(FlightRecord);

template <std::size_t size>
void put_text(std::array<char, size>& out, std::string_view text) noexcept {
  out.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), size), out.begin());
}

template <class T>
T relaxed(T& value) noexcept {
  return std::atomic_ref(value).load(std::memory_order_relaxed);
}

std::string own_host() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

double clock_offset_s() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec) - now_s();
}

std::string path_of(const std::string& folder, std::uint64_t job, int rank) {
  return fmt::format("{}/computron-{:016x}-rank{}.flight", folder, job, rank);
}

bool is_own_file(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
}

// When a rank ran last, if `path` is a file that such a rank of this user has left behind.
std::optional<double> left_behind_s(const std::string& path) try {
  if (!is_own_file(path)) return std::nullopt;
  const FlightInfo info = read_flight(path).info;
  if (info.host != own_host() || still_runs(info)) return std::nullopt;
  return info.clock_offset_s + info.alive_s;
} catch (const Error&) {
  return std::nullopt;
}

// Other ranks see to theirs.
void remove_old_files(const std::string& folder, int rank) noexcept try {
  const std::string end = fmt::format("-rank{}.flight", rank);
  std::vector<std::pair<double, std::string>> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("computron-") || !name.ends_with(end)) continue;
    if (const auto when_s = left_behind_s(entry.path().string())) left.emplace_back(*when_s, entry.path().string());
  }
  std::ranges::sort(left, std::greater<>());
  const double oldest_s = clock_offset_s() + now_s() - kFlightsKept_s;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (i >= kFlightsKept || left[i].first < oldest_s) unlink(left[i].second.c_str());
  }
} catch (const std::exception&) {  // a folder that cannot be read: map_file() says what matters of it
}

std::string temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

}  // namespace

// As it lies in the file; what changes is reached through atomic_ref.
struct FlightRecorder::Header {
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;
  std::int32_t rank = 0, ranks = 0;
  std::int64_t process = 0;
  double clock_offset_s = 0;
  std::array<char, 256> host = {};
  double alive_s = 0, moved_s = 0;
  std::uint64_t step = 0;              // of the last span that had one
  std::int32_t group_and_1 = 0;        // of ranks; 0: the job has but one
  alignas(64) std::uint64_t last = 0;  // number of the last record begun
};

FlightRecorder::FlightRecorder(const std::string& folder, std::uint64_t job, int rank, int ranks) {
  static_assert(sizeof(Header) <= kFlightHeaderBytes);
  const std::string place = folder.empty() ? temporary_folder() : folder;
  path_ = path_of(place, job, rank);
  if (folder.empty()) remove_old_files(place, rank);
  if (!map_file(folder)) map_memory();
  header_ = new (bytes_) Header;
  records_ = reinterpret_cast<FlightRecord*>(bytes_ + kFlightHeaderBytes);
  header_->job = job;
  header_->rank = rank;
  header_->ranks = ranks;
  header_->process = getpid();
  header_->clock_offset_s = clock_offset_s();
  gethostname(header_->host.data(), header_->host.size() - 1);
}

FlightRecorder::~FlightRecorder() { munmap(bytes_, kFileBytes); }

// Its blocks are taken now: a disk that fills up later would end the process at its next record.
bool FlightRecorder::map_file(const std::string& folder) {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  int error = file < 0 ? errno : posix_fallocate(file, 0, kFileBytes);
  void* mapped = MAP_FAILED;
  if (error == 0) {
    mapped = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    error = mapped == MAP_FAILED ? errno : 0;
  }
  if (file >= 0) close(file);
  if (error == 0) {
    bytes_ = static_cast<std::byte*>(mapped);
    return true;
  }
  if (file >= 0) unlink(path_.c_str());
  why_ = fmt::format("cannot create {}: {}", path_, std::strerror(error));
  if (!folder.empty()) throw Error(ExitCode::kCannotCreate, why_);
  path_.clear();
  return false;
}

void FlightRecorder::map_memory() {
  void* mapped = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  bytes_ = static_cast<std::byte*>(mapped);
}

void FlightRecorder::record(FlightRecord::Kind kind, std::uint8_t track, std::string_view name, double time_s,
                            std::string_view model, std::optional<std::uint64_t> step, std::uint64_t detail) noexcept {
  if (track != static_cast<std::uint8_t>(TraceTrack::kControl)) moves_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t number = std::atomic_ref(header_->last).fetch_add(1, std::memory_order_relaxed) + 1;
  FlightRecord& record = records_[number % kFlightRecords];
  std::atomic_ref(record.number).store(0, std::memory_order_release);
  record.time_s = time_s;
  record.step = step.value_or(relaxed(header_->step));
  record.detail = static_cast<std::uint32_t>(detail);
  record.kind = kind;
  record.track = track;
  put_text(record.name, name);
  put_text(record.model, model);
  std::atomic_ref(record.number).store(number, std::memory_order_release);
}

void FlightRecorder::push(const char* name, bool waits, std::optional<std::uint64_t> step, std::uint64_t detail,
                          double since_s) noexcept {
  const std::size_t depth = depth_++;
  if (depth >= kDepth) return;
  const std::uint64_t outer = relaxed(header_->step);
  open_[depth] = {name, waits, step.value_or(outer), static_cast<std::uint32_t>(detail), since_s};
  if (step) std::atomic_ref(header_->step).store(*step, std::memory_order_relaxed);
  publish();
}

void FlightRecorder::pop() noexcept {
  if (depth_ > 0) --depth_;
  // What was enclosed may have been of another step, on rank 0 of another group's.
  if (depth_ > 0 && depth_ <= kDepth) {
    std::atomic_ref(header_->step).store(open_[depth_ - 1].step, std::memory_order_relaxed);
  }
  publish();
}

void FlightRecorder::publish() noexcept {
  const Span span = depth_ == 0 || depth_ > kDepth ? Span{} : open_[depth_ - 1];
  now_.name.store(span.name, std::memory_order_relaxed);
  now_.waits.store(span.waits, std::memory_order_relaxed);
  now_.step.store(depth_ == 0 ? relaxed(header_->step) : span.step, std::memory_order_relaxed);
  now_.detail.store(span.detail, std::memory_order_relaxed);
  now_.since_s.store(depth_ == 0 ? now_s() : span.since_s, std::memory_order_relaxed);
}

Doing FlightRecorder::doing() const noexcept {
  Doing doing{.waits = now_.waits.load(std::memory_order_relaxed),
              .step = now_.step.load(std::memory_order_relaxed),
              .detail = now_.detail.load(std::memory_order_relaxed),
              .since_s = now_.since_s.load(std::memory_order_relaxed)};
  const char* name = now_.name.load(std::memory_order_relaxed);
  if (name != nullptr) put_text(doing.name, name);
  return doing;
}

void FlightRecorder::note_group(int group) noexcept { header_->group_and_1 = group + 1; }

void FlightRecorder::note_alive(double alive_s, double moved_s) noexcept {
  std::atomic_ref(header_->alive_s).store(alive_s, std::memory_order_relaxed);
  std::atomic_ref(header_->moved_s).store(moved_s, std::memory_order_relaxed);
}

void FlightRecorder::remove() noexcept {
  if (!path_.empty()) unlink(path_.c_str());
}

void FlightRecorder::remove_all() noexcept {
  if (path_.empty()) return;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  for (int rank = 0; rank < header_->ranks; ++rank) unlink(path_of(folder, header_->job, rank).c_str());
}

bool still_runs(const FlightInfo& info) {
  return info.process > 0 && info.host == own_host() &&
         (kill(static_cast<pid_t>(info.process), 0) == 0 || errno == EPERM);
}

Flight read_flight(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ExitCode::kNoInput, fmt::format("cannot read {}", path.string()));
  std::vector<char> bytes(kFileBytes);
  FlightRecorder::Header header;
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw Error(ExitCode::kData,
                fmt::format("{}: shorter than the {} bytes of a flight recorder's file", path.string(), kFileBytes));
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.ranks < 1 || header.rank < 0 || header.rank >= header.ranks) {
    throw Error(ExitCode::kData, fmt::format("{}: not a flight recorder's file", path.string()));
  }
  header.host.back() = '\0';
  Flight flight{.info = {header.job, header.rank, header.ranks, header.process, header.host.data(),
                         header.clock_offset_s, header.alive_s, header.moved_s,
                         header.group_and_1 > 0 ? std::optional(header.group_and_1 - 1) : std::nullopt},
                .records = {}};
  for (std::size_t i = 0; i < kFlightRecords; ++i) {
    FlightRecord record;
    std::memcpy(&record, &bytes[kFlightHeaderBytes + i * sizeof record], sizeof record);
    if (record.number != 0) flight.records.push_back(record);
  }
  std::ranges::sort(flight.records, {}, &FlightRecord::number);
  return flight;
}

}  // namespace computron

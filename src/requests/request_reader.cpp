#include "computron/requests/request_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/launcher.h"
#include "computron/requests/line_rereader.h"
#include "computron/storage/files.h"
#include "computron/storage/line_splitter.h"
#include "computron/storage/spool.h"

namespace computron {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr int kLauncherWait_ms = 200;

std::string name_of_input(const std::string& path) { return path == "-" ? "standard input" : "'" + path + "'"; }

[[noreturn]] void refuse_input(const std::string& path, const std::string& why) {
  throw Error(ExitCode::kNoInput, fmt::format("cannot read requests from {}: {}", name_of_input(path), why));
}

void check_standard_input(const std::string& path, unsigned mode) {
  if (S_ISDIR(mode)) refuse_input(path, "it is a directory");
  if (isatty(STDIN_FILENO)) refuse_input(path, "it is a terminal; redirect a file or a pipe to it");
}

// O_NONBLOCK, so that a FIFO nobody writes to is refused too instead of waited for.
FileDescriptor open_input(const std::string& path) {
  FileDescriptor fd(path == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || fstat(fd.get(), &status) != 0) refuse_input(path, std::strerror(errno));
  if (path == "-") {
    check_standard_input(path, status.st_mode);
  } else if (!S_ISREG(status.st_mode)) {
    refuse_input(path,
                 fmt::format("it is {}, not a regular file ('-' reads standard input)", file_kind(status.st_mode)));
  }
  return fd;
}

// The same open file: one that takes its name changes nothing.
LineRereader::ReadAt reads_file(int fd, const std::string& path) {
  auto file = std::make_shared<const AppendFile>(FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 3)), path, system_calls());
  return [file](std::uint64_t begin, std::size_t count) { return file->read(begin, count); };
}

LineRereader::ReadAt reads_spool(std::shared_ptr<const Spool> spool) {
  return [spool = std::move(spool)](std::uint64_t begin, std::size_t count) { return spool->read(begin, count); };
}

// Null where what was read is not to be had again.
std::unique_ptr<LineRereader> make_rereader(const std::string& path, int fd, const std::shared_ptr<Spool>& spool,
                                            RequestParser parser) {
  if (path == "-" && !spool) return nullptr;
  return std::make_unique<LineRereader>(name_of_input(path), std::move(parser),
                                        spool ? reads_spool(spool) : reads_file(fd, path));
}

FileDescriptor open_wake() {
  FileDescriptor fd(eventfd(0, EFD_CLOEXEC));
  if (!fd) throw Error(ExitCode::kSystem, fmt::format("cannot make an eventfd: {}", std::strerror(errno)));
  return fd;
}

// Of a regular file, as many as its beginning, which has just been read, makes one expect.
std::size_t lines_to_expect(int fd, std::string_view beginning) {
  struct stat status {};
  if (beginning.empty() || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  const double lines = static_cast<double>(std::count(beginning.begin(), beginning.end(), '\n') + 1);
  const double size = static_cast<double>(status.st_size);
  return static_cast<std::size_t>(1.1 * size * lines / static_cast<double>(beginning.size()));
}

std::size_t bytes_of(const IncomingRequest& incoming) {
  std::size_t bytes = 0;
  if (const auto* parts = std::get_if<RequestParts>(&incoming.content)) {
    for (const Request& request : *parts) bytes += request.bytes();
    for (const TextOutput::Prompt& prompt : incoming.text.prompts) bytes += prompt.text.size();
  }
  return bytes;
}

}  // namespace

void check_input(const std::string& path) { open_input(path); }

RequestReader::RequestReader(const std::string& path, RequestParser parser, ReaderLimits limits,
                             const LineHistory* history, std::shared_ptr<Spool> spool)
    : path_(path),
      input_(open_input(path)),
      wake_(open_wake()),
      parser_(std::move(parser)),
      limits_(limits),
      history_(history),
      spool_(std::move(spool)),
      launcher_(launched_rank() != nullptr ? getppid() : 0),
      rereader_(make_rereader(path_, input_.get(), spool_, parser_.fresh())) {
  if (spool_) {
    spool_->set_pause([this](double seconds) {
      pollfd wake{wake_.get(), POLLIN, 0};
      return ::poll(&wake, 1, static_cast<int>(1e3 * seconds)) <= 0;
    });
  }
  thread_ = std::thread([this] { run(); });
}

RequestReader::~RequestReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  space_.notify_all();
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);  // cannot fail: the counter is 0
  thread_.join();
}

std::optional<IncomingRequest> RequestReader::poll() {
  std::optional<IncomingRequest> request;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return request;
    }
    request = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= bytes_of(*request);
  }
  space_.notify_one();
  return request;
}

bool RequestReader::finished() {
  const std::lock_guard lock(mutex_);
  return ended_ && queue_.empty() && !failure_;
}

std::optional<std::uint64_t> RequestReader::spooled_bytes() const {
  return spool_ ? std::optional(spool_->bytes()) : std::nullopt;
}

void RequestReader::run() {
  std::exception_ptr failure;
  try {
    read_all();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  ended_ = true;
}

// Ends at the end of the input, or early when the reader is being destroyed.
void RequestReader::read_all() {
  LineSplitter lines(limits_.max_line_bytes, [this](const InputLine& line) { return take(line); });
  std::uint64_t spooled = 0;
  while (spool_ && spooled < spool_->bytes()) {
    const std::string bytes = spool_->read(spooled, kChunkBytes);
    if (!lines.feed(bytes)) return;
    spooled += bytes.size();
  }
  std::string chunk(kChunkBytes, '\0');
  while (wait_for_input()) {
    const ssize_t count = read(input_.get(), chunk.data(), chunk.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) {
      throw Error(ExitCode::kIo,
                  fmt::format("cannot read requests from {}: {}", name_of_input(path_), std::strerror(errno)));
    }
    const std::string_view bytes(chunk.data(), static_cast<std::size_t>(count));
    if (lines.lines() == 0 && spooled == 0) parser_.expect(lines_to_expect(input_.get(), bytes));
    if (count == 0) {
      if (spool_) {
        check_launcher();
        spool_->end();
      }
      if (lines.end()) check_all_there(lines.lines());
      return;
    }
    if (!lines.feed(spool_ ? spool_->take(bytes) : bytes)) return;
  }
}

// One that is killed closes the pipe, as if the input had ended. It does so a moment before its children are another's.
void RequestReader::check_launcher() const {
  if (launcher_ == 0) return;
  pollfd wake{wake_.get(), POLLIN, 0};
  ::poll(&wake, 1, kLauncherWait_ms);
  if (getppid() == launcher_) return;
  throw Error(ExitCode::kStopped,
              "standard input has ended because its launcher has: run the same command again, with the same input");
}

// `lines`: that the input has.
void RequestReader::check_all_there(RequestId lines) const {
  check_blank(next_line_, lines);
  const auto last = history_ != nullptr ? history_->last_known() : std::nullopt;
  if (!last || *last < lines) return;
  throw Error(ExitCode::kData, fmt::format("{} has changed since the last attempt: it ends before line {}",
                                           name_of_input(path_), *last));
}

// Lines [begin, end), which are blank now, were so before.
void RequestReader::check_blank(RequestId begin, RequestId end) const {
  for (RequestId line = begin; history_ != nullptr && line < end; ++line) {
    if (!history_->known(line)) continue;
    throw Error(ExitCode::kData,
                fmt::format("{} has changed since the last attempt: line {} is blank now", name_of_input(path_), line));
  }
}

bool RequestReader::take(const InputLine& line) {
  check_blank(next_line_, line.number);
  next_line_ = line.number + 1;
  if (!limits_.shard.has(line.number)) return take_others(line);
  if (history_ != nullptr && !history_->fits(line.number, line.key)) {
    throw Error(ExitCode::kData, fmt::format("{} has changed since the last attempt: line {} is another one",
                                             name_of_input(path_), line.number));
  }
  if (history_ != nullptr && history_->done(line.number)) {
    skip(line);
    lines_seen_.fetch_add(1, std::memory_order_relaxed);
    lines_skipped_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  IncomingRequest incoming = line.too_long ? parser_.refuse_long(line.number, line.bytes, line.long_id)
                                           : parser_.parse(line.number, line.text);
  incoming.key = line.key;
  incoming.place = {line.number, line.begin, line.text.size(), LineHistory::digest_of(line.number, line.key)};
  return deliver(std::move(incoming));
}

void RequestReader::skip(const InputLine& line) {
  line.too_long ? parser_.skip_long(line.long_id) : parser_.skip(line.text);
}

// A line of another shard. Its result may be here if the settings of the job were allowed to change.
bool RequestReader::take_others(const InputLine& line) {
  if (history_ != nullptr && history_->done(line.number)) {
    throw Error(ExitCode::kConfig, fmt::format("the output has a result of line {}, which is not of --shard {}: give "
                                               "every shard an output of its own",
                                               line.number, limits_.shard.to_string()));
  }
  skip(line);
  return true;
}

// False when the reader is to stop.
bool RequestReader::wait_for_input() const {
  pollfd waits[] = {{input_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  while (::poll(waits, 2, -1) < 0) {
    if (errno != EINTR) throw Error(ExitCode::kSystem, fmt::format("poll failed: {}", std::strerror(errno)));
  }
  return waits[1].revents == 0;
}

// Waits for space. False when the reader is to stop.
bool RequestReader::deliver(IncomingRequest request) {
  std::unique_lock lock(mutex_);
  space_.wait(lock, [this] {
    return stopping_ || (queue_.size() < limits_.max_queued && queued_bytes_ < limits_.max_queued_bytes);
  });
  if (stopping_) return false;
  queued_bytes_ += bytes_of(request);
  lines_seen_.fetch_add(1, std::memory_order_relaxed);
  queue_.push_back(std::move(request));
  return true;
}

}  // namespace computron

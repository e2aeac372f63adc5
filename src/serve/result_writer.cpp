#include "computron/serve/result_writer.h"

#include <sys/stat.h>

#include <utility>

#include "computron/base/log.h"
#include "files.h"

namespace computron {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{4} << 20;  // whole lines of one write(2), roughly

// Of OUT itself: an OUT.partial is a file of its own, but the finished one would replace the input.
void check_not_input(const std::string& path, const std::string& input_path) {
  struct stat output {
  }, input{};
  if (stat(path.c_str(), &output) != 0) return;
  if ((input_path == "-" ? fstat(0, &input) : stat(input_path.c_str(), &input)) != 0) return;
  if (output.st_dev == input.st_dev && output.st_ino == input.st_ino) {
    throw Error(ExitCode::kCannotCreate, "cannot create '" + path + "': it is the input");
  }
}

FileDescriptor open_partial(const std::string& path, const std::string& partial_path, const std::string& input_path) {
  check_replaceable(path);
  check_not_input(path, input_path);
  return open_output(partial_path, input_path);
}

}  // namespace

ResultWriter::ResultWriter(const std::string& path, const std::string& input_path, std::size_t max_queued_bytes)
    : path_(path),
      partial_path_(path + ".partial"),
      fd_(open_partial(path_, partial_path_, input_path)),
      max_queued_bytes_(max_queued_bytes) {
  thread_ = std::thread([this] { run(); });
}

ResultWriter::~ResultWriter() {
  if (!thread_.joinable()) return;
  stop();
  try {
    check();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
}

void ResultWriter::write(std::string line) {
  line += '\n';
  std::unique_lock lock(mutex_);
  space_.wait(lock, [this] { return failure_ || queued_bytes_ <= max_queued_bytes_; });
  if (failure_) std::rethrow_exception(failure_);
  queued_bytes_ += line.size();
  queue_.push_back(std::move(line));
  work_.notify_one();
}

std::size_t ResultWriter::queued_bytes() {
  const std::lock_guard lock(mutex_);
  return queued_bytes_;
}

void ResultWriter::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

std::uint64_t ResultWriter::lines_written() {
  const std::lock_guard lock(mutex_);
  return lines_written_;
}

void ResultWriter::finish() {
  stop();
  check();
  publish(fd_.get(), partial_path_, path_);
}

// Returns when the thread has written what was queued, or failed.
void ResultWriter::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void ResultWriter::run() {
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      write_queued(lock);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = std::current_exception();
  }
  space_.notify_all();
}

// Writes the oldest lines with the lock given up meanwhile. They count as queued until they are in the file.
void ResultWriter::write_queued(std::unique_lock<std::mutex>& lock) {
  std::string batch;
  std::uint64_t lines = 0;
  for (; !queue_.empty() && batch.size() < kBatchBytes; ++lines) {
    batch += queue_.front();
    queue_.pop_front();
  }
  lock.unlock();
  write_all(fd_.get(), partial_path_, batch, bytes_written_);
  lock.lock();
  queued_bytes_ -= batch.size();
  lines_written_ += lines;
  space_.notify_all();
}

}  // namespace computron

#include "computron/storage/background_file.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

namespace computron {
namespace {

constexpr auto kCollectFor = std::chrono::milliseconds(100);
constexpr std::size_t kEnoughBytes = std::size_t{64} << 10;  // to write before that

AppendFile replace(const std::string& path, SystemCalls& calls) {
  OutputFolder folder(path, calls);
  const std::string name = std::filesystem::path(path).filename().string();
  AppendFile file(folder.open(name, /*input_path=*/"", 0666), path, calls);
  file.cut(0);
  return file;
}

}  // namespace

BackgroundFile::BackgroundFile(const std::string& path, std::size_t most_waiting_bytes, SystemCalls& calls)
    : most_waiting_bytes_(most_waiting_bytes),
      file_(replace(path, calls)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

BackgroundFile::~BackgroundFile() { close(); }

void BackgroundFile::close() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

bool BackgroundFile::put(std::span<const std::byte> first, std::span<const std::byte> second) {
  std::size_t before = 0, after = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!fault_.empty()) return true;
    before = waiting_.size();
    after = before + first.size() + second.size();
    if (after > most_waiting_bytes_) return false;
    waiting_.insert(waiting_.end(), first.begin(), first.end());
    waiting_.insert(waiting_.end(), second.begin(), second.end());
  }
  if (before == 0 || (before < kEnoughBytes && after >= kEnoughBytes)) wake_.notify_one();
  return true;
}

std::string BackgroundFile::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void BackgroundFile::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    wake_.wait_for(lock, stop, kCollectFor, [this] { return waiting_.size() >= kEnoughBytes; });
    const std::vector<std::byte> bytes = std::exchange(waiting_, {});
    lock.unlock();
    std::string fault = write(bytes);
    lock.lock();
    if (fault_.empty()) fault_ = std::move(fault);
  }
}

// What went wrong; empty: nothing.
std::string BackgroundFile::write(const std::vector<std::byte>& bytes) try {
  if (!fault().empty()) return {};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (file_.append(text, /*lines=*/false) == text.size()) return {};
  return "cannot write '" + file_.path() + "': " + std::strerror(ENOSPC);
} catch (const Error& error) {
  return error.what();
}

}  // namespace computron

#include "computron/storage/result_writer.h"

#include <utility>

#include "computron/base/log.h"

namespace computron {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{4} << 20;  // whole lines of one write(2), roughly

}  // namespace

ResultWriter::ResultWriter(ResultJournal journal, const WriterOptions& options)
    : journal_(std::move(journal)), history_(journal_->history()), attempt_(journal_->attempt()), options_(options) {
  journal_->set_pause([this](double seconds) { return pause(seconds); });
  thread_ = std::thread([this] { run(); });
  try {
    note_thread_ = std::thread([this] { run_notes(); });
  } catch (...) {
    end_thread();
    throw;
  }
}

ResultWriter::~ResultWriter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    hurry_ = true;
  }
  end_thread();
  try {
    check();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
}

void ResultWriter::write(RequestId line, std::string text) {
  text += '\n';
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  queued_bytes_ += text.size();
  queue_.push_back({line, std::move(text)});
  work_.notify_one();
}

// Nothing is lost if it is written with the line's result.
void ResultWriter::note_line(RequestId line, const Digest128& key) {
  const std::lock_guard lock(mutex_);
  keys_.emplace_back(line, key);
}

void ResultWriter::note_input_end(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  input_end_ = bytes;
  work_.notify_one();
}

std::uint64_t ResultWriter::note_begun(std::vector<RequestId> lines, bool alone) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  begun_.push_back({std::move(lines), alone});
  notes_.notify_one();
  return ++notes_queued_;
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

void ResultWriter::stop(bool in_order) && {
  {
    const std::lock_guard lock(mutex_);
    hurry_ = true;
  }
  end_thread();
  check();
  if (in_order) std::move(*journal_).stop();
  journal_.reset();
}

void ResultWriter::finish() && {
  end_thread();
  check();
  std::move(*journal_).finish();
  journal_.reset();
}

// Returns when the thread has written and committed what was queued, or failed.
void ResultWriter::end_thread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  notes_.notify_all();
  thread_.join();
  if (note_thread_.joinable()) note_thread_.join();  // not if it could not be started
}

// What is queued counts as queued until it is in the file. Once a second at least it is seen whose output this is.
void ResultWriter::run() {
  const auto tick = std::chrono::duration<double>(options_.commit_s);
  std::unique_lock lock(mutex_);
  try {
    for (bool last = false; !last && !failure_;) {
      work_.wait_for(lock, tick, [this] { return has_work(); });
      const Batch batch = take_batch();
      last = stopping_ && queue_.empty();
      lock.unlock();
      put(batch);
      stalled_ = false;
      if (last || must_commit()) journal_->commit();
      if (!journal_->has_uncommitted()) last_commit_ = Clock::now();
      lock.lock();
      queued_bytes_ -= batch.text.size();
      lines_written_ += batch.lines.size();
    }
  } catch (...) {
    if (lock.owns_lock()) lock.unlock();
    fail();
  }
}

void ResultWriter::run_notes() try {
  std::unique_lock lock(mutex_);
  for (;;) {
    notes_.wait(lock, [this] { return stopping_ || failure_ || !begun_.empty(); });
    if (failure_ || begun_.empty()) return;
    const Begun begun = std::move(begun_.front());
    begun_.pop_front();
    lock.unlock();
    journal_->note_begun(begun.lines, begun.alone);
    notes_written_.fetch_add(1, std::memory_order_release);
    lock.lock();
  }
} catch (...) {
  fail();
}

// The first failure is the one to tell.
void ResultWriter::fail() {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::current_exception();
  work_.notify_all();
  notes_.notify_all();
}

ResultWriter::Batch ResultWriter::take_batch() {
  Batch batch{
      .keys = std::exchange(keys_, {}), .input_end = std::exchange(input_end_, std::nullopt), .text = {}, .lines = {}};
  while (!queue_.empty() && batch.text.size() < kBatchBytes && (!options_.commit_always || batch.lines.empty())) {
    batch.text += queue_.front().text;
    batch.lines.push_back(queue_.front().number);
    queue_.pop_front();
  }
  return batch;
}

void ResultWriter::put(const Batch& batch) {
  for (const auto& [line, key] : batch.keys) journal_->note_line(line, key);
  if (batch.input_end) journal_->note_input_end(*batch.input_end);
  journal_->write(batch.text, batch.lines);
}

bool ResultWriter::must_commit() const {
  return options_.commit_always || journal_->uncommitted_lines() >= options_.commit_lines ||
         (journal_->has_uncommitted() &&
          Clock::now() - last_commit_ >= std::chrono::duration<double>(options_.commit_s));
}

// While the disk is full, on the thread.
bool ResultWriter::pause(double seconds) {
  std::unique_lock lock(mutex_);
  stalled_ = true;
  return !work_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return hurry_; });
}

}  // namespace computron

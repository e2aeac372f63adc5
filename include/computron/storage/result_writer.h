// Writes results (JSONL in the OpenAI batch output format) beside serving, a line a request, in completion order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "computron/storage/result_journal.h"

namespace computron {

struct WriterOptions {
  // Of results that wait for the disk. No more requests are taken from half of it on, so that those that are served
  // already find room.
  std::size_t max_queued_bytes = std::size_t{64} << 20;
  double commit_s = 1;
  std::size_t commit_lines = 256;
  bool commit_always = false;  // each result before the next
};

// Threads in front of a ResultJournal, so that nobody who serves requests waits for a file system. Writer: what is
// queued is appended at once, COMMITs follow once a second, every 256 lines and at the end. Notes: lines that begin,
// which must not stand behind a slow fsync. A failure of either ends both.
class ResultWriter {
 public:
  // std::system_error if a thread cannot be started; the output is given back then.
  explicit ResultWriter(ResultJournal journal, const WriterOptions& options = {});
  ~ResultWriter();  // writes and commits what is queued, leaves OUT.partial

  // Queues the result of a line. Never blocks: has_room() keeps the queue short. Throws like check().
  void write(RequestId line, std::string text);
  // A line has been read: before its result.
  void note_line(RequestId line, const Digest128& key);
  // Standard input has ended after so many bytes: behind its last line.
  void note_input_end(std::uint64_t bytes);
  // Lines that a step is about to compute on, `alone` or not. Queued; noted() once they are in the file, though not
  // durable: from then on the process may end, and it is known whom to suspect. Throws like check().
  std::uint64_t note_begun(std::vector<RequestId> lines, bool alone);
  bool noted(std::uint64_t ticket) const { return notes_written_.load(std::memory_order_acquire) >= ticket; }
  // Bytes waiting, and whether more requests may be taken: not while these are many or the disk is full.
  std::size_t queued_bytes();
  bool has_room() { return !stalled() && queued_bytes() < options_.max_queued_bytes / 2; }
  bool stalled() const { return stalled_.load(std::memory_order_relaxed); }
  // Throws the thread's error, if it has one (Error{kIo} with path, cause and bytes written; {kCannotCreate} when
  // another job has taken the output). Never blocks.
  void check();
  // Lines that have reached the file.
  std::uint64_t lines_written();
  const LineHistory& history() const { return *history_; }
  std::uint32_t attempt() const { return attempt_; }

  // Either ends the writer: of what stands above, what only reads may be called then.
  //
  // Writes and commits everything; the attempt ends in order before the job is done. `in_order` false: somebody will
  // have to find out whether what ran then can be run at all. Does not wait for a full disk.
  void stop(bool in_order) &&;
  // Writes everything out, fsyncs, renames, fsyncs the folder. Error{kIo} leaves OUT.partial.
  void finish() &&;

 private:
  using Clock = std::chrono::steady_clock;
  struct Line {
    RequestId number;
    std::string text;  // with its newline
  };
  // What goes to the disk next.
  struct Batch {
    std::vector<std::pair<RequestId, Digest128>> keys;
    std::optional<std::uint64_t> input_end;
    std::string text;
    std::vector<RequestId> lines;
  };

  struct Begun {
    std::vector<RequestId> lines;
    bool alone = false;
  };

  void run();
  void run_notes();
  void fail();
  Batch take_batch();
  void put(const Batch& batch);
  bool must_commit() const;
  bool has_work() const { return stopping_ || failure_ || input_end_ || !queue_.empty(); }
  bool pause(double seconds);
  void end_thread();

  std::optional<ResultJournal> journal_;  // none once it has ended
  std::shared_ptr<const LineHistory> history_;
  std::uint32_t attempt_;
  WriterOptions options_;
  Clock::time_point last_commit_ = Clock::now();  // the thread's own, or when nothing was left to commit
  std::atomic<bool> stalled_ = false;
  std::atomic<std::uint64_t> notes_written_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable notes_;
  std::deque<Line> queue_;
  std::deque<Begun> begun_;
  std::uint64_t notes_queued_ = 0;
  std::vector<std::pair<RequestId, Digest128>> keys_;
  std::optional<std::uint64_t> input_end_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t lines_written_ = 0;
  bool stopping_ = false;
  bool hurry_ = false;  // no waiting for a full disk
  std::exception_ptr failure_;

  std::thread thread_, note_thread_;
};

}  // namespace computron

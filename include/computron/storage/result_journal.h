// Results on disk, such that a job that is killed at any moment can be run again with the same command: for every input
// line exactly one result line, whatever happens on the way.
//
//   OUT.partial   the results, in the order of their completion; only whole lines count
//   OUT.journal   what is known of them and of the input, checksummed (src/storage/journal_records.h)
//   OUT.lock      whose output it is (src/storage/output_lock.h)
//   OUT.spool     what came over standard input
//   OUT           appears by rename when every line has its result; the other four go then
//   OUT.done      which command OUT is the result of: that one, run again, has nothing to do; another one is refused
//
// Lines first: they are appended to OUT.partial and are safe from the end of the process at once. A COMMIT follows, by
// default once a second: OUT.partial is made durable, then a record that says what is in it is appended to the journal,
// then the journal is made durable. So a COMMIT never speaks of bytes that a power cut could take. A failed fsync ends
// the job and is never tried again: what it failed to write is unknown. Lines behind the last COMMIT count as well if
// they are whole, for the process may have ended without the machine.
//
// A line is known by its number and the digest of its bytes. A request that was running when the job went down, two
// times, runs alone the third time, behind all others; if the job goes down then too, its result is an error.
//
// The order of calls:
//
//   claim_output() --> CompleteOutput
//                  --> ClaimedOutput --check_progress(), begin()--> ResultJournal --stop() or finish()--> the end
//
// One thread at a time, but for note_begun().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "computron/base/digest.h"
#include "computron/storage/line_history.h"
#include "computron/storage/system_calls.h"

namespace computron {

class Spool;

// What is made durable and when. kProcess: nothing, the system does it in its own time; safe from the end of the
// process, not of the machine. kNode: what was written, once a second. kResult: each result, before the next.
enum class Durability { kProcess, kNode, kResult };
Durability parse_durability(const std::string& text);  // Error{kUsage}

// What results depend on, by names that people know: an option, a model's checkpoint.
using Settings = std::vector<std::pair<std::string, std::string>>;

struct JournalOptions {
  Durability durability = Durability::kNode;
  double disk_wait_s = 60;  // a full disk is waited for, tried every `disk_retry_s`
  double disk_retry_s = 5;
  bool take_over = false;            // the output, from a job that seems to hold it
  bool allow_config_change = false;  // results of different settings may stand side by side
  // So many times may the job go down while a request runs, the last of them with this request alone, or end in
  // whatever way without any result of any output in a row (check_progress()); 0: any number of times.
  int max_crashes = 3;
  std::size_t max_line_bytes = std::size_t{8} << 20;  // as the reader's: it is part of what a line's key is
  // Says in the names of today what an earlier version wrote; empty: as it stands.
  std::function<Settings(Settings)> upgrade = {};
};

// OUT is there, and it is what this very command makes: nothing is left to do.
struct CompleteOutput {
  std::uint64_t lines = 0;  // of OUT
};

class ResultJournal;
struct JournalState;  // of the files and what is known of them; private to result_journal.cpp

// An output that is this job's from now on, with what earlier attempts left of it. Nothing is changed yet but OUT.lock.
// The destructor gives the output back.
class ClaimedOutput {
 public:
  explicit ClaimedOutput(std::shared_ptr<JournalState> state);

  const LineHistory& history() const;
  // What the last attempt kept under this name; empty: nothing, or there was none.
  std::string kept(const std::string& name) const;
  // Has the attempt keep it, beside the settings. JournalOptions::upgrade takes it away from what was before, since
  // nothing is to be compared with it.
  void keep(const std::string& name, const std::string& value);
  // Repairs what is torn and begins an attempt.
  ResultJournal begin() &&;

 private:
  friend void check_progress(std::span<const ClaimedOutput* const> outputs);
  std::shared_ptr<JournalState> state_;
};

// `outputs`: all those of a job. Error{kInternal} naming one if the last attempts got nowhere: JournalOptions'
// max_crashes of them in a row left no result in any output, though they ran requests.
void check_progress(std::span<const ClaimedOutput* const> outputs);

using FoundOutput = std::variant<CompleteOutput, ClaimedOutput>;

// Takes the output and looks at what is there, but changes no result. `input_path`: "-" for standard input, which is
// read to its end only if OUT is there.
// Error{kCannotCreate} or {kPermission} naming the path: parent missing, a directory, a symlink, the input itself, in
// use by another job (named), there already and not known to be this command's. Error{kConfig} naming the setting
// that is another one than before; Error{kData} for an input that has become shorter. Borrows `calls`.
FoundOutput claim_output(const std::string& path, const std::string& input_path, Settings settings,
                         const JournalOptions& options = {}, SystemCalls& calls = system_calls());

// An attempt that has begun. stop(), finish() or the destructor ends it; the destructor leaves it as a job that goes
// down leaves it, and gives the output back.
class ResultJournal {
 public:
  explicit ResultJournal(std::shared_ptr<JournalState> state);
  ResultJournal(ResultJournal&&) noexcept = default;
  ResultJournal& operator=(ResultJournal&&) = delete;
  ~ResultJournal();

  // What earlier attempts left; may outlive the journal.
  std::shared_ptr<const LineHistory> history() const;
  // Which attempt this is, from 1 on, as the journal has counted them.
  std::uint32_t attempt() const;
  // Of standard input, with what came over it before. May outlive the journal, but takes nothing new then.
  std::shared_ptr<Spool> open_spool();
  // How to sleep while the disk is full: false when there is no time for that any more.
  void set_pause(std::function<bool(double seconds)> pause);

  // A line that was read, before anything else of it. Reaches the file with the next write().
  void note_line(RequestId line, const Digest128& key);
  // Standard input has ended after so many bytes; behind its last line. Reaches the file with the next write().
  void note_input_end(std::uint64_t bytes);
  // Lines that a step is about to compute on. In the file when this returns, though not durable, so that it is known
  // whom to suspect if the job goes down right then; left out where the disk is full. By any thread, beside the others.
  void note_begun(std::span<const RequestId> lines, bool alone);
  // Appends whole result lines, of `lines`. Either may be empty. Error{kIo}; {kCannotCreate} if another job has taken
  // over.
  void write(std::string_view text, std::span<const RequestId> lines);
  bool has_uncommitted() const;
  std::size_t uncommitted_lines() const;
  void commit();

  // The attempt ends in order before the job is done: it does not count as one that went down. The output is free for
  // the next job then.
  void stop() &&;
  // Every line has its result: OUT.partial becomes OUT.
  void finish() &&;

 private:
  std::shared_ptr<JournalState> state_;  // null once it was moved from
};

}  // namespace computron

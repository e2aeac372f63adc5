#include "src/storage/journal_recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "computron/base/error.h"
#include "computron/storage/custom_id_scanner.h"
#include "computron/storage/line_splitter.h"

namespace computron {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;

// Follows the records.
class Replay {
 public:
  // False if the record cannot follow those before it.
  bool apply(const journal::Record& record) {
    return std::visit([this](const auto& r) { return take(r); }, record);
  }
  // Drops COMMITs that end behind `kept` and un-does their lines.
  void void_from(std::uint64_t kept);
  // Results lie behind the last COMMIT.
  void note_progress() { progress_ = true; }
  void finish(int max_crashes);

  Recovered state;
  std::vector<journal::Commit> commits;  // that count, one behind the other

 private:
  bool take(const journal::Header& header);
  bool take(const journal::Open& open);
  bool take(const journal::Keys& keys);
  bool take(const journal::Begun& begun);
  bool take(const journal::Commit& commit);
  bool take(const journal::Close& close);
  bool take(const journal::InputEnd& end);
  bool take(const journal::Done&) { return false; }  // no part of a journal
  void end_attempt();
  bool has_result() const { return progress_ || !alone_.empty(); }
  bool is_fruitless() const;

  // Of the attempt at hand.
  std::set<RequestId> running_, alone_;
  bool closed_ = true;
  bool progress_ = false;

  std::map<RequestId, int> crashes_;  // attempts that ended out of order while the line was running
  std::set<RequestId> poisoned_;      // and one of them while it ran alone
};

bool Replay::take(const journal::Header& header) {
  state.header = header;
  return header.version == journal::kVersion;
}

bool Replay::take(const journal::Open& open) {
  end_attempt();
  void_from(open.kept);
  state.attempts = open.attempt;
  state.epoch = std::max(state.epoch, open.epoch);
  state.complete = closed_ = false;
  return true;
}

bool Replay::take(const journal::Keys& keys) {
  for (const auto& [line, key] : keys.lines) state.history.note(line, key);
  return true;
}

// One that runs alone has ended when the next one does, with its result perhaps still on its way to the file.
bool Replay::take(const journal::Begun& begun) {
  if (begun.alone) {
    for (const RequestId line : std::exchange(alone_, {})) running_.erase(line);
  }
  running_.insert(begun.lines.begin(), begun.lines.end());
  if (begun.alone) alone_.insert(begun.lines.begin(), begun.lines.end());
  return true;
}

bool Replay::take(const journal::Commit& commit) {
  if (commit.begin != state.committed || commit.end <= commit.begin || commit.lines.empty()) return false;
  for (const RequestId line : commit.lines) {
    if (!state.history.known(line) || state.history.done(line)) return false;
  }
  for (const RequestId line : commit.lines) {
    state.history.set_done(line, true);
    running_.erase(line);
  }
  progress_ |= !commit.lines.empty();
  state.committed = commit.end;
  commits.push_back(commit);
  return true;
}

bool Replay::take(const journal::Close& close) {
  closed_ = true;
  state.complete = close.complete;
  return true;
}

bool Replay::take(const journal::InputEnd& end) {
  state.input_end = end.bytes;
  return true;
}

// An attempt that ended in order may not have come as far as its first request. One that ran a request alone has done
// what it was there for.
bool Replay::is_fruitless() const {
  const bool tried = !closed_ || !running_.empty();
  return tried && !has_result();
}

void Replay::end_attempt() {
  if (!closed_) {
    for (const RequestId line : running_) ++crashes_[line];
    std::set_intersection(running_.begin(), running_.end(), alone_.begin(), alone_.end(),
                          std::inserter(poisoned_, poisoned_.end()));
  }
  state.fruitless = is_fruitless() ? state.fruitless + 1 : 0;
  state.without_result = has_result() || state.attempts == 0 ? 0 : state.without_result + 1;
  running_.clear();
  alone_.clear();
  progress_ = false;
}

void Replay::void_from(std::uint64_t kept) {
  while (!commits.empty() && commits.back().end > kept) {
    for (const RequestId line : commits.back().lines) state.history.set_done(line, false);
    commits.pop_back();
  }
  const std::uint64_t end = commits.empty() ? 0 : commits.back().end;
  state.complete &= end == state.committed;
  state.committed = end;
}

void Replay::finish(int max_crashes) {
  state.in_order = closed_;
  end_attempt();
  closed_ = true;
  if (max_crashes == 0) return;
  for (const auto& [line, times] : crashes_) {
    if (state.history.done(line)) continue;
    if (poisoned_.contains(line) && times >= max_crashes) {
      state.history.give_up(line);
    } else if (times >= max_crashes - 1) {
      state.history.suspect(line);
    }
  }
}

// Up to where the results are what the COMMITs say.
std::uint64_t sound_results(const std::vector<journal::Commit>& commits, const ReadAt& results,
                            std::uint64_t result_bytes) {
  FileLines lines(results, 0, result_bytes);
  for (const journal::Commit& commit : commits) {
    std::uint64_t digest = 0;
    while (lines.offset() < commit.end) {
      const auto line = lines.next();
      if (!line) return commit.begin;
      digest = journal::chain_digest(digest, *line);
    }
    if (lines.offset() != commit.end || digest != commit.digest) return commit.begin;
  }
  return commits.empty() ? 0 : commits.back().end;
}

// Adds a line that begins at `begin` to COMMITs of at most kLinesInRecord lines.
void add_line(std::vector<journal::Commit>& commits, std::uint64_t begin, std::string_view text, RequestId line) {
  if (commits.empty() || commits.back().lines.size() == journal::kLinesInRecord) {
    commits.push_back({.begin = begin, .end = begin, .digest = 0, .lines = {}});
  }
  journal::Commit& commit = commits.back();
  commit.end += text.size();
  commit.digest = journal::chain_digest(commit.digest, text);
  commit.lines.push_back(line);
}

std::string_view without_newline(std::string_view line) { return line.substr(0, line.size() - 1); }

void keep_tail(Recovered& state, const ReadAt& results, std::uint64_t result_bytes) {
  FileLines lines(results, state.committed, result_bytes);
  while (const auto text = lines.next()) {
    const auto line = line_of_result(without_newline(*text));
    if (!line || !state.history.known(*line) || state.history.done(*line)) return;
    state.history.set_done(*line, true);
    add_line(state.tail, lines.offset() - text->size(), *text, *line);
  }
}

// --- Without a journal ------------------------------------------------------------------------------------------

std::string custom_id_of(std::string_view line) {
  CustomIdScanner scanner;
  scanner.feed(line);
  return scanner.found() ? "'" + *scanner.found() + "'" : "none";
}

std::uint64_t digest_of(const std::string& text) {
  return digest64(std::as_bytes(std::span(text.data(), text.size())));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ExitCode::kCannotCreate,
              fmt::format("'{}' without its journal does not go with these requests: {}; move it away to begin afresh",
                          path, why));
}

// Line numbers of the results behind kept(), in no order, with a digest of the custom_id.
std::map<RequestId, std::uint64_t> scan(const ReadAt& results, std::uint64_t result_bytes, Recovered& state) {
  std::map<RequestId, std::uint64_t> found;
  FileLines lines(results, state.kept(), result_bytes);
  while (const auto text = lines.next()) {
    const auto line = line_of_result(without_newline(*text));
    if (!line || state.history.done(*line) || !found.emplace(*line, digest_of(custom_id_of(*text))).second) break;
    add_line(state.tail, lines.offset() - text->size(), *text, *line);
  }
  return found;
}

// A line that was read is what it was then: if it is another one now, its reader will find out.
void add_key(Recovered& state, const InputLine& line) {
  state.history.set_done(line.number, true);
  if (state.history.known(line.number)) return;
  if (state.keys.empty() || state.keys.back().lines.size() == journal::kLinesInRecord) state.keys.emplace_back();
  state.keys.back().lines.push_back({line.number, line.key});
  state.history.note(line.number, line.key);
}

}  // namespace

Recovered recover(const ReadAt& journal, const ReadAt& results, std::uint64_t result_bytes, int max_crashes) {
  Replay replay;
  journal::Reader records(journal);
  while (const auto record = records.next()) {
    if (!replay.apply(*record)) break;
    replay.state.journal_bytes = records.bytes();
  }
  replay.state.journal_lost = records.lost_from(replay.state.journal_bytes);
  const std::uint64_t end = replay.state.committed, sound = sound_results(replay.commits, results, result_bytes);
  replay.void_from(sound);
  replay.state.lost = end - sound;
  if (sound == end) keep_tail(replay.state, results, result_bytes);  // else what follows was something else once
  if (!replay.state.tail.empty()) replay.note_progress();
  replay.finish(max_crashes);
  return std::move(replay.state);
}

void rebuild(Recovered& state, const ReadAt& results, std::uint64_t result_bytes, const ReadAt& input,
             std::size_t max_line_bytes, const std::string& path) {
  std::map<RequestId, std::uint64_t> found = scan(results, result_bytes, state);
  LineSplitter lines(max_line_bytes, [&](const InputLine& line) {
    const auto result = found.find(line.number);
    if (result == found.end()) return true;
    const std::string id = line.long_id ? "'" + *line.long_id + "'" : custom_id_of(line.text);
    if (digest_of(id) != result->second) {
      refuse(path, fmt::format("line {} has custom_id {}, its result another", line.number, id));
    }
    add_key(state, line);
    found.erase(result);
    return !found.empty();
  });
  std::uint64_t offset = 0;
  bool more = !found.empty();
  while (more) {
    const std::string bytes = input(offset, kReadBytes);
    more = bytes.empty() ? false : lines.feed(bytes);
    if (bytes.empty()) lines.end();
    offset += bytes.size();
  }
  if (!found.empty()) refuse(path, fmt::format("it has a result of line {}, which is not there", found.begin()->first));
  if (!state.tail.empty()) state.fruitless = state.without_result = 0;
}

}  // namespace computron

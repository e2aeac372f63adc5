#include "computron/storage/result_journal.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "computron/storage/spool.h"
#include "src/storage/journal_recovery.h"
#include "src/storage/output_lock.h"
#include "tests/requests/requests_support.h"
#include "tests/storage/failing_calls.h"

namespace computron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr RequestId kLines = 9;
constexpr std::size_t kMaxLine = 1000;
const Settings kSettings = {{"--seed", "0"}, {"checkpoint of model a", "1234"}};

std::string input_line(RequestId line) { return fmt::format(R"({{"custom_id":"r{}","body":{{}}}})", line); }
std::string result_of(RequestId line) {
  return fmt::format(R"({{"id":"batch_req_{0}","custom_id":"r{0}","response":"{1}","error":null}})", line,
                     std::string(static_cast<std::size_t>(line), 'x')) +
         "\n";
}
Digest128 key_of(RequestId line) {
  const std::string text = input_line(line);
  return digest128(std::as_bytes(std::span(text.data(), text.size())));
}

// A folder with a request file, and attempts at it.
class Attempts {
 public:
  Attempts() {
    std::string text;
    for (RequestId line = 0; line < kLines; ++line) text += input_line(line) + "\n";
    folder_.write("in.jsonl", text);
  }
  std::string path(const std::string& suffix = "") const { return folder_ / ("out" + suffix); }
  std::string input() const { return folder_ / "in.jsonl"; }
  const TemporaryFolder& folder() const { return folder_; }

  FoundOutput find(SystemCalls& calls, JournalOptions options = {}) const {
    options.max_line_bytes = kMaxLine;
    FoundOutput found = claim_output(path(), input(), kSettings, options, calls);
    if (const auto* claimed = std::get_if<ClaimedOutput>(&found)) check_progress(std::array{claimed});
    return found;
  }
  ClaimedOutput claim(SystemCalls& calls, const JournalOptions& options = {}) const {
    return std::get<ClaimedOutput>(find(calls, options));
  }
  ResultJournal begin(SystemCalls& calls, const JournalOptions& options = {}) const {
    return claim(calls, options).begin();
  }

  // An attempt at all lines that have no result yet, begun at another place each time. False if it ended before.
  bool run(SystemCalls& calls, const JournalOptions& options = {}) {
    ++attempt_;
    try {
      FoundOutput output = find(calls, options);
      if (std::holds_alternative<CompleteOutput>(output)) return true;
      ResultJournal journal = std::get<ClaimedOutput>(std::move(output)).begin();
      for (RequestId i = 0; i < kLines; ++i) serve(journal, (i * 4 + attempt_) % kLines);
      std::move(journal).finish();
      return true;
    } catch (const Error& error) {
      last_error_ = error.what();
      last_code_ = error.code();
      return false;
    }
  }
  // The next one, to which nothing happens.
  bool run_again(const JournalOptions& options = {}) { return run(quick_, options); }
  // Whole lines that a COMMIT spoke of when the attempt ended.
  std::string committed() const { return committed_; }
  std::string last_error() const { return last_error_; }
  ExitCode last_code() const { return last_code_; }

  // Every line once, `before` foremost; nothing else is left.
  void expect_complete(const std::string& before) const {
    const std::string output = read_file(path());
    EXPECT_TRUE(output.starts_with(before)) << before << "\n---\n" << output;
    std::multiset<std::string> found, expected;
    for (std::size_t begin = 0; begin < output.size();) {
      const std::size_t end = output.find('\n', begin) + 1;
      ASSERT_GT(end, begin);
      found.insert(output.substr(begin, end - begin));
      begin = end;
    }
    for (RequestId line = 0; line < kLines; ++line) expected.insert(result_of(line));
    EXPECT_EQ(found, expected);
    for (const char* suffix : {".partial", ".journal", ".lock", ".spool"}) EXPECT_FALSE(fs::exists(path(suffix)));
  }
  // Of OUT.partial, or of OUT where it has that name already.
  std::string whole_lines() const {
    std::string text = read_file(fs::exists(path(".partial")) ? path(".partial") : path());
    text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
    return text;
  }

 private:
  void serve(ResultJournal& journal, RequestId line) {
    if (journal.history()->done(line)) return;
    journal.note_line(line, key_of(line));
    journal.note_begun(std::vector{line}, false);
    journal.write(result_of(line), std::vector{line});
    if (line % 3 != 2) return;
    journal.commit();
    committed_ = whole_lines();
  }

  TemporaryFolder folder_;
  FailingCalls quick_;  // like the system's, but for the time that a disk takes
  CapturedLog log_;
  RequestId attempt_ = 0;
  std::string committed_, last_error_;
  ExitCode last_code_ = ExitCode::kOk;
};

const JournalOptions kNeverGiveUp{.max_crashes = 0};
constexpr std::size_t kLastRecord = 60;  // bytes at most, of those that an attempt ends with here

TEST(ResultJournal, OutputIsAllThatStays) {
  Attempts job;
  ASSERT_TRUE(job.run_again());
  job.expect_complete("");
}

// --- The end at any point ---------------------------------------------------------------------------------------

int calls_of_an_attempt() {
  Attempts job;
  FailingCalls calls;
  EXPECT_TRUE(job.run(calls));
  return calls.calls();
}

TEST(ResultJournal, ProcessMayEndAtAnyCall) {
  const int total = calls_of_an_attempt();
  ASSERT_GT(total, 30);
  for (int at = 0; at < total; ++at) {
    for (const double part : {0.0, 0.4, 1.0}) {
      SCOPED_TRACE(fmt::format("call {}, {} of a write", at, part));
      Attempts job;
      FailingCalls calls;
      calls.end_at(at, part);
      const bool finished = job.run(calls, kNeverGiveUp);
      ASSERT_EQ(finished, calls.log()[static_cast<std::size_t>(at)] == "unlink");  // OUT is complete then
      if (finished && !fs::exists(job.path(".journal"))) continue;
      const std::string before = job.whole_lines();
      ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
      job.expect_complete(before);
    }
  }
}

TEST(ResultJournal, RecoveryMayEndAtAnyCallToo) {
  const int total = calls_of_an_attempt();
  for (int at = 0; at < total - 3; at += 2) {
    for (int again = 0; again < total; again += 1 + again / 12) {
      SCOPED_TRACE(fmt::format("call {}, then {}", at, again));
      Attempts job;
      FailingCalls calls, more_calls;
      calls.end_at(at, 0.7);
      more_calls.end_at(again, 0.3);
      ASSERT_FALSE(job.run(calls, kNeverGiveUp));
      const std::string before = job.whole_lines();
      if (job.run(more_calls, kNeverGiveUp) && !fs::exists(job.path(".journal"))) continue;
      const std::string later = job.whole_lines();
      EXPECT_TRUE(later.starts_with(before));
      ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
      job.expect_complete(later);
    }
  }
}

TEST(ResultJournal, WhatACommitSpeaksOfSurvivesALossOfPower) {
  const int total = calls_of_an_attempt();
  for (int at = 0; at < total; ++at) {
    for (const double luck : {0.0, 0.5, 1.0}) {
      for (const bool journal_too : {false, true}) {
        SCOPED_TRACE(fmt::format("call {}, luck {}", at, luck));
        Attempts job;
        FailingCalls calls;
        calls.end_at(at, 1.0);
        if (job.run(calls, kNeverGiveUp)) continue;
        if (fs::exists(job.path())) {
          calls.lose_power(job.path(), luck);
        } else {
          calls.lose_power(job.path(".partial"), luck);
          calls.lose_power(job.path(".journal"), journal_too ? luck : 1.0);
        }
        const std::string committed = job.committed();
        ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
        job.expect_complete(committed);
      }
    }
  }
}

// --- Errors of the disk -----------------------------------------------------------------------------------------

TEST(ResultJournal, ErrorAtAnyCallEndsTheAttemptOrIsOvercome) {
  const int total = calls_of_an_attempt();
  for (int at = 0; at < total; ++at) {
    SCOPED_TRACE(fmt::format("call {}", at));
    Attempts job;
    FailingCalls calls;
    calls.fail_at(at, EIO);
    const bool finished = job.run(calls, kNeverGiveUp);
    const std::string name = calls.log()[static_cast<std::size_t>(at)];
    if (finished) {
      EXPECT_EQ(name, "unlink");  // OUT is complete; the next job finds what stays harmless
      for (const char* suffix : {".lock", ".journal"}) fs::remove(job.path(suffix));
    } else {
      EXPECT_EQ(job.last_code(), ExitCode::kIo) << job.last_error();
      EXPECT_THAT(job.last_error(), HasSubstr("Input/output error"));
      EXPECT_THAT(job.last_error(), HasSubstr(fs::path(job.path()).parent_path().string()));
      const std::string before = job.whole_lines();
      ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
      job.expect_complete(before);
    }
    job.expect_complete("");
  }
}

TEST(ResultJournal, FailedSyncIsNeverTriedAgainAndNothingIsWrittenBehindIt) {
  const int total = calls_of_an_attempt();
  int syncs = 0;
  for (int at = 0; at < total; ++at) {
    Attempts job;
    FailingCalls calls;
    calls.fail_at(at, EIO);
    const bool finished = job.run(calls);
    const std::string name = calls.log()[static_cast<std::size_t>(at)];
    if (name != "fsync" && name != "fdatasync") continue;
    EXPECT_FALSE(finished);
    ++syncs;
    const std::vector<std::string> behind(calls.log().begin() + at + 1, calls.log().end());
    EXPECT_TRUE(std::all_of(behind.begin(), behind.end(), [](const auto& call) { return call == "unlink"; }));
  }
  EXPECT_GE(syncs, 8);
}

TEST(ResultJournal, ShortAndInterruptedWritesAreGoneOnWith) {
  for (int at = 0; at < calls_of_an_attempt(); ++at) {
    Attempts job;
    FailingCalls calls;
    calls.write_at_most(5);
    calls.fail_at(at, EINTR);
    if (!job.run(calls)) {
      const std::string name = calls.log()[static_cast<std::size_t>(at)];
      EXPECT_TRUE(name != "write" && name != "ftruncate") << job.last_error();
      ASSERT_TRUE(job.run_again()) << job.last_error();
    }
    job.expect_complete("");
  }
}

TEST(ResultJournal, FullDiskIsWaitedFor) {
  for (const int error : {ENOSPC, EDQUOT}) {
    for (int begin = 3; begin < 60; begin += 4) {
      Attempts job;
      FailingCalls calls;
      int writes = 0;
      calls.write_at_most(50);
      calls.fail_while([&] { return ++writes >= begin && writes < begin + 4 ? error : 0; });
      ASSERT_TRUE(job.run(calls, {.disk_wait_s = 60, .disk_retry_s = 1e-4})) << job.last_error();
      job.expect_complete("");
    }
  }
}

TEST(ResultJournal, DiskThatStaysFullEndsTheAttemptWithWholeLines) {
  int begin = 0;
  for (;; begin += 3) {
    Attempts job;
    FailingCalls calls;
    int writes = 0;
    calls.write_at_most(50);
    calls.fail_while([&] { return ++writes > begin ? ENOSPC : 0; });
    if (job.run(calls, {.disk_wait_s = 1e-3, .disk_retry_s = 1e-4})) break;
    EXPECT_EQ(job.last_code(), ExitCode::kIo);
    EXPECT_THAT(job.last_error(), HasSubstr("no space left on the disk (after "));
    EXPECT_THAT(job.last_error(), HasSubstr("run the same command again"));
    const std::string partial = read_file(job.path(".partial"));
    EXPECT_EQ(partial, job.whole_lines());
    ASSERT_TRUE(job.run_again()) << job.last_error();
    job.expect_complete(partial);
  }
  EXPECT_GT(begin, 30);
}

TEST(ResultJournal, WithoutDurabilityOnlyTheEndIsSynced) {
  Attempts job;
  FailingCalls calls;
  ASSERT_TRUE(job.run(calls, {.durability = Durability::kProcess}));
  EXPECT_EQ(std::count(calls.log().begin(), calls.log().end(), "fdatasync"), 0);
  job.expect_complete("");
}

// --- Damage -----------------------------------------------------------------------------------------------------

// An attempt that ended after some results, without tidying up.
void leave_some(Attempts& job, int calls_before_the_end = 34) {
  FailingCalls calls;
  calls.end_at(calls_before_the_end, 0.5);
  ASSERT_FALSE(job.run(calls, kNeverGiveUp));
  ASSERT_GT(job.committed().size(), 100u);
}

void damage(const std::string& path, std::size_t offset) {
  std::string bytes = read_file(path);
  bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(ResultJournal, DamagedResultsAreComputedAgain) {
  Attempts first;
  leave_some(first);
  const std::size_t size = first.whole_lines().size();
  for (std::size_t offset = 0; offset < size; offset += 5) {
    Attempts job;
    leave_some(job);
    damage(job.path(".partial"), offset);
    const std::size_t committed = job.committed().size();
    ASSERT_TRUE(job.run_again()) << job.last_error();
    // Of what no COMMIT speaks of yet letters may differ and still be JSON.
    if (offset < committed) job.expect_complete("");
  }
}

TEST(ResultJournal, DamagedJournalLosesNoResult) {
  Attempts first;
  leave_some(first);
  const std::size_t size = fs::file_size(first.path(".journal"));
  for (std::size_t offset = 0; offset < size; offset += 3) {
    Attempts job;
    leave_some(job);
    const std::string before = job.whole_lines(), committed = job.committed();
    damage(job.path(".journal"), offset);
    ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
    // All of it but, where the last record is damaged, which might be a torn one, what only that one knows of.
    job.expect_complete(offset + kLastRecord < size ? before : committed);
  }
}

TEST(ResultJournal, DamagedJournalIsWarnedOf) {
  Attempts job;
  leave_some(job);
  damage(job.path(".journal"), 40);
  CapturedLog log;
  ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
  EXPECT_THAT(log.text(), HasSubstr(".journal' was damaged at byte 0: the "));
  EXPECT_THAT(log.text(), HasSubstr("go with the input and are kept"));
}

// The system counts what it failed to write as written: only writing it again makes it durable.
TEST(ResultJournal, WhatAFailedSyncLeftIsMadeDurableByTheNextAttempt) {
  int failed = 0;
  for (int at = 8; at < 40; ++at) {
    Attempts job;
    FailingCalls calls;
    calls.fail_at(at, EIO);
    if (job.run(calls, kNeverGiveUp) || calls.log()[static_cast<std::size_t>(at)] != "fdatasync") continue;
    ++failed;
    calls.end_at(calls.calls() + 30, 1.0);
    ASSERT_FALSE(job.run(calls, kNeverGiveUp));
    calls.lose_power(job.path(".partial"), 0);
    calls.lose_power(job.path(".journal"), 0);
    const std::string committed = job.committed();
    ASSERT_TRUE(job.run_again(kNeverGiveUp)) << job.last_error();
    job.expect_complete(committed);
  }
  EXPECT_GE(failed, 3);
}

TEST(ResultJournal, LostJournalIsMadeAgainFromResultsAndInput) {
  for (int end = 10; end < 45; ++end) {
    Attempts job;
    FailingCalls calls;
    calls.end_at(end, 0.5);
    ASSERT_FALSE(job.run(calls));
    const std::string before = job.whole_lines();
    fs::remove(job.path(".journal"));
    FailingCalls more;  // the journal that was made again must do as well
    more.end_at(16, 0.5);
    ASSERT_FALSE(job.run(more));
    ASSERT_TRUE(job.run_again()) << job.last_error();
    job.expect_complete(before);
  }
}

TEST(ResultJournal, ResultsOfOtherRequestsWithoutAJournalAreRefused) {
  Attempts job;
  leave_some(job);
  fs::remove(job.path(".journal"));
  std::string other = read_file(job.input());
  for (std::size_t at = 0; (at = other.find(":\"r", at)) != std::string::npos; ++at) other[at + 2] = 's';
  job.folder().write("in.jsonl", other);
  const std::string before = read_file(job.path(".partial"));
  EXPECT_FALSE(job.run_again());
  EXPECT_EQ(job.last_code(), ExitCode::kCannotCreate);
  EXPECT_THAT(job.last_error(), HasSubstr("has custom_id 's"));
  EXPECT_THAT(job.last_error(), HasSubstr(job.path(".partial")));
  EXPECT_EQ(read_file(job.path(".partial")), before);
  job.folder().write("in.jsonl", "");
  EXPECT_FALSE(job.run_again());
  EXPECT_THAT(job.last_error(), HasSubstr("which is not there"));
}

// --- What must be the same --------------------------------------------------------------------------------------

void expect_refused(const Attempts& job, ExitCode code, const std::string& part, const Settings& settings,
                    const JournalOptions& options = {}) {
  const std::string before = read_file(job.path(".partial"));
  expect_error(code, part, [&] { claim_output(job.path(), job.input(), settings, options); });
  EXPECT_EQ(read_file(job.path(".partial")), before);
  EXPECT_FALSE(fs::exists(job.path(".lock")));
}

TEST(ResultJournal, OtherSettingsAreRefusedByName) {
  Attempts job;
  leave_some(job);
  const ExitCode config = ExitCode::kConfig;
  expect_refused(job, config, "another --seed (0, now 1)", {{"--seed", "1"}, kSettings[1]});
  expect_refused(job, config, "another checkpoint of model a (1234, now 5)", {kSettings[0], {kSettings[1].first, "5"}});
  expect_refused(job, config, "another checkpoint of model a (1234, now none)", {kSettings[0]});
  expect_refused(job, config, "another --tp (none, now 2)", {kSettings[0], kSettings[1], {"--tp", "2"}});
  EXPECT_NO_THROW(claim_output(job.path(), job.input(), {}, {.allow_config_change = true}));
  ASSERT_TRUE(job.run_again());
}

TEST(ResultJournal, InputMayGrowButNotShrink) {
  Attempts job;
  leave_some(job);
  const std::string input = read_file(job.input());
  job.folder().write("in.jsonl", input.substr(0, input.size() - 1));
  expect_refused(job, ExitCode::kData, "has changed since attempt 1", kSettings);
  job.folder().write("in.jsonl", input + input_line(kLines));
  ASSERT_TRUE(job.run_again()) << job.last_error();
}

TEST(ResultJournal, CommandThatHasComeToItsEndHasNothingToDo) {
  Attempts job;
  ASSERT_TRUE(job.run_again());
  const std::string output = read_file(job.path());
  FailingCalls calls;
  ASSERT_TRUE(job.run(calls)) << job.last_error();
  EXPECT_EQ(std::count(calls.log().begin(), calls.log().end(), "rename"), 0);
  EXPECT_EQ(read_file(job.path()), output);
  EXPECT_FALSE(fs::exists(job.path(".lock")));

  const std::string input = read_file(job.input());
  const auto refused = [&](ExitCode code, const std::string& part, const Settings& settings = kSettings) {
    expect_error(code, part, [&] { claim_output(job.path(), job.input(), settings); });
    EXPECT_EQ(read_file(job.path()), output);
  };
  refused(ExitCode::kConfig, "another --seed (0, now 1)", {{"--seed", "1"}, kSettings[1]});
  job.folder().write("in.jsonl", input + input_line(kLines));
  refused(
      ExitCode::kData,
      "another input, of 9 requests; this one has 10. A complete output takes no more requests: serve new ones from a "
      "file and into an output of their own");
  std::string other = input;
  std::swap(other[15], other[16]);
  job.folder().write("in.jsonl", other);
  refused(ExitCode::kData, "another input, of 9 requests; this one has 9");
  job.folder().write("in.jsonl", input);
  fs::remove(job.path(".done"));
  refused(ExitCode::kCannotCreate, "move it away");
}

TEST(ResultJournal, CompleteShardMindsItsOwnLinesOnly) {
  const TemporaryFolder folder;
  const auto write_input = [&](RequestId lines) {
    std::string text;
    for (RequestId line = 0; line < lines; ++line) text += input_line(line) + "\n";
    folder.write("in.jsonl", text);
  };
  const auto open = [&] { return claim_output(folder / "out", folder / "in.jsonl", {{"--shard", "1/3"}}); };
  write_input(6);
  {
    ResultJournal journal = std::get<ClaimedOutput>(open()).begin();
    for (const RequestId line : {RequestId{1}, RequestId{4}}) {
      journal.note_line(line, key_of(line));
      journal.write(result_of(line), std::vector{line});
    }
    std::move(journal).finish();
  }
  EXPECT_EQ(std::get<CompleteOutput>(open()).lines, 2u);
  write_input(7);
  EXPECT_TRUE(std::holds_alternative<CompleteOutput>(open())) << "the line is another shard's";
  write_input(8);
  expect_error(ExitCode::kData, "another input, of 2 requests; this one has 3", [&] { open(); });
}

// As many as are read while one fsync takes long; in one record they would be too many for the journal.
TEST(ResultJournal, LinesReadBetweenTwoWritesMayBeAnyNumber) {
  constexpr RequestId kMany = 700'000;
  Attempts job;
  {
    ResultJournal journal = job.begin(system_calls());
    for (RequestId line = 0; line < kMany; ++line) journal.note_line(line, key_of(0));
    journal.commit();
  }
  const ClaimedOutput output = job.claim(system_calls());
  EXPECT_EQ(output.history().lines_known(), kMany);
  EXPECT_TRUE(output.history().fits(kMany - 1, key_of(0)));
  EXPECT_FALSE(output.history().fits(kMany - 1, key_of(1)));
}

TEST(ResultJournal, AttemptsAreCounted) {
  Attempts job;
  EXPECT_EQ(job.begin(system_calls()).attempt(), 1u);
  leave_some(job);
  EXPECT_EQ(job.begin(system_calls(), kNeverGiveUp).attempt(), 3u);
}

TEST(ResultJournal, FileThatTakesTheOutputsNameMeanwhileStays) {
  Attempts job;
  leave_some(job);
  ResultJournal journal = job.begin(system_calls(), kNeverGiveUp);
  job.folder().write("out", "foreign");
  expect_error(ExitCode::kCannotCreate, "has come into being meanwhile", [&] { std::move(journal).finish(); });
  EXPECT_EQ(read_file(job.path()), "foreign");
}

TEST(LineHistory, KnowsLinesByTheirBytes) {
  LineHistory history;
  EXPECT_TRUE(history.fits(5000, key_of(1)));
  EXPECT_EQ(history.last_known(), std::nullopt);
  history.note(5000, key_of(1));
  EXPECT_TRUE(history.fits(5000, key_of(1)));
  EXPECT_FALSE(history.fits(5000, key_of(2)));
  EXPECT_EQ(history.last_known(), 5000u);
  history.set_done(5000, true);
  history.set_done(5000, true);
  EXPECT_EQ(history.lines_done(), 1u);
  history.set_done(5000, false);
  EXPECT_EQ(history.lines_done(), 0u);
  EXPECT_EQ(history.lines_known(), 1u);
  EXPECT_EQ(history.digest(), LineHistory::digest_of(5000, key_of(1)));
  history.note(5000, key_of(2));
  history.note(7, key_of(3));
  EXPECT_EQ(history.lines_known(), 2u);
  EXPECT_EQ(history.digest(), LineHistory::digest_of(5000, key_of(2)) + LineHistory::digest_of(7, key_of(3)));
}

// --- Whose output it is -----------------------------------------------------------------------------------------

TEST(ResultJournal, SecondJobIsRefusedAndTheFirstGoesOn) {
  Attempts job;
  ResultJournal first = job.begin(system_calls());
  const std::string holder = fmt::format("process {}", getpid());
  expect_error(ExitCode::kCannotCreate, holder, [&] { job.find(system_calls()); });
  expect_error(ExitCode::kCannotCreate, "--take-over", [&] { job.find(system_calls()); });
  first.note_line(0, key_of(0));
  first.write(result_of(0), std::vector<RequestId>{0});
  first.commit();
}

// The holder here is this very process, so the lock itself does not become free: that is waited for in vain.
TEST(ResultJournal, JobThatWasTakenOverWritesNothingMore) {
  Attempts job;
  ResultJournal first = job.begin(system_calls());
  first.note_line(0, key_of(0));
  first.write(result_of(0), std::vector<RequestId>{0});
  first.commit();
  // As another job does it that finds the lock free.
  const std::string foreign = "epoch=7 host=elsewhere pid=1 boot=b job=99 restart=0 time=5\n";
  job.folder().write("out.lock", foreign);
  expect_error(ExitCode::kCannotCreate, "host elsewhere, process 1, job 99 has taken over",
               [&] { first.write(result_of(1), std::vector<RequestId>{1}); });
  expect_error(ExitCode::kCannotCreate, "nothing more is written", [&] { first.commit(); });
  expect_error(ExitCode::kCannotCreate, "", [&] { std::move(first).finish(); });
  EXPECT_EQ(read_file(job.path(".partial")), result_of(0));
  EXPECT_EQ(read_file(job.path(".lock")), foreign) << "it is not this job's to remove";
  expect_error(ExitCode::kCannotCreate, "host elsewhere", [&] { job.find(system_calls()); });
  ASSERT_TRUE(job.run_again({.take_over = true})) << job.last_error();
  job.expect_complete(result_of(0));
}

// The disk is full, and while it is waited for, another job takes over.
TEST(ResultJournal, JobThatWasTakenOverWhileItWaitsForTheDiskLeavesTheFilesAlone) {
  const std::string foreign = "epoch=7 host=elsewhere pid=1 boot=b job=99 restart=0 time=5\n";
  for (const bool during_write : {false, true}) {
    for (const bool spool : {false, true}) {
      Attempts job;
      FailingCalls calls;
      FoundOutput output =
          claim_output(job.path(), spool ? "-" : job.input(), kSettings, {.disk_retry_s = 1e-4}, calls);
      ResultJournal journal = std::get<ClaimedOutput>(std::move(output)).begin();
      const auto spooled = journal.open_spool();
      journal.note_line(0, key_of(0));
      journal.write(result_of(0), std::vector<RequestId>{0});
      const auto take_over = [&] { job.folder().write("out.lock", foreign); };
      const auto pause = [&](double) { return during_write || (take_over(), true); };
      journal.set_pause(pause);
      spooled->set_pause(pause);
      bool full = true;
      calls.write_at_most(10);
      calls.fail_while([&, count = 0]() mutable {
        if (!full || ++count < 2) return 0;
        if (during_write) take_over();
        return std::exchange(full, during_write) ? ENOSPC : 0;
      });
      const std::size_t before = calls.log().size();
      expect_error(ExitCode::kCannotCreate, "has taken over", [&] {
        spool                                 ? (void)spooled->take("some input"),
            (void)spooled->take("more input") : journal.write(result_of(8), std::vector<RequestId>{8});
      });
      const std::vector<std::string> later(calls.log().begin() + static_cast<std::ptrdiff_t>(before),
                                           calls.log().end());
      const auto cuts = std::count(later.begin(), later.end(), "ftruncate");
      EXPECT_EQ(cuts, during_write ? 0 : 1);
      EXPECT_LE(std::count(later.begin(), later.end(), "write"), 2);
    }
  }
}

TEST(OutputLock, ThatCannotBeReadIsNoOneElses) {
  Attempts job;
  FailingCalls calls;
  ResultJournal journal = job.begin(calls);
  calls.fail_reads(EIO);
  expect_error(ExitCode::kIo, "out.lock': Input/output error", [&] { journal.commit(); });
  calls.fail_reads(0);
  EXPECT_NO_THROW(journal.commit());
}

TEST(OutputLock, TellsWhenAHolderIsGone) {
  const LockHolder here = LockHolder::self(1);
  LockHolder earlier = here;
  EXPECT_TRUE(is_gone(earlier, here, /*locked=*/true));
  EXPECT_FALSE(is_gone(earlier, here, /*locked=*/false)) << "its process lives";
  earlier.pid = 1 << 30;
  EXPECT_TRUE(is_gone(earlier, here, false));
  earlier = here;
  earlier.boot = "before";
  EXPECT_TRUE(is_gone(earlier, here, false));
  earlier.host = "elsewhere";
  EXPECT_FALSE(is_gone(earlier, here, true)) << "its lock may not reach this host";
  LockHolder self = here;
  self.job = earlier.job = "42";
  EXPECT_FALSE(is_gone(earlier, self, true));
  self.restart = 1;
  EXPECT_TRUE(is_gone(earlier, self, false)) << "the batch system has started it again";
  earlier.job = "41";
  EXPECT_FALSE(is_gone(earlier, self, true));
}

TEST(OutputLock, LineIsReadAsItWasWritten) {
  setenv("SLURM_JOB_ID", "12 3", 1);
  setenv("SLURM_RESTART_COUNT", "2", 1);
  const LockHolder self = LockHolder::self(9);
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_RESTART_COUNT");
  const LockHolder read = LockHolder::parse(self.to_string());
  EXPECT_EQ(read.to_string(), self.to_string());
  EXPECT_EQ(read.epoch, 9u);
  EXPECT_EQ(read.job, "12_3");
  EXPECT_EQ(read.restart, 2);
  EXPECT_EQ(LockHolder::parse("no such thing = x\n").host, "");
}

// --- Requests that take the job down ----------------------------------------------------------------------------

// An attempt in which lines 0 and 1 run and only what `done` says gets a result, and that goes down then.
void go_down(Attempts& job, const std::vector<RequestId>& done, bool alone = false) {
  ResultJournal journal = job.begin(system_calls());
  for (const RequestId line : {0, 1}) journal.note_line(line, key_of(line));
  if (!alone) journal.note_begun(std::vector<RequestId>{0, 1}, false);
  for (const RequestId line : {RequestId{2}, RequestId{1}}) {
    if (alone) journal.note_begun(std::vector{line}, true);
  }
  journal.write("", {});
  for (const RequestId line : done) journal.write(result_of(line), std::vector{line});
}

TEST(ResultJournal, RequestThatRanWheneverTheJobWentDownIsSuspectedThenGivenUp) {
  Attempts job;
  go_down(job, {});
  EXPECT_FALSE(job.claim(system_calls()).history().suspected(1));
  go_down(job, {0});
  EXPECT_TRUE(job.claim(system_calls()).history().suspected(1));
  EXPECT_FALSE(job.claim(system_calls()).history().suspected(0)) << "it has its result";
  EXPECT_FALSE(job.claim(system_calls(), kNeverGiveUp).history().suspected(1));
  go_down(job, {}, /*alone=*/true);
  EXPECT_TRUE(job.claim(system_calls()).history().given_up(1));
  EXPECT_FALSE(job.claim(system_calls()).history().given_up(2)) << "it had ended when line 1 began";
  EXPECT_FALSE(job.claim(system_calls(), kNeverGiveUp).history().given_up(1));
}

TEST(ResultJournal, AttemptsThatEndInOrderAccuseNobody) {
  Attempts job;
  for (int i = 0; i < 5; ++i) {
    ClaimedOutput output = job.claim(system_calls(), {.max_crashes = i < 2 ? 3 : 100});
    EXPECT_FALSE(output.history().suspected(0));
    ResultJournal journal = std::move(output).begin();
    journal.note_line(0, key_of(0));
    journal.note_begun(std::vector<RequestId>{0}, false);
    std::move(journal).stop();
  }
}

TEST(ResultJournal, AttemptsThatGetNowhereEnd) {
  Attempts job;
  for (int i = 0; i < 3; ++i) job.begin(system_calls());
  expect_error(ExitCode::kInternal, "no progress in 3 attempts since 0 results", [&] { job.find(system_calls()); });
  EXPECT_NO_THROW(job.find(system_calls(), kNeverGiveUp));
}

TEST(ResultJournal, AttemptsThatAreStoppedBeforeAnyResultGetNowhereToo) {
  Attempts job;
  const auto attempt = [&](bool begins) {
    ResultJournal journal = job.begin(system_calls());
    journal.note_line(0, key_of(0));
    if (begins) journal.note_begun(std::vector<RequestId>{0}, false);
    std::move(journal).stop();
  };
  for (int i = 0; i < 3; ++i) attempt(true);
  expect_error(ExitCode::kInternal, "no progress in 3 attempts", [&] { job.find(system_calls()); });
  Attempts waiting;
  for (int i = 0; i < 5; ++i) {
    ResultJournal journal = waiting.begin(system_calls());
    std::move(journal).stop();  // nothing was asked of it yet
  }
}

// Attempts at two outputs, the second of which gets no result: whether the next one may begin after all of them.
bool may_go_on(int attempts, bool first_gets_results, bool second_runs, bool in_order) {
  Attempts first, second;
  const auto claim = [](const Attempts& job) {
    return std::get<ClaimedOutput>(
        claim_output(job.path(), job.input(), kSettings, {.durability = Durability::kProcess}));
  };
  for (RequestId line = 0; line < static_cast<RequestId>(attempts); ++line) {
    ResultJournal one = claim(first).begin(), two = claim(second).begin();
    one.note_line(line, key_of(line));
    one.note_begun(std::vector{line}, false);
    if (first_gets_results) one.write(result_of(line), std::vector{line});
    two.note_line(line, key_of(line));
    if (second_runs) two.note_begun(std::vector{line}, false);
    if (!in_order) continue;
    std::move(one).stop();
    std::move(two).stop();
  }
  const ClaimedOutput one = claim(first), two = claim(second);
  try {
    check_progress(std::array{&one, &two});
    check_progress(std::array{&two, &one});
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("no progress in 3 attempts since 0 results"));
    return false;
  }
}

TEST(ResultJournal, ResultsInOneOutputAreProgressOfAll) {
  for (const bool second_runs : {false, true}) {
    for (const bool in_order : {false, true}) {
      EXPECT_TRUE(may_go_on(5, /*first_gets_results=*/true, second_runs, in_order)) << second_runs << in_order;
      EXPECT_TRUE(may_go_on(2, false, second_runs, in_order)) << second_runs << in_order;
      EXPECT_FALSE(may_go_on(3, false, second_runs, in_order)) << second_runs << in_order;
    }
  }
}

TEST(ResultJournal, ResultsBehindTheLastCommitAreProgress) {
  Attempts job;
  for (RequestId line = 0; line < kLines; ++line) {
    for (int i = 0; i < 2; ++i) job.begin(system_calls());
    ResultJournal journal = job.begin(system_calls());  // the third in a row, and the one that gets somewhere
    journal.note_line(line, key_of(line));
    journal.write(result_of(line), std::vector{line});
  }
  for (int i = 0; i < 3; ++i) job.begin(system_calls());
  expect_error(ExitCode::kInternal, "no progress in 3 attempts since 9 results", [&] { job.find(system_calls()); });
}

// --- Standard input ---------------------------------------------------------------------------------------------

class SpooledInput : public testing::Test {
 protected:
  std::shared_ptr<Spool> open() {
    journal_.reset();
    journal_.emplace(std::get<ClaimedOutput>(claim_output(folder_ / "out", "-", kSettings, kNeverGiveUp)).begin());
    return journal_->open_spool();
  }
  TemporaryFolder folder_;
  std::optional<ResultJournal> journal_;
};

TEST_F(SpooledInput, TakesTheSameAgainAndMore) {
  EXPECT_EQ(open()->take("first\nsec"), "first\nsec");
  auto spool = open();
  EXPECT_EQ(spool->read(0, 100), "first\nsec");
  EXPECT_EQ(spool->take("fir"), "");
  EXPECT_EQ(spool->take("st\nsecond"), "ond");
  EXPECT_EQ(spool->take("\nthird"), "\nthird");
  EXPECT_EQ(read_file(folder_ / "out.spool"), "first\nsecond\nthird");
  std::move(*journal_).finish();
  EXPECT_FALSE(fs::exists(folder_ / "out.spool"));
}

TEST_F(SpooledInput, TakesNothingAgain) {
  open()->take("first\n");
  journal_->note_input_end(6);
  journal_->commit();
  auto spool = open();
  EXPECT_NO_THROW(spool->end());
  EXPECT_EQ(spool->bytes(), 6u);
  EXPECT_EQ(spool->take("first\nmore\n"), "more\n");
  expect_error(ExitCode::kData, "give the same input again", [&] { open()->end(); });  // of `more` nobody saw the end
}

TEST_F(SpooledInput, NothingIsNotEnoughBeforeSomebodySawTheEnd) {
  EXPECT_NO_THROW(open()->end()) << "an empty input is one, too";
  expect_error(ExitCode::kData, "give the same input again", [&] { open()->end(); });
  open()->take("first\n");
  expect_error(ExitCode::kData, "6 bytes are in", [&] { open()->end(); });
  auto spool = open();
  spool->take("first\n");
  EXPECT_NO_THROW(spool->end());
}

TEST_F(SpooledInput, RefusesWhatIsNotTheSame) {
  open()->take("first\n");
  expect_error(ExitCode::kData, "has changed", [&] { open()->take("fis"); });
  expect_error(ExitCode::kData, "has become shorter", [&] {
    auto spool = open();
    spool->take("fir");
    spool->end();
  });
}

TEST_F(SpooledInput, OfAnEarlierJobIsForgotten) {
  folder_.write("out.spool", "old");
  const auto spool = open();
  EXPECT_EQ(spool->bytes(), 0u);
  expect_error(ExitCode::kData, "give the same input again", [&] { spool->end(); });  // or its journal was lost
}

// --- The journal alone ------------------------------------------------------------------------------------------

ReadAt reader_of(const std::string& text) {
  return [text](std::uint64_t offset, std::size_t count) {
    return offset < text.size() ? text.substr(offset, count) : std::string();
  };
}

TEST(JournalRecords, AreReadAsTheyWereWritten) {
  const std::vector<journal::Record> records = {journal::Header{.input_bytes = 7, .settings = {{"a", "b"}, {"", "d"}}},
                                                journal::Open{.attempt = 2, .epoch = 3, .kept = 4, .holder = "host"},
                                                journal::Keys{{{5, key_of(1)}, {6, key_of(2)}}},
                                                journal::Begun{.alone = true, .lines = {5}},
                                                journal::Commit{.begin = 1, .end = 9, .digest = 77, .lines = {6, 5}},
                                                journal::InputEnd{.bytes = 12},
                                                journal::Done{.lines = 3, .digest = 4, .output_bytes = 5},
                                                journal::Close{.complete = true}};
  std::string text;
  for (const auto& record : records) text += journal::encode(record);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    journal::Reader reader(reader_of(text.substr(0, cut)));
    std::string read;
    while (const auto record = reader.next()) read += journal::encode(*record);
    EXPECT_EQ(read, text.substr(0, reader.bytes()));
    EXPECT_LE(reader.bytes(), cut);
    EXPECT_EQ(reader.bytes() == text.size(), cut == text.size());
  }
}

TEST(JournalRecovery, HoldsEveryLineAgainstItsOwnKey) {
  const std::string results = result_of(3) + result_of(3);
  const auto commit_of = [&](std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t digest = journal::chain_digest(0, result_of(3));
    return journal::encode(journal::Commit{.begin = begin, .end = end, .digest = digest, .lines = {3}});
  };
  const auto sound_bytes = [&](const std::string& text) {
    return recover(reader_of(text), reader_of(results), results.size(), 3).journal_bytes;
  };
  const std::uint64_t half = results.size() / 2;
  const std::string commit = commit_of(0, half);
  EXPECT_EQ(sound_bytes(commit), 0u) << "a line that nobody read";
  const std::string keyed = journal::encode(journal::Keys{{{3, key_of(3)}}}) + commit;
  EXPECT_EQ(sound_bytes(keyed), keyed.size());
  EXPECT_EQ(sound_bytes(keyed + commit_of(half, 2 * half)), keyed.size()) << "done already";
  EXPECT_EQ(sound_bytes(journal::encode(journal::Keys{{{3, key_of(3)}}}) + commit_of(0, 0)) + commit.size(),
            keyed.size())
      << "no bytes";
}

TEST(JournalRecovery, TailCountsUpToTheFirstLineThatIsNoResult) {
  const std::string journal = journal::encode(journal::Keys{{{0, key_of(0)}, {1, key_of(1)}, {2, key_of(2)}}});
  const auto lines_kept = [&](const std::string& results) {
    return recover(reader_of(journal), reader_of(results), results.size(), 3).history.lines_done();
  };
  EXPECT_EQ(lines_kept(result_of(0) + result_of(2)), 2u);
  EXPECT_EQ(lines_kept(result_of(0) + result_of(0)), 1u);
  EXPECT_EQ(lines_kept(result_of(0) + result_of(7) + result_of(1)), 1u);
  EXPECT_EQ(lines_kept(result_of(0) + std::string(40, '\0') + "\n" + result_of(1)), 1u);
  EXPECT_EQ(lines_kept(result_of(0) + result_of(1).substr(0, 30)), 1u);
  EXPECT_EQ(lines_kept("\n"), 0u);
}

}  // namespace
}  // namespace computron

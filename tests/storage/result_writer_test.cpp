#include "computron/storage/result_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "computron/base/digest.h"
#include "tests/requests/requests_support.h"
#include "tests/storage/failing_calls.h"
#include "tests/support/few_threads.h"

namespace computron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

ResultJournal begun(const std::string& path, const std::string& input = "in.jsonl", const JournalOptions& options = {},
                    SystemCalls& calls = system_calls()) {
  return std::get<ClaimedOutput>(claim_output(path, input, {}, options, calls)).begin();
}

void refused(ExitCode code, const std::string& part, const std::string& path, const std::string& input = "in.jsonl") {
  expect_error(code, part, [&] { begun(path, input); });
  expect_error(code, path, [&] { begun(path, input); });
}

TEST(ResultWriter, OutputExistsOnlyWhenComplete) {
  const TemporaryFolder folder;
  ResultWriter writer(begun(folder / "out"));
  EXPECT_TRUE(fs::exists(folder / "out.partial"));
  writer.write(0, "{\"a\":1}");
  writer.write(1, "{\"a\":2}");
  EXPECT_FALSE(fs::exists(folder / "out"));
  std::move(writer).finish();
  EXPECT_EQ(read_file(folder / "out"), "{\"a\":1}\n{\"a\":2}\n");
  EXPECT_FALSE(fs::exists(folder / "out.partial"));
  EXPECT_EQ(writer.lines_written(), 2u);
  EXPECT_EQ(writer.queued_bytes(), 0u);
}

TEST(ResultWriter, NoResultsMakeAnEmptyFile) {
  const TemporaryFolder folder;
  ResultWriter(begun(folder / "out")).finish();
  EXPECT_TRUE(fs::exists(folder / "out"));
  EXPECT_EQ(fs::file_size(folder / "out"), 0u);
}

TEST(ResultWriter, KeepsOrderThroughManyLines) {
  const TemporaryFolder folder;
  ResultWriter writer(begun(folder / "out"));
  std::string expected;
  for (int i = 0; i < 20000; ++i) {
    const std::string line = fmt::format("{} {}", i, std::string(static_cast<std::size_t>(i % 97), 'x'));
    expected += line + '\n';
    writer.write(static_cast<RequestId>(i), line);
  }
  std::move(writer).finish();
  EXPECT_EQ(read_file(folder / "out"), expected);
  EXPECT_EQ(writer.lines_written(), 20000u);
}

TEST(ResultWriter, LinesReachTheFileWithoutFinish) {
  const TemporaryFolder folder;
  ResultWriter writer(begun(folder / "out"));
  writer.write(0, "first");
  while (writer.lines_written() < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(read_file(folder / "out.partial"), "first\n");
}

TEST(ResultWriter, UnfinishedOutputStaysPartial) {
  const TemporaryFolder folder;
  {
    ResultWriter writer(begun(folder / "out"));
    for (int i = 0; i < 1000; ++i) writer.write(static_cast<RequestId>(i), "line");
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_EQ(fs::file_size(folder / "out.partial"), 5000u);
}

TEST(ResultWriter, OutputOfSomethingElseIsRefused) {
  const TemporaryFolder folder;
  folder.write("out", "earlier\n");
  refused(ExitCode::kCannotCreate, "nothing tells that it is what this command makes", folder / "out");
  EXPECT_EQ(read_file(folder / "out"), "earlier\n");
}

// They hold prompts and what was made of them.
TEST(ResultWriter, FilesAreTheirOwnersAlone) {
  const TemporaryFolder folder;
  const mode_t before = umask(022);
  const auto mode_of = [&](const std::string& name) {
    struct stat status {};
    EXPECT_EQ(stat((folder / name).c_str(), &status), 0) << name;
    return status.st_mode & 0777;
  };
  auto journal = begun(folder / "out", "-");
  journal.open_spool();
  for (const char* name : {"out.partial", "out.journal", "out.lock", "out.spool"}) EXPECT_EQ(mode_of(name), 0600u);
  ResultWriter(std::move(journal)).finish();
  EXPECT_EQ(mode_of("out"), 0600u);
  umask(before);
}

TEST(ResultWriter, StopGivesTheOutputBackAtOnce) {
  const TemporaryFolder folder;
  for (const bool in_order : {true, false}) {
    ResultWriter writer(begun(folder / "out"));
    EXPECT_TRUE(fs::exists(folder / "out.lock"));
    std::move(writer).stop(in_order);
    EXPECT_FALSE(fs::exists(folder / "out.lock")) << "whoever stops may end without a destructor";
  }
}

TEST(ResultWriter, OutputMustBeCreatable) {
  const TemporaryFolder folder;
  refused(ExitCode::kCannotCreate, "No such file", folder / "none/out");
  fs::create_directory(folder / "dir");
  refused(ExitCode::kCannotCreate, "a directory", folder / "dir");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  refused(ExitCode::kCannotCreate, "a FIFO", folder / "fifo");
  refused(ExitCode::kCannotCreate, "a device", "/dev/full");
  fs::create_symlink(folder / "target", folder / "link");
  refused(ExitCode::kCannotCreate, "a symbolic link", folder / "link");
  EXPECT_FALSE(fs::exists(folder / "target"));
  folder.write("file", "");
  refused(ExitCode::kCannotCreate, "Not a directory", folder / "file/out");
}

TEST(ResultWriter, PartialFileMustNotBeATrap) {
  const TemporaryFolder folder;
  folder.write("precious", "kept");
  fs::create_symlink(folder / "precious", folder / "out.partial");
  refused(ExitCode::kCannotCreate, "a symbolic link", folder / "out");
  EXPECT_EQ(read_file(folder / "precious"), "kept");
  fs::remove(folder / "out.partial");
  ASSERT_EQ(mkfifo((folder / "out.partial").c_str(), 0600), 0);
  refused(ExitCode::kCannotCreate, "a FIFO", folder / "out");
}

TEST(ResultWriter, InputIsNeverOverwritten) {
  const TemporaryFolder folder;
  const auto input = folder.write("in.jsonl", "requests");
  refused(ExitCode::kCannotCreate, "the input", input, input);
  refused(ExitCode::kCannotCreate, "the input", folder / "./in.jsonl", input);
  fs::create_hard_link(input, folder / "out");
  refused(ExitCode::kCannotCreate, "the input", folder / "out", input);
  const auto partial = folder.write("x.partial", "requests");
  refused(ExitCode::kCannotCreate, "the input", folder / "x", partial);
  EXPECT_EQ(read_file(input), "requests");
  EXPECT_EQ(read_file(partial), "requests");
}

TEST(ResultWriter, InputOnStandardInputIsNotOverwrittenEither) {
  const TemporaryFolder folder;
  const auto input = folder.write("in.jsonl", "requests");
  const int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  const int file = open(input.c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO);
  refused(ExitCode::kCannotCreate, "the input", input, "-");
  close(file);
  if (saved >= 0) dup2(saved, STDIN_FILENO);
  close(saved >= 0 ? saved : STDIN_FILENO);
  EXPECT_EQ(read_file(input), "requests");
}

// What a child process makes of `action`: the exit code of its Error, 0 without one, -1 where `prepare` was refused.
// A child, because users, mounts and limits are the whole process's.
template <class Prepare, class Action>
int in_child(Prepare prepare, Action action) {
  const pid_t child = fork();
  if (child == 0) {
    if (!prepare()) _exit(255);
    try {
      action();
    } catch (const Error& error) {
      fmt::print(stderr, "child: {}\n", error.what());
      _exit(static_cast<int>(error.code()));
    } catch (...) {
      _exit(254);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  const int code = WEXITSTATUS(status);
  return code == 255 ? -1 : code;
}

void write_megabytes(const std::string& path) {
  ResultWriter writer(begun(path, "in.jsonl", {.disk_wait_s = 0}));
  for (int i = 0; i < 64; ++i) writer.write(0, std::string(1 << 16, 'x'));
  std::move(writer).finish();
}

TEST(ResultWriter, ReadOnlyFolderIsAPermissionError) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "locked");
  fs::permissions(folder / "", fs::perms::all);
  fs::permissions(folder / "locked",
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  constexpr uid_t kNobody = 65534;
  const int code =
      in_child([] { return getuid() != 0 || setuid(kNobody) == 0; }, [&] { begun(folder / "locked/out"); });
  if (code == -1) GTEST_SKIP() << "root that cannot become another user";
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPermission));
}

TEST(ResultWriter, FullDiskIsAnIoError) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "small");
  const auto mount_small_disk = [&folder] {
    if (getuid() != 0 && unshare(CLONE_NEWUSER) != 0) return false;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
    return mount("small", (folder / "small").c_str(), "tmpfs", 0, "size=512k") == 0;
  };
  const int code = in_child(mount_small_disk, [&] { write_megabytes(folder / "small/out"); });
  if (code == -1) GTEST_SKIP() << "mounting a small disk is not permitted here";
  EXPECT_EQ(code, static_cast<int>(ExitCode::kIo));
}

// There is one for the results, but none for the notes.
TEST(ResultWriter, ThreadThatCannotBeStartedIsAnError) {
  const TemporaryFolder folder;
  fs::permissions(folder / "", fs::perms::all);
  const WithFewThreads outcome = with_two_threads([&] { ResultWriter writer(begun(folder / "out")); });
  if (outcome == WithFewThreads::kNotToBeHad) GTEST_SKIP() << "only root can become another user";
  EXPECT_EQ(outcome, WithFewThreads::kSystemError);
  EXPECT_FALSE(fs::exists(folder / "out.lock")) << "it was given back";
}

// The file size limit fails writes half-way, as a full disk does, everywhere.
class LimitedFileSize {
 public:
  explicit LimitedFileSize(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~LimitedFileSize() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(ResultWriter, FailedWritesNamePathCauseAndBytes) {
  const TemporaryFolder folder;
  const LimitedFileSize limit(1000000);
  ResultWriter writer(begun(folder / "out"), {.max_queued_bytes = 100000});
  const auto part = fmt::format("'{}': File too large (after 1000000 bytes)", folder / "out.partial");
  expect_error(ExitCode::kIo, part, [&] {
    for (;;) writer.write(0, std::string(10000, 'x'));
  });
  expect_error(ExitCode::kIo, part, [&] { writer.check(); });
  expect_error(ExitCode::kIo, part, [&] { std::move(writer).finish(); });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(ResultWriter, FailuresNobodyAskedForAreLogged) {
  const TemporaryFolder folder;
  auto journal = begun(folder / "out");
  const LimitedFileSize limit(10);
  const CapturedLog log;
  {
    ResultWriter writer(std::move(journal));
    writer.write(0, "more than ten bytes");
  }
  EXPECT_THAT(log.text(), HasSubstr("File too large (after 10 bytes)"));
}

TEST(ResultWriter, CommitsByNumberAndByTime) {
  const TemporaryFolder folder;
  const auto written_then_left = [&](const WriterOptions& options, int lines, std::chrono::milliseconds pause) {
    ResultWriter writer(begun(folder / "out"), options);
    for (int i = 0; i < lines; ++i) writer.write(static_cast<RequestId>(i), "line");
    while (writer.lines_written() < static_cast<std::uint64_t>(lines)) std::this_thread::sleep_for(pause);
    std::this_thread::sleep_for(pause);
    return fs::file_size(folder / "out.journal");
  };
  using std::chrono::milliseconds;
  const auto none = written_then_left({.commit_s = 1000}, 1, milliseconds(20));
  fs::remove(folder / "out.journal"), fs::remove(folder / "out.partial");
  EXPECT_GT(written_then_left({.commit_s = 1000, .commit_lines = 3}, 3, milliseconds(20)), none);
  fs::remove(folder / "out.journal"), fs::remove(folder / "out.partial");
  EXPECT_GT(written_then_left({.commit_s = 1000, .commit_always = true}, 1, milliseconds(20)), none);
  fs::remove(folder / "out.journal"), fs::remove(folder / "out.partial");
  EXPECT_GT(written_then_left({.commit_s = 0.001}, 1, milliseconds(100)), none);
}

TEST(ResultWriter, FullDiskStallsUntilThereIsRoom) {
  const TemporaryFolder folder;
  FailingCalls calls;
  std::atomic<bool> full = false;
  calls.fail_while([&] { return full ? ENOSPC : 0; });
  auto journal = begun(folder / "out", "in.jsonl", {.disk_retry_s = 1e-3}, calls);
  full = true;
  ResultWriter writer(std::move(journal));
  EXPECT_FALSE(writer.stalled());
  writer.write(0, "first");
  while (!writer.stalled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  full = false;
  while (writer.stalled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::move(writer).finish();
  EXPECT_EQ(read_file(folder / "out"), "first\n");
}

// System calls that do not return before they are told to.
class SlowCalls : public SystemCalls {
 public:
  ssize_t write(int fd, const void* bytes, std::size_t count) override {
    return wait(), SystemCalls::write(fd, bytes, count);
  }
  int fdatasync(int fd) override { return wait(), SystemCalls::fdatasync(fd); }
  void wait() const {
    while (slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<bool> slow = false;
};

TEST(ResultWriter, NobodyWhoServesWaitsForTheFileSystem) {
  const TemporaryFolder folder;
  SlowCalls calls;
  auto journal = begun(folder / "out", "in.jsonl", {}, calls);
  calls.slow = true;
  ResultWriter writer(std::move(journal), {.max_queued_bytes = 1000});
  EXPECT_TRUE(writer.has_room());
  const std::uint64_t ticket = writer.note_begun({0}, false);
  for (int i = 0; i < 100; ++i) writer.write(static_cast<RequestId>(i), std::string(99, 'x'));
  EXPECT_EQ(writer.queued_bytes(), 10000u) << "what is served finds room";
  EXPECT_FALSE(writer.has_room()) << "but no more is to be taken";
  EXPECT_FALSE(writer.noted(ticket)) << "nor computed on what nobody would know of";
  EXPECT_TRUE(writer.noted(0));
  calls.slow = false;
  while (!writer.noted(ticket) || !writer.has_room()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::move(writer).finish();
  EXPECT_EQ(fs::file_size(folder / "out"), 10000u);
}

TEST(ResultWriter, NothingFollowsATornNote) {
  const TemporaryFolder folder;
  FailingCalls calls;
  auto journal = begun(folder / "out", "in.jsonl", {}, calls);
  const auto before = fs::file_size(folder / "out.journal");
  {
    ResultWriter writer(std::move(journal), {.commit_s = 1000});
    std::atomic<int> writes = 0;
    calls.write_at_most(7);
    calls.fail_while([&] { return ++writes == 2 ? EIO : 0; });
    writer.note_begun({0}, false);
    while (writes < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    expect_error(ExitCode::kIo, "out.journal': Input/output error", [&] {
      for (;;) writer.check();
    });
  }
  EXPECT_EQ(fs::file_size(folder / "out.journal"), before + 7);
}

TEST(ResultWriter, NobodyWaitsForAFullDiskOnTheWayOut) {
  const TemporaryFolder folder;
  FailingCalls calls;
  std::atomic<bool> full = false;
  calls.fail_while([&] { return full ? ENOSPC : 0; });
  auto journal = begun(folder / "out", "in.jsonl", {.disk_wait_s = 1e6, .disk_retry_s = 1e5}, calls);
  full = true;
  ResultWriter writer(std::move(journal));
  writer.write(0, "first");
  expect_error(ExitCode::kIo, "no space left", [&] { std::move(writer).stop(/*in_order=*/true); });
}

constexpr RequestId kKilledLines = 5000;

std::string result_of(RequestId line) {
  return fmt::format(R"({{"id":"batch_req_{}","custom_id":"r{}","error":null}})", line, hash_tuple(line));
}

ResultJournal killed_journal(const std::string& path) {
  return begun(path, "in.jsonl", {.durability = Durability::kProcess, .max_crashes = 0});
}

// A job that writes the results that are missing, in another order each time, until it is done or killed.
[[noreturn]] void write_until_killed(const std::string& path, std::uint64_t seed) {
  ResultWriter writer(killed_journal(path), {.commit_s = 0.002, .commit_lines = 32});
  for (RequestId i = 0; i < kKilledLines; ++i) {
    const RequestId line = (i + seed % kKilledLines) % kKilledLines;
    if (writer.history().done(line)) continue;
    writer.note_line(line, {static_cast<std::uint8_t>(line)});
    if (line % 16 == 0) writer.note_begun({line}, false);
    writer.write(line, result_of(line));
    if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  std::move(writer).finish();
  _exit(0);
}

void expect_every_line_once(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> found, expected;
  for (std::string line; std::getline(file, line);) found.push_back(line);
  for (RequestId line = 0; line < kKilledLines; ++line) expected.push_back(result_of(line));
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_TRUE(found == expected) << found.size() << " lines";
}

void kill_writers(int kills) {
  const TemporaryFolder folder;
  const std::string path = folder / "out";
  for (std::uint64_t attempt = 0; kills > 0 || !fs::exists(path); ++attempt) {
    if (fs::exists(path)) {  // complete; once more from the start
      expect_every_line_once(path);
      for (const char* suffix : {"", ".journal", ".done"}) fs::remove(path + suffix);
    }
    const pid_t child = fork();
    if (child == 0) write_until_killed(path, hash_tuple(attempt));
    if (kills > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(hash_tuple(attempt, 1) % 25000));
      kill(child, SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) --kills;
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  }
  expect_every_line_once(path);
}

TEST(ResultWriter, KillsLoseDoubleAndAlterNothing) { kill_writers(20); }
TEST(ResultWriter, DISABLED_ThousandKillsLoseDoubleAndAlterNothing) { kill_writers(1000); }

TEST(ResultWriter, FolderThatVanishesIsAnIoError) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "sub");
  ResultWriter writer(begun(folder / "sub/out"));
  fs::remove_all(folder / "sub");
  expect_error(ExitCode::kIo, folder / "sub/out", [&] { std::move(writer).finish(); });
}

}  // namespace
}  // namespace computron

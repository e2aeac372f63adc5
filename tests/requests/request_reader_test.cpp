#include "computron/requests/request_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <variant>

#include "computron/storage/result_journal.h"
#include "computron/storage/spool.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;

constexpr auto kSoon = std::chrono::milliseconds(1);

std::vector<IncomingRequest> drain(RequestReader& reader) {
  std::vector<IncomingRequest> all;
  while (!reader.finished()) {
    if (auto request = reader.poll()) {
      all.push_back(std::move(*request));
    } else {
      std::this_thread::sleep_for(kSoon);
    }
  }
  EXPECT_EQ(reader.lines_seen(), all.size());
  return all;
}

std::vector<IncomingRequest> read_path(const std::string& path, ReaderLimits limits = {}) {
  RequestReader reader(path, RequestParser(two_models(), limits), limits);
  return drain(reader);
}

std::vector<IncomingRequest> read_text(const std::string& text, ReaderLimits limits = {}) {
  const TemporaryFolder folder;
  return read_path(folder.write("in.jsonl", text), limits);
}

// "0:ok" or "3:invalid_json": the line numbers and what became of the lines.
std::vector<std::string> outcomes(const std::vector<IncomingRequest>& requests) {
  std::vector<std::string> all;
  for (const auto& request : requests) {
    const auto* failure = std::get_if<RequestFailure>(&request.content);
    all.push_back(fmt::format("{}:{}", request.line, failure == nullptr ? "ok" : failure->code));
  }
  return all;
}

std::string good(const std::string& id) { return line_with(R"("prompt":[4,5])", id); }

// While it lives, standard input is the read end of a pipe; whoever holds write_end() feeds it.
class PipedInput {
 public:
  PipedInput() : saved_(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    write_end_ = ends[1];
  }
  ~PipedInput() {
    close_writer();
    if (saved_ < 0) {
      close(STDIN_FILENO);
      return;
    }
    dup2(saved_, STDIN_FILENO);
    close(saved_);
  }
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = write(write_end_, bytes.data(), bytes.size());
      ASSERT_GT(count, 0);
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  void close_writer() {
    if (write_end_ >= 0) close(write_end_);
    write_end_ = -1;
  }

 private:
  int saved_;
  int write_end_ = -1;
};

TEST(RequestReader, LinesEndWithLfCrlfOrTheFile) {
  const auto requests = read_text(good("a") + "\n\n" + good("b") + "\r\n  \t\r\n" + good("c"));
  EXPECT_THAT(outcomes(requests), ElementsAre("0:ok", "2:ok", "4:ok"));
  EXPECT_EQ(requests[1].custom_id, "b");
  EXPECT_EQ(requests[2].custom_id, "c");
}

TEST(RequestReader, EmptyAndBlankFilesHoldNoRequests) {
  for (const std::string text : {"", "\n", "\r\n\n  \n", "\xEF\xBB\xBF", "\xEF\xBB\xBF\n\n"}) {
    EXPECT_TRUE(read_text(text).empty());
  }
}

TEST(RequestReader, ByteOrderMarkAtTheStart) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_THAT(outcomes(read_text(mark + good("a") + "\n" + mark + good("b") + "\n")),
              ElementsAre("0:ok", "1:invalid_utf8"));
  EXPECT_THAT(outcomes(read_text("\n" + mark + good("a"))), ElementsAre("1:invalid_utf8"));
}

TEST(RequestReader, BadLinesCostOnlyThemselves) {
  EXPECT_THAT(
      outcomes(read_text(good("a") + "\n{\n" + good("a") + "\n\x80\n" + good("b") + "\n" + good("c").substr(0, 40))),
      ElementsAre("0:ok", "1:invalid_json", "2:duplicate_custom_id", "3:invalid_utf8", "4:ok", "5:invalid_json"));
}

TEST(RequestReader, LineLimitIsExact) {
  const std::string line = good("a");
  const ReaderLimits at{.max_line_bytes = line.size()}, below{.max_line_bytes = line.size() - 1};
  for (const std::string end : {"", "\n", "\r\n"}) {
    EXPECT_THAT(outcomes(read_text(line + end, at)), ElementsAre("0:ok"));
    EXPECT_THAT(outcomes(read_text(line + end, below)), ElementsAre("0:line_too_long"));
  }
}

TEST(RequestReader, LongLinesKeepTheirCustomIdAndTheirNeighbours) {
  const std::string filler(100000, 'x');
  const std::string early = R"({"custom_id":"early","a":")" + filler + "\"}";
  const std::string late = R"({"a":")" + filler + R"(","custom_id":"late"})";
  const std::string never = R"({"a":")" + filler;
  const auto requests =
      read_text(good("a") + "\n" + early + "\n" + late + "\r\n" + good("b") + "\n" + never, {.max_line_bytes = 1000});
  EXPECT_THAT(outcomes(requests), ElementsAre("0:ok", "1:line_too_long", "2:line_too_long", "3:ok", "4:line_too_long"));
  EXPECT_EQ(requests[1].custom_id, "early");
  EXPECT_EQ(requests[2].custom_id, "late");
  EXPECT_EQ(requests[4].custom_id, std::nullopt);
  const auto& failure = std::get<RequestFailure>(requests[1].content);
  EXPECT_EQ(failure.message, fmt::format("the line has {} bytes; at most 1000 are read", early.size()));
}

long peak_resident_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(RequestReader, HundredMegabyteLineTakesConstantMemory) {
  PipedInput input;
  const ReaderLimits limits{.max_line_bytes = 1 << 16};
  RequestReader reader("-", RequestParser(two_models(), limits), limits);
  const long before = peak_resident_kib();
  std::thread feeder([&input] {
    const std::string megabyte(1 << 20, 'y');
    input.send(R"({"a":")");
    for (int i = 0; i < 100; ++i) input.send(megabyte);
    input.send("\",\"custom_id\":\"giant\"}\n" + good("after"));
    input.close_writer();
  });
  const auto requests = drain(reader);
  feeder.join();
  EXPECT_THAT(outcomes(requests), ElementsAre("0:line_too_long", "1:ok"));
  EXPECT_EQ(requests[0].custom_id, "giant");
  EXPECT_LT(peak_resident_kib() - before, 20 * 1024);
}

TEST(RequestReader, SlowPipeDeliversLinesAsTheyComplete) {
  PipedInput input;
  RequestReader reader("-", RequestParser(two_models(), {}), {});
  const auto next = [&reader] {
    std::optional<IncomingRequest> request;
    while (!(request = reader.poll())) std::this_thread::sleep_for(kSoon);
    return *request;
  };
  for (const std::string id : {"a", "b"}) {
    const std::string line = good(id) + "\r\n";
    for (const char c : line) {
      input.send({&c, 1});
      if (c == ',') std::this_thread::sleep_for(kSoon);
    }
    EXPECT_EQ(next().custom_id, id);
    EXPECT_FALSE(reader.finished());
  }
  input.send(good("c").substr(0, 30));
  input.close_writer();
  EXPECT_EQ(outcomes({next()}), std::vector<std::string>{"2:invalid_json"});
  while (!reader.finished()) std::this_thread::sleep_for(kSoon);
  EXPECT_EQ(reader.lines_seen(), 3u);
}

TEST(RequestReader, NonBlockingStandardInputIsWaitedFor) {
  PipedInput input;
  fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  RequestReader reader("-", RequestParser(two_models(), {}), {});
  std::this_thread::sleep_for(20 * kSoon);
  EXPECT_FALSE(reader.finished());
  input.send(good("a") + "\n");
  input.close_writer();
  EXPECT_THAT(outcomes(drain(reader)), ElementsAre("0:ok"));
}

void ignore_signal(int) {}

TEST(RequestReader, SignalsDoNotEndReading) {
  struct sigaction interrupting {
  }, before{};
  interrupting.sa_handler = ignore_signal;  // without SA_RESTART: poll(2) and read(2) fail with EINTR
  sigaction(SIGUSR1, &interrupting, &before);
  sigset_t usr1, old;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  PipedInput input;
  RequestReader reader("-", RequestParser(two_models(), {}), {});
  pthread_sigmask(SIG_BLOCK, &usr1, &old);  // from here on only the reader's thread takes it
  for (int i = 0; i < 20; ++i) {
    kill(getpid(), SIGUSR1);
    std::this_thread::sleep_for(kSoon);
  }
  input.send(good("a") + "\n");
  input.close_writer();
  EXPECT_THAT(outcomes(drain(reader)), ElementsAre("0:ok"));
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(RequestReader, StopsWhileWaitingForInput) {
  PipedInput input;
  { const RequestReader reader("-", RequestParser(two_models(), {}), {}); }  // hangs unless it can be stopped
  input.send(good("a"));
}

TEST(RequestReader, QueueIsBoundedAndStoppable) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += good(std::to_string(i)) + "\n";
  const TemporaryFolder folder;
  const auto path = folder.write("in.jsonl", text);
  // Three lines, or what three prompts of two tokens take.
  for (const ReaderLimits& limits : {ReaderLimits{.max_queued = 3}, ReaderLimits{.max_queued_bytes = 24}}) {
    EXPECT_EQ(read_path(path, limits).size(), 100u);
    RequestReader reader(path, RequestParser(two_models(), limits), limits);
    while (reader.lines_seen() < 3) std::this_thread::sleep_for(kSoon);
    std::this_thread::sleep_for(20 * kSoon);
    EXPECT_EQ(reader.lines_seen(), 3u);
    EXPECT_FALSE(reader.finished());
  }
}

TEST(RequestReader, KeysAreOfALinesBytesOnly) {
  const std::string giant(5000, 'z');
  const auto keys_of = [&](const std::string& text) {
    std::vector<Digest128> keys;
    for (const auto& request : read_text(text, {.max_line_bytes = 1000})) keys.push_back(request.key);
    return keys;
  };
  const auto keys = keys_of(good("a") + "\n" + good("b") + "\r\n{\n" + giant + "\n");
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_EQ(keys_of(good("a")), std::vector{keys[0]});
  EXPECT_EQ(keys_of("\n" + good("b") + "\n"), std::vector{keys[1]});
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_EQ(keys_of(giant + "\r\n\n"), keys_of(giant + "\r\n"));
  EXPECT_NE(keys_of(giant + "z"), std::vector{keys[3]}) << "the length counts where the bytes are not kept";
  EXPECT_NE(keys_of("y" + giant.substr(1)), std::vector{keys[3]});
}

// With the duplicates, malformed lines and lengths that a reader of the whole file finds.
TEST(RequestReader, ShardsAreTheWholeFile) {
  const std::string long_line = R"({"custom_id":"l","a":")" + std::string(2000, 'x') + "\"}";
  const std::string text = good("a") + "\n" + good("b") + "\n\n{\n" + long_line + "\n" + good("a") + "\n" + good("c") +
                           "\n" + good("l") + "\n" + R"({"custom_id":"d"})" + "\n" + good("d");
  const auto outcomes_of = [&](Shard shard) {
    return outcomes(read_text(text, {.max_line_bytes = 1000, .shard = shard}));
  };
  EXPECT_THAT(outcomes_of({0, 1}),
              ElementsAre("0:ok", "1:ok", "3:invalid_json", "4:line_too_long", "5:duplicate_custom_id", "6:ok",
                          "7:duplicate_custom_id", "8:invalid_request", "9:duplicate_custom_id"));
  EXPECT_THAT(outcomes_of({0, 3}), ElementsAre("0:ok", "3:invalid_json", "6:ok", "9:duplicate_custom_id"));
  EXPECT_THAT(outcomes_of({1, 3}), ElementsAre("1:ok", "4:line_too_long", "7:duplicate_custom_id"));
  EXPECT_THAT(outcomes_of({2, 3}), ElementsAre("5:duplicate_custom_id", "8:invalid_request"));
  EXPECT_THAT(outcomes_of({10, 11}), ElementsAre());
}

TEST(RequestReader, ShardsAreNumbered) {
  EXPECT_EQ(parse_shard("3/4").to_string(), "3/4");
  EXPECT_EQ(parse_shard("0/1").to_string(), "0/1");
  for (const char* wrong : {"", "1", "4/4", "5/4", "0/0", "-1/4", "1/-4", "1/4x", "a/4", "1/", "/4", "1/4/8", " 1/4"}) {
    expect_error(ExitCode::kUsage, "I/N", [&] { parse_shard(wrong); });
  }
}

class Resumed : public testing::Test {
 protected:
  // Reads `before`, of whose lines `done` get results, then `now`.
  std::vector<std::string> read_again(const std::string& before, const std::vector<RequestId>& done,
                                      const std::string& now, std::uint64_t skipped, Shard shard = {}) {
    ReaderLimits limits{.max_line_bytes = 1000};
    LineHistory history;
    for (const auto& request : read_text(before, limits)) history.note(request.line, request.key);
    for (const RequestId line : done) history.set_done(line, true);
    limits.shard = shard;
    const TemporaryFolder folder;
    RequestReader reader(folder.write("in.jsonl", now), RequestParser(two_models(), limits), limits, &history);
    std::vector<IncomingRequest> all;
    while (!reader.finished()) {
      if (auto request = reader.poll()) all.push_back(std::move(*request));
    }
    EXPECT_EQ(reader.lines_skipped(), skipped);
    EXPECT_EQ(reader.lines_seen(), all.size() + skipped);
    return outcomes(all);
  }
};

TEST_F(Resumed, LinesWithResultsAreNotHandedOutAgainButCountForDuplicates) {
  const std::string long_line = R"({"custom_id":"l","a":")" + std::string(2000, 'x') + "\"}";
  const std::string text = good("a") + "\n" + good("b") + "\n{\n" + long_line + "\n" + good("a") + "\n";
  EXPECT_THAT(read_again(text, {0, 2, 3}, text + good("l") + "\n" + good("c"), 3),
              ElementsAre("1:ok", "4:duplicate_custom_id", "5:duplicate_custom_id", "6:ok"));
  EXPECT_THAT(read_again(text, {0, 1, 2, 3, 4}, text, 5), ElementsAre());
}

TEST_F(Resumed, ShardGoesOnWithItsOwnLinesOnly) {
  const std::string text = good("a") + "\n" + good("b") + "\n" + good("c") + "\n" + good("d") + "\n";
  EXPECT_THAT(read_again(text, {1}, text, 1, {1, 2}), ElementsAre("3:ok"));
  expect_error(ExitCode::kConfig, "line 2, which is not of --shard 1/2", [&] {
    read_again(text, {2}, text, 0, {1, 2});
  });
}

TEST_F(Resumed, LinesThatWereReadBeforeMustBeTheSame) {
  const std::string text = good("a") + "\n" + good("b") + "\n";
  const auto changed = [&](const std::string& now, const std::string& part) {
    expect_error(ExitCode::kData, part, [&] { read_again(text, {0}, now, 1); });
  };
  changed(good("a") + "\n" + good("c") + "\n", "line 1 is another one");
  changed(good("a") + "\n", "ends before line 1");
  changed(good("a") + "\n\n", "line 1 is blank now");
  expect_error(ExitCode::kData, "line 0 is blank now", [&] { read_again(text, {0}, "  \n" + good("b") + "\n", 0); });
}

// The job was killed while a pipe still gave; now there is nothing on standard input.
TEST(RequestReader, InputOfWhichNobodySawTheEndIsNotTakenForAll) {
  const TemporaryFolder folder;
  PipedInput input;
  const auto read = [&](bool see_end) {
    FoundOutput output = claim_output(folder / "out", "-", {}, {.max_crashes = 0});
    ResultJournal journal = std::get<ClaimedOutput>(std::move(output)).begin();
    RequestReader reader("-", RequestParser(two_models(), {}), {}, journal.history().get(), journal.open_spool());
    while (!see_end && reader.lines_seen() < 1) std::this_thread::sleep_for(kSoon);
    if (!see_end) return outcomes({*reader.poll()});
    const auto all = outcomes(drain(reader));
    journal.note_input_end(reader.spooled_bytes().value());
    journal.commit();
    return all;
  };
  input.send(good("a") + "\n" + good("b").substr(0, 30));
  EXPECT_THAT(read(false), ElementsAre("0:ok"));
  input.close_writer();
  expect_error(ExitCode::kData, "give the same input again", [&] { read(true); });
  {
    PipedInput again;
    again.send(good("a") + "\n" + good("b").substr(0, 40));
    again.close_writer();
    EXPECT_THAT(read(true), ElementsAre("0:ok", "1:invalid_json"));
  }
  EXPECT_THAT(read(true), ElementsAre("0:ok", "1:invalid_json")) << "the end is known now";
}

// In a process of its own whose standard input is `pipe` and whose parent ends once the reader is there.
[[noreturn]] void read_for_launcher(const std::string& folder, const int (&pipe)[2], int ready) {
  dup2(pipe[0], STDIN_FILENO);
  close(pipe[1]);
  setenv("PMIX_RANK", "0", 1);
  try {
    ResultJournal journal = std::get<ClaimedOutput>(claim_output(folder + "out", "-", {})).begin();
    RequestReader reader("-", RequestParser(two_models(), {}), {}, journal.history().get(), journal.open_spool());
    [[maybe_unused]] const auto told = write(ready, "!", 1);
    drain(reader);
  } catch (const Error& error) {
    _exit(static_cast<int>(error.code()));
  }
  _exit(0);
}

TEST(RequestReader, LauncherThatIsKilledIsNotTheEndOfTheInput) {
  const TemporaryFolder folder;
  int input[2], ready[2];
  ASSERT_EQ(pipe2(input, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (fork() == 0) read_for_launcher(folder / "", input, ready[1]);
    const std::string line = good("a") + "\n";
    char told = 0;
    _exit(write(input[1], line.data(), line.size()) > 0 && read(ready[0], &told, 1) == 1 ? 0 : 1);
  }
  close(input[1]);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(status, 0);
  ASSERT_GT(waitpid(-1, &status, 0), 0);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kStopped));
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  for (const int end : {input[0], ready[0], ready[1]}) close(end);
}

TEST(RequestReader, OnlyRegularFilesAreInput) {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& path, const std::string& part) {
    expect_error(ExitCode::kNoInput, part, [&] { read_path(path); });
    if (path != "-") expect_error(ExitCode::kNoInput, path, [&] { read_path(path); });
  };
  refused(folder / "none.jsonl", "No such file");
  refused(folder / "", "it is a directory");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  refused(folder / "fifo", "it is a FIFO");  // nobody writes: opening it must not hang either
  refused("/dev/null", "it is a device");
}

TEST(RequestReader, StandardInputMayBeAFileButNoFolder) {
  const TemporaryFolder folder;
  PipedInput restores_standard_input;
  const int file = open(folder.write("in.jsonl", good("a")).c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO);
  close(file);
  EXPECT_THAT(outcomes(read_path("-")), ElementsAre("0:ok"));
  const int directory = open((folder / "").c_str(), O_RDONLY);
  dup2(directory, STDIN_FILENO);
  close(directory);
  expect_error(ExitCode::kNoInput, "standard input: it is a directory", [] { read_path("-"); });
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  close(null);
  EXPECT_TRUE(read_path("-").empty());
  close(STDIN_FILENO);
  expect_error(ExitCode::kNoInput, "standard input", [] { read_path("-"); });
}

TEST(RequestReader, TerminalsAreRefused) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  PipedInput restores_standard_input;
  const int other_end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(other_end, 0);
  dup2(other_end, STDIN_FILENO);
  close(other_end);
  expect_error(ExitCode::kNoInput, "it is a terminal", [] { read_path("-"); });
  expect_error(ExitCode::kNoInput, "it is a terminal", [] { check_input("-"); });
  close(terminal);
}

// A write-only standard input opens but cannot be read.
TEST(RequestReader, ReadingErrorsReachTheCallerAfterWhatWasRead) {
  const TemporaryFolder folder;
  PipedInput restores_standard_input;
  const int file = open((folder / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, STDIN_FILENO);
  close(file);
  RequestReader reader("-", RequestParser(two_models(), {}), {});
  expect_error(ExitCode::kIo, "cannot read requests from standard input: Bad file descriptor", [&] { drain(reader); });
  EXPECT_FALSE(reader.finished());
}

}  // namespace
}  // namespace computron

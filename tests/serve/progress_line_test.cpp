#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "computron/serve/live_view.h"
#include "computron/serve/metrics.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::HasSubstr;
using testing::Not;

// While it lives, standard error goes to `fd`.
class RedirectedError {
 public:
  explicit RedirectedError(int fd) : saved_(dup(STDERR_FILENO)) { dup2(fd, STDERR_FILENO); }
  ~RedirectedError() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
  }

 private:
  int saved_;
};

// What `action` writes to standard error when that is a file.
template <class Action>
std::string error_output(Action action) {
  const TemporaryFolder folder;
  const int file = open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600);
  {
    const RedirectedError redirected(file);
    action();
  }
  close(file);
  return read_file(folder / "err");
}

// The same when it is a terminal of `columns`.
template <class Action>
std::string terminal_output(unsigned short columns, Action action) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_EQ(grantpt(master), 0);
  EXPECT_EQ(unlockpt(master), 0);
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
  const winsize size{24, columns, 0, 0};
  EXPECT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  {
    const RedirectedError redirected(terminal);
    action();
  }
  close(terminal);
  // What was written arrives in pieces; reading fails once the last has been read and nobody has the other end open.
  std::string text;
  char piece[4096];
  for (ssize_t count; (count = read(master, piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<std::size_t>(count));
  }
  close(master);
  return text;
}

ProgressLine::State some() {
  return {.done = 25, .total = 100, .total_known = true, .generated_tokens = 500, .model = "opt-a", .swapping = true};
}

TEST(ProgressLine, AFileGetsALineAnInterval) {
  const std::string text = error_output([] {
    ProgressLine progress(true, /*start_s=*/1000, /*interval_s=*/5);
    for (double now = 1000; now < 1012; now += 0.25) progress.update(now, some());
  });
  EXPECT_EQ(text,
            "requests 25/100, 100.0 tokens/s, opt-a, swapping, 0:15 left\n"
            "requests 25/100, 50.0 tokens/s, opt-a, swapping, 0:30 left\n");
}

TEST(ProgressLine, LinesSayOnlyWhatIsKnown) {
  const auto last_line = [](const ProgressLine::State& state) {
    return error_output([&] { ProgressLine(true, 0).finish(3600, state); });
  };
  EXPECT_EQ(last_line({.total = 7, .generated_tokens = 0, .model = ""}), "requests 0/7+, 0.0 tokens/s\n");
  EXPECT_THAT(last_line({.done = 1, .total = 3, .total_known = true, .model = ""}), HasSubstr("2:00:00 left"));
  EXPECT_THAT(last_line({.done = 3, .total = 3, .total_known = true, .model = ""}), Not(HasSubstr("left")));
}

TEST(ProgressLine, ATerminalsLineIsRewritten) {
  const std::string text = terminal_output(200, [] {
    ProgressLine progress(true, 0);
    progress.update(0.1, some());  // not due yet
    progress.update(1, some());
    progress.update(1.01, some());  // nor this
    progress.update(2, some());
    progress.finish(2, some());
  });
  EXPECT_EQ(text,
            "\rrequests 25/100, 500.0 tokens/s, opt-a, swapping, 0:03 left\x1b[K"
            "\rrequests 25/100, 250.0 tokens/s, opt-a, swapping, 0:06 left\x1b[K"
            "\rrequests 25/100, 250.0 tokens/s, opt-a, swapping, 0:06 left\x1b[K\r\n");
}

TEST(ProgressLine, ATerminalsLineNeverWraps) {
  const std::string text = terminal_output(20, [] { ProgressLine(true, 0).update(1, some()); });
  EXPECT_EQ(text, "\rrequests 25/100, 50\x1b[K");
}

TEST(ProgressLine, QuietWritesNothing) {
  const std::string text = error_output([] {
    ProgressLine progress(false, 0);
    progress.update(100, some());
    progress.finish(101, some());
  });
  EXPECT_EQ(text, "");
}

JobStatus status_sample() {
  JobStatus status{
      .counts = {.time_s = 100, .done = 25, .tokens = 5000, .steps = 2000, .swaps = 50, .swap_bytes = 50'000'000'000},
      .before = {.time_s = 90, .done = 20, .tokens = 4900, .steps = 1900, .swaps = 45, .swap_bytes = 40'000'000'000},
      .total = 100,
      .total_known = true,
      .failed = 2,
      .groups = {{.running = "opt", .swapping = true}}};
  status.models = {{"opt", {40, 3}, 20, 0.5}, {"bert\x1b[31m", {30, 2}, 5, 1}, {"idle", {}, 0, 0}};
  return status;
}

TEST(StatusBlock, SaysHowTheJobStands) {
  const std::string text = status_block(status_sample());
  EXPECT_THAT(text, HasSubstr("computron: 1:40: 25/100 requests done, 2 of them failed, 5:00 left\n"));
  EXPECT_THAT(text, HasSubstr("lately   0.5 requests/s, 10.0 tokens/s, 10.0 steps/s, 0.50 swaps/s (1.000 GB/s"));
  EXPECT_THAT(text, HasSubstr("overall  0.2 requests/s, 50.0 tokens/s, 20.0 steps/s, 0.50 swaps/s (0.500 GB/s"));
  EXPECT_THAT(text,
              HasSubstr("opt                                 40         3        20      50 %  runs, swapping\n"));
  EXPECT_THAT(text, HasSubstr("and 1 more model\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << "an id is no terminal's command";
}

TEST(StatusBlock, OfAJobThatHasEndedGuessesNothing) {
  JobStatus status = status_sample();
  status.end = "stopped";
  EXPECT_THAT(status_block(status),
              HasSubstr("computron: stopped after 1:40: 25/100 requests done, 2 of them failed\n"));
  EXPECT_THAT(status_block(status), Not(HasSubstr("lately")));
}

TEST(StatusBlock, OfManyModelsIsShort) {
  JobStatus status = status_sample();
  for (int i = 0; i < 500; ++i) status.models.push_back({"m", {1, 0}, 0, 0});
  const std::string text = status_block(status);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 50);
  EXPECT_THAT(text, HasSubstr("and 463 more models\n"));
}

TEST(StatusWriter, WritesTheLastStatusBeforeItEnds) {
  const TemporaryFolder folder;
  JobStatus status = status_sample();
  const std::string printed = error_output([&] {
    StatusWriter writer(folder / "status");
    writer.put(status, /*print=*/true);
    status.end = "finished";
    writer.put(status, /*print=*/false);
  });
  EXPECT_THAT(printed, HasSubstr("requests done"));
  EXPECT_EQ(read_file(folder / "status"), status_block(status));
  EXPECT_FALSE(std::filesystem::exists(folder / "status.partial"));
}

TEST(ProgressFile, IsJsonWithAPredictedEnd) {
  JobStatus status = status_sample();
  status.before = {};
  status.counts = {.time_s = 100, .done = 25, .tokens = 5000};
  status.total = 100;
  status.failed = 2;
  status.total_known = true;
  EXPECT_EQ(progress_json(status, 1e9),
            R"({"total":100,"done":25,"failed":2,"tokens_per_s":50.0,"predicted_end":"2001-09-09T01:51:40Z",)"
            R"("updated":"2001-09-09T01:46:40Z"})"
            "\n");
  status.before = {.time_s = 90, .tokens = 4000};
  EXPECT_THAT(progress_json(status, 1e9), HasSubstr(R"("tokens_per_s":100.0,)")) << "lately";
  status.total_known = false;
  EXPECT_THAT(progress_json(status, 1e9), HasSubstr(R"("predicted_end":null,)")) << "lines are still read";
  status.total_known = true;
  status.counts.done = 100;
  EXPECT_THAT(progress_json(status, 1e9), HasSubstr(R"("predicted_end":"2001-09-09T01:46:40Z",)")) << "it is over";
}

TEST(ProgressFile, CountsWhatEarlierAttemptsDidButPredictsWithoutIt) {
  JobStatus status = status_sample();
  status.done_before = 900;
  EXPECT_THAT(progress_json(status, 1e9), HasSubstr(R"({"total":1000,"done":925,"failed":2,)"));
  EXPECT_THAT(progress_json(status, 1e9), HasSubstr(R"("predicted_end":"2001-09-09T01:51:40Z",)")) << "300 s for 75";
}

TEST(ProgressFile, TheTotalIsNoLessThanWhatEarlierAttemptsRead) {
  JobStatus status = status_sample();
  status.known_before = 1200;
  status.done_before = 900;
  EXPECT_THAT(progress_json(status, 1e9), HasSubstr(R"({"total":1200,"done":925,)"));
}

TEST(StatusWriter, ReplacesBothFilesAsAWhole) {
  const TemporaryFolder folder;
  const JobStatus status = status_sample();
  {
    StatusWriter writer(folder / "status", folder / "progress.json");
    writer.put(status, /*print=*/false);
  }
  EXPECT_EQ(read_file(folder / "status"), status_block(status));
  EXPECT_THAT(read_file(folder / "progress.json"), HasSubstr(R"("done":)"));
  EXPECT_FALSE(std::filesystem::exists(folder / "progress.json.partial"));
}

TEST(StatusWriter, AFileThatCannotBeWrittenEndsNothing) {
  const TemporaryFolder folder;
  const std::string printed = error_output([&] {
    StatusWriter writer(folder / "none/status");
    for (int i = 0; i < 3; ++i) {
      writer.put(status_sample(), /*print=*/true);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_THAT(printed, HasSubstr("requests done"));
}

}  // namespace
}  // namespace computron

// Requests over standard input while a file is served, each with an output of its own; --progress beside them.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kBatch = 300;
const TinyModel kModel{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 128, .seed = 31};

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t lines_in(const fs::path& path) {
  const std::string text = text_of(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// What a job reads as standard input while it runs.
class Pipe {
 public:
  explicit Pipe(const fs::path& path) {
    if (mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("cannot make a pipe");
    end_ = open(path.c_str(), O_RDWR | O_CLOEXEC);  // nobody waits for the other end then
  }
  ~Pipe() { close_end(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void put(const std::string& line) const {
    const std::string text = line + '\n';
    ASSERT_EQ(write(end_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_end() {
    if (end_ >= 0) close(end_);
    end_ = -1;
  }

 private:
  int end_ = -1;
};

class ServeInputs : public ::testing::Test {
 protected:
  ServeInputs() {
    write_tiny_checkpoint(folder_ / "one.h5", kModel);
    TinyModel two = kModel;
    two.seed += 7;
    write_tiny_checkpoint(folder_ / "two.h5", two);
  }

  fs::path live() const { return folder_ / "live.jsonl"; }
  fs::path batch() const { return folder_ / "batch.jsonl"; }
  // Batch work of both models over a slow link, in a file; and what comes over standard input.
  ServeJob job(const std::string& input, const std::string& policy) const {
    ServeJob job{.models = {{"one", folder_ / "one.h5"}, {"two", folder_ / "two.h5"}},
                 .lines = batch_lines(),
                 .device_memory = "896KiB",
                 .output = batch(),
                 .input = input};
    job.more = {"--requests",  "-",   "--output", live(), "--max-seqs", "4",        "--policy",     policy,
                "--link-gbps", "0.2", "--coded",  "off",  "--progress", progress(), "--durability", "result"};
    return job;
  }
  fs::path progress() const { return folder_ / "progress.json"; }
  static std::vector<std::string> batch_lines() {
    std::vector<std::string> lines;
    for (int i = 0; i < kBatch; ++i) {
      lines.push_back(completion_line(fmt::format("b{}", i), i % 2 == 0 ? "one" : "two", {1, i % 100, 3}, 16,
                                      {{"ignore_eos", true}}));
    }
    return lines;
  }
  static std::string live_line(int i) {
    nlohmann::json more = {{"service_tier", "priority"}, {"temperature", 0.7}};
    return completion_line(fmt::format("i{}", i), i % 2 == 0 ? "one" : "two", {5, i, 7}, 4, more);
  }
  // Waits for so many lines in the result file of standard input.
  static bool wait_for(RunningServe& running, const fs::path& partial, std::size_t lines) {
    while (running.mpi().running() && lines_in(partial) < lines) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return lines_in(partial) >= lines;
  }

  TemporaryFolder folder_;
};

// An answer comes while the file is far from being done; each output has the results of its own input.
TEST_F(ServeInputs, StandardInputIsAnsweredWhileAFileIsServed) {
  for (const char* policy : {"balanced", "throughput"}) {
    const fs::path pipe_path = folder_ / fmt::format("pipe-{}", policy);
    Pipe pipe(pipe_path);
    RunningServe running(job(pipe_path, policy), folder_);
    ASSERT_TRUE(wait_for(running, batch().string() + ".partial", 1)) << running.finish(healthy_limit_s()).job.errors;
    for (int i = 0; i < 3; ++i) {
      pipe.put(i == 1 ? "{ no JSON" : live_line(i));
      ASSERT_TRUE(wait_for(running, live().string() + ".partial", static_cast<std::size_t>(i) + 1));
    }
    EXPECT_LT(lines_in(batch().string() + ".partial"), kBatch) << "the file was done too early to tell";
    EXPECT_FALSE(fs::exists(live())) << "it appears when standard input has ended";
    pipe.close_end();
    const Served served = running.finish(healthy_limit_s());
    EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
    EXPECT_EQ(served.results.size(), static_cast<std::size_t>(kBatch));
    EXPECT_FALSE(served.results.tokens("b299").empty());
    const Results answers(live());
    EXPECT_EQ(answers.size(), 3u);
    EXPECT_THAT(answers.tokens("i0"), SizeIs(4));
    EXPECT_THAT(answers.tokens("i2"), SizeIs(4));
    EXPECT_EQ(served.metrics["requests"]["total"], kBatch + 3);
    const auto at_end = nlohmann::json::parse(text_of(progress()));
    EXPECT_EQ(at_end["total"], kBatch + 3);
    EXPECT_EQ(at_end["done"], kBatch + 3);
    EXPECT_EQ(at_end["failed"], 1);
    EXPECT_EQ(at_end["predicted_end"], at_end["updated"]);
    EXPECT_TRUE(at_end["tokens_per_s"].is_number());
    for (const fs::path& output : {batch(), live()}) {
      for (const char* suffix : {"", ".done"}) fs::remove(output.string() + suffix);
    }
  }
}

// Each output goes on where it was, and no answer depends on what was served beside it.
TEST_F(ServeInputs, AJobThatWasKilledGoesOnWithAllInputs) {
  std::vector<std::string> lines;
  for (int i = 0; i < 40; ++i) lines.push_back(live_line(i));
  write_lines(folder_ / "input", lines);
  ServeJob alone = job("/dev/null", "balanced");
  alone.lines = lines;
  alone.more = {};
  alone.output = folder_ / "alone.jsonl";
  ASSERT_EQ(serve(alone, folder_).job.exit_code, 0);

  const ServeJob both = job(folder_ / "input", "balanced");
  {
    RunningServe running(both, folder_);
    ASSERT_TRUE(wait_for(running, live().string() + ".partial", 1));
    ASSERT_EQ(kill(running.mpi().rank_process(0), SIGKILL), 0) << "it has ended too early";
    running.finish(failing_limit_s());
  }
  EXPECT_FALSE(fs::exists(batch()));
  const Served served = serve(both, folder_);
  ASSERT_EQ(served.job.exit_code, 0) << served.job.errors;
  const auto all_done = [&] { return nlohmann::json::parse(text_of(progress())); };
  EXPECT_EQ(all_done()["total"], kBatch + 40) << "with what the first attempt did";
  EXPECT_EQ(all_done()["done"], kBatch + 40);
  EXPECT_EQ(served.results.size(), static_cast<std::size_t>(kBatch));
  EXPECT_EQ(sorted_lines(live()), sorted_lines(alone.output));
  EXPECT_EQ(served.metrics["attempt"], 2);
  EXPECT_GT(served.metrics["requests"]["before"], 0);

  fs::remove(progress());
  const Served again = serve(both, folder_);
  EXPECT_EQ(again.job.exit_code, 0) << "nothing to do: " << again.job.errors;
  EXPECT_EQ(all_done()["total"], kBatch + 40);
  EXPECT_EQ(all_done()["done"], kBatch + 40);
  EXPECT_EQ(all_done()["predicted_end"], all_done()["updated"]);
}

// It goes down more often than it may without a result (--max-crashes), and has one more of the batch each time.
TEST_F(ServeInputs, AJobWhoseStandardInputIsSilentMayGoDownWheneverTheFileGetsOn) {
  const fs::path partial = batch().string() + ".partial";
  const Pipe pipe(folder_ / "pipe");
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::size_t before = fs::exists(partial) ? lines_in(partial) : 0;
    RunningServe running(job(folder_ / "pipe", "balanced"), folder_);
    const bool gets_on = wait_for(running, partial, before + 1);
    kill(running.mpi().rank_process(0), SIGKILL);
    const Served served = running.finish(failing_limit_s());
    ASSERT_TRUE(gets_on) << served.job.errors;
    ASSERT_FALSE(fs::exists(batch())) << "it has ended too early";
  }
}

TEST_F(ServeInputs, WhatDoesNotFitTogetherIsRefused) {
  const auto refused = [&](const std::vector<std::string>& more, int code, const std::string& part) {
    ServeJob bad = job("/dev/null", "balanced");
    bad.more = more;
    const Served served = RunningServe(bad, folder_).finish(healthy_limit_s());
    EXPECT_EQ(served.job.exit_code, code) << served.job.errors;
    EXPECT_THAT(served.job.errors, HasSubstr(part));
    EXPECT_FALSE(fs::exists(batch().string() + ".partial"));
  };
  refused({"--requests", "-"}, 64, "each --requests has an --output, in the same order (2 and 1 are given)");
  refused({"--requests", "-", "--requests", "-", "--output", live()}, 64, "--requests - is given twice");
  refused({"--requests", "-", "--output", batch()}, 64, "is given twice");
  refused({"--requests", "-", "--output", live(), "--dry-run"}, 64, "--dry-run takes one --requests");
  refused({"--requests", "/dev/null", "--output", live()}, 66, "'/dev/null': it is a device");
  refused({"--requests", folder_ / "none.jsonl", "--output", live()}, 66, "none.jsonl");
  refused({"--progress", folder_ / "none" / "progress.json"}, 73, "progress.json: its folder is not writable");
  // Replaced at the end: what could not be is refused before anything is loaded.
  fs::create_directory(folder_ / "traces");
  refused({"--trace", folder_ / "traces"}, 73, "a directory");
  fs::create_symlink(folder_ / "elsewhere.json", folder_ / "link.json");
  refused({"--trace", folder_ / "link.json"}, 73, "a symbolic link");
}

}  // namespace
}  // namespace computron::test

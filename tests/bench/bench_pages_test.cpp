// computron bench pages: what it measures, not how fast it is; and what is left of ranks that are killed while they
// share pages.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

const TinyModel kPagesModel = {.heads = 8, .head_dim = 32, .ffn = 1024, .vocab = 8000};

TEST(BenchPages, MeasuresMemoryAndCopies) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "model.h5", kPagesModel);
  const std::vector<std::string> command = {served_program(), "bench",     "pages", folder / "model.h5",
                                            "--quiet",        "--repeats", "2",     "--page-size",
                                            "1MiB",           "--csv"};
  const JobOutcome outcome = run_job(/*ranks=*/2, command, folder / "", healthy_limit_s());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  std::istringstream csv(outcome.output);
  std::string head, line;
  ASSERT_TRUE(std::getline(csv, head) && std::getline(csv, line));
  EXPECT_EQ(std::ranges::count(head, ','), std::ranges::count(line, ','));
  std::istringstream names(head), values(line);
  std::map<std::string, double> figures;
  for (std::string name, value; std::getline(names, name, ',') && std::getline(values, value, ',');) {
    figures[name] = std::stod(value);
  }
  EXPECT_EQ(figures.at("ranks"), 2);
  EXPECT_EQ(figures.at("rounds"), 2);
  EXPECT_GT(figures.at("one_copy_bytes"), 1e7);
  EXPECT_LT(figures.at("shared_settled"), figures.at("own_settled"));
  for (const char* key : {"own_gb_per_s", "shared_gb_per_s", "small_gb_per_s", "alone_shared_over_own"}) {
    EXPECT_GT(figures.at(key), 0) << key;
  }
}

// What PageStore names its memory.
constexpr const char* kPagesName = "computron pages";

// The memory that a process shares with others, by inode; empty where it has ended.
std::set<std::string> shared_by(const std::string& process) {
  std::set<std::string> inodes;
  std::ifstream maps("/proc/" + process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(std::string("/memfd:") + kPagesName) == std::string::npos) continue;
    std::istringstream fields(line);
    std::string range, mode, offset, device, inode;
    fields >> range >> mode >> offset >> device >> inode;
    inodes.insert(inode);
  }
  return inodes;
}

bool anybody_has(const std::set<std::string>& inodes) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    for (const std::string& inode : shared_by(entry.path().filename())) {
      if (inodes.contains(inode)) return true;
    }
  }
  return false;
}

bool any_named(const std::filesystem::path& folder, const std::string& part) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find(part) != std::string::npos) return true;
  }
  return false;
}

// Waits for pages that rank 1 maps, whoever holds them.
std::set<std::string> shared_by_rank_1(MpiJob& job) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(healthy_limit_s());
  std::set<std::string> inodes;
  while (inodes.empty() && job.running() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (const pid_t process = job.rank_process(1); process != 0) inodes = shared_by(std::to_string(process));
  }
  return inodes;
}

TEST(BenchPages, KilledRanksLeaveNothingBehind) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "model.h5", kPagesModel);
  for (const int victim : {0, 1}) {  // who holds the pages, and who maps them
    MpiJob job(/*ranks=*/4,
               {served_program(), "bench", "pages", folder / "model.h5", "--repeats", "10000", "--page-size", "1MiB"},
               folder / "");
    const std::set<std::string> inodes = shared_by_rank_1(job);
    ASSERT_FALSE(inodes.empty());
    ASSERT_TRUE(anybody_has(inodes));
    ASSERT_EQ(kill(job.rank_process(victim), SIGKILL), 0);
    EXPECT_NE(job.wait(failing_limit_s()).exit_code, 0);
    EXPECT_FALSE(anybody_has(inodes)) << "killed: " << victim;
    // Not "computron" alone: tests that run beside this one have shared memory of that name (the emulated NCCL).
    EXPECT_FALSE(any_named("/dev/shm", kPagesName));
    EXPECT_FALSE(any_named(std::filesystem::temp_directory_path(), kPagesName));
  }
}

}  // namespace
}  // namespace computron::test

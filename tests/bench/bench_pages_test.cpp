// computron bench pages: what it measures, not how fast it is; and what is left of ranks that are killed while they
// share pages.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
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

// The memory that a process shares with others, by inode; empty where it has ended, which it may while it is looked at.
std::set<std::string> shared_by(const std::string& process) {
  std::set<std::string> inodes;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(
      std::fopen(("/proc/" + process + "/maps").c_str(), "r"),
      [](std::FILE* file) { return file ? std::fclose(file) : 0; });
  char line[4096];  // a path may be longer, and is none of ours then
  while (maps != nullptr && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    if (std::strstr(line, (std::string("/memfd:") + kPagesName).c_str()) == nullptr) continue;
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

// Whether it holds at last.
bool holds_soon(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(healthy_limit_s());
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool any_named(const std::filesystem::path& folder, const std::string& part) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find(part) != std::string::npos) return true;
  }
  return false;
}

// Waits for pages that rank 1 maps, whoever holds them.
std::set<std::string> shared_by_rank_1(MpiJob& job) {
  std::set<std::string> inodes;
  holds_soon([&] {
    if (const pid_t process = job.rank_process(1); process != 0) inodes = shared_by(std::to_string(process));
    return !inodes.empty() || !job.running();
  });
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
    // mpirun may return while ranks that it has killed still give back their memory.
    EXPECT_TRUE(holds_soon([&] { return !anybody_has(inodes); })) << "killed: " << victim;
    // Not "computron" alone: tests that run beside this one have shared memory of that name (the emulated NCCL).
    EXPECT_FALSE(any_named("/dev/shm", kPagesName));
    EXPECT_FALSE(any_named(std::filesystem::temp_directory_path(), kPagesName));
  }
}

}  // namespace
}  // namespace computron::test

#include "computron/base/launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace computron {
namespace {

// The environment's launchers, as `variables` and nothing else say, until it goes.
class Launcher {
 public:
  explicit Launcher(const std::map<std::string, std::string>& variables) {
    for (const LauncherVariable& variable : kLauncherVariables) hide(variable.rank);
    hide("SLURM_PROCID");
    hide("SLURM_STEP_ID");
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launcher() {
    for (const auto& [name, value] : before_) {
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

 private:
  void hide(const char* name) {
    const char* const value = std::getenv(name);
    before_[name] = value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    unsetenv(name);
  }

  std::map<std::string, std::optional<std::string>> before_;
};

std::string rank_with(const std::map<std::string, std::string>& variables) {
  const Launcher launcher(variables);
  const char* const rank = launched_rank();
  return rank != nullptr ? rank : "none";
}

TEST(Launcher, NobodyHasStartedIt) { EXPECT_EQ(rank_with({}), "none"); }

// What each of them sets was read off it, or (MVAPICH2, PALS) is what its documents say.
TEST(Launcher, EachTellsTheRank) {
  EXPECT_EQ(rank_with({{"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"}}), "3");
  EXPECT_EQ(rank_with({{"PMIX_RANK", "4"}, {"SLURM_PROCID", "4"}, {"SLURM_STEP_ID", "0"}}), "4");
  EXPECT_EQ(rank_with({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}), "5");
  EXPECT_EQ(rank_with({{"MV2_COMM_WORLD_RANK", "6"}}), "6");
  EXPECT_EQ(rank_with({{"PALS_RANKID", "7"}}), "7");
}

TEST(Launcher, ABatchScriptOfSlurmIsNoRank) {
  EXPECT_EQ(rank_with({{"SLURM_PROCID", "0"}}), "none");
  EXPECT_EQ(rank_with({{"SLURM_PROCID", "2"}, {"SLURM_STEP_ID", "1"}}), "2");
}

// mpirun starts its daemons by srun, whose variables its ranks inherit.
TEST(Launcher, TheInnerOneOfTwoIsBelieved) {
  EXPECT_EQ(rank_with({{"OMPI_COMM_WORLD_RANK", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}), "1");
  EXPECT_EQ(rank_with({{"PMI_RANK", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}}), "3");
}

}  // namespace
}  // namespace computron

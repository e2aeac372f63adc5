// Which kernels the CPU's operations choose, and where they keep that.
#include "src/ops/cpu/gemm_choices.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "computron/base/error.h"
#include "computron/ops/cpu_probe.h"
#include "kernels/cpu/gemm_measure.h"

namespace computron {
namespace {

namespace fs = std::filesystem;
using kernels::GemmChoice;

constexpr double kShort_s = 0.001;

std::string content(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

bool is_candidate(const WeightType& type, const GemmChoice& choice) {
  const auto candidates = kernels::gemm_candidates(type);
  return std::ranges::find(candidates, choice) != candidates.end();
}

class GemmChoicesTest : public ::testing::Test {
 protected:
  ~GemmChoicesTest() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::temp_directory_path() / ("gemm_choices_test." + std::to_string(getpid()));
  const fs::path file_ = folder_ / "cache" / "gemm";
};

TEST_F(GemmChoicesTest, DefaultsWithoutAMeasurement) {
  const GemmChoices choices;
  EXPECT_EQ(choices.of(DType::kF32), kernels::default_gemm(DType::kF32));
  EXPECT_EQ(choices.of(DType::kF16), kernels::default_gemm(DType::kF16));
}

TEST_F(GemmChoicesTest, MeasuresOneOfTheCandidates) {
  for (const WeightType& type : {WeightType(DType::kF32), WeightType(DType::kF32, DType::kInt4, DType::kBF16, 32)}) {
    EXPECT_TRUE(is_candidate(type, kernels::measure_gemm(type, kShort_s))) << name_of(type);
  }
}

// The file is what the next run goes by: a choice that no measurement made is taken from it.
TEST_F(GemmChoicesTest, KeepsChoicesInAFile) {
  const WeightType types[] = {DType::kF32, DType::kF16};
  GemmChoices().choose(types, file_, kShort_s);
  const std::string written = content(file_);
  EXPECT_NE(written.find("\nf32/f32 "), std::string::npos) << written;

  const auto other = kernels::gemm_candidates(DType::kF16).back();
  const auto& b = other.blocking;
  std::string changed = written.substr(0, written.find("f16/f16 "));
  std::ostringstream line;
  line << "f16/f16 " << name_of(other.kernel) << ' ' << b.ahead_bytes << ' ' << b.blocks_at_once << ' ' << b.slice_bytes
       << ' ' << b.again_bytes << ' ' << b.codes_ahead_bytes << '\n';
  // Types are in the order of their names: f16 first.
  changed = written.substr(0, written.find('\n') + 1) + line.str() + written.substr(written.find("f32/f32 "));
  write(file_, changed);
  GemmChoices choices;
  choices.choose(types, file_, kShort_s);
  EXPECT_EQ(choices.of(DType::kF16), other);
  EXPECT_EQ(content(file_), changed);
}

TEST_F(GemmChoicesTest, AddsTypesToAFile) {
  const WeightType f32 = DType::kF32, f16 = DType::kF16;
  GemmChoices().choose({&f32, 1}, file_, kShort_s);
  const std::string before = content(file_);
  GemmChoices().choose({&f16, 1}, file_, kShort_s);
  EXPECT_NE(content(file_).find(before.substr(before.find("f32/f32"))), std::string::npos);
  EXPECT_NE(content(file_).find("f16/f16"), std::string::npos);
}

TEST_F(GemmChoicesTest, DoesNotTrustAFile) {
  const WeightType type = DType::kF32;
  const std::string title = "computron gemm 9\n";
  fs::create_directories(file_.parent_path());
  for (const std::string& text :
       {std::string(), std::string("\0\1\2", 3), std::string("something else\nf32/f32 avx2 256 1 131072 16384 3072\n"),
        title, title + "f32/f32", title + "f32/f32 ", title + "f32/f32 avx2 256 1 131071 16384 3072\n",
        title + "f32/f32 amx -1 0 0 0 0\n", title + "f32/f32 avx9 256 1 131072 16384 3072\n"}) {
    write(file_, text);
    GemmChoices choices;
    choices.choose({&type, 1}, file_, kShort_s);
    EXPECT_TRUE(is_candidate(type, choices.of(type))) << text;
    EXPECT_TRUE(content(file_).starts_with(title + "f32/f32 avx")) << text;
  }
}

TEST_F(GemmChoicesTest, NeedsNoPlaceForAFile) {
  const WeightType type = DType::kF32;
  for (const fs::path& file : {fs::path(), fs::path("/proc/computron/gemm")}) {
    GemmChoices choices;
    choices.choose({&type, 1}, file, kShort_s);
    EXPECT_TRUE(is_candidate(type, choices.of(type)));
  }
}

TEST_F(GemmChoicesTest, FollowsTheEnvironment) {
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_TRUE(gemm_choices_file().string().starts_with("/somewhere/computron/gemm-")) << gemm_choices_file();
  setenv("XDG_CACHE_HOME", "not/absolute", 1);
  setenv("HOME", "/home/someone", 1);
  EXPECT_TRUE(gemm_choices_file().string().starts_with("/home/someone/.cache/computron/gemm-"));
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_TRUE(gemm_choices_file().empty());

  unsetenv("COMPUTRON_TUNING");
  EXPECT_TRUE(may_measure_kernels());
  setenv("COMPUTRON_TUNING", "off", 1);
  EXPECT_FALSE(may_measure_kernels());
  setenv("COMPUTRON_TUNING", "perhaps", 1);
  EXPECT_THROW(may_measure_kernels(), Error);
}

// Of what each of the instruction sets multiplies with.
TEST(ArithmeticOf, IsWhatDecidesBits) {
  const std::string isa = instruction_set();
  const bool tiles = isa == "amx", dot_products = isa == "avx512_bf16";
  const std::string by = isa == "avx2" || isa == "neon" ? " by 256 bits" : " by 512 bits";
  const std::string bf16 = tiles ? "bfloat16 in tiles" : dot_products ? "bfloat16" : "float32" + by;
  EXPECT_EQ(arithmetic_of(DType::kF32), "float32" + by);
  EXPECT_EQ(arithmetic_of(DType::kF16), "float32" + by);
  EXPECT_EQ(arithmetic_of(DType::kBF16), bf16);
  EXPECT_EQ(arithmetic_of(WeightType(DType::kBF16, DType::kFp8, DType::kF32, 32)), bf16);
  const bool integers = isa == "avx2" || isa == "avx512_vnni";
  const WeightType int8(DType::kBF16, DType::kInt8, DType::kF32, 32);
  EXPECT_EQ(arithmetic_of(int8), integers ? "integers" + by : bf16);
}

}  // namespace
}  // namespace computron

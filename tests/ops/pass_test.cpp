// What a pass names beforehand: where it is told apart, and that its results are those of operations by themselves.
#include <algorithm>

#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

class PassTest : public OpsTest {
 protected:
  static constexpr int kRows = 3, kColumns = 40;

  void SetUp() override {
    if (bench_.traits().host_memory) GTEST_SKIP() << "this device reads host memory where it lies";
  }
  Ops& ops() { return bench_.ops(); }

  // The launches of a pass that samples a row.
  std::string launches_of(const RowSampling& row) {
    const auto& rows = bench_.keep(std::vector<RowSampling>{row});
    SliceSample out;
    PassArrays arrays;
    arrays.samples = {&out, 1};
    arrays.sampling = {rows};
    arrays.logit_columns = kColumns;
    return ops().begin_pass(arrays);
  }
};

TEST_P(PassTest, IsToldApartByTheListsThatRowsSampleBy) {
  const std::vector<TokenUse> used{{1, 1}}, others{{2, 1}, {3, 2}};
  const std::vector<std::pair<TokenId, float>> bias{{1, 2.0f}};
  const std::vector<TokenId> banned{4};
  const std::vector<std::uint32_t> allowed{7, 9};
  const std::vector<std::string> launches = {
      launches_of({.samples = true}),
      launches_of({.samples = true, .used = used}),
      launches_of({.samples = true, .bias = bias}),
      launches_of({.samples = true, .banned = banned}),
      launches_of({.samples = true, .temperature = 1, .top_p = 0.5f, .used = used}),
      launches_of({.samples = true, .allowed = allowed})};
  for (std::size_t i = 0; i < launches.size(); ++i) {
    EXPECT_FALSE(launches[i].empty());
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(launches[i], launches[j]) << i << " and " << j;
  }
  EXPECT_EQ(launches_of({.samples = true, .used = others}), launches[1]) << "other tokens, as many blocks";
  EXPECT_EQ(launches_of({.samples = true, .temperature = 2, .top_p = 0.1f, .used = others}), launches[4]);
}

TEST_P(PassTest, IsToldApartByWhatItHasTooMuchOf) {
  const auto launches = [&](int columns) {
    const auto& rows = bench_.keep(std::vector<RowSampling>(64, {.samples = true, .temperature = 1, .top_k = 5}));
    std::vector<SliceSample> out(rows.size());
    PassArrays arrays;
    arrays.samples = out;
    arrays.sampling = {rows};
    arrays.logit_columns = columns;
    return ops().begin_pass(arrays);
  };
  EXPECT_NE(launches(1000), "");
  EXPECT_EQ(launches(128'000), "") << "64 rows that may bring back all of a large vocabulary";
}

TEST_P(PassTest, GivesWhatOperationsGiveWithoutOne) {
  const Floats logits = random_floats(kRows * kColumns, 1);
  const std::vector<std::int32_t> top{1, 3, 2};
  const std::vector<TokenId> targets{-1, 5, 39};
  const std::vector<RowSampling> sampling = {{.samples = true, .temperature = 1, .top_p = 0.7f, .key = 3},
                                             {},
                                             {.samples = true, .temperature = 1, .key = 4, .position = 2}};
  const LogitColumns columns{.first_token = 0, .real = kColumns};
  const Activations on_device = bench_.put(logits, kRows, kColumns);
  const auto run = [&](bool in_pass) {
    std::pair<std::vector<TopLogits>, std::vector<SliceSample>> out{kRows, kRows};
    if (in_pass) {
      PassArrays arrays;
      arrays.add_input(std::span(top));
      arrays.add_input(std::span(targets));
      arrays.logits = out.first;
      arrays.sampling = {sampling};
      arrays.samples = out.second;
      arrays.logit_columns = kColumns;
      ops().begin_pass(arrays);
      ops().upload_inputs(bench_.stream());
    }
    ops().top_k_log_sum_exp(bench_.stream(), on_device, columns, top, targets, out.first.data());
    ops().sample(bench_.stream(), on_device, columns, sampling, out.second.data());
    bench_.stream().synchronize();
    if (in_pass) ops().end_pass();
    return out;
  };
  const auto alone = run(false), in_pass = run(true);
  for (std::size_t row = 0; row < kRows; ++row) {
    const TopLogits &a = alone.first[row], &b = in_pass.first[row];
    EXPECT_TRUE(std::equal(a.tokens, a.tokens + top[row], b.tokens)) << row;
    EXPECT_EQ(a.sum_exp, b.sum_exp) << row;
    EXPECT_EQ(a.target_logit, b.target_logit) << row;
    EXPECT_EQ(alone.second[row].best.token, in_pass.second[row].best.token) << row;
    EXPECT_EQ(alone.second[row].score, in_pass.second[row].score) << row;
    EXPECT_EQ(alone.second[row].candidates.size(), in_pass.second[row].candidates.size()) << row;
  }
  EXPECT_GT(in_pass.second[0].candidates.size(), 0u);
}

COMPUTRON_ON_EVERY_DEVICE(PassTest);

}  // namespace
}  // namespace computron::testing

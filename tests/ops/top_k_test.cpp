// top_k_log_sum_exp against sorting and a loop in double precision.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

class TopKTest : public OpsTest {
 protected:
  std::vector<TopLogits> top_k_log_sum_exp(const Floats& logits, int rows, int columns, int real, TokenId first,
                                           const std::vector<std::int32_t>& top, const std::vector<TokenId>& targets) {
    std::vector<TopLogits> out(static_cast<std::size_t>(rows));
    bench_.ops().top_k_log_sum_exp(bench_.stream(), bench_.put(logits, rows, columns),
                                   {.first_token = first, .real = real}, top, targets, out.data());
    bench_.stream().synchronize();
    return out;
  }
};

void expect_top_k(const TopLogits& s, const Floats& row, int real, TokenId first, int top) {
  std::vector<int> order(static_cast<std::size_t>(real));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  ASSERT_EQ(s.count, std::min(top, real));
  for (int i = 0; i < s.count; ++i) {
    EXPECT_EQ(s.tokens[i], first + order[i]) << "place " << i;
    EXPECT_EQ(s.logits[i], row[order[i]]) << "place " << i;
  }
  EXPECT_EQ(s.max, row[order[0]]);
  double sum = 0;
  for (int c = 0; c < real; ++c) sum += std::exp(static_cast<double>(row[c]) - s.max);
  EXPECT_NEAR(s.sum_exp, sum, 1e-6 * sum);
  EXPECT_TRUE(s.finite);
}

TEST_P(TopKTest, MatchesSorting) {
  constexpr int kRows = 3;
  for (const int columns : {1, 5, 21, 64, 1003, 9001}) {
    for (const int top : {1, 2, 20, 21}) {
      auto logits = random_floats(static_cast<std::size_t>(kRows) * columns, 1);
      for (float& v : logits) v = std::round(v * 40) / 2;  // many ties
      const int real = columns > 5 ? columns - 3 : columns;
      for (int r = 0; r < kRows; ++r) {  // padding columns must not be seen
        for (int c = real; c < columns; ++c) logits[r * columns + c] = 1e6f;
      }
      const auto out =
          top_k_log_sum_exp(logits, kRows, columns, real, 500, std::vector(kRows, top), std::vector(kRows, -1));
      for (int r = 0; r < kRows; ++r) {
        SCOPED_TRACE(fmt::format("{} columns, top {}, row {}", columns, top, r));
        expect_top_k(out[r], row_of(logits, r, columns), real, 500, top);
        EXPECT_FALSE(out[r].has_target);
      }
    }
  }
}

TEST_P(TopKTest, GivesTheTargetWhereItLies) {
  const auto logits = random_floats(4 * 30, 1);
  const auto out = top_k_log_sum_exp(logits, 4, 30, 28, 100, {1, 1, 1, 1}, {100, 127, 128, 99});
  EXPECT_TRUE(out[0].has_target);
  EXPECT_EQ(out[0].target_logit, logits[0]);
  EXPECT_TRUE(out[1].has_target);
  EXPECT_EQ(out[1].target_logit, logits[30 + 27]);
  EXPECT_FALSE(out[2].has_target);
  EXPECT_FALSE(out[3].has_target);
}

TEST_P(TopKTest, ReportsWhatIsNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const int place : {0, 13, 20, 30, 49}) {
      auto logits = random_floats(2 * 50, 1);
      logits[static_cast<std::size_t>(place)] = bad;
      const auto out = top_k_log_sum_exp(logits, 2, 50, 50, 0, {21, 21}, {-1, -1});
      EXPECT_FALSE(out[0].finite) << bad << " at " << place;
      EXPECT_TRUE(out[1].finite);
    }
  }
  auto padded = random_floats(50, 1);
  padded[49] = NAN;
  EXPECT_TRUE(top_k_log_sum_exp(padded, 1, 50, 49, 0, {1}, {-1})[0].finite);
}

TEST_P(TopKTest, LargeLogitsDoNotOverflow) {
  const auto out = top_k_log_sum_exp({1e30f, -1e30f, 1e30f, 3}, 1, 4, 4, 0, {4}, {1});
  EXPECT_TRUE(out[0].finite);
  EXPECT_EQ(out[0].sum_exp, 2);
  EXPECT_EQ(out[0].tokens[0], 0);
  EXPECT_EQ(out[0].tokens[1], 2);
}

// The last ranks of a small vocabulary have padding only.
TEST_P(TopKTest, ASliceWithoutRealTokensOffersNothing) {
  const auto out = top_k_log_sum_exp(Floats(10), 1, 10, 0, 50, {3}, {-1});
  EXPECT_TRUE(out[0].finite);
  EXPECT_EQ(out[0].count, 0);
  EXPECT_EQ(out[0].sum_exp, 0);
}

TEST_P(TopKTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(top_k_log_sum_exp(Floats(10), 1, 10, 11, 0, {1}, {-1}), Error);
  EXPECT_THROW(top_k_log_sum_exp(Floats(10), 1, 10, -1, 0, {1}, {-1}), Error);
  EXPECT_THROW(top_k_log_sum_exp(Floats(10), 1, 10, 10, 0, {1, 1}, {-1}), Error);
  EXPECT_THROW(top_k_log_sum_exp(Floats(10), 1, 10, 10, 0, {1}, {}), Error);
}

COMPUTRON_ON_EVERY_DEVICE(TopKTest);

}  // namespace
}  // namespace computron::testing

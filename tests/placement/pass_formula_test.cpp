#include "computron/placement/pass_formula.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace computron {
namespace {

// A machine of which every coefficient counts: 50 us a pass and 20 us a layer, 20 GB/s of weights, 200 GFLOP/s, 10 GB/s
// of caches, sums of 15 us and 4 GB/s, 2 GB/s between stages.
constexpr PassFormula::Terms kMachine = {50e-6, 20e-6, 1 / 20e9, 1 / 200e9, 1 / 10e9, 15e-6, 1 / 4e9, 1 / 2e9};

// Written apart from the formula's own code.
double pass_s(const PassFormula::Terms& c, const PassWork& work) {
  const StageWork& s = work.stage;
  double time_s = c[0] + c[1] * s.layers + c[2] * s.weight_bytes + c[3] * work.rows * s.flops_per_row +
                  c[4] * work.rows * work.context * s.cache_token_bytes;
  const double row_bytes = 4.0 * work.rows * s.width;
  if (s.tp > 1) time_s += s.sums * (c[5] * std::log2(s.tp) + c[6] * row_bytes * (1 - 1.0 / s.tp));
  if (s.receives) time_s += c[7] * row_bytes;
  return time_s;
}

// A stage of a transformer, cut in tp · pp.
StageWork stage_of(int hidden, int layers, const GroupShape& shape, int stage) {
  const double weights = 12.0 * hidden * hidden * layers / shape.ranks() + (stage == 0 ? 5e4 * hidden / shape.tp : 0);
  return {.weight_bytes = 4 * weights,
          .flops_per_row = 2 * weights,
          .cache_token_bytes = 8.0 * hidden * layers / shape.ranks(),
          .layers = layers / shape.pp,
          .sums = 2 * layers / shape.pp + (stage == 0 ? 1 : 0),
          .width = hidden,
          .tp = shape.tp,
          .receives = stage > 0};
}

// What `seconds` says of passes of two models on each shape.
template <class Seconds>
std::vector<PassSample> samples_of(const std::vector<GroupShape>& shapes, const Seconds& seconds) {
  std::vector<PassSample> samples;
  for (const GroupShape& shape : shapes) {
    for (const auto& [hidden, layers] : {std::pair(512, 8), std::pair(1024, 12)}) {
      for (int rows = 1; rows <= 1024; rows *= 4) {
        for (int stage = 0; stage < shape.pp; ++stage) {
          const PassWork work{stage_of(hidden, layers, shape, stage), rows, rows <= 64 ? 256 : 0};
          samples.push_back({shape, work, seconds(work)});
        }
      }
    }
  }
  return samples;
}

const std::vector<GroupShape> kShapes = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {1, 4}};

TEST(PassFormula, RecoversAMadeUpMachine) {
  const auto samples = samples_of(kShapes, [](const PassWork& work) { return pass_s(kMachine, work); });
  const PassFormula formula = PassFormula::fit(samples);
  for (std::size_t term = 0; term < kMachine.size(); ++term) {
    EXPECT_NEAR(formula.coefficients()[term] / kMachine[term], 1, 1e-6) << "term " << term;
  }
  EXPECT_LT(fit_error(formula, samples).worst, 1e-7);
  const PassWork larger{stage_of(2048, 24, {8, 2}, 1), 2048, 0};
  EXPECT_NEAR(formula.pass_s(larger) / pass_s(kMachine, larger), 1, 1e-6);
}

// Of what rows choose a quarter each, three rows leave (3/4)^3 unread.
TEST(PassFormula, OfExpertsItReadsWhatRowsChoose) {
  const auto formula =
      PassFormula::fit(samples_of(kShapes, [](const PassWork& work) { return pass_s(kMachine, work); }));
  PassWork work{stage_of(1024, 12, {1, 1}, 0), 3, 0};
  const double of_all = formula.pass_s(work);
  work.stage.expert_bytes = work.stage.weight_bytes / 2;
  work.stage.expert_share = 0.25;
  const double unread = work.stage.expert_bytes * 0.75 * 0.75 * 0.75;
  EXPECT_NEAR(of_all - formula.pass_s(work), unread / 20e9, 1e-3 * unread / 20e9);
}

TEST(PassFormula, PredictsShapesThatItHasNotSeen) {
  const auto samples = samples_of(kShapes, [](const PassWork& work) { return pass_s(kMachine, work); });
  EXPECT_LT(left_out_error(samples).worst, 1e-6);
  std::mt19937 random(1);
  std::normal_distribution<double> noise(1, 0.03);
  const auto noisy = samples_of(kShapes, [&](const PassWork& work) { return noise(random) * pass_s(kMachine, work); });
  const FitError own = fit_error(PassFormula::fit(noisy), noisy), left_out = left_out_error(noisy);
  EXPECT_LT(own.median, 0.03);
  EXPECT_LT(left_out.median, 0.035);
  EXPECT_LT(left_out.worst, 0.2);
  EXPECT_GT(left_out.worst, own.worst);
}

// A machine that is faster the more there is to sum has no such formula: coefficients stay at 0 or above.
TEST(PassFormula, HasNoNegativeCoefficients) {
  auto strange = kMachine;
  strange[5] = -10e-6;
  const auto samples = samples_of(kShapes, [&](const PassWork& work) { return pass_s(strange, work); });
  const PassFormula formula = PassFormula::fit(samples);
  for (const double coefficient : formula.coefficients()) EXPECT_GE(coefficient, 0);
  EXPECT_EQ(formula.coefficients()[5], 0);
  EXPECT_GT(fit_error(formula, samples).worst, 1e-3);
}

// On one rank nothing tells what sums and stages cost.
TEST(PassFormula, KnowsOnlyWhatSamplesTell) {
  const auto samples = samples_of({{1, 1}}, [](const PassWork& work) { return pass_s(kMachine, work); });
  const PassFormula formula = PassFormula::fit(samples);
  EXPECT_LT(fit_error(formula, samples).worst, 1e-7);
  EXPECT_EQ(formula.coefficients()[5], 0);
  EXPECT_EQ(formula.coefficients()[6], 0);
  EXPECT_EQ(formula.coefficients()[7], 0);
  EXPECT_EQ(left_out_error(samples).worst, 0);
}

}  // namespace
}  // namespace computron

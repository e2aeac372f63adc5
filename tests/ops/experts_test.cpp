// Mixtures of experts on devices that route by themselves: against a loop in double precision, with the same bits
// whatever is multiplied together and whatever else is in the batch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/ops/ops_fixture.h"
#include "tests/ops/quantised.h"

namespace computron::testing {
namespace {

// A row's experts in ascending order, and their weights.
struct Choice {
  std::vector<int> experts;
  std::vector<double> weights;
};

std::vector<Choice> choose(const Floats& logits, int experts, int per_token,
                           RouterSoftmax softmax = RouterSoftmax::kChosen) {
  std::vector<Choice> choices;
  for (std::size_t first = 0; first < logits.size(); first += static_cast<std::size_t>(experts)) {
    std::vector<int> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](int expert) {
      return static_cast<double>(logits[first + static_cast<std::size_t>(expert)]);
    };
    std::ranges::stable_sort(order, [&](int a, int b) { return logit(a) > logit(b); });
    const double best = logit(order.front());
    double all = 0;
    for (const int expert : order) all += std::exp(logit(expert) - best);
    order.resize(static_cast<std::size_t>(per_token));
    std::ranges::sort(order);
    Choice choice{order, {}};
    for (const int expert : order) choice.weights.push_back(std::exp(logit(expert) - best));
    const double chosen = std::accumulate(choice.weights.begin(), choice.weights.end(), 0.0);
    const double sum = softmax == RouterSoftmax::kAll ? all : chosen;
    for (double& weight : choice.weights) weight /= sum;
    choices.push_back(std::move(choice));
  }
  return choices;
}

class ExpertsTest : public OpsTest {
 protected:
  void SetUp() override {
    if (!ops().routes_experts()) GTEST_SKIP() << "this device leaves the choice to the host";
  }
  Ops& ops() { return bench_.ops(); }
  Stream& stream() { return bench_.stream(); }

  ExpertRoutes route(const Floats& logits, int rows, int experts, int per_token, int real_rows = -1,
                     RouterSoftmax softmax = RouterSoftmax::kChosen) {
    const RoutingRule rule{experts, per_token, softmax};
    const std::size_t bytes = ops().routing_bytes(rows, rule);
    const ExpertRoutes routes{bench_.put_bytes(std::vector<std::byte>(bytes, std::byte{0x7f})), rows, rule};
    const auto& real = bench_.keep(real_rows < 0 ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{real_rows});
    ops().route(stream(), bench_.put(logits, rows, experts), real, routes);
    return routes;
  }

  // One product by the chosen experts, and their weighted sum, [rows, out].
  Floats mixture(const Activations& x, const std::vector<Weight>& weights, const ExpertRoutes& routes, bool together,
                 const Vector& biases = {}) {
    const int out = weights.front().out;
    const Activations terms = bench_.empty(routes.positions(), out), sum = bench_.empty(routes.rows, out);
    ops().zero(stream(), sum);
    const auto add = [&](const std::vector<ExpertWeight>& some, ExpertRange range) {
      ops().expert_gemm(stream(), x, /*by_row=*/true, bench_.keep(some), biases, routes, Activation::kNone, terms);
      ops().mix_experts(stream(), terms, routes, range, sum);
    };
    std::vector<ExpertWeight> all;
    for (int expert = 0; expert < routes.rule.experts; ++expert) {
      all.push_back({expert, weights[static_cast<std::size_t>(expert)]});
      if (!together) add({all.back()}, {expert, expert + 1});
    }
    if (together) add(all, {0, routes.rule.experts});
    return bench_.get(sum);
  }

  static std::vector<double> exact(const Floats& x, const std::vector<Floats>& values,
                                   const std::vector<Choice>& choices, int in, int out, const Floats& biases = {}) {
    std::vector<double> sums;
    for (std::size_t row = 0; row < choices.size(); ++row) {
      for (int n = 0; n < out; ++n) {
        double sum = 0;
        for (std::size_t i = 0; i < choices[row].experts.size(); ++i) {
          const auto expert = static_cast<std::size_t>(choices[row].experts[i]);
          const Floats& weight = values[expert];
          if (!biases.empty()) {
            sum +=
                choices[row].weights[i] * biases[expert * static_cast<std::size_t>(out) + static_cast<std::size_t>(n)];
          }
          for (int k = 0; k < in; ++k) {
            sum += choices[row].weights[i] * x[row * static_cast<std::size_t>(in) + static_cast<std::size_t>(k)] *
                   weight[static_cast<std::size_t>(n) * static_cast<std::size_t>(in) + static_cast<std::size_t>(k)];
          }
        }
        sums.push_back(sum);
      }
    }
    return sums;
  }
};

// Few rows and several tiles of them, full and not; as many as warpgroups take; more experts than a launch takes, or
// than a block has threads; runs of rows that end within a tile; depths of whole and of odd pieces, of one step and of
// more than are under way.
TEST_P(ExpertsTest, MixWhatTheChosenOnesGive) {
  struct Case {
    int rows, experts, per_token, in, out;
  };
  for (const auto& [rows, experts, per_token, in, out] : {Case{1, 4, 2, 64, 40},
                                                          {7, 8, 2, 200, 72},
                                                          {70, 3, 2, 96, 130},
                                                          {5, 70, 8, 40, 16},
                                                          {9, 5, 1, 33, 20},
                                                          {20, 3, 1, 680, 30},
                                                          {300, 3, 2, 264, 200},
                                                          {170, 1, 1, 72, 300},
                                                          {40, 1100, 3, 8, 4}}) {
    std::vector<DType> types = bench_.narrow_types();
    types.push_back(DType::kF32);
    for (const DType type : types) {
      const auto what =
          fmt::format("{} rows, {} of {} experts, [{}, {}] {}", rows, per_token, experts, out, in, name_of(type));
      const Floats logits = random_floats(static_cast<std::size_t>(rows) * experts, 1);
      const Floats x = rounded_to(random_floats(static_cast<std::size_t>(rows) * in, 2), type);
      std::vector<Floats> values;
      std::vector<Weight> weights;
      for (int expert = 0; expert < experts; ++expert) {
        values.push_back(
            rounded_to(random_floats(static_cast<std::size_t>(out) * in, 3 + static_cast<unsigned>(expert)), type));
        weights.push_back(bench_.weight(values.back(), out, in, type, {64, 192}));
      }
      const ExpertRoutes routes = route(logits, rows, experts, per_token);
      const Activations input = bench_.put(x, rows, in, type);
      const Floats together = mixture(input, weights, routes, /*together=*/true);
      expect_close(together, exact(x, values, choose(logits, experts, per_token), in, out),
                   accumulated_tolerance(bench_.traits(), type), what);
      expect_same(mixture(input, weights, routes, /*together=*/false), together, what + ", one by one");
    }
  }
}

// By expert, then by row: rows of one block and of more than there are, experts that nobody chooses, ties, more choices
// than are read at once, rows of padding.
TEST_P(ExpertsTest, PairsLieInTheOrderOfExpertsAndRows) {
  struct Case {
    int rows, experts, per_token, real_rows;
  };
  for (const auto& [rows, experts, per_token, real_rows] : {Case{32, 20, 3, 32},
                                                            {33, 128, 10, 33},
                                                            {100, 128, 8, 90},
                                                            {61, 256, 2, 61},
                                                            {61, 512, 2, 50},
                                                            {50, 600, 40, 49},
                                                            {2100, 5, 2, 2090}}) {
    const auto what = fmt::format("{} of {} rows, {} of {} experts", real_rows, rows, per_token, experts);
    Floats logits = random_floats(static_cast<std::size_t>(rows) * experts, 1);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const bool is_rare = i % static_cast<std::size_t>(experts) % 5 == 2;
      logits[i] = std::round(logits[i] * 64) / 64 - (is_rare ? 2.0f : 0.0f);
    }
    const ExpertRoutes routes = route(logits, rows, experts, per_token, real_rows);
    std::vector<Choice> choices = choose(logits, experts, per_token);
    choices.resize(static_cast<std::size_t>(real_rows));
    Floats sorted, x;  // (row, expert); of all rows
    std::vector<double> sums(4 * static_cast<std::size_t>(rows));
    for (int expert = 0; expert < experts; ++expert) {
      for (std::size_t row = 0; row < choices.size(); ++row) {
        const auto found = std::ranges::find(choices[row].experts, expert);
        if (found == choices[row].experts.end()) continue;
        const double weight = choices[row].weights[static_cast<std::size_t>(found - choices[row].experts.begin())];
        for (std::size_t c = 0; c < 4; ++c) sums[4 * row + c] += weight * static_cast<double>(2 * sorted.size() + c);
        sorted.insert(sorted.end(), {static_cast<float>(row), static_cast<float>(expert)});
      }
    }
    sorted.resize(2 * static_cast<std::size_t>(routes.positions()), -7);  // untouched
    for (int row = 0; row < rows; ++row) x.insert(x.end(), {static_cast<float>(row), 1});
    std::vector<ExpertWeight> weights;
    for (int expert = 0; expert < experts; ++expert) {
      weights.push_back({expert, bench_.weight({1, 0, 0, static_cast<float>(expert)}, 2, 2, DType::kF32)});
    }
    const Activations out = bench_.put(Floats(sorted.size(), -7), routes.positions(), 2);
    ops().expert_gemm(stream(), bench_.put(x, rows, 2), /*by_row=*/true, weights, {}, routes, Activation::kNone, out);
    EXPECT_EQ(bench_.get(out), sorted) << what;

    Floats counted(4 * static_cast<std::size_t>(routes.positions()));
    std::iota(counted.begin(), counted.end(), 0.0f);
    const Activations sum = bench_.empty(rows, 4);
    ops().zero(stream(), sum);
    ops().mix_experts(stream(), bench_.put(counted, routes.positions(), 4), routes, {0, experts}, sum);
    expect_close(bench_.get(sum), sums, 4e-6, what);
  }
}

// A device may choose in another way among many.
TEST_P(ExpertsTest, ExpertsThatNobodyChoosesChangeNothing) {
  constexpr int kRows = 40, kExperts = 100, kPerToken = 9;
  const Floats logits = random_floats(kRows * kExperts, 1);
  const Floats terms = random_floats(kRows * kPerToken * 4, 2);
  for (const RouterSoftmax softmax : {RouterSoftmax::kChosen, RouterSoftmax::kAll}) {
    const auto mixed = [&](int experts) {
      Floats more;
      for (int row = 0; row < kRows; ++row) {
        const Floats own = row_of(logits, row, kExperts);
        more.insert(more.end(), own.begin(), own.end());
        more.resize(more.size() + static_cast<std::size_t>(experts - kExperts), -INFINITY);
      }
      const ExpertRoutes routes = route(more, kRows, experts, kPerToken, -1, softmax);
      const Activations sum = bench_.empty(kRows, 4);
      ops().zero(stream(), sum);
      ops().mix_experts(stream(), bench_.put(terms, routes.positions(), 4), routes, {0, experts}, sum);
      return bench_.get(sum);
    };
    const Floats few = mixed(kExperts);
    for (const int experts : {200, 400, 600}) expect_same(mixed(experts), few, fmt::format("{} experts", experts));
  }
}

// Weighted by the softmax over all experts, with biases: several tiles of tensor cores, and a depth that they do not
// take.
TEST_P(ExpertsTest, BiasesJoinAndWeightsMaySumToLessThanOne) {
  constexpr int kRows = 70, kExperts = 40, kPerToken = 6, kOut = 72;
  const DType type = bench_.narrow_types().front();
  for (const int in : {64, 33}) {
    const Floats logits = random_floats(kRows * kExperts, 1), biases = random_floats(kExperts * kOut, 9);
    const Floats x = rounded_to(random_floats(static_cast<std::size_t>(kRows) * in, 2), type);
    std::vector<Floats> values;
    std::vector<Weight> weights;
    for (unsigned expert = 0; expert < kExperts; ++expert) {
      values.push_back(rounded_to(random_floats(static_cast<std::size_t>(kOut) * in, 3 + expert), type));
      weights.push_back(bench_.weight(values.back(), kOut, in, type));
    }
    const ExpertRoutes routes = route(logits, kRows, kExperts, kPerToken, -1, RouterSoftmax::kAll);
    const std::vector<Choice> choices = choose(logits, kExperts, kPerToken, RouterSoftmax::kAll);
    EXPECT_LT(std::accumulate(choices[0].weights.begin(), choices[0].weights.end(), 0.0), 0.5);
    const Activations input = bench_.put(x, kRows, in, type);
    const Vector of_all = bench_.vector(biases);
    const Floats together = mixture(input, weights, routes, /*together=*/true, of_all);
    expect_close(together, exact(x, values, choices, in, kOut, biases), accumulated_tolerance(bench_.traits(), type),
                 fmt::format("depth {}", in));
    expect_same(mixture(input, weights, routes, /*together=*/false, of_all), together, "one by one");
  }
}

// With 70 rows experts have some, with 300 as many as warpgroups take.
TEST_P(ExpertsTest, ARowHasTheSameBitsAloneAndInAnyBatch) {
  constexpr int kMostRows = 300, kExperts = 4, kPerToken = 2, kIn = 136, kOut = 64;
  const DType type = bench_.narrow_types().front();
  const Floats logits = random_floats(kMostRows * kExperts, 1), x = rounded_to(random_floats(kMostRows * kIn, 2), type);
  std::vector<Weight> weights;
  for (unsigned expert = 0; expert < kExperts; ++expert) {
    weights.push_back(bench_.weight(rounded_to(random_floats(kOut * kIn, 3 + expert), type), kOut, kIn, type));
  }
  const auto of_rows = [&](int first, int rows) {
    const auto part = [&](const Floats& of, int columns) {
      return Floats(of.begin() + first * columns, of.begin() + (first + rows) * columns);
    };
    return mixture(bench_.put(part(x, kIn), rows, kIn, type), weights,
                   route(part(logits, kExperts), rows, kExperts, kPerToken), true);
  };
  const Floats all = of_rows(0, kMostRows), some = of_rows(0, 70);
  for (const int row : {0, 3, 69, 299}) {
    const Floats alone = of_rows(row, 1);
    expect_same(alone, row_of(all, row, kOut), fmt::format("row {} of all", row));
    if (row < 70) expect_same(alone, row_of(some, row, kOut), fmt::format("row {} of some", row));
  }
}

// In any order, with some left out: their positions stay as they are.
TEST_P(ExpertsTest, SomeExpertsAreMultipliedInAnyOrder) {
  constexpr int kRows = 5, kExperts = 4, kPerToken = 4, kIn = 8, kOut = 1;
  const DType type = bench_.narrow_types().front();
  const ExpertRoutes routes = route(random_floats(kRows * kExperts, 1), kRows, kExperts, kPerToken);
  std::vector<Weight> weights;
  for (int expert = 0; expert < kExperts; ++expert) {
    weights.push_back(bench_.weight(Floats(kIn, static_cast<float>(1 << expert)), kOut, kIn, type));
  }
  const Activations ones = bench_.put(Floats(kRows * kIn, 0.125f), kRows, kIn, type);
  const Activations out = bench_.put(Floats(kRows * kPerToken, -7), kRows * kPerToken, kOut);
  const std::vector<ExpertWeight> some = {{3, weights[3]}, {1, weights[1]}};
  ops().expert_gemm(stream(), ones, /*by_row=*/true, some, {}, routes, Activation::kNone, out);
  const Floats values = bench_.get(out);
  for (int position = 0; position < kRows * kPerToken; ++position) {
    const int expert = position / kRows;
    EXPECT_EQ(values[static_cast<std::size_t>(position)], expert % 2 == 1 ? 1 << expert : -7) << position;
  }
}

TEST_P(ExpertsTest, QuantisedOnesGiveWhatTheirValuesGive) {
  constexpr int kExperts = 3, kPerToken = 2, kOut = 72;
  const DType values_type = quantised_values(ops());
  for (const auto& [rows, in] : {std::pair{11, 33}, {11, 200}, {40, 328}, {225, 72}}) {
    const Floats logits = random_floats(static_cast<std::size_t>(rows) * kExperts, 1);
    const Floats x = random_floats(static_cast<std::size_t>(rows) * in, 2, values_type);
    const ExpertRoutes routes = route(logits, rows, kExperts, kPerToken);
    const Activations input = bench_.put(x, rows, in, values_type);
    bool is_first = true;
    for (const WeightType& type : quantised_types(values_type)) {
      if (!is_taken(bench_, type) || (rows > 100 && !std::exchange(is_first, false))) continue;
      std::vector<Weight> of_codes, of_values;
      for (unsigned expert = 0; expert < kExperts; ++expert) {
        const QuantisedWeight w = random_quantised(type, kOut, in, 5 + expert, ordinary_scales());
        of_codes.push_back(bench_.weight(w.type, w.out, w.in, w.codes, w.scale_bytes(), {64}, w.factors));
        of_values.push_back(bench_.weight(w.values(), w.out, w.in, w.type.values));
      }
      const auto what = fmt::format("{} rows, [{}, {}] {}", rows, kOut, in, describe(type));
      expect_like_values(bench_, type, mixture(input, of_codes, routes, true), mixture(input, of_values, routes, true),
                         what);
    }
  }
}

// Routes lie where those of another layer lay, which had more experts with something to do.
TEST_P(ExpertsTest, NothingIsLeftOfEarlierRoutes) {
  constexpr int kRows = 6, kExperts = 6, kPerToken = 2, kIn = 8, kOut = 4;
  const DType type = bench_.narrow_types().front();
  std::vector<Weight> weights;
  for (unsigned expert = 0; expert < kExperts; ++expert) {
    weights.push_back(bench_.weight(rounded_to(random_floats(kOut * kIn, 3 + expert), type), kOut, kIn, type));
  }
  Floats alike;
  for (int row = 0; row < kRows; ++row) alike.insert(alike.end(), {0, 2, 0, 0, 1, 0});
  const Activations x = bench_.put(rounded_to(random_floats(kRows * kIn, 2), type), kRows, kIn, type);
  const ExpertRoutes routes = route(random_floats(kRows * kExperts, 1), kRows, kExperts, kPerToken);
  ops().route(stream(), bench_.put(alike, kRows, kExperts), {}, routes);
  expect_same(mixture(x, weights, routes, true), mixture(x, weights, route(alike, kRows, kExperts, kPerToken), true),
              "the same memory again");
}

TEST_P(ExpertsTest, TiesGoToTheSmallerNumberAndPaddingNowhere) {
  constexpr int kExperts = 5, kIn = 8, kOut = 1;
  const Floats logits = {1, 1, 1, 1, 1, 0, 2, 2, 2, 0, 9, 9, 9, 9, 9};
  std::vector<Weight> weights;
  for (int expert = 0; expert < kExperts; ++expert) {
    weights.push_back(bench_.weight(Floats(kIn, static_cast<float>(1 << expert)), kOut, kIn, DType::kF32));
  }
  const Activations ones = bench_.put(Floats(3 * kIn, 0.125f), 3, kIn);
  const ExpertRoutes routes = route(logits, 3, kExperts, /*per_token=*/2, /*real_rows=*/2);
  const Floats sums = mixture(ones, weights, routes, true);
  EXPECT_EQ(sums, (Floats{(1 + 2) / 2.0f, (2 + 4) / 2.0f, 0}));
}

// A row of padding aside: whoever looks at the result sees that it is none.
TEST_P(ExpertsTest, LogitsThatAreNoNumbersGiveNone) {
  constexpr int kExperts = 3, kIn = 8;
  const float nan = std::nanf("");
  std::vector<Weight> weights;
  for (int expert = 0; expert < kExperts; ++expert) {
    weights.push_back(bench_.weight(Floats(kIn, 1), 1, kIn, DType::kF32));
  }
  const Floats logits = {nan, nan, nan, nan, 1, nan, 1, INFINITY, 2, 1, 2, 3, nan, nan, nan};
  const ExpertRoutes routes = route(logits, 5, kExperts, /*per_token=*/2, /*real_rows=*/4);
  const Floats sums = mixture(bench_.put(Floats(5 * kIn, 0.125f), 5, kIn), weights, routes, true);
  for (const int row : {0, 1, 2}) EXPECT_TRUE(std::isnan(sums[static_cast<std::size_t>(row)])) << row;
  EXPECT_EQ(sums[3], 1);
  EXPECT_EQ(sums[4], 0);
}

TEST_P(ExpertsTest, GatesAreActivatedWhereTheExpertsAre) {
  constexpr int kExperts = 3;
  const Floats logits = {3, 2, 1, 1, 3, 2, 2, 1, 3};  // each row first chooses another expert
  const ExpertRoutes routes = route(logits, 3, kExperts, /*per_token=*/1);
  for (const int columns : {5, 8}) {
    const auto count = 3 * static_cast<std::size_t>(columns);
    const Floats in = random_floats(2 * count, 4);
    const Activations gates = bench_.put(in, 3, 2 * columns), whole = bench_.empty(3, columns);
    const Activations parts = bench_.put(Floats(count, -7), 3, columns);
    ops().activate_gate(stream(), Activation::kSilu, gates, whole);
    ops().activate_expert_gates(stream(), Activation::kSilu, gates, routes, {1, 2}, parts);
    const Floats expected = bench_.get(whole), actual = bench_.get(parts);
    for (int row = 0; row < 3; ++row) {
      const Floats untouched(static_cast<std::size_t>(columns), -7);
      expect_same(row_of(actual, row, columns), row == 1 ? row_of(expected, row, columns) : untouched,
                  fmt::format("position {}, {} columns", row, columns));
    }
  }
}

TEST_P(ExpertsTest, WrongShapesAreRefused) {
  const ExpertRoutes routes = route({1, 2, 3}, 1, 3, 2);
  const Weight weight = bench_.weight(Floats(32), 4, 8, DType::kF32),
               other = bench_.weight(Floats(64), 8, 8, DType::kF32);
  const Activations x = bench_.put(Floats(8), 1, 8), out = bench_.empty(2, 4);
  const auto multiply = [&](const Activations& from, const std::vector<ExpertWeight>& weights, const Activations& to,
                            const Vector& biases = {}) {
    ops().expert_gemm(stream(), from, true, weights, biases, routes, Activation::kNone, to);
  };
  EXPECT_NO_THROW(multiply(x, {{0, weight}}, out));
  EXPECT_NO_THROW(multiply(x, {{0, weight}}, out, bench_.vector(Floats(12))));
  EXPECT_THROW(multiply(x, {{0, weight}}, out, bench_.vector(Floats(4))), Error);
  EXPECT_THROW(multiply(x, {{0, weight}, {1, other}}, out), Error);
  EXPECT_THROW(multiply(x, {{0, weight}}, bench_.empty(1, 4)), Error);
  EXPECT_THROW(multiply(bench_.put(Floats(4), 1, 4), {{0, weight}}, out), Error);
  EXPECT_THROW(ops().route(stream(), bench_.put(Floats(2), 1, 2), {}, routes), Error);
}

COMPUTRON_ON_EVERY_DEVICE(ExpertsTest);

}  // namespace
}  // namespace computron::testing

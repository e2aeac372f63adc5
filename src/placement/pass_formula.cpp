#include "computron/placement/pass_formula.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "computron/base/error.h"

namespace computron {
namespace {

using Terms = PassFormula::Terms;
constexpr std::size_t kTerms = PassFormula::kTerms;
using TermSet = unsigned;  // a bit a term

// Of matrices that a pass reads: of experts those that rows choose which know nothing of each other.
double bytes_read(const StageWork& stage, int rows) {
  return stage.weight_bytes - stage.expert_bytes * std::pow(1 - stage.expert_share, rows);
}

// What each term of the formula counts.
Terms units_of(const PassWork& work) {
  const StageWork& stage = work.stage;
  const double row_bytes = 4.0 * work.rows * stage.width, tp = stage.tp;
  return {1,
          static_cast<double>(stage.layers),
          bytes_read(stage, work.rows),
          work.rows * stage.flops_per_row,
          static_cast<double>(work.rows) * work.context * stage.cache_token_bytes,
          stage.sums * std::log2(tp),
          stage.sums * row_bytes * (tp - 1) / tp,
          stage.receives ? row_bytes : 0};
}

double dot(const Terms& a, const Terms& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// Least squares of |A x - 1|, with rows of A divided by what was measured, for some of the columns at a time. Columns
// have length 1, so that bytes and calls have the same weight.
class Equations {
 public:
  explicit Equations(std::span<const PassSample> samples) {
    for (const PassSample& sample : samples) add(sample);
    for (std::size_t i = 0; i < kTerms; ++i) length_[i] = std::sqrt(products_[i][i]);
  }

  // Columns that are not all 0.
  TermSet terms() const {
    TermSet terms = 0;
    for (std::size_t i = 0; i < kTerms; ++i) terms |= length_[i] > 0 ? TermSet{1} << i : 0;
    return terms;
  }

  // x of the columns `terms`, 0 of the others; none where the columns do not tell each other apart. By Cholesky.
  std::optional<Terms> solved(TermSet terms) const {
    std::array<std::size_t, kTerms> at{};
    std::size_t n = 0;
    for (std::size_t i = 0; i < kTerms; ++i) {
      if ((terms >> i & 1) != 0) at[n++] = i;
    }
    std::array<Terms, kTerms> lower{};
    Terms x{};
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double rest = product(at[i], at[j]);
        for (std::size_t k = 0; k < j; ++k) rest -= lower[i][k] * lower[j][k];
        if (i == j && rest < kSingular) return std::nullopt;
        lower[i][j] = i == j ? std::sqrt(rest) : rest / lower[j][j];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      double rest = sums_[at[i]] / length_[at[i]];
      for (std::size_t k = 0; k < i; ++k) rest -= lower[i][k] * x[at[k]];
      x[at[i]] = rest / lower[i][i];
    }
    for (std::size_t i = n; i-- > 0;) {
      double rest = x[at[i]];
      for (std::size_t k = i + 1; k < n; ++k) rest -= lower[k][i] * x[at[k]];
      x[at[i]] = rest / lower[i][i];
    }
    for (std::size_t i = 0; i < n; ++i) x[at[i]] /= length_[at[i]];
    return x;
  }

  // The sum of squares, but for a constant.
  double error(const Terms& x) const {
    double error = 0;
    for (std::size_t i = 0; i < kTerms; ++i) error += x[i] * (dot(products_[i], x) - 2 * sums_[i]);
    return error;
  }

 private:
  static constexpr double kSingular = 1e-10;

  void add(const PassSample& sample) {
    Terms row = units_of(sample.work);
    for (double& value : row) value /= sample.seconds;
    for (std::size_t i = 0; i < kTerms; ++i) {
      sums_[i] += row[i];
      for (std::size_t j = 0; j < kTerms; ++j) products_[i][j] += row[i] * row[j];
    }
  }
  double product(std::size_t i, std::size_t j) const { return products_[i][j] / length_[i] / length_[j]; }

  std::array<Terms, kTerms> products_{};
  Terms sums_{}, length_{};
};

double relative_error(const PassFormula& formula, const PassSample& sample) {
  return std::abs(formula.pass_s(sample.work) / sample.seconds - 1);
}

FitError summed_up(std::vector<double> errors) {
  if (errors.empty()) return {};
  std::ranges::sort(errors);
  return {.worst = errors.back(), .median = errors[errors.size() / 2]};
}

}  // namespace

// The best of all sets of terms whose own least squares are not negative: of eight terms there are 255.
PassFormula PassFormula::fit(std::span<const PassSample> samples) {
  ensure(!samples.empty(), "a formula of no samples");
  const Equations equations(samples);
  PassFormula best;
  double least = std::numeric_limits<double>::infinity();
  const TermSet known = equations.terms();
  for (TermSet terms = 1; terms < TermSet{1} << kTerms; ++terms) {
    if ((terms & ~known) != 0) continue;
    const std::optional<Terms> x = equations.solved(terms);
    if (!x || std::ranges::any_of(*x, [](double value) { return value < 0; })) continue;
    const double error = equations.error(*x);
    if (error >= least) continue;
    least = error;
    best.coefficients_ = *x;
  }
  return best;
}

double PassFormula::pass_s(const PassWork& work) const { return dot(units_of(work), coefficients_); }

FitError fit_error(const PassFormula& formula, std::span<const PassSample> samples) {
  std::vector<double> errors;
  for (const PassSample& sample : samples) errors.push_back(relative_error(formula, sample));
  return summed_up(std::move(errors));
}

FitError left_out_error(std::span<const PassSample> samples) {
  std::vector<GroupShape> shapes;
  for (const PassSample& sample : samples) {
    if (std::ranges::find(shapes, sample.shape) == shapes.end()) shapes.push_back(sample.shape);
  }
  if (shapes.size() < 2) return {};
  std::vector<double> errors;
  for (const GroupShape& shape : shapes) {
    std::vector<PassSample> others;
    for (const PassSample& sample : samples) {
      if (sample.shape != shape) others.push_back(sample);
    }
    const PassFormula formula = PassFormula::fit(others);
    for (const PassSample& sample : samples) {
      if (sample.shape == shape) errors.push_back(relative_error(formula, sample));
    }
  }
  return summed_up(std::move(errors));
}

}  // namespace computron

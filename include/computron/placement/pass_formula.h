// What a pass of any model on any shape of group would take, told from passes that were measured on the same machine.
//
//   pass of m rows on a stage =   fixed + a layer's share × layers + weight bytes ÷ memory rate (of experts' bytes the
//                                 share 1 - (1 - chosen ÷ experts)^m) + m × flops a row ÷ peak
//                               + bytes of keys and values read ÷ their rate
//                               + sums over ranks × (latency × log2 tp + m × width × 4 bytes × (tp - 1) ÷ tp ÷ rate)
//                               + m × width × 4 bytes from the stage before ÷ rate
//
// Every coefficient is the time of a unit, and none is negative: the least squares of what is relatively wrong.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "computron/placement/profile.h"

namespace computron {

// What a pass of one stage of a model has to do on each rank.
struct StageWork {
  double weight_bytes = 0;       // of matrices that rows are multiplied with
  double expert_bytes = 0;       // of these, those of experts,
  double expert_share = 0;       // of which each row chooses this share
  double flops_per_row = 0;      // of all that a row is multiplied with
  double cache_token_bytes = 0;  // keys and values of a token
  int layers = 0;
  int sums = 0;   // over the ranks of the stage
  int width = 0;  // numbers of a row that is summed, or comes from the stage before
  int tp = 1;
  bool receives = false;  // there is a stage before it
};

struct PassWork {
  StageWork stage;
  int rows = 1;
  int context = 0;  // tokens before each row, whose keys and values are read
};

struct PassSample {
  GroupShape shape;
  PassWork work;
  double seconds = 0;  // above 0
};

class PassFormula {
 public:
  static constexpr std::size_t kTerms = 8;
  using Terms = std::array<double, kTerms>;

  // Of at least one sample. What no sample tells apart from something else counts for nothing, or for that.
  static PassFormula fit(std::span<const PassSample> samples);

  double pass_s(const PassWork& work) const;
  // Seconds of a unit of each term of the formula, in its order.
  const Terms& coefficients() const { return coefficients_; }

 private:
  Terms coefficients_ = {};
};

// How far a formula is from samples: of |predicted ÷ measured - 1| the largest and the median; 0 of none.
struct FitError {
  double worst = 0, median = 0;
};
FitError fit_error(const PassFormula& formula, std::span<const PassSample> samples);
// The same where each shape's samples are predicted by a formula that was fitted to those of all other shapes: what is
// to be expected of shapes that are not measured. 0 where there is one shape only.
FitError left_out_error(std::span<const PassSample> samples);

}  // namespace computron

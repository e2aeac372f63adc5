// What the passes of a record took, for passes of about their size that were not there.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "computron/plan/record.h"
#include "computron/sched/cost_model.h"

namespace computron {

// Passes of a model whose rows have the same power of two are of one size. They are handed out in the order of the
// record, and from the front again behind the last, so that what varied varies as much, and pipelines wait for it.
class RecordedPasses {
 public:
  // Borrows `steps`. `stage_s` says what a stage takes instead of its seconds in the record. `costs` have a scheduler's
  // beliefs and are told the mean of each size.
  RecordedPasses(const std::vector<Record::Step>& steps, const std::function<double(double)>& stage_s, CostModel costs);

  const CostModel& costs() const { return costs_; }
  // By stage, of the next pass of its size, in proportion to the rows; empty: none was of that size.
  std::vector<double> next_s(const Step& step);

 private:
  struct Pass {
    int rows;
    std::vector<double> stage_s;
  };
  struct Size {
    std::vector<Pass> passes;
    std::size_t next = 0;
  };

  std::map<std::pair<ModelId, int>, Size> sizes_;  // by model and power of two of rows
  CostModel costs_;
};

}  // namespace computron

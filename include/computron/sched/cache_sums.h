// Frames of the caches of models with running sequences, on each stage, summed up over models: what a question about
// all the others costs is a walk over urgencies, which are few, and none over models, of which hundreds may ride in a
// pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "computron/base/types.h"

namespace computron {

class CacheSums {
 public:
  // Of a model: whether it has sequences that go on, and what of its cache is in use and will be wanted beyond what it
  // has, [stage].
  struct Part {
    bool goes_on = false;
    std::int32_t urgency = 0;
    std::vector<int> in_use = {}, to_come = {};
  };

  // `families`: [model], of SchedulerState. Nobody has a cache.
  explicit CacheSums(std::vector<int> families);

  // In place of what the model had before; a part without stages: it has no running sequences.
  void set(ModelId model, Part part);

  // In use by the others that go on and are no less urgent.
  int in_use_beside(ModelId model, std::size_t stage, std::int32_t urgency) const;
  // To come for the other members of its family that are no less urgent, but for `aside`, too.
  int to_come_beside(ModelId model, ModelId aside, std::size_t stage, std::int32_t urgency) const;

 private:
  struct Sum {
    int models = 0;
    std::vector<int> frames;  // [stage]
  };
  using Sums = std::map<std::pair<int, std::int32_t>, Sum>;  // by family and urgency
  void count(ModelId model, int sign);
  static void add(Sums& sums, std::pair<int, std::int32_t> key, const std::vector<int>& frames, int sign);
  static int up_to(const Sums& sums, int family, std::int32_t urgency, std::size_t stage);

  std::vector<int> families_;  // [model]
  std::vector<Part> parts_;    // [model]
  Sums in_use_, to_come_;      // the former's family is 0
};

}  // namespace computron

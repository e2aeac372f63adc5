#include "computron/sched/cache_sums.h"

namespace computron {

CacheSums::CacheSums(std::vector<int> families) : families_(std::move(families)), parts_(families_.size()) {}

void CacheSums::add(Sums& sums, std::pair<int, std::int32_t> key, const std::vector<int>& frames, int sign) {
  Sum& sum = sums[key];
  sum.frames.resize(frames.size());
  for (std::size_t stage = 0; stage < frames.size(); ++stage) sum.frames[stage] += sign * frames[stage];
  if ((sum.models += sign) == 0) sums.erase(key);
}

void CacheSums::set(ModelId model, Part part) {
  count(model, -1);
  parts_[model] = std::move(part);
  count(model, 1);
}

void CacheSums::count(ModelId model, int sign) {
  const Part& part = parts_[model];
  if (part.in_use.empty()) return;
  if (part.goes_on) add(in_use_, {0, part.urgency}, part.in_use, sign);
  const int family = families_[model];
  if (family >= 0) add(to_come_, {family, part.urgency}, part.to_come, sign);
}

int CacheSums::up_to(const Sums& sums, int family, std::int32_t urgency, std::size_t stage) {
  int frames = 0;
  for (auto sum = sums.lower_bound({family, INT32_MIN}); sum != sums.end() && sum->first <= std::pair(family, urgency);
       ++sum) {
    frames += sum->second.frames[stage];
  }
  return frames;
}

int CacheSums::in_use_beside(ModelId model, std::size_t stage, std::int32_t urgency) const {
  const Part& own = parts_[model];
  const bool counted = !own.in_use.empty() && own.goes_on && own.urgency <= urgency;
  return up_to(in_use_, 0, urgency, stage) - (counted ? own.in_use[stage] : 0);
}

int CacheSums::to_come_beside(ModelId model, ModelId aside, std::size_t stage, std::int32_t urgency) const {
  const int family = families_[model];
  if (family < 0) return 0;
  int frames = up_to(to_come_, family, urgency, stage);
  const auto leave_out = [&](ModelId other) {
    const Part& part = parts_[other];
    if (families_[other] == family && !part.to_come.empty() && part.urgency <= urgency) frames -= part.to_come[stage];
  };
  leave_out(model);
  if (aside != model) leave_out(aside);
  return frames;
}

}  // namespace computron

#include "computron/dispatch/stealing.h"

#include <algorithm>
#include <cmath>

namespace computron {
namespace {

constexpr int kVictimsTried = 3;  // those with most work

// Seconds that a request of the model takes of a group when all its passes are full, and those of the thief.
struct Rates {
  double victim_s, thief_s;
};

Rates rates(const ServingGroup& victim, ModelId model, const ServingGroup& thief, ModelId thiefs) {
  const double victim_s = victim.work_s() / static_cast<double>(victim.scheduler().open().count());
  const double slower = thief.scheduler().costs().pass_s(thiefs, 1) / victim.scheduler().costs().pass_s(model, 1);
  return {victim_s, slower * victim_s};
}

// How many requests for the victim's model the thief should take.
std::size_t amount(const ServingGroup& victim, ModelId model, const ServingGroup& thief, ModelId thiefs) {
  const std::size_t half = (victim.scheduler().waiting(model) + 1) / 2;
  if (half == 0) return 0;
  const Rates rate = rates(victim, model, thief, thiefs);
  const double swap_s = thief.swap_s(thiefs);
  const double sooner_s = victim.work_s() - thief.work_s() - swap_s;  // that the thief would end
  const double balanced = std::floor(sooner_s / (rate.victim_s + rate.thief_s) + 1e-6);
  const auto requests = static_cast<std::size_t>(std::clamp(balanced, 0.0, static_cast<double>(half)));
  return static_cast<double>(requests) * rate.victim_s > swap_s ? requests : 0;
}

}  // namespace

std::optional<Theft> worth_stealing(std::span<const ServingGroup> groups, std::size_t thief,
                                    std::span<const std::size_t> victims) {
  std::vector<std::size_t> loaded;
  for (const std::size_t victim : victims) {
    if (groups[victim].scheduler().waiting() > 0) loaded.push_back(victim);
  }
  const auto tried = loaded.begin() + std::min<std::ptrdiff_t>(kVictimsTried, std::ssize(loaded));
  std::partial_sort(loaded.begin(), tried, loaded.end(),
                    [groups](std::size_t a, std::size_t b) { return groups[a].work_s() > groups[b].work_s(); });
  for (auto victim = loaded.begin(); victim != tried; ++victim) {
    Theft best{.from = *victim};
    for (const ModelId model : groups[*victim].scheduler().open().models()) {
      const ModelId job_model = groups[*victim].job_model(model);
      const auto thiefs = groups[thief].local(job_model);
      const std::size_t requests = thiefs ? amount(groups[*victim], model, groups[thief], *thiefs) : 0;
      if (requests > best.requests) best = {*victim, job_model, requests};
    }
    if (best.requests > 0) return best;
  }
  return std::nullopt;
}

}  // namespace computron

#include "computron/placement/swapping_group.h"

#include <algorithm>
#include <numeric>

namespace computron {

bool SwappingGroup::is_needed(const std::vector<StageBytes>& models, const SwapCosts& costs) {
  if (models.empty()) return false;
  for (std::size_t stage = 0; stage < models[0].size(); ++stage) {
    std::int64_t sum = 0;
    for (const StageBytes& model : models) sum += model[stage];
    if (sum > costs.device_bytes) return true;
  }
  return false;
}

SwappingGroup::SwappingGroup(const std::vector<StageBytes>& models, const SwapCosts& costs,
                             const std::vector<StageBytes>& link_bytes)
    : costs_(costs),
      free_(models.at(0).size(), costs.device_bytes),
      link_(free_.size()),
      link_next_(free_.size()),
      order_(models.size()) {
  for (const StageBytes& model : models) {
    for (std::size_t stage = 0; stage < free_.size(); ++stage) {
      bytes_.push_back(model[stage]);
      resident_.push_back(std::min(model[stage], free_[stage]));
      free_[stage] -= resident_.back();
    }
  }
  link_share_.resize(bytes_.size(), 1);
  for (std::uint32_t m = 0; m < link_bytes.size(); ++m) {
    for (std::size_t stage = 0; stage < free_.size(); ++stage) {
      if (models[m][stage] == 0) continue;
      link_share_[at(m, stage)] = static_cast<double>(link_bytes[m][stage]) / static_cast<double>(models[m][stage]);
    }
  }
  last_end_.resize(bytes_.size());
  missing_s_.resize(models.size());
  for (std::uint32_t m = 0; m < models.size(); ++m) note_missing(m);
  std::iota(order_.rbegin(), order_.rend(), 0u);
}

void SwappingGroup::note_missing(std::uint32_t model) {
  double most_s = 0;
  for (std::size_t stage = 0; stage < free_.size(); ++stage) {
    most_s = std::max(most_s, link_s(model, stage, static_cast<double>(missing(model, stage))));
  }
  missing_s_[model] = most_s;
}

// Beyond what is free; a model that is larger than the memory wants all of it.
std::int64_t SwappingGroup::room_wanted(std::uint32_t model, std::size_t stage) const {
  const std::int64_t most = std::min(bytes_[at(model, stage)], costs_.device_bytes);
  return most - resident_[at(model, stage)] - free_[stage];
}

// When the models that give up theirs have computed.
double SwappingGroup::room_at(std::uint32_t model, std::size_t stage) const {
  std::int64_t wanted = room_wanted(model, stage);
  double time = 0;
  for (const std::uint32_t other : order_) {
    if (wanted <= 0) break;
    const std::int64_t given = other == model ? 0 : resident_[at(other, stage)];
    if (given == 0) continue;
    wanted -= given;
    time = std::max(time, last_end_[at(other, stage)]);
  }
  return time;
}

// The pass is held up most by the first page that is copied or by the last one: between them copying and computing
// each go on at an even rate.
double SwappingGroup::pass_end(std::uint32_t model, std::size_t stage, double now, double start, double time_s) {
  const double end = start + time_s;
  link_next_[stage] = link_[stage];
  const std::int64_t lacking = missing(model, stage);
  if (lacking == 0) return end;
  const auto copied = static_cast<double>(lacking), all = static_cast<double>(bytes_[at(model, stage)]);
  const auto page = static_cast<double>(std::min(lacking, costs_.page_bytes));
  const double begin = std::max({now, link_[stage], room_at(model, stage)});
  link_next_[stage] = begin + link_s(model, stage, copied);
  const double behind_first = begin + link_s(model, stage, page) + time_s * (copied / all);
  const double behind_last = link_next_[stage] + time_s * (page / all);
  return std::max({end, behind_first, behind_last});
}

void SwappingGroup::predict(std::uint32_t model, double now, std::span<const double> times_s,
                            std::span<const double> clocks, std::span<double> ends) {
  double time = now;
  for (std::size_t stage = 0; stage < free_.size(); ++stage) {
    time = pass_end(model, stage, now, std::max(time, clocks[stage]), times_s[stage]);
    ends[stage] = time;
  }
}

void SwappingGroup::take_room(std::uint32_t model, std::size_t stage) {
  std::int64_t wanted = room_wanted(model, stage);
  for (const std::uint32_t other : order_) {
    if (wanted <= 0) break;
    if (other == model) continue;
    std::int64_t& resident = resident_[at(other, stage)];
    if (resident == 0) continue;
    const std::int64_t given = std::min(resident, wanted);
    resident -= given;
    free_[stage] += given;
    wanted -= given;
    note_missing(other);
  }
  std::int64_t& own = resident_[at(model, stage)];
  const std::int64_t most = std::min(bytes_[at(model, stage)], costs_.device_bytes);
  free_[stage] -= most - own;
  own = most;
}

void SwappingGroup::touch(std::uint32_t model) {
  if (order_.back() == model) return;
  order_.erase(std::ranges::find(order_, model));
  order_.push_back(model);
}

void SwappingGroup::commit(std::uint32_t model, std::span<const double> ends) {
  double copied = 0;
  for (std::size_t stage = 0; stage < free_.size(); ++stage) {
    last_end_[at(model, stage)] = ends[stage];
    const std::int64_t lacking = missing(model, stage);
    if (lacking == 0) continue;
    copied += static_cast<double>(lacking) * link_share_[at(model, stage)];
    link_[stage] = link_next_[stage];
    take_room(model, stage);
  }
  touch(model);
  if (copied == 0) return;
  ++swaps_;
  swapped_bytes_ += copied;
  note_missing(model);
}

}  // namespace computron

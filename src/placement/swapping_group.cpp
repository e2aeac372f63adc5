#include "computron/placement/swapping_group.h"

#include <algorithm>
#include <numeric>

namespace computron {
namespace {

// Each model's own.
std::vector<SwappingGroup::Piece> pieces_of(const std::vector<SwappingGroup::StageBytes>& models,
                                            const std::vector<SwappingGroup::StageBytes>& link_bytes) {
  std::vector<SwappingGroup::Piece> pieces;
  for (std::uint32_t m = 0; m < models.size(); ++m) {
    pieces.push_back({models[m], m < link_bytes.size() ? link_bytes[m] : SwappingGroup::StageBytes(), {m}});
  }
  return pieces;
}

}  // namespace

bool SwappingGroup::is_needed(const std::vector<StageBytes>& bytes, const SwapCosts& costs) {
  if (bytes.empty()) return false;
  for (std::size_t stage = 0; stage < bytes[0].size(); ++stage) {
    std::int64_t sum = 0;
    for (const StageBytes& each : bytes) sum += each[stage];
    if (sum > costs.device_bytes) return true;
  }
  return false;
}

SwappingGroup::SwappingGroup(const std::vector<StageBytes>& models, const SwapCosts& costs,
                             const std::vector<StageBytes>& link_bytes)
    : SwappingGroup(static_cast<std::uint32_t>(models.size()), pieces_of(models, link_bytes), costs) {}

SwappingGroup::SwappingGroup(std::uint32_t models, const std::vector<Piece>& pieces, const SwapCosts& costs)
    : costs_(costs),
      pieces_of_(models),
      turns_(pieces.size()),
      all_bytes_(models * pieces.at(0).bytes.size()),
      last_end_(all_bytes_.size()),
      missing_s_(models),
      free_(pieces[0].bytes.size(), costs.device_bytes),
      link_(free_.size()),
      link_next_(free_.size()),
      order_(models) {
  for (std::uint32_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    models_of_.push_back(piece.models);
    if (piece.models.size() > 1) common_.push_back(p);
    for (const std::uint32_t m : piece.models) pieces_of_[m].push_back(p);
    for (std::size_t stage = 0; stage < free_.size(); ++stage) {
      const std::int64_t bytes = piece.bytes[stage];
      bytes_.push_back(bytes);
      resident_.push_back(std::min(bytes, free_[stage]));
      free_[stage] -= resident_.back();
      for (const std::uint32_t m : piece.models) all_bytes_[at(m, stage)] += bytes;
      const bool is_coded = !piece.link_bytes.empty() && bytes > 0;
      link_share_.push_back(is_coded ? static_cast<double>(piece.link_bytes[stage]) / static_cast<double>(bytes) : 1);
    }
  }
  for (std::uint32_t m = 0; m < models; ++m) note_missing(m);
  std::iota(order_.rbegin(), order_.rend(), 0u);
}

std::int64_t SwappingGroup::resident_bytes(std::uint32_t model, std::size_t stage) const {
  std::int64_t bytes = 0;
  for (const std::uint32_t piece : pieces_of_[model]) bytes += resident_[at(piece, stage)];
  return bytes;
}

// That it has of the memory at once.
std::int64_t SwappingGroup::most_bytes(std::uint32_t model, std::size_t stage) const {
  return std::min(all_bytes_[at(model, stage)], costs_.device_bytes);
}

double SwappingGroup::missing_link_bytes(std::uint32_t model, std::size_t stage) const {
  double bytes = 0;
  for (const std::uint32_t piece : pieces_of_[model]) {
    const std::size_t p = at(piece, stage);
    bytes += static_cast<double>(bytes_[p] - resident_[p]) * link_share_[p];
  }
  return bytes;
}

// Of the first page that is missing, if one is.
double SwappingGroup::page_link_bytes(std::uint32_t model, std::size_t stage) const {
  const auto page = static_cast<double>(std::min(missing(model, stage), costs_.page_bytes));
  for (const std::uint32_t piece : pieces_of_[model]) {
    const std::size_t p = at(piece, stage);
    if (resident_[p] < bytes_[p]) return page * link_share_[p];
  }
  return 0;
}

void SwappingGroup::note_missing(std::uint32_t model) {
  double most_s = 0;
  for (std::size_t stage = 0; stage < free_.size(); ++stage) {
    most_s = std::max(most_s, missing_link_bytes(model, stage) / costs_.link_bytes_per_s);
  }
  missing_s_[model] = most_s;
}

// Calls visit(piece) for the resident pieces that may be given up for the model, in their order, until it returns
// false.
template <class Visit>
void SwappingGroup::visit_spare(std::uint32_t model, std::size_t stage, const Visit& visit) {
  for (const std::uint32_t piece : common_) turns_[piece] = 0;
  for (const std::uint32_t other : order_) {
    if (other == model) continue;
    for (auto piece = pieces_of_[other].rbegin(); piece != pieces_of_[other].rend(); ++piece) {
      const auto& models = models_of_[*piece];
      if (models.size() > 1 && ++turns_[*piece] < models.size()) continue;
      if (resident_[at(*piece, stage)] > 0 && !visit(*piece)) return;
    }
  }
}

// Beyond what is free; a model that is larger than the memory wants all of it.
std::int64_t SwappingGroup::room_wanted(std::uint32_t model, std::size_t stage) const {
  return most_bytes(model, stage) - resident_bytes(model, stage) - free_[stage];
}

// When the models that give up theirs have computed.
double SwappingGroup::room_at(std::uint32_t model, std::size_t stage) {
  std::int64_t wanted = room_wanted(model, stage);
  double time = 0;
  if (wanted <= 0) return time;
  visit_spare(model, stage, [&](std::uint32_t piece) {
    wanted -= resident_[at(piece, stage)];
    for (const std::uint32_t other : models_of_[piece]) time = std::max(time, last_end_[at(other, stage)]);
    return wanted > 0;
  });
  return time;
}

// The pass is held up most by the first page that is copied or by the last one: between them copying and computing
// each go on at an even rate.
double SwappingGroup::pass_end(std::uint32_t model, std::size_t stage, double now, double start, double time_s) {
  const double end = start + time_s;
  link_next_[stage] = link_[stage];
  const std::int64_t lacking = missing(model, stage);
  if (lacking == 0) return end;
  const auto copied = static_cast<double>(lacking), all = static_cast<double>(all_bytes_[at(model, stage)]);
  const auto page = static_cast<double>(std::min(lacking, costs_.page_bytes));
  const double begin = std::max({now, link_[stage], room_at(model, stage)});
  link_next_[stage] = begin + missing_link_bytes(model, stage) / costs_.link_bytes_per_s;
  const double page_s = page_link_bytes(model, stage) / costs_.link_bytes_per_s;
  const double behind_first = begin + page_s + time_s * (copied / all);
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
  if (std::int64_t wanted = room_wanted(model, stage); wanted > 0) {
    visit_spare(model, stage, [&](std::uint32_t piece) {
      std::int64_t& resident = resident_[at(piece, stage)];
      const std::int64_t given = std::min(resident, wanted);
      resident -= given;
      free_[stage] += given;
      wanted -= given;
      for (const std::uint32_t other : models_of_[piece]) note_missing(other);
      return wanted > 0;
    });
  }
  std::int64_t more = most_bytes(model, stage) - resident_bytes(model, stage);
  free_[stage] -= more;
  for (const std::uint32_t piece : pieces_of_[model]) {
    const std::size_t p = at(piece, stage);
    const std::int64_t taken = std::min(more, bytes_[p] - resident_[p]);
    resident_[p] += taken;
    more -= taken;
  }
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
    if (missing(model, stage) == 0) continue;
    copied += missing_link_bytes(model, stage);
    link_[stage] = link_next_[stage];
    take_room(model, stage);
  }
  touch(model);
  if (copied == 0) return;
  ++swaps_;
  swapped_bytes_ += copied;
  for (const std::uint32_t piece : pieces_of_[model]) {
    for (const std::uint32_t other : models_of_[piece]) note_missing(other);
  }
}

}  // namespace computron

#include "computron/placement/fast_simulator.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>

#include "computron/base/error.h"

namespace computron {
namespace {

void subtract(const std::vector<std::int64_t>& part, std::vector<std::int64_t>& from) {
  std::ranges::transform(from, part, from.begin(), std::minus());
}

// What several models of the group have, before the first of them; of each model what it has alone.
std::vector<SwappingGroup::Piece> pieces_of(const std::vector<ModelProfile>& models, const PlacedGroup& placed) {
  std::vector<SwappingGroup::Piece> pieces;
  std::map<std::string_view, std::size_t> parts;  // where
  for (std::uint32_t local = 0; local < placed.models.size(); ++local) {
    const ShapeProfile& profile = *models[placed.models[local]].find(placed.shape);
    SwappingGroup::Piece own{profile.stage_frame_bytes(), profile.stage_link_bytes(), {local}};
    for (const SharedPart& part : profile.shared) {
      subtract(part.stage_frame_bytes(), own.bytes);
      subtract(part.stage_link_bytes(), own.link_bytes);
      const auto [found, is_new] = parts.try_emplace(part.name, pieces.size());
      if (is_new) pieces.push_back({part.stage_frame_bytes(), part.stage_link_bytes(), {}});
      pieces[found->second].models.push_back(local);
    }
    pieces.push_back(std::move(own));
  }
  return pieces;
}

}  // namespace

std::uint64_t SimulationResult::all_requests() const {
  return std::accumulate(requests.begin(), requests.end(), std::uint64_t{0});
}

double SimulationResult::attainment() const {
  const std::uint64_t all = all_requests();
  if (all == 0) return 1;
  return static_cast<double>(std::accumulate(good.begin(), good.end(), std::uint64_t{0})) / static_cast<double>(all);
}

double SimulationResult::mean_latency_s() const {
  const std::uint64_t all = all_requests();
  return all == 0 ? 0 : std::accumulate(latency_s.begin(), latency_s.end(), 0.0) / static_cast<double>(all);
}

void SimulationResult::merge(const SimulationResult& other) {
  requests.resize(other.requests.size());
  good.resize(other.good.size());
  latency_s.resize(other.latency_s.size());
  for (std::size_t m = 0; m < requests.size(); ++m) {
    requests[m] += other.requests[m];
    good[m] += other.good[m];
    latency_s[m] += other.latency_s[m];
  }
  makespan_s = std::max(makespan_s, other.makespan_s);
  swaps += other.swaps;
  swapped_bytes += other.swapped_bytes;
}

FastSimulator::FastSimulator(const std::vector<ModelProfile>& models, SimulatorOptions options)
    : models_(models), options_(options) {}

SwappingGroup* FastSimulator::memory_of(std::uint32_t group, const PlacedGroup& placed) {
  if (!options_.swap) return nullptr;
  const auto pieces = pieces_of(models_, placed);
  std::vector<SwappingGroup::StageBytes> bytes;
  for (const SwappingGroup::Piece& piece : pieces) bytes.push_back(piece.bytes);
  if (!SwappingGroup::is_needed(bytes, *options_.swap)) return nullptr;
  memory_groups_.push_back(group);
  return &memories_.emplace_back(static_cast<std::uint32_t>(placed.models.size()), pieces, *options_.swap);
}

void FastSimulator::add_group(std::uint32_t group, const PlacedGroup& placed,
                              std::vector<std::vector<Replica>>& by_model) {
  const auto stages = static_cast<std::uint32_t>(placed.shape.pp);
  const auto clocks = static_cast<std::uint32_t>(clocks_.size());
  clocks_.resize(clocks_.size() + stages);
  ends_.resize(std::max<std::size_t>(ends_.size(), stages));
  for (const std::uint32_t m : placed.models) {
    ensure(models_.at(m).find(placed.shape) != nullptr, "a model has no profile of its group's shape");
  }
  SwappingGroup* const memory = memory_of(group, placed);
  const double penalty = 1 + options_.stage_penalty * stages;
  for (std::uint32_t local = 0; local < placed.models.size(); ++local) {
    const std::uint32_t m = placed.models[local];
    const auto times = static_cast<std::uint32_t>(times_.size());
    for (const float time : models_[m].find(placed.shape)->stage_s) times_.push_back(penalty * time);
    const double slowest = *std::max_element(times_.begin() + times, times_.end());
    by_model[m].push_back({group, stages, clocks, times, slowest, memory, local});
  }
}

void FastSimulator::prepare(const ModelPlacement& placement) {
  replicas_.clear();
  first_.assign(1, 0);
  times_.clear();
  clocks_.clear();
  ends_.clear();
  memories_.clear();
  memory_groups_.clear();
  last_clock_.assign(placement.size(), 0);
  std::vector<std::vector<Replica>> by_model(models_.size());
  for (std::uint32_t g = 0; g < placement.size(); ++g) add_group(g, placement[g], by_model);
  for (const auto& replicas : by_model) {
    replicas_.insert(replicas_.end(), replicas.begin(), replicas.end());
    first_.push_back(static_cast<std::uint32_t>(replicas_.size()));
  }
}

// Of equal ones the first that is free.
const FastSimulator::Replica& FastSimulator::least_finish(std::span<const Replica> replicas, double now) {
  const auto cost = [&](const Replica& replica) {
    return std::pair(predict(replica, now), last_clock_[replica.group]);
  };
  return *std::ranges::min_element(replicas, {}, cost);
}

// Without swapping this is the group that is free first, the first of equal ones: AlpaServe's rule.
const FastSimulator::Replica& FastSimulator::choose(std::span<const Replica> replicas, double now) {
  if (options_.dispatch == DispatchRule::kLeastFinish) return least_finish(replicas, now);
  const Replica* best = replicas.data();
  if (memories_.empty()) {
    for (const Replica& replica : replicas.subspan(1)) {
      if (last_clock_[replica.group] < last_clock_[best->group]) best = &replica;
    }
    return *best;
  }
  const auto cost = [&](const Replica& replica) {
    const double clock = last_clock_[replica.group];
    const double missing_s = replica.memory == nullptr ? 0 : replica.memory->missing_s(replica.local);
    return std::pair(std::max(clock, now) + missing_s, clock);
  };
  auto least = cost(*best);
  for (const Replica& replica : replicas.subspan(1)) {
    const auto own = cost(replica);
    if (own < least) best = &replica, least = own;
  }
  return *best;
}

// Its end; that of each stage in ends_.
double FastSimulator::predict(const Replica& replica, double now) {
  const double* const clocks = &clocks_[replica.clocks];
  const double* const times = &times_[replica.times];
  if (replica.memory != nullptr) {
    replica.memory->predict(replica.local, now, {times, replica.stages}, {clocks, replica.stages}, ends_);
    return ends_[replica.stages - 1];
  }
  double time = now;
  for (std::uint32_t stage = 0; stage < replica.stages; ++stage) {
    time = std::max(time, clocks[stage]) + times[stage];
    ends_[stage] = time;
  }
  return time;
}

bool FastSimulator::serve(const Arrival& arrival, float slo_s, SimulationResult& result, double& latency_s) {
  const std::uint32_t m = arrival.model;
  ++result.requests[m];
  const std::uint32_t count = first_[m + 1] - first_[m];
  if (count == 0) return false;
  const Replica& replica = choose({&replicas_[first_[m]], count}, arrival.time_s);
  const double end = predict(replica, arrival.time_s);
  ++result.dispatched[replica.group];
  const double latency = end + options_.constant_s - arrival.time_s;
  if (!(latency <= static_cast<double>(slo_s))) return false;
  std::copy_n(ends_.begin(), replica.stages, clocks_.begin() + replica.clocks);
  last_clock_[replica.group] = end;
  if (replica.memory != nullptr) replica.memory->commit(replica.local, {ends_.data(), replica.stages});
  result.busy_s[replica.group] += replica.slowest_s;
  result.makespan_s = std::max(result.makespan_s, end);
  ++result.good[m];
  ++result.served[replica.group];
  result.latency_s[m] += latency;
  latency_s = latency;
  return true;
}

SimulationResult FastSimulator::run(const ModelPlacement& placement, std::span<const Arrival> arrivals,
                                    std::span<const float> slo_s, std::vector<RequestOutcome>* outcomes) {
  ensure(slo_s.size() == models_.size(), "there is not one objective a model");
  prepare(placement);
  SimulationResult result;
  result.requests.resize(models_.size());
  result.good.resize(models_.size());
  result.latency_s.resize(models_.size());
  result.dispatched.resize(placement.size());
  result.served.resize(placement.size());
  result.group_swaps.resize(placement.size());
  result.busy_s.resize(placement.size());
  if (outcomes != nullptr) outcomes->assign(arrivals.size(), {});
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    RequestOutcome outcome;
    outcome.good = serve(arrivals[i], slo_s[arrivals[i].model], result, outcome.latency_s);
    if (outcomes != nullptr) (*outcomes)[i] = outcome;
  }
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    result.group_swaps[memory_groups_[i]] = memories_[i].swaps();
    result.swaps += memories_[i].swaps();
    result.swapped_bytes += memories_[i].swapped_bytes();
  }
  return result;
}

double trimmed_attainment(std::span<const Arrival> arrivals, std::span<const RequestOutcome> outcomes, double edge_s) {
  ensure(arrivals.size() == outcomes.size(), "there is not one outcome a request");
  if (arrivals.size() < 2) return 1;
  const double all_s = arrivals.back().time_s - arrivals.front().time_s;
  const auto count = static_cast<double>(arrivals.size());
  const auto skip = static_cast<std::size_t>(std::min(edge_s / all_s * count, count / 2));
  const auto kept = outcomes.subspan(skip, arrivals.size() - 2 * skip);
  if (kept.empty()) return 1;
  return static_cast<double>(std::ranges::count(kept, true, &RequestOutcome::good)) / static_cast<double>(kept.size());
}

}  // namespace computron

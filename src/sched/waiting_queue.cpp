#include "computron/sched/waiting_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace computron {
namespace {

constexpr double kLatestWeight = 0.1;    // of the latest time between two arrivals
constexpr std::uint64_t kGenerated = 2;  // what a generated token counts, in tokens of prompts (Sheng et al.)

}  // namespace

void ArrivalStatistics::observe(double arrival_s) {
  const double gap_s = std::max(arrival_s - last_s_, 0.0);
  if (count_ > 0) {
    const double weight = std::max(kLatestWeight, 1.0 / static_cast<double>(count_));
    gap_s_ += weight * (gap_s - gap_s_);
    gap2_s2_ += weight * (gap_s * gap_s - gap2_s2_);
  }
  ++count_;
  last_s_ = std::max(last_s_, arrival_s);
}

// --- Tenants ----------------------------------------------------------------------------------------------------

std::uint64_t TokenCounters::served(std::uint64_t tenant) const {
  const auto found = served_.find(tenant);
  return found == served_.end() ? 0 : found->second;
}

void TokenCounters::join(std::uint64_t tenant) {
  if (served_.size() >= most_) forget_old();
  std::uint64_t& served = served_[tenant];
  served = std::max(served, floor_);
}

void TokenCounters::forget_old() {
  std::erase_if(served_, [this](const auto& entry) { return entry.second < floor_; });
  most_ = std::max(most_, 2 * served_.size());
}

// --- Lanes ------------------------------------------------------------------------------------------------------

void WaitingQueue::Lane::push(Request request) {
  auto place = places_.end();  // of almost all
  if (!empty() && arrives_earlier(request, places_.back().request)) {
    place = std::ranges::upper_bound(places_, request, arrives_earlier, &Place::request);
  }
  places_.insert(place, Place{std::move(request)});
}

Request WaitingQueue::Lane::pop() {
  Request request = std::move(places_.front().request);
  places_.pop_front();
  drop_gaps();
  load_soon_wanted();
  return request;
}

Request WaitingQueue::Lane::pop_back() {
  Request request = std::move(places_.back().request);
  places_.pop_back();
  drop_gaps();
  return request;
}

// Requests that have waited long are in no cache of the processor, and a batch pops many in a row: those behind the
// next one are loaded while that is dealt with.
void WaitingQueue::Lane::load_soon_wanted() const {
  constexpr std::size_t kLine = 64;  // bytes
  if (places_.size() <= 2) return;
  const auto* const soon = reinterpret_cast<const std::byte*>(&places_[2]);
  for (std::size_t at = 0; at < sizeof(Place); at += kLine) __builtin_prefetch(soon + at);
  const std::vector<TokenId>& next = places_[1].request.prompt;
  for (std::size_t at = 0; at < std::min(next.size() * sizeof(TokenId), 4 * kLine); at += kLine) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(next.data()) + at);
  }
}

// A request that was moved from a place keeps the numbers by which places are in order.
std::vector<Request> WaitingQueue::Lane::take_line(double arrival_s, RequestId id) {
  const auto before = [&](const Place& place) {
    return std::tie(place.request.arrival_s, place.request.id) < std::tie(arrival_s, id);
  };
  std::vector<Request> taken;
  for (auto place = std::ranges::partition_point(places_, before); place != places_.end() && place->request.id == id;
       ++place) {
    taken.push_back(std::move(place->request));
    place->gap = true;
    ++gaps_;
  }
  drop_gaps();
  return taken;
}

void WaitingQueue::Lane::drop_gaps() {
  if (gaps_ == 0) return;
  for (; !places_.empty() && places_.front().gap; --gaps_) places_.pop_front();
  for (; !places_.empty() && places_.back().gap; --gaps_) places_.pop_back();
  if (2 * gaps_ > places_.size()) {
    std::erase_if(places_, [](const Place& place) { return place.gap; });
    gaps_ = 0;
  }
}

// To be called whenever the lane's first request, or what its tenant has been served, has changed.
void WaitingQueue::list(const LaneKey& key) {
  const auto relist = [](auto& set, auto& listed, auto now) {
    if (listed == now) return;
    if (listed) set.erase(*listed);
    if (now) set.insert(*now);
    listed = now;
  };
  const auto found = lanes_.find(key);
  Lane& lane = found->second;
  std::optional<Turn> turn;
  std::optional<Age> age;
  if (!lane.empty()) {
    const Request& first = lane.front();
    turn = {key.second, counters_.served(key.first), first.arrival_s, first.id, first.part, key};
    age = {first.arrival_s, first.id, first.part, key};
  }
  relist(turns_, lane.turn, turn);
  relist(ages_, lane.age, age);
  if (lane.empty()) lanes_.erase(found);
}

// --- The queue --------------------------------------------------------------------------------------------------

WaitingQueue::Load WaitingQueue::load_of(const Request& request) const {
  const auto generated = static_cast<std::size_t>(request.encodes() ? 1 : std::max(request.max_tokens, 1));
  return {.backlog = {request.prompt.size(), generated, request.arrival_s},
          .cache = cache_need(request, static_cast<int>(request.prompt.size()), block_tokens_),
          .bytes = request.bytes()};
}

void WaitingQueue::push(Request request) {
  count_in(request);
  const LaneKey key = key_of(request);
  any_tenants_ |= request.tenant != 0;
  const auto [lane, is_new] = lanes_.try_emplace(key);
  if (is_new && any_tenants_) counters_.join(key.first);
  lane->second.push(std::move(request));
  list(key);
}

Request WaitingQueue::pop() {
  const LaneKey key = std::get<LaneKey>(*turns_.begin());
  Request request = lanes_.find(key)->second.pop();
  count_out(request);
  counters_.serve(key.first);
  list(key);
  charge(key.first, request.prompt.size());
  return request;
}

void WaitingQueue::age_oldest() {
  const LaneKey key = std::get<LaneKey>(*ages_.begin());
  Request request = lanes_.find(key)->second.pop();
  count_out(request);
  list(key);
  request.aged = true;
  push(std::move(request));
}

void WaitingQueue::charge_generated(std::uint64_t tenant, int tokens) {
  charge(tenant, kGenerated * static_cast<std::uint64_t>(tokens));
}

void WaitingQueue::charge(std::uint64_t tenant, std::uint64_t tokens) {
  if (!any_tenants_ || tokens == 0) return;
  counters_.charge(tenant, tokens);
  const LaneKey first{tenant, std::numeric_limits<std::int32_t>::min()};
  for (auto lane = lanes_.lower_bound(first); lane != lanes_.end() && lane->first.first == tenant; ++lane) {
    list(lane->first);
  }
}

// Lines that stay are taken out and put in again: they are few.
std::vector<Request> WaitingQueue::take_youngest(std::size_t n) {
  std::vector<Request> taken, stay;
  while (taken.size() < n) {
    std::vector<Request> line = pop_youngest_line();
    if (line.empty()) break;
    const bool goes = line.back().part == 0 && line.size() <= n - taken.size();
    std::ranges::move(line, std::back_inserter(goes ? taken : stay));
  }
  for (Request& request : stay) push(std::move(request));
  return taken;
}

// The last part first; empty if there are none but aged ones. Looks at every lane.
std::vector<Request> WaitingQueue::pop_youngest_line() {
  auto youngest = lanes_.end();
  for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
    if (lane->second.front().aged) continue;
    if (youngest == lanes_.end() || arrives_earlier(youngest->second.back(), lane->second.back())) youngest = lane;
  }
  std::vector<Request> line;
  if (youngest == lanes_.end()) return line;
  while (!youngest->second.empty() && (line.empty() || youngest->second.back().id == line.back().id)) {
    line.push_back(youngest->second.pop_back());
    count_out(line.back());
  }
  list(LaneKey(youngest->first));
  return line;
}

std::vector<Request> WaitingQueue::take_late(double now_s) {
  std::vector<Request> late;
  while (first_due_s() < now_s) {
    const auto [due_s, arrival_s, id, key] = *due_.begin();
    for (Request& request : lanes_.find(key)->second.take_line(arrival_s, id)) {
      count_out(request);
      late.push_back(std::move(request));
    }
    list(key);
  }
  return late;
}

void WaitingQueue::count_in(const Request& request) {
  const Load load = load_of(request);
  sum_.backlog += load.backlog;
  sum_.cache += load.cache;
  sum_.bytes += load.bytes;
  ++size_;
  if (is_watched(request)) due_.emplace(request.due_s(), request.arrival_s, request.id, key_of(request));
}

void WaitingQueue::count_out(const Request& request) {
  const Load load = load_of(request);
  sum_.backlog -= load.backlog;
  sum_.cache -= load.cache;
  sum_.bytes -= load.bytes;
  --size_;
  if (is_watched(request)) due_.erase({request.due_s(), request.arrival_s, request.id, key_of(request)});
}

}  // namespace computron

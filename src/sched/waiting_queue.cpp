#include "computron/sched/waiting_queue.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <utility>

namespace computron {
namespace {

constexpr double kLatestWeight = 0.1;      // of the latest time between two arrivals
constexpr std::uint64_t kGenerated = 2;    // what a generated token counts, in tokens of prompts (Sheng et al.)
constexpr std::uint64_t kParts = 1 << 16;  // of a token, that virtual time is counted in: more than there are tenants
constexpr std::uint64_t kMostAheadParts = TenantQueue::kMostAhead * kParts;
// Of host memory, for each lane and counter beyond the first: a map's node, two sets' and a deque's block.
constexpr std::size_t kLaneBytes = 1024;

// Puts `now` into the set in the place of `listed`, each if there is one.
template <class Value>
void relist(std::set<Value>& set, std::optional<Value>& listed, const std::optional<Value>& now) {
  if (listed == now) return;
  if (listed && now) {
    auto node = set.extract(*listed);
    node.value() = *now;
    set.insert(std::move(node));
  } else if (listed) {
    set.erase(*listed);
  } else {
    set.insert(*now);
  }
  listed = now;
}

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

// --- Lanes ------------------------------------------------------------------------------------------------------

void RequestLane::push(Request request) {
  auto place = places_.end();  // of almost all
  if (!empty() && arrives_earlier(request, places_.back().request)) {
    place = std::ranges::upper_bound(places_, request, arrives_earlier, &Place::request);
  }
  places_.insert(place, Place{std::move(request)});
}

Request RequestLane::pop() {
  Request request = std::move(places_.front().request);
  places_.pop_front();
  drop_gaps();
  load_soon_wanted();
  return request;
}

std::optional<std::size_t> RequestLane::last_before(std::size_t end) const {
  std::size_t place = std::min(end, places_.size());
  while (place > 0 && places_[place - 1].gap) --place;
  return place == 0 ? std::nullopt : std::optional(place - 1);
}

// Requests that have waited long are in no cache of the processor, and a batch pops many in a row: those behind the
// next one are loaded while that is dealt with.
void RequestLane::load_soon_wanted() const {
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
std::vector<Request> RequestLane::take_line(double arrival_s, RequestId id) {
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

void RequestLane::drop_gaps() {
  if (gaps_ == 0) return;
  for (; !places_.empty() && places_.front().gap; --gaps_) places_.pop_front();
  for (; !places_.empty() && places_.back().gap; --gaps_) places_.pop_back();
  if (2 * gaps_ > places_.size()) {
    std::erase_if(places_, [](const Place& place) { return place.gap; });
    gaps_ = 0;
  }
}

// --- Tenants ----------------------------------------------------------------------------------------------------

void TenantQueue::push(Request request) {
  const std::uint64_t tenant = request.tenant;
  const auto [found, is_new] = tenants_.try_emplace(tenant);
  Tenant& of = found->second;
  if (of.lane.empty()) of.served = std::max(of.served, virtual_time_);
  of.lane.push(std::move(request));
  list(tenant, of);
  if (is_new && tenants_.size() > most_) forget_idle();
}

Request TenantQueue::pop(std::uint64_t tenant) {
  Tenant& of = tenants_.find(tenant)->second;
  Request request = of.lane.pop();
  list(tenant, of);
  return request;
}

std::vector<Request> TenantQueue::take_line(std::uint64_t tenant, double arrival_s, RequestId id) {
  Tenant& of = tenants_.find(tenant)->second;
  std::vector<Request> taken = of.lane.take_line(arrival_s, id);
  list(tenant, of);
  return taken;
}

// Of a tenant that is alone nothing need be counted.
bool TenantQueue::charge(std::uint64_t tenant, std::uint64_t tokens) {
  if (tokens == 0 || (tenants_.size() == 1 && tenants_.begin()->first == tenant)) return false;
  const auto [found, is_new] = tenants_.try_emplace(tenant);
  Tenant& of = found->second;
  const std::uint64_t parts = kParts * tokens, others = ages_.size() - (of.lane.empty() ? 0 : 1);
  if (of.lane.empty()) of.served = std::max(of.served, virtual_time_);
  const std::uint64_t least = turns_.empty() ? of.served : turns_.begin()->served, most = least + kMostAheadParts;
  const std::uint64_t step = std::max<std::uint64_t>(parts / (others + 1), 1);
  virtual_time_ = std::max(std::min(virtual_time_ + step, most), virtual_time_);
  of.served = std::max(std::min(of.served + parts, most), of.served);
  list(tenant, of);
  if (is_new && tenants_.size() > most_) forget_idle();
  return true;
}

// To be called whenever the lane's first request, or what the tenant has been served, has changed.
void TenantQueue::list(std::uint64_t tenant, Tenant& of) {
  std::optional<Age> age;
  if (!of.lane.empty()) age = {of.lane.front().arrival_s, of.lane.front().id, of.lane.front().part, tenant};
  relist(ages_, of.age, age);
  relist(turns_, of.turn, age ? std::optional(Turn{of.served, *age}) : std::nullopt);
}

void TenantQueue::forget_idle() {
  std::erase_if(tenants_, [this](const auto& entry) {
    return entry.second.lane.empty() && entry.second.served <= virtual_time_;
  });
  most_ = std::max(most_, 2 * tenants_.size());
}

// --- The queue --------------------------------------------------------------------------------------------------

WaitingQueue::Load WaitingQueue::load_of(const Request& request) const {
  const auto generated = static_cast<std::size_t>(request.encodes() ? 1 : std::max(request.max_tokens, 1));
  return {.backlog = {request.prompt.size(), generated, request.arrival_s},
          .cache = cache_need(request, static_cast<int>(request.prompt.size()), block_tokens_),
          .bytes = request.bytes()};
}

void WaitingQueue::push(Request request) {
  const auto of = classes_.try_emplace(request.urgency()).first;
  count_in(request, of->second);
  of->second.queue.push(std::move(request));
  list(of);
}

Request WaitingQueue::pop() {
  const auto of = classes_.begin();
  Request request = of->second.queue.pop();
  count_out(request, of->second);
  list(of);
  charge(request.priority, request.tenant, request.prompt.size());
  return request;
}

void WaitingQueue::age_oldest() {
  const auto of = classes_.find(std::get<3>(*ages_.begin()));
  Request request = of->second.queue.pop_oldest();
  count_out(request, of->second);
  list(of);
  request.aged = true;
  push(std::move(request));
}

void WaitingQueue::charge_generated(std::int32_t priority, std::uint64_t tenant, int tokens) {
  charge(priority, tenant, kGenerated * static_cast<std::uint64_t>(tokens));
}

// Of its own priority's class, also where it has aged. Where none of it waits, nobody is to be compared with.
void WaitingQueue::charge(std::int32_t priority, std::uint64_t tenant, std::uint64_t tokens) {
  const auto of = classes_.find(priority);
  if (of != classes_.end() && of->second.queue.charge(tenant, tokens)) list(of);
}

// To be called whenever the class has changed, which is gone if it is empty.
void WaitingQueue::list(Classes::iterator of) {
  Class& changed = of->second;
  std::optional<Age> age;
  if (!changed.queue.empty()) {
    const Request& oldest = changed.queue.oldest();
    age = {oldest.arrival_s, oldest.id, oldest.part, of->first};
  }
  relist(ages_, changed.age, age);
  const std::size_t counters = age ? changed.queue.counters() : 0;
  counters_ += counters - std::exchange(changed.counters, counters);
  if (!age) classes_.erase(of);
}

std::size_t WaitingQueue::prompt_tokens_before(std::int32_t urgency) const {
  std::size_t tokens = 0;
  for (auto of = classes_.begin(); of != classes_.end() && of->first < urgency; ++of)
    tokens += of->second.prompt_tokens;
  return tokens;
}

std::size_t WaitingQueue::lane_bytes() const { return counters_ <= 1 ? 0 : kLaneBytes * (counters_ - 1); }

// Lanes are merged from their ends. First it is found out what goes: what is looked at stays where it is.
std::vector<Request> WaitingQueue::take_youngest(std::size_t n, const Accepts& accepts) {
  struct Cursor {
    const RequestLane* lane;
    std::size_t place;
    bool operator<(const Cursor& other) const { return arrives_earlier(lane->at(place), other.lane->at(other.place)); }
  };
  std::priority_queue<Cursor> cursors;
  const auto add = [&cursors](const RequestLane& lane, std::size_t end) {
    if (const auto place = lane.last_before(end)) cursors.push({&lane, *place});
  };
  for (const auto& [urgency, of] : classes_) {
    if (urgency == Request::kAged) continue;
    of.queue.visit_lanes([&](const RequestLane& lane) { add(lane, RequestLane::kEnd); });
  }
  const auto accepted = [&accepts](const Request& request) { return !accepts || accepts(request); };
  std::vector<Due> lines;
  for (std::size_t found = 0, refused = 0; found < n && refused < kMostRefused && !cursors.empty();) {
    const auto [lane, last] = cursors.top();
    cursors.pop();
    std::size_t first = last, size = 1;
    bool all_accepted = accepted(lane->at(last));
    for (auto before = lane->last_before(first); before && lane->at(*before).id == lane->at(last).id;
         before = lane->last_before(first)) {
      first = *before;
      ++size;
      all_accepted = all_accepted && accepted(lane->at(first));
    }
    add(*lane, first);
    refused += !all_accepted;
    if (!all_accepted || lane->at(first).part != 0 || size > n - found) continue;
    lines.push_back(due_of(lane->at(first)));
    found += size;
  }
  std::vector<Request> taken;
  for (const Due& line : lines) {
    std::vector<Request> parts = take_line(line);
    taken.insert(taken.end(), std::move_iterator(parts.rbegin()), std::move_iterator(parts.rend()));
  }
  return taken;
}

std::vector<Request> WaitingQueue::take_late(double now_s) {
  std::vector<Request> late;
  while (first_due_s() < now_s) std::ranges::move(take_line(Due(*due_.begin())), std::back_inserter(late));
  return late;
}

std::vector<Request> WaitingQueue::take_line(const Due& line) {
  const auto [due_s, arrival_s, id, urgency, tenant] = line;
  const auto of = classes_.find(urgency);
  std::vector<Request> taken = of->second.queue.take_line(tenant, arrival_s, id);
  for (const Request& request : taken) count_out(request, of->second);
  list(of);
  return taken;
}

void WaitingQueue::count_in(const Request& request, Class& of) {
  const Load load = load_of(request);
  of.prompt_tokens += load.backlog.prompt_tokens;
  sum_.backlog += load.backlog;
  sum_.cache += load.cache;
  sum_.bytes += load.bytes;
  ++size_;
  if (is_watched(request)) due_.insert(due_of(request));
}

void WaitingQueue::count_out(const Request& request, Class& of) {
  const Load load = load_of(request);
  of.prompt_tokens -= load.backlog.prompt_tokens;
  sum_.backlog -= load.backlog;
  sum_.cache -= load.cache;
  sum_.bytes -= load.bytes;
  --size_;
  if (is_watched(request)) due_.erase(due_of(request));
}

}  // namespace computron

#include "computron/sched/waiting_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace computron {
namespace {

constexpr double kLatestWeight = 0.1;  // of the latest time between two arrivals

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

WaitingQueue::Load WaitingQueue::load_of(const Request& request) const {
  const auto generated = static_cast<std::size_t>(request.encodes() ? 1 : std::max(request.max_tokens, 1));
  return {.backlog = {request.prompt.size(), generated, request.arrival_s},
          .cache = cache_need(request, static_cast<int>(request.prompt.size()), block_tokens_),
          .bytes = request.bytes()};
}

void WaitingQueue::push(Request request) {
  count_in(request);
  auto place = places_.end();  // of almost all
  if (!empty() && arrives_earlier(request, places_.back().request)) {
    place = std::ranges::upper_bound(places_, request, arrives_earlier, &Place::request);
  }
  places_.insert(place, Place{std::move(request)});
}

Request WaitingQueue::pop() {
  Request request = std::move(places_.front().request);
  places_.pop_front();
  drop_gaps();
  load_soon_wanted();
  count_out(request);
  return request;
}

// Requests that have waited long are in no cache of the processor, and a batch pops many in a row: those behind the
// next one are loaded while that is dealt with.
void WaitingQueue::load_soon_wanted() const {
  constexpr std::size_t kLine = 64;  // bytes
  if (places_.size() <= 2) return;
  const auto* const soon = reinterpret_cast<const std::byte*>(&places_[2]);
  for (std::size_t at = 0; at < sizeof(Place); at += kLine) __builtin_prefetch(soon + at);
  const std::vector<TokenId>& next = places_[1].request.prompt;
  for (std::size_t at = 0; at < std::min(next.size() * sizeof(TokenId), 4 * kLine); at += kLine) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(next.data()) + at);
  }
}

// Lines that stay are taken out and put in again: they are few.
std::vector<Request> WaitingQueue::take_youngest(std::size_t n) {
  std::vector<Request> taken, stay;
  while (taken.size() < n && !empty()) {
    std::vector<Request> line = pop_youngest_line();
    const bool goes = line.back().part == 0 && line.size() <= n - taken.size();
    std::ranges::move(line, std::back_inserter(goes ? taken : stay));
  }
  for (Request& request : stay) push(std::move(request));
  return taken;
}

// The last part first.
std::vector<Request> WaitingQueue::pop_youngest_line() {
  std::vector<Request> line;
  while (!empty() && (line.empty() || places_.back().request.id == line.back().id)) {
    line.push_back(std::move(places_.back().request));
    places_.pop_back();
    drop_gaps();
    count_out(line.back());
  }
  return line;
}

std::vector<Request> WaitingQueue::take_late(double now_s) {
  std::vector<Request> late;
  while (first_due_s() < now_s) take_line(Due(*due_.begin()), late);
  drop_gaps();
  return late;
}

// A request that was moved from a place keeps the numbers by which places are in order.
void WaitingQueue::take_line(const Due& due, std::vector<Request>& taken) {
  const double arrival_s = std::get<1>(due);
  const RequestId id = std::get<2>(due);
  const auto before = [&](const Place& place) {
    return std::tie(place.request.arrival_s, place.request.id) < std::tie(arrival_s, id);
  };
  for (auto place = std::ranges::partition_point(places_, before); place != places_.end() && place->request.id == id;
       ++place) {
    taken.push_back(std::move(place->request));
    place->gap = true;
    ++gaps_;
    count_out(taken.back());
  }
}

void WaitingQueue::drop_gaps() {
  if (gaps_ == 0) return;
  for (; !places_.empty() && places_.front().gap; --gaps_) places_.pop_front();
  for (; !places_.empty() && places_.back().gap; --gaps_) places_.pop_back();
  if (gaps_ > size()) {
    std::erase_if(places_, [](const Place& place) { return place.gap; });
    gaps_ = 0;
  }
}

void WaitingQueue::count_in(const Request& request) {
  const Load load = load_of(request);
  sum_.backlog += load.backlog;
  sum_.cache += load.cache;
  sum_.bytes += load.bytes;
  if (is_watched(request)) due_.emplace(request.due_s(), request.arrival_s, request.id);
}

void WaitingQueue::count_out(const Request& request) {
  const Load load = load_of(request);
  sum_.backlog -= load.backlog;
  sum_.cache -= load.cache;
  sum_.bytes -= load.bytes;
  if (is_watched(request)) due_.erase({request.due_s(), request.arrival_s, request.id});
}

}  // namespace computron

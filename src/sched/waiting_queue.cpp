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
  const Load load = load_of(request);
  sum_.backlog += load.backlog;
  sum_.cache += load.cache;
  sum_.bytes += load.bytes;
  auto place = requests_.end();  // of almost all
  if (!empty() && arrives_earlier(request, requests_.back())) {
    place = std::upper_bound(requests_.begin(), requests_.end(), request, arrives_earlier);
  }
  requests_.insert(place, std::move(request));
}

Request WaitingQueue::pop() {
  Request request = std::move(requests_.front());
  requests_.pop_front();
  load_soon_wanted();
  count_out(request);
  return request;
}

// Requests that have waited long are in no cache of the processor, and a batch pops many in a row: those behind the
// next one are loaded while that is dealt with.
void WaitingQueue::load_soon_wanted() const {
  constexpr std::size_t kLine = 64;  // bytes
  if (requests_.size() <= 2) return;
  const auto* const soon = reinterpret_cast<const std::byte*>(&requests_[2]);
  for (std::size_t at = 0; at < sizeof(Request); at += kLine) __builtin_prefetch(soon + at);
  const std::vector<TokenId>& next = requests_[1].prompt;
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
  while (!empty() && (line.empty() || requests_.back().id == line.back().id)) {
    line.push_back(std::move(requests_.back()));
    requests_.pop_back();
    count_out(line.back());
  }
  return line;
}

void WaitingQueue::count_out(const Request& request) {
  const Load load = load_of(request);
  sum_.backlog -= load.backlog;
  sum_.cache -= load.cache;
  sum_.bytes -= load.bytes;
}

}  // namespace computron

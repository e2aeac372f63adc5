// The requests of one model that no step has begun, and when they came.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "computron/sched/cache_forecast.h"
#include "computron/sched/request.h"

namespace computron {

// Work to do, summed over requests: what predictions are made from.
struct Backlog {
  std::size_t prompt_tokens = 0;     // to be computed
  std::size_t generated_tokens = 0;  // at most
  double arrivals_s = 0;             // arrival times, summed up
  Backlog& operator+=(const Backlog& other) {
    prompt_tokens += other.prompt_tokens;
    generated_tokens += other.generated_tokens;
    arrivals_s += other.arrivals_s;
    return *this;
  }
  Backlog& operator-=(const Backlog& other) {
    prompt_tokens -= other.prompt_tokens;
    generated_tokens -= other.generated_tokens;
    arrivals_s -= other.arrivals_s;
    return *this;
  }
};

// Of all requests of a model so far: the latest arrival, and moving means of the time between two of them.
class ArrivalStatistics {
 public:
  void observe(double arrival_s);
  double last_s() const { return last_s_; }
  double gap_s() const { return gap_s_; }      // 0 until there have been two
  double gap2_s2() const { return gap2_s2_; }  // of its square

 private:
  std::size_t count_ = 0;
  double last_s_ = 0, gap_s_ = 0, gap2_s2_ = 0;
};

// What tenants have been served: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models"
// (OSDI 2024). Who has been away gets no credit for that: it joins with no less than whoever was served last began
// with.
class TokenCounters {
 public:
  std::uint64_t served(std::uint64_t tenant) const;
  void charge(std::uint64_t tenant, std::uint64_t tokens) { served_[tenant] += tokens; }
  // The tenant has requests that wait, and had none.
  void join(std::uint64_t tenant);
  // The next request is one of the tenant's.
  void serve(std::uint64_t tenant) { floor_ = std::max(floor_, served(tenant)); }

 private:
  void forget_old();
  std::unordered_map<std::uint64_t, std::uint64_t> served_;
  std::uint64_t floor_ = 0;
  std::size_t most_ = 4096;  // counters that are kept before those are forgotten that join() would raise anyway
};

// The most urgent request is in front (Request::urgency), of equal ones the one of the tenant that has been served
// least, of its requests, or where there are no tenants, the earliest arrival. push(), pop(), age_oldest(),
// take_youngest() and take_late() are all that changes it, so the sums are always those of what is in it; they cost the
// same however many requests wait.
class WaitingQueue {
 public:
  // `watches_deadlines`: take_late() is wanted.
  explicit WaitingQueue(int block_tokens, bool watches_deadlines = false)
      : block_tokens_(block_tokens), watches_deadlines_(watches_deadlines) {}

  // A request that was read late goes before those that arrived after it.
  void push(Request request);
  // Requires a request. Its tenant has been served its prompt from now on.
  Request pop();
  // The oldest goes before all others from now on (Request::aged). Requires a request.
  void age_oldest();
  // So many tokens have been generated for the tenant.
  void charge_generated(std::uint64_t tenant, int tokens);
  // Takes out at most `n` requests, the youngest first, those of one id together: all of them, or none where they are
  // too many or the first of them (part 0) is not in the queue, or one of them has aged.
  std::vector<Request> take_youngest(std::size_t n);
  // When the first deadline of those that take_late() would take passes; infinity: there is none.
  double first_due_s() const { return due_.empty() ? kNoDeadline : std::get<0>(*due_.begin()); }
  // Takes out the requests whose deadlines have passed, those of one id together: all of them, or none where the first
  // of them (part 0) is not in the queue, or has aged. Costs nothing of those that stay.
  std::vector<Request> take_late(double now_s);
  // Both require a request.
  const Request& front() const { return lane(std::get<LaneKey>(*turns_.begin())).front(); }
  const Request& oldest() const { return lane(std::get<LaneKey>(*ages_.begin())).front(); }
  bool empty() const { return lanes_.empty(); }
  std::size_t size() const { return size_; }

  // Of all that wait, together.
  std::size_t bytes() const { return sum_.bytes; }  // host memory of prompts and pictures
  const Backlog& backlog() const { return sum_.backlog; }
  const CacheNeed& total_cache_need() const { return sum_.cache; }
  // Of the one in front.
  CacheNeed cache_need_of_front() const { return load_of(front()).cache; }

 private:
  struct Load {
    Backlog backlog;
    CacheNeed cache;
    std::size_t bytes = 0;
  };
  using LaneKey = std::pair<std::uint64_t, std::int32_t>;  // tenant, urgency
  static LaneKey key_of(const Request& request) { return {request.tenant, request.urgency()}; }
  // Of a lane with requests: urgency, what its tenant has been served, and which request is in front.
  using Turn = std::tuple<std::int32_t, std::uint64_t, double, RequestId, std::uint32_t, LaneKey>;
  // Which one is in front: arrival, id and part.
  using Age = std::tuple<double, RequestId, std::uint32_t, LaneKey>;
  // Of a line, by its first request: when it is due, when it arrived, its id, and where it is.
  using Due = std::tuple<double, double, RequestId, LaneKey>;

  // The requests of one tenant and urgency; the earliest arrival is in front. One that is taken out of the middle
  // leaves a gap, which goes when it comes to an end, or when there are more gaps than requests. There is none at
  // either end.
  class Lane {
   public:
    const Request& front() const { return places_.front().request; }
    const Request& back() const { return places_.back().request; }
    bool empty() const { return places_.empty(); }
    void push(Request request);
    Request pop();
    Request pop_back();
    // Of this arrival and id.
    std::vector<Request> take_line(double arrival_s, RequestId id);

    std::optional<Turn> turn = {};  // as they stand in the sets below
    std::optional<Age> age = {};

   private:
    struct Place {
      Request request;
      bool gap = false;
    };
    void drop_gaps();
    void load_soon_wanted() const;

    std::deque<Place> places_;
    std::size_t gaps_ = 0;
  };

  Load load_of(const Request& request) const;
  const Lane& lane(const LaneKey& key) const { return lanes_.find(key)->second; }
  void list(const LaneKey& key);
  std::vector<Request> pop_youngest_line();
  void charge(std::uint64_t tenant, std::uint64_t tokens);
  void count_in(const Request& request);
  void count_out(const Request& request);
  bool is_watched(const Request& request) const {
    return watches_deadlines_ && request.part == 0 && request.deadline_s < kNoDeadline && !request.aged;
  }

  int block_tokens_;
  bool watches_deadlines_;
  std::map<LaneKey, Lane> lanes_;  // with requests
  std::set<Turn> turns_;
  std::set<Age> ages_;
  std::set<Due> due_;
  std::size_t size_ = 0;
  bool any_tenants_ = false;  // ever: before that nobody is charged
  TokenCounters counters_;
  Load sum_;
};

}  // namespace computron

// The requests of one model that no step has begun, and when they came.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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

// The requests of one tenant, in the order of their arrival. One that is taken out of the middle leaves a gap, which
// goes when it comes to an end, or when there are more gaps than requests. There is none at either end.
class RequestLane {
 public:
  const Request& front() const { return places_.front().request; }
  const Request& back() const { return places_.back().request; }
  bool empty() const { return places_.empty(); }
  void push(Request request);
  Request pop();
  // Of this arrival and id.
  std::vector<Request> take_line(double arrival_s, RequestId id);
  // The places before `end` (kEnd: all) that are no gaps: the last one, if there is one.
  static constexpr std::size_t kEnd = static_cast<std::size_t>(-1);
  std::optional<std::size_t> last_before(std::size_t end) const;
  const Request& at(std::size_t place) const { return places_[place].request; }

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

// Whether somebody else could serve the request.
using Accepts = std::function<bool(const Request&)>;

// Equally urgent requests that wait, in a lane a tenant. In front is the oldest request of the tenant that has been
// served least: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
//
// Virtual time is what a tenant that has requests at all times would have been served: each token adds one part of as
// many as there are tenants then. Who comes, or has been away, joins with no less than that: so there is no credit for
// being away, and a tenant that waits is passed by for no longer than virtual time takes to its own counter, however
// many new ones come: kMostAhead tokens of each tenant that has requests meanwhile, since what it has been served
// beyond that is forgotten. Counters end with the last request.
class TenantQueue {
 public:
  static constexpr std::uint64_t kMostAhead = 1 << 16;  // tokens of a counter beyond the least of those that wait
  void push(Request request);
  // All require a request. pop() charges nobody.
  Request pop() { return pop(turns_.begin()->age.tenant); }
  Request pop_oldest() { return pop(ages_.begin()->tenant); }
  const Request& front() const { return lane(turns_.begin()->age.tenant).front(); }
  const Request& oldest() const { return lane(ages_.begin()->tenant).front(); }
  // As RequestLane's.
  std::vector<Request> take_line(std::uint64_t tenant, double arrival_s, RequestId id);
  bool empty() const { return ages_.empty(); }

  // The tenant, whether it has requests or not, has been served so many tokens. Whether anything has changed.
  bool charge(std::uint64_t tenant, std::uint64_t tokens);
  // Counters that are kept, those of tenants without requests among them: a few times as many as have requests.
  std::size_t counters() const { return tenants_.size(); }

  // Calls visit(lane) for each that has requests.
  template <class Visit>
  void visit_lanes(Visit&& visit) const {
    for (const Age& age : ages_) visit(lane(age.tenant));
  }

 private:
  // Of a lane with requests: which one is in front. The oldest first.
  struct Age {
    double arrival_s = 0;
    RequestId id = 0;
    std::uint32_t part = 0;
    std::uint64_t tenant = 0;
    auto operator<=>(const Age&) const = default;  // NOLINT(modernize-use-nullptr): it has none
  };
  // The least served first.
  struct Turn {
    std::uint64_t served = 0;
    Age age = {};
    auto operator<=>(const Turn&) const = default;  // NOLINT(modernize-use-nullptr): it has none
  };
  struct Tenant {
    RequestLane lane = {};
    std::uint64_t served = 0;
    std::optional<Turn> turn = {};  // as they stand in the sets below
    std::optional<Age> age = {};
  };

  Request pop(std::uint64_t tenant);
  const RequestLane& lane(std::uint64_t tenant) const { return tenants_.find(tenant)->second.lane; }
  void list(std::uint64_t tenant, Tenant& of);
  void forget_idle();

  std::unordered_map<std::uint64_t, Tenant> tenants_;  // with requests, or a counter beyond virtual time
  std::set<Turn> turns_;
  std::set<Age> ages_;
  std::uint64_t virtual_time_ = 0;
  std::size_t most_ = 64;  // counters, before those are forgotten that joining would raise anyway
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
  // So many tokens have been generated for a request that was here.
  void charge_generated(std::int32_t priority, std::uint64_t tenant, int tokens);
  // Takes out at most `n` requests, the youngest first, those of one id together: all of them, or none where they are
  // too many or the first of them (part 0) is not in the queue, or one of them has aged or is not accepted. Without
  // `accepts` every one is. Gives up behind kMostRefused lines that are not: they may be asked for often.
  static constexpr std::size_t kMostRefused = 256;
  std::vector<Request> take_youngest(std::size_t n, const Accepts& accepts = {});
  // When the first deadline of those that take_late() would take passes; infinity: there is none.
  double first_due_s() const { return due_.empty() ? kNoDeadline : std::get<0>(*due_.begin()); }
  // Takes out the requests whose deadlines have passed, those of one id together: all of them, or none where the first
  // of them (part 0) is not in the queue, or has aged. Costs nothing of those that stay.
  std::vector<Request> take_late(double now_s);
  // All require a request. The oldest of all, and of those that are as urgent as the one in front.
  const Request& front() const { return classes_.begin()->second.queue.front(); }
  const Request& oldest() const { return classes_.find(std::get<3>(*ages_.begin()))->second.queue.oldest(); }
  const Request& oldest_urgent() const { return classes_.begin()->second.queue.oldest(); }
  bool empty() const { return classes_.empty(); }
  std::size_t size() const { return size_; }

  // Of all that wait, together.
  std::size_t bytes() const { return sum_.bytes + lane_bytes(); }  // host memory of prompts, pictures and lanes
  const Backlog& backlog() const { return sum_.backlog; }
  // Tokens of the prompts of those that are more urgent than that. Looks at the urgencies before it.
  std::size_t prompt_tokens_before(std::int32_t urgency) const;
  bool any_batch() const { return !classes_.empty() && classes_.rbegin()->first >= 0; }  // no interactive ones
  const CacheNeed& total_cache_need() const { return sum_.cache; }
  // Of the one in front.
  CacheNeed cache_need_of_front() const { return load_of(front()).cache; }

 private:
  struct Load {
    Backlog backlog;
    CacheNeed cache;
    std::size_t bytes = 0;
  };
  // The oldest request of a class: arrival, id, part; and its urgency.
  using Age = std::tuple<double, RequestId, std::uint32_t, std::int32_t>;
  struct Class {
    TenantQueue queue = {};
    std::optional<Age> age = {};  // as it stands in the set below
    std::size_t counters = 0;     // as they have been counted
    std::size_t prompt_tokens = 0;
  };
  using Classes = std::map<std::int32_t, Class>;
  // Of a line, by its first request: when it is due, when it arrived, its id, urgency and tenant.
  using Due = std::tuple<double, double, RequestId, std::int32_t, std::uint64_t>;
  static Due due_of(const Request& request) {
    return {request.due_s(), request.arrival_s, request.id, request.urgency(), request.tenant};
  }

  Load load_of(const Request& request) const;
  std::size_t lane_bytes() const;
  std::vector<Request> take_line(const Due& line);
  void charge(std::int32_t priority, std::uint64_t tenant, std::uint64_t tokens);
  void list(Classes::iterator of);
  void count_in(const Request& request, Class& of);
  void count_out(const Request& request, Class& of);
  bool is_watched(const Request& request) const {
    return watches_deadlines_ && request.part == 0 && request.deadline_s < kNoDeadline && !request.aged;
  }

  int block_tokens_;
  bool watches_deadlines_;
  Classes classes_;  // [urgency] with requests
  std::set<Age> ages_;
  std::set<Due> due_;
  std::size_t size_ = 0;
  std::size_t counters_ = 0;  // of all classes
  Load sum_;
};

}  // namespace computron

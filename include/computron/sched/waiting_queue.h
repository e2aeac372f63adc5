// The requests of one model that no step has begun, and when they came.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <tuple>
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

// The earliest arrival is in front. push(), pop(), take_youngest() and take_late() are all that changes it, so the sums
// are always those of what is in it; they cost the same however many requests wait.
class WaitingQueue {
 public:
  // `watches_deadlines`: take_late() is wanted.
  explicit WaitingQueue(int block_tokens, bool watches_deadlines = false)
      : block_tokens_(block_tokens), watches_deadlines_(watches_deadlines) {}

  // A request that was read late goes before those that arrived after it.
  void push(Request request);
  // Requires a request.
  Request pop();
  // Takes out at most `n` requests, the youngest first, those of one id together: all of them, or none where they are
  // too many or the first of them (part 0) is not in the queue.
  std::vector<Request> take_youngest(std::size_t n);
  // When the first deadline of those that take_late() would take passes; infinity: there is none.
  double first_due_s() const { return due_.empty() ? kNoDeadline : std::get<0>(*due_.begin()); }
  // Takes out the requests whose deadlines have passed, those of one id together: all of them, or none where the first
  // of them (part 0) is not in the queue. Costs nothing of those that stay.
  std::vector<Request> take_late(double now_s);
  const Request& front() const { return places_.front().request; }
  bool empty() const { return places_.empty(); }
  std::size_t size() const { return places_.size() - gaps_; }

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
  // One that is taken out of the middle leaves a gap, which goes when it comes to an end of the queue, or when there
  // are more gaps than requests. There is none at either end.
  struct Place {
    Request request;
    bool gap = false;
  };
  // Of a line, by its first request: when it is due, when it arrived, its id.
  using Due = std::tuple<double, double, RequestId>;

  Load load_of(const Request& request) const;
  std::vector<Request> pop_youngest_line();
  void take_line(const Due& due, std::vector<Request>& taken);
  void drop_gaps();
  void load_soon_wanted() const;
  void count_in(const Request& request);
  void count_out(const Request& request);
  bool is_watched(const Request& request) const {
    return watches_deadlines_ && request.part == 0 && request.deadline_s < kNoDeadline;
  }

  int block_tokens_;
  bool watches_deadlines_;
  std::deque<Place> places_;
  std::size_t gaps_ = 0;
  std::set<Due> due_;
  Load sum_;
};

}  // namespace computron

// The requests of one model that no step has begun, and when they came.
#pragma once

#include <cstddef>
#include <deque>
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

// The earliest arrival is in front. push(), pop() and take_youngest() are all that changes it, so the sums are always
// those of what is in it; they cost the same however many requests wait.
class WaitingQueue {
 public:
  explicit WaitingQueue(int block_tokens) : block_tokens_(block_tokens) {}

  // A request that was read late goes before those that arrived after it.
  void push(Request request);
  // Requires a request.
  Request pop();
  // Takes out at most `n` requests, the youngest first, those of one id together: all of them, or none where they are
  // too many or the first of them (part 0) is not in the queue.
  std::vector<Request> take_youngest(std::size_t n);
  const Request& front() const { return requests_.front(); }
  bool empty() const { return requests_.empty(); }
  std::size_t size() const { return requests_.size(); }

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
  Load load_of(const Request& request) const;
  std::vector<Request> pop_youngest_line();
  void load_soon_wanted() const;
  void count_out(const Request& request);

  int block_tokens_;
  std::deque<Request> requests_;
  Load sum_;
};

}  // namespace computron

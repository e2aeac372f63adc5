// How many cache blocks a model's sequences will come to use: what admission looks at before it lets one more run.
//
// Sequences grow by a token a pass at the same time, and each gives back its blocks when it ends. So most blocks are in
// use just before one of them ends: when those that grow by g have grown so far, all that grow further have grown by g
// as well, and those that grow by less are gone. How much of its possible growth a sequence comes to is learned from
// those that have ended (GrowthRatio).
#pragma once

#include <cstddef>
#include <functional>
#include <map>

#include "computron/sched/request.h"

namespace computron {

// Cache blocks of one sequence, or of several together.
struct CacheNeed {
  int blocks = 0;  // for the tokens that there are
  int growth = 0;  // for those that may still come
  bool operator==(const CacheNeed&) const = default;
  CacheNeed& operator+=(const CacheNeed& other);
  CacheNeed& operator-=(const CacheNeed& other);
};

// What a sequence for `request` needs that has `tokens` tokens so far, in blocks of `block_tokens`.
CacheNeed cache_need(const Request& request, int tokens, int block_tokens);

// `growth` blocks, of which sequences come to use `ratio`, rounded up.
int expected_growth(int growth, double ratio);

class CacheForecast {
 public:
  void add(const CacheNeed& need);
  // One that has been added.
  void remove(const CacheNeed& need);
  // Most blocks in use at any one time, with one sequence more.
  int peak(const CacheNeed& more, double growth_ratio) const;
  // Of all sequences together.
  const CacheNeed& sum() const { return sum_; }

 private:
  struct Group {
    int sequences = 0, blocks = 0;
  };
  std::map<int, Group, std::greater<>> groups_;  // by growth
  CacheNeed sum_;
};

// Generated tokens ÷ max_tokens of the sequences that have ended: a moving mean that begins at 1.
class GrowthRatio {
 public:
  // Sequences that failed, or could not grow, tell nothing.
  void observe(const Request& request, const Completion& completion);
  double value() const { return value_; }

 private:
  std::size_t observed_ = 0;
  double value_ = 1;
};

}  // namespace computron

// What a thread does between two unsuccessful polls.
//
// Spinning is right only when every rank and its copy thread have a core of their own; with fewer cores, waiting
// ranks must give theirs to computing ones: a blocking sum over more ranks than cores made 8 ms of compute 680.
#pragma once

#include <string>
#include <string_view>

namespace computron {

struct IdlePolicy {
  enum class Kind { kSpin, kYield, kSleep };
  Kind kind = Kind::kSleep;
  int sleep_us = 50;       // of kSleep
  int yields_before = 50;  // of kSleep: sched_yield this often before the first sleep

  // "spin", "yield" or "sleep:US"; throws Error{kUsage} naming `text`.
  static IdlePolicy parse(std::string_view text);
  // kSpin if `cores` are enough for `threads_per_rank` threads of each of `ranks` ranks, else kSleep.
  static IdlePolicy choose(int cores, int ranks, int threads_per_rank);
  std::string to_string() const;
};

// One waiting place's progress through its policy. pause() after each unsuccessful poll, reset() after a successful
// one.
class Idler {
 public:
  explicit Idler(IdlePolicy policy) : policy_(policy) {}
  void pause();
  void reset() { pauses_ = 0; }

 private:
  IdlePolicy policy_;
  int pauses_ = 0;
};

}  // namespace computron

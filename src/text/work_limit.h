// A bound on what encoding a text may cost: there are tokenizer files with which it would take hours.
#pragma once

#include <cstddef>

namespace computron {

class WorkLimit {
 public:
  // While it lives, this thread has a time for `bytes` of text that is tens of times what it takes at its slowest; of
  // the thread's own, so that a busy machine changes nothing. Within another one: that one counts.
  explicit WorkLimit(std::size_t bytes);
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

  // To be called in every loop whose length a tokenizer file decides. RequestError once the time is over.
  static void check();

 private:
  bool outermost_;
};

}  // namespace computron

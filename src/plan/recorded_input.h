// The requests of a record, as they came to its dispatcher.
#pragma once

#include <map>
#include <utility>

#include "computron/plan/record.h"
#include "computron/plan/virtual_run.h"

namespace computron {

// Submits at the times recorded, but what had waited for room as soon as there is some. Requests without an end in the
// record are left out; the others generate as many tokens as they did.
class RecordedInput : public VirtualInput {
 public:
  explicit RecordedInput(const Record& record);  // borrows it

  double due_s() const override;
  void feed(Dispatcher& dispatcher, double now_s) override;

 private:
  bool feed_next(Dispatcher& dispatcher);
  bool is_due(double now_s) const;

  const Record& record_;
  std::map<std::pair<RequestId, std::uint32_t>, const RecordedCompletion*> ends_;
  std::size_t next_ = 0;
  bool full_ = false;  // there is no room for the next one
  bool closed_ = false;
};

}  // namespace computron

// The part of the input for which the schedulers have no room: lines that were read and checked, of which a few numbers
// are kept (DeferredRequests), and which are read again when it is their turn. The files are read beside serving
// (LineRereader); a bounded number of lines is on its way.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "computron/dispatch/dispatcher.h"
#include "computron/requests/line_rereader.h"
#include "computron/serve/deferred_requests.h"

namespace computron {

class DeferredInput {
 public:
  // Borrows `rereader`; null: lines cannot be read again, so none is deferred. The others as DeferredRequests.
  DeferredInput(LineRereader* rereader, const std::vector<int>& priorities, std::size_t ahead)
      : rereader_(rereader), requests_(priorities, ahead) {}

  bool possible() const { return rereader_ != nullptr; }
  // No line waits here or is being read again.
  bool empty() const { return size() == 0; }
  std::size_t size() const { return requests_.size() + coming_.size(); }
  bool any_coming() const { return !coming_.empty(); }

  // Forgets the requests of a line of that arrival; they are at least one.
  void defer(const IncomingRequest& incoming, double arrival_s);
  // Has lines read again whose turn it is: those for which the schedulers have room, and those that go ahead.
  void ask(const Dispatcher& dispatcher, double now_s);
  struct Line {
    IncomingRequest incoming;  // no requests but a failure if what it names (an image) has changed meanwhile
    double arrival_s = 0;
    ModelId model = 0;
    std::int32_t priority = 0;
    bool ahead = false;  // begun() is to be called for it
  };
  // The next that was asked for, if it is there. Throws as LineRereader::poll().
  std::optional<Line> poll();
  // As DeferredRequests'.
  void begun(ModelId model, std::int32_t priority) { requests_.begun(model, priority); }

 private:
  struct Coming {
    double arrival_s = 0;
    std::size_t bytes = 0;
    ModelId model = 0;
    std::int32_t priority = 0;
    bool ahead = false;
  };
  bool ask_for_one(const Dispatcher& dispatcher, double now_s);

  LineRereader* rereader_;
  DeferredRequests requests_;
  std::deque<Coming> coming_;  // in the order in which they were asked for
  std::size_t coming_bytes_ = 0;
};

}  // namespace computron

// A workload as a front end: all requests are submitted at once, each becomes visible at its arrival, and what becomes
// of them is kept.
#pragma once

#include <vector>

#include "computron/serve/front_end.h"

namespace computron {

class WorkloadExperiment : public FrontEnd {
 public:
  explicit WorkloadExperiment(std::vector<Request> requests) : requests_(std::move(requests)) {}

  bool take_input(Dispatcher& dispatcher, double now) override;
  // ConfigError when a request failed.
  void put_results(std::vector<Completion> completions, double now) override;
  void step_done(const std::vector<Report>& reports, double now) override;

  // In the order in which they ended.
  const std::vector<Completion>& completions() const { return completions_; }
  // Of all ranks.
  std::size_t link_bytes() const { return link_bytes_; }
  // Of the rank whose copies took longest.
  double link_busy_s() const { return link_busy_s_; }

 private:
  std::vector<Request> requests_;
  bool closed_ = false;
  std::vector<Completion> completions_;
  std::size_t link_bytes_ = 0;
  double link_busy_s_ = 0;
};

}  // namespace computron

// Computron's experiment as a front end: requests of one token for models in turn, one at a time, with device memory
// for one model only, so that every request finds its model gone. Each is sent a second time when it has been answered:
// the model is resident then, and what the second answer takes is what computing alone takes.
#pragma once

#include <vector>

#include "computron/serve/front_end.h"
#include "computron/serve/job.h"
#include "src/bench/swap_metrics.h"

namespace computron {

struct SwapExperimentOptions {
  int requests = 24;  // measured, each of them sent twice
  int warmup = 4;     // before them, the same but not kept
  int prompt_tokens = 8;
};

class SwapExperiment : public FrontEnd {
 public:
  // Borrows nothing of `job`. Error{kUsage} if a model's context is shorter than the prompt and a token.
  SwapExperiment(const Job& job, const SwapExperimentOptions& options);

  bool take_input(Dispatcher& dispatcher, double now) override;
  // ConfigError when the pool does not make the experiment: a first request found its model resident, or a second one
  // did not. Error{kInternal} when the two answers differ.
  void put_results(std::vector<Completion> completions, double now) override;
  void step_done(const std::vector<Report>& reports, double now) override;

  const std::vector<SwapSample>& samples() const { return samples_; }

 private:
  Request request() const;
  bool repeated() const { return answered_ % 2 == 1; }
  std::vector<RankCopies> copies_since_submit() const;
  void take_swapped(const Completion& completion);
  void take_resident(const Completion& completion);

  std::vector<ServedModel> models_;
  SwapExperimentOptions options_;
  int answered_ = 0;  // requests
  bool outstanding_ = false;
  bool closed_ = false;
  std::vector<RankCopies> so_far_, at_submit_;  // [rank]
  SwapSample sample_;                           // of the request being measured
  ScoredToken answer_;                          // its first
  std::vector<SwapSample> samples_;
};

}  // namespace computron

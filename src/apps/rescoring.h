// The best placements of a search, played pass by pass by the dispatcher and the schedulers that serve.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "computron/placement/prediction.h"
#include "computron/plan/predicted_run.h"

namespace computron {

struct RescoringOptions {
  std::size_t placements = 5;  // at most; 0: none
  int prompt_tokens = 256, max_tokens = 64;
  // As of the job.
  std::string policy = {};          // empty: throughput for a makespan, otherwise balanced
  int max_seqs = 64;                // of a model at a time
  int max_batch_tokens = 0;         // of a pass; 0: usual_batch_tokens()
  double latency_s = 0;             // of a step or its report, each way; 0: not known
  std::function<bool()> stop = {};  // asked before each placement is played
};

class Rescoring {
 public:
  // Borrows the evaluator, whose search has ended.
  Rescoring(PlacementEvaluator& evaluator, RescoringOptions options)
      : evaluator_(evaluator), options_(std::move(options)) {}

  // Of the best placements, those of different groups, the one that is best when the training is played, in the form
  // that a job can have; nothing where none could be played. Only the first training requests are, so many that a
  // placement takes a few seconds.
  std::optional<ModelPlacement> best();
  // What is to be expected of a placement for these requests, played; and in words of which: "" or ", the first 1000".
  Prediction predict(const ModelPlacement& placement, std::span<const Arrival> arrivals, double duration_s,
                     std::string& part);

  std::size_t played() const { return played_; }

 private:
  std::span<const Arrival> first(std::span<const Arrival> arrivals, double passes) const;
  Prediction play(const ModelPlacement& placement, std::span<const Arrival> arrivals, double duration_s) const;
  ClusterOptions cluster_of(const ModelPlacement& placement) const;

  PlacementEvaluator& evaluator_;
  RescoringOptions options_;
  std::size_t played_ = 0;
};

}  // namespace computron

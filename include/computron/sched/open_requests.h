// The requests that have been submitted and are not done, by model, and what computing all of them takes: the length of
// the queue that a new request joins, in seconds.
//
//   work of a model = requests ÷ prompts a pass × a pass of so many prompts of mean length
//                   + (tokens to generate × growth - requests) ÷ sequences a pass × a pass of so many
//
// on the slowest stage. A pass holds the sequences of a micro-batch (max_seqs ÷ stages), of prompts as many as its
// tokens allow. A prompt's own pass gives the first token that is generated, and an encoder's only result.
//
// Requests are of three ranks, by their priority: interactive (below 0), batch (0) and what comes behind that. A new
// one joins behind those of its own rank and the ranks before it.
//
// A request counts whole until it is done, so that equal requests make a queue of as many equal parts (the shortest
// queue of AlpaServe's dispatcher); who quotes takes off what is computed of the passes in flight. Work is counted in
// whole picoseconds: its sum does not depend on the order of things.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "computron/sched/cost_model.h"
#include "computron/sched/request.h"

namespace computron {

class OpenRequests {
 public:
  // `max_batch_tokens` and `seqs_a_pass` of one pass.
  OpenRequests(std::size_t models, int max_batch_tokens, int seqs_a_pass)
      : max_batch_tokens_(max_batch_tokens), seqs_a_pass_(seqs_a_pass), models_(models) {}

  // Tokens of a request: of its prompt, and at most to be generated; and its rank.
  struct Work {
    std::size_t prompt_tokens = 0, generated_tokens = 0;
    std::size_t rank = 1;
  };
  static Work work_of(const Request& request);
  void add(ModelId model, const Work& work);
  // One that has been added.
  void remove(ModelId model, const Work& work);
  // The work of the model is counted anew: whenever its requests or costs have changed. `growth_ratio`: generated
  // tokens ÷ max_tokens, as sequences of the model did so far.
  void count_anew(ModelId model, const CostModel& costs, double growth_ratio);

  std::size_t count() const { return count_before(kRanks - 1); }
  // Of all of them together, if every pass were full.
  double work_s() const { return work_before_s(kRanks - 1); }
  // The same of this rank and those before it.
  std::size_t count_before(std::size_t rank) const;
  double work_before_s(std::size_t rank) const;
  std::set<ModelId> models_before(std::size_t rank) const;
  // Models that have any.
  const std::set<ModelId>& models() const { return open_models_; }
  // Seconds of one request's own passes, alone.
  double alone_s(ModelId model, const Request& request, const CostModel& costs, double growth_ratio) const;

 private:
  static constexpr std::size_t kRanks = 3;
  struct Of {
    std::size_t requests = 0;
    Work tokens;
    std::int64_t work_ps = 0;
  };
  using Model = std::array<Of, kRanks>;
  static bool has_any(const Model& model, std::size_t rank);
  // Seconds that the prompts, and the tokens after the first ones, of all requests (at least 1) take in full passes.
  double prompts_s(ModelId model, const Of& of, const CostModel& costs) const;
  double decodes_s(ModelId model, const Of& of, const CostModel& costs, double growth_ratio) const;

  int max_batch_tokens_, seqs_a_pass_;
  std::vector<Model> models_;  // [model][rank]
  std::set<ModelId> open_models_;
  std::array<std::size_t, kRanks> counts_{};
  std::array<std::int64_t, kRanks> work_ps_{};
};

}  // namespace computron

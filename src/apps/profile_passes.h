// Passes of chosen sizes, run by the engine and measured: a front end whose requests make them.
//
//   decode    as many sequences of one token each as are wanted together: every pass takes a token of all of them. When
//             they have grown to the context that is wanted, passes are measured; then half of the sequences end, and
//             passes of half the rows are measured, down to one
//   prefill   prompts that fill one pass, again and again; of encoders inputs
//
// Pipelines get as many sequences for each stage, so that all stages have work, as in service.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "computron/comm/mesh.h"
#include "computron/model/config.h"
#include "computron/serve/front_end.h"

namespace computron {

struct ProfileLimits {
  int max_seqs = 64;            // sequences that run together
  int max_batch_tokens = 2048;  // of a pass
  int context = 256;            // tokens before those that are decoded, and of a prompt, where the model takes so many
};

struct PassClass {
  int rows = 1;
  bool decodes = false;
  int sequences = 1;  // that run together, on all stages
  int tokens = 1;     // that each begins with
};

// Powers of two of rows, ascending: as decoding sequences as far as these can run together, then as prompts; of
// encoders as inputs. None of more rows than the model's positions and the limits allow.
std::vector<PassClass> pass_classes(const ModelConfig& config, const ProfileLimits& limits, int pp);

// What passes of a class took.
struct MeasuredPass {
  PassClass of;
  int context = 0;              // tokens before each row
  std::vector<double> stage_s;  // [pp] median, slowest rank of each stage
};

class PassExperiment : public FrontEnd {
 public:
  PassExperiment(const ModelConfig& config, const ProfileLimits& limits, MeshShape shape);

  bool take_input(Dispatcher& dispatcher, double now) override;
  void put_results(std::vector<Completion> completions, double now) override;
  void step_planned(const Step& step, double now) override;
  void step_done(const std::vector<Report>& reports, double now) override;

  // By rows. Classes that never came about, as where the pool is too small for their caches, are not there.
  std::vector<MeasuredPass> passes() const;
  // From rank 0 to a rank, and as much back: what single passes took beyond computing; 0 where there were none.
  double step_latency_s() const;
  // Why requests were refused; empty if none were.
  const std::string& fault() const { return fault_; }

 private:
  class Watch;

  struct Sent {
    int rows = 0;
    double at_s = 0;
    bool alone = false;  // no other step was in flight
  };
  struct Samples {
    std::vector<std::vector<double>> stage_s;  // [pp] of each pass
    int context = 0;
    int warm = 0;         // passes that do not count
    double begin_s = -1;  // of the first pass
    int tries = 0;        // times that its requests were submitted
  };

  const PassClass& current() const { return classes_[order_[at_]]; }
  Samples& samples() { return samples_[order_[at_]]; }
  bool over() const { return at_ >= order_.size(); }
  bool enough(double now);
  void go_on();
  void submit(Dispatcher& dispatcher, double now);
  Request decoding_request(int index);
  Request prompt_request();
  std::vector<TokenId> random_tokens(int count);

  const ModelConfig config_;
  const MeshShape shape_;
  const std::vector<PassClass> classes_;
  std::vector<std::size_t> order_;  // in which they are measured: decoding ones from the largest down, then prompts
  std::size_t at_ = 0;              // in it
  std::vector<Samples> samples_;    // [class]
  std::vector<double> latencies_s_;

  std::map<StepId, Sent> sent_;  // and not reported
  std::size_t open_ = 0;         // requests
  RequestId last_id_ = 0;
  int context_;        // wanted before decoding passes are measured
  int generated_ = 0;  // tokens of the first decoding sequence
  int alive_ = 0;      // decoding sequences that go on
  bool closed_ = false;
  std::string fault_;
  std::mt19937 random_{1};
};

}  // namespace computron

// Workloads made by rule: requests that arrive at each model as a Gamma renewal process, the one of Computron's and
// AlpaServe's experiments. A file of them is what `computron workload` writes; a simulator takes them as they are.
//
// The time between two arrivals at a model is Gamma with shape 1/cv² and scale cv²/rate: mean 1/rate, coefficient of
// variation cv. cv 1 is a Poisson process, more comes in bursts, less is regular. The first arrival lies one such time
// after 0, so bursty processes start with more than rate × duration says: (cv² - 1)/2 arrivals on average.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/sched/request.h"

namespace computron {

struct WorkloadModel {
  std::string id;  // as in a model list
  double rate_per_s = 0;
};

struct WorkloadOptions {
  std::vector<WorkloadModel> models;  // a request's ModelId is the index here
  double cv = 1;
  double duration_s = 30;  // arrivals at [0, duration_s)
  std::uint64_t seed = 0;
  int prompt_tokens = 8;
  int max_tokens = 1;
  int vocab = 1000;  // prompts are uniform over [kFirstPromptToken, vocab)
};

constexpr TokenId kFirstPromptToken = 4;  // below it: padding, begin, end and unknown in the vocabularies we know

// "ID=RATE" each; Error{kUsage} naming the item.
std::vector<WorkloadModel> parse_workload_models(const std::vector<std::string>& items);
// Parallel lists, as `--models a,b --rates 10,1`; Error{kUsage} when their lengths differ.
std::vector<WorkloadModel> join_workload_models(const std::vector<std::string>& ids, const std::vector<double>& rates);

// The requests in order of arrival, with `id` their place. Arrivals are whole microseconds, so that the last bit of a
// machine's logarithm does not show: the same options give the same requests everywhere. Each model has generators of
// its own, keyed by seed and id: other models, and for arrivals the lengths of prompts, make no difference to it.
// All tokens are generated (ignore_eos). Error{kUsage} naming the option at fault.
std::vector<Request> make_workload(const WorkloadOptions& options);

// Gives `requests` that were made otherwise what a request file needs: arrivals at whole microseconds, and prompts of
// the length that they have, of tokens drawn as above.
void draw_prompts(std::vector<Request>& requests, const std::vector<WorkloadModel>& models, std::uint64_t seed,
                  int vocab);

// The requests as lines of a request file (inputs/README.md), each with its newline: completions, and embeddings of
// encoders. The custom_id is the model's id and the number among the model's requests: "opt-a-17".
std::string workload_lines(const std::vector<WorkloadModel>& models, const std::vector<Request>& requests);

}  // namespace computron

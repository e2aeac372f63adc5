#include "src/bench/swap_experiment.h"

#include <fmt/format.h>

#include <algorithm>

namespace computron {
namespace {

constexpr TokenId kFirstToken = 4;  // below it: padding, begin, end and unknown in the vocabularies we know

std::uint64_t bytes_of(const std::vector<RankCopies>& copies) {
  std::uint64_t bytes = 0;
  for (const RankCopies& rank : copies) bytes += rank.bytes;
  return bytes;
}

}  // namespace

SwapExperiment::SwapExperiment(const Job& job, const SwapExperimentOptions& options)
    : models_(job.models().served()), options_(options), so_far_(job.mesh().shape.ranks()) {
  for (const ServedModel& model : models_) {
    if (model.config.pools()) {
      throw Error(ExitCode::kUsage, fmt::format("model {} is an encoder or embedder: it generates nothing", model.id));
    }
    if (options.prompt_tokens >= model.config.max_positions || model.config.vocab <= kFirstToken) {
      throw Error(ExitCode::kUsage,
                  fmt::format("--prompt-tokens {}: model {} takes {} positions and {} tokens", options.prompt_tokens,
                              model.id, model.config.max_positions, model.config.vocab));
    }
  }
}

bool SwapExperiment::take_input(Dispatcher& dispatcher, double now) {
  if (outstanding_ || closed_) return false;
  if (answered_ == 2 * (options_.warmup + options_.requests)) {
    dispatcher.close_input();
    return closed_ = true;
  }
  at_submit_ = so_far_;
  Request next = request();
  next.arrival_s = now;
  dispatcher.submit(std::move(next));
  return outstanding_ = true;
}

Request SwapExperiment::request() const {
  const int number = answered_ / 2;
  Request request;
  request.id = static_cast<RequestId>(answered_);
  request.model = static_cast<ModelId>(number % static_cast<int>(models_.size()));
  const int tokens = models_[request.model].config.vocab - kFirstToken;
  for (int i = 0; i < options_.prompt_tokens; ++i) {
    request.prompt.push_back(kFirstToken + (number * 8191 + i * 127) % tokens);
  }
  request.max_tokens = 1;
  request.logprobs = 0;
  request.ignore_eos = true;
  return request;
}

void SwapExperiment::step_done(const std::vector<Report>& reports, double /*now*/) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    so_far_[rank] = {reports[rank].busy_s, reports[rank].link_bytes};
  }
}

std::vector<RankCopies> SwapExperiment::copies_since_submit() const {
  std::vector<RankCopies> copies;
  for (std::size_t rank = 0; rank < so_far_.size(); ++rank) {
    copies.push_back({so_far_[rank].busy_s - at_submit_[rank].busy_s, so_far_[rank].bytes - at_submit_[rank].bytes});
  }
  return copies;
}

void SwapExperiment::put_results(std::vector<Completion> completions, double /*now*/) {
  ensure(completions.size() == 1 && outstanding_, "completions without a request");
  const Completion& completion = completions.front();
  if (!completion.error_code.empty()) {
    throw ConfigError(
        fmt::format("a request for {} failed: {}", models_[completion.model].id, completion.error_message));
  }
  repeated() ? take_resident(completion) : take_swapped(completion);
  ++answered_;
  outstanding_ = false;
}

void SwapExperiment::take_swapped(const Completion& completion) {
  sample_ = {.model = completion.model,
             .response_s = completion.finished_s - completion.arrival_s,
             .exec_s = 0,
             .copies = copies_since_submit()};
  answer_ = completion.tokens.at(0);
  if (bytes_of(sample_.copies) > 0) return;
  throw ConfigError(
      fmt::format("{} was still resident: nothing is swapped with this pool", models_[completion.model].id));
}

void SwapExperiment::take_resident(const Completion& completion) {
  const std::string& model = models_[completion.model].id;
  if (bytes_of(copies_since_submit()) > 0) {
    throw ConfigError(fmt::format("the pool does not keep {} resident: enlarge it", model));
  }
  const ScoredToken& answer = completion.tokens.at(0);
  const bool same = answer.token == answer_.token && answer.logprob == answer_.logprob;
  if (!same) throw Error(ExitCode::kInternal, model + " answers otherwise when it is resident");
  sample_.exec_s = completion.finished_s - completion.arrival_s;
  if (answered_ / 2 >= options_.warmup) samples_.push_back(sample_);
}

}  // namespace computron

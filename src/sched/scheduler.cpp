#include "computron/sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "computron/base/size.h"

namespace computron {

Scheduler::Scheduler(std::vector<ModelShape> models, std::vector<std::string> names, std::unique_ptr<Policy> policy,
                     const SchedulerOptions& options)
    : models_(std::move(models)),
      names_(std::move(names)),
      policy_(std::move(policy)),
      options_(options),
      queues_(models_.size()) {
  const std::size_t stages = models_.front().images.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::vector<const Image*> images;
    for (std::size_t m = 0; m < models_.size(); ++m) {
      const Image& image = *images.emplace_back(models_[m].images[stage]);
      const int needed = image.pages() + models_[m].caches[stage].frames_for(1);
      if (needed > options_.frames) {
        throw ConfigError(fmt::format(
            "model {}: its shard on stage {} needs {} ({} pages and {} of cache), but the pool has {} frames of {}",
            names_[m], stage, format_size(needed * image.page_bytes), image.pages(), needed - image.pages(),
            options_.frames, format_size(image.page_bytes)));
      }
    }
    pools_.emplace_back(std::move(images), options_.frames);
  }
}

void Scheduler::submit(Request request) {
  const ModelId model = request.model;
  if (Sequence::needs_no_pass(request)) {
    completions_.push_back(Sequence(std::move(request), 0, {}).take_completion());
  } else if (!fits(model, blocks_of(model, request))) {
    refuse(request, fmt::format("{} tokens of cache can never fit beside the weights of {} in the device memory",
                                Sequence::cache_tokens(request), names_[model]));
  } else {
    arriving_.push(std::move(request));
  }
}

void Scheduler::refuse(const Request& request, std::string message) {
  Completion completion{.id = request.id,
                        .model = request.model,
                        .prompt = {},
                        .tokens = {},
                        .prompt_tokens = static_cast<int>(request.prompt.size()),
                        .error_code = "context_length_exceeded",
                        .error_message = std::move(message),
                        .arrival_s = request.arrival_s,
                        .finished_s = request.arrival_s};
  completions_.push_back(std::move(completion));
}

int Scheduler::blocks_of(ModelId model, const Request& request) const {
  return ceil_div(Sequence::cache_tokens(request), models_[model].caches.front().block_tokens);
}

bool Scheduler::fits(ModelId model, int blocks) const {
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int cache = models_[model].caches[stage].frames_for(blocks);
    if (pools_[stage].pages(model) + cache > options_.frames) return false;
  }
  return true;
}

Decision Scheduler::next(double now_s) {
  admit_arrivals(now_s);
  const double nothing = std::numeric_limits<double>::infinity();
  if (in_flight_.size() >= static_cast<std::size_t>(options_.steps_in_flight)) return WaitUntil{nothing};

  PlannedStep planned;
  planned.step.stages.resize(pools_.size());
  if (running_ && batch_.empty() && in_flight_.empty()) running_.reset();
  if (!running_) {
    if (!any_waiting()) {
      if (!arriving_.empty()) return WaitUntil{arriving_.top().arrival_s};
      if (input_closed_) return AllDone{};
      return WaitUntil{nothing};
    }
    begin_turn(planned);
  }
  if (!fill_batch(planned.step)) return WaitUntil{nothing};
  return seal(std::move(planned));
}

void Scheduler::admit_arrivals(double now_s) {
  while (!arriving_.empty() && arriving_.top().arrival_s <= now_s) {
    // One that was read late goes before those that arrived after it.
    std::deque<Request>& waiting = queues_[arriving_.top().model].waiting;
    waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), arriving_.top(), earlier), arriving_.top());
    arriving_.pop();
  }
}

bool Scheduler::any_waiting() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const Queue& q) { return !q.waiting.empty(); });
}

std::size_t Scheduler::waiting() const {
  std::size_t count = arriving_.size();
  for (const Queue& queue : queues_) count += queue.waiting.size();
  return count;
}

std::vector<ModelView> Scheduler::views() const {
  std::vector<ModelView> views;
  for (ModelId m = 0; m < queues_.size(); ++m) {
    const Queue& queue = queues_[m];
    ModelView view{.model = m, .waiting = queue.waiting.size(), .last_used = queue.last_used};
    if (!queue.waiting.empty()) {
      view.oldest_arrival_s = queue.waiting.front().arrival_s;
      view.oldest_request = queue.waiting.front().id;
    }
    for (const StagePool& pool : pools_) view.missing_pages += pool.missing_pages(m);
    views.push_back(view);
  }
  return views;
}

// Nothing is in flight: every frame's last use has been reported, so fetches wait for nothing.
void Scheduler::begin_turn(PlannedStep& planned) {
  const std::vector<ModelView> models = views();
  const ModelId model = policy_->next_model(models);
  const std::vector<ModelId> coldest_first = policy_->eviction_order(models, model);
  int blocks = 0;
  std::vector<Request> requests = take_batch(model, blocks);
  for (Request& request : requests) {
    batch_.emplace_back(std::move(request), ++last_sequence_, models_[model].eos_tokens);
  }
  running_ = model;
  planned.swap = models[model].missing_pages > 0;
  close_finished(planned.step);
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    StagePlan& plan = planned.step.stages[stage];
    for (ModelId other = 0; other < models_.size(); ++other) {
      if (other != model) pools_[stage].resize_cache(other, 0, {}, plan);
    }
    pools_[stage].resize_cache(model, models_[model].caches[stage].frames_for(blocks), coldest_first, plan);
    pools_[stage].fetch_missing(model, coldest_first, plan);
  }
  free_blocks_.clear();
  for (int b = 0; b < blocks; ++b) free_blocks_.push_back(static_cast<std::uint32_t>(b));
}

// The head of the model's queue, as many requests as sequences are allowed and their caches fit.
std::vector<Request> Scheduler::take_batch(ModelId model, int& blocks) {
  std::vector<Request> batch;
  std::deque<Request>& waiting = queues_[model].waiting;
  while (!waiting.empty() && batch.size() < static_cast<std::size_t>(options_.max_seqs)) {
    const int more = blocks_of(model, waiting.front());
    if (!fits(model, blocks + more)) break;
    blocks += more;
    batch.push_back(std::move(waiting.front()));
    waiting.pop_front();
  }
  return batch;
}

// Chunks of the sequences that have waited longest, of those not in flight: a fair share of the batch, so that every
// step in flight has some.
bool Scheduler::fill_batch(Step& step) {
  const std::size_t share = ceil_div<std::size_t>(batch_.size(), options_.steps_in_flight);
  const int block_tokens = models_[*running_].caches.front().block_tokens;
  int tokens_left = options_.max_batch_tokens;
  std::vector<Sequence*> chosen;
  auto next = batch_.begin();
  for (std::size_t left = batch_.size(); left > 0 && chosen.size() < share && tokens_left > 0; --left) {
    const auto sequence = next++;
    if (sequence->in_flight()) continue;
    step.chunks.push_back(sequence->next_chunk(tokens_left, block_tokens, free_blocks_));
    tokens_left -= static_cast<int>(step.chunks.back().tokens.size());
    chosen.push_back(&*sequence);
    batch_.splice(batch_.end(), batch_, sequence);
  }
  if (chosen.empty()) return false;
  step.id = ++last_step_;
  step.model = *running_;
  queues_[*running_].last_used = step.id;
  in_flight_.emplace_back(step.id, std::move(chosen));
  return true;
}

// Adds what ended since the last step, brings the stages' states up to date and notes what the ranks must report.
PlannedStep Scheduler::seal(PlannedStep planned) {
  close_finished(planned.step);
  for (StagePool& pool : pools_) {
    for (const SequenceChunk& chunk : planned.step.chunks) pool.state().extend(planned.step.model, chunk);
    planned.expected.push_back(pool.state().digest());
  }
  return planned;
}

void Scheduler::close_finished(Step& step) {
  for (const SequenceId id : to_close_) {
    for (StagePool& pool : pools_) pool.state().close(id);
    step.closed.push_back(id);
  }
  to_close_.clear();
}

void Scheduler::completed(StepId step, std::span<const SampledRow> rows, double now_s) {
  ensure(!in_flight_.empty() && in_flight_.front().first == step, "steps complete out of order");
  const std::vector<Sequence*> members = std::move(in_flight_.front().second);
  in_flight_.pop_front();
  for (Sequence* sequence : members) {
    sequence->take_rows(rows, now_s);
    if (!sequence->finished()) continue;
    to_close_.push_back(sequence->id());
    free_blocks_.insert(free_blocks_.end(), sequence->blocks().begin(), sequence->blocks().end());
    Completion completion = sequence->take_completion();
    completion.finished_s = now_s;
    completions_.push_back(std::move(completion));
    batch_.remove_if([sequence](const Sequence& member) { return &member == sequence; });
  }
  ensure(rows.empty(), "more rows of logits than the step asked for");
}

}  // namespace computron

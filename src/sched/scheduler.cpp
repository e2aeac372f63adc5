#include "computron/sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "computron/base/size.h"
#include "computron/model/pass.h"

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::vector<std::vector<const ShardLayout*>> layouts_of(const std::vector<ModelShape>& models) {
  std::vector<std::vector<const ShardLayout*>> layouts;
  for (const ModelShape& model : models) layouts.push_back(model.layouts);
  return layouts;
}

}  // namespace

Scheduler::Scheduler(std::vector<ModelShape> models, std::vector<std::string> names, std::unique_ptr<Policy> policy,
                     const SchedulerOptions& options)
    : models_(std::move(models)),
      names_(std::move(names)),
      policy_(std::move(policy)),
      options_(options),
      arriving_(models_.size()),
      swapping_(models_.size(), false),
      open_(models_.size(), options.max_batch_tokens, options.max_seqs),
      costs_(layouts_of(models_), options.costs) {
  for (std::size_t stage = 0; stage < models_.front().layouts.size(); ++stage) {
    std::vector<const ShardLayout*> layouts;
    for (const ModelShape& model : models_) layouts.push_back(model.layouts[stage]);
    pools_.emplace_back(std::move(layouts), options_.frames, options_.host_slots);
    host_links_.push_back({.landed_s = std::vector<double>(models_.size(), 0)});
  }
  for (ModelId m = 0; m < models_.size(); ++m) {
    work_.emplace_back(models_[m].caches.front().block_tokens, models_[m].eos_tokens, options_.prefix_caching);
    check_fits(m);
  }
}

void Scheduler::check_fits(ModelId model) const {
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int weights = models_[model].pinned ? pools_[stage].pages(model) : pools_[stage].fewest_frames(model);
    const int cache = models_[model].caches[stage].frames_for(1), pinned = pinned_beside(model, stage);
    if (weights + cache + pinned <= options_.frames) continue;
    const std::size_t page_bytes = layout(model, stage).page_bytes;
    throw ConfigError(
        fmt::format("model {}: on stage {} a pass needs {} ({} pages at a time, {} of cache, {} of pinned models), but "
                    "the pool has "
                    "{} frames of {}",
                    names_[model], stage, format_size((weights + cache + pinned) * page_bytes), weights, cache, pinned,
                    options_.frames, format_size(page_bytes)));
  }
}

// Frames that the pages of other, pinned models never leave.
int Scheduler::pinned_beside(ModelId model, std::size_t stage) const {
  int frames = 0;
  for (ModelId m = 0; m < models_.size(); ++m) {
    if (m != model && models_[m].pinned) frames += pools_[stage].pages(m);
  }
  return frames;
}

void Scheduler::submit(Request request) {
  const ModelId model = request.model;
  if (request.needs_no_pass()) {
    completions_.push_back(Sequence(std::move(request), 0, {}).take_completion());
  } else if (!can_ever_fit(model, work_[model].cache().blocks_for(request.cache_tokens()))) {
    refuse(request, fmt::format("{} tokens of cache can never fit beside the weights of {} in the device memory",
                                request.cache_tokens(), names_[model]));
  } else if (request.encodes() && std::cmp_greater(request.prompt.size(), options_.max_batch_tokens)) {
    refuse(request, fmt::format("{} tokens for {} are more than the {} of a step, and an encoder takes all at once",
                                request.prompt.size(), names_[model], options_.max_batch_tokens));
  } else {
    open_.add(model, OpenRequests::work_of(request));
    count_open_anew(model);
    arriving_.push(std::move(request));
  }
}

void Scheduler::refuse(const Request& request, std::string message) {
  Completion completion{.id = request.id,
                        .part = request.part,
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

bool Scheduler::can_ever_fit(ModelId model, int blocks) const {
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int cache = models_[model].caches[stage].frames_for(blocks);
    const int weights = models_[model].pinned ? pools_[stage].pages(model) : pools_[stage].fewest_frames(model);
    if (weights + cache + pinned_beside(model, stage) > options_.frames) return false;
  }
  return true;
}

Decision Scheduler::next(double now_s) {
  if (waits_for_input()) return WaitUntil{kNever};
  begun_ = true;
  admit_arrivals(now_s);
  decide_run_order(now_s);
  PlannedStep planned;
  planned.step.stages.resize(pools_.size());
  const auto fetch_steps =
      std::count_if(in_flight_.begin(), in_flight_.end(), [](const InFlight& s) { return s.rows == 0; });
  const auto passes = std::ssize(in_flight_) - fetch_steps;
  if (passes < options_.steps_in_flight && plan_pass(planned, now_s)) return seal(std::move(planned));
  if (fetch_steps < kMaxFetchSteps && plan_prefetch_step(planned, now_s)) return seal(std::move(planned));
  if (run_order_.empty() && in_flight_.empty() && arriving_.empty() && input_closed_) return AllDone{};
  return WaitUntil{std::min(arriving_.empty() ? kNever : arriving_.next_arrival_s(), link_wakes_s(now_s))};
}

void Scheduler::admit_arrivals(double now_s) {
  while (!arriving_.empty() && arriving_.next_arrival_s() <= now_s) {
    Request request = arriving_.pop();
    work_[request.model].enqueue(std::move(request));
  }
}

void Scheduler::count_open_anew(ModelId model) {
  open_.count_anew(model, costs_, work_[model].sequences().growth_ratio());
}

// Until the links are through with what the model and those with open requests lack; 0 where the model lacks nothing.
double Scheduler::missing_transfers_s(ModelId model, double now_s) const {
  if (!misses_pages(model)) return wait_s(model, now_s);
  double longest_s = 0;
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    std::size_t missing = open_.models().contains(model) ? 0 : pools_[stage].missing_bytes(model);
    for (const ModelId open : open_.models()) missing += pools_[stage].missing_bytes(open);
    const double busy_s = std::max(host_links_[stage].free_s - now_s, 0.0);
    longest_s = std::max(longest_s, busy_s + costs_.transfer_s(stage, missing));
  }
  return longest_s;
}

double Scheduler::quote_s(ModelId model, const Request& request, double now_s) const {
  return std::max(open_.work_s(), missing_transfers_s(model, now_s)) +
         open_.alone_s(model, request, costs_, work_[model].sequences().growth_ratio());
}

std::vector<Request> Scheduler::recall(ModelId model, std::size_t n) {
  std::vector<Request> taken = arriving_.take_youngest(model, n);
  std::ranges::move(work_[model].take_youngest(n - taken.size()), std::back_inserter(taken));
  for (const Request& request : taken) open_.remove(model, OpenRequests::work_of(request));
  count_open_anew(model);
  return taken;
}

double Scheduler::resident_ratio(ModelId model) const {
  int pages = 0, missing = 0;
  for (const StagePool& pool : pools_) {
    pages += pool.pages(model);
    missing += pool.missing_pages(model);
  }
  return pages > 0 ? 1 - static_cast<double>(missing) / pages : 0;
}

bool Scheduler::has_work(double now_s) const {
  if (!arriving_.empty() && arriving_.next_arrival_s() <= now_s) return true;
  return std::any_of(work_.begin(), work_.end(), [](const ModelWork& work) {
    return work.to_admit() > 0 || work.sequences().totals().unfinished > 0;
  });
}

std::size_t Scheduler::waiting() const {
  std::size_t count = arriving_.size();
  for (const ModelWork& work : work_) count += work.waiting().size();
  return count;
}

std::size_t Scheduler::waiting_bytes() const {
  std::size_t bytes = arriving_.bytes();
  for (const ModelWork& work : work_) bytes += work.waiting().bytes();
  return bytes;
}

void Scheduler::decide_run_order(double now_s) {
  const std::vector<ModelView> models = views(now_s);
  run_order_ = policy_->run_order(models, active_, now_s);
  eviction_order_ = policy_->eviction_order(models, run_order_, now_s);
  candidates_.clear();
  if (!input_ended_ || !arriving_.empty()) candidates_ = policy_->prefetch_candidates(models, now_s);
}

std::vector<ModelView> Scheduler::views(double now_s) const {
  std::vector<ModelView> views;
  for (ModelId m = 0; m < work_.size(); ++m) {
    const ModelWork& work = work_[m];
    ModelView view{.model = m,
                   .waiting = work.to_admit(),
                   .running = work.sequences().totals().unfinished,
                   .last_arrival_s = work.arrivals().last_s(),
                   .arrival_gap_s = work.arrivals().gap_s(),
                   .arrival_gap2_s2 = work.arrivals().gap2_s2(),
                   .last_used = work.last_step(),
                   .catching_up = work.sequences().totals().catching_up > 0,
                   .pinned = models_[m].pinned,
                   .priority = models_[m].priority};
    if (view.has_work()) {
      const Request& oldest = work.oldest();
      const Backlog backlog = work.backlog();
      view.oldest_arrival_s = oldest.arrival_s;
      view.oldest_request = oldest.id;
      view.waiting_since_s = std::max(view.oldest_arrival_s, work.last_pass_s());
      view.arrivals_s = backlog.arrivals_s;
      view.missing_s = wait_s(m, now_s);
      view.swap_s = costs_.swap_s(m);
      view.compute_s = compute_s(view, backlog);
    }
    views.push_back(view);
  }
  return views;
}

// Seconds of compute for everything waiting and running: prompts in as few passes as tokens and sequences allow, then a
// token a pass for as many sequences as may run.
double Scheduler::compute_s(const ModelView& view, const Backlog& backlog) const {
  const auto requests = static_cast<double>(view.requests());
  const auto prompt = static_cast<double>(backlog.prompt_tokens);
  const double together = std::clamp(requests, 1.0, static_cast<double>(options_.max_seqs));
  const double prefills = std::max(std::ceil(prompt / options_.max_batch_tokens), std::ceil(requests / together));
  const double decodes = std::max(static_cast<double>(backlog.generated_tokens) - requests, 0.0) / together;
  const int prefill_rows = std::max(static_cast<int>(prompt / std::max(prefills, 1.0)), 1);
  return costs_.pass_s(view.model, prefill_rows) + (prefills - 1) * costs_.bottleneck_s(view.model, prefill_rows) +
         decodes * costs_.pass_s(view.model, static_cast<int>(together));
}

bool Scheduler::plan_pass(PlannedStep& planned, double now_s) {
  const std::optional<ModelId> filler = model_to_fill_in(now_s);
  if (filler && plan_pass_of(*filler, planned, now_s)) return true;
  return !run_order_.empty() && plan_pass_of(run_order_.front(), planned, now_s);
}

// While pages of the run order's first model are being copied: another model whose pages are all resident and whose
// next pass ends before the first one's has to begin in order to end just behind the copy of its last page.
std::optional<ModelId> Scheduler::model_to_fill_in(double now_s) const {
  if (run_order_.size() < 2 || !policy_->continuous_batching() || !fetches_go_on(run_order_.front()))
    return std::nullopt;
  const double time_s = wait_s(run_order_.front(), now_s) - costs_.pass_s(run_order_.front(), 1);
  for (const ModelId model : std::span(run_order_).subspan(1)) {
    const auto rows = std::clamp<std::size_t>(work_[model].backlog().prompt_tokens, 1, options_.max_batch_tokens);
    const bool short_enough = costs_.pass_s(model, static_cast<int>(rows)) < time_s;
    if (short_enough && is_ready(model, now_s)) return model;
  }
  return std::nullopt;
}

// Whether the pages that the run order's first model lacks can be fetched without a pass of it: frames are to be had
// beside those for its cache. If not, nothing is won by waiting.
bool Scheduler::fetches_go_on(ModelId first) const {
  const std::vector<ModelId> evictable = evictable_for(first);
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const StagePool& pool = pools_[stage];
    if (pool.missing_pages(first) > 0 && pool.available(evictable) <= cache_to_come(first, stage)) return false;
  }
  return true;
}

bool Scheduler::is_ready(ModelId model, double now_s) const {
  for (const StagePool& pool : pools_) {
    if (pool.missing_pages(model) > 0 || pool.offloaded(model)) return false;
  }
  return wait_s(model, now_s) <= 0;
}

// Whether the cache can have that many blocks without taking frames from models that run sooner.
bool Scheduler::can_grow(ModelId model, int blocks) const {
  const std::vector<ModelId> evictable = evictable_for(model);
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int more = models_[model].caches[stage].frames_for(blocks) - pools_[stage].cache_frames(model);
    if (more > pools_[stage].available(evictable)) return false;
  }
  return true;
}

bool Scheduler::plan_pass_of(ModelId model, PlannedStep& planned, double now_s) {
  admit(model);
  ModelWork& work = work_[model];
  if (!work.any_ready()) return false;
  const PassPlan pass = choose(model);
  if (pass.parts.empty() || waits_for_micro_batch(model, pass) || !evict_caches_for(model, pass.blocks, planned))
    return false;
  place_cache(model, pass.blocks, planned);
  Step& step = planned.step;
  step.id = ++last_step_;
  step.model = model;
  for (const auto& part : pass.parts) {
    const Sequence& sequence = part.member->sequence();
    if (!sequence.begun()) planned.begun.push_back(sequence.request().id);
  }
  std::vector<ModelWork::Handle> members = work.begin_pass(pass, step.id, now_s, step.chunks);
  fetch_what_is_missing(planned, now_s);
  activate(model, now_s);
  if (!exceeds_pool(model, work.cache().count())) swapping_[model] = false;  // all of it is there or on its way
  const double before_s = in_flight_.empty() ? now_s : std::max(now_s, in_flight_.back().end_s);
  const double end_s = std::max(before_s + costs_.bottleneck_s(model, step.rows()), now_s + wait_s(model, now_s));
  in_flight_.push_back({step.id, model, step.rows(), std::move(members), end_s});
  prefetch(planned, now_s);
  return true;
}

// Blocks of the cache may make the model exceed the pool that did not: fewer rows may have logits then.
PassPlan Scheduler::choose(ModelId model) {
  const auto choose = [&](bool exceeds) {
    PassPlan pass = work_[model].choose(limits_of_pass(model, exceeds));
    for (const SequenceId id : pass.released) close(id);
    return pass;
  };
  const bool exceeded = exceeds_pool(model, work_[model].cache().count());
  PassPlan pass = choose(exceeded);
  const bool too_many_rows = pass.logit_rows > Workspace::kLogitRows;
  return !exceeded && too_many_rows && exceeds_pool(model, pass.blocks) ? choose(true) : pass;
}

// A pass takes one micro-batch of as many as there are stages, so that all stages have work.
PassLimits Scheduler::limits_of_pass(ModelId model, bool exceeds_pool) const {
  const bool first = model == run_order_.front();
  const int beside_others = blocks_beside_others(model);
  const int within_reach = blocks_evicting_only(model, evictable_for(model));
  return {.micro_batches = static_cast<int>(pools_.size()),
          .tokens = options_.max_batch_tokens,
          .prompt_tokens = prompt_tokens_of_pass(model),
          // Beyond that many rows the head visits its pages again, and a page that rotates may be gone
          // (shard_layout.h).
          .logit_rows = exceeds_pool ? Workspace::kLogitRows : options_.max_batch_tokens,
          .blocks = first ? beside_others : std::min(beside_others, within_reach),
          .spare_blocks = options_.prefix_caching ? std::min(beside_others, blocks_evicting_only(model, {})) : 0,
          .may_preempt = first};
}

// Passes that are in flight at once must take about equally long, or the stages wait for each other. So prompts are
// spread over the passes that their answers will take; but a pass may always take twice as long as one that decodes
// only, else it would be long until many sequences decode together.
int Scheduler::prompt_tokens_of_pass(ModelId model) const {
  const auto stages = static_cast<int>(pools_.size()), most = options_.max_batch_tokens;
  const ModelWork& work = work_[model];
  const auto requests = static_cast<int>(work.to_admit()) + work.sequences().running();
  const int together = std::min(requests, options_.max_seqs);
  if (stages == 1 || together == 1) return most;
  const Backlog backlog = work.backlog();
  const double passes = std::max(static_cast<double>(backlog.generated_tokens) / together, 1.0) * stages;
  const int level = static_cast<int>(std::min(std::ceil(backlog.prompt_tokens / passes), static_cast<double>(most)));
  const int decoding = ceil_div(together, stages);
  const double longest_s = 2 * costs_.bottleneck_s(model, decoding);
  int rows = level, too_many = most + 1;  // the most that take no longer lie between them
  while (too_many - rows > 1) {
    const int middle = std::midpoint(rows, too_many);
    (costs_.bottleneck_s(model, std::min(middle + decoding, most)) <= longest_s ? rows : too_many) = middle;
  }
  return std::max(rows, 1);
}

// Whether as many passes of the model are in flight as there are stages, and the sequences that are left are no whole
// micro-batch: they wait for others to come back, else micro-batches would fall apart into ever smaller ones.
bool Scheduler::waits_for_micro_batch(ModelId model, const PassPlan& pass) const {
  const auto passes = std::count_if(in_flight_.begin(), in_flight_.end(),
                                    [model](const InFlight& s) { return s.model == model && s.rows > 0; });
  return !pass.full && passes >= std::ssize(pools_);
}

// The run order's first model becomes the active one; fetches of the one before count as a new swap from now on.
void Scheduler::activate(ModelId model, double now_s) {
  if (model != run_order_.front() || active_.model == model) return;
  if (active_.model) swapping_[*active_.model] = false;
  active_ = {model, now_s};
}

// Preempted sequences and waiting requests run from now on, while there is room for the cache that they and the running
// ones will probably come to.
void Scheduler::admit(ModelId model) {
  ModelWork& work = work_[model];
  const bool joins = policy_->continuous_batching() || work.sequences().totals().unfinished == 0;
  const bool first = model == run_order_.front();
  while (work.to_admit() > 0 && (joins || work.next_is_preempted()) && work.sequences().running() < options_.max_seqs) {
    const bool must_run = first && work.sequences().running() == 0;  // others make room, whatever it takes
    const int peak = must_run ? 0 : work.peak_with_next();
    if (!must_run && peak > blocks_beside_others(model)) break;
    if (!first && !can_grow(model, peak)) break;
    work.admit_next(++last_sequence_);
  }
}

// Blocks that the model may have without evicting a cache that is still wanted, or its own pages. A model that exceeds
// the pool anyway, by its size or with a single sequence's cache, may have half of what it could.
int Scheduler::blocks_beside_others(ModelId model) const {
  int blocks = std::numeric_limits<int>::max();
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const StagePool& pool = pools_[stage];
    const KvGeometry& geometry = models_[model].caches[stage];
    const int room = options_.frames - pinned_beside(model, stage), others = wanted_caches_beside(model, stage);
    const bool too_large = pool.pages(model) + geometry.frames_for(work_[model].cache().end_of_used()) > room;
    const int most = too_large ? (room - others - pool.fewest_frames(model)) / 2 : room - others - pool.pages(model);
    blocks = std::min(blocks, geometry.blocks_in(std::max(most, 0)));
  }
  return blocks;
}

// Blocks that the cache can have if only these models have pages evicted.
int Scheduler::blocks_evicting_only(ModelId model, std::span<const ModelId> evictable) const {
  int blocks = std::numeric_limits<int>::max();
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int frames = pools_[stage].cache_frames(model) + pools_[stage].available(evictable);
    blocks = std::min(blocks, models_[model].caches[stage].blocks_in(frames));
  }
  return blocks;
}

// Frames of the model's cache up to the end of the used blocks: what is left of it when the rest is given back.
int Scheduler::frames_in_use(ModelId model, std::size_t stage) const {
  const int held = models_[model].caches[stage].frames_for(work_[model].cache().end_of_used());
  return std::min(held, pools_[stage].cache_frames(model));
}

// Frames in use of the caches of other models with running sequences, even those that end with what is in flight.
int Scheduler::caches_beside(ModelId model, std::size_t stage) const {
  int frames = 0;
  for (ModelId m = 0; m < models_.size(); ++m) {
    if (m != model && work_[m].sequences().running() > 0) frames += frames_in_use(m, stage);
  }
  return frames;
}

// The same, of models whose sequences go on.
int Scheduler::wanted_caches_beside(ModelId model, std::size_t stage) const {
  int frames = 0;
  for (ModelId m = 0; m < models_.size(); ++m) {
    if (m != model && work_[m].sequences().totals().unfinished > 0) frames += frames_in_use(m, stage);
  }
  return frames;
}

// Whether the model is to run out-of-core: its pages do not fit beside so much cache and what is pinned, whatever else
// is evicted.
bool Scheduler::exceeds_pool(ModelId model, int blocks) const {
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int cache = models_[model].caches[stage].frames_for(blocks);
    if (pools_[stage].pages(model) > options_.frames - pinned_beside(model, stage) - cache) return true;
  }
  return false;
}

// Frames of the caches of others that must be evicted for the model's pass.
int Scheduler::frames_short(ModelId model, int blocks, std::size_t stage) const {
  const StagePool& pool = pools_[stage];
  const int weights =
      exceeds_pool(model, blocks) ? std::min(2 * pool.fewest_frames(model), pool.pages(model)) : pool.pages(model);
  const int cache = models_[model].caches[stage].frames_for(blocks);
  const int room = options_.frames - pinned_beside(model, stage);
  return std::min(weights, room - cache) + cache - (room - caches_beside(model, stage));
}

// Evicts the caches of other models, those that run last first, as many as it takes. False while one of them is in
// flight: which of its sequences go on is known when it is not.
bool Scheduler::evict_caches_for(ModelId model, int blocks, PlannedStep& planned) {
  std::vector<int> missing;
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) missing.push_back(frames_short(model, blocks, stage));
  std::vector<ModelId> displaced;
  for (const ModelId other : caches_evictable_for(model)) {
    if (std::all_of(missing.begin(), missing.end(), [](int frames) { return frames <= 0; })) break;
    if (work_[other].any_in_flight()) return false;
    for (std::size_t stage = 0; stage < pools_.size(); ++stage) missing[stage] -= frames_in_use(other, stage);
    displaced.push_back(other);
  }
  trim_caches(model, planned);
  for (const ModelId other : displaced) evict_cache(other, planned);
  return true;
}

// Models whose caches could be evicted for this one's; those that run last first.
std::vector<ModelId> Scheduler::caches_evictable_for(ModelId model) const {
  std::vector<ModelId> others;
  for (ModelId m = 0; m < models_.size(); ++m) {
    if (m != model && work_[m].sequences().running() > 0 && pools_.front().cache_frames(m) > 0) others.push_back(m);
  }
  const auto position = [this](ModelId m) {
    return std::find(run_order_.begin(), run_order_.end(), m) - run_order_.begin();
  };
  std::stable_sort(others.begin(), others.end(), [&](ModelId a, ModelId b) { return position(a) > position(b); });
  return others;
}

void Scheduler::evict_cache(ModelId model, PlannedStep& planned) {
  const bool offload = cheaper_to_offload(model);
  if (!offload) {
    for (const SequenceId id : work_[model].restart_running(last_sequence_)) close(id);
  }
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    StagePlan& plan = planned.step.stages[stage];
    offload ? pools_[stage].offload_cache(model, plan) : pools_[stage].release_cache(model, plan);
  }
}

// Offloading the model's cache and reloading it over the host link, against computing its tokens again.
bool Scheduler::cheaper_to_offload(ModelId model) const {
  double move_s = 0;
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int frames = pools_[stage].cache_frames(model);
    if (frames > pools_[stage].free_slots()) return false;
    move_s = std::max(move_s, 2 * costs_.transfer_s(stage, frames * layout(model, stage).page_bytes));
  }
  const int tokens = work_[model].sequences().computed_tokens();
  const double again_s =
      ceil_div(tokens, options_.max_batch_tokens) * costs_.pass_s(model, std::min(tokens, options_.max_batch_tokens));
  return move_s < again_s;
}

// From now on the model's cache is in frames and has so many blocks: it is reloaded if it was offloaded.
void Scheduler::place_cache(ModelId model, int blocks, PlannedStep& planned) {
  std::vector<ModelId> evictable = evictable_for(model);
  evictable.push_back(model);  // its own last pages, if it comes to that
  work_[model].set_blocks(blocks);
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    StagePlan& plan = planned.step.stages[stage];
    if (pools_[stage].offloaded(model)) pools_[stage].reload_cache(model, evictable, plan);
    pools_[stage].grow_cache(model, models_[model].caches[stage].frames_for(blocks), evictable, plan);
  }
}

// Frees the frames that caches do not need at the moment, but for the cache of the model that runs.
void Scheduler::trim_caches(std::optional<ModelId> runs, PlannedStep& planned) {
  if (keeps_cached_blocks(runs)) return;
  for (ModelId m = 0; m < models_.size(); ++m) {
    if (m != runs && work_[m].cache().count() > 0) trim_cache(m, planned);
  }
}

void Scheduler::trim_cache(ModelId model, PlannedStep& planned) {
  ModelWork& work = work_[model];
  const bool idle = work.sequences().running() == 0;
  const int held = idle ? 0 : work.cache().end_of_used();
  if (!idle && pools_.front().offloaded(model)) return;
  int blocks = std::numeric_limits<int>::max();
  bool less = false;
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int frames = models_[model].caches[stage].frames_for(held);
    less |= frames < pools_[stage].cache_frames(model);
    blocks = std::min(blocks, models_[model].caches[stage].blocks_in(frames));
  }
  if (!less && !idle) return;
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const int frames = models_[model].caches[stage].frames_for(held);
    pools_[stage].shrink_cache(model, frames, planned.step.stages[stage]);
  }
  work.set_blocks(std::min(blocks, work.cache().count()));
}

// Whether caches keep the frames of cached blocks: as long as the model that runs, or comes next, finds frames without
// them.
bool Scheduler::keeps_cached_blocks(std::optional<ModelId> runs) const {
  if (!options_.prefix_caching || (!runs && run_order_.empty())) return options_.prefix_caching;
  const ModelId next = runs.value_or(run_order_.empty() ? 0 : run_order_.front());
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const StagePool& pool = pools_[stage];
    if (pool.available({}) < pool.missing_pages(next) + cache_to_come(next, stage)) return false;
  }
  return true;
}

// Brings the stages' states up to date and notes what the ranks must report.
Decision Scheduler::seal(PlannedStep planned) {
  planned.step.closed = std::exchange(to_close_, {});
  for (StagePool& pool : pools_) {
    for (const SequenceChunk& chunk : planned.step.chunks) pool.state().extend(planned.step.model, chunk);
    planned.expected.push_back(pool.state().digest_after(planned.step));
  }
  return planned;
}

// The ranks will know it with the next step, before whose changes of caches it is gone.
void Scheduler::close(SequenceId sequence) {
  for (StagePool& pool : pools_) pool.state().close(sequence);
  to_close_.push_back(sequence);
}

void Scheduler::completed(StepId step, PassResults results, double now_s, std::span<const StageTimes> times) {
  ensure(!in_flight_.empty() && in_flight_.front().id == step, "steps complete out of order");
  const InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  observe(done, times, now_s);
  for (const ModelWork::Handle member : done.members) {
    const SequenceId id = member->sequence().id();
    const OpenRequests::Work work = OpenRequests::work_of(member->sequence().request());
    std::optional<Completion> completion = work_[done.model].take_results(member, results, now_s);
    if (!completion) continue;
    close(id);
    open_.remove(done.model, work);
    completion->finished_s = now_s;
    completions_.push_back(std::move(*completion));
  }
  count_open_anew(done.model);
  ensure(results.rows.empty() && results.encoded.empty(), "more results than the step asked for");
}

}  // namespace computron

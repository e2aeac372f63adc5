#include "tests/sched/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace computron::test {
namespace {

constexpr int kHostSlots = 1000;  // more than any test has
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void require(bool condition, const std::string& rule) {
  if (!condition) throw Fault(rule);
}

// --- A stage ----------------------------------------------------------------------------------------------------

Replica::Replica(const FakeModelList& model_list, int stage, int frames, int adapter_slots)
    : model_list_(model_list),
      stage_(stage),
      state_(model_list.layouts(stage), frames, kHostSlots, adapter_slots),
      last_use_(static_cast<std::size_t>(frames + adapter_slots), ReleasePoint{}) {}

void Replica::execute(const Step& step, StepId completed) {
  begin(step, completed);
  if (!step.chunks.empty()) run_pass(step, completed);
  place_until({step.id, ReleasePoint::kEnd}, completed);
  require(refills_.empty(), "a fetch waits for a use that is still to come");
}

void Replica::begin(const Step& step, StepId completed) {
  const StagePlan& plan = step.stages[stage_];
  for (const SequenceId id : step.closed) state_.close(id);
  for (const CacheChange& change : plan.caches) state_.change_cache(change);
  refills_.assign(plan.fetches.begin(), plan.fetches.end());
  place_until({step.id - 1, ReleasePoint::kEnd}, completed);
  for (const SequenceChunk& chunk : step.chunks) state_.extend(step.model_of(chunk), chunk);
}

void Replica::place_until(ReleasePoint point, StepId completed) {
  for (; !refills_.empty() && refills_.front().after <= point; refills_.pop_front()) {
    const Fetch& fetch = refills_.front();
    state_.place(fetch);
    const ReleasePoint last = last_use_[fetch.frame];
    require(last.step <= completed || last <= fetch.after, "a fetch overwrites a frame that may still be read");
  }
}

void Replica::run_pass(const Step& step, StepId completed) {
  expect_cache_covers(step);
  std::set<FrameId> of_riders;  // their adapters' pages, which are read behind the lead's last use of them
  for (const auto& [model, chunks] : step.by_model()) {
    for (const FrameId frame : state_.cache(model)) last_use_[frame] = {step.id, ReleasePoint::kEnd};
    if (model == step.model) continue;
    for (const FrameId frame : state_.page_table(model)) {
      require(frame != kNoFrame, "a page of a rider is not there");
      last_use_[frame] = {step.id, ReleasePoint::kEnd};
    }
    for (const PageId page : state_.layout(model).adapter_pages) of_riders.insert(state_.frame_of(model, page));
  }
  const std::vector<PageId>& uses = state_.layout(step.model).uses;
  for (PageUse use = 0; use < uses.size(); ++use) {
    const FrameId frame = state_.frame_of(step.model, uses[use]);
    require(frame != kNoFrame, fmt::format("page {} is not there for its use", uses[use]));
    if (!of_riders.contains(frame)) last_use_[frame] = {step.id, use};
    const bool over = use + 1 == uses.size() || state_.layout(step.model).over_before[use + 1] == use;
    if (over) place_until({step.id, use}, completed);
  }
}

void Replica::expect_cache_covers(const Step& step) const {
  for (const SequenceChunk& chunk : step.chunks) {
    const ModelId model = step.model_of(chunk);
    const KvGeometry& geometry = model_list_.shape(model).caches[stage_];
    const int frames = static_cast<int>(state_.cache(model).size());
    const SequenceState& sequence = state_.sequence(chunk.sequence);
    require(sequence.blocks.size() * kBlockTokens >= sequence.length, "a sequence lacks cache blocks");
    for (const std::uint32_t block : sequence.blocks) {
      require(static_cast<int>(block) < geometry.blocks_in(frames), "a cache block lies outside the cache frames");
    }
  }
}

// --- The job ----------------------------------------------------------------------------------------------------

Driver::Driver(const FakeModelList& model_list, const SchedulerOptions& options, std::string_view policy)
    : model_list_(model_list),
      options_(options),
      plans_ahead_(make_policy(policy)->plans_ahead()),
      scheduler_(model_list.shapes(), model_list.names(), make_policy(policy, {.max_wait_s = kMaxWait_s}), options),
      stage_free_s_(model_list.stages(), 0.0),
      given_to_link_(model_list.stages(), 0) {
  for (int stage = 0; stage < model_list.stages(); ++stage) {
    replicas_.emplace_back(model_list, stage, options.frames, options.adapter_slots);
  }
}

void Driver::submit(Request request, double at_s) { submitted_.push_back({std::move(request), at_s}); }

std::string Driver::run(std::size_t most) {
  std::stable_sort(submitted_.begin(), submitted_.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  try {
    for (;;) {
      hand_over();
      complete_steps();
      hand_over_held_back();
      const std::size_t done = completions_.size();
      if (decide()) break;
      require(steps_.size() < most, "steps without end");
      if (completions_.size() > done) continue;  // somebody may wait for those that were dropped
      now_s_ = next_event();
    }
    check_completions();
    return "";
  } catch (const std::exception& fault) {
    return fmt::format("at {:.4f} s, after step {}: {}", now_s_, steps_.size(), fault.what());
  }
}

void Driver::hand_over() {
  for (; handed_over_ < submitted_.size() && submitted_[handed_over_].at_s <= now_s_; ++handed_over_) {
    any_priority_ |= submitted_[handed_over_].request.priority != 0;
    scheduler_.submit(submitted_[handed_over_].request);
  }
  take_completions();
}

void Driver::hand_over_held_back() {
  if (handed_over_ < submitted_.size()) return;
  scheduler_.note_input_end();
  while (!held_back_.empty() && completions_.size() == submitted_.size()) {
    submitted_.push_back({std::move(held_back_.front()), now_s_});
    held_back_.pop_front();
    any_priority_ |= submitted_[handed_over_].request.priority != 0;
    scheduler_.submit(submitted_[handed_over_++].request);
    take_completions();
  }
  if (held_back_.empty()) scheduler_.close_input();
}

bool Driver::decide() {
  for (;;) {
    const std::size_t waiting = scheduler_.waiting();
    Decision decision = scheduler_.next(now_s_);
    take_completions();
    if (std::holds_alternative<AllDone>(decision)) {
      require(in_flight_.empty(), "done with steps in flight");
      return true;
    }
    if (const auto* wait = std::get_if<WaitUntil>(&decision)) {
      require(wait->time_s > now_s_, "told to wait for the past");
      const bool planning = plans_ahead_ && handed_over_ < submitted_.size();
      require(!in_flight_.empty() || !has_work() || planning, "told to wait with nothing in flight and work to do");
      wait_until_s_ = wait->time_s;
      return false;
    }
    take(std::get<PlannedStep>(std::move(decision)), waiting);
  }
}

std::size_t Driver::passes_in_flight() const {
  return static_cast<std::size_t>(
      std::count_if(in_flight_.begin(), in_flight_.end(), [](const InFlight& step) { return step.pass; }));
}

// A request that has arrived is not served.
bool Driver::has_work() const {
  return std::any_of(submitted_.begin(), submitted_.begin() + static_cast<std::ptrdiff_t>(handed_over_),
                     [this](const SubmittedRequest& s) {
                       return s.request.arrival_s <= now_s_ && !completions_.contains(s.request.id);
                     });
}

void Driver::take(PlannedStep planned, std::size_t waiting_before) {
  const Step& step = planned.step;
  check_size(step);
  check_riders(step);
  close_sequences(step);
  check_released_caches(step);
  std::vector<SampledRow> rows;
  std::vector<std::vector<float>> values;
  std::vector<SequenceId> members;
  for (const SequenceChunk& chunk : step.chunks) {
    for (SampledRow& row : extend_sequence(step, chunk)) rows.push_back(std::move(row));
    if (chunk.values > 0) {
      require(chunk.output >= SequenceChunk::kPooledEmbedding, "values of a chunk that has rows of logits");
      const RunningSequence& sequence = running_.at(chunk.sequence);
      values.push_back(fake_values(sequence.prefix, sequence.poisoned, chunk.token_type_ids, chunk.patches,
                                   static_cast<int>(chunk.values)));
    }
    members.push_back(chunk.sequence);
  }
  begun_.insert(planned.begun.begin(), planned.begun.end());
  for (const ModelChunks& own : step.by_model()) check_blocks(own.model);
  check_nobody_starves(step);
  check_pinned();
  require(static_cast<int>(rows.size()) == step.logit_rows(), "rows of logits miscounted");
  require(static_cast<int>(values.size()) == step.encoded_rows(), "encoded rows miscounted");
  execute(planned);
  const double finish_s = pass_stages(step);
  longest_pass_s_ = std::max(longest_pass_s_, finish_s - now_s_);
  check_oldest_get_on(step);
  in_flight_.push_back({step.id, std::move(members), std::move(rows), std::move(values), !step.chunks.empty(), finish_s,
                        times_of(step)});
  require(std::cmp_less_equal(passes_in_flight(), options_.steps_in_flight), "too many passes in flight");
  require(std::cmp_less_equal(in_flight_.size(), max_steps_in_flight(options_.steps_in_flight)),
          "too many steps in flight");
  steps_.push_back({.step = std::move(planned.step),
                    .swaps = std::move(planned.swaps),
                    .planned_s = now_s_,
                    .finished_s = in_flight_.back().finish_s,
                    .waiting_before = waiting_before,
                    .waiting_after = scheduler_.waiting(),
                    .in_flight = passes_in_flight(),
                    .completed = completed_});
}

void Driver::check_size(const Step& step) const {
  require(step.id == steps_.size() + 1 && step.kind == Step::kRun, "steps are not numbered 1, 2, 3, ...");
  const bool moves = std::any_of(step.stages.begin(), step.stages.end(),
                                 [](const StagePlan& plan) { return !plan.fetches.empty() || !plan.caches.empty(); });
  require(!step.chunks.empty() || moves, "a step without work");
  require(step.rows() <= options_.max_batch_tokens, "more tokens than max_batch_tokens");
  require(step.stages.size() == replicas_.size(), "a step for another number of stages");
}

// Each rider's chunks stand side by side, behind those of the step's model.
void Driver::check_riders(const Step& step) const {
  if (step.chunks.empty()) return;
  require(!step.chunks.front().rider, "a pass without a sequence of its own model");
  std::set<ModelId> models;
  for (const auto& [model, chunks] : step.by_model()) {
    require(models.insert(model).second, "chunks of one model stand in two places");
    require(model == step.model || chunks.front().rider, "a rider of the step's own model");
    for (std::size_t stage = 0; model != step.model && stage < replicas_.size(); ++stage) {
      const auto& own = model_list_.shape(step.model).layouts[stage]->family;
      require(own && model_list_.shape(model).layouts[stage]->family == own, "a rider of another family");
    }
  }
}

void Driver::close_sequences(const Step& step) {
  for (const SequenceId id : step.closed) {
    const auto found = running_.find(id);
    require(found != running_.end(), "a sequence is closed that does not run");
    require(!found->second.in_flight, "a sequence is closed in flight");
    running_.erase(found);
  }
}

// Follows the chunk and returns the rows that it asks for.
std::vector<SampledRow> Driver::extend_sequence(const Step& step, const SequenceChunk& chunk) {
  require(!chunk.tokens.empty(), "a chunk without tokens");
  if (seen_.insert(chunk.sequence).second) {
    RunningSequence& begun = running_[chunk.sequence] = {.model = step.model_of(chunk), .blocks = {}};
    begin_behind(chunk, begun);
  }
  require(running_.contains(chunk.sequence), "a chunk of a closed sequence");
  RunningSequence& sequence = running_[chunk.sequence];
  require(sequence.model == step.model_of(chunk), "a sequence of another model");
  require(!sequence.in_flight, "a sequence in two steps in flight");
  require(sequence.length == chunk.start, "a chunk does not continue its sequence");
  sequence.in_flight = true;
  sequence.blocks.insert(sequence.blocks.end(), chunk.new_blocks.begin(), chunk.new_blocks.end());

  std::vector<SampledRow> rows;
  for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
    write(chunk.tokens[i], sequence);
    const bool last = i + 1 == chunk.tokens.size();
    const bool all = chunk.output == SequenceChunk::kAll;
    if (!all && !(last && chunk.output == SequenceChunk::kLast)) continue;
    const TokenId target = !all ? -1 : last ? chunk.after_last : chunk.tokens[i + 1];
    rows.push_back(fake_row(sequence.prefix, sequence.poisoned, std::max<int>(chunk.top, 1), target));
  }
  require(!sequence.request || !completions_.contains(*sequence.request), "a sequence runs on after its completion");
  return rows;
}

// Takes over what the blocks hold that the sequence begins with.
void Driver::begin_behind(const SequenceChunk& chunk, RunningSequence& sequence) const {
  require(chunk.start % kBlockTokens == 0, "a sequence begins in the middle of a block");
  require(chunk.start == 0 || options_.prefix_caching, "a sequence does not begin at its beginning");
  for (std::uint32_t i = 0; i < chunk.start / kBlockTokens; ++i) {
    const auto content = contents_.find({sequence.model, chunk.new_blocks.at(i)});
    require(content != contents_.end(), "a sequence begins behind a block that is not full");
    require(content->second.before == sequence.prefix, "a sequence begins behind a block of another history");
    sequence.prefix = content->second.after;
    sequence.poisoned |= content->second.poisoned;
    if (content->second.request) sequence.request = content->second.request;
  }
  sequence.length = chunk.start;
}

// The sequence's next token, into its block.
void Driver::write(TokenId token, RunningSequence& sequence) {
  const std::uint32_t place = sequence.length++ % kBlockTokens;
  const std::uint32_t block = sequence.blocks.at((sequence.length - 1) / kBlockTokens);
  const auto key = std::pair(sequence.model, block);
  if (place == 0) contents_.erase(key);
  require(!contents_.contains(key), "a token is written into a full block");
  if (place == 0) sequence.block_before = sequence.prefix;
  sequence.prefix = extend_prefix(sequence.prefix, token);
  sequence.poisoned |= token == kPoison;
  if (const auto request = tells_request(token)) sequence.request = request;
  if (place + 1 < kBlockTokens) return;
  contents_[key] = {sequence.block_before, sequence.prefix, sequence.poisoned, sequence.request};
}

void Driver::check_blocks(ModelId model) const {
  std::map<std::uint32_t, std::size_t> places;  // in the lists of running sequences
  for (const auto& [id, sequence] : running_) {
    if (sequence.model != model) continue;
    for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
      const auto [found, first] = places.try_emplace(sequence.blocks[i], i);
      const bool shared = found->second == i && contents_.contains({model, sequence.blocks[i]}) &&
                          sequence.length >= (i + 1) * kBlockTokens;
      require(first || shared, fmt::format("block {} is in two running sequences", sequence.blocks[i]));
    }
  }
}

// What goes of a cache without being offloaded held nothing that is still wanted.
void Driver::check_released_caches(const Step& step) {
  for (std::size_t stage = 0; stage < replicas_.size(); ++stage) {
    std::map<ModelId, std::size_t> frames;  // as the changes so far have left them
    for (const CacheChange& change : step.stages[stage].caches) {
      std::size_t& left =
          frames.try_emplace(change.model, replicas_[stage].state().cache(change.model).size()).first->second;
      left -= std::min<std::size_t>(change.taken, left);
      const bool lost =
          change.kind == CacheChange::kDropOffloaded || (change.kind == CacheChange::kPlain && change.taken > 0);
      const int blocks = model_list_.shape(change.model).caches[stage].blocks_in(static_cast<int>(left));
      require(!lost || blocks_in_use(change.model) <= blocks, "cache is lost that a running sequence needs");
      if (lost) {
        std::erase_if(contents_, [&](const auto& entry) {
          return entry.first.first == change.model && std::cmp_greater_equal(entry.first.second, blocks);
        });
      }
      left += change.added.size();
    }
  }
}

// All that running sequences of the model hold are below this one.
int Driver::blocks_in_use(ModelId model) const {
  int blocks = 0;
  for (const auto& [id, sequence] : running_) {
    if (sequence.model != model) continue;
    for (const std::uint32_t block : sequence.blocks) blocks = std::max(blocks, static_cast<int>(block) + 1);
  }
  return blocks;
}

// Of a model's passes, however many sequences there are, those without a chunk for one that could have it are few: as
// many as the others' tokens fill, of which a quarter of each pass is for those in its place.
void Driver::check_nobody_starves(const Step& step) {
  if (step.chunks.empty() || any_priority_) return;
  int longest = 0;
  for (const SubmittedRequest& s : submitted_) {
    if (s.request.model == step.model) longest = std::max(longest, s.request.cache_tokens());
  }
  const int stages = static_cast<int>(replicas_.size());
  const int rounds = ceil_div(options_.max_seqs * longest, std::max(options_.max_batch_tokens / 4, 1));
  for (auto& [id, sequence] : running_) {
    if (sequence.model != step.model) continue;
    sequence.passes_without = sequence.in_flight ? 0 : sequence.passes_without + 1;
    require(sequence.passes_without <= 8 * stages + 2 * options_.max_seqs + 2 * rounds, "a running sequence starves");
  }
}

// However urgent others are. Before one that has been passed by for max_wait_s there may go one of each other model
// that has been, until its next token, and what runs and cannot be preempted.
void Driver::check_oldest_get_on(const Step& step) {
  if (!any_priority_ || options_.on_late == OnLate::kDrop || step.chunks.empty()) return;
  std::map<ModelId, const Request*> oldest;
  int longest = 0;
  std::int32_t least = 0;
  for (std::size_t i = 0; i < handed_over_; ++i) {
    const Request& request = submitted_[i].request;
    longest = std::max(longest, request.cache_tokens());
    if (request.arrival_s > now_s_ || completions_.contains(request.id)) continue;
    least = std::min(least, request.priority);
    const Request*& found = oldest[request.model];
    if (found == nullptr || arrives_earlier(request, *found)) found = &request;
  }
  const int again = ceil_div(options_.max_seqs * longest, options_.max_batch_tokens);
  const int passes = again + ceil_div(longest, options_.max_batch_tokens) + 2 * options_.steps_in_flight + 2;
  const double bound_s = kMaxWait_s + static_cast<double>(passes * model_list_.models()) * longest_pass_s_;
  for (const auto& [model, request] : oldest) {
    Oldest& known = oldest_[model];
    if (known.passed_by) known.passed_s += now_s_ - known.at_s;
    const bool gets_token = std::ranges::any_of(step.chunks, [&, id = request->id](const SequenceChunk& chunk) {
      const bool is_last =
          chunk.output == SequenceChunk::kAll ? chunk.after_last < 0 : chunk.output != SequenceChunk::kNone;
      return is_last && running_.at(chunk.sequence).request == id;
    });
    if (known.id != request->id || gets_token) known = {.id = request->id};
    known.passed_by = least < request->priority;
    known.at_s = now_s_;
    require(known.passed_s <= bound_s, fmt::format("request {} is passed by for too long", request->id));
  }
}

void Driver::check_pinned() const {
  for (ModelId m = 0; m < model_list_.models(); ++m) {
    if (!model_list_.shape(m).pinned) continue;
    for (const ExecutedStep& executed : steps_) {
      if (executed.step.model != m || executed.step.chunks.empty()) continue;
      for (const Replica& replica : replicas_) {
        require(replica.state().resident_pages(m) == replica.state().layout(m).pages(), "a pinned model lost pages");
      }
      break;
    }
  }
}

// Every stage gets its own encoded step and nothing else.
void Driver::execute(const PlannedStep& planned) {
  const int stages = static_cast<int>(replicas_.size());
  require(planned.expected.size() == replicas_.size(), "digests of another number of stages");
  for (int stage = 0; stage < stages; ++stage) {
    const Step received = Step::decode(planned.step.encode(stage), stage, stages);
    replicas_[stage].execute(received, completed_);
    const std::string field =
        replicas_[stage].state().digest_after(planned.step).first_difference(planned.expected[stage]);
    require(field.empty(), fmt::format("stage {} differs from what the scheduler expects in its {}", stage, field));
  }
}

double Driver::pass_stages(const Step& step) {
  double time_s = now_s_;
  for (std::size_t stage = 0; stage < replicas_.size(); ++stage) {
    const double busy_s = 1e-3 + 1e-4 * step.rows() + 5e-4 * static_cast<double>(step.stages[stage].fetches.size());
    time_s = std::max(time_s, stage_free_s_[stage]) + busy_s;
    stage_free_s_[stage] = time_s;
  }
  return time_s;
}

// Of every third step the copies are not over when it is reported.
std::vector<StageTimes> Driver::times_of(const Step& step) {
  std::vector<StageTimes> times;
  for (std::size_t stage = 0; reports_times_ && stage < replicas_.size(); ++stage) {
    const std::size_t before = given_to_link_[stage];
    for (const Fetch& fetch : step.stages[stage].fetches) {
      given_to_link_[stage] += model_list_.shape(fetch.model).layouts[stage]->used_bytes[fetch.page];
    }
    for (const CacheChange& change : step.stages[stage].caches) {
      given_to_link_[stage] += change.slots.size() * kPageBytes;
    }
    const std::size_t copied = step.id % 3 == 0 ? before : given_to_link_[stage];
    times.push_back({.compute_s = step.chunks.empty() ? 0 : 1e-3 + 1e-4 * step.rows(),
                     .link_bytes = copied,
                     .link_busy_s = 1e-6 * static_cast<double>(copied)});
  }
  return times;
}

void Driver::complete_steps() {
  while (!in_flight_.empty() && in_flight_.front().finish_s <= now_s_) {
    const InFlight done = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const SequenceId id : done.members) running_.at(id).in_flight = false;
    completed_ = done.id;
    scheduler_.completed(done.id, {done.rows, done.values}, now_s_, done.times);
    take_completions();
  }
}

void Driver::take_completions() {
  for (Completion& completion : scheduler_.take_completions()) {
    const RequestId id = completion.id;
    finished_.push_back(id);
    require(completions_.emplace(id, std::move(completion)).second, fmt::format("request {} completes twice", id));
  }
}

double Driver::next_event() const {
  double time_s = wait_until_s_;
  if (!in_flight_.empty()) time_s = std::min(time_s, in_flight_.front().finish_s);
  if (handed_over_ < submitted_.size()) time_s = std::min(time_s, submitted_[handed_over_].at_s);
  require(time_s < kInfinity, "nothing will ever happen again");
  return time_s;
}

Completion Driver::deserved(const Request& request) const {
  const bool no_pass = !request.encodes() && request.max_tokens == 0 && request.logprobs < 0;
  const bool too_long = request.is_whole() && std::cmp_greater(request.prompt.size(), options_.max_batch_tokens);
  Completion completion = deserved_completion(request, model_list_.shape(request.model).eos_tokens);
  if (too_long || (!no_pass && !model_list_.fits(request.model, blocks_of(request), options_.frames))) {
    completion.error_code = "context_length_exceeded";
  }
  return completion;
}

void Driver::check_completions() const {
  require(completions_.size() == submitted_.size(), "requests without a completion");
  for (const auto& [request, at_s] : submitted_) {
    const Completion& found = completions_.at(request.id);
    const std::string what = may_be_dropped(request, found) ? "" : difference(found, deserved(request));
    require(what.empty(), fmt::format("request {}: {}", request.id, what));
    require(found.due_s == request.due_s(), "another deadline than the request's");
    require(found.arrival_s == request.arrival_s, "another arrival than the request's");
    require(found.finished_s >= found.arrival_s && found.finished_s <= std::max(now_s_, found.arrival_s),
            fmt::format("request {} arrived at {} and finished at {}", request.id, found.arrival_s, found.finished_s));
    require(found.generated_tokens == 0 ||
                (found.first_token_s > found.arrival_s && found.first_token_s <= found.finished_s),
            fmt::format("request {}: its first token came at {}", request.id, found.first_token_s));
  }
}

bool Driver::may_be_dropped(const Request& request, const Completion& found) const {
  return options_.on_late == OnLate::kDrop && found.error_code == "deadline_exceeded" && !begun_.contains(request.id) &&
         found.finished_s > request.due_s();
}

}  // namespace computron::test

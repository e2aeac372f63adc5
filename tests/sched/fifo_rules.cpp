#include "tests/sched/fifo_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace computron::test {
namespace {

using Pages = std::set<std::pair<ModelId, PageId>>;

Pages resident(const StageState& state, std::size_t models) {
  Pages pages;
  for (ModelId m = 0; m < models; ++m) {
    for (PageId p = 0; p < static_cast<PageId>(state.image(m).pages()); ++p) {
      if (state.frame_of(m, p) != kNoFrame) pages.emplace(m, p);
    }
  }
  return pages;
}

int free_frames(const StageState& state) {
  int count = 0;
  for (int f = 0; f < state.frames(); ++f) count += state.owner(f).kind == StageState::Owner::kFree;
  return count;
}

class Replay {
 public:
  explicit Replay(const Driver& driver)
      : driver_(driver), roster_(driver.roster()), last_used_(roster_.models()), waiting_(roster_.models()) {
    for (int stage = 0; stage < roster_.stages(); ++stage) {
      states_.emplace_back(roster_.images(stage), driver.options().frames);
    }
  }

  void run() {
    for (const ExecutedStep& executed : driver_.steps()) {
      std::erase_if(unfinished_, [&](RequestId id) { return driver_.completion(id).finished_s <= executed.planned_s; });
      if (executed.waiting_after != executed.waiting_before) {
        begin_turn(executed);
      } else {
        for (const StagePlan& plan : executed.step.stages) {
          require(plan.caches.empty() && plan.fetches.empty(), "a pool changes in the middle of a turn");
        }
        require(!executed.swap, "a swap in the middle of a turn");
      }
      follow(executed);
    }
    for (const auto& queue : waiting_) require(queue.empty(), "a request was never in a turn");
  }

 private:
  // --- Turns ---
  void begin_turn(const ExecutedStep& executed) {
    require(executed.in_flight == 1, "a turn begins with steps in flight");
    require(unfinished_.empty(), "a turn begins before the one before has ended");
    fill_queues(executed);
    const ModelId model = executed.step.model;
    require(model == oldest(), "another model than that of the oldest request runs");
    require(executed.planned_s == std::max(turn_ended_s_, first_visible()), "a turn begins later than it could");
    const int blocks = take_members(model, executed.waiting_before - executed.waiting_after);
    swapped_ = false;
    for (int stage = 0; stage < roster_.stages(); ++stage) expect_pool_change(executed, stage, blocks);
    require(executed.swap == swapped_, "a step says wrongly whether it swaps");
  }

  // Requests that the scheduler knew of and that had arrived.
  void fill_queues(const ExecutedStep& executed) {
    for (; next_ < driver_.submitted().size() && driver_.submitted()[next_].at_s <= executed.planned_s; ++next_) {
      const Request& request = driver_.submitted()[next_].request;
      const bool served = request.max_tokens > 0 || request.logprobs >= 0;
      if (served && roster_.fits(request.model, blocks_of(request), driver_.options().frames))
        known_.push_back(&request);
    }
    std::stable_sort(known_.begin(), known_.end(), [](const Request* a, const Request* b) {
      return std::tie(a->arrival_s, a->id) < std::tie(b->arrival_s, b->id);
    });
    for (auto& queue : waiting_) queue.clear();
    for (const Request* request : known_) {
      if (request->arrival_s <= executed.planned_s) waiting_[request->model].push_back(request);
    }
  }

  // When the first of the requests became visible that wait now.
  double first_visible() const {
    double first_s = std::numeric_limits<double>::infinity();
    for (const SubmittedRequest& submitted : driver_.submitted()) {
      const bool waits = std::find(known_.begin(), known_.end(), &submitted.request) != known_.end();
      if (waits) first_s = std::min(first_s, std::max(submitted.at_s, submitted.request.arrival_s));
    }
    return first_s;
  }

  ModelId oldest() const {
    const Request* best = nullptr;
    for (const Request* request : known_) {
      if (!best || std::tie(request->arrival_s, request->id) < std::tie(best->arrival_s, best->id)) best = request;
    }
    require(best != nullptr, "a turn without a waiting request");
    return best->model;
  }

  // Blocks of the turn's requests: the first `count` of the queue, and no more would have gone in.
  int take_members(ModelId model, std::size_t count) {
    auto& queue = waiting_[model];
    require(count > 0 && count <= queue.size(), "a turn of another size than the queue");
    int blocks = 0;
    for (std::size_t i = 0; i < count; ++i) {
      blocks += blocks_of(*queue[i]);
      unfinished_.insert(queue[i]->id);
      std::erase(known_, queue[i]);
    }
    require(roster_.fits(model, blocks, driver_.options().frames), "a turn's caches do not fit the pool");
    const bool full = count == static_cast<std::size_t>(driver_.options().max_seqs);
    require(full || count == queue.size() ||
                !roster_.fits(model, blocks + blocks_of(*queue[count]), driver_.options().frames),
            "a turn leaves out a request that had room");
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
    return blocks;
  }

  // --- Pools ---
  void expect_pool_change(const ExecutedStep& executed, int stage, int blocks) {
    const ModelId model = executed.step.model;
    const StageState& before = states_[stage];
    const Pages had = resident(before, roster_.models());
    const int pages = before.image(model).pages();
    const int cache = roster_.frames_needed(model, stage, blocks) - pages;
    const int missing = pages - before.resident_pages(model);
    swapped_ |= missing > 0;
    Pages expected = without_coldest(before, had, model, cache + missing - available(before));
    for (PageId p = 0; p < static_cast<PageId>(pages); ++p) expected.emplace(model, p);

    StageState after = before;
    after.apply(executed.step, stage);
    require(resident(after, roster_.models()) == expected, fmt::format("stage {}: other pages are there", stage));
    for (ModelId m = 0; m < roster_.models(); ++m) {
      require(std::ssize(after.cache(m)) == (m == model ? cache : 0), fmt::format("stage {}: cache length", stage));
    }
    const auto& fetches = executed.step.stages[stage].fetches;
    require(std::ssize(fetches) == missing, fmt::format("stage {}: pages fetched", stage));
    require(std::is_sorted(fetches.begin(), fetches.end(), [](auto& a, auto& b) { return a.page < b.page; }),
            fmt::format("stage {}: pages out of order", stage));
  }

  // Frames for the turn that cost no page: free ones and those of all caches.
  int available(const StageState& state) const {
    int frames = free_frames(state);
    for (ModelId m = 0; m < roster_.models(); ++m) frames += static_cast<int>(state.cache(m).size());
    return frames;
  }

  Pages without_coldest(const StageState& state, Pages pages, ModelId running, int count) const {
    std::vector<ModelId> order(roster_.models());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [this](ModelId a, ModelId b) { return last_used_[a] < last_used_[b]; });
    for (const ModelId victim : order) {
      for (PageId p = state.image(victim).pages(); victim != running && p-- > 0 && count > 0;) {
        count -= static_cast<int>(pages.erase({victim, p}));
      }
    }
    require(count <= 0, "a turn needs more frames than there are");
    return pages;
  }

  // --- Progress ---
  void follow(const ExecutedStep& executed) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      if (chunk.start == 0) request_of_[chunk.sequence] = request_of(chunk.tokens[0]);
      const RequestId request = request_of_.at(chunk.sequence);
      require(unfinished_.contains(request), "a request runs outside its turn");
      last_step_[request] = executed.step.id;
      overtaken_.erase(request);
      for (const RequestId other : unfinished_) {
        const bool waits = last_step_[other] <= executed.completed;
        require(!waits || ++overtaken_[other][request] <= 1, fmt::format("request {} is passed over", other));
      }
    }
    for (int stage = 0; stage < roster_.stages(); ++stage) states_[stage].apply(executed.step, stage);
    last_used_[executed.step.model] = executed.step.id;
    turn_ended_s_ = executed.finished_s;
  }

  const Driver& driver_;
  const FakeRoster& roster_;
  std::vector<StageState> states_;                    // [stage]
  std::vector<StepId> last_used_;                     // [model]
  std::vector<const Request*> known_;                 // handed over, not in a turn yet
  std::vector<std::vector<const Request*>> waiting_;  // [model] arrived ones, oldest first
  std::size_t next_ = 0;
  std::set<RequestId> unfinished_;  // of the turn
  double turn_ended_s_ = 0;         // of the last step so far
  std::map<SequenceId, RequestId> request_of_;
  std::map<RequestId, StepId> last_step_;                    // with a chunk of it; 0: not begun
  std::map<RequestId, std::map<RequestId, int>> overtaken_;  // [waiting][other]: the other's chunks meanwhile
  bool swapped_ = false;                                     // some stage missed pages when the turn began
};

}  // namespace

std::string broken_fifo_rule(const Driver& driver) {
  try {
    Replay(driver).run();
    return "";
  } catch (const Fault& fault) {
    return fault.what();
  }
}

}  // namespace computron::test

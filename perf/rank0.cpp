// What a step costs rank 0 of a job of 128 groups of 8 ranks with 1,000 models: decisions, encoding, sending, and
// collecting the reports of all ranks (perf/README.md, "Rank 0"). A table on stdout. Exit code 1 when the target is
// missed.
//
//   mpirun -n 9 perf_rank0 [STEPS [TPxPP [OPEN]]]    measured steps (4000000), mesh of a group (8x1), requests that are
//                                                    open at any time, over all groups (1000)
//
// Process 0 is rank 0: Dispatcher, Schedulers and GroupEngines as Engine uses them, each step sent through MPI and each
// report received. Its ranks exist in virtual time, which says when a step is over, but for their messages: process
// 1 + r is rank r of every group. It receives the steps' bytes, and answers each with the report of a rank that has
// executed it; what the report says beside the digest of these bytes, rank 0 has left in memory that all share.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <queue>
#include <random>

#include "computron/base/digest.h"
#include "computron/base/time.h"
#include "computron/comm/tags.h"
#include "computron/dispatch/dispatcher.h"
#include "computron/plan/virtual_mesh.h"
#include "computron/serve/group_engine.h"
#include "perf/virtual_ranks.h"

using namespace computron;

namespace {

constexpr int kRanks = 8;  // of a group
constexpr std::size_t kGroups = 128, kModels = 1000;
constexpr int kResident = 4;      // models that a group's pool holds
constexpr int kCacheFrames = 24;  // of a model: 64 sequences of 64 tokens
constexpr int kMaxSeqs = 64;
constexpr int kFewestTokens = 16, kMostTokens = 48;  // of a prompt, and of an answer: any number between
constexpr double kPass_s = 0.02;                     // 50 steps a second and group, on average: groups that are
constexpr double kSpread = 0.1;                      // equally fast would all report at one time
constexpr double kLimit_us = 39;
constexpr TokenId kSomeToken = 5;

// --- What all processes see ---------------------------------------------------------------------------------------

// Of a step, what its ranks report beside what they have received.
struct Answer {
  StepId step;
  std::array<StateDigest, kRanks> digests;  // [stage], as are
  std::array<std::uint64_t, kRanks> link_bytes;
  std::array<double, kRanks> busy_s, compute_s;
  int rows;
};

constexpr std::size_t kAnswers = 4096;  // more than there are steps in flight

struct Board {
  struct alignas(64) Count {
    std::atomic<std::uint64_t> steps;
  };
  std::array<Count, kRanks> answered;  // [rank of a group] steps whose reports MPI has taken
  std::atomic<bool> over;
  std::array<Answer, kAnswers> answers;  // [step of any group, in the order sent, modulo the size]
};

// Collective. Stays mapped until the process ends.
Board& map_board(const Communicator& job) {
  std::string path = "/dev/shm/perf_rank0.XXXXXX";
  const bool owns = job.rank() == 0;
  int file = owns ? mkstemp(path.data()) : -1;
  const auto chars = std::as_bytes(std::span(path));
  const std::vector<std::byte> name = job.broadcast({chars.begin(), chars.end()}, 0);
  std::memcpy(path.data(), name.data(), name.size());
  if (!owns) file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || (owns && ftruncate(file, sizeof(Board)) != 0)) {
    throw Error(ExitCode::kSystem, fmt::format("cannot share {}: {}", path, std::strerror(errno)));
  }
  job.barrier();
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw Error(ExitCode::kSystem, fmt::format("cannot map {}", path));
  close(file);
  job.barrier();
  if (owns) unlink(path.c_str());
  return *static_cast<Board*>(memory);  // zeros: nothing answered, not over
}

void pause_a_little() { usleep(50); }

// --- A rank of every group ----------------------------------------------------------------------------------------

Report report_of(const Answer& answer, const Mesh& mesh, std::uint64_t received) {
  const auto stage = static_cast<std::size_t>(mesh.stage);
  Report report;
  report.step = answer.step;
  report.digest = answer.digests[stage];
  report.received = received;
  report.link_bytes = report.frame_bytes = answer.link_bytes[stage];  // pages are not coded
  report.busy_s = answer.busy_s[stage];
  report.compute_s = answer.compute_s[stage];
  if (mesh.rank != mesh.own_group().sampler()) return report;
  SampledRow row{.token = kSomeToken, .top = {{kSomeToken, 0}}};
  row.finite = true;
  report.rows.assign(static_cast<std::size_t>(answer.rows), row);
  return report;
}

// In the order in which steps come, which is that of rank 0's receives.
void answer_steps(const Mesh& mesh, Board& board) {
  StepReceiver receiver(mesh, /*steps_in_flight=*/2 * static_cast<int>(kGroups));
  Outbox outbox;
  std::atomic<std::uint64_t>& answered = board.answered[static_cast<std::size_t>(mesh.rank)].steps;
  for (std::uint64_t number = 0; !board.over;) {
    const auto bytes = receiver.poll_bytes();
    if (!bytes) {
      pause_a_little();
      continue;
    }
    const Report report = report_of(board.answers[number % kAnswers], mesh, digest64(*bytes));
    outbox.send(mesh.job, report.encode(), 0, tags::kReport);
    while (!outbox.empty()) outbox.poll();
    answered = ++number;
  }
}

// --- Rank 0 -------------------------------------------------------------------------------------------------------

std::vector<ModelId> models_of_group(std::size_t group) {
  std::vector<ModelId> models;
  for (std::size_t m = 0; m < kModels; ++m) {
    const std::size_t first = 7 * m % kGroups, second = (7 * m + 31) % kGroups;
    if (group == first || group == second) models.push_back(static_cast<ModelId>(m));
  }
  return models;
}

// A group's scheduler, what rank 0 does for it, and its ranks.
struct Group {
  static SchedulerOptions options(int stages, double pass_s) {
    return {.frames = kResident * (kVirtualPages + kCacheFrames),
            .max_seqs = kMaxSeqs,
            .steps_in_flight = stages + 1,
            .max_waiting = std::size_t{1} << 20,
            .costs = {
                .link_bytes_per_s = 20e9, .memory_bytes_per_s = 1e15, .flops_per_s = 1e18, .step_s = pass_s / stages}};
  }
  static std::vector<ModelShape> shapes(const ShardLayout& layout, std::size_t models, std::size_t stages) {
    const ModelShape shape{.layouts = std::vector<const ShardLayout*>(stages, &layout),
                           .caches = std::vector<KvGeometry>(stages, KvGeometry::make(layout)),
                           .eos_tokens = {}};
    return std::vector<ModelShape>(models, shape);
  }

  Group(const ShardLayout& layout, std::size_t models, int stages, double pass_s)
      : layouts(models, std::vector<const ShardLayout*>(static_cast<std::size_t>(stages), &layout)),
        scheduler(shapes(layout, models, static_cast<std::size_t>(stages)), std::vector<std::string>(models, "m"),
                  make_policy("balanced"), options(stages, pass_s)),
        ranks(layouts, CostModel(layouts, options(stages, pass_s).costs), /*latency_s=*/2e-5) {}

  struct Sent {
    std::uint64_t number;  // of the step, among those of all groups
    double us;             // what its decision and sending have cost
  };

  std::vector<std::vector<const ShardLayout*>> layouts;
  Scheduler scheduler;
  VirtualMesh ranks;
  std::deque<Sent> in_flight;
};

// Processor time of rank 0.
struct Cost {
  double us = 0;
  std::uint64_t intervals = 0;  // that were timed: each holds about one read of the clock
  // Of each of so many steps; reading the clock takes so long.
  double a_step_us(double steps, double read_us) const {
    return (us - static_cast<double>(intervals) * read_us) / steps;
  }
};

struct Costs {
  Cost decide;  // submit(), due(), next(), completed()
  Cost send;    // encoding, sending, posting receives
  Cost collect;
  double us() const { return decide.us + send.us + collect.us; }
};

// Adds the time of its life.
class Timer {
 public:
  explicit Timer(Cost& cost) : cost_(cost) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cost_.us += processor_us() - start_us_;
    ++cost_.intervals;
  }

 private:
  Cost& cost_;
  const double start_us_ = processor_us();
};

class Rank0 {
 public:
  Rank0(const Mesh& mesh, Board& board, std::size_t open)
      : mesh_(mesh), board_(board), layout_(virtual_stage()), metrics_(model_names(), metrics_groups()) {
    std::vector<DispatchGroup> dispatched;
    for (std::size_t g = 0; g < kGroups; ++g) {
      const std::vector<ModelId> models = models_of_group(g);
      const double pass_s = kPass_s * (1 - kSpread / 2 + kSpread * static_cast<double>(g) / kGroups);
      groups_.push_back(std::make_unique<Group>(layout_, models.size(), mesh.groups[1].shape.pp, pass_s));
      dispatched.push_back({&groups_.back()->scheduler, models});
      engines_.emplace_back(mesh.job, rank_group(g), /*names_group=*/true, groups_.back()->scheduler, metrics_);
    }
    dispatcher_ = std::make_unique<Dispatcher>(dispatched, kModels);
    never_ = mesh.job.receive({}, /*from=*/1, tags::kMeasurement);
    while (open_ < open) submit();
  }

  // Until so many more steps have been reported.
  void run(std::uint64_t steps) {
    for (const std::uint64_t end = steps_ + steps; steps_ < end;) {
      collect_reported();
      if (!decide()) wait();
    }
  }
  // Nothing is in flight then.
  void drain() {
    for (; !events_.empty(); events_.pop()) {
      now_s_ = std::max(now_s_, events_.top().first);
      collect(events_.top().second);
    }
  }
  // What has been counted so far was the start.
  void begin_to_measure() {
    costs_ = {};
    samples_us_.clear();
    steps_ = passes_ = rows_ = swaps_ = 0;
    began_s_ = now_s_;
  }

  const Costs& costs() const { return costs_; }
  double p99_us() const { return quantile(samples_us_, 0.99); }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t swaps() const { return swaps_; }
  double virtual_s() const { return now_s_ - began_s_; }
  double rows_a_pass() const { return static_cast<double>(rows_) / static_cast<double>(passes_); }

 private:
  using Event = std::pair<double, std::size_t>;  // a group's ranks have reported a step

  static std::vector<std::string> model_names() { return std::vector<std::string>(kModels, "m"); }
  static std::vector<MetricsGroup> metrics_groups() {
    std::vector<MetricsGroup> groups;
    for (std::size_t g = 0; g < kGroups; ++g) groups.push_back({.first_rank = 1, .models = models_of_group(g)});
    return groups;
  }
  // Every group's ranks are the processes behind this one.
  RankGroup rank_group(std::size_t group) const {
    RankGroup ranks = mesh_.groups[1];
    ranks.index = static_cast<int>(group);
    return ranks;
  }

  int some_tokens() { return kFewestTokens + static_cast<int>(random_() % (kMostTokens - kFewestTokens + 1)); }
  void submit() {
    Request request{.id = ++last_id_,
                    .model = static_cast<ModelId>(random_() % kModels),
                    .prompt = std::vector<TokenId>(static_cast<std::size_t>(some_tokens()), kSomeToken),
                    .max_tokens = some_tokens(),
                    .stop_tokens = {},
                    .arrival_s = now_s_};
    ++open_;
    const Timer timer(costs_.decide);
    dispatcher_->submit(std::move(request));
  }

  // One decision of one group. False: none is to be made now.
  bool decide() {
    const double before_us = costs_.us();
    std::optional<std::size_t> group;
    std::optional<Decision> decision;
    {
      const Timer timer(costs_.decide);
      group = dispatcher_->due(now_s_);
      if (group) decision = dispatcher_->next(*group, now_s_);
    }
    if (!group) return false;
    if (auto* planned = std::get_if<PlannedStep>(&*decision)) send(*group, std::move(*planned), before_us);
    return true;
  }

  // `before_us`: the costs before it was decided.
  void send(std::size_t number, PlannedStep planned, double before_us) {
    Group& group = *groups_[number];
    passes_ += planned.step.chunks.empty() ? 0 : 1;
    rows_ += planned.step.chunks.size();
    swaps_ += planned.swaps.size();
    leave_answer(group, planned, number);
    {
      const Timer timer(costs_.send);
      engines_[number].send(std::move(planned), /*begun=*/0);
      engines_[number].send_held([](Ticket) { return true; });
    }
    group.in_flight.push_back({sent_++, costs_.us() - before_us});
  }

  // What the ranks will report of it, and when.
  void leave_answer(Group& group, const PlannedStep& planned, std::size_t number) {
    const VirtualMesh::Execution execution = group.ranks.execute(planned.step, now_s_);
    Answer& answer = board_.answers[sent_ % kAnswers];
    answer.step = planned.step.id;
    answer.rows = planned.step.logit_rows();
    for (std::size_t stage = 0; stage < planned.expected.size(); ++stage) {
      answer.digests[stage] = planned.expected[stage];
      answer.link_bytes[stage] = execution.times[stage].link_bytes;
      answer.busy_s[stage] = execution.times[stage].link_busy_s;
      answer.compute_s[stage] = execution.times[stage].compute_s;
    }
    events_.emplace(execution.reported_s, number);
  }

  void collect_reported() {
    for (; !events_.empty() && events_.top().first <= now_s_; events_.pop()) collect(events_.top().second);
  }

  void collect(std::size_t number) {
    Group& group = *groups_[number];
    GroupEngine& engine = engines_[number];
    Group::Sent sent = group.in_flight.front();
    group.in_flight.pop_front();
    wait_for_answers(sent.number);
    const double before_us = costs_.us();
    std::optional<GroupEngine::Done> done;
    {
      const Timer timer(costs_.collect);
      while (!done) done = engine.take_reports();
      engine.poll();
    }
    std::vector<Completion> completions;
    {
      const Timer timer(costs_.decide);
      const Report& last = done->reports[static_cast<std::size_t>(mesh_.groups[1].sampler())];
      dispatcher_->completed(number, done->step.id, {last.rows, last.encoded}, now_s_,
                             engine.stage_times(done->reports));
      completions = dispatcher_->take_completions();
      done.reset();
    }
    samples_us_.push_back(static_cast<float>(sent.us + costs_.us() - before_us));
    ++steps_;
    replace(completions);
  }

  // The ranks have a time of their own in which to report, and no processors: their messages are on their way first.
  // What MPI does meanwhile is counted.
  void wait_for_answers(std::uint64_t number) {
    for (const Board::Count& rank : board_.answered) {
      while (rank.steps <= number) {
        {
          const Timer timer(costs_.collect);
          never_.done();
          for (GroupEngine& engine : engines_) engine.poll();
        }
        pause_a_little();
      }
    }
  }

  // For each that has ended another one comes.
  void replace(const std::vector<Completion>& completions) {
    for (const Completion& completion : completions) {
      if (!completion.error_code.empty()) throw Error(ExitCode::kInternal, "a request has failed");
      submit();
    }
    open_ -= completions.size();
  }

  void wait() {
    const double reported_s = events_.empty() ? INFINITY : events_.top().first;
    const double until_s = std::min(dispatcher_->due_s(), reported_s);
    ensure(std::isfinite(until_s), "the dispatcher waits for nothing");
    now_s_ = std::max(now_s_, until_s);
  }

  const Mesh& mesh_;
  Board& board_;
  const ShardLayout layout_;
  Metrics metrics_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::deque<GroupEngine> engines_;  // [group]
  std::unique_ptr<Dispatcher> dispatcher_;

  std::mt19937_64 random_{1};
  RequestId last_id_ = 0;
  std::size_t open_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_s_ = 0, began_s_ = 0;
  std::uint64_t sent_ = 0;  // steps, of all groups
  MessageRequest never_;    // nobody sends what it waits for: testing it lets MPI get on

  Costs costs_;
  std::vector<float> samples_us_;  // [step] all that it has cost, but for decisions to wait
  std::uint64_t steps_ = 0, passes_ = 0, rows_ = 0, swaps_ = 0;
};

// A look for the reports of all groups where none has come: no rank ever sends these.
double look_us(const Mesh& mesh) {
  constexpr int kLooks = 1000;
  std::deque<ReportCollector> collectors;
  Step step;
  step.stages.resize(static_cast<std::size_t>(mesh.groups[1].shape.pp));
  for (std::size_t g = 0; g < kGroups; ++g) {
    ReportCollector& collector = collectors.emplace_back(mesh.job, mesh.groups[1]);
    collector.expect(step, std::vector<StateDigest>(step.stages.size()));
    collector.note_sent(step.id, std::vector<std::uint64_t>(step.stages.size()));
  }
  const double start_us = processor_us();
  for (int look = 0; look < kLooks; ++look) {
    for (ReportCollector& collector : collectors) {
      if (collector.poll()) throw Error(ExitCode::kInternal, "a report of no step");
    }
  }
  return (processor_us() - start_us) / kLooks;
}

// Of the clock.
double us_of_a_read() {
  constexpr int kReads = 100'000;
  const double start_us = processor_us();
  for (int read = 1; read < kReads; ++read) processor_us();
  return (processor_us() - start_us) / kReads;
}

// Whether the target is met.
bool measure(const Mesh& mesh, Board& board, std::uint64_t steps, std::size_t open) {
  Rank0 rank0(mesh, board, open);
  rank0.run(steps / 20 + 1);  // until batches have their usual size
  rank0.begin_to_measure();
  const double start_s = now_s();
  rank0.run(steps);
  const double wall_s = now_s() - start_s, read_us = us_of_a_read();
  const auto count = static_cast<double>(rank0.steps());
  const auto a_step_us = [&](const Cost& cost) { return cost.a_step_us(count, read_us); };
  const Costs& costs = rank0.costs();
  const double all_us = a_step_us(costs.decide) + a_step_us(costs.send) + a_step_us(costs.collect);
  const MeshShape shape = mesh.groups[1].shape;
  fmt::print(
      "| tp × pp | groups | ranks | models | open requests | steps | virtual s | steps/s a group | sequences a pass | "
      "swaps"
      " | decide us | encode, send us | collect us | together us | p99 us | target |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
      "| {} × {} | {} | {} | {} | {} | {} | {:.0f} | {:.1f} | {:.0f} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} "
      "| "
      "{} |\n\n",
      shape.tp, shape.pp, kGroups, kGroups * kRanks, kModels, open, rank0.steps(), rank0.virtual_s(),
      count / rank0.virtual_s() / kGroups, rank0.rows_a_pass(), rank0.swaps(), a_step_us(costs.decide),
      a_step_us(costs.send), a_step_us(costs.collect), all_us, rank0.p99_us(), all_us <= kLimit_us ? "met" : "missed");
  fmt::print("The run took {:.0f} s. Reading the clock, {:.1f} us a step, has been taken off.\n", wall_s,
             costs.us() / count - all_us);
  rank0.drain();
  return all_us <= kLimit_us;
}

int run(int argc, char** argv) {
  const std::uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4'000'000;
  MeshShape shape{.tp = kRanks, .pp = 1};
  if (argc > 2) std::sscanf(argv[2], "%dx%d", &shape.tp, &shape.pp);
  const std::size_t open = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1000;
  if (steps == 0 || open == 0 || shape.ranks() != kRanks) {
    throw Error(ExitCode::kUsage, "perf_rank0 [STEPS [TPxPP [OPEN]]]: a mesh of 8 ranks");
  }
  const MeshShape shapes[] = {{}, shape};
  const Mesh mesh(shapes, Communicator::world());
  Board& board = map_board(mesh.job);
  if (!mesh.schedules()) {
    answer_steps(mesh, board);
    mesh.job.barrier();
    return 0;
  }
  fmt::print("{}\n\n", processor());
  const bool met = measure(mesh, board, steps, open);
  fmt::print("A look at {} groups of which no rank has reported takes {:.0f} us.\n", kGroups, look_us(mesh));
  board.over = true;
  mesh.job.barrier();
  return met ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  MpiSession session(&argc, &argv);
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::cerr << "perf_rank0: " << error.what() << std::endl;
    MpiSession::abort(error.code());
  }
}

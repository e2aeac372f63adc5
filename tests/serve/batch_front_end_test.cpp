// A batch before a scheduler whose steps are answered at once: attempts that go down and are run again, under every
// policy. No ranks and no weights.
#include "computron/serve/batch_front_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <thread>
#include <tuple>

#include "computron/base/time.h"
#include "computron/plan/record.h"
#include "computron/storage/spool.h"
#include "tests/requests/requests_support.h"
#include "tests/sched/fake_model.h"
#include "tests/serve/one_page_header.h"

namespace computron {
namespace {

using ::testing::HasSubstr;

constexpr RequestId kLines = 12;
constexpr double kLongest_s = 30;  // of an attempt, which takes milliseconds
const char* const kPolicies[] = {"fifo", "balanced", "throughput"};

void rest() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

// While it lives, that file is the standard input.
class StandardInput {
 public:
  explicit StandardInput(const std::string& path) : StandardInput(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  explicit StandardInput(int fd) : saved_(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) {
    dup2(fd, STDIN_FILENO);
    close(fd);
  }
  ~StandardInput() {
    if (saved_ < 0) {
      close(STDIN_FILENO);
      return;
    }
    dup2(saved_, STDIN_FILENO);
    close(saved_);
  }
  StandardInput(const StandardInput&) = delete;
  StandardInput& operator=(const StandardInput&) = delete;

 private:
  int saved_;
};

// How the requests of an attempt are served.
struct Serving {
  std::string policy;
  ReaderLimits limits = {};
  BatchOptions options = {};
  std::size_t max_waiting = 1 << 16;  // requests
  std::size_t groups = 1;             // each with both models
  OnLate on_late = OnLate::kServe;
};

// What an attempt has to do with: all of it goes with the attempt, and what is on disk stays.
struct Parts {
  Parts(const std::string& output, const std::string& input, const Serving& serving)
      : writer(begin(output, input, spool)),
        reader(input, RequestParser(two_models(), serving.limits), serving.limits, &writer.history(), spool),
        model_list(models_of(serving)),
        schedulers(schedulers_of(serving)),
        metrics({"opt-a", "org/opt-b.v1"}, std::vector<MetricsGroup>(serving.groups, {.models = {0, 1}})),
        front_end(reader, writer, metrics, two_models(), start_s, serving.options) {}

  // The second has the priority that the options give it.
  static std::vector<test::FakeModel> models_of(const Serving& serving) {
    std::vector<test::FakeModel> models{test::small_model(3), test::small_model(2)};
    if (!serving.options.priorities.empty()) models[1].priority = serving.options.priorities[1];
    return models;
  }
  std::deque<Scheduler> schedulers_of(const Serving& serving) const {
    std::deque<Scheduler> all;
    for (std::size_t group = 0; group < serving.groups; ++group) {
      all.emplace_back(model_list.shapes(), model_list.names(), make_policy(serving.policy),
                       SchedulerOptions{.frames = 20,
                                        .max_batch_tokens = 100,
                                        .max_seqs = 3,
                                        .max_waiting = serving.max_waiting,
                                        .on_late = serving.on_late});
    }
    return all;
  }
  std::vector<DispatchGroup> dispatch_groups() {
    std::vector<DispatchGroup> groups;
    for (Scheduler& scheduler : schedulers) groups.push_back({.scheduler = &scheduler, .models = {0, 1}});
    return groups;
  }

  static ResultJournal begin(const std::string& output, const std::string& input, std::shared_ptr<Spool>& spool) {
    FoundOutput found = claim_output(output, input, Settings{}, JournalOptions{.durability = Durability::kProcess});
    ResultJournal journal = std::get<ClaimedOutput>(std::move(found)).begin();
    if (input == "-") spool = journal.open_spool();
    return journal;
  }
  double now() const { return now_s() - start_s; }

  double start_s = now_s();
  std::shared_ptr<Spool> spool;
  ResultWriter writer;
  RequestReader reader;
  test::FakeModelList model_list;
  std::deque<Scheduler> schedulers;  // [group]
  Metrics metrics;
  Dispatcher dispatcher{dispatch_groups(), 2};
  BatchFrontEnd front_end;
};

// Attempts at a batch of kLines requests for two models in turn.
class Batch {
 public:
  // `replay`: they arrive one after the other, the last after 10 ms.
  explicit Batch(std::string policy, bool replay = false) : serving_{.policy = std::move(policy)} {
    serving_.options = {.replay = replay, .view = ViewOptions{.progress_line = false}};
    std::vector<std::string> lines;
    for (RequestId line = 0; line < kLines; ++line) lines.push_back(line_of(line));
    write_input(lines);
  }
  void write_input(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    path_ = folder_.write("in.jsonl", text);
  }
  void read_standard_input() { input_ = "-"; }
  void serve_shard(const Shard& shard) { serving_.limits.shard = shard; }
  void serve_in_groups(std::size_t groups) { serving_.groups = groups; }
  void give_second_model_priority(int priority) { serving_.options.priorities = {0, priority}; }
  void do_about_late(OnLate on_late) { serving_.on_late = on_late; }
  // Only so many requests wait in the schedulers, and a line or two of each model beyond.
  void defer_beyond(std::size_t max_waiting, std::size_t ahead) {
    serving_.max_waiting = max_waiting;
    serving_.options.ahead = ahead;
  }

  void record_to(StepRecorder& recorder) { serving_.options.recorder = &recorder; }

  static std::string line_of(RequestId line) {
    return line_of(line, 1e-3 * static_cast<double>(line), line % 2 == 0 ? "opt-a" : "org/opt-b.v1");
  }
  static std::string line_of(RequestId line, double arrival_s, const std::string& model) {
    return fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions","arrival":{},)"
                       R"("body":{{"model":"{}","prompt":[4,{}],"max_tokens":4,"ignore_eos":true}}}})",
                       line, arrival_s, model, line);
  }
  Parts make_parts() const { return {output(), input(), serving_}; }
  std::string input() const { return input_ == "-" ? "-" : path_; }

  // Serves until the end, or until a request begins with which the process goes down. Whether it came to its end; what
  // has begun, step by step, is in begun().
  bool attempt(const std::function<bool(RequestId)>& goes_down = [](RequestId) { return false; }) {
    std::optional<StandardInput> standard_input;
    if (input_ == "-") standard_input.emplace(path_);
    Parts parts = make_parts();
    begun_.clear();
    const double end_s = now_s() + kLongest_s;
    while (!parts.reader.finished() && now_s() < end_s) {
      if (!parts.front_end.take_input(parts.dispatcher, parts.now())) rest();
    }
    for (; now_s() < end_s; rest()) {
      parts.front_end.take_input(parts.dispatcher, parts.now());
      put_results(parts);
      while (const std::optional<std::size_t> group = parts.dispatcher.due(parts.now())) {
        Decision decision = parts.dispatcher.next(*group, parts.now());
        const auto* planned = std::get_if<PlannedStep>(&decision);
        if (planned != nullptr && !execute(*planned, *group, parts, goes_down)) return false;
      }
      if (parts.dispatcher.all_done()) return finish(parts);
    }
    ADD_FAILURE() << "it stalls: " << parts.front_end.unfinished();
    return false;
  }
  const std::vector<std::vector<RequestId>>& begun() const { return begun_; }
  std::set<RequestId> all_begun() const {
    std::set<RequestId> all;
    for (const std::vector<RequestId>& step : begun_) all.insert(step.begin(), step.end());
    return all;
  }

  // Of each of `lines` one result; of `failed` among them an error.
  void expect_results(const std::set<RequestId>& lines, const std::set<RequestId>& failed = {},
                      const std::string& error = "poison_request") const {
    std::multiset<std::string> ids, expected;
    std::istringstream results(read_file(output()));
    for (std::string text; std::getline(results, text);) {
      const std::size_t begin = text.find(R"("custom_id":"r)") + 14;
      const std::string id = text.substr(begin, text.find('"', begin) - begin);
      ids.insert(id);
      EXPECT_EQ(text.find(error) != text.npos, failed.contains(std::stoull(id))) << text;
    }
    for (const RequestId line : lines) expected.insert(std::to_string(line));
    EXPECT_EQ(ids, expected);
  }
  std::string output() const { return folder_ / "out.jsonl"; }

 private:
  static void put_results(Parts& parts) {
    std::vector<Completion> completions = parts.dispatcher.take_completions();
    if (!completions.empty()) parts.front_end.put_results(std::move(completions), parts.now());
    parts.front_end.check();
  }
  static bool finish(Parts& parts) {
    put_results(parts);
    parts.front_end.finish(parts.now());
    std::move(parts.writer).finish();
    return true;
  }
  // False if the process goes down in the step.
  bool execute(const PlannedStep& planned, std::size_t group, Parts& parts,
               const std::function<bool(RequestId)>& goes_down) {
    if (!planned.begun.empty()) begun_.push_back(planned.begun);
    const Ticket ticket = parts.front_end.begin(planned.begun);
    while (!parts.front_end.noted(ticket)) rest();
    if (std::any_of(planned.begun.begin(), planned.begun.end(), goes_down)) return false;
    const std::vector<SampledRow> rows(planned.step.logit_rows(), SampledRow{.token = 7, .top = {}});
    parts.dispatcher.completed(group, planned.step.id, {rows}, parts.now());
    return true;
  }

  TemporaryFolder folder_;
  CapturedLog log_;
  std::string path_, input_;
  Serving serving_;
  std::vector<std::vector<RequestId>> begun_;  // by step
};

// `Deferred`: with room for three requests, the rest being read again.
enum class Input {
  kFile,
  kStandardInput,
  kShard,
  kReplay,
  kGroups,
  kDeferred,
  kDeferredStandardInput,
  kDeferredReplay,
  kDeferredGroups
};

std::string name_of(const char* policy, Input input) {
  const char* const inputs[] = {"File",     "StandardInput",         "Shard",          "Replay",        "Groups",
                                "Deferred", "DeferredStandardInput", "DeferredReplay", "DeferredGroups"};
  return fmt::format("{}{}", policy, inputs[static_cast<int>(input)]);
}

class BatchThatGoesDown : public ::testing::TestWithParam<std::tuple<const char*, Input>> {
 protected:
  BatchThatGoesDown() : batch_(std::get<0>(GetParam()), is(Input::kReplay, Input::kDeferredReplay)) {
    if (is(Input::kStandardInput, Input::kDeferredStandardInput)) batch_.read_standard_input();
    if (is(Input::kGroups, Input::kDeferredGroups)) batch_.serve_in_groups(2);
    if (input() >= Input::kDeferred) batch_.defer_beyond(3, 1);
    if (input() == Input::kShard) batch_.serve_shard({.index = 1, .count = 3});
    for (RequestId line = 0; line < kLines; ++line) {
      if (input() != Input::kShard || line % 3 == 1) lines_.insert(line);
    }
  }
  static Input input() { return std::get<1>(GetParam()); }
  static bool is(Input one, Input other) { return input() == one || input() == other; }

  // They have begun, and from the first of them on a line at a time.
  void expect_alone_and_last(const std::vector<RequestId>& suspects) const {
    const auto& begun = batch_.begun();
    auto step = std::find(begun.begin(), begun.end(), std::vector{suspects.front()});
    EXPECT_GE(begun.end() - step, std::ssize(suspects));
    for (; step != begun.end(); ++step) EXPECT_EQ(step->size(), 1u);
    EXPECT_THAT(batch_.all_begun(), ::testing::IsSupersetOf(suspects));
  }

  Batch batch_;
  std::set<RequestId> lines_;  // that the batch has
};

// Whoever waits for the suspects must not be who the suspects wait for.
TEST_P(BatchThatGoesDown, ServesWhatRanBothTimesAloneAndLastAndEndsUnderEveryPolicy) {
  const auto goes_down = [](RequestId line) { return line == 4; };
  ASSERT_FALSE(batch_.attempt(goes_down));
  const std::vector<RequestId> first = batch_.begun().back();
  ASSERT_FALSE(batch_.attempt(goes_down));
  const std::vector<RequestId> second = batch_.begun().back();
  std::vector<RequestId> suspects;
  std::set_intersection(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(suspects));
  ASSERT_GE(suspects.size(), 1u);
  ASSERT_TRUE(batch_.attempt());
  expect_alone_and_last(suspects);
  batch_.expect_results(lines_);
}

// The suspects run one after another; the one that takes the job down alone, too, is given up, and then the rest go on.
TEST_P(BatchThatGoesDown, GivesUpTheRequestThatTakesItDownAloneAndServesTheOthers) {
  const auto poisoned = [](RequestId line) { return line == 4; };
  for (int attempt = 0; attempt < 3; ++attempt) ASSERT_FALSE(batch_.attempt(poisoned)) << attempt;
  EXPECT_THAT(batch_.begun().back(), ::testing::ElementsAre(4u));
  ASSERT_TRUE(batch_.attempt(poisoned));
  batch_.expect_results(lines_, {4});
}

INSTANTIATE_TEST_SUITE_P(Policies, BatchThatGoesDown,
                         ::testing::Combine(::testing::ValuesIn(kPolicies),
                                            ::testing::Values(Input::kFile, Input::kStandardInput, Input::kShard,
                                                              Input::kReplay, Input::kGroups, Input::kDeferred,
                                                              Input::kDeferredStandardInput, Input::kDeferredReplay,
                                                              Input::kDeferredGroups)),
                         [](const auto& job) { return name_of(std::get<0>(job.param), std::get<1>(job.param)); });

TEST(BatchThatGoesDown, EndsUnderEveryPolicyThoughAllItsRequestsAreSuspects) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    Batch batch(policy);
    batch.serve_shard({.index = 0, .count = 6});  // of two requests for one model
    for (int attempt = 0; attempt < 2; ++attempt) ASSERT_FALSE(batch.attempt([](RequestId) { return true; }));
    ASSERT_EQ(batch.all_begun().size(), 2u);
    ASSERT_TRUE(batch.attempt());
    EXPECT_THAT(batch.begun(), ::testing::ElementsAre(std::vector<RequestId>{0}, std::vector<RequestId>{6}));
    batch.expect_results({0, 6});
  }
}

// Of the lines that find no room, and of what comes behind them, the time tells nothing.
TEST(BatchFrontEnd, TheRecordTellsWhatWaitedForRoom) {
  const TemporaryFolder folder;
  for (const bool crowded : {false, true}) {
    Batch batch("fifo");
    if (crowded) batch.defer_beyond(3, 1);
    StepRecorder recorder({.file = folder / "record"});
    recorder.begin(test::one_page_header({"opt-a", "org/opt-b.v1"}));
    batch.record_to(recorder);
    ASSERT_TRUE(batch.attempt());
    recorder.finish(/*all_done=*/true, 100);
    const Record record = read_record(folder / "record");
    EXPECT_EQ(record.completions.size(), kLines);
    std::size_t deferred = 0, ends = 0;
    for (const Record::Input& input : record.inputs) {
      if (const auto* request = std::get_if<RecordedRequest>(&input)) {
        deferred += request->flags & RecordedRequest::kDeferred;
        EXPECT_EQ(request->prompt_tokens, 2u);
        EXPECT_EQ(request->max_tokens, 4);
      } else {
        EXPECT_FALSE(std::get<RecordedInputEnd>(input).deferred && ends == 0);
        ++ends;
      }
    }
    EXPECT_EQ(record.requests, kLines);
    EXPECT_EQ(deferred, crowded ? kLines - 3 : 0);
    EXPECT_EQ(ends, 2u);
    const auto& last = std::get<RecordedInputEnd>(record.inputs.back());
    EXPECT_TRUE(last.closed);
    EXPECT_EQ(last.deferred, crowded);
  }
}

// Somebody may send more, and only a policy that wants to know all requests waits for that.
TEST(BatchFrontEnd, AnInputThatStaysOpenIsOneThatTheJobMayWaitFor) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const StandardInput standard_input(ends[0]);
    Batch batch(policy);
    batch.read_standard_input();
    const std::string text = Batch::line_of(0) + "\n";
    ASSERT_EQ(write(ends[1], text.data(), text.size()), std::ssize(text));
    Parts parts = batch.make_parts();
    while (!parts.front_end.take_input(parts.dispatcher, 0)) rest();
    EXPECT_TRUE(parts.front_end.input_open());
    EXPECT_TRUE(parts.dispatcher.has_work(parts.now()));
    EXPECT_EQ(parts.dispatcher.waits_for_input(0), make_policy(policy)->plans_ahead());
    EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("1 lines have no result, 0 more wait"));
    EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("the input is open"));
    close(ends[1]);
    while (!parts.front_end.take_input(parts.dispatcher, 0)) rest();
    EXPECT_FALSE(parts.front_end.input_open());
    EXPECT_FALSE(parts.dispatcher.waits_for_input(0));
    EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("the input has ended"));
  }
}

// A line of several parts begins once, and each of its parts waits for the note of that.
TEST(BatchFrontEnd, ALaterPartOfALineWaitsForTheNoteOfTheFirst) {
  const Batch batch("fifo");
  Parts parts = batch.make_parts();
  while (!parts.reader.finished()) {
    if (!parts.front_end.take_input(parts.dispatcher, 0)) rest();
  }
  parts.front_end.take_input(parts.dispatcher, 0);
  const Ticket first = parts.front_end.begin({0});
  const Ticket second = parts.front_end.begin({1});
  EXPECT_GT(first, 0u);
  EXPECT_GT(second, first);
  EXPECT_EQ(parts.front_end.begin({0}), first);
  EXPECT_EQ(parts.front_end.begin({0, 1}), second);
  EXPECT_GT(parts.front_end.begin({0, 2}), second);
  parts.front_end.check();
}

// --- Late requests --------------------------------------------------------------------------------------------------

class BatchWithDeadlines : public ::testing::TestWithParam<std::tuple<const char*, Input, OnLate>> {
 protected:
  // Every third line is late before it can begin, and has two parts; the others never are, but by the last, which has
  // none.
  BatchWithDeadlines() : batch_(std::get<0>(GetParam()), is(Input::kReplay)) {
    std::vector<std::string> lines;
    for (RequestId line = 0; line < kLines; ++line) {
      const bool late = line % 3 == 0;
      std::string text = Batch::line_of(line);
      const std::string field = line + 1 == kLines ? "" : fmt::format(R"(,"deadline":{})", late ? 0 : 10000);
      text.insert(text.find(R"(,"body")"), field);
      if (late) text.insert(text.find(R"("max_tokens")"), R"("n":2,)");
      lines.push_back(text);
      lines_.insert(line);
      if (late) late_.insert(line);
    }
    batch_.write_input(lines);
    batch_.do_about_late(std::get<2>(GetParam()));
    if (is(Input::kGroups) || is(Input::kDeferredGroups)) batch_.serve_in_groups(2);
    if (is(Input::kDeferred) || is(Input::kDeferredGroups)) batch_.defer_beyond(3, 1);
  }
  static bool is(Input input) { return std::get<1>(GetParam()) == input; }

  Batch batch_;
  std::set<RequestId> lines_, late_;
};

// The job goes down, and goes on: who was dropped in either attempt has one result, which stays, and never began.
TEST_P(BatchWithDeadlines, LateLinesEndOnceThoughItGoesDown) {
  std::set<RequestId> begun;
  ASSERT_FALSE(batch_.attempt([](RequestId line) { return line == 7; }));
  begun.merge(batch_.all_begun());
  const std::string before = read_file(batch_.output() + ".partial");
  ASSERT_TRUE(batch_.attempt());
  EXPECT_TRUE(read_file(batch_.output()).starts_with(before));
  begun.merge(batch_.all_begun());
  batch_.expect_results(lines_, late_, R"("code":"deadline_exceeded")");
  batch_.expect_results(lines_, late_, R"("status_code":504)");
  std::set<RequestId> expected;
  std::ranges::set_difference(lines_, late_, std::inserter(expected, expected.end()));
  EXPECT_EQ(begun, expected);
}

INSTANTIATE_TEST_SUITE_P(Policies, BatchWithDeadlines,
                         ::testing::Combine(::testing::ValuesIn(kPolicies),
                                            ::testing::Values(Input::kFile, Input::kReplay, Input::kGroups,
                                                              Input::kDeferred, Input::kDeferredGroups),
                                            ::testing::Values(OnLate::kDrop, OnLate::kReject)),
                         [](const auto& job) {
                           const char* const late = std::get<2>(job.param) == OnLate::kDrop ? "Drop" : "Reject";
                           return name_of(std::get<0>(job.param), std::get<1>(job.param)) + late;
                         });

// --- Lines beyond what the scheduler has room for -------------------------------------------------------------------

constexpr RequestId kMass = 40;

// A mass for the first model, then one for the second.
std::vector<std::string> mass_and_one(double mass_arrives_s) {
  std::vector<std::string> lines;
  for (RequestId line = 0; line < kMass; ++line) lines.push_back(Batch::line_of(line, mass_arrives_s, "opt-a"));
  lines.push_back(Batch::line_of(kMass, 0, "org/opt-b.v1"));
  return lines;
}

std::set<RequestId> numbers_below(RequestId end) {
  std::set<RequestId> all;
  for (RequestId line = 0; line < end; ++line) all.insert(line);
  return all;
}

void take_all_there_is(Parts& parts, std::size_t waiting) {
  const double end_s = now_s() + kLongest_s;
  while (!(parts.reader.finished() && parts.dispatcher.waiting() >= waiting) && now_s() < end_s) {
    if (!parts.front_end.take_input(parts.dispatcher, 0)) rest();
  }
}

// Four of the mass, two of it ahead and the one; the others take no room.
TEST(Deferred, SchedulerHasTheFirstLinesOfEachModelAndNoMoreThanItMay) {
  Batch batch("balanced");
  batch.write_input(mass_and_one(0));
  batch.defer_beyond(4, 2);
  Parts parts = batch.make_parts();
  take_all_there_is(parts, 7);
  for (int i = 0; i < 100; ++i) parts.front_end.take_input(parts.dispatcher, 0);
  EXPECT_EQ(parts.schedulers[0].waiting(), 7u);
  EXPECT_EQ(parts.schedulers[0].waiting(1), 1u);
  EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("7 lines have no result, 0 more wait"));
  EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("34 for room in the scheduler, the input has ended"));
}

TEST(Deferred, ModelOfHigherPriorityBehindTheMassBeginsFirst) {
  for (const char* policy : {"balanced", "throughput"}) {
    SCOPED_TRACE(policy);
    Batch batch(policy);
    batch.write_input(mass_and_one(0));
    batch.defer_beyond(4, 2);
    batch.give_second_model_priority(20);
    Parts parts = batch.make_parts();
    take_all_there_is(parts, 7);
    const Decision decision = parts.dispatcher.next(0, 0);
    ASSERT_TRUE(std::holds_alternative<PlannedStep>(decision));
    EXPECT_THAT(std::get<PlannedStep>(decision).begun, ::testing::ElementsAre(kMass));
  }
}

// Of the same model.
TEST(Deferred, InteractiveLineBehindTheMassBeginsFirst) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    Batch batch(policy);
    std::vector<std::string> lines = mass_and_one(0);
    lines.back() = Batch::line_of(kMass, 0, "opt-a");
    lines.back().insert(lines.back().find("\"max_tokens\""), R"("service_tier":"priority",)");
    batch.write_input(lines);
    batch.defer_beyond(4, 2);
    Parts parts = batch.make_parts();
    take_all_there_is(parts, 7);
    const Decision decision = parts.dispatcher.next(0, 0);
    ASSERT_TRUE(std::holds_alternative<PlannedStep>(decision));
    EXPECT_EQ(std::get<PlannedStep>(decision).begun.front(), kMass);
  }
}

// What fills the scheduler comes later than what stands behind it in the file.
TEST(Deferred, LineThatHasArrivedBeginsBeforeAMassThatHasNot) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    Batch batch(policy, /*replay=*/true);
    batch.write_input(mass_and_one(0.3));
    batch.defer_beyond(4, 2);
    ASSERT_TRUE(batch.attempt());
    EXPECT_THAT(batch.begun().front(), ::testing::ElementsAre(kMass));
    batch.expect_results(numbers_below(kMass + 1));
  }
}

// Nine lines, three of them at a time more urgent than those before, of which six are under way in the end (twice
// max_seqs); the mass arrives last. Three that are preempted and one of the mass that waits are as many as may wait.
TEST(Deferred, NothingIsReadAgainForTheRoomThatPreemptedOnesTake) {
  Batch batch("balanced", /*replay=*/true);
  std::vector<std::string> lines;
  for (RequestId line = 0; line < kMass; ++line) {
    const RequestId third = std::min<RequestId>(line / 3, 3);
    std::string& text = lines.emplace_back(Batch::line_of(line, static_cast<double>(third), "opt-a"));
    if (line < 9) text.insert(text.find("\"max_tokens\""), fmt::format(R"("priority":-{},)", 1 + third));
  }
  batch.write_input(lines);
  batch.defer_beyond(4, 1);
  Parts parts = batch.make_parts();
  for (int s = 0; s < 3; ++s) {
    const auto take_input = [&] {
      while (parts.front_end.take_input(parts.dispatcher, s) || parts.front_end.input_open()) rest();
    };
    take_input();
    const Decision decision = parts.dispatcher.next(0, s);
    const auto* planned = std::get_if<PlannedStep>(&decision);
    ASSERT_NE(planned, nullptr);
    const auto first = 3 * static_cast<RequestId>(s);
    EXPECT_THAT(planned->begun, ::testing::UnorderedElementsAre(first, first + 1, first + 2));
    parts.front_end.begin(planned->begun);
    const std::vector<SampledRow> rows(planned->step.logit_rows(), SampledRow{.token = 7, .top = {}});
    parts.dispatcher.completed(0, planned->step.id, {rows}, s);
    take_input();
  }
  EXPECT_EQ(parts.dispatcher.set_aside(), 3u);
  EXPECT_EQ(parts.dispatcher.waiting(), 1u);
}

TEST(Deferred, LineThatIsWrongHasItsErrorAtOnceAndOnlyOnce) {
  Batch batch("balanced");
  std::vector<std::string> lines = mass_and_one(0);
  lines.push_back(lines[3]);  // of which a duplicate is refused, and line 3 is served
  batch.write_input(lines);
  batch.defer_beyond(2, 1);
  ASSERT_TRUE(batch.attempt());
  std::istringstream results(read_file(batch.output()));
  std::vector<std::string> duplicates;
  for (std::string text; std::getline(results, text);) {
    if (text.find("duplicate_custom_id") != text.npos) duplicates.push_back(text);
  }
  ASSERT_EQ(duplicates.size(), 1u);
  EXPECT_THAT(duplicates[0], HasSubstr("batch_req_41"));
}

TEST(Deferred, InputThatChangesMeanwhileEndsTheJobWithItsNameAndLine) {
  Batch batch("balanced");
  std::vector<std::string> lines = mass_and_one(0);
  batch.write_input(lines);
  batch.defer_beyond(4, 2);
  Parts parts = batch.make_parts();
  while (parts.reader.lines_seen() < lines.size()) rest();
  parts.front_end.take_input(parts.dispatcher, 0);  // reads all of them, and none again
  for (RequestId line = 4; line < kMass; ++line) lines[line] = Batch::line_of(line, 1, "opt-a");  // as long as before
  batch.write_input(lines);
  expect_error(ExitCode::kData, "'" + batch.input() + "' has changed since it was read: line 4 is another one",
               [&] { take_all_there_is(parts, 7); });
}

}  // namespace
}  // namespace computron

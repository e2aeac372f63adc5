// A batch before a scheduler whose steps are answered at once: attempts that go down and are run again, under every
// policy. No ranks and no weights.
#include "computron/serve/batch_front_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <set>
#include <thread>
#include <tuple>

#include "computron/base/time.h"
#include "computron/storage/spool.h"
#include "tests/requests/requests_support.h"
#include "tests/sched/fake_model.h"

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

// What an attempt has to do with: all of it goes with the attempt, and what is on disk stays.
struct Parts {
  Parts(const std::string& output, const std::string& input, const std::string& policy, const ReaderLimits& limits,
        const BatchOptions& options)
      : writer(begin(output, input, spool)),
        reader(input, RequestParser(two_models(), limits), limits, &writer.history(), spool),
        scheduler(model_list.shapes(), model_list.names(), make_policy(policy),
                  {.frames = 20, .max_batch_tokens = 100, .max_seqs = 3}),
        front_end(reader, writer, metrics, two_models(), start_s, options) {}

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
  Metrics metrics{{"opt-a", "org/opt-b.v1"}};
  test::FakeModelList model_list{{test::small_model(3), test::small_model(2)}};
  Scheduler scheduler;
  Dispatcher dispatcher{{{.scheduler = &scheduler, .models = {0, 1}}}, 2};
  BatchFrontEnd front_end;
};

// Attempts at a batch of kLines requests for two models in turn.
class Batch {
 public:
  // `replay`: they arrive one after the other, the last after 10 ms.
  explicit Batch(std::string policy, bool replay = false) : policy_(std::move(policy)) {
    options_ = {.replay = replay, .show_progress = false};
    std::string text;
    for (RequestId line = 0; line < kLines; ++line) text += line_of(line) + "\n";
    path_ = folder_.write("in.jsonl", text);
  }
  void read_standard_input() { input_ = "-"; }
  void serve_shard(const Shard& shard) { limits_.shard = shard; }

  static std::string line_of(RequestId line) {
    return fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions","arrival":{},)"
                       R"("body":{{"model":"{}","prompt":[4,{}],"max_tokens":4,"ignore_eos":true}}}})",
                       line, 1e-3 * static_cast<double>(line), line % 2 == 0 ? "opt-a" : "org/opt-b.v1", line);
  }
  Parts make_parts() const { return {output(), input_ == "-" ? "-" : path_, policy_, limits_, options_}; }

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
      Decision decision = parts.dispatcher.next(0, parts.now());
      if (std::holds_alternative<AllDone>(decision)) return finish(parts);
      const auto* planned = std::get_if<PlannedStep>(&decision);
      if (planned != nullptr && !execute(*planned, parts, goes_down)) return false;
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

  // Of each of `lines` one result; of `failed` among them an error, poison_request.
  void expect_results(const std::set<RequestId>& lines, const std::set<RequestId>& failed = {}) const {
    std::multiset<std::string> ids, expected;
    std::istringstream results(read_file(output()));
    for (std::string text; std::getline(results, text);) {
      const std::size_t begin = text.find(R"("custom_id":"r)") + 14;
      const std::string id = text.substr(begin, text.find('"', begin) - begin);
      ids.insert(id);
      EXPECT_EQ(text.find("poison_request") != text.npos, failed.contains(std::stoull(id))) << text;
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
  bool execute(const PlannedStep& planned, Parts& parts, const std::function<bool(RequestId)>& goes_down) {
    if (!planned.begun.empty()) begun_.push_back(planned.begun);
    const Ticket ticket = parts.front_end.begin(planned.begun);
    while (!parts.front_end.noted(ticket)) rest();
    if (std::any_of(planned.begun.begin(), planned.begun.end(), goes_down)) return false;
    const std::vector<SampledRow> rows(planned.step.logit_rows(), SampledRow{.token = 7, .top = {}});
    parts.dispatcher.completed(0, planned.step.id, {rows}, parts.now());
    return true;
  }

  TemporaryFolder folder_;
  CapturedLog log_;
  std::string policy_, path_, input_;
  ReaderLimits limits_;
  BatchOptions options_;
  std::vector<std::vector<RequestId>> begun_;  // by step
};

enum class Input { kFile, kStandardInput, kShard, kReplay };

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, Input>>& info) {
  const char* const inputs[] = {"File", "StandardInput", "Shard", "Replay"};
  return fmt::format("{}{}", std::get<0>(info.param), inputs[static_cast<int>(std::get<1>(info.param))]);
}

class BatchThatGoesDown : public ::testing::TestWithParam<std::tuple<const char*, Input>> {
 protected:
  BatchThatGoesDown() : batch_(std::get<0>(GetParam()), input() == Input::kReplay) {
    if (input() == Input::kStandardInput) batch_.read_standard_input();
    if (input() == Input::kShard) batch_.serve_shard({.index = 1, .count = 3});
    for (RequestId line = 0; line < kLines; ++line) {
      if (input() != Input::kShard || line % 3 == 1) lines_.insert(line);
    }
  }
  static Input input() { return std::get<1>(GetParam()); }

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
                                                              Input::kReplay)),
                         name_of);

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
    EXPECT_EQ(parts.dispatcher.waits_for_input(), make_policy(policy)->plans_ahead());
    EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("1 lines have no result, 0 more wait"));
    EXPECT_THAT(parts.front_end.unfinished(), HasSubstr("the input is open"));
    close(ends[1]);
    while (!parts.front_end.take_input(parts.dispatcher, 0)) rest();
    EXPECT_FALSE(parts.front_end.input_open());
    EXPECT_FALSE(parts.dispatcher.waits_for_input());
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

}  // namespace
}  // namespace computron

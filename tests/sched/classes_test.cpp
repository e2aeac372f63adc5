// Requests of several priorities and tenants: who waits for whom, and for how long.

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "tests/sched/driver.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;

Request with(Request request, std::int32_t priority, std::uint64_t tenant = 0) {
  request.priority = priority;
  request.tenant = tenant;
  request.ignore_eos = true;
  return request;
}

// --- The queue --------------------------------------------------------------------------------------------------

std::vector<RequestId> popped(WaitingQueue& queue) {
  std::vector<RequestId> ids;
  while (!queue.empty()) ids.push_back(queue.pop().id);
  return ids;
}

TEST(WaitingQueueClasses, TheMostUrgentGoFirstThenTheOldest) {
  WaitingQueue queue(kBlockTokens);
  const std::int32_t priorities[] = {0, 5, -1, 0, -1, -3};
  for (RequestId id = 0; id < 6; ++id) queue.push(with(make_request(id, 0, 5, 1, 0.1 * id), priorities[id]));
  EXPECT_EQ(queue.size(), 6u);
  EXPECT_EQ(queue.oldest().id, 0u);
  EXPECT_THAT(popped(queue), ElementsAre(5, 2, 4, 0, 3, 1));
  EXPECT_EQ(queue.backlog().prompt_tokens, 0u);
}

TEST(WaitingQueueClasses, TheOldestGoesFirstOnceItHasAged) {
  WaitingQueue queue(kBlockTokens);
  for (RequestId id = 0; id < 4; ++id) queue.push(with(make_request(id, 0, 5, 1, 0.1 * id), id == 0 ? 7 : -1));
  queue.age_oldest();
  EXPECT_EQ(queue.oldest().id, 0u);
  EXPECT_TRUE(queue.front().aged);
  std::vector<RequestId> recalled;
  for (const Request& request : queue.take_youngest(9)) recalled.push_back(request.id);
  EXPECT_THAT(recalled, ElementsAre(3, 2, 1)) << "it is about to begin here";
  EXPECT_THAT(popped(queue), ElementsAre(0));
}

// A tenant of long prompts has as many tokens as one of short ones, not as many requests.
TEST(WaitingQueueClasses, TenantsAreServedEquallyManyTokens) {
  WaitingQueue queue(kBlockTokens);
  for (RequestId id = 0; id < 40; ++id) queue.push(with(make_request(id, 0, 30, 1), 0, 1));
  for (RequestId id = 100; id < 140; ++id) queue.push(with(make_request(id, 0, 10, 1), 0, 2));
  int of_first = 0;
  for (int i = 0; i < 40; ++i) of_first += queue.pop().id < 100;
  EXPECT_EQ(of_first, 10);
  queue.charge_generated(0, 2, 1000);
  for (int i = 0; i < 5; ++i) EXPECT_LT(queue.pop().id, 100u) << "the other one has got 2,000 tokens more";
}

TEST(WaitingQueueClasses, ATenantThatWasAwayHasNoCreditForIt) {
  WaitingQueue queue(kBlockTokens);
  for (RequestId id = 0; id < 100; ++id) queue.push(with(make_request(id, 0, 10, 1), 0, 1));
  for (int i = 0; i < 50; ++i) queue.pop();
  for (RequestId id = 100; id < 150; ++id) queue.push(with(make_request(id, 0, 10, 1), 0, 2));
  int of_late = 0;
  for (int i = 0; i < 20; ++i) of_late += queue.pop().id >= 100;
  EXPECT_GE(of_late, 9);
  EXPECT_LE(of_late, 11);
}

// Against a list that is searched.
TEST(WaitingQueueClasses, AnyOrderOfEventsLeavesTheRightOneInFront) {
  std::mt19937_64 random(3);
  WaitingQueue queue(kBlockTokens);
  std::vector<Request> list;
  for (RequestId id = 0; id < 4000; ++id) {
    const auto what = random() % 8;
    if (what < 4) {
      const auto priority = static_cast<std::int32_t>(random() % 3) - 1;
      const Request request = with(make_request(id, 0, 5, 1, 0.01 * static_cast<double>(random() % 1000)), priority);
      list.push_back(request);
      queue.push(request);
    } else if (what < 6 && !list.empty()) {
      const auto first = std::ranges::min_element(list, goes_before);
      ASSERT_EQ(queue.pop().id, first->id);
      list.erase(first);
    } else if (what == 6 && !list.empty()) {
      std::ranges::min_element(list, arrives_earlier)->aged = true;
      queue.age_oldest();
    } else if (what == 7) {
      for (const Request& taken : queue.take_youngest(2)) {
        const auto youngest = std::ranges::max_element(
            list, [](const Request& a, const Request& b) { return a.aged != b.aged ? a.aged : arrives_earlier(a, b); });
        ASSERT_EQ(taken.id, youngest->id);
        list.erase(youngest);
      }
    }
    ASSERT_EQ(queue.size(), list.size());
    if (list.empty()) continue;
    ASSERT_EQ(queue.front().id, std::ranges::min_element(list, goes_before)->id);
    ASSERT_EQ(queue.oldest().id, std::ranges::min_element(list, arrives_earlier)->id);
    const auto before = std::ranges::count_if(list, [](const Request& request) { return request.urgency() < 0; });
    ASSERT_EQ(queue.prompt_tokens_before(0), static_cast<std::size_t>(5 * before));
  }
}

// Each request is a new tenant's, and they are more than can be served: one that has had its share still gets on, and
// nobody who is gone is remembered.
TEST(WaitingQueueClasses, NewTenantsWithoutEndLeaveAKnownOneItsShare) {
  TenantQueue queue;
  for (RequestId id = 0; id < 10; ++id) queue.push(with(make_request(id, 0, 10, 1), 0, 1));
  for (RequestId id = 10; id < 12; ++id) queue.push(with(make_request(id, 0, 10, 1), 0, 2));
  queue.charge(1, 100);
  int served = 0;
  std::uint64_t next = 100;
  for (int i = 0; i < 3000; ++i) {
    if (i % 10 == 0) queue.push(with(make_request(next, 0, 10, 1, 0.1 * i), 0, next));
    queue.push(with(make_request(next + 1, 0, 10, 1, 0.1 * i), 0, next + 1));
    next += 2;
    const Request request = queue.pop();
    queue.charge(request.tenant, request.prompt.size());
    served += request.tenant == 1;
  }
  EXPECT_GE(served, 5);
  EXPECT_LT(queue.counters(), 2000u) << "of 3,300 tenants";
}

// However much a tenant has been served, it has its turn when the others have been served so much.
TEST(WaitingQueueClasses, WhatATenantWasServedLongAgoIsForgotten) {
  TenantQueue queue;
  queue.push(with(make_request(0, 0, 10, 1), 0, 1));
  auto push_other = [&, id = RequestId{1}]() mutable { queue.push(with(make_request(id++, 0, 10, 1), 0, 2)); };
  push_other();
  queue.charge(1, 100'000'000);
  std::uint64_t tokens = 0;
  while (queue.front().tenant == 2 && tokens < 10 * TenantQueue::kMostAhead) {
    push_other();  // it has requests at all times: who comes begins at virtual time, which has gone on
    queue.pop();
    queue.charge(2, 1000);
    tokens += 1000;
  }
  EXPECT_GE(tokens, TenantQueue::kMostAhead);
  EXPECT_LE(tokens, TenantQueue::kMostAhead + 1000);
}

// Who waits keeps what it has been served less, whatever is taken back from it, and whoever comes.
TEST(WaitingQueueClasses, LinesThatStayWhenOthersAreTakenBackKeepTheirTurn) {
  WaitingQueue queue(kBlockTokens);
  queue.push(with(make_request(0, 0, 10, 1), 0, 1));
  for (std::uint32_t part = 0; part < 3; ++part) {
    Request request = with(make_request(9, 0, 10, 1, 0.9), 0, 2);
    request.part = part;
    queue.push(request);
  }
  queue.charge_generated(0, 1, 500);
  EXPECT_THAT(queue.take_youngest(2), ::testing::SizeIs(1)) << "three do not fit";
  queue.push(with(make_request(1, 0, 10, 1), 0, 1));
  EXPECT_EQ(queue.pop().id, 9u) << "its tenant has been served least";
}

TEST(WaitingQueueClasses, TenantsOfOnePriorityAreNotChargedForAnother) {
  WaitingQueue queue(kBlockTokens);
  queue.push(with(make_request(0, 0, 10, 1), 0, 1));
  queue.push(with(make_request(1, 0, 10, 1, 0.1), 0, 2));
  queue.push(with(make_request(2, 0, 10, 1), -1, 1));
  queue.charge_generated(-1, 1, 1000);
  EXPECT_THAT(popped(queue), ElementsAre(2, 0, 1));
}

TEST(WaitingQueueClasses, LanesCountAsMemory) {
  WaitingQueue queue(kBlockTokens);
  queue.push(with(make_request(0, 0, 10, 1), 0, 1));
  EXPECT_EQ(queue.bytes(), 10 * sizeof(TokenId));
  queue.push(with(make_request(1, 0, 10, 1), 0, 2));
  EXPECT_GT(queue.bytes(), 500u);
  popped(queue);
  EXPECT_EQ(queue.bytes(), 0u);
}

// A pass: how many tokens of each request it has. Nobody ends with it.
std::map<RequestId, std::size_t> run_pass(ModelWork& work, StepId step, const PassLimits& limits) {
  const PassPlan pass = work.choose(limits);
  std::vector<SequenceChunk> chunks;
  const auto members = work.begin_pass(pass, step, /*now_s=*/0, chunks);
  const auto have_rows =
      std::ranges::count_if(chunks, [](const SequenceChunk& chunk) { return chunk.output == SequenceChunk::kLast; });
  const std::vector<SampledRow> rows(static_cast<std::size_t>(have_rows), SampledRow{.token = 3, .top = {}});
  PassResults results{.rows = rows};
  std::map<RequestId, std::size_t> tokens;
  for (std::size_t i = 0; i < members.size(); ++i) {
    tokens[members[i]->sequence().request().id] = chunks[i].tokens.size();
    EXPECT_FALSE(work.take_results(members[i], results, 1).has_value());
  }
  return tokens;
}

// Prompts when they are admitted, answers token for token.
TEST(ModelWorkClasses, TenantsAreChargedForWhatIsGenerated) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(9);
  work.enqueue(with(make_request(0, 0, 10, 50), 0, 1));
  work.enqueue(with(make_request(1, 0, 10, 1, 0.1), 0, 1));
  work.enqueue(with(make_request(2, 0, 12, 1, 0.2), 0, 2));
  work.enqueue(with(make_request(3, 0, 9, 1, 0.3), 0, 2));
  work.admit_next(1);
  for (StepId step = 1; step <= 8; ++step) {
    run_pass(work, step, {.tokens = 100, .prompt_tokens = 100, .logit_rows = 100, .blocks = 9});
  }
  EXPECT_EQ(work.next_to_admit().id, 2u);
  work.admit_next(2);
  EXPECT_EQ(work.next_to_admit().id, 3u) << "12 tokens of one's prompt, 10 + 2 x 8 of the other's";
}

// Until its next token: then the more urgent ones have their turn again.
TEST(ModelWorkClasses, WhoHasAgedGoesFirstUntilItsNextToken) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(9);
  work.enqueue(with(make_request(0, 0, 10, 50), 5));
  work.enqueue(with(make_request(1, 0, 10, 50, 0.1), -1));
  EXPECT_EQ(work.next_to_admit().id, 1u);
  work.age_oldest();
  EXPECT_EQ(work.next_to_admit().id, 0u);
  EXPECT_TRUE(work.next_to_admit().aged);
  work.admit_next(1);
  EXPECT_LT(work.urgency(), -1);
  for (StepId step = 1; step <= 2; ++step) {  // a prompt in two chunks
    run_pass(work, step, {.tokens = 6, .prompt_tokens = 6, .logit_rows = 6, .blocks = 9});
    EXPECT_EQ(work.oldest().aged, step == 1);
  }
  EXPECT_EQ(work.urgency(), -1);
}

// One pass holds all that is urgent and of the others as many as there is room for.
TEST(ModelWorkClasses, UrgentOnesAreCountedOnceInAPass) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(40);
  for (RequestId id = 0; id < 6; ++id) work.enqueue(with(make_request(id, 0, 4, 50), id < 2 ? -1 : 0));
  for (SequenceId id = 1; id <= 6; ++id) work.admit_next(id);
  const PassLimits limits{.tokens = 100, .prompt_tokens = 100, .logit_rows = 100, .blocks = 40};
  for (StepId step = 1; step <= 2; ++step) EXPECT_THAT(run_pass(work, step, limits), ::testing::SizeIs(6));
}

// What is given back is what others need more: a sequence as urgent would be the next to be admitted, for ever.
TEST(ModelWorkClasses, NobodyMakesRoomForWhoIsAsUrgent) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(40);
  work.enqueue(with(make_request(0, 0, 4, 50, 0.3), -1));
  work.admit_next(1);
  work.enqueue(with(make_request(1, 0, 4, 50, 0.1), -1));  // it was read late
  std::vector<SequenceId> released;
  EXPECT_FALSE(work.preempt_for_next(released));
  work.admit_next(2);
  work.enqueue(with(make_request(2, 0, 4, 50, 0.2), 1));
  work.admit_next(3);
  work.enqueue(with(make_request(3, 0, 4, 50, 0.1), -1));
  EXPECT_TRUE(work.preempt_for_next(released));
  EXPECT_FALSE(work.preempt_for_next(released)) << "it was the only one that is less urgent";
  EXPECT_EQ(work.next_to_admit().id, 3u);
}

// Before all others, those that decode too, however few places a pass has.
TEST(ModelWorkClasses, UrgentOnesHavePlacesInEachPass) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(40);
  for (RequestId id = 0; id < 6; ++id) work.enqueue(with(make_request(id, 0, 4, 50), 0));
  for (SequenceId id = 1; id <= 6; ++id) work.admit_next(id);
  const PassLimits limits{.sequences = 6, .tokens = 100, .prompt_tokens = 100, .logit_rows = 100, .blocks = 40};
  EXPECT_THAT(run_pass(work, 1, limits), ::testing::SizeIs(6));
  for (RequestId id = 6; id < 9; ++id) work.enqueue(with(make_request(id, 0, 4, 50), -1));
  for (SequenceId id = 7; id <= 9; ++id) work.admit_next(id);
  for (StepId step = 2; step <= 5; ++step) {
    const std::map<RequestId, std::size_t> tokens = run_pass(work, step, limits);
    EXPECT_EQ(tokens.size(), 6u);
    for (RequestId id = 6; id < 9; ++id) EXPECT_TRUE(tokens.contains(id)) << id << " in pass " << step;
  }
}

// Prompts are spread over passes so that equally urgent ones take turns; those who wait for a person are not.
TEST(ModelWorkClasses, UrgentPromptsAreNotSpreadOverPasses) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(40);
  work.enqueue(with(make_request(0, 0, 10, 50), 0));
  work.enqueue(with(make_request(1, 0, 12, 50), -1));
  for (SequenceId id = 1; id <= 2; ++id) work.admit_next(id);
  const PassLimits limits{.tokens = 16, .prompt_tokens = 4, .logit_rows = 16, .blocks = 40};
  EXPECT_THAT(run_pass(work, 1, limits), ElementsAre(::testing::Pair(1, 12)));
  EXPECT_THAT(run_pass(work, 2, limits), ElementsAre(::testing::Pair(0, 4), ::testing::Pair(1, 1)));
}

// What is reserved is for riders that go before the last; but a pass is never empty for their sake.
TEST(ModelWorkClasses, TheLeastUrgentLeaveWhatIsReservedBesideUrgentOnes) {
  ModelWork work(kBlockTokens, {});
  work.set_blocks(40);
  work.enqueue(with(make_request(0, 0, 12, 50), 0));
  work.enqueue(with(make_request(1, 0, 4, 50), -1));
  EXPECT_EQ(running_tokens_before(work, 0), 0u);
  for (SequenceId id = 1; id <= 2; ++id) work.admit_next(id);
  EXPECT_EQ(running_tokens_before(work, 0), 4u);
  EXPECT_EQ(running_tokens_before(work, -1), 0u);
  EXPECT_EQ(running_tokens_before(work, 1), 16u);
  PassLimits limits{.tokens = 16, .prompt_tokens = 16, .reserved = 9, .logit_rows = 16, .blocks = 40};
  EXPECT_THAT(run_pass(work, 1, limits), ElementsAre(::testing::Pair(0, 3), ::testing::Pair(1, 4)));
  limits.prompt_tokens = 10;
  EXPECT_THAT(run_pass(work, 2, limits), ElementsAre(::testing::Pair(0, 6), ::testing::Pair(1, 1)));
  limits.reserved = 100;
  std::vector<SequenceChunk> chunks;
  work.begin_pass(work.choose(limits), 3, /*now_s=*/0, chunks);
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(running_tokens_before(work, 0), 0u) << "it is in flight";
  EXPECT_EQ(work.choose(limits).rows, 3) << "the other one's prompt";
}

// --- The scheduler ----------------------------------------------------------------------------------------------

// Of requests, by the tokens that tell them, the first step that has each.
std::map<RequestId, const ExecutedStep*> first_steps(const Driver& driver) {
  std::map<RequestId, const ExecutedStep*> first;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      if (const auto request = tells_request(chunk.tokens[0])) first.try_emplace(*request, &executed);
    }
  }
  return first;
}

// Passes that end between a request's arrival and its own first one.
std::size_t passes_before(const Driver& driver, const ExecutedStep& own, double arrival_s) {
  std::size_t passes = 0;
  for (const ExecutedStep& other : driver.steps()) {
    const bool pass = !other.step.chunks.empty() && other.step.id < own.step.id;
    passes += pass && other.finished_s > arrival_s;
  }
  return passes;
}

constexpr RequestId kFirstInteractive = 1000;

// Policy and stages.
class Classes : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static int stages() { return std::get<int>(GetParam()); }
  static FakeModel model(int pages) {
    FakeModel model = small_model(pages);
    model.pages.assign(static_cast<std::size_t>(stages()), pages);
    model.layers.assign(static_cast<std::size_t>(stages()), 1);
    return model;
  }
  static SchedulerOptions options(int frames) {
    SchedulerOptions options{.frames = frames, .max_batch_tokens = 16, .max_seqs = 6, .steps_in_flight = stages() + 1};
    options.costs = {.link_bytes_per_s = kPageBytes / 0.0005, .memory_bytes_per_s = 1e12, .step_s = 1e-3};
    return options;
  }
  // Batch work of the first model without end, and requests of model `interactive` now and then.
  static void submit(Driver& driver, ModelId interactive, int count, double every_s) {
    for (RequestId id = 0; id < 150; ++id) driver.submit(with(make_request(id, 0, 20, 20), 0));
    for (int i = 0; i < count; ++i) {
      const double arrival_s = 0.05 + every_s * i;
      const RequestId id = kFirstInteractive + static_cast<RequestId>(i);
      driver.submit(with(make_request(id, interactive, 10, 4, arrival_s), Request::kInteractive), arrival_s);
    }
  }
  static void expect_short_waits(const Driver& driver) {
    for (const auto& [id, step] : first_steps(driver)) {
      if (id < kFirstInteractive) continue;
      const double arrival_s = driver.completion(id).arrival_s;
      EXPECT_LE(passes_before(driver, *step, arrival_s), static_cast<std::size_t>(stages()) + 1) << "request " << id;
    }
  }
};

TEST_P(Classes, AnInteractiveRequestOfAResidentModelWaitsForThePassesInFlightAlone) {
  for (const ModelId interactive : {0U, 1U}) {
    const FakeModelList model_list({model(3), model(2)});
    Driver driver(model_list, options(100), std::get<const char*>(GetParam()));
    submit(driver, interactive, 20, 0.037);
    ASSERT_EQ(driver.run(), "");
    const RequestId last = driver.finished().back();
    EXPECT_LT(last, kFirstInteractive) << "there was batch work all the time";
    expect_short_waits(driver);
  }
}

// The prompts of batch sequences that begin together would make a pass twenty times as long as those that decode.
TEST_P(Classes, PassesOfBatchWorkAreEvenWhereInteractiveRequestsCome) {
  const FakeModelList model_list({model(3), model(2)});
  SchedulerOptions options = this->options(400);
  options.max_batch_tokens = 1000;
  Driver driver(model_list, options, std::get<const char*>(GetParam()));
  driver.report_times();
  for (RequestId id = 0; id < 90; ++id) driver.submit(with(make_request(id, 0, 60, 30), 0));
  for (RequestId id = 0; id < 40; ++id) {
    const double arrival_s = 0.05 + 0.0173 * static_cast<double>(id);
    driver.submit(with(make_request(kFirstInteractive + id, 1, 10, 4, arrival_s), -1), arrival_s);
  }
  ASSERT_EQ(driver.run(), "");
  EXPECT_LT(driver.finished().back(), kFirstInteractive) << "there was batch work all the time";
  for (RequestId id = kFirstInteractive + 5; id < kFirstInteractive + 40; ++id) {
    const Completion& completion = driver.completion(id);
    EXPECT_LT(completion.first_token_s - completion.arrival_s, 0.008 * (stages() + 2)) << "request " << id;
  }
}

// The batch's sequences stay where they are: nothing of them is computed twice.
TEST_P(Classes, ASwapBeginsAtOnceAndTheBatchKeepsItsCache) {
  const FakeModelList model_list({model(8), model(8)});
  Driver driver(model_list, options(14), std::get<const char*>(GetParam()));
  submit(driver, 1, 8, 0.1);
  ASSERT_EQ(driver.run(), "");
  EXPECT_EQ(driver.preemptions(), 0u);
  std::set<RequestId> begun;
  std::map<RequestId, double> fetched_s;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      const auto request = tells_request(chunk.tokens[0]);
      const bool first = !request || begun.insert(*request).second;
      EXPECT_TRUE(first) << "request " << *request << " is computed again";
    }
    const bool fetches =
        std::ranges::any_of(executed.step.stages[0].fetches, [](const Fetch& f) { return f.model == 1; });
    if (fetches) fetched_s.emplace(executed.step.id, executed.planned_s);
  }
  std::size_t swaps = 0;
  for (const auto& [id, step] : first_steps(driver)) {
    if (id < kFirstInteractive) continue;
    const double arrival_s = driver.completion(id).arrival_s;
    swaps += std::ranges::any_of(fetched_s, [&](const auto& fetch) { return fetch.second == arrival_s; });
  }
  EXPECT_GE(swaps, 7u) << "of 8: fetching begins in the decision in which the request arrives";
}

// Interactive requests that take all of the machine leave the others a token every kMaxWait_s (driver.h checks that).
TEST_P(Classes, TheBatchGetsOnWhileInteractiveRequestsTakeAllThereIs) {
  for (const ModelId batch : {0U, 1U}) {
    const FakeModelList model_list({model(8), model(8)});
    Driver driver(model_list, options(16), std::get<const char*>(GetParam()));
    for (RequestId id = 0; id < 4; ++id) driver.submit(with(make_request(id, batch, 20, 3), static_cast<int>(id)));
    for (RequestId id = 0; id < 500; ++id) {
      driver.submit(with(make_request(kFirstInteractive + id, 0, 10, 6, 0.002 * id), -1), 0.002 * id);
    }
    ASSERT_EQ(driver.run(), "");
    EXPECT_GT(driver.completion(kFirstInteractive + 499).finished_s, 1.2) << "they are too few to take all";
    EXPECT_LT(driver.completion(0).finished_s, 1.1) << "3 tokens in 5 times kMaxWait_s at most";
  }
}

// Two batch sequences take almost all of the cache as long as they run.
TEST_P(Classes, SequencesGiveWayWhereTheCacheHasNoRoomForMore) {
  const FakeModelList model_list({model(2)});
  Driver driver(model_list, options(4), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 20; ++id) driver.submit(with(make_request(id, 0, 97, 32), 0));
  for (RequestId id = 0; id < 12; ++id) {
    const double arrival_s = 0.05 + 0.043 * static_cast<double>(id);
    driver.submit(with(make_request(kFirstInteractive + id, 0, 16, 16, arrival_s), -1), arrival_s);
  }
  ASSERT_EQ(driver.run(), "");
  expect_short_waits(driver);
  EXPECT_GT(driver.preemptions(), 0u);
}

// Several at once: they run together, though the batch's cache would leave room for one.
TEST_P(Classes, CachesOfOtherModelsGiveWayToAllThatIsMoreUrgent) {
  const FakeModelList model_list({model(2), model(2)});
  Driver driver(model_list, options(10), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 20; ++id) driver.submit(with(make_request(id, 0, 100, 40), 0));
  for (RequestId id = 0; id < 4; ++id) {
    driver.submit(with(make_request(kFirstInteractive + id, 1, 3, 60, 0.2), -1), 0.2);
  }
  ASSERT_EQ(driver.run(), "");
  double first_s = 1e9, last_s = 0;
  for (RequestId id = 0; id < 4; ++id) {
    first_s = std::min(first_s, driver.completion(kFirstInteractive + id).finished_s);
    last_s = std::max(last_s, driver.completion(kFirstInteractive + id).first_token_s);
  }
  EXPECT_LT(last_s, first_s) << "the last begins before the first has ended";
}

TEST_P(Classes, LowerPrioritiesOfBatchGoFirstToo) {
  const FakeModelList model_list({model(2), model(2)});
  SchedulerOptions one = options(100);
  one.max_seqs = 1;
  Driver driver(model_list, one, std::get<const char*>(GetParam()));
  const std::int32_t priorities[] = {3, 1, 2, 0};
  for (RequestId id = 0; id < 4; ++id) driver.submit(with(make_request(id, id % 2, 5, 3), priorities[id]));
  ASSERT_EQ(driver.run(), "");
  EXPECT_THAT(driver.finished(), ElementsAre(3, 1, 2, 0));
}

// Whoever asks again as soon as it has its answer, of one pass, is in flight whenever there is something to decide.
TEST_P(Classes, TheBatchGetsOnBesideRequestsOfOnePass) {
  const FakeModelList model_list({model(8), model(8)});
  Driver driver(model_list, options(16), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 3; ++id) driver.submit(with(make_request(id, 1, 20, 3), 0));
  for (RequestId id = 0; id < 900; ++id) {
    driver.submit(with(make_request(kFirstInteractive + id, 0, 10, 1, 0.0015 * id), -1), 0.0015 * id);
  }
  ASSERT_EQ(driver.run(), "");
  EXPECT_LT(driver.completion(0).finished_s, 4 * Driver::kMaxWait_s + 0.2);
}

// Batch work that has lost its cache and finds no place in a pass keeps nobody from aging.
TEST_P(Classes, WhoCatchesUpBehindOthersKeepsNobodyWaiting) {
  const FakeModelList model_list({model(2), model(2)});
  Driver driver(model_list, options(10), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 20; ++id) driver.submit(with(make_request(id, 0, 100, 40), 5));
  driver.submit(with(make_request(500, 1, 5, 5), 3));
  for (RequestId id = 0; id < 600; ++id) {
    const double arrival_s = 0.1 + 0.002 * static_cast<double>(id);
    driver.submit(with(make_request(kFirstInteractive + id, id % 2, 10, 6, arrival_s), -1), arrival_s);
  }
  ASSERT_EQ(driver.run(), "");
}

// Bursts of interactive requests take all of the cache, and between two of them there are but a few passes: chunks of a
// prompt that is lost again and again are no token.
TEST_P(Classes, APromptThatIsPreemptedAgainAndAgainGetsOn) {
  const FakeModelList model_list({model(2)});
  Driver driver(model_list, options(3), std::get<const char*>(GetParam()));
  driver.submit(with(make_request(0, 0, 100, 3), 0));
  for (RequestId id = 0; id < 400; ++id) {
    const RequestId four = id / 4;
    const double arrival_s = 0.022 * static_cast<double>(four);
    driver.submit(with(make_request(kFirstInteractive + id, 0, 20, 10, arrival_s), -1), arrival_s);
  }
  ASSERT_EQ(driver.run(), "");
  EXPECT_GT(driver.preemptions(), 3u);
  EXPECT_GT(driver.completion(kFirstInteractive + 399).finished_s, 2) << "they are too few";
  EXPECT_LT(driver.completion(0).finished_s, 4 * Driver::kMaxWait_s + 0.3);
}

// Batch work of the first model has lost its cache, and its interactive requests leave it no place: an interactive
// request of the other model waits hardly longer than where there is no batch work, for the turns of those that age.
// What it waits for then is the policy's: fifo serves the 125 requests that came before it first.
TEST_P(Classes, ALostCacheOfBatchWorkKeepsNoInteractiveRequestWaiting) {
  const FakeModelList model_list({model(2), model(2)});
  double finished_s[2];
  for (const int batch : {0, 20}) {
    Driver driver(model_list, options(10), std::get<const char*>(GetParam()));
    for (int id = 0; id < batch; ++id) driver.submit(with(make_request(static_cast<RequestId>(id), 0, 100, 40), 0));
    for (RequestId id = 0; id < 4; ++id) driver.submit(with(make_request(500 + id, 1, 3, 60, 0.2), -1), 0.2);
    for (RequestId id = 0; id < 600; ++id) {
      const double arrival_s = 0.25 + 0.002 * static_cast<double>(id);
      driver.submit(with(make_request(kFirstInteractive + id, 0, 10, 6, arrival_s), -1), arrival_s);
    }
    driver.submit(with(make_request(600, 1, 10, 4, 0.5), -1), 0.5);
    ASSERT_EQ(driver.run(), "");
    finished_s[batch > 0 ? 1 : 0] = driver.completion(600).finished_s;
  }
  EXPECT_LT(finished_s[1], finished_s[0] + 2 * Driver::kMaxWait_s);
}

// For whose sake should they be? Three prompts are one pass.
TEST(ClassesPolicies, PromptsOfInteractiveRequestsAreNotSpread) {
  const FakeModelList model_list({small_model(2)});
  Driver driver(model_list, {.frames = 400, .max_batch_tokens = 1000, .max_seqs = 6}, "balanced");
  driver.report_times();
  driver.submit(with(make_request(0, 0, 300, 30), -1));
  for (RequestId id = 1; id < 4; ++id) driver.submit(with(make_request(id, 0, 200, 50, 0.1), -1), 0.1);
  ASSERT_EQ(driver.run(), "");
  EXPECT_LT(driver.completion(3).first_token_s, 0.18) << "600 rows take 61 ms";
}

// A model that fills in while the first one's pages are copied preempts nobody, however urgent its next request is.
TEST(ClassesPolicies, AModelThatFillsInPreemptsNobody) {
  const FakeModelList model_list({small_model(8), small_model(2)});
  SchedulerOptions options{.frames = 40, .max_batch_tokens = 16, .max_seqs = 2, .steps_in_flight = 2};
  options.costs = {.link_bytes_per_s = kPageBytes / 0.02, .memory_bytes_per_s = 1e12, .step_s = 1e-3};
  Driver driver(model_list, options, "balanced");
  for (RequestId id = 0; id < 2; ++id) driver.submit(with(make_request(id, 1, 4, 120), 0));
  for (RequestId id = 2; id < 4; ++id) driver.submit(with(make_request(id, 1, 4, 100, 0.05), -1), 0.05);
  driver.submit(with(make_request(4, 0, 4, 4, 0.06), -3), 0.06);
  driver.submit(with(make_request(5, 1, 4, 4, 0.07), -2), 0.07);
  ASSERT_EQ(driver.run(), "");
  EXPECT_GT(driver.completion(5).first_token_s, driver.completion(4).finished_s) << "the other model was first";
  EXPECT_LT(driver.completion(5).first_token_s, driver.completion(2).finished_s) << "now it preempts";
}

// Fifo goes on with what runs, but not with batch work where interactive requests wait: those of the model that runs do
// not overtake those of another that came before.
TEST(ClassesPolicies, FifoServesInteractiveRequestsInOrderWhateverBatchWorkRuns) {
  const FakeModelList model_list({small_model(2), small_model(2)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 16, .max_seqs = 6}, "fifo");
  for (RequestId id = 0; id < 6; ++id) driver.submit(with(make_request(id, 0, 4, 60), 0));
  driver.submit(with(make_request(1000, 1, 4, 4, 0.0301), -1), 0.0301);
  driver.submit(with(make_request(1001, 0, 4, 4, 0.0302), -1), 0.0302);
  ASSERT_EQ(driver.run(), "");
  EXPECT_THAT(driver.finished(), ElementsAre(1000, 1001, 0, 1, 2, 3, 4, 5));
}

// Batch work that is more urgent than what runs joins it.
TEST_P(Classes, WhoIsMoreUrgentThanTheBatchThatRunsJoinsIt) {
  const FakeModelList model_list({model(2)});
  Driver driver(model_list, options(100), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 3; ++id) driver.submit(with(make_request(id, 0, 4, 60), 4));
  driver.submit(with(make_request(3, 0, 4, 4, 0.03), 1), 0.03);
  ASSERT_EQ(driver.run(), "");
  EXPECT_THAT(driver.finished(), ElementsAre(3, 0, 1, 2));
}

// Two models have interactive requests without end: neither starves, by any policy.
TEST_P(Classes, InteractiveRequestsOfOneModelDoNotStarveThoseOfAnother) {
  const FakeModelList model_list({model(3), model(3)});
  Driver driver(model_list, options(100), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 500; ++id) {
    driver.submit(with(make_request(kFirstInteractive + id, 0, 10, 6, 0.002 * id), -1), 0.002 * id);
  }
  driver.submit(with(make_request(1, 1, 10, 4, 0.1), -1), 0.1);
  ASSERT_EQ(driver.run(), "");
  EXPECT_LT(driver.completion(1).finished_s, 0.5);
}

// However many priorities there are.
TEST_P(Classes, EverMoreUrgentRequestsPreemptTheLast) {
  const FakeModelList model_list({model(2)});
  Driver driver(model_list, options(100), std::get<const char*>(GetParam()));
  for (RequestId id = 0; id < 60; ++id) {
    const auto priority = -static_cast<std::int32_t>(id / 6);
    const RequestId six = id / 6;
    driver.submit(with(make_request(id, 0, 5, 60), priority), 0.02 * static_cast<double>(six));
  }
  ASSERT_EQ(driver.run(), "");
  EXPECT_GT(driver.preemptions(), 0u) << "12 run at a time at most, of 60";
}

INSTANTIATE_TEST_SUITE_P(Policies, Classes,
                         ::testing::Combine(::testing::Values("fifo", "balanced", "throughput"),
                                            ::testing::Values(1, 2, 4)));

TEST(ClassesPolicies, ThroughputDoesNotWaitForTheInputWhereSomebodyWaits) {
  const FakeModelList model_list({small_model(2)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_throughput_policy(),
                      {.frames = 100, .max_batch_tokens = 16});
  scheduler.submit(with(make_request(0, 0, 5, 1), 0));
  EXPECT_TRUE(scheduler.waits_for_input(0));
  scheduler.submit(with(make_request(1, 0, 5, 1, 7), Request::kInteractive));
  EXPECT_TRUE(scheduler.waits_for_input(6.9));
  EXPECT_EQ(std::get<WaitUntil>(scheduler.next(6.9)).time_s, 7) << "nobody waits before it has arrived";
  EXPECT_FALSE(scheduler.waits_for_input(7));
  EXPECT_TRUE(std::holds_alternative<PlannedStep>(scheduler.next(7)));
}

// What is behind a request in line does not count.
TEST(ClassesPolicies, AQuoteIsOfWhatGoesBefore) {
  const FakeModelList model_list({small_model(2)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_balanced_policy({}),
                      {.frames = 100, .max_batch_tokens = 16});
  for (RequestId id = 0; id < 50; ++id) scheduler.submit(with(make_request(id, 0, 20, 20), 0));
  const Request batch = with(make_request(99, 0, 10, 4), 0), urgent = with(make_request(99, 0, 10, 4), -1);
  EXPECT_GT(scheduler.quote_s(0, batch, 0), 3 * scheduler.quote_s(0, urgent, 0));
  EXPECT_GE(scheduler.quote_s(0, with(make_request(99, 0, 10, 4), 1), 0), scheduler.quote_s(0, batch, 0));
}

// The queue of those that have not arrived stays in the order of arrival.
TEST(ClassesPolicies, WhatIsNotTakenBackArrivesInOrder) {
  ArrivalQueue queue(1);
  for (RequestId id = 0; id < 9; ++id) {
    queue.push(with(make_request(id, 0, 5, 1, 0.1 * static_cast<double>(id)), static_cast<std::int32_t>(9 - id)));
  }
  EXPECT_THAT(queue.take_youngest(0, 2), ::testing::SizeIs(2));
  for (RequestId id = 0; id < 7; ++id) EXPECT_EQ(queue.pop().id, id);
}

}  // namespace
}  // namespace computron::test

// Random model lists, pools, limits, policies and requests against every rule of driver.h.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <span>

#include "computron/base/digest.h"
#include "tests/sched/driver.h"

namespace computron::test {
namespace {

enum class Kind : std::uint8_t {
  kFewModels,
  kCrowded,     // caches are short, and answers mostly far shorter than they may be
  kManyModels,  // 50 or more, some pinned, of many priorities, asked for at random or regularly; ranks report times
  kFamilies,    // some models have pages in common
  kAdapters,    // most differ in their adapters alone
  kPrefixes,    // most requests of a model have a long beginning in common, one model is pinned, and frames are short
};

class RandomJob {
 public:
  RandomJob(std::uint64_t seed, Kind kind)
      : seed_(seed),
        crowded_(kind == Kind::kCrowded),
        many_(kind == Kind::kManyModels),
        families_(kind == Kind::kFamilies),
        adapters_(kind == Kind::kAdapters),
        prefixes_(kind == Kind::kPrefixes),
        random_(seed * 7919 + 1),
        model_list_(make_models()) {
    options_.max_batch_tokens = from(1, one_in(3) ? 8 : 100);
    // With a token a step models that lose their caches to each other get on by one token at a time, and hardly.
    if (adapters_) options_.max_batch_tokens = from(4, one_in(3) ? 12 : 100);
    options_.max_seqs = from(1, one_in(3) ? 2 : 10);
    options_.steps_in_flight = from(1, 5);
    options_.frames = smallest_pool() + (one_in(4) ? 0 : from(0, 30));
    options_.host_slots = one_in(2) ? 0 : from(0, 20);
    options_.costs = {.link_bytes_per_s = kPageBytes / 0.0005, .memory_bytes_per_s = 1e12, .step_s = 1e-3};
    policy_ = one_in(3) ? "fifo" : one_in(2) ? "balanced" : "throughput";
    options_.prefix_caching = one_in(3);
    if (many_) options_.frames = smallest_pool() + from(0, one_in(3) ? 200 : 40);
    if (adapters_) options_.adapter_slots = fewest_slots() + (one_in(3) ? 0 : from(0, 12));
    if (prefixes_) {
      options_.prefix_caching = true;
      options_.max_batch_tokens = from(50, 500);
      options_.max_seqs = from(4, 16);
      options_.frames = smallest_pool() + from(4, 30);
      constexpr const char* kPolicies[] = {"fifo", "balanced", "throughput"};
      policy_ = kPolicies[seed % 3];
    }
    if (!crowded_) return;
    options_.max_seqs = from(5, 20);
    options_.frames = smallest_pool() + from(0, 12);
  }

  // Requests of several priorities and tenants, or of tenants alone.
  void give_classes(bool priorities) {
    classes_ = true;
    priorities_ = priorities;
  }

  // Two requests in three have a deadline.
  void give_deadlines(OnLate on_late) {
    options_.on_late = on_late;
    deadlines_ = true;
  }

  std::unique_ptr<Driver> make_driver() {
    auto driver = std::make_unique<Driver>(model_list_, options_, policy_);
    if (many_) driver->report_times();
    const double span_s = one_in(2) ? 0 : 0.001 * from(0, many_ ? 5000 : 500);
    const int requests = many_ ? from(100, 250) : from(0, 40);
    regular_ = many_ && one_in(2);
    for (int id = 0; id < requests; ++id) {
      Request request = make_request(static_cast<RequestId>(id), span_s);
      if (deadlines_ && hash_tuple(seed_, id, 7) % 3 > 0) request.deadline_s = 1e-3 * (hash_tuple(seed_, id, 8) % 300);
      if (priorities_) request.priority = static_cast<std::int32_t>(hash_tuple(seed_, id, 9) % 4) - 2;
      if (classes_) request.tenant = hash_tuple(seed_, id, 10) % 3;
      const bool late = one_in(3);
      const double at_s = late ? request.arrival_s + 0.001 * from(0, 50) : 0;
      held_back(request.id) ? driver->hold_back(request) : driver->submit(request, at_s);
    }
    return driver;
  }

 private:
  int from(int least, int most) { return least + static_cast<int>(random_() % (most - least + 1)); }
  bool one_in(int n) { return random_() % n == 0; }

  std::vector<FakeModel> make_models() {
    if (adapters_) return make_adapters();
    std::vector<FakeModel> models(many_ ? from(50, 80) : families_ ? from(2, 9) : from(1, 4));
    const int stages = from(1, families_ ? 2 : 4);
    for (FakeModel& model : models) {
      for (int stage = 0; stage < stages; ++stage) {
        model.pages.push_back(from(1, 9));
        model.layers.push_back(from(1, 5));
      }
      model.span = from(1, 3);
      model.pinned = one_in(many_ ? 40 : 8);
      if (many_) model.priority = from(-2, 2);
      if (!one_in(3)) model.eos_tokens = {from(0, kVocab - 1), from(0, kVocab - 1)};
    }
    if (families_) make_families(models);
    if (prefixes_) models.front().pinned = true;
    return models;
  }

  // One base with adapters or two, and a model of none.
  std::vector<FakeModel> make_adapters() {
    std::vector<FakeModel> models;
    const int stages = from(1, 3), families = from(1, 2);
    for (int family = 1; family <= families; ++family) {
      std::vector<int> adapters(static_cast<std::size_t>(from(2, 8)));
      for (int& pages : adapters) pages = from(0, 2);
      const int layers = from(1, 4);
      for (FakeModel& model : small_family(static_cast<std::uint64_t>(family), from(1, 9), adapters, stages)) {
        model.layers.assign(model.layers.size(), layers);
        model.pinned = one_in(15);
        models.push_back(std::move(model));
      }
    }
    FakeModel& alone = models.emplace_back();
    alone.pages.assign(static_cast<std::size_t>(stages), from(1, 5));
    alone.layers.assign(static_cast<std::size_t>(stages), 1);
    const bool in_slots = hash_tuple(seed_, 11) % 2 == 0;
    for (FakeModel& model : models) {
      model.in_slots = in_slots && model.family != 0;
      model.eos_tokens = {from(0, kVocab - 1)};
      model.priority = one_in(5) ? from(-2, 2) : 0;
    }
    return models;
  }

  // Two families and models of none. A page is that of its family, of a branch of it, or of its model alone.
  void make_families(std::vector<FakeModel>& models) {
    for (std::size_t m = 0; m < models.size(); ++m) {
      const int family = from(0, 2), branch = from(0, 2);
      models[m].pinned = one_in(12);
      for (std::size_t stage = 0; stage < models[m].pages.size(); ++stage) {
        std::vector<std::uint64_t>& contents = models[m].contents.emplace_back();
        for (int page = 0; page < models[m].pages[stage]; ++page) {
          const int kind = family == 2 ? 2 : from(0, 2);
          contents.push_back(kind == 0   ? hash_tuple(page, stage, family)
                             : kind == 1 ? hash_tuple(page, stage, family, branch)
                                         : hash_tuple(page, stage, 9, m, 9));
        }
      }
    }
  }

  // What the largest model needs beside one block of cache.
  int smallest_pool() const {
    int frames = 0;
    for (ModelId m = 0; m < model_list_.models(); ++m) {
      for (int stage = 0; stage < model_list_.stages(); ++stage) {
        int frames_here = model_list_.frames_needed(m, stage, 1) - model_list_.shape(m).layouts[stage]->pages();
        frames_here += model_list_.weights_needed(m, stage);
        frames = std::max(frames, frames_here);
      }
    }
    return frames;
  }

  // What the largest adapter needs.
  int fewest_slots() const {
    int slots = 0;
    for (ModelId m = 0; m < model_list_.models(); ++m) {
      for (int stage = 0; stage < model_list_.stages(); ++stage) {
        slots = std::max(slots, model_list_.slots_needed(m, stage));
      }
    }
    return slots;
  }

  // In every third job, every fourth request.
  bool held_back(RequestId id) const { return hash_tuple(seed_, 6) % 3 == 0 && hash_tuple(seed_, id, 6) % 4 == 0; }
  // Every fourth.
  bool is_encoder(ModelId model) const { return hash_tuple(seed_, model) % 4 == 0; }

  static void make_encoding(Request& request) {
    request.task = request.id % 2 == 0 ? Task::kEmbed : Task::kClassify;
    request.echo = false;
    request.logprobs = -1;
    request.values = 1 + static_cast<int>(request.id % 5);
    request.in_chunks = request.model % 2 == 0;
    request.of_all_rows = request.id % 2 == 0;
    if (request.in_chunks) return;
    if (request.id % 3 == 0) request.token_type_ids.assign(request.prompt.size(), 1);
    if (request.id % 3 == 1) request.patches = {static_cast<float>(request.id), 3};
  }

  Request make_request(RequestId id, double span_s) {
    const auto model = static_cast<ModelId>(random_() % model_list_.models());
    Request request = test::make_request(id, model, from(1, one_in(4) ? 120 : 20), from(0, one_in(4) ? 60 : 8));
    request.arrival_s = span_s * (random_() % 1000) / 1000;
    if (regular_ && model % 3 != 0) request.arrival_s = 0.001 * (model + 1.0) * ++asked_[model];
    request.echo = one_in(3);
    request.ignore_eos = one_in(4);
    if (one_in(3)) request.logprobs = from(0, 5);
    if (one_in(4)) request.stop_tokens = {from(0, kVocab - 1)};
    if (one_in(10)) request.prompt.insert(request.prompt.begin() + from(1, std::ssize(request.prompt)), kPoison);
    if (options_.prefix_caching && one_in(2)) request = with_common_beginning(std::move(request), from(10, 70));
    if (prefixes_ && !one_in(4)) {
      request.prompt.resize(static_cast<std::size_t>(from(1, 12)));
      request = with_common_beginning(std::move(request), from(100, 300));
      request.max_tokens = from(1, 100);
      return request;
    }
    if (is_encoder(model) && !crowded_ && !adapters_) make_encoding(request);
    if (crowded_) {
      request.max_tokens = from(40, 80);
      request.ignore_eos = request.stop_tokens.empty() && id > 10;
      for (TokenId t = 0; id <= 10 && t < kVocab; t += 2) request.stop_tokens.push_back(t);
    }
    return request;
  }

  std::uint64_t seed_;
  bool crowded_, many_, families_, adapters_, prefixes_;
  bool deadlines_ = false, classes_ = false, priorities_ = false;
  bool regular_ = false;  // two models in three are asked for at equal intervals
  std::map<ModelId, int> asked_;
  std::mt19937_64 random_;
  FakeModelList model_list_;
  SchedulerOptions options_;
  std::string policy_;
};

// What the schedules of all seeds have done.
struct Reached {
  std::size_t steps = 0, swaps = 0, overlapping = 0, fetch_steps = 0, refills = 0, offloads = 0, reloads = 0,
              restarts = 0, prefetches = 0, encoded = 0, preemptions = 0, shrinks = 0, prefix_hits = 0, riders = 0;
  std::size_t refused = 0, failed = 0, stopped = 0, dropped = 0, late = 0;

  void add(const Driver& driver) {
    steps += driver.steps().size();
    preemptions += driver.preemptions();
    first_.clear();
    begun_.clear();
    for (const ExecutedStep& executed : driver.steps()) add(executed);
    for (const RequestId id : driver.finished()) {
      const Completion& completion = driver.completion(id);
      refused += completion.error_code == "context_length_exceeded";
      encoded += !completion.values.empty();
      failed += completion.error_code == "numerical_error";
      stopped += completion.finish_reason == FinishReason::kStop;
      dropped += is_unserved(completion);
      late += completion.error_code.empty() && !met_deadline(completion);
    }
  }

 private:
  void add(const ExecutedStep& executed) {
    swaps += executed.swaps.size();
    overlapping += executed.in_flight > 1;
    fetch_steps += executed.step.chunks.empty();
    for (const SequenceChunk& chunk : executed.step.chunks) {
      riders += chunk.rider.has_value();
      prefix_hits += first_.insert(chunk.sequence).second && chunk.start > 0;
      if (const auto request = tells_request(chunk.tokens[0])) restarts += !begun_.insert(*request).second;
    }
    for (const StagePlan& plan : executed.step.stages) {
      for (const Fetch& fetch : plan.fetches) {
        refills += fetch.after.step == executed.step.id && fetch.model == executed.step.model;
        prefetches += fetch.model != executed.step.model;
      }
      for (const CacheChange& change : plan.caches) {
        offloads += change.kind == CacheChange::kOffload;
        reloads += change.kind == CacheChange::kReload;
        shrinks += change.kind == CacheChange::kPlain && change.taken > 0;
      }
    }
  }
  std::set<SequenceId> first_;  // sequences of the job
  std::set<RequestId> begun_;   // requests of it whose first chunk began with what tells them
};

// Runs the jobs of seeds [first, end), and fails with the first that breaks a rule.
Reached reached_by(std::uint64_t first, std::uint64_t end, Kind kind) {
  Reached all;
  for (std::uint64_t seed = first; seed < end && !testing::Test::HasFailure(); ++seed) {
    RandomJob job(seed, kind);
    const std::unique_ptr<Driver> driver = job.make_driver();
    EXPECT_EQ(driver->run(), "") << "seed " << seed;
    all.add(*driver);
  }
  return all;
}

TEST(SchedulerRandom, EveryRuleHoldsForEverySchedule) {
  const Reached all = reached_by(0, 400, Kind::kFewModels);
  // The seeds reach what the rules are about.
  EXPECT_GT(all.steps, 12000u);
  EXPECT_GT(all.swaps, 600u);
  EXPECT_GT(all.fetch_steps, 200u);
  EXPECT_GT(all.prefetches, 600u);
  EXPECT_GT(all.refills, 2000u);
  EXPECT_GT(all.offloads, 10u);
  EXPECT_GT(all.reloads, 10u);
  EXPECT_GT(all.restarts, 40u);
  EXPECT_GT(all.preemptions, 10u);
  EXPECT_GT(all.shrinks, 2000u);
  EXPECT_GT(all.refused, 120u);
  EXPECT_GT(all.failed, 200u);
  EXPECT_GT(all.stopped, 400u);
  EXPECT_GT(all.overlapping, 2000u);
  EXPECT_GT(all.encoded, 500u);
  EXPECT_GT(all.prefix_hits, 200u);
}

TEST(SchedulerRandom, EveryRuleHoldsWhereModelsHavePagesInCommon) {
  const Reached all = reached_by(5000, 5300, Kind::kFamilies);
  EXPECT_GT(all.swaps, 550u);
  EXPECT_GT(all.prefetches, 550u);
  EXPECT_GT(all.refills, 1100u);
  EXPECT_GT(all.offloads, 3u);
}

TEST(SchedulerRandom, EveryRuleHoldsWhereAdaptersRideAlong) {
  const Reached all = reached_by(7000, 7300, Kind::kAdapters);
  EXPECT_GT(all.riders, 3500u);
  EXPECT_GT(all.swaps, 1100u);
  EXPECT_GT(all.prefix_hits, 70u);
  EXPECT_GT(all.preemptions, 10u);
  EXPECT_GT(all.offloads, 70u);
}

// Sequences are preempted again and again, for more were admitted than can grow to their ends together.
TEST(SchedulerRandom, EveryRuleHoldsWhereCachesRunOut) {
  const Reached all = reached_by(1000, 1220, Kind::kCrowded);
  EXPECT_GT(all.preemptions, 200u);
  EXPECT_GT(all.prefix_hits, 100u);
}

TEST(SchedulerRandom, EveryRuleHoldsWhereRequestsHaveLongBeginningsInCommon) {
  const Reached all = reached_by(11000, 11100, Kind::kPrefixes);
  EXPECT_GT(all.prefix_hits, 300u);
  EXPECT_GT(all.swaps, 50u);
  EXPECT_GT(all.shrinks, 50u);
}

TEST(SchedulerRandom, EveryRuleHoldsWhereThereAreManyModels) {
  const Reached all = reached_by(2000, 2030, Kind::kManyModels);
  EXPECT_GT(all.swaps, 2000u);
  EXPECT_GT(all.prefetches, 2000u);
  EXPECT_GT(all.fetch_steps, 400u);
  EXPECT_GT(all.offloads, 10u);
  EXPECT_GT(all.prefix_hits, 10u);
}

// Whoever is dropped was in no step.
TEST(SchedulerRandom, EveryRuleHoldsWhereLateRequestsAreDropped) {
  Reached all;
  for (std::uint64_t seed = 3000; seed < 3240; ++seed) {
    const Kind kind = seed % 24 == 0 ? Kind::kManyModels : seed % 4 == 0 ? Kind::kCrowded : Kind::kFewModels;
    RandomJob job(seed, kind);
    job.give_deadlines(OnLate::kDrop);
    const std::unique_ptr<Driver> driver = job.make_driver();
    ASSERT_EQ(driver->run(), "") << "seed " << seed;
    all.add(*driver);
  }
  EXPECT_GT(all.dropped, 500u);
  EXPECT_GT(all.late, 250u) << "they had begun";
  EXPECT_GT(all.swaps, 600u);
}

// Of any policy: nobody is passed by for ever.
TEST(SchedulerRandom, EveryRuleHoldsWhereRequestsAreOfSeveralPriorities) {
  Reached all;
  for (std::uint64_t seed = 9000; seed < 9200; ++seed) {
    constexpr Kind kKinds[] = {Kind::kFewModels, Kind::kCrowded, Kind::kFamilies, Kind::kAdapters};
    RandomJob job(seed, kKinds[seed % 4]);
    job.give_classes(/*priorities=*/seed % 5 > 0);
    if (seed % 3 == 0) job.give_deadlines(OnLate::kDrop);
    const std::unique_ptr<Driver> driver = job.make_driver();
    ASSERT_EQ(driver->run(), "") << "seed " << seed;
    all.add(*driver);
  }
  EXPECT_GT(all.preemptions, 100u);
  EXPECT_GT(all.swaps, 400u);
  EXPECT_GT(all.riders, 300u);
}

// Of the steps as the ranks get them, when they were planned and what they swap in, and of the order of completions.
std::uint64_t digest_of(const Driver& driver) {
  std::uint64_t digest = 0;
  const auto add = [&](std::span<const std::byte> bytes) { digest = digest64(bytes, digest); };
  for (const ExecutedStep& executed : driver.steps()) {
    add(std::as_bytes(std::span(&executed.planned_s, 1)));
    add(std::as_bytes(std::span(executed.swaps)));
    for (int stage = 0; stage < driver.model_list().stages(); ++stage) add(executed.step.encode(stage));
  }
  add(std::as_bytes(std::span(driver.finished())));
  return digest;
}

TEST(SchedulerRandom, DeadlinesChangeNoDecisionWhereLateRequestsAreServed) {
  std::size_t late = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Kind kind = seed % 4 == 3 ? Kind::kCrowded : Kind::kFewModels;
    RandomJob without(seed, kind), with(seed, kind);
    with.give_deadlines(OnLate::kServe);
    const std::unique_ptr<Driver> expected = without.make_driver(), found = with.make_driver();
    ASSERT_EQ(expected->run(), "");
    ASSERT_EQ(found->run(), "");
    ASSERT_EQ(digest_of(*found), digest_of(*expected)) << "seed " << seed;
    Reached reached;
    reached.add(*found);
    late += reached.late;
  }
  EXPECT_GT(late, 100u) << "none would have been dropped";
}

// For a change that must leave every decision as it is: jobs/compare_builds.py compares what two builds print. No
// digest stands here, for costs are floating-point numbers, and logarithms of other machines may differ in the last
// bit.
TEST(SchedulerRandom, DISABLED_PrintsADigestOfEachStepStream) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    RandomJob job(seed, seed % 4 == 3 ? Kind::kCrowded : Kind::kFewModels);
    const std::unique_ptr<Driver> driver = job.make_driver();
    ASSERT_EQ(driver->run(), "") << "seed " << seed;
    fmt::print("step stream {} {:016x}\n", seed, digest_of(*driver));
  }
}

TEST(SchedulerRandom, DISABLED_PrintsADigestOfEachStepStreamOfManyModels) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomJob job(seed, Kind::kManyModels);
    const std::unique_ptr<Driver> driver = job.make_driver();
    const std::string fault = driver->run(/*most=*/4000);
    ASSERT_TRUE(fault.empty() || fault.ends_with("steps without end")) << "seed " << seed << ": " << fault;
    fmt::print("step stream of many models {} {:016x}\n", seed, digest_of(*driver));
  }
}

}  // namespace
}  // namespace computron::test

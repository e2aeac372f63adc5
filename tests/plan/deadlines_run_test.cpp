// Whole jobs whose requests have deadlines, in virtual time.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>
#include <set>

#include "tests/plan/virtual_groups.h"

namespace computron::test {
namespace {

constexpr const char* kPolicies[] = {"fifo", "balanced", "throughput"};

DeadlineCount count_of(const VirtualRun& run) {
  DeadlineCount count;
  for (const Completion& completion : run.completions) count.add({&completion, 1});
  return count;
}

// Twice as many requests as a group can serve, 0.2 s each, one at a time, with half a second for each.
VirtualGroups overload(std::size_t groups, const std::string& policy) {
  VirtualGroups job{.pages = {8}, .page_s = 1e-6, .pass_s = 0.2, .groups = {}, .max_seqs = 1, .policy = policy};
  job.groups.assign(groups, {.models = {0}});
  for (int i = 0; i < 200; ++i) {
    job.add(0, 1, 0.1 / static_cast<double>(groups) * i).deadline_s = 0.5;
  }
  return job;
}

// Half of them can be in time. Where all are served, those that come first are, and then nobody is.
TEST(DeadlineRun, WhereLateOnesAreNotServedTheOthersAreInTime) {
  for (const char* policy : kPolicies) {
    for (const std::size_t groups : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, {} groups", policy, groups));
      VirtualGroups job = overload(groups, policy);
      EXPECT_LT(count_of(job.run().run).met, 30u);
      job.on_late = OnLate::kReject;
      const DeadlineCount rejecting = count_of(job.run().run);
      EXPECT_GT(rejecting.met, 85u);
      EXPECT_GT(rejecting.unserved, 85u);
      EXPECT_EQ(rejecting.total, 200u);
      // What has begun is not dropped, however late it ends, so all groups are busy all the time. (Where all requests
      // are known, groups have theirs beforehand, whenever they arrive.)
      job.on_late = OnLate::kDrop;
      const DeadlineCount dropping = count_of(job.run().run);
      EXPECT_GT(dropping.unserved, 85u);
      const bool dealt = groups > 1 && make_policy(policy)->plans_ahead();
      EXPECT_LT(dropping.unserved, dealt ? 160u : 110u);
    }
  }
}

VirtualGroups random_late_job(unsigned seed) {
  std::mt19937 random(seed);
  VirtualGroups job{.pages = {}, .pass_s = 0.002 * (1 + random() % 10), .groups = {}};
  job.pages.assign(2 + random() % 4, 16);
  job.policy = kPolicies[seed % 3];
  job.max_seqs = 1 + static_cast<int>(random() % 8);
  job.groups.resize(1 + random() % 3);
  for (VirtualGroups::Group& group : job.groups) {
    for (ModelId m = 0; m < job.pages.size(); ++m) group.models.push_back(m);
    group.frames = 40;
  }
  const bool replay = random() % 2 == 0;
  for (int i = 0; i < 80; ++i) {
    Request& request = job.add(random() % job.pages.size(), 1 + random() % 12, replay ? 0.001 * (random() % 1000) : 0);
    if (random() % 4 > 0) request.deadline_s = 0.001 * (random() % 500);
  }
  return job;
}

// Each request ends once: served, or, if it is not, without having begun.
TEST(DeadlineRun, EveryRequestEndsOnceAndNobodyWhoHasBegunIsLateInVain) {
  std::size_t unserved[3] = {}, late = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    for (const OnLate on_late : {OnLate::kServe, OnLate::kDrop, OnLate::kReject}) {
      VirtualGroups job = random_late_job(seed);
      job.on_late = on_late;
      const VirtualGroups::Outcome outcome = job.run();
      std::set<RequestId> ended;
      for (const Completion& completion : outcome.run.completions) {
        ASSERT_TRUE(ended.insert(completion.id).second) << "twice, seed " << seed;
        ASSERT_EQ(is_unserved(completion), !outcome.begun_in.contains(completion.id)) << "seed " << seed;
        late += on_late == OnLate::kServe && !met_deadline(completion);
      }
      ASSERT_EQ(ended.size(), job.requests.size()) << "seed " << seed;
      unserved[static_cast<int>(on_late)] += count_of(outcome.run).unserved;
    }
  }
  EXPECT_EQ(unserved[0], 0u);
  EXPECT_GT(unserved[1], 500u);
  EXPECT_GT(unserved[2], 500u);
  EXPECT_GT(late, 500u);
}

}  // namespace
}  // namespace computron::test

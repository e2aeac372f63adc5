#include "computron/dispatch/dealing.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace computron::test {
namespace {

using ::testing::ElementsAre;

// Models of linear compute, on any of several groups.
struct Deal {
  std::size_t groups = 1;
  std::vector<DealtModel> models = {};
  std::vector<double> request_s = {};  // [model]

  void add(std::size_t requests, double each_s, double transfer_s, const std::vector<std::size_t>& hosts) {
    DealtModel& model = models.emplace_back();
    model.requests = requests;
    for (const std::size_t group : hosts) model.hosts.push_back({group, transfer_s});
    request_s.push_back(each_s);
  }
  ComputeTimes compute_s() const {
    return [this](std::size_t model, std::size_t, std::size_t requests) {
      return request_s[model] * static_cast<double>(requests);
    };
  }
  std::vector<std::vector<std::size_t>> run() const { return deal(models, groups, compute_s()); }
  double end_s(const std::vector<std::vector<std::size_t>>& shares) const {
    return latest_end_s(models, groups, compute_s(), shares);
  }
  // No way of dealing ends earlier: each model is moved once at least, and a group that computes all of something has
  // something to move first.
  double bound_s() const {
    double compute_s = 0, transfer_s = 0, least_transfer_s = 1e9, bound_s = 0;
    for (std::size_t m = 0; m < models.size(); ++m) {
      const double all_s = request_s[m] * static_cast<double>(models[m].requests);
      const double move_s = models[m].hosts.front().transfer_s;
      compute_s += all_s;
      transfer_s += move_s;
      least_transfer_s = std::min(least_transfer_s, move_s);
      bound_s = std::max(bound_s, move_s + all_s / static_cast<double>(models[m].hosts.size()));
    }
    const auto n = static_cast<double>(groups);
    return std::max({bound_s, least_transfer_s + compute_s / n, transfer_s / n});
  }
};

std::vector<std::size_t> everywhere(std::size_t groups) {
  std::vector<std::size_t> all(groups);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

TEST(Dealing, GivesEveryRequestOnceAndOnlyToHosts) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    Deal job{.groups = 1 + random() % 6};
    for (std::size_t m = 1 + random() % 12; m > 0; --m) {
      std::vector<std::size_t> hosts = everywhere(job.groups);
      std::shuffle(hosts.begin(), hosts.end(), random);
      hosts.resize(1 + random() % job.groups);
      job.add(random() % 50, 0.001 * (1 + random() % 100), 0.001 * (random() % 100), hosts);
    }
    const auto shares = job.run();
    for (std::size_t m = 0; m < job.models.size(); ++m) {
      ASSERT_EQ(shares[m].size(), job.models[m].hosts.size());
      EXPECT_EQ(std::accumulate(shares[m].begin(), shares[m].end(), std::size_t{0}), job.models[m].requests);
    }
  }
}

TEST(Dealing, SplitsAModelOnlyWhereThatSavesMoreThanItsTransfer) {
  Deal cheap{.groups = 2}, dear{.groups = 2};
  cheap.add(100, 0.01, /*transfer_s=*/0.1, {0, 1});
  dear.add(100, 0.01, /*transfer_s=*/0.1, {0, 1});
  dear.models[0].hosts[1].transfer_s = 1.2;
  EXPECT_THAT(cheap.run()[0], ElementsAre(50, 50));
  EXPECT_THAT(dear.run()[0], ElementsAre(100, 0));
}

TEST(Dealing, LeavesAModelWhereItIsResident) {
  Deal job{.groups = 2};
  for (int m = 0; m < 2; ++m) job.add(10, 0.01, /*transfer_s=*/0.2, {0, 1});
  job.models[0].hosts[1].transfer_s = 0;
  job.models[1].hosts[0].transfer_s = 0;
  EXPECT_THAT(job.run(), ElementsAre(ElementsAre(0, 10), ElementsAre(10, 0)));
}

// Of all ways to deal whole models and halves of models.
double best_of_all(const Deal& job, std::vector<std::vector<std::size_t>>& shares, std::size_t m) {
  if (m == job.models.size()) return job.end_s(shares);
  double best_s = 1e9;
  const std::size_t hosts = job.models[m].hosts.size(), half = job.models[m].requests / 2;
  for (std::size_t a = 0; a < hosts; ++a) {
    for (std::size_t b = a; b < hosts; ++b) {
      shares[m].assign(hosts, 0);
      shares[m][a] += half;
      shares[m][b] += job.models[m].requests - half;
      best_s = std::min(best_s, best_of_all(job, shares, m + 1));
    }
  }
  return best_s;
}

TEST(Dealing, SmallJobsEndAboutAsEarlyAsTheBestWayOfAll) {
  std::mt19937 random(2);
  double worst = 0;
  for (int i = 0; i < 150; ++i) {
    Deal job{.groups = 2 + random() % 2};
    for (std::size_t m = 2 + random() % 4; m > 0; --m) {
      std::vector<std::size_t> hosts = everywhere(job.groups);
      std::shuffle(hosts.begin(), hosts.end(), random);
      hosts.resize(1 + random() % job.groups);
      job.add(2 + random() % 40, 0.001 * (1 + random() % 60), 0.01 * (random() % 100), hosts);
    }
    std::vector<std::vector<std::size_t>> shares(job.models.size());
    worst = std::max(worst, job.end_s(job.run()) / best_of_all(job, shares, 0));
  }
  EXPECT_LE(worst, 1.15);
}

TEST(Dealing, LargeJobsEndCloseToTheBound) {
  std::mt19937 random(3);
  double worst = 0;
  for (int i = 0; i < 40; ++i) {
    Deal job{.groups = 2 + random() % 15};
    for (std::size_t m = 4 * job.groups + random() % 60; m > 0; --m) {
      job.add(10 + random() % 500, 0.0001 * (1 + random() % 60), 0.01 * (1 + random() % 50), everywhere(job.groups));
    }
    worst = std::max(worst, job.end_s(job.run()) / job.bound_s());
  }
  EXPECT_LE(worst, 1.07);
}

// A job of a thousand models is dealt while its groups wait.
TEST(Dealing, AThousandModelsAreDealtToo) {
  std::mt19937 random(4);
  Deal job{.groups = 128};
  for (int m = 0; m < 1000; ++m) {
    std::vector<std::size_t> hosts;
    for (int h = 0; h < 4; ++h) hosts.push_back((static_cast<std::size_t>(m) * 7 + 31 * h) % 128);
    job.add(10 + random() % 500, 0.0001 * (1 + random() % 60), 0.01 * (1 + random() % 50), hosts);
  }
  EXPECT_LE(job.end_s(job.run()), 1.1 * job.bound_s()) << "of a bound for models that live everywhere";
}

}  // namespace
}  // namespace computron::test

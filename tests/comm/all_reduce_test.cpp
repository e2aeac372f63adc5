#include "computron/comm/all_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "computron/base/digest.h"
#include "computron/comm/tags.h"
#include "tests/support/deferred_stream.h"
#include "tests/support/test_communicators.h"

namespace computron {
namespace {

using Vector = std::vector<float>;

// What rank `rank` brings to round `round`: values of many magnitudes, so that another order gives other bits.
Vector part(int rank, std::size_t count, int round = 0) {
  std::mt19937_64 random(hash_tuple(rank, count, round));
  Vector values(count);
  for (float& x : values) {
    const std::uint64_t bits = random();
    x = std::ldexp(static_cast<float>(bits >> 40) - 8388608.0f, static_cast<int>(bits % 24) - 30);
  }
  return values;
}

float sum_tree(const std::vector<Vector>& parts, std::size_t i, std::size_t first, std::size_t count) {
  if (count == 1) return parts[first][i];
  return sum_tree(parts, i, first, count / 2) + sum_tree(parts, i, first + count / 2, count / 2);
}

float sum_chain(const std::vector<Vector>& parts, std::size_t i) {
  float sum = parts[0][i];
  for (std::size_t r = 1; r < parts.size(); ++r) sum += parts[r][i];
  return sum;
}

// Every rank's part made here, added one element at a time in the order that the header promises.
Vector reference(int ranks, std::size_t count, int round = 0) {
  std::vector<Vector> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(part(r, count, round));
  Vector sum(count);
  const bool tree = std::has_single_bit(static_cast<unsigned>(ranks));
  for (std::size_t i = 0; i < count; ++i) sum[i] = tree ? sum_tree(parts, i, 0, ranks) : sum_chain(parts, i);
  return sum;
}

bool same_bits(const Vector& a, const Vector& b) {
  const auto same = [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

struct Case {
  const char* name;
  CpuDeviceOptions options;
  TransportKind transport = TransportKind::kHost;
};

class AllReduceTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::size_t kMaxCount = std::size_t{1} << 20;

  Vector sum_of(const Vector& mine) {
    const test::OnDevice<float> values(*device_, *stream_, mine);
    communicators_.all_reduce->sum(*stream_, values.data(), values.size());
    return values.values();
  }

  Communicator world_ = Communicator::world();
  Progress progress_{IdlePolicy{}};
  std::unique_ptr<Device> device_ = test::make_test_device(GetParam().options, world_.rank());
  std::unique_ptr<Stream> stream_ = device_->make_compute_stream(progress_);
  Mesh mesh_{{.tp = world_.size(), .pp = 1}, Communicator::world()};
  Communicators communicators_ = test::make_test_communicators(test::test_transport(GetParam().transport, mesh_.rank),
                                                               mesh_, *device_, progress_, {.max_count = kMaxCount});
};

TEST_P(AllReduceTest, AddsInThePromisedOrderAtEverySize) {
  for (const std::size_t count : {0, 1, 2, 3, 15, 17, 1000, 4099, 16384, 16385, 16499, 65536, 1048575}) {
    const Vector sum = sum_of(part(world_.rank(), count));
    ASSERT_TRUE(same_bits(sum, reference(world_.size(), count))) << count << " floats";
  }
}

TEST_P(AllReduceTest, AllRanksHoldTheSameBits) {
  for (const std::size_t count : {1, 777, 16384, 16500, 70001}) {
    const Vector sum = sum_of(part(world_.rank(), count));
    const auto mine = digest128(std::as_bytes(std::span(sum)));
    for (const auto& other : world_.all_gather(std::as_bytes(std::span(mine)))) {
      ASSERT_EQ(std::memcmp(other.data(), mine.data(), sizeof mine), 0) << count;
    }
  }
}

// An element's sum does not depend on how long the vector is that it travels in.
TEST_P(AllReduceTest, SameBitsInShortAndLongVectors) {
  const Vector mine = part(world_.rank(), 500000);
  const Vector whole = sum_of(mine);
  const Vector head = sum_of(Vector(mine.begin(), mine.begin() + 1001));
  EXPECT_EQ(std::memcmp(whole.data(), head.data(), head.size() * sizeof(float)), 0);
}

TEST_P(AllReduceTest, SpecialValuesSpread) {
  const std::size_t count = 30000;
  Vector mine(count, 1.0f);
  if (world_.rank() == 0) mine[5] = std::numeric_limits<float>::infinity();
  if (world_.rank() == world_.size() - 1) mine[29999] = std::numeric_limits<float>::quiet_NaN();
  const Vector sum = sum_of(mine);
  EXPECT_EQ(sum[5], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(sum[29999]));
  EXPECT_EQ(sum[4], static_cast<float>(world_.size()));
}

// A rank whose poll hook lets the others go on: they wait for its word before they join the sum it stands in. A sum
// that did not poll would never end.
class Starter {
 public:
  explicit Starter(const Communicator& world) : world_(world) {}
  void begin_round() { said_ = false; }
  void poll() {
    for (MessageRequest& send : sends_) send.done();
    if (std::exchange(said_, true)) return;
    sends_.clear();
    for (int r = 0; r < world_.size(); ++r) {
      if (r != world_.rank()) sends_.push_back(world_.send(std::as_bytes(std::span(&word_, 1)), r, tags::kMeasurement));
    }
  }

 private:
  const Communicator& world_;
  const char word_ = 'g';
  bool said_ = true;
  std::vector<MessageRequest> sends_;
};

TEST_P(AllReduceTest, PollsWhileItWaits) {
  Starter starter(world_);
  progress_.set_hook([&] { starter.poll(); });
  for (int round = 0; round < 60; ++round) {
    const int leader = round % world_.size();
    if (world_.rank() == leader) {
      starter.begin_round();
    } else {
      char word = 0;
      auto receive = world_.receive(std::as_writable_bytes(std::span(&word, 1)), leader, tags::kMeasurement);
      progress_.wait_until([&] { return receive.done(); });
      ASSERT_EQ(word, 'g');
    }
    const std::size_t count = round % 10 == 0 ? 20000 + round : 1 + round;
    const Vector sum = sum_of(part(world_.rank(), count, round));
    ASSERT_TRUE(same_bits(sum, reference(world_.size(), count, round))) << "round " << round;
  }
  progress_.set_hook({});
}

TEST_P(AllReduceTest, SumsEnqueuedTogetherStayApart) {
  std::vector<test::OnDevice<float>> vectors;
  for (int i = 0; i < 8; ++i) vectors.emplace_back(*device_, *stream_, part(world_.rank(), 14000 + 700 * i, i));
  for (const auto& v : vectors) communicators_.all_reduce->sum(*stream_, v.data(), v.size());
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(same_bits(vectors[i].values(), reference(world_.size(), 14000 + 700 * i, i))) << i;
  }
}

TEST_P(AllReduceTest, RefusesMoreThanItsBuffersHold) {
  if (world_.size() == 1) GTEST_SKIP() << "one rank adds nothing";
  Vector big(kMaxCount + 1);
  EXPECT_THROW(communicators_.all_reduce->sum(*stream_, big.data(), big.size()), Error);
}

// Each of the two ranks notices: one gets too little, the other too much.
TEST_P(AllReduceTest, UnequalLengthsAreAnError) {
  if (world_.size() != 2) GTEST_SKIP() << "with more ranks some would wait for those that failed";
  Vector mine(world_.rank() == 0 ? 100 : 90);
  EXPECT_THROW(sum_of(mine), Error);
  world_.barrier();
}

INSTANTIATE_TEST_SUITE_P(
    Streams, AllReduceTest,
    testing::Values(Case{"Inline", {.threads = 1}}, Case{"Threads", {.threads = 3}},
                    Case{"Deferred", {.threads = 2, .wrap_compute_stream = test::deferred}},
                    Case{"Staged", {.threads = 1}, TransportKind::kStaged},
                    Case{"StagedDeferred", {.wrap_compute_stream = test::deferred}, TransportKind::kStaged}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(LocalAllReduce, LeavesTheValuesAlone) {
  Progress progress{IdlePolicy{}};
  const auto device = make_cpu_device({});
  const auto stream = device->make_compute_stream(progress);
  Vector values = part(0, 100);
  make_local_all_reduce()->sum(*stream, values.data(), values.size());
  stream->synchronize();
  EXPECT_TRUE(same_bits(values, part(0, 100)));
}

}  // namespace
}  // namespace computron

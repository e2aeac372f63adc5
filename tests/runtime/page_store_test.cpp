// What the ranks of a node hold once: that it is the same bytes, that it is there once, and what happens where the
// system refuses or the rank fails that loads it.
#include "computron/runtime/page_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "computron/comm/agreed.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/page_contents.h"
#include "tests/runtime/shared_mappings.h"
#include "tests/support/captured_log.h"
#include "tests/support/coded_bytes.h"
#include "tests/support/no_more_files.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron {
namespace {

using testing::HasSubstr;

constexpr std::size_t kPageBytes = std::size_t{1} << 20;
const test::TinyModel kModel = {.layers = 2, .heads = 8, .head_dim = 32, .ffn = 2048, .vocab = 6000, .seed = 5};

class PageStoreTest : public testing::Test {
 public:
  static void SetUpTestSuite() { suite_world_.emplace(Communicator::world()); }
  static void TearDownTestSuite() { suite_world_.reset(); }

 protected:
  PageStoreTest() {
    if (world_.rank() == 0) write(kModel, "a");
    world_.barrier();
  }
  ~PageStoreTest() override {
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove_all(folder_);
  }

  // One for all ranks.
  std::filesystem::path folder() const {
    pid_t process = getpid();
    const auto bytes =
        world_.broadcast({reinterpret_cast<std::byte*>(&process), reinterpret_cast<std::byte*>(&process + 1)}, 0);
    std::memcpy(&process, bytes.data(), sizeof process);
    return std::filesystem::temp_directory_path() / ("page_store_test." + std::to_string(process));
  }
  void write(const test::TinyModel& model, const std::string& name) const {
    std::filesystem::create_directory(folder_);
    test::write_tiny_checkpoint(folder_ / (name + ".h5"), model);
  }

  struct Read {
    CheckpointIndex index;
    ShardLayout layout;
  };
  // Borrowed by sources: they stay where they are.
  const Read& read(const std::string& name, int tp) {
    auto read = std::make_unique<Read>();
    read->index = read_checkpoint_index(folder_ / (name + ".h5"));
    const ModelConfig config = ModelConfig::from_json(read->index.config_json);
    const ShardPlan plan = ShardPlan::make(config, {tp, 1}, /*stage=*/0);
    read->layout = ShardLayout::make(plan, ops_->weight_format(), WeightTypes(config, read->index), kPageBytes);
    return *read_.emplace_back(std::move(read));
  }
  ShardSource shard(const std::string& model, int tp = 1, int t = 0) {
    const Read& found = read(model, tp);
    return {&found.index, &found.layout, &ops_->weight_format(), t, model};
  }

  // Of a layout that tells what its pages hold.
  ShardSource telling_shard(const std::string& model, int tp = 1, int t = 0) {
    ShardSource source = shard(model, tp, t);
    read_.back()->layout.contents = page_contents(*source.index, *source.layout, tp);
    return source;
  }
  // kModel with another last layer, and with more words.
  void write_variants() const {
    const auto last_layer = [](const std::string& name) { return name.starts_with("layers.1."); };
    test::write_variant_checkpoint(folder_ / "tuned.h5", test::opt_config(kModel), DType::kF32, kModel.seed, last_layer,
                                   /*other_seed=*/77);
    test::TinyModel more_words = kModel;
    more_words.vocab += 2;
    write(more_words, "words");
  }

  // As a job does it. `times`: [shard], may be null.
  std::unique_ptr<HostStore> load(PageStore& pages, std::vector<LoadTimes>* times = nullptr,
                                  PageCoding coding = PageCoding::kRaw) {
    auto host = std::make_unique<HostStore>(*device_, coding);
    agreed(world_, [&] {
      for (int i = 0; i < pages.shards(); ++i) {
        LoadTimes taken;
        EXPECT_EQ(static_cast<int>(host->load_next(pages, /*threads=*/2, &taken)), i);
        if (times != nullptr) times->push_back(taken);
      }
    });
    agreed(world_, [&] { host->map_held_by_others(pages); });
    pages.close_segments();
    return host;
  }

  // Pages and digests of each shard are those of a load for oneself.
  void expect_loaded(const HostStore& host, const PageStore& pages) {
    for (int i = 0; i < pages.shards(); ++i) {
      const ShardSource& source = pages.source(i);
      HostStore alone(*device_);
      const ModelId model =
          alone.load(*source.index, source.name, pages.layout(i), source.t, *source.format, /*threads=*/1);
      for (PageId page = 0; page < static_cast<PageId>(alone.pages(model)); ++page) {
        ASSERT_EQ(host.page_digest(i, page), alone.page_digest(model, page)) << source.name << ", page " << page;
        const std::vector<std::byte> bytes = test::decoded(host.page(i, page));
        ASSERT_EQ(bytes.size(), alone.page_used_bytes(model, page)) << source.name << ", page " << page;
        ASSERT_EQ(std::memcmp(bytes.data(), alone.page(model, page).data, bytes.size()), 0);
      }
      EXPECT_EQ(host.name(i), source.name);
    }
  }

  std::uint64_t sum_over_ranks(std::uint64_t mine) const {
    std::uint64_t sum = 0;
    for (const auto& bytes : world_.all_gather(std::as_bytes(std::span(&mine, 1)))) {
      std::uint64_t one = 0;
      std::memcpy(&one, bytes.data(), sizeof one);
      sum += one;
    }
    return sum;
  }

  static inline std::optional<Communicator> suite_world_;
  const Communicator& world_ = *suite_world_;
  std::filesystem::path folder_ = folder();
  std::unique_ptr<Device> device_ = make_cpu_device({});
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_);
  std::vector<std::unique_ptr<Read>> read_;
};

TEST_F(PageStoreTest, RanksHoldAShardOnce) {
  PageStore pages(world_, /*numa_node=*/-1, {shard("a")}, HostPages::kShared);
  const std::size_t one = HostStore::bytes_of(*pages.source(0).layout);
  EXPECT_EQ(pages.refusal(), "");
  EXPECT_EQ(pages.is_shared(0), world_.size() > 1);
  EXPECT_EQ(pages.separate_bytes(), one);
  EXPECT_EQ(pages.held_bytes() + pages.mapped_bytes(), one);
  EXPECT_EQ(sum_over_ranks(pages.held_bytes()), one);

  std::vector<LoadTimes> times;
  const auto host = load(pages, &times);
  EXPECT_EQ(sum_over_ranks(times.at(0).read_s > 0), 1u) << "one rank reads";
  const test::SharedMappings mapped = test::shared_mappings();
  const std::size_t there = sum_over_ranks(mapped.pss_bytes);
  expect_loaded(*host, pages);
  EXPECT_EQ(mapped.writable, 0);
  EXPECT_EQ(mapped.count > 0, world_.size() > 1);
  if (world_.size() > 1) {
    EXPECT_GE(mapped.bytes, one);
    EXPECT_LE(there, one + 2 * (std::size_t{2} << 20)) << "the ends of huge pages";
    EXPECT_GE(there, one * 9 / 10);
  }
  world_.barrier();
}

std::size_t link_bytes_of(const HostStore& host, ModelId model) {
  std::size_t bytes = 0;
  for (PageId page = 0; page < static_cast<PageId>(host.pages(model)); ++page) {
    bytes += host.page_link_bytes(model, page);
  }
  return bytes;
}

// What is mapped and not used takes nothing, neither where it was loaded nor where it is mapped.
TEST_F(PageStoreTest, RanksHoldACodedShardOnceAndOnlyWhatItTakes) {
  PageStore pages(world_, /*numa_node=*/-1, {shard("a"), shard("a")}, HostPages::kShared);
  const std::size_t raw = HostStore::bytes_of(*pages.source(0).layout);
  std::vector<LoadTimes> times;
  const auto host = load(pages, &times, PageCoding::kCoded);
  const std::size_t coded = link_bytes_of(*host, 0);
  EXPECT_LT(coded, raw * 9 / 10);
  EXPECT_EQ(times.at(0).encode_s > 0, pages.loads(0));
  EXPECT_EQ(host->page(0, 1).data, host->page(1, 1).data);
  EXPECT_GE(host->memory(0).size(), coded);
  EXPECT_LE(host->memory(0).size(), coded + coded / 100 + 8192);
  const test::SharedMappings mapped = test::shared_mappings();
  const std::size_t there = sum_over_ranks(mapped.pss_bytes);
  expect_loaded(*host, pages);
  EXPECT_EQ(mapped.writable, 0);
  if (world_.size() > 1) {
    EXPECT_LE(mapped.bytes, host->memory(0).size() + 4096);
    EXPECT_LE(there, coded + coded / 100 + 16384);
    EXPECT_GE(there, coded * 9 / 10);
  }
  world_.barrier();
}

TEST_F(PageStoreTest, MemoryGoesBackWithTheStore) {
  PageStore pages(world_, -1, {shard("a")}, HostPages::kShared);
  load(pages).reset();
  EXPECT_EQ(test::shared_mappings().count, 0);
}

// What ranks of one mesh need: each its own slices, in memory of its own.
TEST_F(PageStoreTest, DifferentShardsStayPrivate) {
  PageStore pages(world_, -1, {shard("a", world_.size(), world_.rank())}, HostPages::kShared);
  EXPECT_FALSE(pages.is_shared(0));
  EXPECT_TRUE(pages.loads(0));
  const auto host = load(pages);
  expect_loaded(*host, pages);
  EXPECT_EQ(test::shared_mappings().count, 0);
  world_.barrier();
}

TEST_F(PageStoreTest, ModelsOfOneFileAreLoadedOnce) {
  if (world_.rank() == 0) {
    test::TinyModel other = kModel;
    other.seed = 6;
    write(other, "b");
    std::filesystem::copy(folder_ / "a.h5", folder_ / "copy.h5");
  }
  world_.barrier();
  for (const HostPages sharing : {HostPages::kShared, HostPages::kPrivate}) {
    const int t = world_.rank(), tp = world_.size();
    PageStore pages(world_, -1, {shard("a", tp, t), shard("b", tp, t), shard("a", tp, t), shard("copy", tp, t)},
                    sharing);
    EXPECT_EQ(pages.first_alike(1), 1);
    EXPECT_EQ(pages.first_alike(2), 0);
    EXPECT_EQ(pages.first_alike(3), 0) << "a copy of the file";
    EXPECT_EQ(2 * pages.held_bytes(), pages.separate_bytes());
    std::vector<LoadTimes> times;
    const auto host = load(pages, &times);
    EXPECT_EQ(times.at(2).read_s, 0);
    EXPECT_EQ(host->page(2, 0).data, host->page(0, 0).data);
    EXPECT_NE(host->page(1, 0).data, host->page(0, 0).data);
    EXPECT_EQ(host->page_name(2, 0).owner, "a");
    EXPECT_EQ(host->page_name(3, 0).owner, "copy");
    expect_loaded(*host, pages);
  }
  world_.barrier();
}

// Pages that hold layer 0 alone, or the first chunks of the embedding.
TEST_F(PageStoreTest, PagesThatModelsHaveInCommonAreHeldOnce) {
  if (world_.rank() == 0) write_variants();
  world_.barrier();
  for (const PageCoding coding : {PageCoding::kRaw, PageCoding::kCoded}) {
    for (const HostPages sharing : {HostPages::kShared, HostPages::kPrivate}) {
      const int t = world_.rank(), tp = world_.size();
      PageStore pages(world_, -1,
                      {telling_shard("a", tp, t), telling_shard("tuned", tp, t), telling_shard("words", tp, t),
                       telling_shard("tuned", tp, t)},
                      sharing);
      EXPECT_EQ(pages.borrowed_pages(0), 0);
      EXPECT_GT(pages.borrowed_pages(1), pages.layout(1).pages() / 3);
      EXPECT_LT(pages.borrowed_pages(1), pages.layout(1).pages());
      EXPECT_GT(pages.borrowed_pages(2), pages.layout(2).pages() / 3) << "all layers, but not all words";
      EXPECT_LT(pages.borrowed_pages(2), pages.layout(2).pages());
      EXPECT_EQ(pages.first_alike(3), 1);
      EXPECT_EQ(pages.borrowed_pages(3), pages.borrowed_pages(1));
      std::size_t held = 0, separate = 0;
      for (int shard = 0; shard < 4; ++shard) {
        for (PageId page = 0; page < static_cast<PageId>(pages.layout(shard).pages()); ++page) {
          const std::size_t bytes = round_up(pages.layout(shard).used_bytes[page], std::size_t{4096});
          const PageStore::Place place = pages.place(shard, page);
          if (shard < 3 && place.shard == shard) held += bytes;
          separate += bytes;
        }
      }
      EXPECT_EQ(pages.held_bytes(), held);
      EXPECT_EQ(pages.separate_bytes(), separate);
      std::vector<LoadTimes> times;
      const auto host = load(pages, &times, coding);
      for (PageId page = 0; page < static_cast<PageId>(host->pages(1)); ++page) {
        const PageStore::Place place = pages.place(1, page);
        EXPECT_EQ(host->page(1, page).data, host->page(place.shard, place.page).data);
      }
      expect_loaded(*host, pages);
    }
  }
  world_.barrier();
}

// The ranks of a node want different models of a family: what a shard's pages refer to, everybody has who has the
// shard.
TEST_F(PageStoreTest, RanksThatWantDifferentVariantsReferOnlyToWhatTheyHave) {
  if (world_.rank() == 0) write_variants();
  world_.barrier();
  const std::vector<std::vector<std::string>> wanted = {
      {"a", "tuned"}, {"tuned", "words"}, {"words", "a", "tuned"}, {"tuned"}};
  for (const PageCoding coding : {PageCoding::kRaw, PageCoding::kCoded}) {
    std::vector<ShardSource> sources;
    for (const std::string& model : wanted[static_cast<std::size_t>(world_.rank()) % 4]) {
      sources.push_back(telling_shard(model));
    }
    PageStore pages(world_, -1, sources, HostPages::kShared);
    const auto host = load(pages, /*times=*/nullptr, coding);
    expect_loaded(*host, pages);
    if (world_.size() == 1) {
      EXPECT_GT(pages.borrowed_pages(1), 0);
    }
  }
  world_.barrier();
}

TEST_F(PageStoreTest, ModelsThatDifferInScalesAloneAreNotAlike) {
  if (world_.rank() == 0) {
    test::write_quantised_pair(folder_ / "codes.h5", folder_ / "values.h5", test::opt_config(kModel),
                               {DType::kF32, DType::kFp4, DType::kE4M3, 16}, /*seed=*/3);
  }
  world_.barrier();
  Read other = read("codes", 1);
  ++other.index.tensors.at("layers.0.mlp.up.weight.scales").digests.front()[0];
  const ShardSource changed{&other.index, &other.layout, &ops_->weight_format(), 0, "other"};
  Read third = read("codes", 1);
  third.index.tensors.at("layers.0.mlp.up.weight.scales").factor *= 2;
  const ShardSource doubled{&third.index, &third.layout, &ops_->weight_format(), 0, "third"};
  const PageStore pages(world_, -1, {shard("codes"), shard("codes"), changed, doubled}, HostPages::kPrivate);
  EXPECT_EQ(pages.first_alike(1), 0);
  EXPECT_EQ(pages.first_alike(2), 2);
  EXPECT_EQ(pages.first_alike(3), 3);
  world_.barrier();
}

// As groups of replicas would have it: some shards are everybody's, some a few ranks', and each rank loads something.
TEST_F(PageStoreTest, RanksDealWhatTheyShare) {
  if (world_.rank() == 0) {
    for (int seed = 10; seed < 14; ++seed) {
      test::TinyModel model = kModel;
      model.seed = seed;
      write(model, std::to_string(seed));
    }
  }
  world_.barrier();
  const int pair = world_.rank() / 2;
  PageStore pages(world_, -1, {shard("10"), shard("11"), shard(std::to_string(12 + pair % 2)), shard("a"), shard("10")},
                  HostPages::kShared);
  EXPECT_GT(pages.held_bytes(), 0u) << "as many shards as ranks";
  const auto host = load(pages, /*times=*/nullptr, PageCoding::kCoded);
  expect_loaded(*host, pages);
  const int distinct = world_.size() > 2 ? 5 : 4;
  const std::size_t one = HostStore::bytes_of(*pages.source(0).layout);
  EXPECT_EQ(sum_over_ranks(pages.held_bytes()), distinct * one);
  world_.barrier();
}

TEST_F(PageStoreTest, RanksOfOtherNumaNodesShareNothing) {
  PageStore pages(world_, /*numa_node=*/world_.rank(), {shard("a")}, HostPages::kShared);
  EXPECT_FALSE(pages.is_shared(0));
  EXPECT_TRUE(pages.loads(0));
}

// Catches what the program warns of.
// The last rank may open no further file: no rank shares, each loads for itself, and one of them says why.
TEST_F(PageStoreTest, WhereItIsRefusedPagesArePrivate) {
  const ShardSource source = shard("a");
  world_.barrier();
  std::optional<test::NoMoreFiles> poor;
  if (world_.rank() == world_.size() - 1) poor.emplace();
  const CapturedLog warnings;
  PageStore pages(world_, -1, {source, source}, HostPages::kShared);
  poor.reset();
  if (world_.size() > 1) {
    EXPECT_THAT(pages.refusal(), HasSubstr(std::strerror(EMFILE)));
    EXPECT_EQ(warnings.text().empty(), world_.rank() != 0) << warnings.text();
  }
  EXPECT_TRUE(pages.loads(0));
  EXPECT_FALSE(pages.is_shared(0));
  EXPECT_EQ(pages.first_alike(1), 0);
  const auto host = load(pages);
  expect_loaded(*host, pages);
  EXPECT_EQ(test::shared_mappings().count, 0);
  world_.barrier();
}

// The others do not wait for pages that never come: they hear of it in the vote.
TEST_F(PageStoreTest, AHolderThatFailsIsEverybodysError) {
  const ShardSource source = shard("a");
  world_.barrier();
  if (world_.rank() == 0) test::damage_tensor(folder_ / "a.h5", "embedding.tokens.weight");
  world_.barrier();
  PageStore pages(world_, -1, {source}, HostPages::kShared);
  try {
    load(pages);
    ADD_FAILURE() << "the checkpoint is damaged";
  } catch (const VoteError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is damaged"));
  }
  world_.barrier();
}

}  // namespace
}  // namespace computron

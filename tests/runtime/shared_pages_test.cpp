#include "computron/runtime/shared_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "computron/base/digest.h"
#include "computron/checkpoint/reader.h"
#include "computron/device/device.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/page_contents.h"
#include "computron/runtime/stage_state.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ShardLayout layout_of(const std::vector<std::uint64_t>& contents, const std::vector<std::size_t>& used = {}) {
  ShardLayout layout;
  layout.page_bytes = 1024;
  for (std::size_t page = 0; page < contents.size(); ++page) {
    layout.contents.push_back(digest128(std::as_bytes(std::span(&contents[page], 1))));
    layout.used_bytes.push_back(used.empty() ? 1000 : used[page]);
    layout.uses.push_back(static_cast<PageId>(page));
  }
  return layout;
}

std::vector<PageRef> aliases(const SharedPages& shared, PageRef page) {
  std::vector<PageRef> pages;
  shared.for_each(page, [&](const PageRef& alias) { pages.push_back(alias); });
  return pages;
}

TEST(SharedPages, AreFoundByWhatTheyHold) {
  const ShardLayout a = layout_of({1, 2, 3}), b = layout_of({1, 9, 3, 2}), c = layout_of({3, 8});
  const SharedPages shared(std::vector<const ShardLayout*>{&a, &b, &c});
  EXPECT_THAT(aliases(shared, {1, 0}), ElementsAre(PageRef{0, 0}, PageRef{1, 0}));
  EXPECT_THAT(aliases(shared, {1, 3}), ElementsAre(PageRef{0, 1}, PageRef{1, 3}));
  EXPECT_THAT(aliases(shared, {2, 0}), ElementsAre(PageRef{0, 2}, PageRef{1, 2}, PageRef{2, 0}));
  EXPECT_THAT(aliases(shared, {2, 1}), ElementsAre(PageRef{2, 1}));
  EXPECT_EQ(shared.first({2, 0}), (PageRef{0, 2}));
  EXPECT_EQ(shared.sets(), 2);
  EXPECT_THAT(shared.models_of(shared.set_of({0, 0})), ElementsAre(0, 1));
  EXPECT_EQ(shared.set_of({0, 0}), shared.set_of({1, 3}));
  EXPECT_THAT(shared.models_of(shared.set_of({0, 2})), ElementsAre(0, 1, 2));
  EXPECT_EQ(shared.set_of({1, 1}), SharedPages::kAlone);
  EXPECT_EQ(shared.sets_of(2).size(), 1u);
  EXPECT_TRUE(shared.has(0, {2, 0}));
  EXPECT_FALSE(shared.has(2, {0, 0}));
}

TEST(SharedPages, OfAModelOneOfEqualPagesIsTheOthersToo) {
  const ShardLayout a = layout_of({5, 5}), b = layout_of({5, 5, 6});
  const SharedPages shared(std::vector<const ShardLayout*>{&a, &b});
  EXPECT_THAT(aliases(shared, {0, 0}), ElementsAre(PageRef{0, 0}, PageRef{1, 0}));
  EXPECT_THAT(aliases(shared, {1, 1}), ElementsAre(PageRef{1, 1}));
}

TEST(SharedPages, NobodySharesWhereNobodyTells) {
  ShardLayout a = layout_of({1, 2}), b = layout_of({1, 2});
  a.contents.clear();
  const SharedPages one_tells(std::vector<const ShardLayout*>{&a, &b}), other_size([&] {
    const static ShardLayout c = layout_of({1, 2}), d = layout_of({1, 2}, {1000, 999});
    return std::vector<const ShardLayout*>{&c, &d};
  }());
  EXPECT_EQ(one_tells.sets(), 0);
  EXPECT_THAT(one_tells.sets_of(0), IsEmpty());
  EXPECT_THAT(aliases(other_size, {0, 1}), ElementsAre(PageRef{0, 1}));
}

TEST(SharedPages, LieInOneFrameOfAStage) {
  const ShardLayout a = layout_of({1, 2}), b = layout_of({7, 2, 1});
  StageState state({&a, &b}, /*frames=*/4), other({&a, &b}, 4);
  state.place({.model = 1, .page = 2, .frame = 3, .after = {}});
  EXPECT_EQ(state.frame_of(0, 0), 3u);
  EXPECT_EQ(state.resident_pages(0), 1);
  EXPECT_EQ(state.owner(3).model, 0u);
  EXPECT_EQ(state.owner(3).index, 0u);
  EXPECT_THROW(state.place({.model = 0, .page = 0, .frame = 2, .after = {}}), Error) << "it is there";
  other.place({.model = 0, .page = 0, .frame = 3, .after = {}});
  EXPECT_EQ(state.digest(), other.digest()) << "whoever is named";
  state.place({.model = 1, .page = 0, .frame = 3, .after = {}});
  EXPECT_EQ(state.frame_of(0, 0), kNoFrame);
  EXPECT_EQ(state.frame_of(1, 2), kNoFrame);
  EXPECT_EQ(state.resident_pages(1), 1);
}

// --- What pages hold --------------------------------------------------------------------------------------------

class PageContents : public ::testing::Test {
 protected:
  ~PageContents() override { std::filesystem::remove_all(folder_); }

  struct Model {
    CheckpointIndex index;
    ShardLayout layout;
    std::vector<std::unique_ptr<HostStore>> ranks;  // [t]
  };
  std::unique_ptr<Model> load(const std::string& name, int tp) {
    auto model = std::make_unique<Model>();
    model->index = read_checkpoint_index(folder_ / name);
    const ModelConfig config = ModelConfig::from_json(model->index.config_json);
    const ShardPlan plan = ShardPlan::make(config, {tp, 1}, /*stage=*/0);
    model->layout = ShardLayout::make(plan, ops_->weight_format(), WeightTypes(config, model->index), 1 << 20);
    model->layout.contents = page_contents(model->index, model->layout, tp);
    for (int t = 0; t < tp; ++t) {
      model->ranks.push_back(std::make_unique<HostStore>(*device_));
      model->ranks.back()->load(model->index, name, model->layout, t, ops_->weight_format(), /*threads=*/1);
    }
    return model;
  }
  static bool equal_on(int t, const Model& a, const Model& b, PageId page) {
    const HostPage of_a = a.ranks[t]->page(0, page), of_b = b.ranks[t]->page(0, page);
    return of_a.bytes == of_b.bytes && std::memcmp(of_a.data, of_b.data, of_a.bytes) == 0;
  }
  // Pages of equal contents hold equal bytes on all ranks, and, where the bytes changed lie in chunks of their own, the
  // other way round. Returns how many are equal.
  static int expect_told_apart(const Model& a, const Model& b) {
    int equal = 0;
    const auto pages = static_cast<PageId>(std::min(a.layout.pages(), b.layout.pages()));
    for (PageId page = 0; page < pages; ++page) {
      bool same = true;
      for (int t = 0; t < static_cast<int>(a.ranks.size()); ++t) same &= equal_on(t, a, b, page);
      EXPECT_EQ(a.layout.contents[page] == b.layout.contents[page], same) << "page " << page;
      equal += same ? 1 : 0;
    }
    return equal;
  }

  std::filesystem::path folder_ = [] {
    const auto folder = std::filesystem::temp_directory_path() / ("page_contents." + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    return folder;
  }();
  std::unique_ptr<Device> device_ = make_cpu_device({});
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_);
};

const test::TinyModel kTiny = {.layers = 3, .heads = 8, .head_dim = 32, .ffn = 2048, .vocab = 2000, .seed = 5};

TEST_F(PageContents, OfAVariantWithAnotherLayerAreEqualButForThatLayer) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ModelConfig config = test::opt_config(kTiny);
    test::write_random_checkpoint(folder_ / "base.h5", config, dtype, 5);
    test::write_variant_checkpoint(
        folder_ / "tuned.h5", config, dtype, 5, [](const std::string& name) { return name.starts_with("layers.2."); },
        6);
    for (const int tp : {1, 2, 4}) {
      const auto base = load("base.h5", tp), tuned = load("tuned.h5", tp);
      const int equal = expect_told_apart(*base, *tuned);
      EXPECT_GT(equal, base->layout.pages() / 3);
      EXPECT_LT(equal, base->layout.pages());
    }
  }
}

// The first row of 2048 is in rank 0's slice, and in a chunk of its own file that no other rank reads.
TEST_F(PageContents, ThatDifferOnOneRankAloneDiffer) {
  const ModelConfig config = test::opt_config(kTiny);
  test::write_random_checkpoint(folder_ / "base.h5", config, DType::kF32, 5);
  test::write_poisoned_checkpoint(folder_ / "row.h5", config, DType::kF32, 5, "layers.1.mlp.up.weight", 0);
  const auto base = load("base.h5", 2), row = load("row.h5", 2);
  int on_one_alone = 0, told = 0;
  for (PageId page = 0; page < static_cast<PageId>(base->layout.pages()); ++page) {
    on_one_alone += equal_on(1, *base, *row, page) && !equal_on(0, *base, *row, page);
    told += base->layout.contents[page] != row->layout.contents[page];
    EXPECT_TRUE(equal_on(0, *base, *row, page) || base->layout.contents[page] != row->layout.contents[page]);
  }
  EXPECT_EQ(on_one_alone, 1);
  EXPECT_GE(told, 1);
  EXPECT_LE(told, 5) << "the pages of a chunk of a megabyte";
}

// The layers lie in the same places of their pages, whatever the embedding.
TEST_F(PageContents, OfLayersAreEqualBehindMoreWords) {
  test::TinyModel more_words = kTiny;
  more_words.vocab += 2;
  test::write_tiny_checkpoint(folder_ / "base.h5", kTiny);
  test::write_tiny_checkpoint(folder_ / "words.h5", more_words);
  const auto base = load("base.h5", 1), words = load("words.h5", 1);
  std::set<Digest128> of_base(base->layout.contents.begin(), base->layout.contents.end());
  const auto in_base =
      std::ranges::count_if(words->layout.contents, [&](const Digest128& d) { return of_base.contains(d); });
  const std::size_t word_bytes = std::size_t{2000} * 256 * sizeof(float), page_bytes = base->layout.page_bytes;
  const auto pages = static_cast<std::ptrdiff_t>(ceil_div(word_bytes, page_bytes));
  EXPECT_GE(in_base, base->layout.pages() - pages - 2) << "all pages of layers, and words before the last chunk";
}

}  // namespace
}  // namespace computron

// Pages of a shard in an arena: which values their blocks have, where they come to lie, and what they take.
#include "src/runtime/coded_arena.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "computron/base/parallel.h"
#include "computron/ops/ops.h"
#include "src/runtime/load_pages.h"
#include "tests/support/coded_bytes.h"

namespace computron {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::size_t kArenaPage = std::size_t{256} << 10;

ShardTensor tensor_of(TensorRole role, int same_as = -1, const WeightType& type = DType::kBF16) {
  ShardTensor tensor{};
  tensor.role = role;
  if (role == TensorRole::kGemmWeight) tensor.type = type;  // others: float32
  tensor.same_as = same_as;
  return tensor;
}

// A page of a weight, one of a table, and one that begins with a vector of a block and a half.
ShardLayout mixed_layout() {
  ShardLayout layout;
  layout.page_bytes = kArenaPage;
  layout.plan.tensors = {tensor_of(TensorRole::kGemmWeight), tensor_of(TensorRole::kTable),
                         tensor_of(TensorRole::kVector), tensor_of(TensorRole::kGemmWeight),
                         tensor_of(TensorRole::kTable, /*same_as=*/0)};
  const auto panel = [](PageId page, std::size_t offset) {
    return PanelPlace{.use = page, .page = page, .offset = offset, .row_begin = 0, .rows = 1};
  };
  layout.tensors = {{.panels = {panel(0, 0), panel(0, 3 * kCodedBlockBytes)}, .groups = {}},
                    {.panels = {panel(1, 0)}, .groups = {}},
                    {.panels = {panel(2, 0)}, .groups = {}},
                    {.panels = {panel(2, kCodedBlockBytes * 3 / 2)}, .groups = {}},
                    {.panels = {panel(0, 0)}, .groups = {}}};
  layout.used_bytes = {4 * kCodedBlockBytes, kCodedBlockBytes + 1, 4 * kCodedBlockBytes};
  return layout;
}

TEST(BlockEncodings, FollowFromTheLayout) {
  const auto codes = block_encodings(mixed_layout());
  ASSERT_EQ(codes.size(), 3u);
  EXPECT_THAT(codes[0],
              ElementsAre(BlockEncoding::kBf16, BlockEncoding::kBf16, BlockEncoding::kBf16, BlockEncoding::kBf16));
  EXPECT_THAT(codes[1], ElementsAre(BlockEncoding::kF32, BlockEncoding::kF32));
  EXPECT_THAT(codes[2],
              ElementsAre(BlockEncoding::kF32, BlockEncoding::kRaw, BlockEncoding::kBf16, BlockEncoding::kBf16));
}

TEST(BlockEncodings, OfQuantisedWeightsAreRaw) {
  ShardLayout layout = mixed_layout();
  layout.plan.tensors[3].type = {DType::kBF16, DType::kInt8, DType::kBF16, 32};
  const auto codes = block_encodings(layout);
  EXPECT_THAT(codes[0], Each(BlockEncoding::kBf16));
  EXPECT_THAT(codes[2],
              ElementsAre(BlockEncoding::kF32, BlockEncoding::kRaw, BlockEncoding::kRaw, BlockEncoding::kRaw));
}

TEST(BlockEncodings, OfAPageThatNobodyDescribesAreRaw) {
  ShardLayout layout;
  layout.used_bytes = {2 * kCodedBlockBytes};
  EXPECT_THAT(block_encodings(layout), ElementsAre(ElementsAre(BlockEncoding::kRaw, BlockEncoding::kRaw)));
}

class CodedArenaTest : public testing::Test {
 protected:
  static constexpr int kPages = 40, kThreads = 3;
  CodedArenaTest() {
    layout_.page_bytes = kArenaPage;
    layout_.plan.tensors = {tensor_of(TensorRole::kGemmWeight)};
    layout_.tensors.resize(1);
    for (PageId page = 0; page < kPages; ++page) {
      layout_.used_bytes.push_back(kArenaPage - 4096 * (page % 3));
      layout_.tensors[0].panels.push_back({.use = page, .page = page, .offset = 0, .row_begin = 0, .rows = 1});
    }
  }
  std::vector<std::byte> bytes_of(PageId page) const {
    if (!is_random(page)) return test::weights_and_others(layout_.used_bytes[page], page);
    std::vector<std::byte> random(layout_.used_bytes[page]);
    for (std::size_t i = 0; i < random.size(); ++i) random[i] = static_cast<std::byte>(hash_tuple(page, i));
    return random;
  }
  static bool is_random(PageId page) { return page % 5 == 4; }

  ModelId add(HostStore& host) const {
    const auto fill = [&](std::byte* pages, const std::vector<std::size_t>& offsets) {
      for (PageId page = 0; page < kPages; ++page) std::ranges::copy(bytes_of(page), pages + offsets[page]);
    };
    return host.add(layout_, "model", fill, kThreads);
  }

  std::unique_ptr<Device> device_ = make_cpu_device({});
  ShardLayout layout_;
};

TEST_F(CodedArenaTest, PagesComeBackAndThoseThatDoNotGainStayRaw) {
  HostStore host(*device_, PageCoding::kCoded);
  const ModelId model = add(host);
  std::size_t bytes = 0;
  for (PageId page = 0; page < kPages; ++page) {
    const HostPage found = host.page(model, page);
    EXPECT_EQ(found.coded, !is_random(page));
    EXPECT_EQ(found.bytes, layout_.used_bytes[page]);
    EXPECT_EQ(found.link_bytes, host.page_link_bytes(model, page));
    EXPECT_EQ(found.link_bytes == found.bytes, is_random(page));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found.data) % 64, 0u);
    EXPECT_EQ(host.page_digest(model, page), page_digest(bytes_of(page)));
    ASSERT_EQ(test::decoded(found), bytes_of(page)) << page;
    const auto memory = host.memory(model);
    EXPECT_LE(found.data + found.link_bytes + (found.coded ? kCodedPadding : 0), memory.data() + memory.size());
    bytes += found.link_bytes;
  }
  EXPECT_LE(host.memory(model).size(), bytes + kPages * 128u);
}

// No two pages overlap, whoever adds them.
TEST_F(CodedArenaTest, ThreadsFillItTogether) {
  const std::size_t raw = HostStore::bytes_of(layout_);
  const auto memory = device_->reserve_host(raw, "test pages");
  std::vector<StoredPage> stored(kPages);
  CodedArena arena(layout_, "model", *memory, /*begin=*/4096, stored, kThreads);
  std::vector<LoadTimes> times(kThreads);
  parallel_for(kPages, kThreads, [&](int thread, std::size_t page) {
    StagingArea area(layout_.used_bytes[page], "a page");
    std::ranges::copy(bytes_of(static_cast<PageId>(page)), area.data());
    arena.add(static_cast<PageId>(page), {area.data(), area.bytes()}, thread, times[static_cast<std::size_t>(thread)]);
  });
  memory->trim(arena.end());
  std::ranges::sort(stored, {}, &StoredPage::offset);
  EXPECT_EQ(stored.front().offset, 4096u);
  for (std::size_t i = 0; i + 1 < stored.size(); ++i) {
    EXPECT_LE(stored[i].offset + stored[i].link_bytes, stored[i + 1].offset);
  }
  EXPECT_EQ(memory->bytes(), arena.end());
}

// Memory that changes between what was written and when it is read again.
class FailingMemory final : public HostBuffer {
 public:
  explicit FailingMemory(std::size_t bytes) : area_(bytes, "pages") {}
  std::byte* data() const override {
    if (++asked_ == 2) area_.data()[damaged_at] ^= std::byte{4};
    return area_.data();
  }
  std::size_t bytes() const override { return area_.bytes(); }
  void make_read_only() override {}

  std::size_t damaged_at = 0;

 private:
  StagingArea area_;
  mutable int asked_ = 0;
};

// No raw page goes before what is kept of it has been decoded and found right.
TEST_F(CodedArenaTest, APageThatDoesNotComeBackEndsTheLoad) {
  for (const PageId page : {PageId{0}, PageId{4}}) {  // a coded one, and one that stays raw
    FailingMemory memory(HostStore::bytes_of(layout_));
    memory.damaged_at = 100 * (page + 1);
    std::vector<StoredPage> stored(kPages);
    CodedArena arena(layout_, "model", memory, /*begin=*/0, stored, /*threads=*/1);
    StagingArea raw(layout_.used_bytes[page], "a page");
    std::ranges::copy(bytes_of(page), raw.data());
    LoadTimes times;
    try {
      arena.add(page, {raw.data(), raw.bytes()}, /*thread=*/0, times);
      FAIL() << "page " << page << " was kept though it is another";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("page {} of model model", page)));
    }
  }
}

// More addresses than there is memory.
TEST_F(CodedArenaTest, ReservesMoreThanThereIs) {
  const std::size_t terabyte = std::size_t{1} << 40;
  const auto memory = device_->reserve_host(terabyte, "pages that take less");
  ASSERT_TRUE(memory->populate(0, 1 << 20));
  memory->data()[5] = std::byte{1};
  memory->trim(1 << 20);
  EXPECT_EQ(memory->bytes(), std::size_t{1} << 20);
  memory->make_read_only();
  EXPECT_EQ(memory->data()[5], std::byte{1});
}

// As many slots as pages that are incomplete at once, whatever is left of those that had them before.
TEST_F(CodedArenaTest, SlotsOfCompletePagesAreZeroAgainForOthers) {
  for (const std::size_t largest : {kArenaPage, std::size_t{5} << 20}) {
    for (PageId page = 0; page < kPages; ++page) layout_.used_bytes[page] = largest - 4096 * (page % 2);
    StagedPages staged(layout_, "model");
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (PageId page = thread; page < kPages; page += kThreads) {
          const std::size_t used = layout_.used_bytes[page];
          staged.touch(page, used / 2, used / 2 + 100);
          std::fill_n(staged.at(page) + used / 2, 100, std::byte{1});
          staged.touch(page, 0, used);
          const std::span there(staged.at(page), used);
          EXPECT_EQ(std::ranges::count(there, std::byte{0}), static_cast<std::ptrdiff_t>(used - 100)) << page;
          std::ranges::fill(there, std::byte{0xFF});
          staged.release(page);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(staged.slots(), std::size_t{kThreads});
  }
}

TEST_F(CodedArenaTest, StagingIsATensorThatComesLastAndPagesOfThreads) {
  const std::size_t pages_of_threads = HostStore::staging_bytes(layout_, 2);
  EXPECT_EQ(pages_of_threads, 2 * (kArenaPage + most_coded_bytes(kArenaPage)));
  layout_.plan.tensors[0].parts.emplace_back().transposed = true;
  EXPECT_EQ(HostStore::staging_bytes(layout_, 2), pages_of_threads + layout_.total_used_bytes());
}

}  // namespace
}  // namespace computron

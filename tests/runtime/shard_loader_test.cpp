// Loading a checkpoint: whatever the cut of tensors into work items, over threads and over ranks, a page holds the
// bytes that packing each slice at once gives.
#include "src/runtime/shard_loader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "computron/base/digest.h"
#include "tests/runtime/shared_mappings.h"
#include "tests/support/coded_bytes.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kPageBytes = std::size_t{1} << 20;

// Rows of 300 elements, which no digest chunk holds a whole number of; in bfloat16 chunks of the transposed weight
// begin in the middle of a pair of columns. Heads, units and vocabulary are padded at tp 4, and there the last rank has
// no head of its own.
constexpr int kVocab = 5003;
const test::TinyModel kModel = {.layers = 1, .heads = 6, .head_dim = 50, .ffn = 2101, .vocab = kVocab, .seed = 8};

class Checkpoint {
 public:
  explicit Checkpoint(DType dtype, test::TinyModel model = kModel)
      : path_(std::filesystem::temp_directory_path() / ("shard_loader_test." + std::to_string(getpid()) + ".h5")) {
    model.dtype = dtype;
    test::write_tiny_checkpoint(path_, model);
  }
  ~Checkpoint() { std::filesystem::remove(path_); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::string& path() const { return path_; }
  CheckpointIndex index() const { return read_checkpoint_index(path_); }

 private:
  std::string path_;
};

std::vector<std::byte> stored_bytes(const TensorReader& reader, const TensorEntry& entry) {
  std::vector<std::byte> all;
  reader.read(entry, 0, entry.bytes, entry.bytes,
              [&](std::size_t, auto piece) { all.insert(all.end(), piece.begin(), piece.end()); });
  return all;
}

// In the type that lies in pages, one by one.
std::vector<std::byte> kept_bytes(const std::vector<std::byte>& stored, DType from, DType to) {
  if (from == to) return stored;
  std::vector<std::byte> kept;
  for (std::size_t i = 0; i < stored.size(); i += 2) {
    std::uint16_t bits;
    std::memcpy(&bits, &stored[i], 2);
    const float value = from == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
    kept.resize(kept.size() + 4);
    std::memcpy(&kept[kept.size() - 4], &value, 4);
  }
  return kept;
}

class ShardLoaderTest : public testing::Test {
 protected:
  ShardLayout layout_of(const CheckpointIndex& index, int tp, DType kept, std::size_t page_bytes = kPageBytes) const {
    const ShardPlan plan = ShardPlan::make(ModelConfig::from_json(index.config_json), {tp, 1}, /*stage=*/0);
    return ShardLayout::make(plan, format_, kept, page_bytes);
  }

  // The layout's pages with every slice packed in one go.
  std::vector<std::vector<std::byte>> expected_pages(const CheckpointIndex& index, const ShardLayout& layout,
                                                     int t) const {
    std::vector<std::vector<std::byte>> pages;
    for (const std::size_t used : layout.used_bytes) pages.emplace_back(used);
    const TensorReader reader(index);
    for (std::size_t i = 0; i < layout.plan.tensors.size(); ++i) {
      const ShardTensor& tensor = layout.plan.tensors[i];
      if (tensor.same_as >= 0) continue;
      const bool packed = tensor.role == TensorRole::kGemmWeight;
      for (const TensorPart& part : tensor.parts) {
        const TensorEntry& entry = index.tensors.at(part.source);
        const DType kept = packed ? tensor.type.values : DType::kF32;
        const std::vector<std::byte> all = kept_bytes(stored_bytes(reader, entry), entry.dtype, kept);
        const std::size_t row_bytes = all.size() / part.total, size = size_of(kept), width = row_bytes / size;
        std::vector<std::byte> slice_bytes;
        for (const PartSlice& s : part.slices(t)) {
          slice_bytes.insert(slice_bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(s.begin * row_bytes),
                             all.begin() + static_cast<std::ptrdiff_t>(s.end * row_bytes));
        }
        const std::byte* slice = slice_bytes.data();
        const int extent = static_cast<int>(slice_bytes.size() / row_bytes);
        const int rows = part.transposed ? static_cast<int>(width) : extent;
        const int columns = part.transposed ? extent : static_cast<int>(width);
        for (const PanelPlace& panel : layout.tensors[i].panels) {
          const int begin = std::max(panel.row_begin, part.row);
          const int end = std::min(panel.row_begin + panel.rows, part.row + rows);
          if (begin >= end || columns == 0) continue;
          std::byte* at = pages[panel.page].data() + panel.offset;
          const std::size_t first = (begin - part.row) * (part.transposed ? size : row_bytes);
          if (packed) {
            format_.pack(at, tensor.columns, kept, begin - panel.row_begin, end - begin, 0, columns, slice + first,
                         part.transposed ? 1 : width, part.transposed ? width : 1);
          } else {
            std::copy_n(slice + first, (end - begin) * row_bytes, at + (begin - panel.row_begin) * row_bytes);
          }
        }
      }
    }
    return pages;
  }

  // The pages take what that type takes coded, in memory that ends with the last of them.
  static void expect_gains(const HostStore& host, const ShardLayout& layout, DType kept) {
    std::size_t coded = 0;
    for (PageId page = 0; page < layout.used_bytes.size(); ++page) coded += host.page_link_bytes(0, page);
    const double part = static_cast<double>(coded) / static_cast<double>(layout.total_used_bytes());
    EXPECT_LT(part, kept == DType::kBF16 ? 0.82 : 0.95);  // tables and vectors are float32
    EXPECT_LE(host.memory(0).size(), coded + layout.used_bytes.size() * 128);
    EXPECT_LT(test::resident_bytes_at(host.memory(0).data()), coded + (std::size_t{2} << 20));
  }

  std::unique_ptr<Device> device_ = make_cpu_device({});
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_);
  const WeightFormat& format_ = ops_->weight_format();
};

TEST_F(ShardLoaderTest, PagesHoldWhatPackingAtOnceGives) {
  for (const auto& [stored, kept] :
       {std::pair(DType::kF32, DType::kF32), std::pair(DType::kBF16, DType::kBF16), std::pair(DType::kF16, DType::kF16),
        std::pair(DType::kBF16, DType::kF32), std::pair(DType::kF16, DType::kF32)}) {
    const Checkpoint checkpoint(stored);
    const CheckpointIndex index = checkpoint.index();
    ASSERT_GT(index.tensors.at("layers.0.mlp.down.weight").digests.size(), 1u);
    for (const auto& [tp, t, threads] : {std::tuple(1, 0, 3), std::tuple(3, 0, 1), std::tuple(3, 1, 2),
                                         std::tuple(3, 2, 1), std::tuple(4, 1, 2), std::tuple(4, 3, 3)}) {
      SCOPED_TRACE(testing::Message() << name_of(stored) << " as " << name_of(kept) << ", tp " << tp << ", rank " << t);
      const ShardLayout layout = layout_of(index, tp, kept);
      const auto expected = expected_pages(index, layout, t);
      HostStore host(*device_), coding_host(*device_, PageCoding::kCoded);
      LoadTimes times, coding_times;
      const ModelId model = host.load(index, "model", layout, t, format_, threads, &times);
      coding_host.load(index, "model", layout, t, format_, threads, &coding_times);
      for (PageId page = 0; page < expected.size(); ++page) {
        ASSERT_FALSE(host.page(model, page).coded);
        ASSERT_EQ(test::decoded(host.page(model, page)), expected[page]) << "page " << page;
        ASSERT_EQ(test::decoded(coding_host.page(model, page)), expected[page]) << "page " << page;
        EXPECT_EQ(host.page_digest(model, page), page_digest(expected[page])) << "page " << page;
        EXPECT_EQ(coding_host.page_digest(model, page), page_digest(expected[page])) << "page " << page;
      }
      expect_gains(coding_host, layout, kept);
      EXPECT_EQ(times.widen_s > 0, stored != DType::kF32);  // vectors always
      EXPECT_GT(std::min({times.read_s, times.verify_s, times.memory_s, times.pack_s, times.digest_s}), 0);
      EXPECT_EQ(times.encode_s + times.check_s, 0);
      EXPECT_GT(std::min(coding_times.encode_s, coding_times.check_s), 0);
    }
  }
}

// The codes of a tensor as a byte each.
std::vector<std::byte> code_bytes(const TensorReader& reader, const TensorEntry& entry) {
  std::vector<std::byte> stored = stored_bytes(reader, entry);
  if (!two_in_a_byte(entry.dtype)) return stored;
  std::vector<std::byte> codes;
  for (const std::byte two : stored) codes.insert(codes.end(), {two & std::byte{15}, two >> 4});
  return codes;
}

// Packs the rank's quantised weights into `pages`, row by row: its codes at once, its scales one by one.
void pack_quantised(const CheckpointIndex& index, const ShardLayout& layout, int t, const WeightFormat& format,
                    std::vector<std::vector<std::byte>>& pages) {
  const TensorReader reader(index);
  for (std::size_t i = 0; i < layout.plan.tensors.size(); ++i) {
    const ShardTensor& tensor = layout.plan.tensors[i];
    if (!tensor.type.quantised()) continue;
    for (const TensorPart& part : tensor.parts) {
      const TensorEntry& entry = index.tensors.at(part.source);
      const auto codes = code_bytes(reader, entry);
      const TensorEntry& scales_entry = index.tensors.at(scales_name(part.source));
      const auto scales = stored_bytes(reader, scales_entry);
      const std::size_t size = size_of(tensor.type.scales), width = entry.shape[1];
      const auto groups = static_cast<std::size_t>(WeightType(tensor.type).groups(tensor.columns));
      for (const PanelPlace& panel : layout.tensors[i].panels) {
        std::byte* at = pages[panel.page].data() + panel.offset;
        for (const PartSlice& s : part.slices(t)) {
          const int extent = static_cast<int>(s.end - s.begin);
          const int first = part.row + (part.transposed ? 0 : static_cast<int>(s.row));
          const int rows = part.transposed ? static_cast<int>(width) : extent;
          const int begin = std::max(panel.row_begin, first),
                    end = std::min(panel.row_begin + panel.rows, first + rows);
          for (int row = begin; row < end; ++row) {  // row `own` of those that are stored
            const std::size_t own = static_cast<std::size_t>(row - first);
            const int column = part.transposed ? static_cast<int>(s.row) : 0;
            const int columns = part.transposed ? extent : static_cast<int>(width);
            const std::size_t code = part.transposed ? s.begin * width + own : (s.begin + own) * width;
            format.pack(at, tensor.columns, tensor.type, row - panel.row_begin, 1, column, columns, &codes[code], 1,
                        part.transposed ? width : 1);
            if (tensor.type.has_factors()) {
              format.pack_factor(at, tensor.columns, tensor.type, row - panel.row_begin, 1, scales_entry.factor);
            }
            for (int k = column; k < column + columns; k += std::min(tensor.type.group, columns)) {
              const std::size_t stored_k = part.transposed ? s.begin + static_cast<std::size_t>(k - column) : 0;
              const std::size_t scale =
                  part.transposed ? stored_k / static_cast<std::size_t>(entry.group) * width + own
                                  : (s.begin + own) * groups + static_cast<std::size_t>(k / tensor.type.group);
              format.pack_scales(at, tensor.columns, tensor.type, row - panel.row_begin, 1, k / tensor.type.group, 1,
                                 &scales[scale * size], 1, 1);
            }
          }
        }
      }
    }
  }
}

// Tensors of several pieces and chunks. At tp 4 a rank has 1040 inner units, which cuts groups of 32 into 16.
TEST_F(ShardLoaderTest, PagesHoldCodesAndScales) {
  const ModelConfig config =
      test::opt_config({.layers = 1, .heads = 5, .head_dim = 64, .ffn = 4160, .vocab = 100, .seed = 8});
  const auto folder = std::filesystem::temp_directory_path() / ("shard_loader_test." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  for (const WeightType& type :
       {WeightType(DType::kF32, DType::kInt4, DType::kBF16, 32), WeightType(DType::kF32, DType::kInt8, DType::kF32, 32),
        WeightType(DType::kF32, DType::kFp8, DType::kF16, WeightType::kWholeRow),
        WeightType(DType::kF32, DType::kFp4, DType::kE8M0, 32), WeightType(DType::kF32, DType::kFp4, DType::kE4M3, 16),
        WeightType(DType::kF32, DType::kInt8, DType::kE4M3, WeightType::kWholeRow)}) {
    test::write_quantised_pair(folder / "codes.h5", folder / "values.h5", config, type, /*seed=*/2);
    const CheckpointIndex index = read_checkpoint_index(folder / "codes.h5");
    for (const auto& [tp, t, threads] :
         {std::tuple(1, 0, 3), std::tuple(2, 1, 2), std::tuple(4, 0, 2), std::tuple(4, 3, 3)}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << ", tp " << tp << ", rank " << t);
      const ShardPlan plan = ShardPlan::make(config, {tp, 1}, /*stage=*/0);
      const ShardLayout layout = ShardLayout::make(plan, format_, WeightTypes(config, index), kPageBytes);
      HostStore host(*device_);
      const ModelId model = host.load(index, "model", layout, t, format_, threads);
      std::vector<std::vector<std::byte>> expected;
      for (const std::size_t used : layout.used_bytes) expected.emplace_back(used);
      pack_quantised(index, layout, t, format_, expected);
      for (std::size_t i = 0; i < layout.plan.tensors.size(); ++i) {
        const ShardTensor& tensor = layout.plan.tensors[i];
        if (!tensor.type.quantised()) continue;
        for (const PanelPlace& panel : layout.tensors[i].panels) {
          const std::size_t bytes = format_.panel_bytes(panel.rows, tensor.columns, tensor.type);
          EXPECT_EQ(std::memcmp(host.page(model, panel.page).data + panel.offset,
                                expected[panel.page].data() + panel.offset, bytes),
                    0)
              << tensor.name << " from row " << panel.row_begin;
        }
      }
    }
  }
  std::filesystem::remove_all(folder);
}

// The memory of a raw page is the next one's: never is all of the shard there twice. Nor where what is read becomes
// twice as long.
TEST_F(ShardLoaderTest, CodingTakesLittleBesideTheCodedPages) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  if (std::getenv("ASAN_OPTIONS") != nullptr) GTEST_SKIP() << "a sanitizer keeps memory that has been given back";
  test::TinyModel large = kModel;
  large.vocab = 300000;
  large.ffn = 256;
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(name_of(stored));
    const Checkpoint checkpoint(stored, large);
    const CheckpointIndex index = checkpoint.index();
    const ShardLayout layout = layout_of(index, /*tp=*/1, DType::kF32, kPageBytes / 8);
    HostStore host(*device_, PageCoding::kCoded);
    const std::size_t before = test::begin_peak();
    if (before == 0) GTEST_SKIP() << "this system does not tell how much memory was taken at most";
    host.load(index, "model", layout, /*t=*/0, format_, /*threads=*/2);
    const std::size_t most = test::peak_bytes() - before;
    std::size_t coded = 0;
    for (PageId page = 0; page < layout.used_bytes.size(); ++page) coded += host.page_link_bytes(0, page);
    constexpr std::size_t kThreads = 24 << 20;  // what they read, and their stacks and heaps
    EXPECT_LT(most, coded + HostStore::staging_bytes(layout, 2) + kThreads);
    EXPECT_LT(coded + HostStore::staging_bytes(layout, 2) + kThreads, coded + layout.total_used_bytes() / 3)
        << "the test says nothing";
  }
}

// Ranks that need the damaged chunk say which it is, and keep nothing; the others do not notice.
TEST_F(ShardLoaderTest, NamesADamagedChunk) {
  const Checkpoint checkpoint(DType::kF32);
  const CheckpointIndex index = checkpoint.index();
  const std::string tensor = "embedding.tokens.weight";
  test::damage_tensor(checkpoint.path(), tensor);
  const std::size_t middle = index.tensors.at(tensor).bytes / 2, row_bytes = index.tensors.at(tensor).bytes / kVocab;
  const std::size_t chunk = middle / kDigestChunkBytes;
  const ShardLayout layout = layout_of(index, /*tp=*/4, DType::kF32);
  int damaged = 0;
  HostStore host(*device_);
  for (int t = 0; t < 4; ++t) {
    const TensorPart& part = layout.plan.tensors[0].parts[0];
    const PartSlice slice = part.slices(t).at(0);
    const bool needed =
        slice.begin * row_bytes < (chunk + 1) * kDigestChunkBytes && slice.end * row_bytes > chunk * kDigestChunkBytes;
    damaged += needed;
    const int models = host.models();
    try {
      host.load(index, "model", layout, t, format_, /*threads=*/3);
      EXPECT_FALSE(needed) << t;
      EXPECT_EQ(host.models(), models + 1);
    } catch (const CheckpointError& error) {
      EXPECT_TRUE(needed) << t;
      EXPECT_EQ(host.models(), models);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(checkpoint.path()), HasSubstr(tensor), HasSubstr(fmt::format("chunk {} of", chunk))));
    }
  }
  EXPECT_GT(damaged, 0);
  EXPECT_LT(damaged, 4);
}

// Counts how often each byte was made to exist.
class CountingBuffer : public HostBuffer {
 public:
  CountingBuffer(std::size_t bytes, std::size_t room) : counts(bytes / kStep), room_(room) {}
  static constexpr std::size_t kStep = 1 << 18;
  std::byte* data() const override { return nullptr; }
  std::size_t bytes() const override { return counts.size() * kStep; }
  bool populate(std::size_t begin, std::size_t end) override {
    for (std::size_t at = begin; at < end; at += kStep) ++counts[at / kStep];
    std::this_thread::yield();
    return end <= room_;
  }
  void make_read_only() override {}

  std::vector<std::atomic<int>> counts;

 private:
  std::size_t room_;
};

TEST(FirstTouch, MakesEachPartOnceAndWaitsForOthers) {
  constexpr std::size_t kBytes = 57 * CountingBuffer::kStep;  // the last part is short
  CountingBuffer buffer(kBytes, kBytes);
  FirstTouch memory(buffer);
  std::vector<std::jthread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t at = thread * 1000; at < kBytes; at += CountingBuffer::kStep) {
        memory.touch(at, std::min(at + 3 * CountingBuffer::kStep, kBytes));
        EXPECT_EQ(buffer.counts[at / CountingBuffer::kStep], 1);
      }
    });
  }
  threads.clear();
  for (const auto& count : buffer.counts) EXPECT_EQ(count, 1);
}

TEST(FirstTouch, SaysThatMemoryRanOut) {
  constexpr std::size_t kBytes = 64 * CountingBuffer::kStep;
  CountingBuffer buffer(kBytes, kBytes / 2);
  FirstTouch memory(buffer);
  memory.touch(0, kBytes / 2);
  try {
    memory.touch(kBytes / 2, kBytes);
    FAIL() << "there is no such memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kSystem);
    EXPECT_THAT(error.what(), HasSubstr("memory"));
  }
}

}  // namespace
}  // namespace computron

// Coded pages on their way from host memory into frames: the same bytes as raw ones, fewer on the link; and what
// happens when they are damaged where they lie.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>

#include "src/device/cpu/coded_pieces.h"
#include "src/device/cpu/emulated_link.h"
#include "tests/device/device_support.h"
#include "tests/support/coded_bytes.h"
#include "tests/support/flip_bit.h"

namespace computron {
namespace {

using test::CodedBytes;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of the CPU's copy stream

// Of a page, aligned as frames are, between bytes that nothing may write.
class GuardedFrame {
 public:
  explicit GuardedFrame(std::size_t bytes)
      : bytes_(bytes), memory_(static_cast<std::byte*>(operator new(bytes + 2 * kGuard, kAlignment))) {
    std::fill_n(memory_.get(), bytes + 2 * kGuard, kGuarded);
  }
  std::byte* data() const { return memory_.get() + kGuard; }
  std::vector<std::byte> content() const { return {data(), data() + bytes_}; }
  void expect_guarded() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuarded; };
    ASSERT_TRUE(std::all_of(memory_.get(), data(), is_guard));
    ASSERT_TRUE(std::all_of(data() + bytes_, data() + bytes_ + kGuard, is_guard));
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kGuarded{0xc3};
  struct Free {
    void operator()(std::byte* memory) const { operator delete(memory, kAlignment); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

TEST(CodedPieces, AddUpToThePageAndEndWithBlocks) {
  for (const std::size_t bytes :
       {std::size_t{100}, std::size_t{8192}, std::size_t{5} << 20, (std::size_t{3} << 20) + 77}) {
    const auto page = test::weights_and_others(bytes, bytes);
    const CodedBytes coded(page, BlockEncoding::kBf16);
    std::size_t block = 0, crossed = 0;
    for (CodedPieces rest(coded.bytes(), bytes, kPieceBytes); !rest.at_end();) {
      const CodedPieces::Piece piece = rest.next();
      EXPECT_EQ(piece.begin, block);
      EXPECT_GT(piece.end, piece.begin);
      crossed += piece.link_bytes;
      block = piece.end;
      if (rest.at_end()) break;
      EXPECT_EQ(crossed, kernels::coded_offset(coded.bytes(), block));
      EXPECT_GE(piece.link_bytes, kPieceBytes);
      EXPECT_LT(piece.link_bytes, kPieceBytes + kCodedBlockBytes + 16);
    }
    EXPECT_EQ(block, coded_blocks(bytes));
    EXPECT_EQ(crossed, coded.bytes().size());
  }
}

// A link's deadlines follow from what it is charged.
TEST(CodedPieces, TakeTheTimeOfTheirCodedBytes) {
  constexpr double kRate = 1e9;
  const auto page = test::weights_and_others(std::size_t{6} << 20, 3);
  const CodedBytes coded(page, BlockEncoding::kBf16);
  EmulatedLink link(kRate);
  double deadline_s = 0;
  for (CodedPieces rest(coded.bytes(), page.size(), kPieceBytes); !rest.at_end();) {
    deadline_s = link.deadline_of(rest.next().link_bytes, 10.0, 10.0);
  }
  EXPECT_NEAR(deadline_s - 10.0, static_cast<double>(coded.bytes().size()) / kRate, 1e-9);
  EXPECT_LT(coded.bytes().size(), page.size() * 3 / 4);
}

TEST(CodedPieces, OfADamagedDirectoryAddUpAllTheSame) {
  const auto page = test::weights_and_others(std::size_t{3} << 20, 4);
  for (int trial = 0; trial < 50; ++trial) {
    const CodedBytes coded(page, BlockEncoding::kBf16);
    const std::size_t directory = coded_blocks(page.size()) * 4;
    for (int flip = 0; flip < 5; ++flip) test::flip_some_bit(coded.bytes().first(directory), hash_tuple(trial, flip));
    std::size_t crossed = 0;
    for (CodedPieces rest(coded.bytes(), page.size(), kPieceBytes); !rest.at_end();) crossed += rest.next().link_bytes;
    EXPECT_EQ(crossed, coded.bytes().size());
  }
}

class CodedFetch : public testing::TestWithParam<double> {  // link_gb_per_s
 protected:
  static std::string error_of_stream(CpuBench& bench) try {
    bench.copy->synchronize();
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    return error.what();
  }
};

TEST_P(CodedFetch, BringsTheSameBytesAndCountsBoth) {
  CpuBench bench({.link_gb_per_s = GetParam()});
  std::size_t link_bytes = 0, frame_bytes = 0;
  for (const std::size_t bytes : {1, 64, 8191, 8192, 8193, 40001, 1 << 20, (3 << 20) + 1234}) {
    const auto page = test::weights_and_others(bytes, bytes);
    const CodedBytes coded(page, BlockEncoding::kBf16);
    const GuardedFrame frame(bytes);
    bench.copy->fetch(frame.data(), coded.page(), {"opt", 1}, page_digest(page));
    bench.copy->synchronize();
    ASSERT_EQ(frame.content(), page) << bytes;
    ASSERT_NO_FATAL_FAILURE(frame.expect_guarded());
    link_bytes += coded.bytes().size();
    frame_bytes += bytes;
  }
  EXPECT_EQ(bench.copy->statistics().bytes, link_bytes);
  EXPECT_EQ(bench.copy->statistics().frame_bytes, frame_bytes);
  EXPECT_LT(link_bytes, frame_bytes);
}

TEST_P(CodedFetch, MendsWhatTheLinkDamages) {
  const auto page = test::weights_and_others(40001, 5);
  const CodedBytes coded(page, BlockEncoding::kBf16);
  const auto damage = [](std::uint64_t copy, int attempt, std::span<std::byte> written) {
    if (attempt == 0) test::flip_some_bit(written, copy);
  };
  CpuBench bench({.link_gb_per_s = GetParam(), .copied = damage});
  const GuardedFrame frame(page.size());
  for (std::uint32_t number = 0; number < 50; ++number) {
    bench.copy->fetch(frame.data(), coded.page(), {"opt", number}, page_digest(page));
    bench.copy->synchronize();
    ASSERT_EQ(frame.content(), page);
  }
  EXPECT_EQ(bench.copy->statistics().pages_refetched, 50u);
  EXPECT_EQ(bench.copy->statistics().bytes, 2 * 50 * coded.bytes().size());
}

// Otherwise each time: the page in host memory is whole.
TEST_P(CodedFetch, DoesNotBlameHostMemoryForTheLink) {
  const auto page = test::weights_and_others(40001, 5);
  const CodedBytes coded(page, BlockEncoding::kBf16);
  const auto damage = [](std::uint64_t, int attempt, std::span<std::byte> written) {
    test::flip_some_bit(written, 1000u * static_cast<unsigned>(attempt + 1));
  };
  CpuBench bench({.link_gb_per_s = GetParam(), .copied = damage});
  const GuardedFrame frame(page.size());
  bench.copy->fetch(frame.data(), coded.page(), {"opt", 3}, page_digest(page));
  EXPECT_THAT(error_of_stream(bench), AllOf(HasSubstr("page 3 of model opt "), HasSubstr("digest is wrong"),
                                            testing::Not(HasSubstr("host memory"))));
}

// In every trial: what is decoded is equal, or somebody says which page it is and that no copy mends it.
TEST_P(CodedFetch, FindsWhatIsDamagedInHostMemory) {
  int found = 0, equal = 0;
  const auto page = test::weights_and_others(24576 + 100, 6);
  for (std::uint32_t trial = 0; trial < 400; ++trial) {
    const CodedBytes coded(page, BlockEncoding::kBf16);
    // Half of the trials in the directory and the beginning, where less is values.
    test::flip_some_bit(trial % 2 == 0 ? coded.bytes() : coded.bytes().first(64), hash_tuple(trial, 1));
    CpuBench bench({.link_gb_per_s = GetParam()});
    const GuardedFrame frame(page.size());
    bench.copy->fetch(frame.data(), coded.page(), {"opt", trial}, page_digest(page));
    const std::string error = error_of_stream(bench);
    ASSERT_NO_FATAL_FAILURE(frame.expect_guarded());
    if (error.empty()) {
      ASSERT_EQ(frame.content(), page) << trial;
      ++equal;
      continue;
    }
    ++found;
    EXPECT_THAT(error, AllOf(HasSubstr(fmt::format("page {} of model opt ", trial)), HasSubstr("in host memory"),
                             HasSubstr("cannot mend")));
    EXPECT_EQ(bench.copy->statistics().pages_verified, 0u);
  }
  EXPECT_GT(found, 200);
  RecordProperty("equal", equal);
}

// What looks damaged is an error all the same; whatever else it holds, nothing but the frame is written.
TEST_P(CodedFetch, WithoutADigestStaysInItsFrame) {
  const auto page = test::weights_and_others(40001, 7);
  int refused = 0;
  for (std::uint32_t trial = 0; trial < 400; ++trial) {
    const CodedBytes coded(page, BlockEncoding::kBf16);
    for (std::uint32_t flip = 0; flip <= trial % 40; ++flip) {
      test::flip_some_bit(coded.bytes().first(trial % 3 == 0 ? 64 : coded.bytes().size()), hash_tuple(trial, flip));
    }
    CpuBench bench({.link_gb_per_s = GetParam()});
    const GuardedFrame frame(page.size());
    bench.copy->fetch(frame.data(), coded.page(), {"opt", trial}, std::nullopt);
    const std::string error = error_of_stream(bench);
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr("in host memory"));
    }
    refused += !error.empty();
    ASSERT_NO_FATAL_FAILURE(frame.expect_guarded());
  }
  EXPECT_GT(refused, 50);
}

INSTANTIATE_TEST_SUITE_P(Links, CodedFetch, testing::Values(0.0, 2.0), [](const auto& test) {
  return test.param == 0 ? std::string("Free") : std::string("Emulated");
});

TEST(CodingRates, AreMeasuredAndThoseOfTheEmulatedLink) {
  const CodingRates emulated = make_cpu_device({.link_gb_per_s = 0.5})->measure_coding_rates();
  EXPECT_EQ(emulated.link_bytes_per_s, 0.5e9);
  const CodingRates free = make_cpu_device({})->measure_coding_rates();
  for (const double rate : {emulated.decoded_bytes_per_s, free.decoded_bytes_per_s, free.link_bytes_per_s}) {
    EXPECT_GT(rate, 1e8);
    EXPECT_LT(rate, 1e12);
  }
}

}  // namespace
}  // namespace computron

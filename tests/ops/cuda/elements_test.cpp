// The bodies of the GPU's elementwise kernels, run in two loops, against the CPU's operations.
#include "kernels/cuda/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/attention.h"
#include "src/ops/cuda/panel_runs.h"
#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

using namespace kernels::cuda;

// A grid of threads, one after the other.
template <class Body>
void run_grid(int rows, int columns, const Body& body) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) body(r, c);
  }
}

template <class T>
T* as(std::vector<std::byte>& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}

// The CPU's operations work on host memory as it is.
class ElementsTest : public ::testing::Test {
 protected:
  ElementsTest() {
    progress_ = std::make_unique<Progress>(IdlePolicy{});
    device_ = make_cpu_device({.threads = 1});
    stream_ = device_->make_compute_stream(*progress_);
    ops_ = make_cpu_ops(*device_);
  }
  Stream& stream() { return *stream_; }
  Ops& ops() { return *ops_; }
  static Activations view(Floats& values, int rows, int columns) {
    return {reinterpret_cast<std::byte*>(values.data()), rows, columns, DType::kF32};
  }

  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
};

// Rows of a table in three runs, the second in a place of its own; every token inside, outside and at the edges.
TEST_F(ElementsTest, EmbedTakesRowsFromWhereTheyLie) {
  constexpr int kVocab = 200, kColumns = 33, kFirst = 1000;
  const std::vector<TokenId> tokens = {1000, 1063, 1064, 1191, 1192, 1199, 999, 1200, 0};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto table = random_floats(kVocab * kColumns, 1, dtype);
    const auto bytes = bytes_of(table, dtype);
    const auto elsewhere = bytes;
    const std::size_t row_bytes = kColumns * size_of(dtype);
    const std::vector<PanelRun> runs = {{bytes.data(), nullptr, 0, 64},
                                        {elsewhere.data() + 64 * row_bytes, nullptr, 64, 128},
                                        {bytes.data() + 192 * row_bytes, nullptr, 192, 8}};
    Floats out(tokens.size() * kColumns, 7), part(out);
    with_element(dtype, [&]<class T>(T) {
      const auto embed = [&](std::span<const PanelRun> some, bool zeros, Floats& to) {
        run_grid(static_cast<int>(tokens.size()), kColumns,
                 Embed<PlainRows<T>>{
                     tokens.data(), kFirst, kVocab, zeros, kColumns, to.data(), {kColumns}, kernel_runs(some)});
      };
      embed(runs, true, out);
      embed(std::span(runs).subspan(1, 1), false, part);
    });
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const int row = tokens[i] - kFirst;
      const bool here = row >= 0 && row < kVocab, in_second = row >= 64 && row < 192;
      const auto expected = here ? row_of(table, row, kColumns) : Floats(kColumns);
      expect_same(row_of(out, static_cast<int>(i), kColumns), expected, fmt::format("token {}", tokens[i]));
      expect_same(row_of(part, static_cast<int>(i), kColumns), in_second ? expected : Floats(kColumns, 7), "part");
    }
  }
}

TEST_F(ElementsTest, RowsAreAddedAsOnCpu) {
  constexpr int kRows = 10, kColumns = 37;
  auto table = random_floats(kRows * kColumns, 1), mine = random_floats(3 * kColumns, 2), theirs = mine;
  const std::vector<std::int32_t> rows = {0, 7, 1};
  const auto* data = reinterpret_cast<const std::byte*>(table.data());
  const std::vector<TablePanel> panels = {{data, nullptr, 0, 3}, {data + 3 * kColumns * 4, nullptr, 3, 7}};
  const auto runs = merge_panels(std::span<const TablePanel>(panels), kColumns * 4);
  EXPECT_EQ(runs.size(), 1u) << "neighbours";
  run_grid(3, kColumns, AddRows{rows.data(), 2, kColumns, mine.data(), kernel_runs(runs)});
  ops().add_rows(stream(), rows, 2, {panels, kRows}, view(theirs, 3, kColumns));
  stream().synchronize();
  expect_same(mine, theirs, "add_rows");
}

TEST_F(ElementsTest, ResidualsAreAddedAsOnCpu) {
  constexpr int kRows = 5, kColumns = 61;
  auto x = random_floats(kRows * kColumns, 1), bias = random_floats(kColumns, 2);
  for (const bool with_bias : {false, true}) {
    auto mine = random_floats(kRows * kColumns, 3), theirs = mine;
    const float* b = with_bias ? bias.data() : nullptr;
    run_grid(kRows, kColumns, AddResidual{x.data(), b, kColumns, mine.data()});
    ops().add_residual(stream(), view(x, kRows, kColumns), {b, nullptr, kColumns}, view(theirs, kRows, kColumns));
    stream().synchronize();
    expect_same(mine, theirs, "add_residual");
  }
}

TEST_F(ElementsTest, RowsAreCopiedAndNarrowedAsTheHostNarrows) {
  constexpr int kColumns = 45, kFirst = 4, kCount = 20;
  auto x = random_floats(6 * kColumns, 1);
  x[5 * kColumns + kFirst] = 1e6f;  // beyond float16
  x[5 * kColumns + kFirst + 1] = INFINITY;
  const std::vector<std::int32_t> rows = {5, 0, 5, 3};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> out(4 * kCount * size_of(dtype));
    Floats expected;
    for (const int row : rows) {
      const auto begin = x.begin() + row * kColumns + kFirst;
      expected.insert(expected.end(), begin, begin + kCount);
    }
    with_element(dtype, [&]<class T>(T) {
      run_grid(4, kCount, CopyRows<float, T>{x.data(), kColumns, rows.data(), kFirst, as<T>(out), kCount});
    });
    EXPECT_EQ(out, bytes_of(expected, dtype)) << name_of(dtype);
  }
}

TEST_F(ElementsTest, GatesMatchTheCpus) {
  constexpr int kRows = 3, kColumns = 21;
  auto in = random_floats(kRows * 2 * kColumns, 1);
  for (float& v : in) v *= 8;
  for (const auto activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh, Activation::kGeluErf,
                                Activation::kSilu, Activation::kTanh, Activation::kQuickGelu}) {
    for (const float limit : {0.0f, 3.0f}) {
      const Gate gate{activation, limit, limit / 3};
      Floats mine(kRows * kColumns), theirs(kRows * kColumns);
      run_grid(kRows, kColumns, ActivateGate<float, float>{gate, in.data(), kColumns, mine.data()});
      ops().activate_gate(stream(), gate, view(in, kRows, 2 * kColumns), view(theirs, kRows, kColumns));
      stream().synchronize();
      expect_close(mine, std::vector<double>(theirs.begin(), theirs.end()), 1e-6,
                   fmt::format("activation {}, limit {}", static_cast<int>(activation), limit));
    }
  }
}

TEST_F(ElementsTest, FourGatesAtOnceHaveTheSameBits) {
  constexpr int kRows = 3, kColumns = 20;
  const auto in = random_floats(kRows * 2 * kColumns, 1);
  const Gate gate{Activation::kSilu, 0.5f, 0.25f};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<std::byte> one_by_one(kRows * kColumns * size_of(dtype)), fours(one_by_one);
    with_element(dtype, [&]<class T>(T) {
      const ActivateGate<float, T> each{gate, in.data(), kColumns, as<T>(one_by_one)};
      run_grid(kRows, kColumns, each);
      run_grid(kRows, kColumns / 4, ActivateGateFours<float, T>{{gate, in.data(), kColumns, as<T>(fours)}});
    });
    EXPECT_EQ(fours, one_by_one) << name_of(dtype);
  }
}

// What the library has narrowed is gated as if it had been widened first.
TEST_F(ElementsTest, NarrowGatesAreThoseOfTheirValues) {
  constexpr int kRows = 3, kColumns = 20;
  const Gate gate{Activation::kSilu, 0.5f, 0.25f};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto in = random_floats(kRows * 2 * kColumns, 1, dtype);
    auto narrow = bytes_of(in, dtype);
    std::vector<std::byte> from_wide(kRows * kColumns * size_of(dtype)), from_narrow(from_wide), fours(from_wide);
    with_element(dtype, [&]<class T>(T) {
      run_grid(kRows, kColumns, ActivateGate<float, T>{gate, in.data(), kColumns, as<T>(from_wide)});
      const ActivateGate<T, T> each{gate, as<T>(narrow), kColumns, as<T>(from_narrow)};
      run_grid(kRows, kColumns, each);
      run_grid(kRows, kColumns / 4, ActivateGateFours<T, T>{{gate, as<T>(narrow), kColumns, as<T>(fours)}});
    });
    EXPECT_EQ(from_narrow, from_wide) << name_of(dtype);
    EXPECT_EQ(fours, from_wide) << name_of(dtype);
  }
}

TEST_F(ElementsTest, PiecesOfBiasAndActivationHaveTheSameBits) {
  constexpr int kRows = 2, kColumns = 48, kFirst = 16, kCount = 24;
  const auto bias = random_floats(kColumns, 2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    auto values = random_floats(kRows * kColumns, 1, dtype);
    values[kFirst] = INFINITY;  // which the library makes of a sum that is too large for float16
    auto one_by_one = bytes_of(values, dtype), pieces = one_by_one;
    with_element(dtype, [&]<class T>(T) {
      const auto of = [&](std::vector<std::byte>& out) {
        return BiasActivate<T>{Activation::kRelu, bias.data(), kFirst, kColumns, as<T>(out)};
      };
      run_grid(kRows, kCount, of(one_by_one));
      run_grid(kRows, kCount / BiasActivatePieces<T>::kPiece, BiasActivatePieces<T>{of(pieces)});
    });
    EXPECT_EQ(pieces, one_by_one) << name_of(dtype);
  }
}

TEST_F(ElementsTest, BiasAndActivationTouchTheirColumnsOnly) {
  constexpr int kRows = 2, kColumns = 9, kFirst = 3, kCount = 4;
  auto values = random_floats(kRows * kColumns, 1), bias = random_floats(kColumns, 2);
  const auto before = values;
  run_grid(kRows, kCount, BiasActivate<float>{Activation::kRelu, bias.data(), kFirst, kColumns, values.data()});
  for (int i = 0; i < kRows * kColumns; ++i) {
    const int c = i % kColumns;
    const bool mine = c >= kFirst && c < kFirst + kCount;
    EXPECT_EQ(values[i], mine ? std::max(0.0f, before[i] + bias[c]) : before[i]) << i;
  }
}

TEST_F(ElementsTest, RowsScatterAsOnCpu) {
  constexpr int kColumns = 50;
  auto in = random_floats(3 * kColumns, 1);
  const std::vector<float> weights = {0.25f, -3.0f, 0.7f};
  for (const auto& rows : {std::vector<std::int32_t>{0, 2, 3}, {2, 0, 2}, {1, 1, 3}}) {
    auto mine = random_floats(4 * kColumns, 2), theirs = mine;
    const ScatterAdd add{in.data(), rows.data(), weights.data(), kColumns, mine.data()};
    if (rows[0] == rows[1]) {
      const std::vector<std::int32_t> begins = {0, 2, 3};
      run_grid(2, kColumns, ScatterAddRuns{add, begins.data()});
    } else {
      rows[0] < rows[1] ? run_grid(3, kColumns, add) : run_grid(1, kColumns, ScatterAddInOrder{add, 3});
    }
    ops().scatter_add(stream(), view(in, 3, kColumns), rows, weights, view(theirs, 4, kColumns));
    stream().synchronize();
    expect_same(mine, theirs, "scatter_add");
  }
}

TEST_F(ElementsTest, QueriesAndKeysTurnAsOnCpu) {
  for (const int head_dim : {6, 32}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = head_dim};
    const int half = head_dim / 2, columns = 8 * head_dim;
    const std::vector<std::int32_t> positions = {5, 0, 131071};
    const auto frequencies = random_floats(static_cast<std::size_t>(half), 1);
    Floats angles(static_cast<std::size_t>(3 * head_dim)), their_angles(angles);
    auto mine = random_floats(static_cast<std::size_t>(3 * columns), 2), theirs = mine;
    run_grid(3, half, RotaryAngles{positions.data(), frequencies.data(), half, angles.data()});
    run_grid(3, 6 * half, ApplyRope{angles.data(), half, head_dim, columns, mine.data()});
    ops().rotary_angles(stream(), positions, frequencies, view(their_angles, 3, head_dim));
    ops().apply_rope(stream(), shape, view(their_angles, 3, head_dim), view(theirs, 3, columns));
    stream().synchronize();
    expect_same(angles, their_angles, "angles");
    expect_same(mine, theirs, "rotated");
  }
}

// A cache whose frames lie in an order of their own: every element comes to lie where KvCacheView has its slot, at the
// place of its head, position and kind, and nothing else is touched.
template <int kPiece, int kHeadDim>
void expect_in_their_slots() {
  constexpr int kKvHeads = 2, kBlockTokens = 3, kLayers = 2, kLayer = 1, kRows = 7, kHeads = 4;
  const std::vector<FrameId> frames = {3, 0, 2};
  const std::vector<std::uint32_t> blocks = {4, 1, 0, 5};  // of another sequence; of this one
  const std::size_t slot_bytes = 2 * kKvHeads * kBlockTokens * kHeadDim * 2, frame_bytes = 4 * slot_bytes + 48;
  std::vector<std::byte> pool(4 * frame_bytes, std::byte{0x55});
  const KvCacheView view{pool.data(), frame_bytes, frames,       4,           slot_bytes, kLayers,
                         kKvHeads,    kHeadDim,    kBlockTokens, DType::kBF16};
  const CacheLayer cache{pool.data(), frame_bytes, frames.data(), blocks.data(), 4,           slot_bytes,
                         kLayers,     kLayer,      kKvHeads,      kHeadDim,      kBlockTokens};
  constexpr int kColumns = (kHeads + 2 * kKvHeads) * kHeadDim;
  const auto qkv = random_floats(kRows * kColumns, 1, DType::kBF16);
  std::vector<AttentionRow> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back({i, i + 1, 1});  // this sequence's blocks begin at 1
  rows.push_back({0, 0, 0});                                      // of no sequence
  const StoreKeysValues<BFloat16, kPiece> store{qkv.data(), kColumns, kHeads * kHeadDim, rows.data(), cache};
  for (int r = 0; r <= kRows; ++r) {
    BFloat16* const place = store.place(r);
    ASSERT_EQ(place == nullptr, r == kRows);
    if (place == nullptr) continue;
    for (int head = 0; head < 2 * kKvHeads; ++head) {
      for (int piece = 0; piece < kHeadDim / kPiece; ++piece) store(r, place, head, piece);
    }
  }
  std::size_t written = 0;
  for (int position = 0; position < kRows; ++position) {
    const auto block = blocks[static_cast<std::size_t>(1 + position / kBlockTokens)];
    const auto* slot = reinterpret_cast<const std::uint16_t*>(view.slot(block, kLayer));
    for (int part = 0; part < 2; ++part) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int e = 0; e < kHeadDim; ++e, ++written) {
          const float expected = qkv[position * kColumns + (kHeads + part * kKvHeads + head) * kHeadDim + e];
          const int place = ((part * kKvHeads + head) * kBlockTokens + position % kBlockTokens) * kHeadDim + e;
          EXPECT_EQ(f32_from_bf16(slot[place]), expected) << position << " " << part << " " << head << " " << e;
        }
      }
    }
  }
  const auto untouched = static_cast<std::size_t>(std::count(pool.begin(), pool.end(), std::byte{0x55}));
  EXPECT_GE(untouched, pool.size() - 2 * written);
}
TEST_F(ElementsTest, KeysAndValuesGoToTheirSlots) {
  expect_in_their_slots<1, 5>();
  expect_in_their_slots<8, 16>();
}

}  // namespace
}  // namespace computron::testing

// attention against a loop in double precision, and its bits against itself.
#include "kernels/cpu/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/ops/ops_fixture.h"
#include "tests/support/test_device.h"

namespace computron::testing {
namespace {

struct Case {
  AttentionShape shape;
  int block_tokens = 16;
  DType cache_dtype = DType::kF32;
  Floats sinks = {};  // [heads], or none
};

int qkv_columns(const AttentionShape& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }
int out_columns(const AttentionShape& s) { return s.heads * s.head_dim; }

AttentionShape shape_of(int heads, int kv_heads, int head_dim, bool causal = true, int window = 0, float soft_cap = 0) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), causal, window, soft_cap};
}

// A cache of a few frames in an order that is not theirs, full of NaN, for sequences of up to `max_tokens` tokens.
class Cache {
 public:
  static constexpr int kLayers = 3, kSequences = 3, kSlotsPerFrame = 5;

  Cache(Bench& bench, const Case& c, int max_tokens) : blocks_each_(ceil_div(max_tokens, c.block_tokens)) {
    const std::size_t slot_bytes =
        2 * static_cast<std::size_t>(c.shape.kv_heads) * c.block_tokens * c.shape.head_dim * size_of(c.cache_dtype);
    const int slots = blocks_each_ * kSequences * kLayers;
    std::vector<FrameId> frames(static_cast<std::size_t>(ceil_div(slots, kSlotsPerFrame)));
    std::iota(frames.rbegin(), frames.rend(), 1u);
    const std::size_t frame_bytes = round_up(slot_bytes * kSlotsPerFrame, std::size_t{64}) + 64;
    std::byte* pool = bench.put_bytes(std::vector<std::byte>(frame_bytes * (frames.size() + 1), std::byte{0xff}));
    view_ = {pool,    frame_bytes,      bench.keep(frames), kSlotsPerFrame, slot_bytes,
             kLayers, c.shape.kv_heads, c.shape.head_dim,   c.block_tokens, c.cache_dtype};
    for (int s = 0; s < kSequences; ++s) {
      std::vector<std::uint32_t> blocks;  // of the sequences in turn, so that neighbours in time lie apart
      for (int b = 0; b < blocks_each_; ++b) blocks.push_back(static_cast<std::uint32_t>(b * kSequences + s));
      blocks_.push_back(&bench.keep(std::move(blocks)));
    }
  }
  const KvCacheView& view() const { return view_; }
  std::span<const std::uint32_t> blocks(int sequence) const { return *blocks_[static_cast<std::size_t>(sequence)]; }

 private:
  int blocks_each_;
  KvCacheView view_;
  std::vector<const std::vector<std::uint32_t>*> blocks_;
};

// One sequence: its qkv rows by position.
struct Sequence {
  Floats qkv;
  int tokens;
};
Sequence random_sequence(const AttentionShape& shape, int tokens, unsigned seed) {
  auto qkv = random_floats(static_cast<std::size_t>(tokens) * qkv_columns(shape), seed);
  for (float& v : qkv) v *= 3;  // scores that differ by more than rounding
  return {std::move(qkv), tokens};
}

bool visible(const AttentionShape& shape, int i, int j) {
  const int distance = shape.causal ? i - j : std::abs(i - j);
  return (!shape.causal || j <= i) && (shape.window == 0 || distance < shape.window);
}

// Rows from `first_row` on, with keys and values as the cache keeps them.
std::vector<double> reference(const Case& c, const Sequence& sequence, int first_row = 0) {
  const auto& shape = c.shape;
  const int d = shape.head_dim, columns = qkv_columns(shape);
  const auto kept = rounded_to(sequence.qkv, c.cache_dtype);
  std::vector<double> out;
  for (int i = first_row; i < sequence.tokens; ++i) {
    for (int h = 0; h < shape.heads; ++h) {
      const float* q = &sequence.qkv[static_cast<std::size_t>(i) * columns + h * d];
      const int kv = h / (shape.heads / shape.kv_heads);
      const auto key = [&](int j) { return &kept[static_cast<std::size_t>(j) * columns + (shape.heads + kv) * d]; };
      std::vector<double> weights(static_cast<std::size_t>(sequence.tokens), -INFINITY);
      double max = -INFINITY, sum = 0;
      for (int j = 0; j < sequence.tokens; ++j) {
        if (!visible(shape, i, j)) continue;
        double score = 0;
        for (int e = 0; e < d; ++e) score += static_cast<double>(q[e]) * key(j)[e];
        weights[j] = score * shape.scale;
        if (shape.soft_cap > 0) weights[j] = shape.soft_cap * std::tanh(weights[j] / shape.soft_cap);
        max = std::max(max, weights[j]);
      }
      if (!c.sinks.empty()) {
        const double sink = c.sinks[static_cast<std::size_t>(h)];
        max = std::max(max, sink);
        sum = std::exp(sink - max);
      }
      for (double& w : weights) sum += w = std::exp(w - max);
      std::vector<double> attended(static_cast<std::size_t>(d));
      for (int j = 0; j < sequence.tokens; ++j) {
        const double weight = weights[j] / sum;
        if (weight == 0) continue;
        for (int e = 0; e < d; ++e) attended[e] += weight * key(j)[shape.kv_heads * d + e];
      }
      out.insert(out.end(), attended.begin(), attended.end());
    }
  }
  return out;
}

class AttentionTest : public OpsTest {
 protected:
  // Tokens [start, start + rows) of each sequence s of the batch, as one call. Returns the rows of each.
  struct Part {
    int sequence, start, rows;
  };
  Vector sinks_of(const Case& c) { return c.sinks.empty() ? Vector{} : bench_.vector(c.sinks); }
  std::vector<Floats> attend(const Case& c, const Cache& cache, const std::vector<Sequence>& sequences,
                             const std::vector<Part>& parts, int layer = 1, DType out_dtype = DType::kF32) {
    Floats qkv;
    std::vector<SequenceRows> rows;
    int row = 0;
    const auto columns = static_cast<std::ptrdiff_t>(qkv_columns(c.shape));
    for (const auto [s, start, count] : parts) {
      const auto begin = sequences[static_cast<std::size_t>(s)].qkv.begin() + start * columns;
      qkv.insert(qkv.end(), begin, begin + count * columns);
      rows.push_back({row, count, start, cache.blocks(s)});
      row += count;
    }
    const auto out = bench_.empty(row, out_columns(c.shape), out_dtype);
    bench_.ops().attention(bench_.stream(), c.shape, bench_.put(qkv, row, static_cast<int>(columns)), rows,
                           cache.view(), layer, sinks_of(c), out);
    const auto values = bench_.get(out);
    std::vector<Floats> result;
    auto from = values.begin();
    for (const Part& part : parts) {
      const auto to = from + static_cast<std::ptrdiff_t>(part.rows) * out_columns(c.shape);
      result.emplace_back(from, to);
      from = to;
    }
    return result;
  }

  // The first `tokens` tokens of the first sequence. Keys and values do not depend on who sees them, and rows that see
  // themselves alone are soon done.
  void store(Case c, const Cache& cache, const Sequence& sequence, int tokens) {
    c.shape.window = 1;
    attend(c, cache, {sequence}, {{0, 0, tokens}});
  }
};

// What rounds differently by the number of rows at hand: the GPU's tensor cores, and only they.
bool same_bits_for_any_rows(const Bench& bench, const Case& c) {
  return bench.traits().any_batch_same_bits || c.cache_dtype == DType::kF32;
}

// Shapes that only the GPU's kernels tell apart.
std::vector<Case> gpu_cases() {
  return {{shape_of(4, 4, 128), 16, DType::kBF16},
          {shape_of(9, 1, 32), 16, DType::kF16},
          {shape_of(2, 1, 256), 16, DType::kF16},
          {shape_of(2, 2, 256), 16},
          {shape_of(2, 2, 128, /*causal=*/false), 16, DType::kF16},
          {shape_of(2, 1, 80, /*causal=*/true, /*window=*/70), 16, DType::kBF16},
          {shape_of(4, 2, 64, /*causal=*/true, /*window=*/0, /*soft_cap=*/2.5f), 16, DType::kBF16},
          {shape_of(4, 2, 64), 16, DType::kF16, {-2, 40, 3, 0}},
          {shape_of(2, 1, 80, /*causal=*/true, /*window=*/70), 16, DType::kBF16, {1, 6}},
          {shape_of(3, 3, 64, /*causal=*/false, /*window=*/65), 16, DType::kBF16},
          {shape_of(2, 1, 40, /*causal=*/false, /*window=*/9), 16, DType::kF16}};
}

std::vector<Case> cpu_cases() {
  return {
      {shape_of(4, 4, 64)},
      {shape_of(4, 2, 20), 16, DType::kBF16},
      {shape_of(6, 2, 80), 32},
      {shape_of(8, 1, 64), 8, DType::kBF16},
      {shape_of(2, 2, 64, /*causal=*/false)},
      {shape_of(4, 4, 20, /*causal=*/true, /*window=*/37)},
      {shape_of(3, 3, 128, /*causal=*/true, /*window=*/1), 64},
      {shape_of(4, 4, 64, /*causal=*/false, /*window=*/65)},
      {shape_of(4, 2, 20, /*causal=*/false, /*window=*/9), 16, DType::kBF16},
      {shape_of(2, 2, 64, /*causal=*/false, /*window=*/1)},
      {shape_of(4, 2, 20, /*causal=*/true, /*window=*/0, /*soft_cap=*/2.5f)},
      {shape_of(2, 1, 64, /*causal=*/true, /*window=*/50, /*soft_cap=*/50), 16, DType::kBF16},
      {shape_of(5, 1, 9), 24},
      {shape_of(6, 2, 20), 16, DType::kF32, {-3, 0, 2, 9, 40, 1}},  // below and above all scores
      {shape_of(4, 2, 20, /*causal=*/true, /*window=*/0, /*soft_cap=*/2.5f), 16, DType::kF32, {-3, 0, 2, 1}},
      {shape_of(4, 2, 64, /*causal=*/true, /*window=*/30), 16, DType::kBF16, {0, 3, -50, 12}},
      // A step of decoding goes block by block, by seven queries and eight, but not by nine; a KV tile ends in a block.
      {shape_of(14, 2, 32, /*causal=*/true, /*window=*/37), 48},
      {shape_of(16, 2, 64), 16, DType::kBF16},
      {shape_of(9, 1, 64), 32}};
}
std::vector<Case> cases(const Bench& bench) {
  auto all = cpu_cases();
  if (!bench.traits().host_memory) {
    const auto more = gpu_cases();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}
std::string describe(const Case& c) {
  return fmt::format("{} heads, {} kv, head_dim {}, causal {}, window {}, soft cap {}, blocks of {} {}, {} sinks",
                     c.shape.heads, c.shape.kv_heads, c.shape.head_dim, c.shape.causal, c.shape.window,
                     c.shape.soft_cap, c.block_tokens, name_of(c.cache_dtype), c.sinks.size());
}

TEST_P(AttentionTest, MatchesDoubleLoop) {
  for (const Case& c : cases(bench_)) {
    for (const int tokens : {1, 5, 200, test::on_emulated_gpu() ? 300 : 600}) {
      if (tokens > 256 && bench_.traits().host_memory) continue;  // several of the GPU's KV splits
      const Cache cache(bench_, c, 608);
      const auto sequence = random_sequence(c.shape, tokens, 1);
      const auto out = attend(c, cache, {sequence}, {{0, 0, tokens}});
      expect_close(out[0], reference(c, sequence), attended_tolerance(bench_.traits(), c.cache_dtype), describe(c));
    }
  }
}

// Every instruction set that this processor has, chosen or not: many rows at once and one by one, of one head and of
// all.
TEST_P(AttentionTest, EveryInstructionSetMatchesWithTheSameBitsForAnyRowsAndHeads) {
  if (!bench_.traits().host_memory) GTEST_SKIP() << "of the CPU's kernels";
  constexpr int kTokens = 150;
  for (const Case& c : cases(bench_)) {
    const Cache cache(bench_, c, 160);
    const auto sequence = random_sequence(c.shape, kTokens, 1);
    const SequenceRows rows = {0, kTokens, 0, cache.blocks(0)};
    const int all_heads = c.shape.kv_heads;
    kernels::store_keys_values({&c.shape, &cache.view(), &rows, 1, 0, all_heads, 0, kTokens}, sequence.qkv.data());
    const auto attend_as = [&](kernels::Isa isa, int step, int heads) {
      Floats out(static_cast<std::size_t>(kTokens) * out_columns(c.shape));
      kernels::AttentionScratch scratch;
      const float* sinks = c.sinks.empty() ? nullptr : c.sinks.data();
      for (int h = 0; h < all_heads; h += heads) {
        for (int row = 0; row < kTokens; row += step) {
          kernels::attend({&c.shape, &cache.view(), &rows, 1, h, heads, row, std::min(step, kTokens - row), sinks},
                          sequence.qkv.data(), reinterpret_cast<std::byte*>(out.data()), DType::kF32, scratch, isa);
        }
      }
      return out;
    };
    for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::usable_isa()}) {
      const auto all = attend_as(isa, kTokens, 1);
      expect_close(all, reference(c, sequence), 4e-6, describe(c));
      for (const int step : {1, 2, 5}) expect_same(attend_as(isa, step, all_heads), all, describe(c));
      expect_same(attend_as(isa, 1, 1), all, describe(c));
    }
  }
}

// An encoder's keys and values need not be in a cache, whose blocks are NaN here: lengths about vectors and KV tiles.
TEST(AttentionKernels, AnEncoderSeesTheSameInItsRowsAsInACache) {
  Bench bench(device_cases().front());
  for (const AttentionShape& shape : {shape_of(4, 4, 32, false), shape_of(2, 2, 64, false), shape_of(6, 2, 20, false),
                                      shape_of(4, 2, 40, false, 9), shape_of(2, 1, 64, false, 65, 2.5f)}) {
    for (const int tokens : {1, 3, 15, 16, 17, 127, 128, 129, 300}) {
      const Case c{shape};
      const Cache stored(bench, c, tokens), empty(bench, c, tokens);
      const Sequence sequence = random_sequence(shape, tokens, 5);
      // Behind other rows of the pass, which are not its own.
      Floats qkv(static_cast<std::size_t>(2 * qkv_columns(shape)), std::nanf("1"));
      qkv.insert(qkv.end(), sequence.qkv.begin(), sequence.qkv.end());
      const auto attend_from = [&](const Cache& cache, bool is_stored, kernels::Isa isa) {
        const SequenceRows rows{2, tokens, 0, cache.blocks(1)};
        Floats out(static_cast<std::size_t>(tokens + 2) * out_columns(shape));
        kernels::AttentionScratch scratch;
        for (int row = 0; row < tokens; row += 64) {
          const auto own_rows = is_stored ? kernels::OwnRows::kInCache : kernels::OwnRows::kNotInCache;
          if (is_stored && row == 0) {
            kernels::store_keys_values({&shape, &cache.view(), &rows, 1, 0, shape.kv_heads, 0, tokens}, qkv.data());
          }
          kernels::attend(
              {&shape, &cache.view(), &rows, 1, 0, shape.kv_heads, row, std::min(64, tokens - row), nullptr, own_rows},
              qkv.data(), reinterpret_cast<std::byte*>(out.data()), DType::kF32, scratch, isa);
        }
        return out;
      };
      EXPECT_TRUE(kernels::sees_own_rows(shape, {2, tokens, 0, {}}, empty.view()));
      for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::usable_isa()}) {
        expect_same(attend_from(empty, false, isa), attend_from(stored, true, isa),
                    fmt::format("{}, {} tokens", describe(c), tokens));
      }
    }
  }
}

TEST_P(AttentionTest, WritesBfloat16) {
  const Case c = {shape_of(4, 2, 20)};
  const Cache cache(bench_, c, 64);
  const auto sequence = random_sequence(c.shape, 40, 1);
  const auto out = attend(c, cache, {sequence}, {{0, 0, 40}}, 0, DType::kBF16);
  expect_close(out[0], reference(c, sequence), 4e-3, "bf16 output");
}

// Sequences of one batch do not see each other, and none changes a bit of another.
TEST_P(AttentionTest, ARowHasTheSameBitsAloneAndInABatch) {
  for (const Case& c : cases(bench_)) {
    std::vector<Sequence> sequences;
    for (const int tokens : {70, 1, 201}) {
      sequences.push_back(random_sequence(c.shape, tokens, static_cast<unsigned>(tokens)));
    }
    const Cache together(bench_, c, 208);
    const auto batch = attend(c, together, sequences, {{0, 0, 70}, {1, 0, 1}, {2, 0, 201}});
    for (int s = 0; s < 3; ++s) {
      const Cache own(bench_, c, 208);
      const auto alone = attend(c, own, sequences, {{s, 0, sequences[static_cast<std::size_t>(s)].tokens}});
      expect_same(alone[0], batch[static_cast<std::size_t>(s)], describe(c));
    }
  }
}

TEST_P(AttentionTest, APromptHasTheSameBitsInAnyChunks) {
  constexpr int kTokens = 201;
  for (const Case& c : cases(bench_)) {
    if (!c.shape.causal) continue;  // sees the future: cannot be cut
    const std::vector<Sequence> sequences = {random_sequence(c.shape, kTokens, 1)};
    const Cache whole(bench_, c, 208);
    const auto expected = attend(c, whole, sequences, {{0, 0, kTokens}});
    for (const std::vector<int>& chunks : {std::vector{100, 101}, {37, 9, 129, 26}, {3, 61, 129, 1, 7}, {200, 1}}) {
      if (std::ranges::min(chunks) <= 8 && !same_bits_for_any_rows(bench_, c)) continue;  // few rows are decoded
      const Cache cache(bench_, c, 208);
      Floats rows;
      int start = 0;
      for (const int count : chunks) {
        const auto part = attend(c, cache, sequences, {{0, start, count}});
        rows.insert(rows.end(), part[0].begin(), part[0].end());
        start += count;
      }
      expect_same(rows, expected[0], fmt::format("{} in {} chunks", describe(c), chunks.size()));
    }
  }
}

// Of wide heads a GPU's block has room for shorter rounds of prefill, or for none, by how much shared memory it may
// have: ctest runs this with as much as several GPUs have.
TEST_P(AttentionTest, WideHeadsMatchDoubleLoopWithTheSameBitsInAnyChunks) {
  if (bench_.traits().host_memory) GTEST_SKIP() << "of the GPU's kernels";
  constexpr int kTokens = 141;  // more than a tile of rows, and rounds that end in the midst of keys
  const std::vector<Case> wide = {
      {shape_of(2, 1, 128), 16, DType::kBF16},
      {shape_of(1, 1, 80, /*causal=*/true, /*window=*/70), 16, DType::kF16, {6}},
      {shape_of(2, 1, 256), 16, DType::kF16},
      {shape_of(1, 1, 250, /*causal=*/true, /*window=*/0, /*soft_cap=*/2.5f), 16, DType::kBF16}};
  for (const Case& c : wide) {
    const std::vector<Sequence> sequences = {random_sequence(c.shape, kTokens, 1)};
    const Cache whole(bench_, c, 144), cut(bench_, c, 144);
    const auto all = attend(c, whole, sequences, {{0, 0, kTokens}});
    expect_close(all[0], reference(c, sequences[0]), attended_tolerance(bench_.traits(), c.cache_dtype), describe(c));
    auto rows = attend(c, cut, sequences, {{0, 0, 49}})[0];
    const auto rest = attend(c, cut, sequences, {{0, 49, kTokens - 49}});
    rows.insert(rows.end(), rest[0].begin(), rest[0].end());
    expect_same(rows, all[0], describe(c));
  }
}

// A long sequence one token at a time: the way that decoding goes, against a loop.
TEST_P(AttentionTest, DecodingMatchesDoubleLoop) {
  for (const Case& c : cases(bench_)) {
    const int tokens = bench_.traits().host_memory ? 70 : 530;
    if (!c.shape.causal) continue;
    const Cache cache(bench_, c, 608);
    const auto sequence = random_sequence(c.shape, tokens, 1);
    store(c, cache, sequence, tokens - 1);
    const auto last = attend(c, cache, {sequence}, {{0, tokens - 1, 1}});
    expect_close(last[0], reference(c, sequence, tokens - 1), decoded_tolerance(bench_.traits(), c.cache_dtype),
                 describe(c));
  }
}

// Single rows of several sequences store their keys and values while they are decoded, the first of a KV split too, and
// find them later.
TEST_P(AttentionTest, SingleRowsOfSeveralSequencesFindWhatTheyStored) {
  for (const Case& c : cases(bench_)) {
    if (!c.shape.causal) continue;
    constexpr int kFirst = 126, kRows = 5;
    const std::vector<Sequence> sequences = {random_sequence(c.shape, kFirst + kRows, 1),
                                             random_sequence(c.shape, kRows + 3, 2)};
    const Cache cache(bench_, c, 144);
    attend(c, cache, sequences, {{0, 0, kFirst}, {1, 0, 3}});
    for (int i = 0; i < kRows; ++i) {
      const auto rows = attend(c, cache, sequences, {{0, kFirst + i, 1}, {1, 3 + i, 1}});
      const double tolerance = decoded_tolerance(bench_.traits(), c.cache_dtype);
      const auto expect_row = [&](const Floats& actual, const Sequence& sequence, int position) {
        std::vector<double> expected = reference(c, sequence, position);  // from there on
        expected.resize(actual.size());
        expect_close(actual, expected, tolerance, fmt::format("position {}, {}", position, describe(c)));
      };
      expect_row(rows[0], sequences[0], kFirst + i);
      expect_row(rows[1], sequences[1], 3 + i);
    }
  }
}

// So many keys that KV splits are longer, of which a window shows some.
TEST_P(AttentionTest, DecodingFarAlongMatchesDoubleLoop) {
  if (bench_.traits().host_memory) GTEST_SKIP() << "of the GPU's kernels";
  constexpr int kTokens = 16901, kSeen = 480;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Case c = {shape_of(3, 1, 16, /*causal=*/true, kSeen), 16, dtype};
    const Cache cache(bench_, c, kTokens);
    const auto sequence = random_sequence(c.shape, kTokens, 1);
    attend(c, cache, {sequence}, {{0, kTokens - kSeen, kSeen - 1}});  // the first of which see what nobody has stored
    const auto last = attend(c, cache, {sequence}, {{0, kTokens - 1, 1}});
    expect_close(last[0], reference(c, sequence, kTokens - 1), decoded_tolerance(bench_.traits(), dtype), describe(c));
  }
}

// One token at a time beside another sequence's prompt, as a server runs it.
TEST_P(AttentionTest, DecodingHasTheBitsOfAPrompt) {
  constexpr int kTokens = 40;
  for (const Case& c : cases(bench_)) {
    if (!c.shape.causal || !same_bits_for_any_rows(bench_, c)) continue;
    const std::vector<Sequence> sequences = {random_sequence(c.shape, kTokens, 1),
                                             random_sequence(c.shape, kTokens, 2)};
    const Cache whole(bench_, c, 64), cache(bench_, c, 64);
    const auto expected = attend(c, whole, sequences, {{0, 0, kTokens}});
    Floats rows;
    for (int i = 0; i < kTokens; ++i) {
      const auto part =
          i % 2 == 0 ? attend(c, cache, sequences, {{0, i, 1}}) : attend(c, cache, sequences, {{1, 0, i}, {0, i, 1}});
      rows.insert(rows.end(), part.back().begin(), part.back().end());
    }
    expect_same(rows, expected[0], describe(c));
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnThreads) {
  for (const Case& c : cases(bench_)) {
    const std::vector<Sequence> sequences = {random_sequence(c.shape, 150, 1)};
    const auto run = [&](Bench& bench) {
      const Cache cache(bench, c, 160);
      const auto out = bench.empty(150, out_columns(c.shape));
      const std::vector<SequenceRows> rows = {{0, 150, 0, cache.blocks(0)}};
      bench.ops().attention(bench.stream(), c.shape, bench.put(sequences[0].qkv, 150, qkv_columns(c.shape)), rows,
                            cache.view(), 2, c.sinks.empty() ? Vector{} : bench.vector(c.sinks), out);
      return bench.get(out);
    };
    Bench one(device_cases().front());
    expect_same(run(bench_), run(one), describe(c));
  }
}

TEST_P(AttentionTest, LayersKeepTheirOwnKeys) {
  const Case c = {shape_of(2, 2, 20)};
  const Cache cache(bench_, c, 32);
  const auto a = random_sequence(c.shape, 20, 1), b = random_sequence(c.shape, 20, 2);
  const auto first_a = attend(c, cache, {a}, {{0, 0, 19}}, 0);
  const auto first_b = attend(c, cache, {b}, {{0, 0, 19}}, 2);
  const auto next_a = attend(c, cache, {a}, {{0, 19, 1}}, 0);
  const auto expected = reference(c, a);
  expect_close(next_a[0], {expected.end() - out_columns(c.shape), expected.end()}, 2e-6, "layer 0 after layer 2");
}

TEST_P(AttentionTest, RefusesWhatDoesNotFit) {
  const Case c = {shape_of(4, 2, 16)};
  const Cache cache(bench_, c, 32);
  const auto qkv = bench_.put(Floats(static_cast<std::size_t>(2) * qkv_columns(c.shape)), 2, qkv_columns(c.shape));
  const auto out = bench_.empty(2, out_columns(c.shape));
  const std::vector<SequenceRows> good = {{0, 2, 0, cache.blocks(0)}};
  const auto attend = [&](AttentionShape shape, Activations x, std::span<const SequenceRows> rows, int layer,
                          Activations y, const Vector& sinks = {}) {
    bench_.ops().attention(bench_.stream(), shape, x, rows, cache.view(), layer, sinks, y);
    bench_.stream().synchronize();
  };
  EXPECT_NO_THROW(attend(c.shape, qkv, good, 0, out));
  EXPECT_THROW(attend(shape_of(4, 3, 16), qkv, good, 0, out), Error);
  EXPECT_THROW(attend(shape_of(4, 4, 16), qkv, good, 0, out), Error);
  EXPECT_THROW(attend(c.shape, qkv, good, Cache::kLayers, out), Error);
  EXPECT_NO_THROW(attend(c.shape, qkv, good, 0, out, bench_.vector({1, 2, 3, 4})));
  EXPECT_THROW(attend(c.shape, qkv, good, 0, out, bench_.vector({1, 2})), Error);
  EXPECT_THROW(attend(c.shape, qkv, good, 0, bench_.empty(1, out_columns(c.shape))), Error);
  const std::vector<SequenceRows> too_far = {{0, 2, 31, cache.blocks(0)}};
  EXPECT_THROW(attend(c.shape, qkv, too_far, 0, out), Error);
}

COMPUTRON_ON_EVERY_DEVICE(AttentionTest);

}  // namespace
}  // namespace computron::testing

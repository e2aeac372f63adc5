// What sampling needs of rows of logits, slice by slice: top-k with log-sum-exp, and candidates.
//
//   top_k_log_sum_exp   1. A block takes kColumns columns: their largest, Σ exp and best logits.
//                       2. A block takes a slice: the same of all its columns.
//   sample              1. The rows are copied to `scaled`, and penalties and biases are applied there.
//                       2. A block takes kColumns columns: divides by the temperature; largest, Σ exp and best score.
//                       3. A block takes a slice: the same of all its columns. Where the row truncates, it adds the
//                          slice's best candidates (radix selection and a sort), and the whole slice where these may
//                          not be enough.
//
// What comes out is written to host memory that the device can reach.
#pragma once

#include <cstddef>
#include <cstdint>

#include "computron/kernels/sampling.h"
#include "computron/kernels/types.h"

struct CUstream_st;

namespace computron::kernels::cuda {

inline constexpr int kColumns = 4096;  // that one block looks at

// Columns [first, first + real) of a row are slice number `slice`, without the padding.
struct Slice {
  int first, real;
};
COMPUTRON_HOST_DEVICE inline Slice slice_of(int columns, const LogitColumns& logits, int slice) {
  const int width = columns / logits.slices, first = slice * width, left = logits.real - first;
  return {first, left < 0 ? 0 : left < width ? left : width};
}
COMPUTRON_HOST_DEVICE inline int column_blocks(int columns) { return (columns + kColumns - 1) / kColumns; }

// Order of numbers as order of bits; 0 is what is no number, and the two zeros are one.
COMPUTRON_HOST_DEVICE inline std::uint32_t sort_key(float x) {
  if (x != x) return 0;
  union {
    float value;
    std::uint32_t bits;
  } number = {x + 0.0f};
  return number.bits & 0x80000000u ? ~number.bits : number.bits | 0x80000000u;
}
// Ascending: larger values first, of equals the smaller column.
COMPUTRON_HOST_DEVICE inline std::uint64_t candidate_key(float x, int column) {
  return std::uint64_t{~sort_key(x)} << 32 | static_cast<std::uint32_t>(column);
}
COMPUTRON_HOST_DEVICE inline int column_of(std::uint64_t key) { return static_cast<int>(key & 0xffffffffu); }

// ---- top-k with log-sum-exp

// Of one block of columns; in device memory.
struct TopKPart {
  float logits[TopLogits::kTop];
  int columns[TopLogits::kTop];  // of the slice; best first
  int count;
  int finite;
  float max;
  double sum_exp;  // Σ exp(logit − max)
};

struct TopKCall {
  const float* logits;  // [rows, columns]
  int rows;
  int columns;
  LogitColumns of;
  const std::int32_t* top;  // [rows]
  const TokenId* targets;   // [rows]
  TopKPart* parts;          // [rows × slices, column_blocks(columns / slices)]
  TopLogits* out;           // [rows × slices]

  COMPUTRON_HOST_DEVICE int blocks() const { return column_blocks(columns / of.slices); }
};
void top_k_log_sum_exp(CUstream_st* stream, const TopKCall& call);

// ---- sample

// How one row is to be sampled (RowSampling), and where its lists lie.
struct SampleRow {
  int row = 0;         // of the logits
  int truncated = -1;  // its number among the rows that truncate; -1: it does not
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int whole = 1;
  std::uint64_t key = 0;
  std::uint32_t position = 0;
  int used_begin = 0, used_end = 0;
  int bias_begin = 0, bias_end = 0;
  int banned_begin = 0, banned_end = 0;
  int allowed_begin = 0, allowed_end = 0;  // words of 32 tokens' bits; none: all are allowed
};
struct TokenBias {
  TokenId token;
  float bias;
};

// A used token's logit after penalties. The products and sums round one by one, as on the host.
COMPUTRON_HOST_DEVICE inline float penalised(float x, std::uint32_t generated, const SampleRow& row) {
  x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
  const auto n = static_cast<float>(generated);
#ifdef __CUDA_ARCH__
  x = __fsub_rn(x, __fmul_rn(n, row.frequency_penalty));
#else
  x = x - n * row.frequency_penalty;
#endif
  return x - (generated > 0 ? row.presence_penalty : 0.0f);
}

struct SamplePart {
  double sum_exp;  // Σ exp(scaled − max)
  double score;    // of `column`
  float max;
  int column;  // of the slice
};

// Of one slice of a row.
struct SampleResult {
  Candidate best;
  double score;
  float max;
  double sum_exp;
  int candidates;  // how many
  int slice;       // how many candidates its slice has, 0 if the candidates are enough
};

struct SampleCall {
  const float* logits;  // [.., columns]
  int columns;
  LogitColumns of;
  const SampleRow* rows;  // [count]
  int count;
  const TokenUse* used;
  const TokenBias* bias;
  const TokenId* banned;
  const std::uint32_t* allowed;
  float* scaled;          // [count, columns]
  SamplePart* parts;      // [count × slices, blocks()]
  SampleResult* out;      // [count × slices]
  Candidate* candidates;  // [truncating rows × slices, SliceSample::kCandidates]
  Candidate* slices;      // [truncating rows × slices, columns / slices]

  COMPUTRON_HOST_DEVICE int blocks() const { return column_blocks(columns / of.slices); }
};
void sample(CUstream_st* stream, const SampleCall& call);

// Whether the candidates are all that can be sampled: top_k and min_p of a row lie among what they leave of each slice;
// top_p does if they hold that part of a whole row, or all but nothing of a slice. `rest`: the sum of exponentials
// beside them.
COMPUTRON_HOST_DEVICE inline bool candidates_suffice(const SampleRow& row, int candidates, int columns, float last,
                                                     float max, double sum_exp, double rest) {
  if (candidates == 0 || candidates == columns) return true;
  if (row.top_k > 0 && row.top_k <= SliceSample::kCandidates) return true;
  if (row.min_p > 0 && last < max + logf(row.min_p)) return true;
  if (row.top_k > 0 || row.min_p > 0) return false;
  const double may_be_left = row.whole ? 1 - static_cast<double>(row.top_p) - 1e-5 : 1e-9;  // sums differ in rounding
  return rest <= may_be_left * sum_exp;
}

}  // namespace computron::kernels::cuda

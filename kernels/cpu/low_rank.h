// Products with the two thin matrices of a low-rank adapter (Hu et al. 2021), of float32 throughout. Each sum has one
// order, so that a row's result depends on nothing but the row.
#pragma once

namespace computron::kernels {

// sums[k] += Σ_i x[i] × a[i, k] for k < rank, i ascending: a part of a product may be added to what the parts before it
// have left in `sums`. a: [n, rank].
void add_low_rank_in(const float* x, int n, const float* a, int rank, float* sums);

// out[r, o] += Σ_k sums[r, k] × b[o, k] for r < rows and o < n, k ascending. sums: [rows, rank]; b: [n, rank]; rows of
// `out` lie `stride` floats apart. rank ≤ kMaxLowRank.
inline constexpr int kMaxLowRank = 256;
void add_low_rank_out(const float* sums, int rows, int rank, const float* b, int n, float* out, int stride);

}  // namespace computron::kernels

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "kernels/cuda/page_digest.h"
#include "kernels/cuda/xxh3.cuh"

namespace computron::kernels::cuda {
namespace {

using xxh3::Lane;
using xxh3::Pair;
using xxh3::U64;
using xxh3::U8;

constexpr int kWarps = 8;  // of a thread block that digests pieces
constexpr int kJudgeWarps = 32;
constexpr int kCopyThreads = 256;
constexpr unsigned kMostCopyBlocks = 512;  // more do not fill a link better

__global__ void __launch_bounds__(kWarps* kWarp) pieces_kernel(const __grid_constant__ DigestCall call) {
  if (call.only_if != nullptr && *call.only_if == 0) return;
  const std::size_t piece = std::size_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const std::size_t at = piece * kDigestPieceBytes;
  if (at >= call.bytes) return;
  const std::size_t left = call.bytes - at;
  const U64 digest = xxh3::warp_digest(Lane(), reinterpret_cast<const U8*>(call.page) + at,
                                       left < kDigestPieceBytes ? left : kDigestPieceBytes);
  if (threadIdx.x % kWarp == 0) call.pieces[piece] = digest;
}

// By a whole thread block, of more than a thread digests: each warp adds up a block of stripes, and the first warp
// brings the sums into their order. In the lanes of the first warp.
__device__ U64 digest_together(const U8* in, std::size_t count) {
  __shared__ Pair sums[kJudgeWarps][xxh3::kPairs];
  const Lane lane;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::size_t last = xxh3::last_block_of(count);
  Pair sum = lane.begin();
  for (std::size_t first = 0; first <= last; first += std::size_t{kJudgeWarps} * xxh3::kBlock) {
    const std::size_t at = first + std::size_t{xxh3::kBlock} * warp;
    if (at <= last) {
      const Pair own = at < last ? lane.block(in + at) : lane.last_block(in, at, count);
      if (threadIdx.x % kWarp < xxh3::kPairs) sums[warp][lane.pair()] = own;
    }
    __syncthreads();
    for (int i = 0; warp == 0 && i < kJudgeWarps && first + std::size_t{xxh3::kBlock} * i <= last; ++i) {
      sum.add(sums[i][lane.pair()]);
      if (first + std::size_t{xxh3::kBlock} * i < last) sum = lane.scrambled(sum);
    }
    __syncthreads();
  }
  return warp == 0 ? lane.end(sum, count) : 0;
}

// Tells the host of a page whose second copy is wrong, too, unless it knows of one.
__device__ void tell_lost(const JudgeCall& call, U64 digest) {
  const PageVerdict& verdict = *call.verdict;
  const bool same = verdict.refused == verdict.first_refused && (verdict.refused != 0 || digest == verdict.digest);
  if (call.told->lost != 0) return;
  call.told->lost =
      static_cast<U64>(call.number) | (same ? LostPage::kSame : 0) | (verdict.refused != 0 ? LostPage::kUndecoded : 0);
}

// By one thread.
__device__ void judge(const JudgeCall& call, U64 digest) {
  PageVerdict& verdict = *call.verdict;
  const bool right = verdict.refused == 0 && digest == call.expected;
  if (right) call.told->verified = ++verdict.verified;
  if (call.again) {
    call.told->copied_again = ++verdict.copied_again;
    call.told->bytes_again = verdict.bytes_again += call.link_bytes;
    if (!right) tell_lost(call, digest);
  }
  verdict.wrong = !call.again && !right;
  verdict.digest = digest;
  verdict.first_refused = verdict.refused;
  verdict.refused = 0;
}

__global__ void __launch_bounds__(kJudgeWarps* kWarp) judge_kernel(const __grid_constant__ JudgeCall call) {
  const bool due = !call.again || call.verdict->wrong != 0;
  __syncthreads();  // judge() changes that
  if (!due) return;
  const auto* pieces = reinterpret_cast<const U8*>(call.pieces);
  const std::size_t count = call.count * sizeof(U64);
  const bool alone = count <= xxh3::kMostShort;
  const U64 digest = alone ? 0 : digest_together(pieces, count);
  if (threadIdx.x == 0) judge(call, alone ? xxh3::short_digest(pieces, static_cast<int>(count)) : digest);
}

// Not through the caches: another try, of what lies in host memory now.
__global__ void __launch_bounds__(kCopyThreads) copy_kernel(const __grid_constant__ CopyAgainCall call) {
  if (*call.only_if == 0) return;
  const std::size_t words = call.bytes / sizeof(uint4), threads = std::size_t{gridDim.x} * kCopyThreads;
  const std::size_t first = std::size_t{blockIdx.x} * kCopyThreads + threadIdx.x;
  const auto* from = reinterpret_cast<const uint4*>(call.from);
  auto* to = reinterpret_cast<uint4*>(call.to);
  for (std::size_t i = first; i < words; i += threads) to[i] = __ldcv(from + i);
  const std::size_t byte = words * sizeof(uint4) + first;
  if (byte < call.bytes) {
    reinterpret_cast<U8*>(call.to)[byte] = __ldcv(reinterpret_cast<const U8*>(call.from) + byte);
  }
}

}  // namespace

void digest_pieces(CUstream_st* stream, const DigestCall& call) {
  if (call.bytes == 0) return;
  const std::size_t pieces = ceil_div(call.bytes, kDigestPieceBytes);
  const auto grid = static_cast<unsigned>(ceil_div(pieces, std::size_t{kWarps}));
  pieces_kernel<<<grid, kWarps * kWarp, 0, stream>>>(call);
}

void judge_page(CUstream_st* stream, const JudgeCall& call) {
  judge_kernel<<<1, kJudgeWarps * kWarp, 0, stream>>>(call);
}

void copy_again(CUstream_st* stream, const CopyAgainCall& call) {
  if (call.bytes == 0) return;
  const std::size_t blocks = ceil_div(call.bytes, sizeof(uint4) * kCopyThreads);
  const auto grid = static_cast<unsigned>(blocks < kMostCopyBlocks ? blocks : kMostCopyBlocks);
  copy_kernel<<<grid, kCopyThreads, 0, stream>>>(call);
}

}  // namespace computron::kernels::cuda

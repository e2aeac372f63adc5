// A warp takes a block in steps of two runs of 512 values. Lane q of a half takes places 4 q to 4 q + 3 of the eight
// groups of its run, so it loads four bytes of each plane, and writes four neighbouring values at a time. The nibbles
// of the codes are selectors as they are: an instruction looks up four exponents (__byte_perm).
#include "kernels/cuda/coded_page.h"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // of a thread block
constexpr int kThreads = kWarps * kWarp;
constexpr int kHalf = kWarp / 2;
constexpr int kGroups = static_cast<int>(kCodedRun / kCodedGroup);
constexpr int kPairs = kGroups / 2;
constexpr unsigned kNibbles = 0x77777777u;

using U8 = std::uint8_t;
using U32 = std::uint32_t;

__device__ U32 load4(const U8* at) { return *reinterpret_cast<const U32*>(at); }

// The three-bit numbers of a lane: of group 2 i in the lower, of group 2 i + 1 in the upper nibble of pair[i]'s bytes.
struct Numbers {
  U32 pair[kPairs];

  // `run`: of 192 bytes; the lane is the q-th of its half.
  __device__ Numbers(const U8* run, int q) {
    const U32 a = load4(run + 4 * q), b = load4(run + kCodedGroup + 4 * q), d = load4(run + 2 * kCodedGroup + 4 * q);
    pair[0] = a & kNibbles;
    pair[1] = b & kNibbles;
    pair[2] = d & kNibbles;
    pair[3] = (a >> 3 & 0x11111111u) | (b >> 2 & 0x22222222u) | (d >> 1 & 0x44444444u);
  }
  // Of the group's four places, a byte each.
  __device__ U32 of(int group) const { return pair[group / 2] >> (group % 2 * 4) & 0x07070707u; }
  // The lowest bit of each byte is set where the number is 0.
  __device__ U32 zeros(int group) const {
    const U32 numbers = of(group);
    return ~(numbers | numbers >> 1 | numbers >> 2) & 0x01010101u;
  }
};

// Where the escapes of a lane begin, of each group of its run.
struct EscapePlaces {
  int first[kGroups];
  int end;  // behind the escapes of both runs

  // All from the beginning of the block, where `begin` is the first of the step; none lies behind `last`.
  __device__ EscapePlaces(const Numbers& codes, int begin, int last) {
    U32 counts[2], sums[2], totals[2];
    for (int four = 0; four < 2; ++four) {
      counts[four] = counts_of(codes, 4 * four);
      sums[four] = sum_up_to_lane(counts[four]);
      totals[four] = __shfl_sync(kAllLanes, sums[four], kHalf - 1, kHalf);
    }
    const int of_run = byte_sum(totals[0]) + byte_sum(totals[1]);
    const int of_first = __shfl_sync(kAllLanes, of_run, 0, kWarp);
    const int of_second = __shfl_sync(kAllLanes, of_run, kHalf, kWarp);
    end = begin + of_first + of_second;
    int next = threadIdx.x % kWarp < kHalf ? begin : begin + of_first;
    for (int group = 0; group < kGroups; ++group) {
      const int shift = group % 4 * 8;
      const U32 before = (sums[group / 4] - counts[group / 4]) >> shift & 0xFF;
      first[group] = (next < last ? next : last) + static_cast<int>(before);
      next += static_cast<int>(totals[group / 4] >> shift & 0xFF);
    }
  }

 private:
  // How many escapes four groups have in this lane, a byte each.
  __device__ static U32 counts_of(const Numbers& codes, int group) {
    U32 counts = 0;
    for (int i = 0; i < 4; ++i) counts |= static_cast<U32>(__popc(codes.zeros(group + i))) << (8 * i);
    return counts;
  }
  // Over the lanes of a half, this one included; a byte is 64 at most.
  __device__ static U32 sum_up_to_lane(U32 counts) {
    const int q = static_cast<int>(threadIdx.x) % kHalf;
    for (int offset = 1; offset < kHalf; offset *= 2) {
      const U32 lower = __shfl_up_sync(kAllLanes, counts, offset, kHalf);
      if (q >= offset) counts += lower;
    }
    return counts;
  }
  __device__ static int byte_sum(U32 bytes) {
    const U32 pairs = (bytes & 0x00FF00FFu) + (bytes >> 8 & 0x00FF00FFu);
    return static_cast<int>((pairs & 0xFFFF) + (pairs >> 16));
  }
};

struct Block {
  const U8* bytes;
  int size;
  U8* out;
};

template <class Values>
class WarpDecoder {
 public:
  __device__ explicit WarpDecoder(const Block& block)
      : block_(block),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        table_low_(load4(block.bytes + Values::kTableAt) & ~0xFFu),  // code 0 is no exponent
        table_high_(load4(block.bytes + Values::kTableAt + 4)) {}

  __device__ void run() const {
    int escape = static_cast<int>(Values::kEscapesAt);
    for (std::size_t first = 0; first < Values::kValues; first += 2 * kCodedRun) {
      escape = two_runs(first + lane_ / kHalf * kCodedRun, escape);
    }
  }

 private:
  // Values [first, first + 512) of this half; where the next escape is.
  __device__ int two_runs(std::size_t first, int escape) const {
    const int q = lane_ % kHalf;
    const Numbers codes(block_.bytes + Values::kCodesAt + three_bit_bytes(first), q);
    const EscapePlaces escapes(codes, escape, block_.size);
    const Numbers tops(block_.bytes + (Values::kTopBits ? Values::kTopAt : Values::kCodesAt) + three_bit_bytes(first),
                       q);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      U32 upper = exponents(codes.pair[group / 2], group % 2);
      upper |= escaped(codes.zeros(group), block_.bytes + escapes.first[group]);
      if (Values::kTopBits) upper |= tops.of(group);
      write(first + group * kCodedGroup, q, upper);
    }
    return escapes.end;
  }

  // Of a pair's lower (0) or upper (1) nibbles.
  __device__ U32 exponents(U32 pair, int odd) const {
    const U32 low = __byte_perm(table_low_, table_high_, pair & 0xFFFF);
    const U32 high = __byte_perm(table_low_, table_high_, pair >> 16);
    return __byte_perm(low, high, odd == 0 ? 0x6420 : 0x7531);
  }

  __device__ static U32 escaped(U32 zeros, const U8* escapes) {
    U32 exponents = 0;
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      if (zeros >> (8 * place) & 1) exponents |= static_cast<U32>(*escapes++) << (8 * place);
    }
    return exponents;
  }

  // The group's places 4 q to 4 q + 3, whose upper bytes are known.
  __device__ void write(std::size_t group, int q, U32 upper) const {
    const U8* const planes = block_.bytes + group + 4 * q;
    U8* const out = block_.out + (group + Values::value_at(4 * q)) * sizeof(typename Values::Value);
    const U32 lowest = load4(planes);
    if constexpr (sizeof(typename Values::Value) == 2) {
      U32* const two = reinterpret_cast<U32*>(out);
      two[0] = rotated16(__byte_perm(lowest, upper, 0x5140));
      two[1] = rotated16(__byte_perm(lowest, upper, 0x7362));
    } else {
      const U32 second = load4(planes + Values::kValues), third = load4(planes + 2 * Values::kValues);
      const U32 low = __byte_perm(lowest, second, 0x5140), high = __byte_perm(third, upper, 0x5140);
      const U32 low_next = __byte_perm(lowest, second, 0x7362), high_next = __byte_perm(third, upper, 0x7362);
      U32* const four = reinterpret_cast<U32*>(out);
      four[0] = rotated32(__byte_perm(low, high, 0x5410));
      four[1] = rotated32(__byte_perm(low, high, 0x7632));
      four[2] = rotated32(__byte_perm(low_next, high_next, 0x5410));
      four[3] = rotated32(__byte_perm(low_next, high_next, 0x7632));
    }
  }

  // Right by a bit.
  __device__ static U32 rotated16(U32 two) { return (two >> 1 & 0x7FFF7FFFu) | (two & 0x00010001u) << 15; }
  __device__ static U32 rotated32(U32 one) { return one >> 1 | one << 31; }

  Block block_;
  int lane_;
  U32 table_low_, table_high_;
};

// Bytes [0, bytes) of the block, which repeat after `period`, a multiple of 16. Both ends are aligned to 16.
__device__ void copy_block(const Block& block, int bytes, int period) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, whole = bytes / 16 * 16;
  for (int at = 16 * lane; at < whole; at += 16 * kWarp) {
    *reinterpret_cast<uint4*>(block.out + at) = *reinterpret_cast<const uint4*>(block.bytes + at % period);
  }
  if (whole + lane < bytes) block.out[whole + lane] = block.bytes[whole + lane];
}

__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ DecodeCall call) {
  if (call.only_if != nullptr && *call.only_if == 0) return;
  const std::size_t number = call.first + blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (number >= call.end) return;
  const auto* directory = reinterpret_cast<const BlockEntry*>(call.coded);
  bool good = call.coded_bytes >= coded_directory_bytes(coded_blocks(call.page_bytes));
  BlockEntry entry{}, next{};
  if (good) {
    entry = directory[number];
    next = directory[number + 1];
  }
  const std::size_t left = call.page_bytes - number * kCodedBlockBytes;
  const std::size_t decoded = left < kCodedBlockBytes ? left : kCodedBlockBytes;
  const std::size_t begins = entry.offset(), ends = next.offset();
  good = good && begins <= ends && ends <= call.coded_bytes &&
         least_block_bytes(entry.encoding(), decoded) <= ends - begins;
  if (!good) {
    *call.refused = call.number;
    return;
  }
  const Block block{reinterpret_cast<const U8*>(call.coded) + begins, static_cast<int>(ends - begins),
                    reinterpret_cast<U8*>(call.page) + number * kCodedBlockBytes};
  switch (entry.encoding()) {
    case BlockEncoding::kRaw:
      return copy_block(block, static_cast<int>(decoded), static_cast<int>(kCodedBlockBytes));
    case BlockEncoding::kFill:
      return copy_block(block, static_cast<int>(decoded), static_cast<int>(kFillBytes));
    case BlockEncoding::kBf16:
      return WarpDecoder<CodedBf16>(block).run();
    case BlockEncoding::kF16:
      return WarpDecoder<CodedF16>(block).run();
    case BlockEncoding::kF32:
      return WarpDecoder<CodedF32>(block).run();
  }
}

}  // namespace

void decode_blocks(CUstream_st* stream, const DecodeCall& call) {
  if (call.first >= call.end) return;
  const auto grid = static_cast<unsigned>(ceil_div(call.end - call.first, std::size_t{kWarps}));
  decode_kernel<<<grid, kThreads, 0, stream>>>(call);
}

}  // namespace computron::kernels::cuda

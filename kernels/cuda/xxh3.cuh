// XXH3-64 without a seed (xxHash 0.8), as far as threads and warps digest bytes by themselves. More than 240 bytes are
// digested in stripes of 64 bytes, a block of 16 stripes at a time:
//
//   block:   eight accumulators += a term of each stripe's eight words and of the secret from the stripe's place on
//   behind each whole block that is not the last: the accumulators are scrambled
//   end:     += the terms of the last 64 bytes, whatever stripes they lie in; then all is folded into one word
//
// Terms are sums modulo 2^64, so a warp may add them up in any order: lane 4 s + p takes words 2 p and 2 p + 1 of
// stripes s and s + 8 of a block, and has accumulators 2 p and 2 p + 1, as all lanes of that p do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda::xxh3 {

using U8 = std::uint8_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

inline constexpr std::size_t kMostShort = 240;  // bytes that a thread digests
inline constexpr int kStripe = 64, kStripes = 16;
inline constexpr int kBlock = kStripe * kStripes;
inline constexpr int kPairs = 4;  // of accumulators

// As the specification numbers them.
inline constexpr U64 kPrime32_1 = 0x9E3779B1u, kPrime32_2 = 0x85EBCA77u, kPrime32_3 = 0xC2B2AE3Du;
inline constexpr U64 kPrime64_1 = 0x9E3779B185EBCA87ull, kPrime64_2 = 0xC2B2AE3D27D4EB4Full,
                     kPrime64_3 = 0x165667B19E3779F9ull, kPrime64_4 = 0x85EBCA77C2B2AE63ull,
                     kPrime64_5 = 0x27D4EB2F165667C5ull;

// The default secret, in words. Lanes read different ones, for which constant memory would take turns.
static __device__ const U64 kSecret[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull, 0x78e5c0cc4ee679cbull,
    0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull, 0xcb00c391bb52283cull, 0xa32e531b8b65d088ull,
    0x4ef90da297486471ull, 0xd8acdea946ef1938ull, 0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull,
    0x647378d9c97e9fc8ull, 0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull};

// The word that begins at any of its bytes.
inline __device__ U64 secret(int byte) {
  const int word = byte / 8, bits = byte % 8 * 8;
  return bits == 0 ? kSecret[word] : kSecret[word] >> bits | kSecret[word + 1] << (64 - bits);
}

inline __device__ U64 load_bytes(const U8* at, int count) {
  U64 value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<U64>(at[i]) << (8 * i);
  return value;
}
inline __device__ U64 load64(const U8* at) { return load_bytes(at, 8); }
inline __device__ U64 load32(const U8* at) { return load_bytes(at, 4); }

inline __device__ U64 rotated(U64 word, int left) { return word << left | word >> (64 - left); }
inline __device__ U64 swapped(U64 word) {
  U64 bytes = 0;
  for (int i = 0; i < 8; ++i) bytes |= (word >> (8 * i) & 0xFF) << (56 - 8 * i);
  return bytes;
}
inline __device__ U64 folded_product(U64 a, U64 b) { return a * b ^ __umul64hi(a, b); }
inline __device__ U64 avalanche(U64 word) {
  word = (word ^ word >> 37) * 0x165667919E3779F9ull;
  return word ^ word >> 32;
}
// Of XXH64.
inline __device__ U64 old_avalanche(U64 word) {
  word = (word ^ word >> 33) * kPrime64_2;
  word = (word ^ word >> 29) * kPrime64_3;
  return word ^ word >> 32;
}

// ---- up to 240 bytes, by one thread

// Of 16 bytes.
inline __device__ U64 mix(const U8* at, int secret_byte) {
  return folded_product(load64(at) ^ secret(secret_byte), load64(at + 8) ^ secret(secret_byte + 8));
}

inline __device__ U64 digest_to_16(const U8* in, int count) {
  const U64 length = static_cast<U64>(count);
  if (count > 8) {
    const U64 low = load64(in) ^ secret(24) ^ secret(32), high = load64(in + count - 8) ^ secret(40) ^ secret(48);
    return avalanche(length + swapped(low) + high + folded_product(low, high));
  }
  if (count >= 4) {
    U64 word = (load32(in + count - 4) + (load32(in) << 32)) ^ secret(8) ^ secret(16);
    word = (word ^ rotated(word, 49) ^ rotated(word, 24)) * 0x9FB21C651E98DF25ull;
    word = (word ^ ((word >> 35) + length)) * 0x9FB21C651E98DF25ull;
    return word ^ word >> 28;
  }
  if (count == 0) return old_avalanche(secret(56) ^ secret(64));
  const U64 bytes = static_cast<U64>(in[0]) << 16 | static_cast<U64>(in[count / 2]) << 24 | in[count - 1] | length << 8;
  return old_avalanche(bytes ^ ((secret(0) ^ secret(4)) & 0xFFFFFFFFu));
}

inline __device__ U64 digest_to_128(const U8* in, int count) {
  U64 sum = static_cast<U64>(count) * kPrime64_1;
  for (int i = 0; i <= (count - 1) / 32; ++i) {
    sum += mix(in + 16 * i, 32 * i) + mix(in + count - 16 * (i + 1), 32 * i + 16);
  }
  return avalanche(sum);
}

inline __device__ U64 digest_to_240(const U8* in, int count) {
  U64 sum = static_cast<U64>(count) * kPrime64_1;
  for (int i = 0; i < 8; ++i) sum += mix(in + 16 * i, 16 * i);
  sum = avalanche(sum);
  for (int i = 8; i < count / 16; ++i) sum += mix(in + 16 * i, 16 * (i - 8) + 3);
  return avalanche(sum + mix(in + count - 16, 136 - 17));
}

// Of at most kMostShort bytes.
inline __device__ U64 short_digest(const U8* in, int count) {
  return count <= 16 ? digest_to_16(in, count) : count <= 128 ? digest_to_128(in, count) : digest_to_240(in, count);
}

// ---- more, by whole warps

// Accumulators 2 p and 2 p + 1, or what is added to them.
struct Pair {
  U64 even, odd;

  __device__ void add(const Pair& other) {
    even += other.even;
    odd += other.odd;
  }
};

// What a lane needs to know of the secret.
class Lane {
 public:
  __device__ Lane()
      : pair_(static_cast<int>(threadIdx.x) % kPairs),
        stripe_(static_cast<int>(threadIdx.x) % kWarp / kPairs),
        keys_{keys(8 * stripe_), keys(8 * (stripe_ + kStripes / 2))},
        scramble_(keys(128)) {}

  __device__ int pair() const { return pair_; }
  __device__ Pair begin() const {
    if (pair_ == 0) return {kPrime32_3, kPrime64_1};
    if (pair_ == 1) return {kPrime64_2, kPrime64_3};
    if (pair_ == 2) return {kPrime64_4, kPrime32_2};
    return {kPrime64_5, kPrime32_1};
  }
  // Of the first `stripes` of a block at `in`, which is aligned to 16 bytes; the same in all lanes of a pair.
  __device__ Pair block(const U8* in, int stripes = kStripes) const { return over_stripes(terms(in, stripes)); }
  // The same of what is behind the last scramble: the block that begins at in + at, and the last 64 of `count` bytes.
  __device__ Pair last_block(const U8* in, std::size_t at, std::size_t count) const {
    Pair sum = terms(in + at, static_cast<int>((count - 1 - at) / kStripe));
    if (stripe_ == 0) sum.add(term(load_any(in + count - kStripe + 16 * pair_), keys(121)));
    return over_stripes(sum);
  }
  __device__ Pair scrambled(Pair sum) const {
    sum.even = (sum.even ^ sum.even >> 47 ^ scramble_.even) * kPrime32_1;
    sum.odd = (sum.odd ^ sum.odd >> 47 ^ scramble_.odd) * kPrime32_1;
    return sum;
  }
  // The digest, in every lane.
  __device__ U64 end(const Pair& sum, std::size_t count) const {
    const Pair key = keys(11);
    const U64 folded = folded_product(sum.even ^ key.even, sum.odd ^ key.odd);
    return avalanche(static_cast<U64>(count) * kPrime64_1 + warp_sum<kPairs>(folded));
  }

 private:
  // For this lane's words of a stripe whose secret begins at `byte`.
  __device__ Pair keys(int byte) const { return {secret(byte + 16 * pair_), secret(byte + 16 * pair_ + 8)}; }

  __device__ static Pair load(const U8* at) {
    const ulonglong2 words = *reinterpret_cast<const ulonglong2*>(at);
    return {words.x, words.y};
  }
  __device__ static Pair load_any(const U8* at) {
    if (reinterpret_cast<std::uintptr_t>(at) % 16 == 0) return load(at);
    return {load64(at), load64(at + 8)};
  }
  // A word is added to its neighbour as it is, to its own accumulator mixed with the secret.
  __device__ static Pair term(const Pair& words, const Pair& key) {
    const U64 even = words.even ^ key.even, odd = words.odd ^ key.odd;
    return {words.odd + (even & 0xFFFFFFFFu) * (even >> 32), words.even + (odd & 0xFFFFFFFFu) * (odd >> 32)};
  }
  __device__ Pair terms(const U8* in, int stripes) const {
    Pair sum{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int stripe = stripe_ + half * kStripes / 2;
      if (stripe < stripes) sum.add(term(load(in + kStripe * stripe + 16 * pair_), keys_[half]));
    }
    return sum;
  }
  __device__ static Pair over_stripes(Pair sum) {
#pragma unroll
    for (int offset = kPairs; offset < kWarp; offset *= 2) {
      const U64 even = __shfl_xor_sync(kAllLanes, sum.even, offset);
      sum.add({even, __shfl_xor_sync(kAllLanes, sum.odd, offset)});
    }
    return sum;
  }

  int pair_, stripe_;
  Pair keys_[2];
  Pair scramble_;
};

// Where the block begins that is not followed by a scramble.
inline __device__ std::size_t last_block_of(std::size_t count) { return (count - 1) / kBlock * kBlock; }

// Of any number of bytes at `in`, which is aligned to 16 bytes; in every lane of a warp that calls it together.
inline __device__ U64 warp_digest(const Lane& lane, const U8* in, std::size_t count) {
  if (count <= kMostShort) return short_digest(in, static_cast<int>(count));
  Pair sum = lane.begin();
  const std::size_t last = last_block_of(count);
#pragma unroll 3  // all of 4 KiB: so they are loaded together
  for (std::size_t at = 0; at < last; at += kBlock) {
    sum.add(lane.block(in + at));
    sum = lane.scrambled(sum);
  }
  sum.add(lane.last_block(in, last, count));
  return lane.end(sum, count);
}

}  // namespace computron::kernels::cuda::xxh3

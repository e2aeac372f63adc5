// Pages that tests of coded pages encode and decode, and memory that shows what is touched beyond its end.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "computron/base/types.h"
#include "kernels/cpu/coded_page.h"

namespace computron::testing {

using PageBytes = std::vector<std::byte>;

// Memory between places that must not be touched, filled with 0xA5. It ends where the second one begins, so it is
// aligned to 64 bytes if `bytes` is a multiple of them.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : bytes_(bytes), mapped_(round_up(bytes, kPage) + 2 * kPage) {
    map_ = static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill_n(map_, mapped_, kUntouched);
    mprotect(map_, kPage, PROT_NONE);
    mprotect(map_ + mapped_ - kPage, kPage, PROT_NONE);
  }
  ~GuardedBytes() { munmap(map_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  static constexpr std::byte kUntouched{0xA5};
  std::byte* data() const { return map_ + mapped_ - kPage - bytes_; }
  std::size_t size() const { return bytes_; }
  void refill() const { std::fill_n(data(), bytes_, kUntouched); }
  // Of bytes [begin, end).
  bool untouched(std::size_t begin, std::size_t end) const {
    return std::all_of(data() + begin, data() + end, [](std::byte b) { return b == kUntouched; });
  }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t bytes_, mapped_;
  std::byte* map_;
};

template <class T>
PageBytes page_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// As the weights of a matrix: normally distributed.
inline PageBytes gaussian_weights(std::size_t bytes, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  PageBytes page;
  page.reserve(bytes);
  while (page.size() < bytes) {
    const float value = normal(random);
    const std::uint16_t half = dtype == DType::kBF16 ? bf16_from_f32(value) : f16_from_f32(value);
    const auto one = dtype == DType::kF32 ? std::as_bytes(std::span(&value, 1)) : std::as_bytes(std::span(&half, 1));
    page.insert(page.end(), one.begin(), one.end());
  }
  return page;
}

// A page, and by which encoding each of its blocks may gain.
struct MixedPage {
  PageBytes bytes;
  std::vector<BlockEncoding> encodings;

  void append(const PageBytes& some, BlockEncoding encoding) {
    bytes.insert(bytes.end(), some.begin(), some.end());
    encodings.resize(coded_blocks(bytes.size()), encoding);
  }
};

// Blocks of every encoding beside every other, as a page with a matrix, tables, norms and padding has them; behind them
// `tail` bytes.
inline MixedPage mixed_page(std::size_t tail) {
  MixedPage page;
  constexpr DType kOrder[] = {DType::kBF16, DType::kF32, DType::kF16, DType::kBF16, DType::kF16, DType::kF32};
  unsigned seed = 10;
  for (const DType dtype : kOrder) {
    page.append(gaussian_weights(kCodedBlockBytes, dtype, ++seed), encoding_of(dtype));
    if (seed % 2 == 0) page.append(PageBytes(kCodedBlockBytes, std::byte{0x3F}), encoding_of(dtype));
    if (seed % 3 == 0) page.append(gaussian_weights(kCodedBlockBytes, dtype, seed), BlockEncoding::kRaw);
  }
  page.append(PageBytes(kCodedBlockBytes), BlockEncoding::kRaw);
  page.append(PageBytes(tail, std::byte{0x5A}), BlockEncoding::kBf16);
  return page;
}

// With kCodedPadding.
struct CodedBytes {
  PageBytes bytes;
  std::size_t size = 0;
  std::span<const std::byte> page() const { return std::span(bytes).first(size); }
};

inline CodedBytes encoded(const MixedPage& page, kernels::CodedIsa isa) {
  CodedBytes coded{PageBytes(most_coded_bytes(page.bytes.size())), 0};
  coded.size = kernels::encode_page(page.bytes, page.encodings, coded.bytes.data(), isa);
  coded.bytes.resize(coded.size + kCodedPadding);
  std::fill(coded.bytes.end() - kCodedPadding, coded.bytes.end(), std::byte{0});
  return coded;
}

// What coded bytes are damaged to, in turn: some bits turned over anywhere, or in the directory; random bytes behind
// the directory; blocks all of whose codes are 0; random bytes all over.
class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  void operator()(std::span<std::byte> coded, std::size_t blocks) {
    const std::size_t directory = coded_directory_bytes(blocks);
    switch (turn_++ % 5) {
      case 0:
        return flip(coded);
      case 1:
        return flip(coded.first(directory));
      case 2:
        return randomize(coded.subspan(directory));
      case 3:
        return std::fill(coded.begin() + static_cast<std::ptrdiff_t>(directory), coded.end(), std::byte{0});
      default:
        return randomize(coded);
    }
  }

 private:
  void flip(std::span<std::byte> bytes) {
    for (unsigned flips = 1 + random_() % 4; flips > 0; --flips) {
      bytes[random_() % bytes.size()] ^= std::byte(1u << random_() % 8);
    }
  }
  void randomize(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = std::byte(random_());
  }

  std::mt19937 random_;
  unsigned turn_ = 0;
};

}  // namespace computron::testing

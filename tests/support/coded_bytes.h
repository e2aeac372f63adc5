// Pages as host memory holds them coded, and values for them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "computron/base/digest.h"
#include "computron/device/device.h"
#include "kernels/cpu/coded_page.h"

namespace computron::test {

// A coded page in memory of its own, which ends where nothing may be read any more.
class CodedBytes {
 public:
  CodedBytes(std::span<const std::byte> page, BlockEncoding values) : page_bytes_(page.size()) {
    std::vector<std::byte> room(most_coded_bytes(page.size()));
    const std::vector<BlockEncoding> blocks(coded_blocks(page.size()), values);
    bytes_ = kernels::encode_page(page, blocks, room.data());
    memory_ = std::make_unique<std::byte[]>(bytes_ + kCodedPadding);
    std::memcpy(memory_.get(), room.data(), bytes_);
  }
  std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }
  HostPage page() const { return {.data = memory_.get(), .bytes = page_bytes_, .link_bytes = bytes_, .coded = true}; }

 private:
  std::size_t page_bytes_;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

// bfloat16 weights; every fourth block of a coded page is zeros, every fourth any bits.
inline std::vector<std::byte> weights_and_others(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> page(bytes);
  for (std::size_t i = 0; i + 1 < bytes; i += 2) {
    const std::uint64_t random = hash_tuple(seed, i);
    const float uniform = static_cast<float>(random >> 40) * 0x1p-24f - 0.5f;
    auto value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(uniform) >> 16);
    const std::size_t kind = i / kCodedBlockBytes % 4;
    if (kind == 2) value = 0;
    if (kind == 3) value = static_cast<std::uint16_t>(random);
    std::memcpy(page.data() + i, &value, sizeof value);
  }
  return page;
}

// The page as it is in a frame; empty where it cannot be decoded.
inline std::vector<std::byte> decoded(const HostPage& page) {
  if (!page.coded) return {page.data, page.data + page.bytes};
  std::vector<std::byte> room(page.bytes + 64);
  std::byte* const frame = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
  const bool good =
      kernels::decode_blocks({page.data, page.link_bytes}, page.bytes, 0, coded_blocks(page.bytes), frame);
  return good ? std::vector<std::byte>(frame, frame + page.bytes) : std::vector<std::byte>();
}

}  // namespace computron::test

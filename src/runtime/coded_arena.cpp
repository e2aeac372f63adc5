#include "src/runtime/coded_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "computron/base/digest.h"
#include "src/runtime/lap.h"

namespace computron {
namespace {

constexpr std::size_t kCodedAlignment = 64;  // of pages in the arena

// Where values of a type begin in a page; they go on to where the next ones begin.
struct Region {
  std::size_t begin;
  BlockEncoding code;
};

std::vector<std::vector<Region>> regions_of(const ShardLayout& layout) {
  std::vector<std::vector<Region>> regions(layout.used_bytes.size());
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const ShardTensor& tensor = layout.plan.tensors[i];
    if (tensor.same_as >= 0) continue;
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      regions[panel.page].push_back({panel.offset, encoding_of(tensor.type.codes)});
    }
  }
  for (auto& of_page : regions) std::ranges::sort(of_page, {}, &Region::begin);
  return regions;
}

}  // namespace

std::vector<std::vector<BlockEncoding>> block_encodings(const ShardLayout& layout) {
  std::vector<std::vector<BlockEncoding>> codes;
  const auto regions = regions_of(layout);
  for (std::size_t page = 0; page < regions.size(); ++page) {
    codes.emplace_back(coded_blocks(layout.used_bytes[page]), BlockEncoding::kRaw);
    std::vector<BlockEncoding>& blocks = codes.back();
    std::vector<bool> known(blocks.size(), false);
    for (std::size_t i = 0; i < regions[page].size(); ++i) {
      const auto& [begin, code] = regions[page][i];
      const std::size_t end = i + 1 < regions[page].size() ? regions[page][i + 1].begin : layout.used_bytes[page];
      for (std::size_t block = begin / kCodedBlockBytes; block * kCodedBlockBytes < end; ++block) {
        blocks[block] = known[block] && blocks[block] != code ? BlockEncoding::kRaw : code;
        known[block] = true;
      }
    }
  }
  return codes;
}

CodedArena::CodedArena(const ShardLayout& layout, std::string model, HostBuffer& memory, std::size_t begin,
                       std::vector<StoredPage>& stored, int threads)
    : model_(std::move(model)),
      memory_(memory),
      touch_(memory),
      stored_(stored),
      codes_(block_encodings(layout)),
      end_(begin) {
  std::size_t room = 0;
  for (const std::size_t used : layout.used_bytes) room = std::max(room, most_coded_bytes(used));
  for (int i = 0; i < threads; ++i) scratch_.emplace_back(room);
}

// A page that does not gain what it takes to be read safely stays raw.
void CodedArena::add(PageId page, std::span<const std::byte> raw, int thread, LoadTimes& times) {
  const Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
  StoredPage stored = encode(page, raw, scratch, times);
  const std::size_t place = stored.link_bytes + (stored.coded ? kCodedPadding : 0);
  stored.offset = end_.fetch_add(round_up(place, kCodedAlignment));
  {
    const Lap lap(times.memory_s);
    touch_.touch(stored.offset, stored.offset + place);
  }
  put(page, stored, raw, scratch, times);
  stored_[page] = stored;
}

StoredPage CodedArena::encode(PageId page, std::span<const std::byte> raw, const Scratch& scratch,
                              LoadTimes& times) const {
  StoredPage stored{.link_bytes = raw.size()};
  if (raw.size() > kMostCodableBytes) {
    const Lap lap(times.digest_s);
    stored.digest = page_digest(raw);
    return stored;
  }
  PageDigest digest;
  kernels::PageEncoder encoder(raw, codes_[page], scratch.coded());
  for (std::size_t at = 0; at < raw.size(); at += kBytesTogether) {
    const auto some = raw.subspan(at, std::min(kBytesTogether, raw.size() - at));
    {
      const Lap lap(times.digest_s);
      digest.add(some);
    }
    const Lap lap(times.encode_s);
    encoder.encode_to(coded_blocks(at + some.size()));
  }
  stored.digest = digest.value();
  stored.coded = encoder.bytes() + kCodedPadding <= raw.size();
  if (stored.coded) stored.link_bytes = encoder.bytes();
  return stored;
}

// What is there is decoded part by part, each as soon as it has been copied.
void CodedArena::put(PageId page, const StoredPage& stored, std::span<const std::byte> raw, const Scratch& scratch,
                     LoadTimes& times) const {
  const std::span<const std::byte> from = stored.coded ? std::span(scratch.coded(), stored.link_bytes) : raw;
  const auto there = [&] { return std::span(memory_.data() + stored.offset, from.size()); };
  PageDigest digest;
  std::size_t copied = 0;
  bool good = true;
  for (std::size_t at = 0; at < raw.size() && good; at += kBytesTogether) {
    const std::size_t bytes = std::min(kBytesTogether, raw.size() - at), first = at / kCodedBlockBytes;
    const std::size_t end = first + coded_blocks(bytes);
    const std::size_t copy_to = stored.coded ? kernels::coded_offset(from, end) : at + bytes;
    {
      const Lap lap(times.encode_s);
      std::memcpy(there().data() + copied, from.data() + copied, copy_to - copied);
      copied = copy_to;
    }
    const Lap lap(times.check_s);
    if (stored.coded) {
      good = kernels::decode_blocks(there(), raw.size(), first, end, scratch.decoded(), kernels::Stores::kCached);
    }
    digest.add({stored.coded ? scratch.decoded() : there().data() + at, bytes});
  }
  if (good && digest.value() == stored.digest) return;
  throw Error(ExitCode::kInternal,
              fmt::format("internal: page {} of model {} was coded, and what is decoded is another", page, model_));
}

CodedArena::Scratch::Scratch(std::size_t coded_bytes)
    : coded_(std::make_unique_for_overwrite<std::byte[]>(coded_bytes)),
      decoded_(std::make_unique_for_overwrite<Lines>()) {}

}  // namespace computron

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
    const DType type = tensor.role == TensorRole::kGemmWeight ? layout.weight_dtype : DType::kF32;
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      regions[panel.page].push_back({panel.offset, encoding_of(type)});
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
  for (int i = 0; i < threads; ++i) scratch_.push_back(std::make_unique_for_overwrite<std::byte[]>(room));
}

// A page that does not gain what it takes to be read safely stays raw.
void CodedArena::add(PageId page, std::span<std::byte> raw, int thread, LoadTimes& times) {
  StoredPage stored{.link_bytes = raw.size()};
  {
    const Lap lap(times.digest_s);
    stored.digest = digest64(raw);
  }
  if (raw.size() <= kMostCodableBytes) {
    const Lap lap(times.encode_s);
    const std::size_t coded = kernels::encode_page(raw, codes_[page], scratch(thread));
    stored.coded = coded + kCodedPadding <= raw.size();
    if (stored.coded) stored.link_bytes = coded;
  }
  const std::size_t place = stored.link_bytes + (stored.coded ? kCodedPadding : 0);
  stored.offset = end_.fetch_add(round_up(place, kCodedAlignment));
  {
    const Lap lap(times.memory_s);
    touch_.touch(stored.offset, stored.offset + place);
  }
  {
    const Lap lap(times.encode_s);
    std::memcpy(memory_.data() + stored.offset, stored.coded ? scratch(thread) : raw.data(), stored.link_bytes);
  }
  const Lap lap(times.check_s);
  check(page, stored, raw);
  stored_[page] = stored;
}

void CodedArena::check(PageId page, const StoredPage& stored, std::span<std::byte> raw) const {
  std::span<const std::byte> there(memory_.data() + stored.offset, stored.link_bytes);
  bool good = true;
  if (stored.coded) {
    good = kernels::decode_blocks(there, raw.size(), 0, coded_blocks(raw.size()), raw.data());
    there = raw;
  }
  if (good && digest64(there) == stored.digest) return;
  throw Error(ExitCode::kInternal,
              fmt::format("internal: page {} of model {} was coded, and what is decoded is another", page, model_));
}

namespace {

MappedPages staging_pages(std::size_t bytes, const std::string& what) {
  std::optional<MappedPages> pages = MappedPages::reserve(bytes);
  if (!pages)
    throw Error(ExitCode::kSystem, fmt::format("no addresses for the raw pages of {}: try --coded off", what));
  return std::move(*pages);
}

}  // namespace

StagingArea::StagingArea(std::size_t bytes, const std::string& what) : pages_(staging_pages(bytes, what)) {}

}  // namespace computron

#include "computron/runtime/host_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/base/memory.h"
#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "kernels/cpu/coded_page.h"
#include "src/runtime/coded_arena.h"
#include "src/runtime/lap.h"
#include "src/runtime/load_pages.h"
#include "src/runtime/shard_loader.h"

namespace computron {
namespace {

constexpr std::size_t kPageAlignment = 4096;

std::vector<std::size_t> raw_offsets(const ShardLayout& layout, std::size_t begin) {
  std::vector<std::size_t> offsets;
  for (const std::size_t used : layout.used_bytes) {
    offsets.push_back(begin);
    begin += round_up(used, kPageAlignment);
  }
  return offsets;
}

// A page that lies at `offset` as it is.
StoredPage stored_raw(std::span<const std::byte> page, std::size_t offset) {
  return {.digest = page_digest(page), .offset = offset, .link_bytes = page.size(), .coded = 0};
}

// Behind the last of the pages, and what is read behind it.
std::size_t end_of(const std::vector<StoredPage>& stored) {
  std::size_t end = 0;
  for (const StoredPage& page : stored) {
    end = std::max(end, page.offset + page.link_bytes + (page.coded != 0 ? kCodedPadding : 0));
  }
  return end;
}

// The memory that a rank fills for others begins with what it tells of the pages.
std::size_t table_bytes(const ShardLayout& layout) {
  return round_up(layout.used_bytes.size() * sizeof(StoredPage), kPageAlignment);
}

void put_table(const std::vector<StoredPage>& stored, HostBuffer& memory) {
  const std::span bytes = std::as_bytes(std::span(stored));
  if (!memory.populate(0, bytes.size())) throw Error(ExitCode::kSystem, "out of memory for digests of pages");
  std::memcpy(memory.data(), bytes.data(), bytes.size());
}

// Makes all of the memory exist in this process, too, so that copies do not fault.
std::vector<StoredPage> get_table(const ShardLayout& layout, HostBuffer& memory) {
  std::vector<StoredPage> stored(layout.used_bytes.size());
  const std::span bytes = std::as_writable_bytes(std::span(stored));
  std::memcpy(bytes.data(), memory.data(), bytes.size());
  for (std::size_t page = 0; page < stored.size(); ++page) {
    const StoredPage& there = stored[page];
    const std::size_t read = there.link_bytes + (there.coded != 0 ? kCodedPadding : 0);
    ensure(there.offset >= table_bytes(layout) && read <= layout.used_bytes[page] && there.offset <= memory.bytes() &&
               read <= memory.bytes() - there.offset,
           "another rank's table says that a page lies outside of its memory");
  }
  memory.trim(end_of(stored));
  if (!memory.populate(0, memory.bytes())) throw Error(ExitCode::kSystem, "out of memory for shared pages");
  return stored;
}

}  // namespace

LoadTimes& LoadTimes::operator+=(const LoadTimes& other) {
  read_s += other.read_s;
  verify_s += other.verify_s;
  memory_s += other.memory_s;
  widen_s += other.widen_s;
  pack_s += other.pack_s;
  digest_s += other.digest_s;
  encode_s += other.encode_s;
  check_s += other.check_s;
  return *this;
}

HostStore::HostStore(Device& device, PageCoding coding) : device_(device), coding_(coding) {
  if (coding == PageCoding::kRaw || device.decodes_pages()) return;
  throw Error(ExitCode::kUsage, device.name() + " cannot decode pages: use --coded off");
}

std::size_t HostStore::bytes_of(const ShardLayout& layout) {
  std::size_t bytes = 0;
  for (const std::size_t used : layout.used_bytes) bytes += round_up(used, kPageAlignment);
  return bytes;
}

std::size_t HostStore::staging_bytes(const ShardLayout& layout, int threads) {
  std::size_t tensor = 0, page = 0, coded = 0;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const auto transposed = [](const TensorPart& part) { return part.transposed; };
    const std::vector<PanelPlace>& panels = layout.tensors[i].panels;
    if (panels.empty() || std::ranges::none_of(layout.plan.tensors[i].parts, transposed)) continue;
    const auto first = layout.used_bytes.begin();
    tensor =
        std::max(tensor, std::accumulate(first + panels.front().page, first + panels.back().page + 1, std::size_t{0}));
  }
  for (const std::size_t used : layout.used_bytes) {
    page = std::max(page, used);
    coded = std::max(coded, most_coded_bytes(used));
  }
  return tensor + static_cast<std::size_t>(threads) * (page + coded);
}

std::size_t HostStore::shared_bytes_of(const ShardLayout& layout) { return table_bytes(layout) + bytes_of(layout); }

// Addresses are asked for as if pages stayed raw, memory for what coded ones take at least: half of them.
HostStore::Pages HostStore::allocate(const ShardLayout& layout, const std::string& name) const {
  const std::string what = "model " + name;
  const std::size_t bytes = bytes_of(layout);
  Pages pages{.buffer = nullptr, .stored = std::vector<StoredPage>(layout.used_bytes.size())};
  if (coding_ == PageCoding::kRaw) {
    pages.buffer = device_.allocate_host(bytes, what);
    return pages;
  }
  const auto [available, source] = available_memory();
  if (bytes / 2 > available) {
    throw Error(ExitCode::kSystem,
                fmt::format("no host memory for {}: coded it takes half of {} at least, {} leaves {}", what,
                            format_size(bytes), source, format_size(available)));
  }
  pages.buffer = device_.reserve_host(bytes, what);
  return pages;
}

ModelId HostStore::keep(const std::string& name, const ShardLayout& layout, std::shared_ptr<Pages> pages) {
  models_.push_back({name, &layout, std::move(pages), {}});
  return static_cast<ModelId>(models_.size() - 1);
}

ModelId HostStore::add(const ShardLayout& layout, const std::string& name, const Fill& fill, int threads) {
  Pages pages = allocate(layout, name);
  const std::vector<std::size_t> offsets = raw_offsets(layout, 0);
  if (coding_ == PageCoding::kCoded) {
    const StagingArea staging(bytes_of(layout), name);
    fill(staging.data(), offsets);
    CodedArena arena(layout, name, *pages.buffer, 0, pages.stored, threads);
    std::vector<LoadTimes> times(static_cast<std::size_t>(threads));
    parallel_for(layout.used_bytes.size(), threads, [&](int thread, std::size_t page) {
      arena.add(static_cast<PageId>(page), {staging.data() + offsets[page], layout.used_bytes[page]}, thread,
                times[static_cast<std::size_t>(thread)]);
    });
  } else {
    fill(pages.buffer->data(), offsets);
    parallel_for(layout.used_bytes.size(), threads, [&](int, std::size_t page) {
      pages.stored[page] = stored_raw({pages.buffer->data() + offsets[page], layout.used_bytes[page]}, offsets[page]);
    });
  }
  pages.buffer->trim(end_of(pages.stored));
  pages.buffer->make_read_only();
  return keep(name, layout, std::make_shared<Pages>(std::move(pages)));
}

// Pages of `source` behind the first `begin` bytes of the buffer, which is then as long as they need.
LoadTimes HostStore::fill(const ShardSource& source, std::size_t begin, Pages& pages, int threads,
                          const std::function<void()>& poll) const {
  const LoadTimes times = coding_ == PageCoding::kCoded ? fill_coded(source, begin, pages, threads, poll)
                                                        : fill_raw(source, begin, pages, threads, poll);
  pages.buffer->trim(end_of(pages.stored));
  return times;
}

LoadTimes HostStore::fill_raw(const ShardSource& source, std::size_t begin, Pages& pages, int threads,
                              const std::function<void()>& poll) const {
  const ShardLayout& layout = *source.layout;
  const std::vector<std::size_t> offsets = raw_offsets(layout, begin);
  const auto digest = [&](PageId page, int, LoadTimes& times) {
    const Lap lap(times.digest_s);
    pages.stored[page] = stored_raw({pages.buffer->data() + offsets[page], layout.used_bytes[page]}, offsets[page]);
  };
  PagesInPlace in_place(*pages.buffer, offsets);
  return ShardLoader(*source.index, layout, source.t, *source.format, in_place, digest).load(threads, poll);
}

LoadTimes HostStore::fill_coded(const ShardSource& source, std::size_t begin, Pages& pages, int threads,
                                const std::function<void()>& poll) const {
  const ShardLayout& layout = *source.layout;
  StagedPages staged(layout, source.name);
  CodedArena arena(layout, source.name, *pages.buffer, begin, pages.stored, threads);
  const auto code = [&](PageId page, int thread, LoadTimes& times) {
    const std::size_t bytes = layout.used_bytes[page];
    if (bytes == 0) {
      pages.stored[page] = stored_raw({}, begin);
      return;
    }
    {
      const Lap lap(times.memory_s);
      staged.touch(page, 0, bytes);  // what is padding, nobody has written
    }
    arena.add(page, {staged.at(page), bytes}, thread, times);
    staged.release(page);
  };
  return ShardLoader(*source.index, layout, source.t, *source.format, staged, code).load(threads, poll);
}

HostStore::Pages HostStore::load(const ShardSource& source, int threads, LoadTimes& times,
                                 const std::function<void()>& poll) const {
  Pages pages = allocate(*source.layout, source.name);
  times = fill(source, /*begin=*/0, pages, threads, poll);
  pages.buffer->make_read_only();
  return pages;
}

HostStore::Pages HostStore::load_for_others(const PageStore& store, int shard, int threads, LoadTimes& times,
                                            const std::function<void()>& poll) const {
  const ShardSource& source = store.source(shard);
  Pages pages{.buffer = store.map(shard, device_), .stored = std::vector<StoredPage>(source.layout->used_bytes.size())};
  times = fill(source, table_bytes(*source.layout), pages, threads, poll);
  put_table(pages.stored, *pages.buffer);
  pages.buffer->make_read_only();
  return pages;
}

ModelId HostStore::load(const CheckpointIndex& index, const std::string& name, const ShardLayout& layout, int t,
                        const WeightFormat& format, int threads, LoadTimes* times, const std::function<void()>& poll) {
  LoadTimes taken;
  Pages pages = load({&index, &layout, &format, t, name}, threads, taken, poll);
  if (times != nullptr) *times = taken;
  return keep(name, layout, std::make_shared<Pages>(std::move(pages)));
}

ModelId HostStore::load_next(const PageStore& store, int threads, LoadTimes* times, const std::function<void()>& poll) {
  const int shard = static_cast<int>(of_shard_.size());
  const ShardSource& source = store.source(shard);
  LoadTimes taken;
  if (store.first_alike(shard) < shard) {
    of_shard_.push_back(of_shard_[store.first_alike(shard)]);
  } else if (store.maps(shard)) {
    of_shard_.push_back(std::make_shared<Pages>());
  } else {
    of_shard_.push_back(std::make_shared<Pages>(store.is_shared(shard)
                                                    ? load_for_others(store, shard, threads, taken, poll)
                                                    : load(source, threads, taken, poll)));
  }
  if (times != nullptr) *times = taken;
  const ModelId model = keep(source.name, store.layout(shard), of_shard_.back());
  models_[model].places = store.places(shard);
  return model;
}

void HostStore::map_held_by_others(const PageStore& store) {
  for (int shard = 0; shard < store.shards(); ++shard) {
    if (!store.maps(shard)) continue;
    const ShardLayout& layout = *store.source(shard).layout;
    Pages pages{.buffer = store.map(shard, device_), .stored = {}};
    pages.stored = get_table(layout, *pages.buffer);
    pages.buffer->make_read_only();
    *of_shard_[shard] = std::move(pages);
  }
}

}  // namespace computron

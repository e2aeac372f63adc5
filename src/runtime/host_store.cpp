#include "computron/runtime/host_store.h"

#include <cstring>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/parallel.h"
#include "src/runtime/shard_loader.h"

namespace computron {
namespace {

constexpr std::size_t kPageAlignment = 4096;

// The memory that a rank fills for others holds the digests behind the pages.
void put_digests(const ShardLayout& layout, const std::vector<std::uint64_t>& digests, HostBuffer& memory) {
  const std::size_t begin = HostStore::bytes_of(layout);
  if (!memory.populate(begin, memory.bytes())) throw Error(ExitCode::kSystem, "out of memory for digests of pages");
  std::memcpy(memory.data() + begin, digests.data(), digests.size() * sizeof digests[0]);
}

// Makes all of the memory exist in this process, too, so that copies do not fault.
void get_digests(const ShardLayout& layout, HostBuffer& memory, std::vector<std::uint64_t>& digests) {
  if (!memory.populate(0, memory.bytes())) throw Error(ExitCode::kSystem, "out of memory for shared pages");
  std::memcpy(digests.data(), memory.data() + HostStore::bytes_of(layout), digests.size() * sizeof digests[0]);
}

}  // namespace

LoadTimes& LoadTimes::operator+=(const LoadTimes& other) {
  read_s += other.read_s;
  verify_s += other.verify_s;
  memory_s += other.memory_s;
  widen_s += other.widen_s;
  pack_s += other.pack_s;
  digest_s += other.digest_s;
  return *this;
}

std::size_t HostStore::bytes_of(const ShardLayout& layout) {
  std::size_t bytes = 0;
  for (const std::size_t used : layout.used_bytes) bytes += round_up(used, kPageAlignment);
  return bytes;
}

HostStore::Pages HostStore::place(const ShardLayout& layout, std::unique_ptr<HostBuffer> memory) {
  Pages pages{
      .buffer = std::move(memory), .offsets = {}, .digests = std::vector<std::uint64_t>(layout.used_bytes.size())};
  std::size_t offset = 0;
  for (const std::size_t used : layout.used_bytes) {
    pages.offsets.push_back(offset);
    offset += round_up(used, kPageAlignment);
  }
  return pages;
}

HostStore::Pages HostStore::allocate(const ShardLayout& layout, const std::string& name) const {
  return place(layout, device_.allocate_host(bytes_of(layout), "model " + name));
}

ModelId HostStore::keep(const std::string& name, const ShardLayout& layout, std::shared_ptr<Pages> pages) {
  models_.push_back({name, &layout, std::move(pages)});
  return static_cast<ModelId>(models_.size() - 1);
}

ModelId HostStore::add(const ShardLayout& layout, const std::string& name, const Fill& fill, int threads) {
  Pages pages = allocate(layout, name);
  fill(pages.buffer->data(), pages.offsets);
  parallel_for(layout.used_bytes.size(), threads, [&](int, std::size_t page) {
    pages.digests[page] = digest64({pages.buffer->data() + pages.offsets[page], layout.used_bytes[page]});
  });
  pages.buffer->make_read_only();
  return keep(name, layout, std::make_shared<Pages>(std::move(pages)));
}

LoadTimes HostStore::fill(const ShardSource& source, Pages& pages, int threads, const std::function<void()>& poll) {
  return ShardLoader(*source.index, *source.layout, source.t, *source.format, *pages.buffer, pages.offsets,
                     pages.digests)
      .load(threads, poll);
}

HostStore::Pages HostStore::load(const ShardSource& source, int threads, LoadTimes& times,
                                 const std::function<void()>& poll) const {
  Pages pages = allocate(*source.layout, source.name);
  times = fill(source, pages, threads, poll);
  pages.buffer->make_read_only();
  return pages;
}

HostStore::Pages HostStore::load_for_others(const PageStore& store, int shard, int threads, LoadTimes& times,
                                            const std::function<void()>& poll) const {
  const ShardSource& source = store.source(shard);
  Pages pages = place(*source.layout, store.map(shard, device_));
  times = fill(source, pages, threads, poll);
  put_digests(*source.layout, pages.digests, *pages.buffer);
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
  return keep(source.name, *source.layout, of_shard_.back());
}

void HostStore::map_held_by_others(const PageStore& store) {
  for (int shard = 0; shard < store.shards(); ++shard) {
    if (!store.maps(shard)) continue;
    const ShardLayout& layout = *store.source(shard).layout;
    Pages pages = place(layout, store.map(shard, device_));
    get_digests(layout, *pages.buffer, pages.digests);
    pages.buffer->make_read_only();
    *of_shard_[shard] = std::move(pages);
  }
}

}  // namespace computron

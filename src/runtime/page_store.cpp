#include "computron/runtime/page_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "computron/base/bytes.h"
#include "computron/comm/descriptor_exchange.h"
#include "computron/comm/gather.h"
#include "computron/runtime/host_store.h"
#include "src/runtime/shard_deal.h"

namespace computron {
namespace {

void put_stored(ByteWriter& out, const TensorEntry& entry) {
  out.put(entry.dtype);
  out.put_list(entry.shape);
  out.put(entry.factor);
  out.put_list(entry.digests);
}

// The stored bytes that a part takes, by their digests, and where they go.
void put_part(ByteWriter& out, const ShardSource& source, const TensorPart& part) {
  const TensorEntry& entry = source.index->tensors.at(part.source);
  put_stored(out, entry);
  out.put(entry.group);
  if (entry.group > 0) put_stored(out, source.index->tensors.at(scales_name(part.source)));
  out.put(part.transposed);
  out.put(part.row);
  for (const PartSlice& slice : part.slices(source.t)) {
    out.put(slice.begin);
    out.put(slice.end);
    out.put(slice.row);
  }
}

void put(ByteWriter& out, const WeightType& type) {
  out.put(type.values);
  out.put(type.codes);
  out.put(type.scales);
  out.put(type.group);
}

void put_tensor(ByteWriter& out, const ShardSource& source, int tensor) {
  const ShardTensor& wanted = source.layout->plan.tensors[tensor];
  out.put(wanted.role);
  put(out, wanted.type);
  out.put(wanted.rows);
  out.put(wanted.columns);
  out.put(wanted.same_as);
  for (const TensorPart& part : wanted.parts) put_part(out, source, part);
  for (const PanelPlace& panel : source.layout->tensors[tensor].panels) {
    out.put(panel.page);
    out.put(panel.offset);
    out.put(panel.row_begin);
    out.put(panel.rows);
  }
}

// The layout with all pages empty that are another shard's.
ShardLayout own_pages(const ShardLayout& layout, int shard, const std::vector<PageStore::Place>& places) {
  ShardLayout own = layout;
  own.contents.clear();
  for (std::size_t page = 0; page < places.size(); ++page) {
    if (places[page].shard != shard) own.used_bytes[page] = 0;
  }
  for (TensorLayout& tensor : own.tensors) {
    std::erase_if(tensor.panels, [&](const PanelPlace& panel) { return places[panel.page].shard != shard; });
  }
  return own;
}

// Everything that the bytes of the shard's pages depend on. Files that hold the same are the same, wherever they lie:
// a load verifies the digests.
Digest128 key_of(const ShardSource& source, int numa_node) {
  ByteWriter out;
  out.put(numa_node);
  out.put(source.layout->cache_dtype);
  out.put(source.format->row_block());
  out.put_list(source.layout->used_bytes);
  const int tensors = static_cast<int>(source.layout->plan.tensors.size());
  for (int tensor = 0; tensor < tensors; ++tensor) put_tensor(out, source, tensor);
  return digest128(out.bytes());
}

}  // namespace

PageStore::PageStore(const Communicator& node, int numa_node, std::vector<ShardSource> shards, HostPages pages) {
  std::vector<Digest128> keys;
  std::map<Digest128, int> first;
  for (ShardSource& source : shards) {
    keys.push_back(key_of(source, numa_node));
    const int alike = first.emplace(keys.back(), this->shards()).first->second;
    const std::size_t bytes = HostStore::bytes_of(*source.layout);
    const ShardLayout* const layout = source.layout;
    shards_.push_back(
        {.source = std::move(source), .layout = layout, .places = {}, .whole_bytes = bytes, .first_alike = alike});
  }
  deal(keys, pages == HostPages::kShared ? &node : nullptr);
  if (pages == HostPages::kPrivate) return;
  open_segments(node);
  if (refusal_.empty()) return;
  if (node.rank() == 0) {
    spdlog::warn("{}: the ranks of this node cannot share host pages, and each has its own: {}", host_name(), refusal_);
  }
  deal(keys, nullptr);
}

// Collective over `node`; null: this rank shares with nobody.
void PageStore::deal(const std::vector<Digest128>& keys, const Communicator* node) {
  rank_ = node != nullptr ? node->rank() : 0;
  share_pages(keys, node != nullptr ? gather_lists(*node, keys) : std::vector<std::vector<Digest128>>{keys});
  std::vector<WantedShard> mine;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    shards_[i].bytes = HostStore::bytes_of(*shards_[i].source.layout);
    mine.push_back({keys[i], HostStore::shared_bytes_of(*shards_[i].source.layout)});
  }
  const ShardDeal dealt =
      deal_shards(node != nullptr ? gather_lists(*node, mine) : std::vector<std::vector<WantedShard>>{mine});
  segment_bytes_ = dealt.segment_bytes[rank_];
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const DealtShard& shard = dealt.shards.at(keys[i]);
    shards_[i].holder = shard.holder;
    shards_[i].shared = shard.shared;
    shards_[i].offset = shard.offset;
  }
}

// `wanted`: the keys of every rank that may share. Every one of them comes to the same: of the shards that have a page,
// in an order that all agree in, it is the first one's that everybody wants who wants this one.
void PageStore::share_pages(const std::vector<Digest128>& keys, const std::vector<std::vector<Digest128>>& wanted) {
  std::map<Digest128, std::set<int>> ranks;  // by key: who wants it
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    for (const Digest128& key : wanted[rank]) ranks[key].insert(static_cast<int>(rank));
  }
  std::vector<int> order;
  for (int shard = 0; shard < shards(); ++shard) {
    if (first_alike(shard) == shard) order.push_back(shard);
  }
  // Those of this rank alone in the order of loading.
  std::ranges::stable_sort(order, [&](int a, int b) {
    const std::size_t of_a = ranks[keys[a]].size(), of_b = ranks[keys[b]].size();
    return of_a != of_b ? of_a > of_b : of_a > 1 && keys[a] < keys[b];
  });
  own_layouts_.clear();
  std::map<std::pair<Digest128, std::size_t>, std::vector<Place>> pages;  // by contents and size; the first of each
  for (const int shard : order) {
    Shard& taken = shards_[shard];
    const ShardLayout& layout = *taken.layout;
    std::vector<Place> places;
    bool borrows = false;
    for (PageId page = 0; page < layout.used_bytes.size(); ++page) {
      places.push_back({shard, page});
      if (layout.contents.empty()) continue;
      std::vector<Place>& alike = pages[{layout.contents[page], layout.used_bytes[page]}];
      const auto everybody_has = [&](const Place& other) {
        return other.shard != shard && std::ranges::includes(ranks[keys[other.shard]], ranks[keys[shard]]);
      };
      const auto owner = std::ranges::find_if(alike, everybody_has);
      if (owner != alike.end()) {
        places.back() = *owner;
        borrows = true;
      } else {
        alike.push_back({shard, page});
      }
    }
    taken.places = borrows ? std::move(places) : std::vector<Place>();
    taken.source.layout = borrows ? &own_layouts_.emplace_back(own_pages(layout, shard, taken.places)) : taken.layout;
  }
  for (int shard = 0; shard < shards(); ++shard) {
    if (first_alike(shard) == shard) continue;
    shards_[shard].places = shards_[first_alike(shard)].places;
    shards_[shard].source.layout = shards_[first_alike(shard)].source.layout;
  }
}

int PageStore::borrowed_pages(int shard) const {
  return static_cast<int>(std::ranges::count_if(shards_[shard].places,
                                                [&](const Place& place) { return place.shard != first_alike(shard); }));
}

// Collective. Sets refusal_ and holds no segment where any rank of the node met one.
void PageStore::open_segments(const Communicator& node) {
  FileDescriptor own;
  if (segment_bytes_ > 0) own = make_shared_memory(segment_bytes_);
  const int offered = own ? own.get() : -errno;
  std::set<int> holders;
  for (const Shard& shard : shards_) {
    if (shard.holder != rank_) holders.insert(shard.holder);
  }
  ExchangedDescriptors exchanged = exchange_descriptors(node, offered, {holders.begin(), holders.end()});
  refusal_ = std::move(exchanged.refusal);
  segments_ = std::move(exchanged.of);
  segments_[rank_] = std::move(own);
}

std::unique_ptr<HostBuffer> PageStore::map(int shard, Device& device) const {
  const Shard& mapped = shards_[shard];
  ensure(mapped.shared && !segments_.empty(), "a shard in no segment");
  return device.map_host(segments_[mapped.holder].get(), mapped.offset,
                         HostStore::shared_bytes_of(*mapped.source.layout), "model " + mapped.source.name);
}

template <class Counts>
std::size_t PageStore::bytes_where(const Counts& counts) const {
  std::size_t bytes = 0;
  for (int shard = 0; shard < shards(); ++shard) bytes += counts(shard) ? shards_[shard].bytes : 0;
  return bytes;
}

std::size_t PageStore::held_bytes() const {
  return bytes_where([&](int shard) { return loads(shard); });
}
std::size_t PageStore::mapped_bytes() const {
  return bytes_where([&](int shard) { return maps(shard); });
}
std::size_t PageStore::separate_bytes() const {
  std::size_t bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.whole_bytes;
  return bytes;
}

}  // namespace computron

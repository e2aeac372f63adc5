// The shards that the ranks of a node hold in host memory, each of them once.
//
// Shards with the same pages are one shard: two models of one file, or the same shard of ranks that compute the same
// model beside each other. What several ranks want is loaded by one of them, its holder, into a segment that all map;
// what one rank alone wants lies in memory of its own.
//
// Of shards that have some pages in common (ShardLayout::contents) one has each of those pages, and the others refer to
// it: the one that most ranks want, so that whoever wants a shard wants the ones it refers to, too.
//
//   keys of all ranks -> holders, dealt by bytes -> a segment for each holder -> its descriptor to who wants from it
//
// All that comes before a byte is loaded, so that it is known what each rank will need. The pages themselves come into
// a HostStore (host_store.h), which holds a rank's view of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/file_descriptor.h"
#include "computron/checkpoint/index.h"
#include "computron/comm/mpi.h"
#include "computron/device/device.h"
#include "computron/model/shard_layout.h"

namespace computron {

// A shard that this rank computes with. Borrowed, but for the name: index, layout and format.
struct ShardSource {
  const CheckpointIndex* index = nullptr;
  const ShardLayout* layout = nullptr;  // pages that are another shard's are empty in what a PageStore gives
  const WeightFormat* format = nullptr;
  int t = 0;
  std::string name;  // of the model, in errors and traces
};

// Whether ranks share. Shards of one rank that have the same pages always do.
enum class HostPages : std::uint8_t { kShared, kPrivate };

class PageStore {
 public:
  // Collective over `node`, the ranks of one node. `numa_node`: of this rank's device (-1: any); ranks share with those
  // of the same. Where the system refuses, all of the node's ranks keep pages of their own: refusal() says why.
  PageStore(const Communicator& node, int numa_node, std::vector<ShardSource> shards, HostPages pages);

  int shards() const { return static_cast<int>(shards_.size()); }
  const ShardSource& source(int shard) const { return shards_[shard].source; }
  // The layout that the source came with: of all pages.
  const ShardLayout& layout(int shard) const { return *shards_[shard].layout; }
  // Whose page it is, of this rank's shards, and its number there: itself, where it is no other's.
  struct Place {
    int shard = 0;
    PageId page = 0;
  };
  Place place(int shard, PageId page) const {
    const std::vector<Place>& places = shards_[shard].places;
    return places.empty() ? Place{shard, page} : places[page];
  }
  // The same of all its pages; empty where all are its own.
  const std::vector<Place>& places(int shard) const { return shards_[shard].places; }
  // Its pages that are another shard's.
  int borrowed_pages(int shard) const;
  // The first of this rank's shards that has the same pages: itself, if there is none before it.
  int first_alike(int shard) const { return shards_[shard].first_alike; }
  // Whether this rank loads the shard: others may, and it may have loaded one that is alike.
  bool loads(int shard) const { return holds(shard) && first_alike(shard) == shard; }
  // Whether the shard's pages are another rank's, of which this one maps them.
  bool maps(int shard) const { return !holds(shard) && first_alike(shard) == shard; }
  // Whether other ranks have the same pages.
  bool is_shared(int shard) const { return shards_[shard].shared; }
  // The memory of a shared shard's pages and of what is told of them (HostStore::shared_bytes_of).
  std::unique_ptr<HostBuffer> map(int shard, Device& device) const;
  // Gives back what map() needs: the segments stay as long as somebody maps them.
  void close_segments() { segments_.clear(); }

  // Host memory of this rank's shards: what it fills itself, what others fill, and what it would fill if no two were
  // one.
  std::size_t held_bytes() const;
  std::size_t mapped_bytes() const;
  std::size_t separate_bytes() const;
  // Why the ranks of this node share nothing, though they could; empty otherwise.
  const std::string& refusal() const { return refusal_; }

 private:
  bool holds(int shard) const { return shards_[shard].holder == rank_; }
  struct Shard {
    ShardSource source;
    const ShardLayout* layout = nullptr;
    std::vector<Place> places;    // [page], or empty where all are its own
    std::size_t bytes = 0;        // of its own pages
    std::size_t whole_bytes = 0;  // of all of them
    int first_alike = 0;
    int holder = 0;  // rank of the node
    bool shared = false;
    std::size_t offset = 0;  // in the holder's segment
  };
  // The sum over shards that `counts` says yes to.
  template <class Counts>
  std::size_t bytes_where(const Counts& counts) const;
  void deal(const std::vector<Digest128>& keys, const Communicator* node);
  void share_pages(const std::vector<Digest128>& keys, const std::vector<std::vector<Digest128>>& wanted);
  void open_segments(const Communicator& node);

  int rank_ = 0;
  std::vector<Shard> shards_;
  std::deque<ShardLayout> own_layouts_;   // of shards that have pages of others: those are empty
  std::size_t segment_bytes_ = 0;         // of this rank
  std::vector<FileDescriptor> segments_;  // [rank] those that this rank maps
  std::string refusal_;
};

}  // namespace computron

// What a rank will take of its host's and its device's memory, known before it is spent.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "computron/base/memory.h"
#include "computron/comm/mesh.h"
#include "computron/runtime/page_store.h"
#include "computron/serve/job_options.h"
#include "computron/serve/model_set.h"
#include "computron/serve/rank_device.h"

namespace computron {

// Bytes that a rank takes.
struct MemoryNeed {
  std::size_t host = 0;    // pages that it holds, slots for caches, guides and, beside a device with memory of its own,
                           // messages
  std::size_t guides = 0;  // at most, of answers that are guided: `host` counts them
  std::size_t mapped = 0;  // pages that other ranks of its node hold: theirs, not its own
  std::size_t separate = 0;  // pages of all its models, if no two had the same
  std::size_t held = 0;      // pages that it holds, raw: `host` counts them
  std::size_t coded = 0;     // that `held` takes where pages are kept coded: estimated, and what `host` counts then
  std::size_t staging = 0;   // beside them while they load
  std::size_t pool = 0;
  std::size_t workspace = 0;  // scratch arrays and message buffers
  bool on_device = false;     // pool and workspace take memory that only the device has
  std::size_t device_total() const { return pool + workspace; }
  std::size_t host_total() const { return host + (on_device ? 0 : device_total()); }
  std::size_t total() const { return host + device_total(); }
};

// How large the pools of a group's ranks are: the same on all of them, as many as the poorest has room for.
struct GroupMemory {
  int frames = 0;
  int host_slots = 0;     // a frame each
  int adapter_slots = 0;  // of the pool, beside the frames
};

// Whether the ranks of a node have their guides' bytes to spare beside what they need.
inline bool has_to_spare(std::size_t needed_bytes, std::size_t guide_bytes, std::size_t limit_bytes) {
  return needed_bytes <= limit_bytes && guide_bytes <= limit_bytes - needed_bytes;
}

class MemoryPlan {
 public:
  // Collective. `steps_in_flight`: steps with a pass that may be dispatched and not reported. Rank 0 logs the plan as a
  // table.
  MemoryPlan(const JobOptions& options, const Mesh& mesh, const RankDevice& device, const ModelSet& models,
             const PageStore& pages, int steps_in_flight);

  // Of a group of the job.
  const GroupMemory& of_group(int group) const { return groups_[static_cast<std::size_t>(group)]; }

  // Of guides, on every rank of a last stage. 0: there is none, and guided requests are to be refused.
  std::size_t guide_bytes() const { return guide_bytes_; }

  // Throws ConfigError, OutOfDeviceMemory or Error{kSystem} where this rank, or its node's ranks together, need more
  // than there is.
  void check() const;

  // Of a plan that is good: what the job goes without, in its log.
  void warn() const;

 private:
  void count_fixed(const Mesh& mesh, const RankDevice& device, const ModelSet& models, const PageStore& pages,
                   int steps_in_flight);
  static std::size_t vocabulary_bytes(const Mesh& mesh, const ModelSet& models);
  void spare_for_guides(const Mesh& mesh, const RankDevice& device, std::size_t vocabularies);
  void count_guides(std::size_t vocabularies);
  void count_coding(const Mesh& mesh, const RankDevice& device, const PageStore& pages);
  std::size_t default_pool_bytes(const JobOptions& options, const Mesh& mesh, const ModelSet& models) const;
  void divide_pool(const Mesh& mesh, const ModelSet& models, int pages_of_pool);
  std::size_t default_host_cache_bytes() const;
  std::size_t share_of_node() const;
  void gather_groups(const Mesh& mesh);
  static std::string shared_note(const PageStore& pages, const RankGroup& group, const Mesh& mesh, std::size_t local);
  std::string table(const std::vector<MemoryNeed>& needs, const Mesh& mesh, const ModelSet& models,
                    const PageStore& pages) const;
  std::string slots_line(const Mesh& mesh) const;
  static std::string sharing_lines(const std::vector<MemoryNeed>& needs);
  std::string coding_line(const std::vector<MemoryNeed>& needs) const;
  std::string device_line() const;
  std::string guides_line() const;

  std::size_t page_bytes_ = 0, slot_bytes_ = 0;
  std::size_t pool_bytes_ = 0;  // wanted, of this rank; own_.frames pages are taken
  int landing_pages_ = 0;       // of the pool, that its frames do not have
  GroupMemory own_;             // of this rank's group
  std::vector<GroupMemory> groups_;
  std::size_t guide_bytes_ = 0;
  bool guides_refused_ = false;  // as none were to spare on some node
  int ranks_on_node_ = 1;
  MemoryNeed need_;                        // of this rank
  std::size_t node_bytes_ = 0;             // of all ranks of this node
  MemoryLimit limit_;                      // of the node
  std::optional<MemoryLimit> own_memory_;  // of the device, if it has its own
};

}  // namespace computron

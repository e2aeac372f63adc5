// A stage's shard as pages: which tensor rows lie where, and in which order a forward pass visits the pages.
//
// Tensors are laid out in execution order. A GEMM weight is cut into panels (a multiple of the device's row block,
// normally 512 rows) and a table into runs of rows; each lies wholly inside one page. A tied head visits the
// embedding's pages again: `uses` is the order of visits, longer than the list of pages.
//
// Where pages are refilled behind a pass, a layer works through a tensor group by group: it binds a group's pages,
// enqueues the operation for the group's rows, and releases the pages. So a pass needs at most kGroupPages pages at
// once, whatever the size of a tensor, and can run a model that exceeds the pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "computron/base/digest.h"
#include "computron/model/shard_plan.h"
#include "computron/model/weight_types.h"
#include "computron/ops/ops.h"

namespace computron {

using PageUse = std::uint32_t;  // index into ShardLayout::uses

struct PanelPlace {
  PageUse use = 0;
  PageId page = 0;
  std::size_t offset = 0;  // in the page
  int row_begin = 0;
  int rows = 0;
};

// Panels [first, first + count) of a tensor, in at most ShardLayout::kGroupPages pages: what one operation binds.
struct PanelGroup {
  int first = 0;
  int count = 0;
  std::int64_t release_through = -1;  // the group's operation is the last of every use ≤ this; -1: of none
};

struct TensorLayout {
  std::vector<PanelPlace> panels;  // vectors: one
  std::vector<PanelGroup> groups;  // cover the panels in order
};

// A page lies in a frame, or in a slot: a small frame, as the pages of adapters have where a job has slots.
enum class FrameKind : std::uint8_t { kWhole, kSlot };

struct ShardLayout {
  static constexpr int kGroupPages = 4;

  ShardPlan plan;                   // with the types of its tensors
  WeightTypes types = DType::kF32;  // of the model's, as the device keeps them
  DType cache_dtype = DType::kF32;  // of keys and values
  std::size_t page_bytes = 0;
  std::size_t slot_bytes = 0;           // of adapter_pages, which lie in slots; 0: in frames, as all others
  std::vector<TensorLayout> tensors;    // parallel to plan.tensors
  std::vector<std::size_t> used_bytes;  // by page: what it has in a frame
  // By page: what it takes over the host link, which is less where it is coded: never more than it uses. Of a stage's
  // ranks the most. Empty: as many as used_bytes. What is counted against time on a link counts these; what is counted
  // against room in a frame, or compared with what ranks report of their state, counts used_bytes.
  std::vector<std::size_t> link_bytes;
  // By page: a digest of what it holds on all ranks of its stage. Pages of a stage with equal ones are one page
  // (runtime/shared_pages.h). Empty: nobody looked.
  std::vector<Digest128> contents;
  // Pages that an adapter's tensors lie in, ascending; they hold nothing else.
  std::vector<PageId> adapter_pages = {};
  // Layouts of a stage with equal ones are of models that differ in their adapters alone: all else that a pass computes
  // with is the same, so rows of several of them may be in one pass (LowRanks, model/layers.h). None: of nobody else's.
  std::optional<Digest128> family = {};
  std::vector<PageId> uses;
  // [use] The largest w such that a pass that goes group by group has reported every use ≤ w as over
  // (PageSource::release_through) before it acquires the use for the first time; -1: none. A fetch for use u of step s
  // may wait for any use (s, w), w ≤ over_before[u]. Holds for at most Workspace::kLogitRows logit rows a pass: beyond,
  // the head's pages are visited once for each so many rows, and released in the last round only.
  std::vector<std::int64_t> over_before;

  // Of a tensor of the plan: its number there, and its place, how many tensors are before it, an adapter's left out:
  // the same place in all layouts of a family.
  struct TensorNumber {
    int index = -1, place = -1;
  };
  std::unordered_map<std::string, TensorNumber> numbers = {};
  // Those of a tensor that is not there are below 0.
  TensorNumber number_of(const std::string& name) const {
    const auto found = numbers.find(name);
    return found == numbers.end() ? TensorNumber{} : found->second;
  }

  int pages() const { return static_cast<int>(used_bytes.size()); }
  int pages(FrameKind kind) const {
    const int in_slots = slot_bytes > 0 ? static_cast<int>(adapter_pages.size()) : 0;
    return kind == FrameKind::kSlot ? in_slots : pages() - in_slots;
  }
  FrameKind kind_of(PageId page) const {
    const bool in_slot = slot_bytes > 0 && std::ranges::binary_search(adapter_pages, page);
    return in_slot ? FrameKind::kSlot : FrameKind::kWhole;
  }
  // Of the frames and slots that all its pages take.
  std::size_t frame_bytes() const {
    return pages(FrameKind::kWhole) * page_bytes + pages(FrameKind::kSlot) * slot_bytes;
  }
  std::size_t total_used_bytes() const;
  std::size_t page_link_bytes(PageId page) const { return link_bytes.empty() ? used_bytes[page] : link_bytes[page]; }
  std::size_t total_link_bytes() const;
  // Bytes at the pages' ends that hold nothing, the last page's included.
  std::size_t waste_bytes() const;

  // `types`: as the device keeps them. `slot_bytes`: of the slots that an adapter's pages lie in; 0: in frames.
  // ConfigError when a row block or vector does not fit its page, naming the tensor and the size needed, and as
  // WeightTypes::of.
  static ShardLayout make(ShardPlan plan, const WeightFormat& format, const WeightTypes& types, std::size_t page_bytes,
                          std::size_t slot_bytes = 0);
  // The largest row block, table row or vector of the shard: what a page must hold at least.
  static std::size_t largest_block_bytes(ShardPlan plan, const WeightFormat& format, const WeightTypes& types);
  // What whole row blocks of all its GEMM weights fill without a rest: their bytes' least common multiple. 1 where the
  // device does not join pages (WeightFormat::joins_pages).
  static std::size_t common_block_bytes(ShardPlan plan, const WeightFormat& format, const WeightTypes& types);
};

// The least common multiple of two blocks' bytes; 0 where that is larger than any page should be, and from then on.
std::size_t common_block(std::size_t a, std::size_t b);

// The size of pages where nobody asks for one: about `device_default`, or 16 of the largest blocks, and a multiple of
// `common_block` so that a weight over several pages in neighbouring frames is one run of rows.
std::size_t default_page_bytes(std::size_t device_default, std::size_t largest_block, std::size_t common_block);

}  // namespace computron

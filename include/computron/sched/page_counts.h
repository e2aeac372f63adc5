// How many pages of a stage's pool are resident and how many bytes are missing: by model, and over several models, of
// which a page that they have in common (runtime/shared_pages.h) counts once. Kept up to date by set of models, so that
// a question costs what the models asked about have in common, and no walk over pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "computron/runtime/shared_pages.h"
#include "computron/sched/model_list.h"

namespace computron {

class PageCounts {
  friend class UnpinnedPrefix;

 public:
  // Nothing is resident. `layouts`: [model], borrowed. `pinned`: [model], or empty if none is.
  PageCounts(const std::vector<const ShardLayout*>& layouts, const std::vector<bool>& pinned);

  // The page, with all that are one with it, has come or gone.
  void add(PageRef page) { count(page, 1); }
  void remove(PageRef page) { count(page, -1); }

  // Models that have pages resident, in no order.
  std::span<const ModelId> resident_models() const { return resident_models_.models(); }
  // Of the model's resident pages in frames of a kind those that no other model has, and those that exactly the set of
  // models has (SharedPages::models_of).
  int pages_alone(ModelId model, FrameKind kind = FrameKind::kWhole) const;
  int resident_pages_of(int set) const { return sets_[set].resident; }
  // What all missing pages would take over the host link (ShardLayout::link_bytes): of a model, of several.
  std::size_t missing_bytes(ModelId model) const { return missing_bytes_[model]; }
  std::size_t missing_bytes(std::span<const ModelId> models) const;

  // Calls visit(set) for every set that one of the models is in, once each.
  template <class Visit>
  void visit_sets(std::span<const ModelId> models, const Visit& visit) const {
    ++visits_;
    for (const ModelId model : models) {
      for (const int set : shared_.sets_of(model)) {
        if (std::exchange(visited_[set], visits_) != visits_) visit(set);
      }
    }
  }

  // The model's resident pages in frames of a kind.
  int resident_pages(ModelId model, FrameKind kind) const { return resident_[model].of(kind); }
  // Pages of pinned models, resident or not, that lie in frames of a kind.
  int pinned_pages(FrameKind kind = FrameKind::kWhole) const { return pinned_pages_.of(kind); }
  // The model's pages in frames that are pinned since other models have them, too; of a pinned model: none.
  int staying_pages(ModelId model) const { return staying_[model]; }
  // Resident pages in frames of a kind that no pinned model has; of those, the ones that the models have.
  int unpinned_pages(FrameKind kind = FrameKind::kWhole) const { return unpinned_pages_.of(kind); }
  int unpinned_pages(std::span<const ModelId> models, FrameKind kind = FrameKind::kWhole) const;
  // Changes with every page that comes or goes.
  std::uint64_t version() const { return version_; }
  // The page's number among those of its model that are in frames and not pinned for others; -1: it is not.
  std::int64_t number_among_unpinned(PageRef page) const {
    return numbers_[page.model].empty() ? static_cast<std::int64_t>(page.page) : numbers_[page.model][page.page];
  }

 private:
  struct ByKind {
    int whole = 0, slot = 0;
    int& of(FrameKind kind) { return kind == FrameKind::kWhole ? whole : slot; }
    int of(FrameKind kind) const { return kind == FrameKind::kWhole ? whole : slot; }
  };
  void count_model(ModelId model);
  void count(PageRef page, int change);
  bool is_pinned(PageRef page) const;
  std::size_t link_bytes(PageRef page) const;

  std::vector<const ShardLayout*> layouts_;
  SharedPages shared_;
  std::vector<bool> pinned_;  // [model]
  ModelList resident_models_;
  std::vector<ByKind> resident_;            // [model] pages
  std::vector<std::size_t> missing_bytes_;  // [model]
  std::vector<int> staying_;                // [model]
  std::vector<std::vector<int>> numbers_;   // [model][page] number_among_unpinned(); empty where all are
  struct SetOfModels {
    bool pinned = false;            // one of them is
    int resident = 0;               // pages that exactly these models have
    std::size_t missing_bytes = 0;  // of such pages
  };
  std::vector<SetOfModels> sets_;               // as SharedPages numbers them
  mutable std::vector<std::uint64_t> visited_;  // [set] the last visit_sets() that came by
  mutable std::uint64_t visits_ = 0;
  ByKind pinned_pages_, unpinned_pages_;
  std::uint64_t version_ = 0;
};

// unpinned_pages() of the first models of a list, of more and more of them: each is looked at once while no page comes
// or goes.
class UnpinnedPrefix {
 public:
  // The list is another one.
  void reset() { models_ = 0; }
  int pages(const PageCounts& counts, std::span<const ModelId> first, FrameKind kind);

 private:
  const PageCounts* counts_ = nullptr;  // whose pages have been counted
  std::size_t models_ = 0;              // so far
  std::uint64_t version_ = 0, visit_ = 0;
  int whole_ = 0, slots_ = 0;
  std::vector<std::uint64_t> visited_;  // [set] the last visit_ that counted it
};

}  // namespace computron

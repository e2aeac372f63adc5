// Pages that several models of a job have in common on one stage: variants of one model often share whole tensors.
//
//   ShardLayout::contents of every model -> classes of equal pages -> sets of models that have the pages of a class
//
// The pages of a class lie in one frame while any of them is resident, so that all are: fetching one fetches all, and
// evicting one evicts all. A class has at most one page of each model. Where layouts say nothing of their contents,
// every page is alone.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "computron/model/shard_layout.h"

namespace computron {

struct PageRef {
  ModelId model = 0;
  PageId page = 0;
  auto operator<=>(const PageRef&) const = default;  // NOLINT(modernize-use-nullptr): it has none
};

class SharedPages {
 public:
  static constexpr int kAlone = -1;

  // `layouts`: [model], of one stage. Nothing is borrowed.
  explicit SharedPages(std::span<const ShardLayout* const> layouts);

  // Calls visit(PageRef) for every page of the page's class, the lowest model's first; for one that is alone, for
  // itself.
  template <class Visit>
  void for_each(PageRef page, const Visit& visit) const {
    const int c = class_of(page);
    if (c == kAlone) return visit(page);
    for (const PageRef& alias : classes_[c].pages) visit(alias);
  }
  // The first of them, by which a frame that holds them is known.
  PageRef first(PageRef page) const {
    const int c = class_of(page);
    return c == kAlone ? page : classes_[c].pages.front();
  }
  // Whether `model` has the page, under whatever number.
  bool has(ModelId model, PageRef page) const;

  // The set of models that have the page; kAlone: this one only.
  int set_of(PageRef page) const {
    const int c = class_of(page);
    return c == kAlone ? kAlone : classes_[c].set;
  }
  int sets() const { return static_cast<int>(sets_.size()); }
  // Pages of a set lie in frames, or all in slots.
  FrameKind kind_of(int set) const { return kinds_[set]; }
  // Of a set, in rising order: two at least.
  std::span<const ModelId> models_of(int set) const { return sets_[set]; }
  // The sets that the model is in; none for most models.
  std::span<const int> sets_of(ModelId model) const { return sets_of_[model]; }

 private:
  struct Class {
    std::vector<PageRef> pages;  // two at least, each of another model, in rising order
    int set = 0;
  };
  int class_of(PageRef page) const { return class_of_[page.model].empty() ? kAlone : class_of_[page.model][page.page]; }
  std::vector<std::vector<std::int32_t>> class_of_;  // [model][page], or nothing where all are alone
  std::vector<Class> classes_;
  std::vector<std::vector<ModelId>> sets_;
  std::vector<FrameKind> kinds_;           // [set]
  std::vector<std::vector<int>> sets_of_;  // [model]
};

}  // namespace computron

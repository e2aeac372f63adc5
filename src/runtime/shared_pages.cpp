#include "computron/runtime/shared_pages.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "computron/base/digest.h"

namespace computron {
namespace {

// Equal contents use equally many bytes, and frames of one kind; pages that somebody says are equal and do not are told
// apart.
using Contents = std::tuple<Digest128, std::size_t, FrameKind>;

// Of pages of one model that are equal, the first one counts.
std::map<Contents, std::vector<PageRef>> pages_by_contents(std::span<const ShardLayout* const> layouts) {
  std::map<Contents, std::vector<PageRef>> pages;
  for (ModelId model = 0; model < layouts.size(); ++model) {
    const ShardLayout& layout = *layouts[model];
    for (PageId page = 0; page < layout.contents.size(); ++page) {
      std::vector<PageRef>& alike = pages[{layout.contents[page], layout.used_bytes[page], layout.kind_of(page)}];
      if (alike.empty() || alike.back().model != model) alike.push_back({model, page});
    }
  }
  return pages;
}

}  // namespace

SharedPages::SharedPages(std::span<const ShardLayout* const> layouts)
    : class_of_(layouts.size()), sets_of_(layouts.size()) {
  const bool any = std::ranges::any_of(layouts, [](const ShardLayout* layout) { return !layout->contents.empty(); });
  if (!any) return;
  std::map<std::pair<std::vector<ModelId>, FrameKind>, int> numbers;
  std::vector<std::vector<PageRef>> classes;
  for (auto& [contents, pages] : pages_by_contents(layouts)) {
    if (pages.size() > 1) classes.push_back(std::move(pages));
  }
  std::ranges::sort(classes);  // numbered in the order of their first pages, whatever the digests are
  for (std::vector<PageRef>& pages : classes) {
    std::vector<ModelId> models;
    for (const PageRef& page : pages) models.push_back(page.model);
    const FrameKind kind = layouts[pages.front().model]->kind_of(pages.front().page);
    const auto [number, is_new] = numbers.try_emplace({models, kind}, sets());
    if (is_new) {
      for (const ModelId model : models) sets_of_[model].push_back(sets());
      sets_.push_back(std::move(models));
      kinds_.push_back(kind);
    }
    for (const PageRef& page : pages) {
      std::vector<std::int32_t>& of_model = class_of_[page.model];
      if (of_model.empty()) of_model.assign(layouts[page.model]->used_bytes.size(), kAlone);
      of_model[page.page] = static_cast<std::int32_t>(classes_.size());
    }
    classes_.push_back({.pages = std::move(pages), .set = number->second});
  }
}

bool SharedPages::has(ModelId model, PageRef page) const {
  const int c = class_of(page);
  if (c == kAlone) return page.model == model;
  const std::vector<PageRef>& pages = classes_[c].pages;
  const auto found = std::ranges::lower_bound(pages, model, {}, &PageRef::model);
  return found != pages.end() && found->model == model;
}

}  // namespace computron

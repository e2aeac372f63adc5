#include "src/apps/profile_sharing.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "computron/base/size.h"
#include "computron/runtime/page_contents.h"
#include "computron/runtime/shared_pages.h"

namespace computron {
namespace {

using Models = std::vector<std::uint32_t>;

struct Part {
  SharedPart shared;
  std::pair<std::size_t, PageId> first;  // of its stages and pages, in the first model that has it
};
// Of a shape, by the models that have it and no others.
using Parts = std::map<Models, Part>;

std::vector<std::int64_t>& sized(std::vector<std::int64_t>& bytes, std::size_t stages) {
  bytes.resize(stages);
  return bytes;
}

// What a page takes over the links where the layout does not say it: as large a part as the model's other pages.
std::int64_t link_bytes_of(const ShardLayout& layout, PageId page, const ShapeProfile& profile, std::size_t stage) {
  const auto used = static_cast<std::int64_t>(layout.used_bytes[page]);
  if (!layout.link_bytes.empty()) return static_cast<std::int64_t>(layout.link_bytes[page]);
  if (profile.link_bytes.empty() || profile.stage_bytes[stage] == 0) return used;
  const double share = static_cast<double>(profile.link_bytes[stage]) / static_cast<double>(profile.stage_bytes[stage]);
  return static_cast<std::int64_t>(share * static_cast<double>(used));
}

// The stage's pages that several of `members` have.
void add_stage(const Models& members, std::span<const ShapeLayouts> layouts, const std::vector<ModelProfile>& models,
               const GroupShape& shape, std::size_t stage, Parts& parts) {
  std::vector<const ShardLayout*> of_stage;
  for (const std::uint32_t model : members) of_stage.push_back(&layouts[model].at(shape)[stage]);
  const SharedPages shared(of_stage);
  for (ModelId local = 0; local < members.size(); ++local) {
    const ShardLayout& layout = *of_stage[local];
    for (PageId page = 0; std::cmp_less(page, layout.pages()); ++page) {
      const int set = shared.set_of({local, page});
      if (set == SharedPages::kAlone || shared.kind_of(set) == FrameKind::kSlot) continue;
      if (shared.first({local, page}) != PageRef{local, page}) continue;  // once
      Models having;
      for (const ModelId model : shared.models_of(set)) having.push_back(members[model]);
      SharedPart& part = parts.try_emplace(having, Part{.shared = {}, .first = {stage, page}}).first->second.shared;
      const auto stages = static_cast<std::size_t>(shape.pp);
      sized(part.stage_bytes, stages)[stage] += static_cast<std::int64_t>(layout.used_bytes[page]);
      // A part is of one size in all models, and no model's parts take more than all of it does.
      std::int64_t link_bytes = std::numeric_limits<std::int64_t>::max();
      shared.for_each({local, page}, [&](const PageRef& alias) {
        const ShapeProfile& profile = models[members[alias.model]].shapes.at(shape);
        link_bytes = std::min(link_bytes, link_bytes_of(*of_stage[alias.model], alias.page, profile, stage));
      });
      sized(part.link_bytes, stages)[stage] += link_bytes;
      sized(part.frame_bytes, stages)[stage] += static_cast<std::int64_t>(layout.page_bytes);
    }
  }
}

std::vector<std::pair<Models, SharedPart>> in_order_of_passes(const Parts& parts) {
  std::vector<std::pair<Models, Part>> all(parts.begin(), parts.end());
  std::ranges::stable_sort(all, {}, [](const auto& part) { return part.second.first; });
  std::vector<std::pair<Models, SharedPart>> shared;
  for (auto& [having, part] : all) shared.emplace_back(std::move(having), std::move(part.shared));
  return shared;
}

std::set<GroupShape> shapes_of(std::span<const ShapeLayouts> layouts) {
  std::set<GroupShape> shapes;
  for (const ShapeLayouts& own : layouts) {
    for (const auto& [shape, stages] : own) shapes.insert(shape);
  }
  return shapes;
}

std::map<std::size_t, Models> by_page_bytes(std::span<const ShapeLayouts> layouts, const GroupShape& shape) {
  std::map<std::size_t, Models> members;
  for (std::uint32_t m = 0; m < layouts.size(); ++m) {
    const auto found = layouts[m].find(shape);
    if (found != layouts[m].end()) members[found->second.front().page_bytes].push_back(m);
  }
  return members;
}

// Two models that have a matrix in common and pages of different sizes. Of vectors many are equal though their models
// have nothing to do with each other: all ones, all zeros.
std::optional<std::pair<std::uint32_t, std::uint32_t>> siblings_of_other_pages(
    std::span<const ShapeLayouts> layouts, const GroupShape& shape, std::span<const CheckpointIndex> indices) {
  const auto members = by_page_bytes(layouts, shape);
  if (members.size() < 2) return std::nullopt;
  std::map<Digest128, std::pair<std::size_t, std::uint32_t>> holders;  // of a matrix: pages of the first, and which
  for (const auto& [page_bytes, of_size] : members) {
    for (const std::uint32_t model : of_size) {
      for (const auto& [name, tensor] : indices[model].tensors) {
        if (tensor.shape.size() < 2 || tensor.digests.empty()) continue;
        const auto holder = holders.try_emplace(tensor.digests.front(), page_bytes, model).first->second;
        if (holder.first != page_bytes) return std::pair(holder.second, model);
      }
    }
  }
  return std::nullopt;
}

// Whether there are pages in slots, and whatever is in frames is shared.
bool is_in_slots_alone(const std::vector<ShardLayout>& stages, const ShapeProfile& profile) {
  bool any = false, all = true;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const ShardLayout& layout = stages[stage];
    std::int64_t in_frames = 0;
    for (PageId page = 0; std::cmp_less(page, layout.pages()); ++page) {
      const bool in_slot = layout.kind_of(page) == FrameKind::kSlot;
      any |= in_slot;
      if (!in_slot) in_frames += static_cast<std::int64_t>(layout.used_bytes[page]);
    }
    for (const SharedPart& part : profile.shared) in_frames -= part.stage_bytes[stage];
    all &= in_frames == 0;
  }
  return any && all;
}

// Of one family on every stage, on each of their shapes.
void add_families(std::span<const ShapeLayouts> layouts, std::vector<ModelProfile>& models) {
  const auto has_adapter = [](const ShapeLayouts& own) {
    return !own.empty() && !own.begin()->second.front().plan.config.adapter_ranks.empty();
  };
  if (std::ranges::none_of(layouts, has_adapter)) return;  // then a job has no riders either
  std::map<std::vector<std::tuple<GroupShape, Digest128>>, Models> families;
  for (std::uint32_t m = 0; m < layouts.size(); ++m) {
    std::vector<std::tuple<GroupShape, Digest128>> digests;
    bool all = true;
    for (const auto& [shape, stages] : layouts[m]) {
      for (const ShardLayout& layout : stages) {
        if (layout.family) digests.emplace_back(shape, *layout.family);
        all &= layout.family.has_value();
      }
    }
    if (all && !digests.empty()) families[digests].push_back(m);
  }
  for (const auto& [digests, members] : families) {
    if (members.size() < 2) continue;
    for (const std::uint32_t m : members) models[m].family = models[members.front()].id;
  }
}

}  // namespace

ShapeLayouts with_contents(ShapeLayouts layouts, const CheckpointIndex& index) {
  for (auto& [shape, stages] : layouts) {
    for (ShardLayout& layout : stages) {
      layout.contents = page_contents(index, layout, shape.tp);
      layout.family = family_digest(layout);
    }
  }
  return layouts;
}

std::string page_sizes_text(std::span<const ShapeLayouts> layouts, const std::vector<ModelProfile>& models,
                            std::span<const CheckpointIndex> indices) {
  for (const GroupShape& shape : shapes_of(layouts)) {
    const auto siblings = siblings_of_other_pages(layouts, shape, indices);
    if (!siblings) continue;
    const auto text = [&](std::uint32_t model) {
      return fmt::format("of {} ({})", format_size(layouts[model].at(shape).front().page_bytes), models[model].id);
    };
    return fmt::format(
        "at tp {} x pp {} pages are {} and {}: what models with pages of different sizes have in common is not told "
        "(one --page-size for all)",
        shape.tp, shape.pp, text(siblings->first), text(siblings->second));
  }
  return {};
}

void add_shared_parts(std::span<const ShapeLayouts> layouts, std::vector<ModelProfile>& models) {
  std::map<Models, std::string> names;  // a part's name is the same on all shapes
  for (const GroupShape& shape : shapes_of(layouts)) {
    for (const auto& [page_bytes, members] : by_page_bytes(layouts, shape)) {
      Parts parts;
      for (std::size_t stage = 0; std::cmp_less(stage, shape.pp); ++stage) {
        add_stage(members, layouts, models, shape, stage, parts);
      }
      for (auto [having, part] : in_order_of_passes(parts)) {
        if (part.link_bytes == part.stage_bytes) part.link_bytes.clear();
        part.name = names.try_emplace(having, fmt::format("shared {}", names.size() + 1)).first->second;
        for (const std::uint32_t model : having) models[model].shapes.at(shape).shared.push_back(part);
      }
    }
  }
  for (std::uint32_t m = 0; m < models.size(); ++m) {
    for (auto& [shape, profile] : models[m].shapes) {
      const auto found = layouts[m].find(shape);
      if (found == layouts[m].end()) continue;
      if (is_in_slots_alone(found->second, profile)) {
        profile.slot_bytes = static_cast<std::int64_t>(found->second.front().slot_bytes);
      }
    }
  }
  add_families(layouts, models);
}

}  // namespace computron

#include "computron/model/tensor_ref.h"

namespace computron {

TensorRef::TensorRef(const ShardLayout& layout, int index) : layout_(&layout), index_(index) {
  weight_panels_.resize(placed().panels.size());
  table_panels_.resize(placed().panels.size());
}

TensorRef TensorRef::find(const ShardLayout& layout, const std::string& name) {
  const int index = layout.number_of(name).index;
  return index < 0 ? TensorRef() : TensorRef(layout, index);
}

PanelGroup TensorRef::all_panels() const {
  return {.first = 0,
          .count = static_cast<int>(placed().panels.size()),
          .release_through = placed().groups.back().release_through};
}

template <class Panel>
std::span<const Panel> TensorRef::bind(std::vector<Panel>& views, PageSource& pages, const PanelGroup& part) const {
  for (int i = part.first; i < part.first + part.count; ++i) {
    const PanelPlace& place = placed().panels[i];
    const ResidentPage page = pages.acquire(place.use);
    views[i] = {page.data + place.offset, page.ready, place.row_begin, place.rows};
  }
  return std::span<const Panel>(views).subspan(part.first, part.count);
}
template std::span<const WeightPanel> TensorRef::bind(std::vector<WeightPanel>&, PageSource&, const PanelGroup&) const;
template std::span<const TablePanel> TensorRef::bind(std::vector<TablePanel>&, PageSource&, const PanelGroup&) const;

void TensorRef::release_part(PageSource& pages, const PanelGroup& part) {
  if (part.release_through >= 0) pages.release_through(static_cast<PageUse>(part.release_through));
}

Vector TensorRef::vector(PageSource& pages) const {
  if (!present()) return {};
  const PanelPlace& place = placed().panels.front();
  const ResidentPage page = pages.acquire(place.use);
  return {reinterpret_cast<const float*>(page.data + place.offset), page.ready, rows()};
}

void TensorRef::release(PageSource& pages) const {
  if (present()) release_part(pages, all_panels());
}

}  // namespace computron

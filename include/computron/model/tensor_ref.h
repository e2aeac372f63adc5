// A tensor of a shard layout, as layers hand it to operations: its panels where their pages are in this pass.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "computron/model/pass.h"

namespace computron {

// Holds no bytes. A view that it gives is valid until the next pass binds the tensor, and its page until it is
// released: every page acquired is released, and not before the last operation that reads it has been enqueued.
class TensorRef {
 public:
  TensorRef() = default;  // absent
  // Borrows the layout.
  TensorRef(const ShardLayout& layout, int index);
  // The tensor called `name`, or an absent one.
  static TensorRef find(const ShardLayout& layout, const std::string& name);

  bool present() const { return layout_ != nullptr; }
  int rows() const { return shard().rows; }                  // of this rank: [rows, columns]
  int columns() const { return shard().columns; }            // of this rank
  const WeightType& type() const { return shard().type; }    // of a GEMM weight
  DType input_dtype() const { return shard().input_dtype; }  // what a GEMM weight is multiplied with

  // Calls body(Weight) or body(Table) for the parts of the matrix in row order, and releases each behind its call. A
  // part is a group of panels, or all of them where the pages allow it (PageSource::group_by_group). A matrix that is
  // visited again in this pass is kept: `release` is true for the last visit alone.
  template <class Body>
  void for_each_weight(PageSource& pages, Body&& body, bool release = true) {
    for_each_part(pages, release, [&](const PanelGroup& part) {
      body(Weight{bind(weight_panels_, pages, part), rows(), columns(), shard().type});
    });
  }
  template <class Body>
  void for_each_table(PageSource& pages, Body&& body) {
    for_each_part(pages, /*release=*/true, [&](const PanelGroup& part) {
      body(Table{bind(table_panels_, pages, part), rows(), shard().type.values});
    });
  }
  // All of a table, where pages are not visited group by group. The caller releases it.
  Table table(PageSource& pages) { return {bind(table_panels_, pages, all_panels()), rows(), shard().type.values}; }

  // A vector [rows], or one without data where it is absent. The caller releases it.
  Vector vector(PageSource& pages) const;
  // Of a vector, of a table(), or of a matrix that for_each_weight() has kept.
  void release(PageSource& pages) const;

 private:
  template <class Body>
  void for_each_part(PageSource& pages, bool release, Body&& body) {
    if (!pages.group_by_group()) return visit(pages, all_panels(), release, body);
    for (const PanelGroup& part : placed().groups) visit(pages, part, release, body);
  }
  template <class Body>
  static void visit(PageSource& pages, const PanelGroup& part, bool release, Body& body) {
    body(part);
    if (release) release_part(pages, part);
  }
  static void release_part(PageSource& pages, const PanelGroup& part);
  PanelGroup all_panels() const;
  // Fills the views of a part's panels; returns them.
  template <class Panel>
  std::span<const Panel> bind(std::vector<Panel>& views, PageSource& pages, const PanelGroup& part) const;

  const ShardTensor& shard() const { return layout_->plan.tensors[index_]; }
  const TensorLayout& placed() const { return layout_->tensors[index_]; }

  const ShardLayout* layout_ = nullptr;
  int index_ = 0;
  std::vector<WeightPanel> weight_panels_;  // by panel, of the parts bound in this pass
  std::vector<TablePanel> table_panels_;
};

}  // namespace computron

// The work of all models, with lists of the models that have some: a decision looks at these and never at all models.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "computron/sched/model_list.h"
#include "computron/sched/model_work.h"

namespace computron {

class WorkTable {
 public:
  explicit WorkTable(std::vector<ModelWork> models);

  const ModelWork& operator[](ModelId model) const { return models_[model]; }
  // The only way to change a model's work: `change` is given it, and the lists and sums below follow.
  template <class Change>
  auto edit(ModelId model, Change&& change) {
    if constexpr (std::is_void_v<std::invoke_result_t<Change, ModelWork&>>) {
      change(models_[model]);
      follow(model);
    } else {
      auto result = change(models_[model]);
      follow(model);
      return result;
    }
  }

  // In no order. Models with requests that wait, or sequences that are not certain to end with what is in flight;
  std::span<const ModelId> with_work() const { return with_work_.models(); }
  // with running sequences;
  std::span<const ModelId> with_running() const { return with_running_.models(); }
  // with blocks of cache, used or not.
  std::span<const ModelId> with_cache() const { return with_cache_.models(); }
  std::size_t waiting() const { return waiting_; }              // requests that no step has begun, of all models
  std::size_t waiting_bytes() const { return waiting_bytes_; }  // host memory of theirs
  std::size_t preempted() const { return preempted_; }          // sequences that wait to run again, of all models
  // Calls `visit` for each model that has been edited since the last call for the same reader.
  enum class Reader : std::uint8_t { kPolicy, kCaches };
  template <class Visit>
  void visit_edited(Reader reader, Visit&& visit) {
    ModelList& edited = edited_[static_cast<std::size_t>(reader)];
    for (const ModelId model : edited.models()) visit(model);
    edited.clear();
  }
  // Where frames of the model's cache have changed and its work has not: kCaches is to look at it, too.
  void note_cache(ModelId model) { edited_[static_cast<std::size_t>(Reader::kCaches)].insert(model); }

 private:
  struct Counted {
    std::size_t waiting = 0, bytes = 0, preempted = 0;
  };
  void follow(ModelId model);

  std::vector<ModelWork> models_;
  ModelList with_work_, with_running_, with_cache_;
  std::array<ModelList, 2> edited_;  // [Reader]
  std::vector<Counted> counted_;     // [model] its part of the sums
  std::size_t waiting_ = 0, waiting_bytes_ = 0, preempted_ = 0;
};

}  // namespace computron

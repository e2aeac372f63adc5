// Rank 0's picture of one stage's pool, and how it finds frames: free ones first, then the pages of the coldest model,
// last page first, so that a model that loses pages keeps its head and can start at once.
//
// Every method that changes something also writes it into a StagePlan: what is planned here is what the ranks do.
#pragma once

#include <span>
#include <vector>

#include "computron/runtime/stage_state.h"

namespace computron {

class StagePool {
 public:
  StagePool(std::vector<const Image*> images, int frames);

  int frames() const { return state_.frames(); }
  int pages(ModelId model) const { return state_.image(model).pages(); }
  int missing_pages(ModelId model) const { return pages(model) - state_.resident_pages(model); }
  int cache_frames(ModelId model) const { return static_cast<int>(state_.cache(model).size()); }

  // Makes the model's cache list `frames` long.
  void resize_cache(ModelId model, int frames, std::span<const ModelId> coldest_first, StagePlan& plan);
  // Fetches every page of the model that is missing, in page order.
  void fetch_missing(ModelId model, std::span<const ModelId> coldest_first, StagePlan& plan);

  // Sequences come and go through the whole step.
  StageState& state() { return state_; }
  const StageState& state() const { return state_; }

 private:
  // A frame for something new. Only pages of models in `coldest_first` are given up. Error{kInternal} when there is
  // none: callers check the sums first.
  FrameId find_frame(std::span<const ModelId> coldest_first);

  StageState state_;
  std::vector<FrameId> free_;  // used from the back
};

}  // namespace computron

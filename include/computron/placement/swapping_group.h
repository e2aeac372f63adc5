// The device memory and host links of a group whose models do not all fit: which bytes of which model are on each
// stage, and when those that lack will be there. All ranks of a stage are alike, so a stage has one link.
//
// What a stage lacks is copied from the request's arrival on, behind what its link still has to copy and behind the
// last passes of the models that are given up for it. Models give up their last pages first, the least recently used
// model before the others; what several models have goes at the turn of the last of them. The pass trails the copy: it
// computes with a page once that is there. Of a model that is larger than the memory the rest takes turns in it, pass
// by pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace computron {

struct SwapCosts {
  std::int64_t device_bytes = 0;  // a rank's memory for weights
  std::int64_t page_bytes = 1;
  double link_bytes_per_s = 0;  // of each rank
};

class SwappingGroup {
 public:
  using StageBytes = std::vector<std::int64_t>;  // [stage] of one model, on each rank

  // What is in memory and crosses the links as one: what one model has, or what several have.
  struct Piece {
    StageBytes bytes;                   // in memory
    StageBytes link_bytes;              // over the links, where pages are coded, evenly over its pages; empty: as many
    std::vector<std::uint32_t> models;  // that have it
  };

  // Whether these do not all fit.
  static bool is_needed(const std::vector<StageBytes>& bytes, const SwapCosts& costs);

  // The first models are resident, as far as they fit; the first of all counts as used last. `link_bytes`: what each of
  // `models` takes over the links, where pages are coded, evenly over its pages; empty: as many as in device memory.
  SwappingGroup(const std::vector<StageBytes>& models, const SwapCosts& costs,
                const std::vector<StageBytes>& link_bytes = {});
  // The same of models that have pieces in common: each of `models` models has one at least, and its passes come to
  // its pieces in their order.
  SwappingGroup(std::uint32_t models, const std::vector<Piece>& pieces, const SwapCosts& costs);

  // Time of the links, if idle, until the whole model is there.
  double missing_s(std::uint32_t model) const { return missing_s_[model]; }

  // When the stages would end a pass that is asked for at `now`: ends[stage], from the stages' own times and the ends
  // of their last passes, clocks[stage].
  void predict(std::uint32_t model, double now, std::span<const double> times_s, std::span<const double> clocks,
               std::span<double> ends);
  // That pass takes place.
  void commit(std::uint32_t model, std::span<const double> ends);

  std::uint64_t swaps() const { return swaps_; }           // passes whose model was not all there
  double swapped_bytes() const { return swapped_bytes_; }  // over the links
  std::int64_t resident_bytes(std::uint32_t model, std::size_t stage) const;

 private:
  std::size_t at(std::uint32_t model_or_piece, std::size_t stage) const {
    return model_or_piece * free_.size() + stage;
  }
  std::int64_t missing(std::uint32_t model, std::size_t stage) const {
    return all_bytes_[at(model, stage)] - resident_bytes(model, stage);
  }
  std::int64_t most_bytes(std::uint32_t model, std::size_t stage) const;
  double missing_link_bytes(std::uint32_t model, std::size_t stage) const;
  double page_link_bytes(std::uint32_t model, std::size_t stage) const;
  template <class Visit>
  void visit_spare(std::uint32_t model, std::size_t stage, const Visit& visit);
  std::int64_t room_wanted(std::uint32_t model, std::size_t stage) const;
  double room_at(std::uint32_t model, std::size_t stage);
  double pass_end(std::uint32_t model, std::size_t stage, double now, double start, double time_s);
  void take_room(std::uint32_t model, std::size_t stage);
  void touch(std::uint32_t model);
  void note_missing(std::uint32_t model);

  SwapCosts costs_;
  std::vector<std::vector<std::uint32_t>> pieces_of_;  // [model] in the order of a pass
  std::vector<std::vector<std::uint32_t>> models_of_;  // [piece]
  std::vector<std::uint32_t> common_;                  // pieces of several models
  std::vector<std::size_t> turns_;                     // [piece] of its models, how many have had theirs: visit_spare()
  std::vector<std::int64_t> bytes_, resident_;         // [piece, stage]
  std::vector<double> link_share_;                     // [piece, stage] of bytes in memory that cross the link
  std::vector<std::int64_t> all_bytes_;                // [model, stage]
  std::vector<double> last_end_;                       // [model, stage] of its last pass
  std::vector<double> missing_s_;                      // [model]
  std::vector<std::int64_t> free_;                     // [stage]
  std::vector<double> link_, link_next_;               // [stage] when its link is free; and after the predicted pass
  std::vector<std::uint32_t> order_;                   // models, the least recently used first
  std::uint64_t swaps_ = 0;
  double swapped_bytes_ = 0;
};

}  // namespace computron

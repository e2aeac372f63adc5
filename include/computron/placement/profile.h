// What a request of a model costs on a group of ranks, by the group's shape: AlpaServe's profiles. A search and a fast
// simulation know nothing else of a model.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace computron {

constexpr std::int64_t kMostShapeRanks = 65'536;                 // tp · pp
constexpr std::int64_t kMostStageBytes = std::int64_t{1} << 50;  // that a rank of a stage holds of a model

struct GroupShape {
  int tp = 1;
  int pp = 1;
  int ranks() const { return tp * pp; }
  auto operator<=>(const GroupShape&) const = default;  // NOLINT(modernize-use-nullptr): it has none
};

// Whether tp and pp are 1 or more, and their product is at most kMostShapeRanks.
bool is_possible(const GroupShape& shape);

struct PassTimes {
  int rows = 1;                // tokens of the pass
  std::vector<float> stage_s;  // [pp]
};

// Weights that several models have, since their pages are equal: in memory and over a link they count once. Of models
// in one group, and in the host memory of a node of models in groups of one shape.
struct SharedPart {
  std::string name;                            // the same in every model that has it
  std::vector<std::int64_t> stage_bytes;       // [pp] of a shape's stage_bytes
  std::vector<std::int64_t> link_bytes = {};   // [pp] of its link_bytes; empty: as many as stage_bytes
  std::vector<std::int64_t> frame_bytes = {};  // [pp] of its frame_bytes; empty: as many
  const std::vector<std::int64_t>& stage_frame_bytes() const { return frame_bytes.empty() ? stage_bytes : frame_bytes; }
  const std::vector<std::int64_t>& stage_link_bytes() const { return link_bytes.empty() ? stage_bytes : link_bytes; }
};

struct ShapeProfile {
  std::vector<float> stage_s;             // [pp] of one request
  std::vector<std::int64_t> stage_bytes;  // [pp] weights that each rank of the stage holds
  // [pp] What these take in host memory and over a rank's link, where pages are coded; empty: as many as stage_bytes.
  std::vector<std::int64_t> link_bytes = {};
  std::vector<int> layers = {};  // [pp] of each stage; empty: cut by its parameters, as a job does by itself
  std::vector<std::int64_t> frame_bytes = {};  // [pp] of the pages that hold these weights, full or not; empty: as many
  // What a simulation of every pass knows besides.
  std::vector<PassTimes> passes = {};              // by rows, ascending; empty: a pass takes stage_s, whatever its rows
  std::vector<std::int64_t> operation_bytes = {};  // [pp] of these weights, of the largest operation; empty: a page
  std::vector<std::int64_t> cache_token_bytes = {};  // [pp] keys and values of a token, on each rank; empty: an encoder
  bool measured = true;                              // false: a formula has filled it in
  std::vector<SharedPart> shared = {};  // of the bytes above, in the order in which a pass comes to them; none twice
  std::int64_t slot_bytes = 0;          // what is not shared is an adapter's, in slots of this size; 0: in pages

  float latency_s() const;          // of a request alone: all stages
  std::int64_t rank_bytes() const;  // in device memory, of the rank that holds most
  // [pp] In device memory, where a page that is not full takes a frame.
  const std::vector<std::int64_t>& stage_frame_bytes() const { return frame_bytes.empty() ? stage_bytes : frame_bytes; }
  // [pp] In host memory, and what a swap copies.
  const std::vector<std::int64_t>& stage_link_bytes() const { return link_bytes.empty() ? stage_bytes : link_bytes; }
};

struct ModelProfile {
  std::string id;
  std::map<GroupShape, ShapeProfile> shapes;  // where it can be served; the others do not occur
  // Models of one family may have their requests in one pass: a base and its adapters. Empty: it has none.
  std::string family = {};

  const ShapeProfile* find(const GroupShape& shape) const;  // null: it cannot be served so
  double alone_s() const;                                   // of a request alone, on the fewest ranks; 0 without shapes
};

// A group with the models that it serves, by their place in a list of profiles.
struct PlacedGroup {
  GroupShape shape;
  std::vector<std::uint32_t> models;
  auto operator<=>(const PlacedGroup&) const = default;  // NOLINT(modernize-use-nullptr): it has none
};
using ModelPlacement = std::vector<PlacedGroup>;  // over consecutive ranks

// Sorted models, then sorted groups: equal for placements that differ in names only.
ModelPlacement normal_form(ModelPlacement placement);

int ranks_of(const ModelPlacement& placement);
std::size_t replicas_of(const ModelPlacement& placement);

// [stage] Bytes of weights that a rank of the group holds of all its models, of what several have once.
std::vector<std::int64_t> bytes_together(const std::vector<ModelProfile>& models, const PlacedGroup& group);

// By model its siblings, in rising order, the model itself among them: those that have a part in common with it, or the
// family, or siblings. Of one that has none: nothing.
std::vector<std::vector<std::uint32_t>> siblings_of(const std::vector<ModelProfile>& models);

// Error{kUsage} naming a model whose profile is not of its shape, or has a time or size that cannot be, or a part that
// another model has in another size.
void check_profiles(const std::vector<ModelProfile>& models);

}  // namespace computron

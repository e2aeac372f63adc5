#include "computron/placement/profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "computron/base/json_text.h"
#include "computron/placement/stage_slicing.h"
#include "src/requests/listed_objects.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr double kBytesInGb = 1e9;
constexpr double kShortest_s = 1e-12, kLongest_s = 1e12;  // of a stage
constexpr int kMostBlocks = 1'000;
constexpr std::int64_t kMostPassRows = std::int64_t{1} << 30;
constexpr std::int64_t kMostMemory = std::int64_t{1} << 60;  // of a rank or a node

// 0 where it is absent.
double number_of(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  const double value = found->is_number() ? found->get<double>() : -1;
  if (!(std::isfinite(value) && value >= 0))
    refuse(where, fmt::format("{}: must be a number that is not negative", key));
  return value;
}

std::int64_t bytes_up_to(std::int64_t most, const std::string& where, const json& value, const char* key) {
  const std::int64_t bytes = bytes_of(where, value, key);
  if (bytes > most) refuse(where, fmt::format("{}: must be at most {} bytes", key, most));
  return bytes;
}

std::int64_t memory_or_none(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? 0 : bytes_up_to(kMostMemory, where, *found, key);
}

// tp, pp, ranks of a node, or blocks.
int count_of(const std::string& where, const json& object, const char* key, int absent,
             std::int64_t most = kMostShapeRanks) {
  const int count = integer_of(where, object, key, absent);
  if (count < 1 && object.contains(key)) refuse(where, fmt::format("{}: must be at least 1", key));
  if (count > most) refuse(where, fmt::format("{}: must be at most {}", key, most));
  return count;
}

MachineProfile parse_machine(const std::string& where, const json& object) {
  check_keys(where, object,
             {"device_memory", "host_memory", "ranks_per_node", "link_gbps", "page_size", "absent_share",
              "stage_penalty", "constant_s", "step_latency_s"});
  MachineProfile machine;
  machine.device_bytes = memory_or_none(where, object, "device_memory");
  machine.host_bytes = memory_or_none(where, object, "host_memory");
  machine.ranks_per_node = count_of(where, object, "ranks_per_node", 0);
  machine.link_bytes_per_s = number_of(where, object, "link_gbps") * kBytesInGb;
  machine.page_bytes = memory_or_none(where, object, "page_size");
  machine.stage_penalty = number_of(where, object, "stage_penalty");
  machine.constant_s = number_of(where, object, "constant_s");
  machine.step_latency_s = number_of(where, object, "step_latency_s");
  machine.absent_share = number_of(where, object, "absent_share");
  if (machine.absent_share > 1) refuse(where, "absent_share: must be at most 1");
  return machine;
}

// A list of as many values as there are stages.
const json& stages_of(const std::string& where, const json& object, const char* key, int pp) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array() || std::cmp_not_equal(found->size(), pp)) {
    refuse(where, fmt::format("{}: must be a list of {}, one a stage", key, pp));
  }
  return *found;
}

std::vector<float> times_of(const std::string& where, const json& object, int pp) {
  std::vector<float> times;
  for (const json& time : stages_of(where, object, "stage_s", pp)) {
    const double time_s = time.is_number() ? time.get<double>() : 0;
    if (!(time_s > kShortest_s && time_s < kLongest_s)) refuse(where, "stage_s: must be seconds above 0");
    times.push_back(static_cast<float>(time_s));
  }
  return times;
}

std::vector<std::int64_t> sizes_of(const std::string& where, const json& object, const char* key, int pp) {
  std::vector<std::int64_t> sizes;
  for (const json& bytes : stages_of(where, object, key, pp)) {
    sizes.push_back(bytes_up_to(kMostStageBytes, where, bytes, key));
  }
  return sizes;
}

// `in_order(size, bytes)` of each stage; `bound` names what it refuses.
template <class Order>
std::vector<std::int64_t> sizes_beside(const std::string& where, const json& object, const char* key,
                                       const std::vector<std::int64_t>& stage_bytes, const Order& in_order,
                                       const char* bound) {
  std::vector<std::int64_t> sizes = sizes_of(where, object, key, static_cast<int>(stage_bytes.size()));
  if (!std::ranges::equal(sizes, stage_bytes, in_order)) {
    refuse(where, fmt::format("{}: must not be {} than stage_bytes", key, bound));
  }
  return sizes;
}

const json& list_of(const std::string& where, const json& object, const char* key, const char* what) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array() || found->empty()) {
    refuse(where, fmt::format("{}: must be a list of at least one {}", key, what));
  }
  return *found;
}

std::vector<PassTimes> passes_of(const std::string& where, const json& object, int pp) {
  std::vector<PassTimes> passes;
  for (const json& pass : list_of(where, object, "passes", "pass")) {
    const std::string own = fmt::format("{}, pass {}", where, passes.size());
    check_keys(own, pass, {"rows", "stage_s"});
    const int rows = count_of(own, pass, "rows", 0, kMostPassRows);
    if (rows <= (passes.empty() ? 0 : passes.back().rows)) refuse(own, "rows: must be more than of the pass before");
    passes.push_back({rows, times_of(own, pass, pp)});
  }
  return passes;
}

// [{"part": "lower", "stage_bytes": ["1.5GB"]}, ...]; what their sizes must be beside others' check_profiles() says.
std::vector<SharedPart> parts_of(const std::string& where, const json& object, int pp) {
  std::vector<SharedPart> parts;
  for (const json& entry : list_of(where, object, "shared", "part")) {
    const std::string own = fmt::format("{}, shared {}", where, parts.size());
    check_keys(own, entry, {"part", "stage_bytes", "link_bytes", "frame_bytes"});
    SharedPart& part = parts.emplace_back();
    part.name = text_of(own, entry, "part");
    if (part.name.empty()) refuse(own, "part: must be a name");
    part.stage_bytes = sizes_of(own, entry, "stage_bytes", pp);
    if (entry.contains("link_bytes")) {
      part.link_bytes = sizes_beside(own, entry, "link_bytes", part.stage_bytes, std::ranges::less_equal(), "more");
    }
    if (entry.contains("frame_bytes")) {
      part.frame_bytes =
          sizes_beside(own, entry, "frame_bytes", part.stage_bytes, std::ranges::greater_equal(), "less");
    }
  }
  return parts;
}

bool flag_of(const std::string& where, const json& object, const char* key, bool absent) {
  const auto found = object.find(key);
  if (found == object.end()) return absent;
  if (!found->is_boolean()) refuse(where, fmt::format("{}: must be true or false", key));
  return found->get<bool>();
}

ShapeProfile parse_shape(const std::string& where, const json& object, const GroupShape& shape) {
  ShapeProfile profile{.stage_s = times_of(where, object, shape.pp),
                       .stage_bytes = sizes_of(where, object, "stage_bytes", shape.pp)};
  if (object.contains("link_bytes")) {
    profile.link_bytes =
        sizes_beside(where, object, "link_bytes", profile.stage_bytes, std::ranges::less_equal(), "more");
  }
  profile.measured = flag_of(where, object, "measured", true);
  if (object.contains("passes")) profile.passes = passes_of(where, object, shape.pp);
  if (object.contains("cache_token_bytes")) {
    profile.cache_token_bytes = sizes_of(where, object, "cache_token_bytes", shape.pp);
  }
  if (object.contains("frame_bytes")) {
    profile.frame_bytes =
        sizes_beside(where, object, "frame_bytes", profile.stage_bytes, std::ranges::greater_equal(), "less");
  }
  if (object.contains("operation_bytes")) {
    profile.operation_bytes = sizes_of(where, object, "operation_bytes", shape.pp);
  }
  if (object.contains("shared")) profile.shared = parts_of(where, object, shape.pp);
  if (object.contains("slot_bytes")) {
    profile.slot_bytes = bytes_up_to(kMostStageBytes, where, object["slot_bytes"], "slot_bytes");
  }
  if (!object.contains("layers")) return profile;
  for (const json& count : stages_of(where, object, "layers", shape.pp)) {
    const bool fits = count.is_number_integer() && count > 0 && count < 1'000'000;
    if (!fits) refuse(where, "layers: must be numbers of layers above 0");
    profile.layers.push_back(count.get<int>());
  }
  return profile;
}

std::string place_of(const std::string& where, const GroupShape& shape) {
  std::string own = fmt::format("{} (tp {} x pp {})", where, shape.tp, shape.pp);
  if (!is_possible(shape)) refuse(own, fmt::format("tp, pp: their product must be at most {}", kMostShapeRanks));
  return own;
}

void add(const std::string& where, const GroupShape& shape, ShapeProfile profile, ModelProfile& model) {
  for (const std::int64_t bytes : profile.stage_bytes) {
    if (bytes > kMostStageBytes) refuse(where, fmt::format("bytes: of a stage at most {}", kMostStageBytes));
  }
  if (!model.shapes.emplace(shape, std::move(profile)).second) refuse(where, "such a shape is there twice");
}

void add_shape(const std::string& where, const json& object, ModelProfile& model) {
  check_keys(where, object,
             {"tp", "pp", "stage_s", "stage_bytes", "link_bytes", "layers", "passes", "frame_bytes", "operation_bytes",
              "cache_token_bytes", "measured", "shared", "slot_bytes"});
  const GroupShape shape{count_of(where, object, "tp", 1), count_of(where, object, "pp", 1)};
  const std::string own = place_of(where, shape);
  add(own, shape, parse_shape(own, object, shape), model);
}

// {"s": 0.001, "bytes": "200MB", "link_bytes": "140MB"}; nothing where it is absent.
LayerProfile layer_of(const std::string& where, const json& object) {
  const double time_s = number_of(where, object, "s");
  if (time_s > kLongest_s) refuse(where, "s: is too long");
  LayerProfile layer{.time_s = time_s};
  const auto bytes = object.find("bytes"), link_bytes = object.find("link_bytes");
  if (bytes != object.end()) layer.bytes = bytes_up_to(kMostStageBytes, where, *bytes, "bytes");
  if (link_bytes == object.end()) return layer;
  layer.link_bytes = bytes_of(where, *link_bytes, "link_bytes");
  if (*layer.link_bytes > layer.bytes) refuse(where, "link_bytes: must not be more than bytes");
  return layer;
}

LayerProfile end_layer(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  const std::string own = fmt::format("{}, {}", where, key);
  check_keys(own, *found, {"s", "bytes", "link_bytes"});
  return layer_of(own, *found);
}

LayeredProfile layers_of(const std::string& where, const json& object) {
  LayeredProfile layers;
  layers.embedding = end_layer(where, object, "embedding");
  layers.head = end_layer(where, object, "head");
  layers.hop_s = number_of(where, object, "hop_s");
  for (const json& block : list_of(where, object, "blocks", "block")) {
    const std::string own = where + ", blocks";
    check_keys(own, block, {"count", "s", "bytes", "link_bytes"});
    const int count = count_of(own, block, "count", 1, kMostBlocks);
    const LayerProfile layer = layer_of(own, block);
    if (!(layer.time_s > kShortest_s)) refuse(own, "s: must be seconds above 0");
    layers.blocks.insert(layers.blocks.end(), static_cast<std::size_t>(count), layer);
    if (layers.blocks.size() > kMostBlocks) refuse(own, fmt::format("more than {} blocks", kMostBlocks));
  }
  return layers;
}

// The shapes of one tp and each pp, cut so that the slowest stage is fastest.
void add_sliced(const std::string& where, const json& object, const MachineProfile& machine, ModelProfile& model) {
  check_keys(where, object, {"tp", "pp", "embedding", "blocks", "head", "hop_s"});
  const int tp = count_of(where, object, "tp", 1);
  const LayeredProfile layers = layers_of(where, object);
  for (const json& stages : list_of(where, object, "pp", "number of stages")) {
    const bool fits = stages.is_number_integer() && stages >= 1 && stages <= layers.blocks.size();
    if (!fits) refuse(where, fmt::format("pp: must be 1 to {}, as many as there are blocks", layers.blocks.size()));
    const GroupShape shape{tp, stages.get<int>()};
    const std::string own = place_of(where, shape);
    ShapeProfile profile = sliced(layers, shape.pp, machine.link_bytes_per_s, machine.absent_share);
    if (shape.pp == 1) profile.layers.clear();
    add(own, shape, std::move(profile), model);
  }
}

ModelProfile parse_model(const std::string& where, const json& object, const MachineProfile& machine) {
  check_keys(where, object, {"id", "shapes", "by_layer", "family"});
  ModelProfile model{.id = text_of(where, object, "id"), .shapes = {}};
  if (object.contains("family")) model.family = text_of(where, object, "family");
  const std::string own = fmt::format("{} ({})", where, shown(model.id));
  if (!is_model_id(model.id)) refuse(own, "id: must be 1 to 128 of A-Z a-z 0-9 . _ / -");
  std::size_t number = 0;
  if (object.contains("by_layer")) {
    for (const json& layers : list_of(own, object, "by_layer", "description of layers")) {
      add_sliced(fmt::format("{}, by_layer {}", own, number++), layers, machine, model);
    }
    if (!object.contains("shapes")) return model;
  }
  number = 0;
  for (const json& shape : list_of(own, object, "shapes", "shape")) {
    add_shape(fmt::format("{}, shape {}", own, number++), shape, model);
  }
  return model;
}

}  // namespace

ProfileFile read_profiles(const std::string& file) {
  const std::string where = fmt::format("profiles '{}'", file);
  const json object = read_listed("profiles", file);
  check_keys(where, object, {"machine", "models"});
  ProfileFile profiles;
  if (object.contains("machine")) profiles.machine = parse_machine(where + ", machine", object["machine"]);
  for (const json& entry : list_of(where, object, "models", "model")) {
    const std::string own = fmt::format("{}, model {}", where, profiles.models.size());
    ModelProfile model = parse_model(own, entry, profiles.machine);
    if (std::ranges::find(profiles.models, model.id, &ModelProfile::id) != profiles.models.end()) {
      refuse(own, fmt::format("id: {} is there twice", shown(model.id)));
    }
    profiles.models.push_back(std::move(model));
  }
  try {
    check_profiles(profiles.models);  // what a model alone does not say: parts that it shares
  } catch (const Error& error) {
    refuse(where, error.what());
  }
  return profiles;
}

}  // namespace computron

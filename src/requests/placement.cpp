#include "computron/requests/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "computron/base/json_text.h"
#include "src/requests/listed_objects.h"

namespace computron {
namespace {

using nlohmann::json;

int ranks_of(const std::string& where, const json& object, const char* key) {
  const int ranks = integer_of(where, object, key, /*absent=*/1);
  if (ranks < 1) refuse(where, fmt::format("{}: must be at least 1", key));
  return ranks;
}

std::vector<std::string> ids_of(const std::string& where, const json& object) {
  const auto found = object.find("models");
  if (found == object.end() || !found->is_array() || found->empty()) {
    refuse(where, "models: must be a list of at least one model id");
  }
  std::vector<std::string> ids;
  for (const json& id : *found) {
    if (!id.is_string()) refuse(where, "models: must be a list of model ids");
    ids.push_back(id.get<std::string>());
    if (std::find(ids.begin(), ids.end() - 1, ids.back()) != ids.end() - 1) {
      refuse(where, fmt::format("models: {} is there twice", shown(ids.back())));
    }
  }
  return ids;
}

std::vector<int> stages_of(const std::string& where, const json& list, int pp) {
  std::vector<int> layers;
  for (const json& count : list.is_array() ? list : json::array()) {
    const bool fits = count.is_number_unsigned() && std::in_range<int>(count.get<std::uint64_t>());
    if (fits && count.get<int>() > 0) layers.push_back(count.get<int>());
  }
  if (!list.is_array() || layers.size() != list.size() || std::cmp_not_equal(layers.size(), pp)) {
    refuse(where, fmt::format("must be a list of {} numbers of layers, one a stage", pp));
  }
  return layers;
}

GroupSpec parse_group(const std::string& where, const json& object) {
  check_keys(where, object, {"tp", "pp", "models", "layers"});
  GroupSpec group;
  group.tp = ranks_of(where, object, "tp");
  group.pp = ranks_of(where, object, "pp");
  group.models = ids_of(where, object);
  const json layers = object.value("layers", json::object());
  if (!layers.is_object()) refuse(where, "layers: must be an object of lists by model id");
  for (const auto& [id, list] : layers.items()) {
    if (std::find(group.models.begin(), group.models.end(), id) == group.models.end()) {
      refuse(where, fmt::format("layers: {} is no model of the group", shown(id)));
    }
    group.layers[id] = stages_of(fmt::format("{}, layers of {}", where, id), list, group.pp);
  }
  return group;
}

// Only metrics and reports read it, at the end of the job: better refused now.
std::string predicted_of(const std::string& where, const json& predicted) {
  if (!predicted.is_object()) refuse(where, "predicted: must be an object");
  for (const char* key :
       {"duration_s", "requests", "attainment", "mean_latency_s", "p99_latency_s", "makespan_s", "swaps_per_s"}) {
    const json value = predicted.value(key, json());
    if (!value.is_number() && !value.is_null()) refuse(where, fmt::format("predicted, {}: must be a number", key));
  }
  return predicted.dump(-1, ' ', false, json::error_handler_t::replace);
}

// "10 + 14"
std::string sum_text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : " + ") + std::to_string(number);
  return text;
}

}  // namespace

Placement read_placement(const std::string& file) {
  const std::string where = fmt::format("placement '{}'", file);
  const json object = read_listed("placement", file);
  check_keys(where, object, {"models", "groups", "predicted"});
  Placement placement;
  if (object.contains("predicted")) placement.predicted = predicted_of(where, object["predicted"]);
  if (object.contains("models")) placement.models = models_of(where + ", models", file, object["models"]);
  const auto groups = object.find("groups");
  if (groups == object.end() || !groups->is_array() || groups->empty()) {
    refuse(where, "groups: must be a list of at least one group");
  }
  for (const json& group : *groups) {
    placement.groups.push_back(parse_group(fmt::format("{}, group {}", where, placement.groups.size()), group));
  }
  return placement;
}

std::string to_string(const std::vector<GroupSpec>& groups) {
  std::string text;
  for (const GroupSpec& group : groups) {
    std::string models;
    for (const std::string& id : group.models) {
      if (!models.empty()) models += ", ";
      models += id;
      const auto layers = group.layers.find(id);
      if (layers != group.layers.end()) models += fmt::format(" ({} layers)", sum_text(layers->second));
    }
    text += fmt::format("{}tp {} x pp {}: {}", text.empty() ? "" : "; ", group.tp, group.pp, models);
  }
  return text;
}

}  // namespace computron

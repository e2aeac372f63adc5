#include <fmt/format.h>

#include "computron/base/json_text.h"
#include "computron/placement/profile_file.h"

namespace computron {
namespace {

// The shortest texts that read back as the same numbers.
template <class Value>
std::string list_text(const std::vector<Value>& values) {
  std::string text = "[";
  for (const Value& value : values) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", value);
  return text + "]";
}

std::string passes_text(const std::vector<PassTimes>& passes) {
  std::string text;
  for (const PassTimes& pass : passes) {
    text += fmt::format("{}\n        {{\"rows\": {}, \"stage_s\": {}}}", text.empty() ? "" : ",", pass.rows,
                        list_text(pass.stage_s));
  }
  return text;
}

std::string parts_text(const std::vector<SharedPart>& parts) {
  std::string text;
  for (const SharedPart& part : parts) {
    text += fmt::format("{}\n        {{\"part\": {}, \"stage_bytes\": {}", text.empty() ? "" : ",",
                        json_string(part.name), list_text(part.stage_bytes));
    if (!part.link_bytes.empty()) text += fmt::format(", \"link_bytes\": {}", list_text(part.link_bytes));
    if (!part.frame_bytes.empty()) text += fmt::format(", \"frame_bytes\": {}", list_text(part.frame_bytes));
    text += "}";
  }
  return text;
}

std::string shape_text(const GroupShape& shape, const ShapeProfile& profile) {
  std::string text = fmt::format("{{\"tp\": {}, \"pp\": {}, \"stage_s\": {},\n      \"stage_bytes\": {}", shape.tp,
                                 shape.pp, list_text(profile.stage_s), list_text(profile.stage_bytes));
  if (!profile.link_bytes.empty()) text += fmt::format(", \"link_bytes\": {}", list_text(profile.link_bytes));
  if (!profile.layers.empty()) text += fmt::format(", \"layers\": {}", list_text(profile.layers));
  if (!profile.frame_bytes.empty()) text += fmt::format(", \"frame_bytes\": {}", list_text(profile.frame_bytes));
  if (!profile.operation_bytes.empty()) {
    text += fmt::format(", \"operation_bytes\": {}", list_text(profile.operation_bytes));
  }
  if (!profile.cache_token_bytes.empty()) {
    text += fmt::format(", \"cache_token_bytes\": {}", list_text(profile.cache_token_bytes));
  }
  if (profile.slot_bytes > 0) text += fmt::format(", \"slot_bytes\": {}", profile.slot_bytes);
  if (!profile.measured) text += ", \"measured\": false";
  if (!profile.shared.empty()) text += fmt::format(",\n      \"shared\": [{}]", parts_text(profile.shared));
  if (!profile.passes.empty()) text += fmt::format(",\n      \"passes\": [{}]", passes_text(profile.passes));
  return text + "}";
}

std::string model_text(const ModelProfile& model) {
  std::string shapes;
  for (const auto& [shape, profile] : model.shapes) {
    shapes += fmt::format("{}\n     {}", shapes.empty() ? "" : ",", shape_text(shape, profile));
  }
  const std::string family = model.family.empty() ? "" : fmt::format("\"family\": {}, ", json_string(model.family));
  return fmt::format("{{\"id\": {}, {}\"shapes\": [{}]}}", json_string(model.id), family, shapes);
}

// What is 0 is left out.
std::string machine_text(const MachineProfile& machine) {
  std::string text;
  const auto add = [&text](const char* key, auto value) {
    if (value != 0) text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, value);
  };
  add("device_memory", machine.device_bytes);
  add("host_memory", machine.host_bytes);
  add("ranks_per_node", machine.ranks_per_node);
  add("link_gbps", machine.link_bytes_per_s / 1e9);
  add("page_size", machine.page_bytes);
  add("absent_share", machine.absent_share);
  add("stage_penalty", machine.stage_penalty);
  add("constant_s", machine.constant_s);
  add("step_latency_s", machine.step_latency_s);
  return text;
}

}  // namespace

std::string profile_text(const ProfileFile& profiles) {
  std::string models;
  for (const ModelProfile& model : profiles.models) {
    models += fmt::format("{}\n   {}", models.empty() ? "" : ",", model_text(model));
  }
  return fmt::format("{{\"machine\": {{{}}},\n \"models\": [{}]}}\n", machine_text(profiles.machine), models);
}

}  // namespace computron

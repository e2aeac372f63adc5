#include "computron/requests/model_list.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "computron/base/error.h"
#include "computron/base/json_text.h"
#include "src/requests/listed_objects.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxIdBytes = 128;

// `where` names the entry at fault.
void check_entry(const std::string& where, const ModelEntry& entry, std::set<std::string>& ids) {
  if (!is_model_id(entry.id)) {
    refuse(where, fmt::format("{} is no model id (1 to {} of A-Z a-z 0-9 . _ / -)", shown(entry.id), kMaxIdBytes));
  }
  if (entry.path.empty() || entry.path.find('\0') != std::string::npos) refuse(where, "path: names no file");
  if (entry.adapter.find('\0') != std::string::npos) refuse(where, "adapter: names no file");
  if (!ids.insert(entry.id).second)
    refuse(where, fmt::format("the model id '{}' is taken by an earlier entry", entry.id));
}

constexpr std::string_view kJoint = ".h5+";

// Where BASE.h5+ADAPTER.h5 is joined; npos where it names one file. Names may have the joint in them, so files that are
// there decide: the whole name's, else the first beginning's that is one; where none is, the first joint.
std::size_t joint_of(const std::string& path) {
  const auto is_file = [](const std::string& name) {
    std::error_code error;
    return std::filesystem::is_regular_file(name, error);
  };
  const std::size_t first = path.find(kJoint);
  if (first == std::string::npos || is_file(path)) return std::string::npos;
  for (std::size_t at = first; at != std::string::npos; at = path.find(kJoint, at + 1)) {
    if (is_file(path.substr(0, at + kJoint.size() - 1))) return at;
  }
  return first;
}

ModelEntry parse_argument(const std::string& item) {
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos) refuse(fmt::format("--model {}", shown(item)), "must be ID=FILE");
  ModelEntry entry;
  entry.id = item.substr(0, equals);
  entry.path = item.substr(equals + 1);
  const std::size_t joint = joint_of(entry.path);
  if (joint == std::string::npos) return entry;
  entry.adapter = entry.path.substr(joint + kJoint.size());
  entry.path.resize(joint + kJoint.size() - 1);
  if (entry.adapter.empty()) refuse(fmt::format("--model {}", shown(item)), "must be ID=BASE.h5+ADAPTER.h5");
  return entry;
}

ModelEntry parse_object(const std::string& where, const json& object, const std::filesystem::path& folder) {
  check_keys(where, object, {"id", "path", "adapter", "pinned", "priority", "slo", "chat_format"});
  ModelEntry entry;
  entry.id = text_of(where, object, "id");
  entry.path = text_of(where, object, "path");
  if (!entry.path.empty()) entry.path = (folder / entry.path).string();  // an absolute path stays itself
  if (object.contains("adapter")) {
    entry.adapter = text_of(where, object, "adapter");
    if (entry.adapter.empty()) refuse(where, "adapter: names no file");
    entry.adapter = (folder / entry.adapter).string();
  }
  entry.pinned = flag_of(where, object, "pinned");
  entry.priority = integer_of(where, object, "priority");
  entry.slo_s = seconds_of(where, object, "slo");
  if (object.contains("chat_format")) entry.chat_format = text_of(where, object, "chat_format");
  if (!entry.chat_format.empty() && !ChatFormat::is_known(entry.chat_format)) {
    refuse(where, fmt::format("chat_format: {} is none of {}", shown(entry.chat_format), ChatFormat::known_names()));
  }
  return entry;
}

}  // namespace

bool is_model_id(std::string_view id) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
  return !id.empty() && id.size() <= kMaxIdBytes && id.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::vector<ModelEntry> parse_model_arguments(const std::vector<std::string>& items) {
  std::vector<ModelEntry> entries;
  std::set<std::string> ids;
  for (const std::string& item : items) {
    entries.push_back(parse_argument(item));
    check_entry(fmt::format("--model {}", shown(item)), entries.back(), ids);
  }
  return entries;
}

std::vector<ModelEntry> models_of(const std::string& where, const std::string& file, const json& list) {
  if (!list.is_array() || list.empty()) refuse(where, "must be a JSON list of at least one model");
  const auto folder = std::filesystem::path(file).parent_path();
  std::vector<ModelEntry> entries;
  std::set<std::string> ids;
  for (const json& object : list) {
    const auto entry = fmt::format("{}, entry {}", where, entries.size());
    entries.push_back(parse_object(entry, object, folder));
    check_entry(entry, entries.back(), ids);
  }
  return entries;
}

std::vector<ModelEntry> read_model_list(const std::string& file) {
  return models_of(fmt::format("model list '{}'", file), file, read_listed("model list", file));
}

}  // namespace computron

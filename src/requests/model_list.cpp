#include "computron/requests/model_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "computron/base/json.h"
#include "computron/base/json_text.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxIdBytes = 128;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("{}: {}", where, why));
}

// `where` names the entry at fault.
void check_entry(const std::string& where, const ModelEntry& entry, std::set<std::string>& ids) {
  if (!is_model_id(entry.id)) {
    refuse(where, fmt::format("{} is no model id (1 to {} of A-Z a-z 0-9 . _ / -)", shown(entry.id), kMaxIdBytes));
  }
  if (entry.path.empty() || entry.path.find('\0') != std::string::npos) refuse(where, "path: names no file");
  if (!ids.insert(entry.id).second)
    refuse(where, fmt::format("the model id '{}' is taken by an earlier entry", entry.id));
}

ModelEntry parse_argument(const std::string& item) {
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos) refuse(fmt::format("--model {}", shown(item)), "must be ID=FILE");
  ModelEntry entry;
  entry.id = item.substr(0, equals);
  entry.path = item.substr(equals + 1);
  return entry;
}

std::string read_text(const std::string& file) {
  const auto fail = [&file](const char* why) {
    throw Error(ExitCode::kNoInput, fmt::format("cannot read the model list '{}': {}", file, why));
  };
  std::error_code status;
  if (std::filesystem::exists(file, status) && !std::filesystem::is_regular_file(file, status)) {
    fail("it is not a regular file");
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) fail("reading failed");
  return text;
}

json parse_list(const std::string& file) {
  json list;
  if (const auto fault = parse_json(read_text(file), {}, list)) {
    refuse(fmt::format("model list '{}'", file), cut(fault->message, 200));
  }
  if (!list.is_array() || list.empty()) {
    refuse(fmt::format("model list '{}'", file), "must be a JSON list of at least one model");
  }
  return list;
}

const std::string& text_of(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) refuse(where, fmt::format("{}: must be a string", key));
  return found->get_ref<const std::string&>();
}

bool flag_of(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return false;
  if (!found->is_boolean()) refuse(where, fmt::format("{}: must be true or false", key));
  return found->get<bool>();
}

int integer_of(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  // Numbers that an int holds; nlohmann keeps larger ones unsigned.
  const bool fits = found->is_number_unsigned()
                        ? std::in_range<int>(found->get<std::uint64_t>())
                        : found->is_number_integer() && std::in_range<int>(found->get<std::int64_t>());
  if (!fits) refuse(where, fmt::format("{}: must be an integer of 32 bits", key));
  return found->get<int>();
}

void check_keys(const std::string& where, const json& object) {
  if (!object.is_object()) refuse(where, "must be an object");
  constexpr std::string_view kKeys[] = {"id", "path", "pinned", "priority"};
  for (const auto& [key, value] : object.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      refuse(where, fmt::format("unknown key {} (known: id, path, pinned, priority)", shown(key)));
    }
  }
}

ModelEntry parse_object(const std::string& where, const json& object, const std::filesystem::path& folder) {
  check_keys(where, object);
  ModelEntry entry;
  entry.id = text_of(where, object, "id");
  entry.path = text_of(where, object, "path");
  if (!entry.path.empty()) entry.path = (folder / entry.path).string();  // an absolute path stays itself
  entry.pinned = flag_of(where, object, "pinned");
  entry.priority = integer_of(where, object, "priority");
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

std::vector<ModelEntry> read_model_list(const std::string& file) {
  const auto folder = std::filesystem::path(file).parent_path();
  std::vector<ModelEntry> entries;
  std::set<std::string> ids;
  for (const json& object : parse_list(file)) {
    const auto where = fmt::format("model list '{}', entry {}", file, entries.size());
    entries.push_back(parse_object(where, object, folder));
    check_entry(where, entries.back(), ids);
  }
  return entries;
}

}  // namespace computron

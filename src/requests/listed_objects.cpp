#include "src/requests/listed_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/json_text.h"
#include "computron/base/size.h"

namespace computron {
namespace {

using nlohmann::json;

std::string read_text(const std::string& kind, const std::string& file) {
  const auto fail = [&](const char* why) {
    throw Error(ExitCode::kNoInput, fmt::format("cannot read the {} '{}': {}", kind, file, why));
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

}  // namespace

void refuse(const std::string& where, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("{}: {}", where, why));
}

json read_listed(const std::string& kind, const std::string& file) {
  json value;
  if (const auto fault = parse_json(read_text(kind, file), {}, value)) {
    refuse(fmt::format("{} '{}'", kind, file), cut(fault->message, 200));
  }
  return value;
}

void check_keys(const std::string& where, const json& object, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) refuse(where, "must be an object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known) names.append(names.empty() ? "" : ", ").append(name);
    refuse(where, fmt::format("unknown key {} (known: {})", shown(key), names));
  }
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

int integer_of(const std::string& where, const json& object, const char* key, int absent) {
  const auto found = object.find(key);
  if (found == object.end()) return absent;
  // Numbers that an int holds; nlohmann keeps larger ones unsigned.
  const bool fits = found->is_number_unsigned()
                        ? std::in_range<int>(found->get<std::uint64_t>())
                        : found->is_number_integer() && std::in_range<int>(found->get<std::int64_t>());
  if (!fits) refuse(where, fmt::format("{}: must be an integer of 32 bits", key));
  return found->get<int>();
}

double seconds_of(const std::string& where, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  const double seconds = found->is_number() ? found->get<double>() : 0;
  if (!(seconds > 0) || !std::isfinite(seconds)) {
    refuse(where, fmt::format("{}: must be a finite number of seconds, more than 0", key));
  }
  return seconds;
}

std::int64_t bytes_of(const std::string& where, const json& value, const char* what) {
  constexpr double kMost = 1LL << 62;
  const auto wrong = [&] {
    refuse(where, fmt::format("{}: must be a whole number of bytes, or such as \"1.5GB\"", what));
  };
  double bytes = -1;
  try {
    if (value.is_string()) bytes = static_cast<double>(parse_size(value.get_ref<const std::string&>()));
  } catch (const Error&) {
    wrong();
  }
  if (value.is_number()) bytes = value.get<double>();
  if (!(bytes >= 0 && bytes <= kMost && bytes == std::floor(bytes))) wrong();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace computron

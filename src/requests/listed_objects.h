// Reads the JSON files that list what a job is made of: model lists, placements, profiles. Errors name file, entry and
// key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "computron/requests/model_list.h"

namespace computron {

// Error{kUsage}: "WHERE: WHY".
[[noreturn]] void refuse(const std::string& where, const std::string& why);

// The document in `file`, which is a `kind` ("model list"). Error{kNoInput} where it cannot be read, {kUsage} where it
// is no JSON.
nlohmann::json read_listed(const std::string& kind, const std::string& file);

// Error{kUsage} unless `object` is an object without other keys.
void check_keys(const std::string& where, const nlohmann::json& object, std::initializer_list<std::string_view> known);

// Its values. Error{kUsage} where one is of another kind; flags and integers that are absent are false and `absent`,
// seconds are 0 then, and more otherwise.
const std::string& text_of(const std::string& where, const nlohmann::json& object, const char* key);
bool flag_of(const std::string& where, const nlohmann::json& object, const char* key);
int integer_of(const std::string& where, const nlohmann::json& object, const char* key, int absent = 0);
double seconds_of(const std::string& where, const nlohmann::json& object, const char* key);

// A whole number, or a text such as "1.5GB"; `what` is its name in errors.
std::int64_t bytes_of(const std::string& where, const nlohmann::json& value, const char* what);

// A list of at least one model, as in a model list `file`; `where` is its place.
std::vector<ModelEntry> models_of(const std::string& where, const std::string& file, const nlohmann::json& list);

}  // namespace computron

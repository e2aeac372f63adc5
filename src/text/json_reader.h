// Values of tokenizer files, which come from anywhere: what is missing or of another kind is an error that names it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace computron {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxJsonValues = 8'000'000;
inline constexpr int kMaxJsonDepth = 32;
inline constexpr std::size_t kMaxSteps = 64;  // of a sequence of normalizers, pre-tokenizers, decoders

// CheckpointError naming `file` if it is no JSON, nested deeper or made of more values than the limits.
Json parse_json(std::string_view text, const std::string& file);

// A value with the place where it stands, for messages: "tokenizer.json: pre_tokenizer.pretokenizers[1].pattern".
// Borrows the value.
class JsonAt {
 public:
  JsonAt(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const;
  bool is_list() const;
  bool is_zero() const;

  // Of an object; null if there is no such key.
  JsonAt operator[](const char* key) const;
  // Of a list.
  JsonAt item(std::size_t index) const;
  std::size_t list_size() const;
  // The same, and an error beyond `most`.
  std::size_t list_size(std::size_t most) const;

  std::string string() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  // Finite.
  double number() const;
  // The same, or `fallback` if the value is null.
  std::string string_or(const std::string& fallback) const { return is_null() ? fallback : string(); }
  bool boolean_or(bool fallback) const { return is_null() ? fallback : boolean(); }

  [[noreturn]] void fail(const std::string& why) const;

 private:
  const Json* value_;
  std::string path_;
};

}  // namespace computron

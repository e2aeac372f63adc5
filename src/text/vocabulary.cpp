#include "src/text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"

namespace computron {
namespace {

constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::size_t kMaxLines = std::size_t{1} << 22;
constexpr char32_t kFirstStandIn = 0x100;

bool is_seen(unsigned byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

// Characters by byte: those that can be seen are themselves, the others are numbered from U+0100.
std::array<char32_t, 256> make_spelling() {
  std::array<char32_t, 256> spelling{};
  char32_t next = kFirstStandIn;
  for (unsigned byte = 0; byte < 256; ++byte) spelling[byte] = is_seen(byte) ? byte : next++;
  return spelling;
}

const std::array<char32_t, 256> kSpelling = make_spelling();

// -1: no byte's.
int byte_spelled_by(char32_t c) {
  static const std::array<std::int16_t, 0x144> byte_of = [] {
    std::array<std::int16_t, 0x144> bytes{};
    bytes.fill(-1);
    for (int byte = 0; byte < 256; ++byte)
      bytes[kSpelling[static_cast<std::size_t>(byte)]] = static_cast<std::int16_t>(byte);
    return bytes;
  }();
  return c < byte_of.size() ? byte_of[c] : -1;
}

}  // namespace

void Vocabulary::add(std::string text, TokenId id) {
  if (id < 0 || id > kMaxTokenId) {
    throw CheckpointError(fmt::format("the token '{}' has number {} (limit {})", printable(text), id, kMaxTokenId));
  }
  if (text.size() > kMaxTokenBytes) {
    throw CheckpointError(fmt::format("token {} has {} bytes (limit {})", id, text.size(), kMaxTokenBytes));
  }
  if (const std::string* other = text_of(id)) {
    throw CheckpointError(
        fmt::format("the tokens '{}' and '{}' both have number {}", printable(*other), printable(text), id));
  }
  const auto [stored, fresh] = ids_.emplace(std::move(text), id);
  if (!fresh) throw CheckpointError(fmt::format("the token '{}' stands twice", printable(stored->first)));
  if (id >= end()) texts_.resize(static_cast<std::size_t>(id) + 1);
  texts_[static_cast<std::size_t>(id)] = &stored->first;
}

TokenId Vocabulary::id_of(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNoToken : found->second;
}

const std::string* Vocabulary::text_of(TokenId id) const {
  return id >= 0 && id < end() ? texts_[static_cast<std::size_t>(id)] : nullptr;
}

Vocabulary read_vocabulary(const JsonAt& json) {
  if (!json.value().is_object()) json.fail("must be an object of numbers by token");
  Vocabulary vocabulary;
  for (const auto& [text, id] : json.value().items()) {
    const JsonAt number(id, fmt::format("{}['{}']", json.path(), printable(text)));
    vocabulary.add(text, static_cast<TokenId>(number.integer(0, kMaxTokenId)));
  }
  return vocabulary;
}

Vocabulary read_scored_vocabulary(const JsonAt& json) {
  Vocabulary vocabulary;
  for (std::size_t i = 0; i < json.list_size(kMaxLines); ++i) {
    const JsonAt token = json.item(i);
    if (token.list_size() != 2) token.fail("must be a token and its score");
    vocabulary.add(token.item(0).string(), static_cast<TokenId>(i));
  }
  return vocabulary;
}

std::vector<double> read_scores(const JsonAt& json) {
  std::vector<double> scores;
  for (std::size_t i = 0; i < json.list_size(); ++i) scores.push_back(json.item(i).item(1).number());
  return scores;
}

Vocabulary read_vocabulary_lines(std::string_view lines, const std::string& file) {
  std::unordered_map<std::string, TokenId> last;
  TokenId line = 0;
  for (; !lines.empty(); ++line) {
    if (static_cast<std::size_t>(line) >= kMaxLines) {
      throw CheckpointError(fmt::format("{}: more than {} lines", file, kMaxLines));
    }
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    std::string text(lines.substr(0, end));
    while (!text.empty() && (text.back() == '\r' || text.back() == ' ' || text.back() == '\t')) text.pop_back();
    if (!is_utf8(text)) throw CheckpointError(fmt::format("{}: line {} is not UTF-8", file, line + 1));
    last[std::move(text)] = line;
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  Vocabulary vocabulary;
  for (const auto& [text, id] : last) vocabulary.add(text, id);
  return vocabulary;
}

void append_spelled_byte(std::string& text, unsigned char byte) { append_character(text, kSpelling[byte]); }

bool spelled_bytes(std::string_view text, std::string& bytes) {
  bytes.clear();
  for (std::size_t at = 0; at < text.size();) {
    const int byte = byte_spelled_by(next_character(text, at));
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
  }
  return true;
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

int byte_of_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with('>')) return -1;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return error == std::errc{} && end == text.data() + 5 ? static_cast<int>(byte) : -1;
}

}  // namespace computron

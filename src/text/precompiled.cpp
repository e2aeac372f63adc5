#include "src/text/precompiled.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "computron/base/base64.h"
#include "computron/base/utf8.h"
#include "src/text/unicode.h"
#include "src/text/work_limit.h"

namespace computron {
namespace {

constexpr std::size_t kMaxBase64Bytes = std::size_t{4} << 20;
constexpr std::size_t kMaxUnits = std::size_t{1} << 18;
constexpr std::size_t kLongestGrapheme = 5;  // bytes, that is replaced as a whole

// A unit of a double array (Darts-clone): the children of a unit at `at` stand at `at ^ offset ^ byte`.
class Unit {
 public:
  explicit Unit(std::uint32_t bits) : bits_(bits) {}
  bool has_leaf() const { return (bits_ >> 8 & 1) != 0; }
  std::size_t value() const { return bits_ & 0x7FFFFFFFu; }
  bool is_reached_by(unsigned char byte) const { return (bits_ & 0x800000FFu) == byte; }
  std::size_t offset() const { return static_cast<std::size_t>(bits_ >> 10) << ((bits_ & 0x200u) >> 6); }

 private:
  std::uint32_t bits_;
};

// Texts and what stands for them: the double array's values are places in `texts`, where each ends with a zero.
struct Charsmap {
  std::vector<Unit> units;
  std::string texts;

  // What stands for the shortest text of the table that `chunk` begins with: so does the library whose results these
  // are to be, though the longest was meant.
  std::optional<std::string_view> replacement_of(std::string_view chunk) const {
    std::size_t base = units[0].offset();
    for (const char c : chunk) {
      const auto byte = static_cast<unsigned char>(c);
      const std::size_t at = base ^ byte;
      if (byte == 0 || !units[at].is_reached_by(byte)) return std::nullopt;
      base = at ^ units[at].offset();
      if (units[at].has_leaf()) return text_at(units[base].value());
    }
    return std::nullopt;
  }

 private:
  std::string_view text_at(std::size_t begin) const {
    const std::string_view rest = std::string_view(texts).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }
};

// Goes once to every unit that some text leads to.
class CharsmapCheck {
 public:
  CharsmapCheck(const Charsmap& map, const JsonAt& json) : map_(map), json_(json), marks_(map.units.size()) {}

  void run() {
    enter(0);
    while (!path_.empty()) {
      if (path_.back().next_byte > 0xFF) {
        marks_[path_.back().at] = kDone;
        path_.pop_back();
      } else {
        step(path_.back());
      }
    }
  }

 private:
  enum Mark : std::uint8_t { kNew, kOnPath, kDone };
  struct Place {
    std::size_t at = 0;
    unsigned next_byte = 1;
  };

  void step(Place& place) {
    const auto byte = static_cast<unsigned char>(place.next_byte++);
    const std::size_t child = place.at ^ map_.units[place.at].offset() ^ byte;
    if (child >= map_.units.size()) json_.fail(fmt::format("unit {} of its trie leads beyond the last one", place.at));
    if (!map_.units[child].is_reached_by(byte)) return;
    if (marks_[child] == kOnPath) json_.fail(fmt::format("unit {} of its trie leads to itself", child));
    if (marks_[child] == kNew) enter(child);
  }

  void enter(std::size_t at) {
    marks_[at] = kOnPath;
    path_.push_back({at});
    if (at == 0 || !map_.units[at].has_leaf()) return;
    const std::size_t leaf = at ^ map_.units[at].offset();
    if (leaf >= map_.units.size()) json_.fail(fmt::format("unit {} of its trie has no value", at));
    const std::size_t text = map_.units[leaf].value();
    const bool within = text < map_.texts.size() && (static_cast<unsigned char>(map_.texts[text]) & 0xC0) != 0x80;
    if (!within) json_.fail(fmt::format("unit {} of its trie stands for no text", at));
  }

  const Charsmap& map_;
  const JsonAt& json_;
  std::vector<Mark> marks_;
  std::vector<Place> path_;
};

std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

// The trie's size in bytes, the trie, the texts.
Charsmap read_charsmap(const JsonAt& json) {
  const std::string base64 = json.string();
  if (base64.size() > kMaxBase64Bytes) {
    json.fail(fmt::format("{} letters (limit {})", base64.size(), kMaxBase64Bytes));
  }
  const auto bytes = decode_base64(base64);
  if (!bytes) json.fail("is not base64");
  if (bytes->size() < 4) json.fail("ends before the size of its trie");
  const std::size_t trie = word_at(*bytes, 0);
  if (trie == 0 || trie % 4 != 0 || trie / 4 > kMaxUnits) {
    json.fail(fmt::format("its trie has {} bytes (limit {} units of 4)", trie, kMaxUnits));
  }
  if (trie > bytes->size() - 4) json.fail("ends within its trie");
  Charsmap map;
  for (std::size_t at = 4; at < 4 + trie; at += 4) map.units.emplace_back(word_at(*bytes, at));
  map.texts.assign(reinterpret_cast<const char*>(bytes->data()) + 4 + trie, bytes->size() - 4 - trie);
  if (!is_utf8(map.texts)) json.fail("its texts are not UTF-8");
  CharsmapCheck(map, json).run();
  return map;
}

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(Charsmap map) : map_(std::move(map)) {}

  std::string apply(std::string text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      WorkLimit::check();
      const std::size_t end = grapheme_end(text, at);
      take_grapheme(std::string_view(text).substr(at, end - at), out);
      check_normalized_size(out);
      at = end;
    }
    return out;
  }

 private:
  void take_grapheme(std::string_view grapheme, std::string& out) const {
    if (grapheme.size() <= kLongestGrapheme) {
      if (const auto text = map_.replacement_of(grapheme)) {
        out += *text;
        return;
      }
    }
    for (std::size_t at = 0; at < grapheme.size();) {
      const std::size_t begin = at;
      next_character(grapheme, at);
      const std::string_view character = grapheme.substr(begin, at - begin);
      out += map_.replacement_of(character).value_or(character);
    }
  }

  Charsmap map_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled_normalizer(const JsonAt& json) {
  return std::make_unique<Precompiled>(read_charsmap(json["precompiled_charsmap"]));
}

}  // namespace computron

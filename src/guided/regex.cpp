#include "src/guided/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "computron/base/json_text.h"
#include "src/guided/char_set.h"
#include "src/guided/refusal.h"

namespace computron {
namespace {

constexpr int kMaxGroups = 64;              // open at once
constexpr std::size_t kMaxRanges = 10'000;  // of a class
constexpr std::uint32_t kMaxRepeats = 100'000;
constexpr std::uint32_t kUnbounded = std::numeric_limits<std::uint32_t>::max();

// An expression as a tree.
struct Regex {
  enum class Kind : std::uint8_t { kSet, kSequence, kAlternatives, kRepeat };
  Kind kind = Kind::kSequence;
  CharSet set = {};                   // kSet
  std::vector<Regex> parts = {};      // of a repeat: one
  std::uint32_t min = 1, max = 1;     // kRepeat
  bool begins = false, ends = false;  // kSequence: between ^ and $
  int height = 0;                     // repetitions in one another, here and below
};

CharSet digits() { return CharSet::of('0', '9'); }

CharSet words() {
  CharSet set = digits();
  set.add('a', 'z');
  set.add('A', 'Z');
  set.add('_', '_');
  return set;
}

CharSet spaces() { return CharSet(" \t\n\r\f\v"); }

// What ECMA-262 or Python calls white space.
CharSet all_spaces() {
  CharSet set = spaces();
  for (const std::uint32_t c : {0x85u, 0xA0u, 0x1680u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu}) set.add(c, c);
  set.add(0x1C, 0x1F);
  set.add(0x2000, 0x200A);
  set.add(0x2028, 0x2029);
  return set;
}

// Without what ends a line in ECMA-262.
CharSet dot() {
  CharSet ends("\n\r");
  ends.add(0x2028, 0x2029);
  return ends.complement();
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : pattern_(pattern) {}

  Regex parse() {
    Regex whole = alternatives(/*depth=*/0);
    if (!at_end()) fail("')' closes no group");
    return whole;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    refuse_guide(fmt::format("the expression {}: {} (at byte {})", shown(pattern_), why, at_));
  }

  bool at_end() const { return at_ == pattern_.size(); }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }

  // One character of UTF-8; whoever gave the pattern has checked that it is.
  std::uint32_t character() {
    if (at_end()) fail("it ends too early");
    const auto lead = static_cast<unsigned char>(pattern_[at_++]);
    const int tail = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    std::uint32_t c = tail == 0 ? lead : lead & (0x3Fu >> tail);
    for (int i = 0; i < tail; ++i) {
      if (at_end()) fail("it is not UTF-8");
      c = c << 6 | (static_cast<unsigned char>(pattern_[at_++]) & 0x3Fu);
    }
    return c;
  }

  Regex alternatives(int depth) {
    if (depth > kMaxGroups) fail(fmt::format("more than {} groups in one another", kMaxGroups));
    Regex all{.kind = Regex::Kind::kAlternatives};
    do {
      all.parts.push_back(sequence(depth));
      all.height = std::max(all.height, all.parts.back().height);
    } while (take("|"));
    return all.parts.size() == 1 ? std::move(all.parts.front()) : std::move(all);
  }

  Regex sequence(int depth) {
    Regex all{.kind = Regex::Kind::kSequence};
    if (depth == 0) {
      while (take("^")) all.begins = true;
    }
    while (!at_end() && !next_is("|") && !next_is(")")) {
      if (take("$")) {
        if (depth > 0 || (!at_end() && !next_is("|"))) fail("'$' is served at the end only");
        all.ends = true;
        break;
      }
      all.parts.push_back(repeated(depth));
      all.height = std::max(all.height, all.parts.back().height);
    }
    return all;
  }

  Regex repeated(int depth) {
    Regex part = atom(depth);
    for (;;) {
      std::uint32_t min = 0, max = kUnbounded;
      if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (!take("*") && !take_counts(min, max)) {
        return part;
      }
      take("?");  // lazy: the texts that match are the same
      if (next_is("+")) fail("possessive repetitions are not served");
      Regex repeat{.kind = Regex::Kind::kRepeat, .min = min, .max = max};
      repeat.parts.push_back(std::move(part));
      part = std::move(repeat);
      part.height = part.parts.front().height + 1;
      if (part.height > kMaxGroups) fail("too many repetitions of repetitions");
    }
  }

  std::optional<std::uint32_t> number() {
    std::optional<std::uint32_t> value;
    while (!at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value.value_or(0) * 10 + static_cast<std::uint32_t>(pattern_[at_++] - '0');
      if (*value > kMaxRepeats) fail(fmt::format("more than {} repetitions", kMaxRepeats));
    }
    return value;
  }

  // "{m}", "{m,}" or "{m,n}"; what else begins with a brace is that brace.
  bool take_counts(std::uint32_t& min, std::uint32_t& max) {
    const std::size_t begin = at_;
    if (!take("{")) return false;
    const auto least = number();
    const bool comma = least && take(",");
    const auto most = comma ? number() : least;
    if (!least || !take("}")) {
      at_ = begin;
      return false;
    }
    min = *least;
    max = most.value_or(kUnbounded);
    if (max < min) fail("a repetition's numbers are the wrong way round");
    return true;
  }

  Regex set_of(CharSet set) const { return {.kind = Regex::Kind::kSet, .set = std::move(set)}; }

  Regex atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return set_of(char_class());
    if (take(".")) return set_of(dot());
    if (take("\\")) return set_of(escape(/*in_class=*/false));
    if (next_is("*") || next_is("+") || next_is("?")) fail("nothing to repeat");
    if (next_is("^")) fail("'^' is served at the beginning only");
    const std::uint32_t c = character();
    return set_of(CharSet::of(c, c));
  }

  Regex group(int depth) {
    if (take("?")) {
      if (take("P<") || (next_is("<") && !next_is("<=") && !next_is("<!") && take("<"))) {
        while (!at_end() && pattern_[at_] != '>') ++at_;
        if (!take(">")) fail("a group's name does not end");
      } else if (!take(":")) {
        fail("groups that begin with '(?' are served as '(?:' and with names only");
      }
    }
    Regex inner = alternatives(depth + 1);
    if (!take(")")) fail("a group does not end");
    return inner;
  }

  std::uint32_t hex(int count) {
    std::uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const char c = at_end() ? '\0' : pattern_[at_++];
      const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
      if (digit < 0) fail("an escape lacks hexadecimal digits");
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    return value;
  }

  // Behind the backslash.
  CharSet escape(bool in_class) {
    const std::uint32_t c = character();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().complement();
      case 'w':
        return words();
      case 'W':
        return words().complement();
      case 's':
        return negated_ ? all_spaces() : spaces();
      case 'S':
        return (negated_ ? spaces() : all_spaces()).complement();
      case 'n':
        return CharSet("\n");
      case 't':
        return CharSet("\t");
      case 'r':
        return CharSet("\r");
      case 'f':
        return CharSet("\f");
      case 'v':
        return CharSet("\v");
      case 'x':
        return single(hex(2));
      case 'u':
        return single(hex(4));
      case '0':
        return single(0);
      case 'b':
        if (in_class) return CharSet("\b");
        break;
      default:
        break;
    }
    const bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
    if (letter || (c >= '1' && c <= '9')) fail(fmt::format("'\\{}' is not served", static_cast<char>(c)));
    return single(c);
  }

  CharSet single(std::uint32_t c) const {
    if (c >= 0xD800 && c < 0xE000) fail("half of a character of UTF-16 is not served");
    return CharSet::of(c, c);
  }

  // Behind the opening bracket.
  CharSet char_class() {
    negated_ = take("^");
    CharSet set;
    while (!take("]")) {
      if (next_is("[:")) fail("POSIX classes are not served");
      if (set.ranges().size() > kMaxRanges) fail(fmt::format("a class has more than {} ranges", kMaxRanges));
      const CharSet first = class_item();
      const auto is_single = [](const CharSet& s) {
        return s.ranges().size() == 1 && s.ranges().front().first == s.ranges().front().second;
      };
      if (!is_single(first) || !next_is("-") || next_is("-]")) {
        set.add(first);
        continue;
      }
      take("-");
      const CharSet last = class_item();
      if (!is_single(last) || last.ranges().front().first < first.ranges().front().first) {
        fail("a class holds a range that ends before it begins");
      }
      set.add(first.ranges().front().first, last.ranges().front().first);
    }
    return std::exchange(negated_, false) ? set.complement() : set;
  }

  CharSet class_item() {
    if (at_end()) fail("a class does not end");
    if (take("\\")) return escape(/*in_class=*/true);
    return single(character());
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool negated_ = false;  // within [^...], where what is certainly white space and what may be change places
};

// Adds a tree to a grammar. Trees are at most a few hundred deep, as the parser sees to.
class RegexWriter {
 public:
  RegexWriter(GrammarBuilder& grammar, RegexUse use) : grammar_(grammar), use_(use) {}

  GrammarNodeId write(GrammarNodeId from, const Regex& regex) {
    switch (regex.kind) {
      case Regex::Kind::kSet:
        return one_of(from, regex.set);
      case Regex::Kind::kSequence:
        for (const Regex& part : regex.parts) from = write(from, part);
        return from;
      case Regex::Kind::kAlternatives:
        break;
      case Regex::Kind::kRepeat:
        return repeat(from, regex);
    }
    return alternatives(from, regex, [this](GrammarNodeId at, const Regex& part) { return write(at, part); });
  }

  // The whole expression: what has no ^ or $ may have anything there.
  GrammarNodeId search(GrammarNodeId from, const Regex& regex) {
    const auto within = [this](GrammarNodeId at, const Regex& part) {
      const bool sequence = part.kind == Regex::Kind::kSequence;
      if (!sequence || !part.begins) at = anything(at);
      at = write(at, part);
      return sequence && part.ends ? at : anything(at);
    };
    return regex.kind == Regex::Kind::kAlternatives ? alternatives(from, regex, within) : within(from, regex);
  }

 private:
  GrammarNodeId one_of(GrammarNodeId from, const CharSet& set) {
    const GrammarNodeId to = grammar_.add_node();
    (use_ == RegexUse::kWhole ? add_characters : add_json_characters)(grammar_, from, set, to);
    return to;
  }

  template <class Write>
  GrammarNodeId alternatives(GrammarNodeId from, const Regex& regex, Write&& write_part) {
    const GrammarNodeId end = grammar_.add_node();
    for (const Regex& part : regex.parts) {
      const GrammarNodeId begin = grammar_.add_node();  // loops within an alternative come back to here
      grammar_.add_silent(from, begin);
      grammar_.add_silent(write_part(begin, part), end);
    }
    return end;
  }

  GrammarNodeId loop(GrammarNodeId from, const Regex& part) {
    const GrammarNodeId begin = grammar_.add_node(), end = grammar_.add_node();
    grammar_.add_silent(from, begin);
    grammar_.add_silent(write(begin, part), begin);
    grammar_.add_silent(begin, end);
    return end;
  }

  GrammarNodeId repeat(GrammarNodeId from, const Regex& regex) {
    const Regex& part = regex.parts.front();
    for (std::uint32_t i = 0; i < regex.min; ++i) from = counted(from, part);
    if (regex.max == kUnbounded) return loop(from, part);
    const GrammarNodeId end = grammar_.add_node();
    for (std::uint32_t i = regex.min; i < regex.max; ++i) {
      grammar_.add_silent(from, end);
      from = counted(from, part);
    }
    grammar_.add_silent(from, end);
    return end;
  }

  // Adds a node even for what reads nothing, so that hostile counts come to the limit of nodes.
  GrammarNodeId counted(GrammarNodeId from, const Regex& part) {
    const GrammarNodeId begin = grammar_.add_node();
    grammar_.add_silent(from, begin);
    return write(begin, part);
  }

  GrammarNodeId anything(GrammarNodeId from) { return loop(from, {.kind = Regex::Kind::kSet, .set = CharSet::all()}); }

  GrammarBuilder& grammar_;
  RegexUse use_;
};

}  // namespace

GrammarNodeId add_regex(GrammarBuilder& grammar, GrammarNodeId from, std::string_view pattern, RegexUse use) {
  const Regex regex = RegexParser(pattern).parse();
  RegexWriter writer(grammar, use);
  return use == RegexUse::kJsonSearch ? writer.search(from, regex) : writer.write(from, regex);
}

}  // namespace computron

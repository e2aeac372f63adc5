#include "src/guided/number_range.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "src/guided/regex.h"

namespace computron {
namespace {

constexpr double kMostInteger = 999'999'999'999'999'999.0;  // rounds up; what is cut to it is cut again as an integer
constexpr std::int64_t kMostIntegerExact = 999'999'999'999'999'999;
constexpr double kMostNumber = 999'999'999'999'999.0;
constexpr std::size_t kDigits = 15;  // that a double tells apart

// Digits of equal length, from `low` to `high`.
class DigitRanges {
 public:
  explicit DigitRanges(GrammarBuilder& grammar) : grammar_(grammar) {}

  // Without leading zeros; none where `low` exceeds `high`.
  void add(GrammarNodeId from, std::int64_t low, std::int64_t high, GrammarNodeId to) {
    if (low > high) return;
    std::int64_t first = 0;  // of the numbers of this length
    for (std::int64_t end = 10;; first = end, end *= 10) {
      if (low < end) {
        equally_long(from, std::to_string(std::max(low, first)), std::to_string(std::min(high, end - 1)), to);
      }
      if (high < end) return;  // before ten times 10^18, which is no std::int64_t
    }
  }

 private:
  GrammarNodeId digit(GrammarNodeId from, char first, char last) {
    const GrammarNodeId to = grammar_.add_node();
    grammar_.add_bytes(from, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), to);
    return to;
  }

  void any(GrammarNodeId from, std::size_t count, GrammarNodeId to) {
    for (std::size_t i = 0; i < count; ++i) from = digit(from, '0', '9');
    grammar_.add_silent(from, to);
  }

  void equally_long(GrammarNodeId from, std::string_view low, std::string_view high, GrammarNodeId to) {
    for (; !low.empty() && low[0] == high[0]; low.remove_prefix(1), high.remove_prefix(1)) {
      from = digit(from, low[0], low[0]);
    }
    if (low.empty()) return grammar_.add_silent(from, to);
    at_least(digit(from, low[0], low[0]), low.substr(1), to);
    if (low[0] + 1 < high[0]) {
      any(digit(from, static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), low.size() - 1, to);
    }
    at_most(digit(from, high[0], high[0]), high.substr(1), to);
  }

  void at_least(GrammarNodeId from, std::string_view low, GrammarNodeId to) {
    for (; !low.empty(); low.remove_prefix(1)) {
      if (low[0] < '9') any(digit(from, static_cast<char>(low[0] + 1), '9'), low.size() - 1, to);
      from = digit(from, low[0], low[0]);
    }
    grammar_.add_silent(from, to);
  }

  void at_most(GrammarNodeId from, std::string_view high, GrammarNodeId to) {
    for (; !high.empty(); high.remove_prefix(1)) {
      if (high[0] > '0') any(digit(from, '0', static_cast<char>(high[0] - 1)), high.size() - 1, to);
      from = digit(from, high[0], high[0]);
    }
    grammar_.add_silent(from, to);
  }

  GrammarBuilder& grammar_;
};

// A bound that is not negative, in decimal digits.
struct Decimal {
  std::int64_t whole = 0;
  std::string fraction;
  bool exclusive = false;
};

Decimal decimal_of(const NumberBound& bound) {
  std::array<char, 400> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), std::fabs(bound.value), std::chars_format::fixed).ptr;
  const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
  const std::size_t point = std::min(digits.find('.'), digits.size());
  Decimal decimal{.whole = 0, .fraction = {}, .exclusive = bound.exclusive};
  std::from_chars(digits.data(), digits.data() + point, decimal.whole);
  if (point < digits.size()) decimal.fraction = digits.substr(point + 1);
  return decimal;
}

// The fractions from `low` to `high`, each of which may be missing: digit by digit, while the digits so far are those
// of a bound ("tight") the bound limits the next one.
class FractionRange {
 public:
  FractionRange(GrammarBuilder& grammar, const Decimal* low, const Decimal* high, std::size_t most)
      : grammar_(grammar), low_(low), high_(high), most_(most) {
    for (const Decimal* bound : {low, high}) {
      if (bound != nullptr) most_ = std::max(most_, bound->fraction.size() + 1);
    }
  }

  void add(GrammarNodeId from, GrammarNodeId to) {
    Tight tight{low_ != nullptr, high_ != nullptr};
    if (may_end(0, tight)) grammar_.add_silent(from, to);
    Level level{};
    level[index(tight)] = grammar_.literal(from, ".");
    for (std::size_t i = 0; i < most_; ++i) level = next_level(level, i, to);
  }

 private:
  struct Tight {
    bool low = false, high = false;
  };
  using Level = std::array<GrammarNodeId, 4>;  // by which bounds are tight; 0: no such node
  static std::size_t index(Tight tight) { return (tight.low ? 1u : 0u) | (tight.high ? 2u : 0u); }

  static char digit(const Decimal& bound, std::size_t i) { return i < bound.fraction.size() ? bound.fraction[i] : '0'; }
  static bool rest_is_zero(const Decimal& bound, std::size_t i) {
    return bound.fraction.find_first_not_of('0', std::min(i, bound.fraction.size())) == std::string::npos;
  }
  // Behind i digits.
  bool may_end(std::size_t i, Tight tight) const {
    const bool high_enough = !tight.low || (rest_is_zero(*low_, i) && !low_->exclusive);
    const bool low_enough = !tight.high || !rest_is_zero(*high_, i) || !high_->exclusive;
    return high_enough && low_enough;
  }

  Level next_level(const Level& level, std::size_t i, GrammarNodeId to) {
    Level next{};
    for (std::size_t k = 0; k < level.size(); ++k) {
      if (level[k] == 0) continue;
      const Tight tight{(k & 1) != 0, (k & 2) != 0};
      const char least = tight.low ? digit(*low_, i) : '0', most = tight.high ? digit(*high_, i) : '9';
      for (char d = least; d <= most; ++d) {
        const Tight then{tight.low && d == least, tight.high && d == most};
        GrammarNodeId& node = next[index(then)];
        if (node == 0) {
          node = grammar_.add_node();
          if (may_end(i + 1, then)) grammar_.add_silent(node, to);
        }
        grammar_.add_bytes(level[k], static_cast<std::uint8_t>(d), static_cast<std::uint8_t>(d), node);
      }
    }
    return next;
  }

  GrammarBuilder& grammar_;
  const Decimal* low_;
  const Decimal* high_;
  std::size_t most_;  // digits
};

// Numbers without a sign.
void add_magnitude(GrammarBuilder& grammar, GrammarNodeId from, const Decimal& low, const Decimal& high,
                   GrammarNodeId to) {
  const std::size_t before = std::to_string(high.whole).size();
  const std::size_t most = before < kDigits ? kDigits - before : 1;
  const auto fractions = [&](GrammarNodeId at, const Decimal* least, const Decimal* largest) {
    FractionRange(grammar, least, largest, most).add(at, to);
  };
  if (low.whole > high.whole) return;
  const GrammarNodeId at_low = grammar.literal(from, std::to_string(low.whole));
  if (low.whole == high.whole) return fractions(at_low, &low, &high);
  fractions(at_low, &low, nullptr);
  fractions(grammar.literal(from, std::to_string(high.whole)), nullptr, &high);
  const GrammarNodeId between = grammar.add_node();
  DigitRanges(grammar).add(from, low.whole + 1, high.whole - 1, between);
  fractions(between, nullptr, nullptr);
}

std::int64_t least_integer(const std::optional<NumberBound>& low) {
  if (!low) return -kMostIntegerExact;
  const double least = low->exclusive ? std::floor(low->value) + 1 : std::ceil(low->value);
  return std::max(static_cast<std::int64_t>(std::clamp(least, -kMostInteger, kMostInteger)), -kMostIntegerExact);
}

std::int64_t largest_integer(const std::optional<NumberBound>& high) {
  if (!high) return kMostIntegerExact;
  const double most = high->exclusive ? std::ceil(high->value) - 1 : std::floor(high->value);
  return std::min(static_cast<std::int64_t>(std::clamp(most, -kMostInteger, kMostInteger)), kMostIntegerExact);
}

}  // namespace

GrammarNodeId add_integer(GrammarBuilder& grammar, GrammarNodeId from, const std::optional<NumberBound>& low,
                          const std::optional<NumberBound>& high) {
  if (!low && !high) return add_regex(grammar, from, "-?(0|[1-9][0-9]{0,17})", RegexUse::kWhole);
  const std::int64_t least = least_integer(low), most = largest_integer(high);
  const GrammarNodeId to = grammar.add_node();
  DigitRanges ranges(grammar);
  if (most >= 0) ranges.add(from, std::max<std::int64_t>(least, 0), most, to);
  if (least < 0) ranges.add(grammar.literal(from, "-"), std::max<std::int64_t>(-most, 1), -least, to);
  return to;
}

GrammarNodeId add_number(GrammarBuilder& grammar, GrammarNodeId from, const std::optional<NumberBound>& low,
                         const std::optional<NumberBound>& high) {
  if (!low && !high) {
    return add_regex(grammar, from, R"(-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?)",
                     RegexUse::kWhole);
  }
  const GrammarNodeId to = grammar.add_node();
  const NumberBound least = low && low->value > -kMostNumber ? *low : NumberBound{-kMostNumber};
  const NumberBound most = high && high->value < kMostNumber ? *high : NumberBound{kMostNumber};
  if (least.value > most.value) return to;
  const Decimal zero, small = decimal_of(least), large = decimal_of(most);
  if (most.value >= 0) add_magnitude(grammar, from, least.value >= 0 ? small : zero, large, to);
  if (least.value < 0) {
    const Decimal above_zero{.whole = 0, .fraction = {}, .exclusive = true};
    add_magnitude(grammar, grammar.literal(from, "-"), most.value < 0 ? large : above_zero, small, to);
  }
  return to;
}

}  // namespace computron

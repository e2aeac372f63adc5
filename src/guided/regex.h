// Regular expressions as pieces of a grammar.
//
// What is read: alternatives, groups, classes, . (no line's end), the escapes of ECMA-262 for characters and classes
// (\d, \w and \s are ASCII's), the repetitions * + ? {m} {m,} {m,n}, lazy ones as greedy ones, and ^ and $ at an
// alternative's ends. The rest is refused by name: look-around, back-references, \b, \p, flags.
#pragma once

#include <cstdint>
#include <string_view>

#include "computron/guided/grammar.h"

namespace computron {

enum class RegexUse : std::uint8_t {
  kWhole,       // a text that the expression matches as a whole
  kJsonWhole,   // the same as the characters of a JSON string, without its quotes
  kJsonSearch,  // characters of a JSON string in which it matches somewhere, as "pattern" means it
};

// Returns the node behind it. RequestError{invalid_parameter} naming what is not served, and where.
GrammarNodeId add_regex(GrammarBuilder& grammar, GrammarNodeId from, std::string_view pattern, RegexUse use);

}  // namespace computron

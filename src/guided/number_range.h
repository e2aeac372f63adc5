// Decimal numbers within bounds as pieces of a grammar.
#pragma once

#include <optional>

#include "computron/guided/grammar.h"

namespace computron {

struct NumberBound {
  double value = 0;
  bool exclusive = false;
};

// An integer of at most 18 digits. Returns the node behind it, which nothing leads to where no integer lies between.
GrammarNodeId add_integer(GrammarBuilder& grammar, GrammarNodeId from, const std::optional<NumberBound>& low,
                          const std::optional<NumberBound>& high);
// The same of numbers with or without a fraction. Without bounds they may have an exponent of at most two digits; with
// bounds they have none, and at most 15 digits before the point.
GrammarNodeId add_number(GrammarBuilder& grammar, GrammarNodeId from, const std::optional<NumberBound>& low,
                         const std::optional<NumberBound>& high);

}  // namespace computron

// JSON schemas as grammars. inputs/README.md lists the keywords that are served; the others are refused by name.
//
// What is written: an object's properties in the order of the schema, those that it does not require or leaves them
// out; none beside them unless "additionalProperties" says so. Behind an opening bracket, a comma and a colon, and
// before a closing bracket, there may be one space, or a line's end with up to 40 spaces or 10 tabs; nowhere else.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "computron/guided/grammar.h"

namespace computron {

// Returns the rule of the schema. RequestError{invalid_parameter} naming keyword and place.
GrammarRuleId add_schema(GrammarBuilder& grammar, const nlohmann::ordered_json& schema);
// The rule of any JSON object.
GrammarRuleId add_any_object(GrammarBuilder& grammar);

}  // namespace computron

// What an answer is asked to be, as a text that travels with a request, and the grammar that it means.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "computron/guided/grammar.h"

namespace computron {

// A kind and, behind it, what the client gave: an expression, a list of texts or a schema, in JSON but for the
// expression.
std::string regex_guide(std::string_view pattern);
std::string choice_guide(std::string_view list);
std::string schema_guide(std::string_view schema);
std::string object_guide();  // any JSON object

// The same for the same text, whoever asks. RequestError{invalid_parameter} that says which part of the text is not
// served, or why it asks for too much; its message is to stand behind the name of the request's field.
std::shared_ptr<const Grammar> compile_guide(std::string_view guide);

}  // namespace computron

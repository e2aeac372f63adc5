// What an answer is asked to be, as a text that travels with a request, and the grammar that it means.
#pragma once

#include <cstddef>
#include <deque>
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

// Compiles what requests ask for, to refuse what is not served; requests that ask for the same share one text. Keeps
// the last kKept outcomes, so that lines that all ask for the same have it compiled once.
class GuideChecker {
 public:
  static constexpr std::size_t kKept = 64;
  // The text itself. Throws what compile_guide() does.
  std::shared_ptr<const std::string> checked(std::string guide);

 private:
  struct Outcome {
    std::shared_ptr<const std::string> text;
    std::string fault;  // empty: it is served
  };
  std::deque<Outcome> outcomes_;  // the last one used first
};

}  // namespace computron

// What an answer is asked to be, as a text that travels with a request, and the grammar that it means.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "computron/guided/grammar.h"

namespace computron {

// A kind and, behind it, what the client gave: an expression, a list of texts or a schema, in JSON but for the
// expression.
std::string regex_guide(std::string_view pattern);
std::string choice_guide(std::string_view list);
std::string schema_guide(std::string_view schema);
std::string object_guide();  // any JSON object

// RequestError{invalid_parameter} where it is no JSON, or an object in it has more keys than one of a guide may have:
// to be called before it is read as an ordered document, which takes the square of an object's keys.
void check_keys(std::string_view json);

// The same for the same text, whoever asks. RequestError{invalid_parameter} that says which part of the text is not
// served, or why it asks for too much; its message is to stand behind the name of the request's field.
std::shared_ptr<const Grammar> compile_guide(std::string_view guide);

// A model's tokens, for as long as a question about them is answered.
struct GuideVocabulary {
  const void* model = nullptr;  // tells models apart
  TokenId tokens = 0;           // of the model
  // What a token adds to a text, as TokenTrie takes it.
  std::function<std::string(TokenId)> text;
};

// Compiles what requests ask for, to refuse what is not served; requests that ask for the same share one text. Keeps
// the last kKept outcomes, so that lines that all ask for the same have it compiled once.
class GuideChecker {
 public:
  static constexpr std::size_t kKept = 64;
  // The text itself. Throws what compile_guide() does.
  std::shared_ptr<const std::string> checked(std::string guide);
  // Whether an answer to the text that was checked last can begin: with a token that is not one of `ends`, or by being
  // empty. True, too, where it takes more to tell than a mask may take.
  bool can_begin(const GuideVocabulary& vocabulary, std::span<const TokenId> ends);

 private:
  struct Beginning {
    const void* model = nullptr;
    TokenId token = kNone;  // one that an answer can begin with
  };
  struct Outcome {
    std::shared_ptr<const std::string> text;
    std::string fault;  // empty: it is served
    std::vector<Beginning> beginnings = {};
  };
  static constexpr TokenId kNone = -1, kUndecided = -2;
  static TokenId find_beginning(const std::shared_ptr<const Grammar>& grammar, const GuideVocabulary& vocabulary,
                                std::span<const TokenId> ends);

  std::deque<Outcome> outcomes_;            // the last one used first
  std::shared_ptr<const Grammar> grammar_;  // of the first, where it has just been compiled
};

}  // namespace computron

#include "tests/house/class_sizes.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

namespace computron::test {
namespace {

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::string without_preprocessor(std::string_view code) {
  std::istringstream lines{std::string(code)};
  std::string kept;
  bool continued = false;
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find_first_not_of(" \t");
    const bool directive = continued || (first != std::string::npos && line[first] == '#');
    continued = directive && line.ends_with('\\');
    if (!directive) kept += line + '\n';
  }
  return kept;
}

// Names and numbers as they are, everything else character by character.
std::vector<std::string> tokens_of(std::string_view code) {
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < code.size();) {
    auto end = i + 1;
    if (in_name(code[i])) {
      while (end < code.size() && in_name(code[end])) ++end;
    }
    if (!std::isspace(static_cast<unsigned char>(code[i]))) tokens.emplace_back(code.substr(i, end - i));
    i = end;
  }
  return tokens;
}

// What is said between two of ; { } and the access labels: the head of a class, of a function, or a whole declaration.
class Statement {
 public:
  void add(const std::string& token) { tokens_.push_back(token); }
  void clear() { tokens_.clear(); }
  bool has(std::string_view token) const { return std::ranges::find(tokens_, token) != tokens_.end(); }

  // The class whose body follows; empty if none does. The last name before what it derives from: attributes and macros
  // come before it.
  std::string class_name() const {
    auto at = skip_template();
    if (at >= tokens_.size() || (tokens_[at] != "class" && tokens_[at] != "struct")) return "";
    std::string name = "(unnamed)";
    for (++at; at < tokens_.size() && tokens_[at] != ":" && tokens_[at] != "<"; ++at) {
      if (in_name(tokens_[at][0]) && tokens_[at] != "final") name = tokens_[at];
    }
    return name;
  }

  // Whether it declares a function: a parenthesis opens behind a name, outside template arguments and before any
  // initial value.
  bool is_function() const { return !function_name().empty(); }
  bool is_method_of(std::string_view class_name) const {
    const std::string name = function_name();
    return !name.empty() && name != class_name && !has("default") && !has("delete");
  }

 private:
  std::string function_name() const {
    auto at = skip_template();
    if (at >= tokens_.size() || is_no_member(tokens_[at])) return "";
    for (int depth = 0; at < tokens_.size(); ++at) {
      const std::string& token = tokens_[at];
      if (token == "operator") return token;
      if (token == "<") ++depth;
      if (token == ">") --depth;
      if (depth == 0 && token == "=") return "";
      if (depth == 0 && token == "(") return at > 0 ? tokens_[at - 1] : "";
    }
    return "";
  }

  static bool is_no_member(const std::string& first) {
    return first == "using" || first == "friend" || first == "typedef" || first == "static_assert" || first == "enum";
  }

  // Behind "template <...>".
  std::size_t skip_template() const {
    std::size_t at = 0;
    if (tokens_.empty() || tokens_[0] != "template") return at;
    int depth = 0;
    for (at = 1; at < tokens_.size(); ++at) {
      if (tokens_[at] == "<") ++depth;
      if (tokens_[at] == ">" && --depth == 0) return at + 1;
    }
    return at;
  }

  std::vector<std::string> tokens_;
};

class Counter {
 public:
  std::vector<ClassSize> count(const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) take(token);
    return std::move(found_);
  }

 private:
  // What a brace encloses: a class, a namespace (whose declarations are read), or anything else (skipped).
  struct Scope {
    enum class Kind { kClass, kNamespace, kOther } kind;
    ClassSize size;
  };

  bool in_class() const { return !scopes_.empty() && scopes_.back().kind == Scope::Kind::kClass; }
  bool skipping() const { return !scopes_.empty() && scopes_.back().kind == Scope::Kind::kOther; }

  void take(const std::string& token) {
    if (token == "{") return open();
    if (token == "}") return close();
    if (skipping()) return;
    if (token == ";") return end_statement();
    if (token == ":" && is_access_label()) return statement_.clear();
    statement_.add(token);
  }

  bool is_access_label() const {
    return statement_.has("public") != statement_.has("class") &&
           (statement_.has("public") || statement_.has("private") || statement_.has("protected")) &&
           !statement_.has("struct") && !statement_.has("class");
  }

  void open() {
    Scope scope{Scope::Kind::kOther, {}};
    if (!skipping()) {
      const std::string name = statement_.class_name();
      if (!name.empty()) {
        scope = {Scope::Kind::kClass, {name, 0}};
      } else if (statement_.has("namespace")) {
        scope.kind = Scope::Kind::kNamespace;
      }
    }
    // The rest of the statement that the braces interrupt: a constructor's list of initial values goes on behind {}.
    if (scope.kind != Scope::Kind::kOther) statement_.clear();
    scopes_.push_back(std::move(scope));
  }

  void close() {
    if (scopes_.empty()) return;
    const Scope closed = std::move(scopes_.back());
    scopes_.pop_back();
    if (closed.kind == Scope::Kind::kClass) found_.push_back(closed.size);
    if (skipping()) return;
    // A function's body ends it; a value in braces does not, nor does one in a constructor's list.
    if (statement_.is_function()) end_statement();
    if (closed.kind != Scope::Kind::kOther) statement_.clear();
  }

  void end_statement() {
    if (in_class() && statement_.is_method_of(scopes_.back().size.name)) ++scopes_.back().size.methods;
    statement_.clear();
  }

  std::vector<Scope> scopes_;
  Statement statement_;
  std::vector<ClassSize> found_;
};

}  // namespace

std::vector<ClassSize> class_sizes(std::string_view code) {
  return Counter().count(tokens_of(without_preprocessor(code)));
}

}  // namespace computron::test

// Reads templates as Jinja2 does, with its order of operators.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <span>

#include "computron/base/json_text.h"
#include "src/text/template_functions.h"
#include "src/text/template_syntax.h"

namespace computron::jinja {
namespace {

using Node = Expression::Kind;

constexpr int kMaxNesting = 100;

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokens_of(text)) {
    for (std::size_t i = 1; i + 1 < tokens_.size(); ++i) {
      if (tokens_[i - 1].kind == Token::Kind::kBlockBegin && tokens_[i].text == "macro") {
        macros_.insert(tokens_[i + 1].text);
      }
    }
  }

  Statements all() {
    std::string end;
    Statements statements = body({}, end);
    return statements;
  }

 private:
  // Counts how deep the tree is, which bounds the depth of the stack.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail(fmt::format("nested deeper than {} levels", kMaxNesting));
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  [[noreturn]] void fail(const std::string& what) const { fail_at(peek().line, what); }

  bool is_sign(std::string_view sign, std::size_t ahead = 0) const {
    return peek(ahead).kind == Token::Kind::kSign && peek(ahead).text == sign;
  }
  bool is_name(std::string_view name, std::size_t ahead = 0) const {
    return peek(ahead).kind == Token::Kind::kName && peek(ahead).text == name;
  }
  bool accept_sign(std::string_view sign) { return is_sign(sign) && (next(), true); }
  bool accept_name(std::string_view name) { return is_name(name) && (next(), true); }
  void expect_sign(std::string_view sign) {
    if (!accept_sign(sign)) fail(fmt::format("{} where '{}' is needed", described(), sign));
  }
  void expect_name(std::string_view name) {
    if (!accept_name(name)) fail(fmt::format("{} where '{}' is needed", described(), name));
  }
  std::string name() {
    if (peek().kind != Token::Kind::kName) fail(fmt::format("{} where a name is needed", described()));
    return next().text;
  }
  std::string described() const {
    switch (peek().kind) {
      case Token::Kind::kBlockEnd:
      case Token::Kind::kPrintEnd:
        return "the end of the tag";
      case Token::Kind::kEnd:
        return "the end of the template";
      default:
        return shown(peek().text);
    }
  }
  void end_tag() {
    if (peek().kind != Token::Kind::kBlockEnd) fail(fmt::format("{} in a tag that should end", described()));
    next();
  }

  // Up to a tag among `ends`, whose name is left in `end`; without any up to the end of the template.
  Statements body(std::span<const std::string_view> ends, std::string& end) {
    const Nesting nesting(*this);
    Statements statements;
    while (peek().kind != Token::Kind::kEnd) {
      if (peek().kind == Token::Kind::kText) {
        statements.push_back({.kind = Statement::Kind::kText, .line = peek().line, .text = next().text});
      } else if (peek().kind == Token::Kind::kPrintBegin) {
        statements.push_back(print());
      } else {
        next();
        end = name();
        if (std::find(ends.begin(), ends.end(), end) != ends.end()) return statements;
        tag(end, statements);
      }
    }
    if (!ends.empty()) fail(fmt::format("no {{% {} %}}", ends.back()));
    return statements;
  }
  Statements body(std::initializer_list<std::string_view> ends, std::string& end) {
    return body(std::span(ends.begin(), ends.size()), end);
  }

  Statement print() {
    Statement statement{.kind = Statement::Kind::kPrint, .line = peek().line};
    next();
    statement.expression = tuple();
    if (peek().kind != Token::Kind::kPrintEnd) fail(fmt::format("{} behind an expression", described()));
    next();
    return statement;
  }

  void tag(const std::string& tag, Statements& statements) {
    Statement statement{.line = peek().line};
    if (tag == "if") {
      read_if(statement);
    } else if (tag == "for") {
      read_for(statement);
    } else if (tag == "set") {
      read_set(statement);
    } else if (tag == "macro") {
      read_macro(statement);
    } else if (tag == "generation") {  // transformers': what a model is trained on
      end_tag();
      std::string end;
      for (Statement& inner : body({"endgeneration"}, end)) statements.push_back(std::move(inner));
      return end_tag();
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail(fmt::format("{{% {} %}} outside of a loop", tag));
      statement.kind = tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      end_tag();
    } else {
      fail(fmt::format("the tag {}", shown(fmt::format("{{% {} %}}", tag))));
    }
    statements.push_back(std::move(statement));
  }

  void read_if(Statement& statement) {
    statement.kind = Statement::Kind::kIf;
    statement.expression = tuple();
    end_tag();
    std::string end;
    statement.body = body({"elif", "else", "endif"}, end);
    if (end == "elif") {
      const Nesting nesting(*this);
      Statement inner{.line = peek().line};
      read_if(inner);
      statement.otherwise.push_back(std::move(inner));
      return;
    }
    end_tag();
    if (end == "endif") return;
    statement.otherwise = body({"endif"}, end);
    end_tag();
  }

  void read_for(Statement& statement) {
    statement.kind = Statement::Kind::kFor;
    statement.names = targets();
    expect_name("in");
    statement.expression = disjunction();
    if (accept_name("if")) {
      statement.condition = expression();
      statement.has_condition = true;
    }
    if (is_name("recursive")) fail("a recursive loop");
    end_tag();
    std::string end;
    ++loops_;
    statement.body = body({"else", "endfor"}, end);
    --loops_;
    end_tag();
    if (end == "endfor") return;
    statement.otherwise = body({"endfor"}, end);
    end_tag();
  }

  std::vector<std::string> targets() {
    const bool bracket = accept_sign("(");
    std::vector<std::string> names;
    do {
      names.push_back(name());
      if (accept_sign(".")) names.back() += fmt::format(".{}", name());
    } while (accept_sign(","));
    if (bracket) expect_sign(")");
    return names;
  }

  void read_set(Statement& statement) {
    statement.names = targets();
    if (accept_sign("=")) {
      statement.kind = Statement::Kind::kSet;
      statement.expression = tuple();
      return end_tag();
    }
    if (is_sign("|")) fail("a filter of a {% set %} block");
    statement.kind = Statement::Kind::kSetBlock;
    end_tag();
    std::string end;
    statement.body = body({"endset"}, end);
    end_tag();
  }

  void read_macro(Statement& statement) {
    statement.kind = Statement::Kind::kMacro;
    auto macro = std::make_shared<Macro>();
    macro->name = name();
    expect_sign("(");
    while (!accept_sign(")")) {
      macro->parameters.push_back(name());
      if (accept_sign("=")) macro->defaults.push_back(expression());
      if (!is_sign(")")) expect_sign(",");
    }
    end_tag();
    std::string end;
    const int loops = std::exchange(loops_, 0);
    macro->body = body({"endmacro"}, end);
    loops_ = loops;
    if (peek().kind == Token::Kind::kName) next();  // {% endmacro NAME %}
    end_tag();
    statement.macro = std::move(macro);
  }

  static Expression make(Node kind, int line, std::string name, Expressions items) {
    return {.kind = kind, .line = line, .name = std::move(name), .items = std::move(items)};
  }
  static Expression literal(int line, Value value) { return {.line = line, .value = std::move(value)}; }

  Expression tuple() {
    const int line = peek().line;
    Expression first = expression();
    if (!is_sign(",")) return first;
    Expressions items;
    items.push_back(std::move(first));
    while (accept_sign(",")) items.push_back(expression());
    return make(Node::kList, line, "", std::move(items));
  }

  Expression expression() {
    const Nesting nesting(*this);
    Expression value = disjunction();
    while (is_name("if")) {
      const int line = next().line;
      Expressions items;
      items.push_back(std::move(value));
      items.push_back(disjunction());
      items.push_back(accept_name("else") ? expression() : literal(line, Value()));
      value = make(Node::kConditional, line, "", std::move(items));
    }
    return value;
  }

  template <class Operand>
  Expression binary(Node kind, const std::string& name, Expression left, Operand operand) {
    const int line = next().line;
    Expressions items;
    items.push_back(std::move(left));
    items.push_back((this->*operand)());
    count_chain();
    return make(kind, line, name, std::move(items));
  }
  // Sums and the like nest on their left: a long one is a deep tree.
  void count_chain() {
    if (++chained_ > kMaxChained) fail(fmt::format("more than {} operators", kMaxChained));
  }

  Expression disjunction() {
    Expression left = conjunction();
    while (is_name("or")) left = binary(Node::kBinary, "or", std::move(left), &Parser::conjunction);
    return left;
  }
  Expression conjunction() {
    Expression left = negation();
    while (is_name("and")) left = binary(Node::kBinary, "and", std::move(left), &Parser::negation);
    return left;
  }
  Expression negation() {
    if (!is_name("not")) return comparison();
    const Nesting nesting(*this);
    const int line = next().line;
    Expressions items;
    items.push_back(negation());
    return make(Node::kNot, line, "", std::move(items));
  }

  std::string comparing() const {
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (is_sign(sign)) return std::string(sign);
    }
    if (is_name("in")) return "in";
    return is_name("not") && is_name("in", 1) ? "not in" : "";
  }
  Expression comparison() {
    Expression left = sum();
    const std::string name = comparing();
    if (name.empty()) return left;
    if (name == "not in") next();
    left = binary(Node::kCompare, name, std::move(left), &Parser::sum);
    if (!comparing().empty()) fail("a chain of comparisons");
    return left;
  }

  std::string sign_among(std::initializer_list<std::string_view> signs) const {
    for (const std::string_view sign : signs) {
      if (is_sign(sign)) return std::string(sign);
    }
    return "";
  }
  Expression sum() {
    Expression left = concatenation();
    for (std::string sign; !(sign = sign_among({"+", "-"})).empty();) {
      left = binary(Node::kBinary, sign, std::move(left), &Parser::concatenation);
    }
    return left;
  }
  Expression concatenation() {
    Expression left = product();
    while (is_sign("~")) left = binary(Node::kBinary, "~", std::move(left), &Parser::product);
    return left;
  }
  Expression product() {
    Expression left = unary();
    for (std::string sign; !(sign = sign_among({"*", "//", "/", "%"})).empty();) {
      left = binary(Node::kBinary, sign, std::move(left), &Parser::unary);
    }
    return left;
  }

  Expression unary() { return filtered(signed_value()); }
  Expression signed_value() {
    const Nesting nesting(*this);
    if (is_sign("-")) {
      const int line = next().line;
      Expressions items;
      items.push_back(signed_value());
      return make(Node::kNegate, line, "", std::move(items));
    }
    if (accept_sign("+")) return signed_value();
    Expression value = postfix(primary());
    if (is_sign("**")) fail("the operator '**'");
    return value;
  }

  Expression primary() {
    const Token& token = peek();
    const int line = token.line;
    switch (token.kind) {
      case Token::Kind::kString: {
        std::string text;
        while (peek().kind == Token::Kind::kString) text += next().text;
        return literal(line, std::move(text));
      }
      case Token::Kind::kInteger:
        return literal(line, static_cast<std::int64_t>(std::atoll(next().text.c_str())));
      case Token::Kind::kFloat:
        return literal(line, std::strtod(next().text.c_str(), nullptr));
      case Token::Kind::kName:
        return named_value();
      default:
        break;
    }
    if (accept_sign("(")) return bracketed();
    if (accept_sign("[")) return list(line);
    if (accept_sign("{")) return map(line);
    fail(fmt::format("{} where an expression is needed", described()));
  }

  Expression named_value() {
    const int line = peek().line;
    const std::string word = next().text;
    if (word == "true" || word == "True") return literal(line, true);
    if (word == "false" || word == "False") return literal(line, false);
    if (word == "none" || word == "None") return literal(line, None{});
    if (!is_sign("(")) return make(Node::kName, line, word, {});
    if (!is_function(word) && !macros_.contains(word)) fail_at(line, fmt::format("the function {}", shown(word)));
    Expression call = make(Node::kCall, line, word, {});
    arguments(call);
    return call;
  }

  Expression bracketed() {
    const int line = peek().line;
    if (accept_sign(")")) return make(Node::kList, line, "", {});
    Expressions items;
    items.push_back(expression());
    bool is_tuple = false;
    while (accept_sign(",")) {
      is_tuple = true;
      if (!is_sign(")")) items.push_back(expression());
    }
    expect_sign(")");
    if (!is_tuple) return std::move(items[0]);
    return make(Node::kList, line, "", std::move(items));
  }

  Expression list(int line) {
    Expressions items;
    while (!accept_sign("]")) {
      items.push_back(expression());
      if (!is_sign("]")) expect_sign(",");
    }
    return make(Node::kList, line, "", std::move(items));
  }

  Expression map(int line) {
    Expressions items;
    while (!accept_sign("}")) {
      items.push_back(expression());
      expect_sign(":");
      items.push_back(expression());
      if (!is_sign("}")) expect_sign(",");
    }
    return make(Node::kMap, line, "", std::move(items));
  }

  Expression postfix(Expression value) {
    for (;; count_chain()) {
      if (accept_sign(".")) {
        value = attribute(std::move(value));
      } else if (accept_sign("[")) {
        value = subscript(std::move(value));
      } else if (is_sign("(")) {
        fail("a call of what is no name");
      } else {
        return value;
      }
    }
  }

  Expression attribute(Expression value) {
    const int line = peek().line;
    Expressions items;
    items.push_back(std::move(value));
    if (peek().kind == Token::Kind::kInteger) {
      items.push_back(primary());
      return make(Node::kItem, line, "", std::move(items));
    }
    Expression found = make(Node::kAttribute, line, name(), std::move(items));
    if (!is_sign("(")) return found;
    if (!is_method(found.name)) fail_at(line, fmt::format("the method {}", shown(fmt::format(".{}()", found.name))));
    found.kind = Node::kMethod;
    arguments(found);
    return found;
  }

  Expression subscript(Expression value) {
    const int line = peek().line;
    Expressions items;
    items.push_back(std::move(value));
    const auto bound = [&] { items.push_back(is_sign(":") || is_sign("]") ? literal(line, None{}) : expression()); };
    bound();
    if (!is_sign(":")) {
      expect_sign("]");
      return make(Node::kItem, line, "", std::move(items));
    }
    for (int i = 0; i < 2; ++i) {
      if (accept_sign(":")) {
        bound();
      } else {
        items.push_back(literal(line, None{}));
      }
    }
    expect_sign("]");
    return make(Node::kSlice, line, "", std::move(items));
  }

  // Between ( and ).
  void arguments(Expression& call) {
    expect_sign("(");
    while (!accept_sign(")")) {
      if (is_sign("*") || is_sign("**")) fail("arguments from a list or a map");
      if (peek().kind == Token::Kind::kName && is_sign("=", 1)) {
        std::string parameter = name();
        next();
        call.names.push_back(std::move(parameter));
        call.named.push_back(expression());
      } else {
        call.items.push_back(expression());
      }
      if (!is_sign(")")) expect_sign(",");
    }
  }

  Expression filtered(Expression value) {
    for (;; count_chain()) {
      if (accept_sign("|")) {
        value = filter(std::move(value));
      } else if (accept_name("is")) {
        value = test(std::move(value));
      } else {
        return value;
      }
    }
  }

  Expression filter(Expression value) {
    const int line = peek().line;
    Expressions items;
    items.push_back(std::move(value));
    Expression found = make(Node::kFilter, line, name(), std::move(items));
    if (!is_filter(found.name)) fail_at(line, fmt::format("the filter {}", shown(found.name)));
    if (is_sign("(")) arguments(found);
    return found;
  }

  Expression test(Expression value) {
    const int line = peek().line;
    const bool negated = accept_name("not");
    Expressions items;
    items.push_back(std::move(value));
    Expression found = make(Node::kTest, line, name(), std::move(items));
    if (!is_test(found.name)) fail_at(line, fmt::format("the test {}", shown(found.name)));
    if (is_sign("(")) {
      arguments(found);
    } else if (takes_argument()) {
      found.items.push_back(postfix(primary()));
    }
    if (!negated) return found;
    Expressions inner;
    inner.push_back(std::move(found));
    return make(Node::kNot, line, "", std::move(inner));
  }

  // A test's argument may stand behind it without brackets.
  bool takes_argument() const {
    const Token& token = peek();
    if (token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
        token.kind == Token::Kind::kFloat) {
      return true;
    }
    if (is_sign("[") || is_sign("{")) return true;
    static const std::set<std::string, std::less<>> others = {"else", "or", "and", "is",
                                                              "if",   "in", "not", "recursive"};
    return token.kind == Token::Kind::kName && !others.contains(token.text);
  }

  static constexpr int kMaxChained = 4000;

  std::vector<Token> tokens_;
  std::set<std::string, std::less<>> macros_;
  std::size_t at_ = 0;
  int nesting_ = 0, loops_ = 0, chained_ = 0;
};

}  // namespace

Statements parse(std::string_view text) { return Parser(text).all(); }

}  // namespace computron::jinja

// A Jinja template as a tree, and what it may ask for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/template_value.h"

namespace computron::jinja {

struct Expression;
using Expressions = std::vector<Expression>;

struct Expression {
  enum class Kind {
    kLiteral,      // value
    kName,         // name
    kList,         // items
    kMap,          // items: key, value, key, value, ...
    kAttribute,    // items[0].name
    kItem,         // items[0][items[1]]
    kSlice,        // items[0][items[1] : items[2] : items[3]], none where they are left out
    kCall,         // name(items..., named...): a function or a macro
    kMethod,       // items[0].name(items[1]..., named...)
    kFilter,       // items[0] | name(items[1]..., named...)
    kTest,         // items[0] is name(items[1]...)
    kNot,          // not items[0]
    kNegate,       // -items[0]
    kBinary,       // items[0] name items[1], `name` one of + - * / // % ** ~ and or
    kCompare,      // items[0] name items[1], `name` one of == != < > <= >= in, "not in"
    kConditional,  // items[0] if items[1] else items[2]
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  std::string name{};
  Value value{};
  Expressions items{};
  // names[i] is the parameter that named[i] is for. Not pairs: Clang 19 makes no vector of what is incomplete here.
  std::vector<std::string> names{};
  Expressions named{};
};

struct Statement;
using Statements = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // expression
    kIf,        // expression, body, otherwise
    kFor,       // names in expression [if condition], body, otherwise
    kSet,       // names = expression
    kSetBlock,  // names = what body prints
    kMacro,     // macro
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text{};
  std::vector<std::string> names{};  // "x", or of a namespace "ns.x"
  Expression expression{}, condition{};
  bool has_condition = false;
  Statements body{}, otherwise{};
  std::shared_ptr<const Macro> macro{};
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<Expression> defaults;  // of the last parameters
  Statements body;
};

// TemplateError naming the first thing that is not known: a tag, a filter, a test, a function, a method.
Statements parse(std::string_view text);

}  // namespace computron::jinja

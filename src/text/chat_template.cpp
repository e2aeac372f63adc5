#include "src/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "computron/base/json_text.h"
#include "src/text/template_functions.h"
#include "src/text/template_syntax.h"

namespace computron {
namespace jinja {
namespace {

constexpr std::size_t kMaxOutputBytes = std::size_t{64} << 20;
constexpr int kMaxCalls = 50;  // of macros, within each other

class Renderer {
 public:
  Renderer(const Entries& variables, std::chrono::year_month_day date, std::size_t bytes) : date_(date), work_(bytes) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables) scopes_[0][name] = value;
  }

  std::string run(const Statements& statements) {
    execute(statements);
    return std::move(output_);
  }

 private:
  enum class Flow { kOn, kBreak, kContinue };
  using Scope = std::map<std::string, Value, std::less<>>;

  void print(std::string_view text) {
    work_.charge_text(text.size());
    if (output_.size() + text.size() > kMaxOutputBytes) throw TemplateError("it prints more than 64 MiB");
    output_ += text;
  }

  Flow execute(const Statements& statements) {
    for (const Statement& statement : statements) {
      work_.charge();
      try {
        if (const Flow flow = execute(statement); flow != Flow::kOn) return flow;
      } catch (const TemplateError& error) {
        if (std::string_view(error.what()).starts_with("line ")) throw;
        fail_at(statement.line, error.what());
      }
    }
    return Flow::kOn;
  }

  Flow execute(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::kText:
        print(statement.text);
        break;
      case Statement::Kind::kPrint:
        print(value_of(statement.expression).printed());
        break;
      case Statement::Kind::kIf:
        return execute(value_of(statement.expression).truth() ? statement.body : statement.otherwise);
      case Statement::Kind::kFor:
        return loop(statement);
      case Statement::Kind::kSet:
        assign(statement.names, value_of(statement.expression));
        break;
      case Statement::Kind::kSetBlock:
        return set_block(statement);
      case Statement::Kind::kMacro:
        scopes_.back()[statement.macro->name] = Value(statement.macro.get());
        break;
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  // With names of its own.
  Flow execute_within(const Statements& body) {
    scopes_.emplace_back();
    const Flow flow = execute(body);
    scopes_.pop_back();
    return flow;
  }

  // What ends a turn of the loop around the block ends it before the names are set.
  Flow set_block(const Statement& statement) {
    std::string before = std::exchange(output_, {});
    const Flow flow = execute_within(statement.body);
    const std::string text = std::exchange(output_, std::move(before));
    if (flow == Flow::kOn) assign(statement.names, text);
    return flow;
  }

  void assign(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return assign(names[0], value);
    const ListBody* list = value.list();
    if (list == nullptr || list->items.size() != names.size()) {
      throw TemplateError(fmt::format("{} for {} names", value.kind(), names.size()));
    }
    for (std::size_t i = 0; i < names.size(); ++i) assign(names[i], list->items[i]);
  }

  void assign(const std::string& name, const Value& value) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) {
      scopes_.back()[name] = value;
      return;
    }
    const Value target = variable(std::string_view(name).substr(0, dot));
    const auto* names = target.get<std::shared_ptr<Namespace>>();
    if (names == nullptr) throw TemplateError(fmt::format("{} is set of what is no namespace", shown(name)));
    if (!value.is_plain()) throw TemplateError(fmt::format("{} in a namespace", value.kind()));
    put((*names)->entries, std::string_view(name).substr(dot + 1), value);
  }

  Value variable(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return is_function(name) ? Value(name) : Value();  // templates ask whether strftime_now is defined
  }

  // Each turn of a loop has names of its own, and so has its {% else %}, which is for loops of which no turn came to
  // its end: in Jinja2 a turn that {% break %} or {% continue %} ended does not count.
  Flow loop(const Statement& statement) {
    auto loop = std::make_shared<Loop>();
    loop->items = items_of(value_of(statement.expression), work_);
    if (statement.has_condition) keep_wanted(statement, loop->items);
    bool completes = false;
    loops_.push_back(loop.get());
    for (; loop->index < loop->items.size(); ++loop->index) {
      scopes_.emplace_back();
      scopes_.back()["loop"] = Value(std::shared_ptr<const Loop>(loop));
      assign(statement.names, loop->items[loop->index]);
      const Flow flow = execute(statement.body);
      scopes_.pop_back();
      completes = completes || flow == Flow::kOn;
      if (flow == Flow::kBreak) break;
    }
    loops_.pop_back();
    return completes ? Flow::kOn : execute_within(statement.otherwise);
  }

  void keep_wanted(const Statement& statement, List& items) {
    List wanted;
    for (const Value& one : items) {
      scopes_.emplace_back();
      assign(statement.names, one);
      if (value_of(statement.condition).truth()) wanted.push_back(one);
      scopes_.pop_back();
    }
    items = std::move(wanted);
  }

  Value value_of(const Expression& e) {
    work_.charge();
    switch (e.kind) {
      case Expression::Kind::kLiteral:
        return e.value;
      case Expression::Kind::kName:
        return variable(e.name);
      case Expression::Kind::kList:
        return values_of(e.items, 0);
      case Expression::Kind::kMap:
        return map_of(e);
      case Expression::Kind::kAttribute:
        return attribute(value_of(e.items[0]), e.name);
      case Expression::Kind::kItem:
        return item(value_of(e.items[0]), value_of(e.items[1]));
      case Expression::Kind::kSlice:
        return slice(value_of(e.items[0]), value_of(e.items[1]), value_of(e.items[2]), value_of(e.items[3]), work_);
      case Expression::Kind::kNot:
        return !value_of(e.items[0]).truth();
      case Expression::Kind::kNegate:
        return operate("-", std::int64_t{0}, value_of(e.items[0]), work_);
      case Expression::Kind::kConditional:
        return value_of(e.items[value_of(e.items[1]).truth() ? 0 : 2]);
      case Expression::Kind::kCompare:
        return compare(e);
      case Expression::Kind::kBinary:
        return binary(e);
      default:
        return applied(e);
    }
  }

  // A function, macro, method, filter or test.
  Value applied(const Expression& e) {
    if (e.kind == Expression::Kind::kCall) return call(e);
    const Value value = value_of(e.items[0]);
    const Arguments arguments = arguments_of(e, 1);
    if (e.kind == Expression::Kind::kMethod) return call_method(e.name, value, arguments, work_);
    if (e.kind == Expression::Kind::kFilter) return filter(e.name, value, arguments, work_);
    return test(e.name, value, arguments);
  }

  List values_of(const Expressions& items, std::size_t begin) {
    List values;
    for (std::size_t i = begin; i < items.size(); ++i) values.push_back(value_of(items[i]));
    return values;
  }

  Value map_of(const Expression& e) {
    Entries entries;
    for (std::size_t i = 0; i + 1 < e.items.size(); i += 2) {
      put(entries, value_of(e.items[i]).text_of("a key"), value_of(e.items[i + 1]));
    }
    return entries;
  }

  Value compare(const Expression& e) {
    const Value a = value_of(e.items[0]), b = value_of(e.items[1]);
    work_.charge_text((a.text() == nullptr ? 0 : a.text()->size()) + (b.text() == nullptr ? 0 : b.text()->size()));
    if (e.name == "==") return equal(a, b);
    if (e.name == "!=") return !equal(a, b);
    if (e.name == "<") return less(a, b);
    if (e.name == ">") return less(b, a);
    if (e.name == "<=") return !less(b, a);
    if (e.name == ">=") return !less(a, b);
    work_.charge(b.list() == nullptr ? 0 : b.list()->items.size());
    return contains(b, a) == (e.name == "in");
  }

  Value binary(const Expression& e) {
    Value a = value_of(e.items[0]);
    if (e.name == "and") return a.truth() ? value_of(e.items[1]) : a;
    if (e.name == "or") return a.truth() ? a : value_of(e.items[1]);
    return operate(e.name, a, value_of(e.items[1]), work_);
  }

  Arguments arguments_of(const Expression& e, std::size_t begin) {
    Arguments arguments{.values = values_of(e.items, begin), .named = {}};
    for (std::size_t i = 0; i < e.named.size(); ++i) put(arguments.named, e.names[i], value_of(e.named[i]));
    return arguments;
  }

  Value call(const Expression& e) {
    const Arguments arguments = arguments_of(e, 0);
    const Value callee = variable(e.name);
    if (const auto* macro = callee.get<const Macro*>()) return call(**macro, arguments);
    if (e.name == "raise_exception") refuse(arguments);
    if (!is_function(e.name)) throw TemplateError(fmt::format("the macro {} before its definition", shown(e.name)));
    return call_function(e.name, arguments, date_, work_);
  }

  // A macro sees the template's own names and its arguments.
  Value call(const Macro& macro, const Arguments& arguments) {
    if (calls_ == kMaxCalls) throw TemplateError(fmt::format("macros called within {} others", kMaxCalls));
    if (arguments.values.size() > macro.parameters.size()) {
      throw TemplateError(fmt::format("too many arguments of {}", shown(macro.name)));
    }
    std::vector<Scope> outer(std::make_move_iterator(scopes_.begin() + 1), std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.emplace_back();
    const std::size_t required = macro.parameters.size() - macro.defaults.size();
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const Value* given = arguments.find(i, macro.parameters[i]);
      Value value = given != nullptr ? *given : i < required ? Value() : value_of(macro.defaults[i - required]);
      scopes_.back()[macro.parameters[i]] = std::move(value);
    }
    ++calls_;
    std::string before = std::exchange(output_, {});
    execute(macro.body);
    std::string text = std::exchange(output_, std::move(before));
    --calls_;
    scopes_.resize(1);
    scopes_.insert(scopes_.end(), std::make_move_iterator(outer.begin()), std::make_move_iterator(outer.end()));
    return text;
  }

  [[noreturn]] void refuse(const Arguments& arguments) const {
    const Value* words = arguments.find(0, "message");
    TemplateRefusal refusal{.words = words == nullptr ? "" : words->printed()};
    for (const Loop* loop : loops_) {
      const MapBody* map = loop->items[loop->index].map();
      if (map != nullptr && map->message >= 0) refusal.message = map->message;
    }
    throw refusal;
  }

  std::chrono::year_month_day date_;
  Work work_;
  std::string output_;
  std::vector<Scope> scopes_;       // the template's, and those of loops and a macro
  std::vector<const Loop*> loops_;  // that are being gone through
  int calls_ = 0;
};

}  // namespace
}  // namespace jinja

struct ChatTemplate::Body {
  jinja::Statements statements;
};

ChatTemplate::ChatTemplate(std::string_view text)
    : body_(std::make_unique<const Body>(Body{.statements = jinja::parse(text)})) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const jinja::Entries& variables, std::chrono::year_month_day date,
                                 std::size_t bytes) const {
  return jinja::Renderer(variables, date, bytes).run(body_->statements);
}

}  // namespace computron

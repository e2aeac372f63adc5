// Where rules may nest no deeper there is still a way to an end from wherever a text can come: every state of grammars
// of random schemas that refer to themselves is visited, and the ends are looked for backwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::mt19937_64;

// Three definitions that name one another, in places that must be there and in others.
class RecursiveSchema {
 public:
  explicit RecursiveSchema(Random& random) : random_(random) {}

  Json make() {
    Json schema = {{"$ref", "#/$defs/0"}, {"$defs", Json::object()}};
    for (const char* name : {"0", "1", "2"}) schema["$defs"][name] = value(2);
    return schema;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }

  Json value(int depth) {
    switch (below(depth > 0 ? 9 : 4)) {
      case 0:
        return {{"type", "null"}};
      case 1:
        return {{"const", 1}};
      case 2:
      case 3:
        return {{"$ref", "#/$defs/" + std::to_string(below(3))}};
      case 4:
        return {{"anyOf", {value(depth - 1), value(depth - 1)}}};
      case 5:
      case 6:
        return array(depth);
      default:
        return object(depth);
    }
  }
  Json array(int depth) {
    Json schema = {{"type", "array"}, {"items", value(depth - 1)}};
    if (below(2) == 0) schema["minItems"] = below(2);
    if (below(2) == 0) schema["maxItems"] = 2;
    if (below(3) == 0) schema["prefixItems"] = {value(depth - 1)};
    return schema;
  }
  Json object(int depth) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (const char* name : {"a", "b"}) {
      schema["properties"][name] = value(depth - 1);
      if (below(3) == 0) schema["required"].push_back(name);
    }
    return schema;
  }

  Random& random_;
};

// The states that texts of few spaces can come to, and where they lead.
struct Reached {
  std::vector<std::vector<Matcher::State>> next;  // [state]
  bool all = true;                                // none are missing
};

Reached reach(Matcher& matcher, std::size_t most) {
  Reached reached;
  for (Matcher::State state = 0; static_cast<std::size_t>(state) < matcher.states(); ++state) {
    if (matcher.states() > most) {
      reached.all = false;
      break;
    }
    std::vector<Matcher::State>& next = reached.next.emplace_back();
    for (int byte = ' '; byte < 128; ++byte) {
      const Matcher::State to = matcher.next(state, static_cast<std::uint8_t>(byte));
      if (to != Matcher::kDead && (next.empty() || next.back() != to)) next.push_back(to);
    }
  }
  return reached;
}

// [state] an end can be reached.
std::vector<bool> ending(const Matcher& matcher, const Reached& reached) {
  std::vector<bool> ends(reached.next.size());
  for (std::size_t s = 0; s < ends.size(); ++s) ends[s] = matcher.accepts(static_cast<Matcher::State>(s));
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t s = ends.size(); s-- > 0;) {
      if (ends[s]) continue;
      for (const Matcher::State to : reached.next[s]) ends[s] = ends[s] || ends[static_cast<std::size_t>(to)];
      changed = changed || ends[s];
    }
  }
  return ends;
}

std::shared_ptr<const Grammar> no_deeper(const std::shared_ptr<const Grammar>& grammar, std::uint32_t depth) {
  Grammar flat = *grammar;
  flat.max_depth = depth;
  return std::make_shared<const Grammar>(std::move(flat));
}

// Whether all states were visited.
bool expect_ends(Matcher& matcher, const std::string& what) {
  constexpr std::size_t kMost = 2000;
  const Reached reached = reach(matcher, kMost);
  const std::vector<bool> ends = reached.all ? ending(matcher, reached) : std::vector<bool>(reached.next.size(), true);
  for (std::size_t s = 0; s < reached.next.size(); ++s) {
    EXPECT_TRUE(!reached.next[s].empty() || matcher.accepts(static_cast<Matcher::State>(s))) << what << " is stuck";
    EXPECT_TRUE(ends[s]) << what << " has no end";
    if (::testing::Test::HasFailure()) break;
  }
  return reached.all;
}

// Counts of matchers whose states were all visited, and of those that visit more where they may nest one level deeper.
struct Visited {
  int whole = 0, limited = 0;
};

void expect_ends(const std::shared_ptr<const Grammar>& grammar, const std::string& name, Visited& visited) {
  const std::uint32_t least = grammar->depths[grammar->rules[grammar->start]];
  std::size_t before = 0;
  for (std::uint32_t depth = least; depth < least + 4; ++depth) {
    Matcher matcher(no_deeper(grammar, depth));
    const std::string what = name + " no deeper than " + std::to_string(depth);
    ASSERT_NE(matcher.start(), Matcher::kDead) << what;
    const bool all = expect_ends(matcher, what);
    ASSERT_FALSE(::testing::Test::HasFailure());
    visited.whole += all ? 1 : 0;
    visited.limited += all && before > 0 && matcher.states() > before ? 1 : 0;
    before = matcher.states();
  }
}

TEST(Depth, FromEveryStateOfASchemaAnEndCanBeReached) {
  Random random(26);
  Visited visited;
  for (int i = 0; i < 400; ++i) {
    const std::string schema = RecursiveSchema(random).make().dump();
    if (!refusal(schema_guide(schema)).empty()) continue;  // it has no end, or nothing in between
    ASSERT_NO_FATAL_FAILURE(expect_ends(compile_guide(schema_guide(schema)), schema, visited));
  }
  EXPECT_GT(visited.whole, 400);
  EXPECT_GT(visited.limited, 100);
}

// A few rules of a few nodes each, with anything between them.
Grammar random_grammar(Random& random) {
  GrammarBuilder builder;
  const auto below = [&random](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  constexpr std::uint32_t kRules = 3, kNodes = 5;
  for (std::uint32_t r = 0; r < kRules; ++r) {
    std::vector<GrammarNodeId> nodes = {builder.first_node(builder.add_rule())};
    while (nodes.size() < kNodes) nodes.push_back(builder.add_node());
    builder.accept(nodes.back());
    for (std::uint32_t edge = 0; edge < 2 * kNodes; ++edge) {
      const GrammarNodeId from = nodes[below(kNodes)], to = nodes[below(kNodes)];
      const auto byte = static_cast<std::uint8_t>('a' + below(3));
      if (const auto kind = below(8); kind < 4) {
        builder.add_bytes(from, byte, byte, to);
      } else if (kind < 7) {
        if (r == 0 || edge > 1) builder.add_call(from, below(kRules), to);
      } else {
        builder.add_silent(from, to);
      }
    }
  }
  return builder.take(0);
}

TEST(Depth, FromEveryStateOfAGrammarAnEndCanBeReached) {
  Random random(27);
  Visited visited;
  for (int i = 0; i < 1500; ++i) {
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = std::make_shared<const Grammar>(random_grammar(random));
    } catch (const RequestError&) {
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(expect_ends(grammar, "grammar " + std::to_string(i), visited));
  }
  EXPECT_GT(visited.whole, 500);
  EXPECT_GT(visited.limited, 100);
}

// The limit itself: a property that may be left out is not begun where its value would nest too deep.
TEST(Depth, APropertyThatWouldNestTooDeepIsNotBegun) {
  const std::string schema = R"({"type":"object","properties":{"n":{"$ref":"#"}}})";
  Matcher matcher(compile_guide(schema_guide(schema)));
  Matcher::State state = matcher.start();
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    const Matcher::State opened = matcher.next(state, '{');
    ASSERT_NE(opened, Matcher::kDead) << "an object whose name has been written is not begun, level " << i;
    text += '{';
    if (matcher.next(opened, '"') == Matcher::kDead) break;
    state = opened;
    for (const char byte : std::string("\"n\":")) state = matcher.next(state, static_cast<std::uint8_t>(byte));
    ASSERT_NE(state, Matcher::kDead) << i;
    text += "\"n\":";
  }
  EXPECT_LT(text.size(), 5 * std::size_t{Grammar::kMaxDepth} + 5);
  EXPECT_GT(text.size(), 4 * std::size_t{Grammar::kMaxDepth});
  const auto levels = static_cast<std::size_t>(std::count(text.begin(), text.end(), '{'));
  state = state_behind(matcher, text + std::string(levels, '}'));
  ASSERT_NE(state, Matcher::kDead);
  EXPECT_TRUE(matcher.accepts(state));
}

// Five hundred calls of what would nest too deep, beside a byte: none of them is entered, nor is a return kept for it.
TEST(Depth, WhatIsTooDeepTakesNoMemory) {
  GrammarBuilder builder;
  const GrammarRuleId start = builder.add_rule(), middle = builder.add_rule(), inner = builder.add_rule();
  builder.accept(builder.literal(builder.first_node(inner), "x"));
  builder.accept(builder.literal(builder.call(builder.first_node(middle), inner), "y"));
  const GrammarNodeId first = builder.first_node(start);
  builder.accept(builder.literal(first, "a"));
  for (int i = 0; i < 500; ++i) builder.accept(builder.literal(builder.call(first, middle), "b"));
  const auto grammar = std::make_shared<const Grammar>(builder.take(start));
  Matcher flat(no_deeper(grammar, 1)), deep(no_deeper(grammar, 2));
  EXPECT_EQ(state_behind(flat, "x"), Matcher::kDead);
  EXPECT_NE(state_behind(deep, "xyb"), Matcher::kDead);
  EXPECT_NE(state_behind(flat, "a"), Matcher::kDead);
  EXPECT_LT(flat.kept_bytes(), 2000u);
  EXPECT_GT(deep.kept_bytes(), 20'000u);
}

// What reads nothing is passed until something reads, however long that takes.
TEST(Depth, ManyNodesInARowAreNoDeadEnd) { EXPECT_TRUE(accepted(regex_guide("a(?:){40000}b"), "ab")); }

}  // namespace
}  // namespace computron::test

// What a grammar takes of memory, and what it may be.
#include "computron/guided/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

using ::testing::HasSubstr;

template <class Add>
std::string refusal_of(Add&& add) {
  try {
    add();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error_code(), "invalid_parameter");
    return error.what();
  }
  return "";
}

TEST(Grammar, EdgesAreBounded) {
  for (const int kind : {0, 1, 2}) {
    GrammarBuilder builder;
    const GrammarRuleId rule = builder.add_rule();
    const GrammarNodeId node = builder.first_node(rule);
    const auto add = [&] {
      if (kind == 0) builder.add_bytes(node, 'a', 'a', node);
      if (kind == 1) builder.add_silent(node, node);
      if (kind == 2) builder.add_call(node, rule, node);
    };
    for (std::size_t i = 0; i < GrammarBuilder::kMaxEdges; ++i) add();
    EXPECT_THAT(refusal_of(add), HasSubstr("more than 400000 transitions")) << kind;
  }
}

// Of the largest ones that are taken.
TEST(Grammar, TakesNoMoreMemoryThanItSays) {
  const std::string wide = "r(?:[^\\u4e00\\u4e03\\u5e00\\u6e00\\u7e00\\ud7a0-\\ud7a3]|ab?|b[c-e]?){1200}";
  const std::string optional = "r(?:a?b?c?d?|e){4500}";
  const std::string deep = R"(s{"type":"array","minItems":12000,"items":{"type":"null"}})";
  for (const std::string& guide : {std::string("ra{49000}"), wide, optional, deep}) {
    ASSERT_EQ(refusal(guide), "") << guide;
    const auto grammar = compile_guide(guide);
    EXPECT_GT(grammar->nodes.size(), GrammarBuilder::kMaxNodes / 3) << guide;
    EXPECT_GT(grammar->bytes(), Grammar::kMaxBytes / 8) << guide;
    EXPECT_LT(grammar->bytes(), Grammar::kMaxBytes) << guide;
  }
}

}  // namespace
}  // namespace computron::test

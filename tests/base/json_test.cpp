#include "computron/base/json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace computron {
namespace {

using testing::HasSubstr;

// What is told of a text, one word an event.
class Words final : public JsonEvents {
 public:
  void null() override { say("null"); }
  void boolean(bool value) override { say(value ? "true" : "false"); }
  void negative(std::int64_t value) override { say(std::to_string(value)); }
  void integer(std::uint64_t value) override { say(std::to_string(value)); }
  void number(double value) override { say("number " + std::to_string(value)); }
  void string(std::string& text) override { say("'" + text + "'"); }
  void begin_object() override { say("{"); }
  void key(std::string& name) override { say(name + ":"); }
  void end_object() override { say("}"); }
  void begin_list() override { say("["); }
  void end_list() override { say("]"); }

  std::string words;

 private:
  void say(const std::string& word) { words += (words.empty() ? "" : " ") + word; }
};

TEST(Json, EventsComeInTheOrderOfTheText) {
  const std::string text = R"({"a": [null, true, -3, 18446744073709551615, 1e1], "a": {"b": "\u00e4"}})";
  const std::string expected = "{ a: [ null true -3 18446744073709551615 number 10.000000 ] a: { b: '\xC3\xA4' } }";
  Words whole, streamed;
  EXPECT_FALSE(read_json(text, whole));
  EXPECT_EQ(whole.words, expected);
  std::istringstream stream(text);
  EXPECT_FALSE(read_json(stream, streamed));
  EXPECT_EQ(streamed.words, expected);
}

TEST(Json, FaultNamesThePlace) {
  Words events;
  const auto fault = read_json(R"({"a": 1,})", events);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, JsonFault::Kind::kSyntax);
  EXPECT_EQ(fault->position, 9u);
  EXPECT_THAT(fault->message, HasSubstr("syntax error"));
  EXPECT_EQ(events.words, "{ a: 1") << "what precedes the fault was told";
  nlohmann::json value;
  EXPECT_EQ(parse_json(R"({"a": 1,})", {}, value)->position, 9u);
  EXPECT_EQ(parse_json("[1e999]", {}, value)->kind, JsonFault::Kind::kNumberTooLarge);
  EXPECT_EQ(read_json("[1e999]", events)->token, "1e999");
}

TEST(Json, TextMustBeUtf8AndOneValue) {
  for (const char* text : {"", "\"\xFF\"", "1 2", "\"\\ud800\"", "[", "nul"}) {
    Words events;
    nlohmann::json value;
    EXPECT_TRUE(read_json(text, events)) << text;
    EXPECT_TRUE(parse_json(text, {}, value)) << text;
    EXPECT_FALSE(is_json(text)) << text;
  }
  EXPECT_TRUE(is_json("[1]"));
}

TEST(Json, ReceiverEndsTheReadingByThrowing) {
  struct Refusing final : JsonEvents {
    void begin_list() override { throw std::runtime_error("no lists"); }
  } events;
  EXPECT_THROW((void)read_json("[1, 2]", events), std::runtime_error);
}

TEST(Json, LimitsBoundDepthAndValues) {
  nlohmann::json value;
  EXPECT_FALSE(parse_json("[[[1]]]", {.depth = 3}, value));
  EXPECT_EQ(value.dump(), "[[[1]]]");
  EXPECT_EQ(parse_json("[[[1]]]", {.depth = 2}, value)->kind, JsonFault::Kind::kTooDeep);
  EXPECT_EQ(parse_json("[1, 2, 3, 4]", {.values = 4}, value)->kind, JsonFault::Kind::kTooManyValues);
  EXPECT_EQ(parse_json(std::string(1'000'000, '['), {.depth = 64}, value)->kind, JsonFault::Kind::kTooDeep);
}

TEST(Json, OrderedDocumentKeepsTheOrderOfKeys) {
  nlohmann::ordered_json ordered;
  ASSERT_FALSE(parse_json(R"({"b": 1, "a": 2})", {}, ordered));
  EXPECT_EQ(ordered.dump(), R"({"b":1,"a":2})");
  nlohmann::json sorted;
  ASSERT_FALSE(parse_json(R"({"b": 1, "a": 2, "a": 3})", {}, sorted));
  EXPECT_EQ(sorted.dump(), R"({"a":3,"b":1})") << "the last of a key counts";
}

}  // namespace
}  // namespace computron

// Schemas: what they take and do not take, what is refused by name, and limits.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expect_texts(const std::string& schema, const std::vector<std::string>& taken,
                  const std::vector<std::string>& others) {
  for (const std::string& text : taken) EXPECT_TRUE(accepted(schema_guide(schema), text)) << schema << "\n" << text;
  for (const std::string& text : others) EXPECT_FALSE(accepted(schema_guide(schema), text)) << schema << "\n" << text;
}

TEST(JsonSchema, ItemsOfTwoSchemasThatHoldInOtherPlaces) {
  const auto says = [](const char* schema) { return refusal(schema_guide(schema)); };
  for (const char* schema :
       {R"({"prefixItems":[{"type":"null"}],"allOf":[{"items":{"type":"integer"}}]})",
        R"({"items":{"type":"integer"},"allOf":[{"prefixItems":[{"type":"null"}]}]})",
        R"({"prefixItems":[{"type":"null"}],"items":false,"allOf":[{"items":{"type":"integer"}}]})"}) {
    EXPECT_THAT(says(schema), HasSubstr("'prefixItems' beside")) << schema;
  }
  expect_texts(
      R"({"type":"array","prefixItems":[{"type":"null"}],"allOf":[{"prefixItems":[{"type":"null"}],"items":false}]})",
      {"[null]"}, {"[1]", "[null,1]"});
}

TEST(JsonSchema, BoundsOfIntegersThatADoubleWouldRoundAreRefused) {
  for (const char* bound : {R"("minimum":9007199254740993)", R"("exclusiveMinimum":9007199254740992)"}) {
    EXPECT_THAT(refusal(schema_guide(std::string(R"({"type":"integer",)") + bound + "}")), HasSubstr("'minimum'"));
  }
  for (const char* bound : {R"("maximum":-9007199254740993)", R"("maximum":999999999999999999)"}) {
    EXPECT_THAT(refusal(schema_guide(std::string(R"({"type":"integer",)") + bound + "}")), HasSubstr("'maximum'"));
  }
  expect_texts(R"({"type":"integer","exclusiveMinimum":9007199254740991})",
               {"9007199254740992", "9007199254740993", "999999999999999999"}, {"9007199254740991"});
  expect_texts(R"({"type":"integer","minimum":0,"maximum":9223372036854775807})", {"0", "999999999999999999"},
               {"-1", "1000000000000000000"});
}

TEST(JsonSchema, ComparingTheSchemasOfOneOfIsBounded) {
  std::string schema = R"({"oneOf":[)";
  const std::string names = [] {
    std::string list = "\"0\"";
    for (int i = 1; i < 100; ++i) list += ",\"" + std::to_string(i) + "\"";
    return list;
  }();
  for (int i = 0; i < 300; ++i) {
    schema += std::string(i > 0 ? "," : "") + R"({"type":"object","required":["k"],"properties":{"k":{"const":)" +
              std::to_string(i) + R"(}},"title":"t","examples":[)" + names + "]}";
  }
  EXPECT_THAT(refusal(schema_guide(schema + "]}")), HasSubstr("too many and too long"));
}

TEST(JsonSchema, AnyObject) {
  const std::string guide = object_guide();
  for (const char* text :
       {"{}", R"({"a": [1, {"b":"\u00e9"}], "c": -1.5e3})", "{\n  \"a\": 1\n}", R"({"a":{"a":{}}})"}) {
    EXPECT_TRUE(accepted(guide, text)) << text;
  }
  for (const char* text : {"[]", R"({"a"})", R"({"a":01})", R"({"a":"\ud800"})", "{\"a\":\"\n\"}", "{,}", R"({"a":1,})",
                           "{  }", " {}", "{} "}) {
    EXPECT_FALSE(accepted(guide, text)) << text;
  }
}

TEST(JsonSchema, ObjectsHoldWhatTheySay) {
  expect_texts(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{}},"required":["a","c"]})",
      {R"({"a":1,"c":null})", R"({"a": 1, "b": "x", "c": [1]})"},
      {R"({"a":1})", R"({"c":1,"a":1})", R"({"a":1,"c":1,"d":1})", R"({"b":"x","c":1})", "{}"});
  expect_texts(R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}}})",
               {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"}, {R"({,"b":null})"});
  expect_texts(R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
               {R"({"ab":1,"a":"x","abc":"y","b":"z"})", R"({"é":"x"})", R"({"":"x"})", "{}"},
               {R"({"ab":"x"})", R"({"b":1})", R"({"\u0061b":"x"})"});
  expect_texts(R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"});
  expect_texts(R"({"type":"object","required":["x"]})", {R"({"x":1,"y":2})"}, {"{}", R"({"y":1})"});
}

TEST(JsonSchema, ArraysHoldWhatTheySay) {
  expect_texts(R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
               {"[true]", "[true, false]", "[\n  true,\n  false\n]"}, {"[]", "[true,true,true]", "[1]"});
  expect_texts(R"({"type":"array","items":{"type":"null"},"minItems":2})", {"[null,null]", "[null,null,null]"},
               {"[null]"});
  expect_texts(R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":1})",
               {"[1]", R"([1,"a"])"}, {"[]", R"([1,"a",2])", R"(["a"])"});
  expect_texts(R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"});
}

TEST(JsonSchema, StringsHoldWhatTheySay) {
  expect_texts(R"({"type":"string","minLength":2,"maxLength":3})",
               {R"("ab")", R"("äöü")", R"("\n\u00e9")", "\"\xF0\x9F\x98\x80x\""}, {R"("a")", R"("abcd")", "\"a\nb\""});
  expect_texts(R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$"})", {R"("AB-12")"}, {R"("xAB-1")", R"("AB-1x")"});
  expect_texts(R"({"type":"string","pattern":"b\"c"})", {R"("ab\"cd")", R"("b\"c")"}, {R"("abc")"});
  expect_texts(R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")", R"("bx")"});
  expect_texts(R"({"type":"string","pattern":"^.$"})", {R"("\"")", R"("\\")", R"("\t")"}, {R"("\n")", R"("")"});
  expect_texts(R"({"type":"string","format":"date-time"})", {R"("2024-01-31T10:00:00Z")"},
               {R"("2024-02-30T10:00:00Z")", R"("2024-01-31")"});
  expect_texts(R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"});
}

TEST(JsonSchema, NumbersLieWithinTheirBounds) {
  expect_texts(R"({"type":"integer","minimum":-5,"maximum":120})", {"-5", "-1", "0", "7", "99", "100", "120"},
               {"-6", "121", "1.0", "007", "-0", "1e1"});
  expect_texts(R"({"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":11})", {"10"}, {"9", "11"});
  expect_texts(R"({"type":"integer","minimum":0.5,"maximum":1.5})", {"1"}, {"0", "2"});
  expect_texts(R"({"type":"number","minimum":0.25,"exclusiveMaximum":2})", {"0.25", "0.250", "1", "1.99", "0.3", "1.0"},
               {"0.2", "2", "2.0", "0", "-1", "0.249"});
  expect_texts(R"({"type":"number","minimum":-1.5,"maximum":-0.5})", {"-1", "-0.5", "-1.5", "-0.50"},
               {"-0.4", "-1.51", "1", "0"});
  expect_texts(R"({"type":"number"})", {"0", "-1.5e-3", "12.50"}, {"+1", ".5", "1.", "1e", "NaN"});
}

TEST(JsonSchema, SchemasAreJoined) {
  expect_texts(R"({"anyOf":[{"type":"string","maxLength":1},{"type":"integer"}]})", {"1", R"("a")"},
               {R"("ab")", "null"});
  expect_texts(R"({"type":["string","null"]})", {"null", R"("a")"}, {"1"});
  expect_texts(R"({"enum":["a",1,null,{"b":[2]}]})", {R"("a")", "1", "null", R"({"b":[2]})"}, {R"("b")", "2"});
  expect_texts(R"({"const":"x"})", {R"("x")"}, {"1"});
  expect_texts(R"({"type":"integer","enum":["a",1]})", {"1"}, {R"("a")"});
  expect_texts(R"({"allOf":[{"type":"integer","minimum":3},{"maximum":5}]})", {"3", "5"}, {"2", "6"});
  expect_texts(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
                   "anyOf":[{"required":["a"]},{"required":["b"]}]})",
               {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}, {"{}"});
  expect_texts(
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},
                            {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
      {R"({"k":"a","x":3})", R"({"k":"b"})"}, {R"({"k":"b","x":3})", R"({"k":"a"})"});
}

TEST(JsonSchema, FollowsReferences) {
  expect_texts(R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},
                   "next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/n"}]}},"required":["v","next"]}}})",
               {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})"});
  expect_texts(R"({"$ref":"#/$defs/a~1b/anyOf/1","$defs":{"a/b":{"anyOf":[{"const":1},{"const":2}]}}})", {"2"}, {"1"});
  const std::string tree = R"({"type":"array","items":{"$ref":"#"}})";
  expect_texts(tree, {"[]", "[[],[[]]]", std::string(100, '[') + std::string(100, ']')}, {"[1]", "[[]"});
  EXPECT_FALSE(accepted(schema_guide(tree), std::string(1000, '[') + std::string(1000, ']'))) << "too deep";
}

TEST(JsonSchema, IsRefusedByName) {
  const auto says = [](const char* schema) { return refusal(schema_guide(schema)); };
  EXPECT_THAT(says(R"({"type":"object","properties":{"a":{"not":{}}}})"),
              HasSubstr("#/properties/a: the keyword 'not'"));
  for (const char* keyword : {"patternProperties", "if", "multipleOf", "contains", "propertyNames", "dependentRequired",
                              "minProperties", "unevaluatedProperties", "$dynamicRef"}) {
    EXPECT_THAT(refusal(schema_guide(std::string("{\"") + keyword + "\":1}")),
                HasSubstr(std::string("'") + keyword + "' is not served"));
  }
  EXPECT_THAT(says(R"({"type":"array","uniqueItems":true})"), HasSubstr("uniqueItems"));
  EXPECT_THAT(says(R"({"type":"string","format":"idn-email"})"), HasSubstr("idn-email"));
  EXPECT_THAT(says(R"({"type":"string","pattern":"a","minLength":1})"), HasSubstr("'pattern' beside"));
  EXPECT_THAT(says(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"), HasSubstr("'oneOf'"));
  EXPECT_THAT(says(R"({"$ref":"#/nowhere"})"), HasSubstr("points to nothing"));
  EXPECT_THAT(says(R"({"$ref":"http://example.com"})"), HasSubstr("points to nothing"));
  for (const std::string& place :
       std::vector<std::string>{"anyOf/1", "anyOf/01", "anyOf/-", "anyOf/x", "type/x", "~2"}) {
    const std::string schema = R"({"$ref":"#/$defs/d/)" + place + R"(","$defs":{"d":{"type":"null","anyOf":[{}]}}})";
    EXPECT_THAT(says(schema.c_str()), HasSubstr("points to nothing")) << place;
  }
  EXPECT_THAT(says(R"({"type":"thing"})"), HasSubstr("names no type"));
  EXPECT_THAT(says(R"({"type":"string","minLength":-1})"), HasSubstr("minLength"));
  EXPECT_THAT(says("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(says("{"), HasSubstr("no JSON"));
  EXPECT_THAT(says("false"), HasSubstr("no text"));
  EXPECT_THAT(says(R"({"type":"integer","minimum":3,"maximum":2})"), HasSubstr("no text"));
  EXPECT_THAT(says(R"({"allOf":[{"additionalProperties":false,"properties":{"a":{}}},{"properties":{"b":{}}}]})"),
              HasSubstr("additionalProperties"));
}

TEST(JsonSchema, HostileOnesAreRefused) {
  const auto says = [](const std::string& schema) { return refusal(schema_guide(schema)); };
  EXPECT_THAT(says(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"), HasSubstr("refers to itself"));
  EXPECT_THAT(says(R"({"$ref":"#"})"), HasSubstr("refer"));
  EXPECT_THAT(says(R"({"allOf":[{"$ref":"#"}]})"), HasSubstr("without an end"));
  EXPECT_THAT(says(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"), HasSubstr("no text"));
  EXPECT_THAT(says(R"({"type":"array","minItems":1000000})"), HasSubstr("states"));
  std::string deep = "true";
  for (int i = 0; i < 100; ++i) deep = fmt::format(R"({{"items":{}}})", deep);
  EXPECT_THAT(says(deep), HasSubstr("deeper"));
  // Each definition holds two of those before: 2^40 schemas if they were written out.
  std::string twice = R"({"$ref":"#/$defs/a40","$defs":{"a0":{"type":"integer"},"b0":{"minimum":1})";
  for (int i = 1; i <= 40; ++i) {
    const auto both = [i](const char* name, const char* first, const char* second) {
      return fmt::format(R"(,"{}{}":{{"allOf":[{{"$ref":"#/$defs/{}{}"}},{{"$ref":"#/$defs/{}{}"}}]}})", name, i, first,
                         i - 1, second, i - 1);
    };
    twice += both("a", "a", "b") + both("b", "b", "a");
  }
  EXPECT_THAT(says(twice + "}}"), HasSubstr("too many"));
  std::string alternatives;
  for (int i = 0; i < 300; ++i) {
    alternatives += std::string(i == 0 ? "" : ",") + R"({"enum":[)" + std::to_string(300 * i);
    for (int k = 1; k < 300; ++k) alternatives += "," + std::to_string(300 * i + k);
    alternatives += "]}";
  }
  EXPECT_THAT(says("{\"oneOf\":[" + alternatives + "]}"), AnyOf(HasSubstr("too many"), HasSubstr("longer than")));
  std::string names;
  for (int i = 0; i < 20'000; ++i) names += (i == 0 ? "\"n" : ",\"n") + std::to_string(i) + "\"";
  EXPECT_THAT(says("{\"type\":\"object\",\"required\":[" + names + "]}"), HasSubstr("properties"));
}

std::string repeated(int count, const std::string& text) {
  std::string all = text;
  for (int i = 1; i < count; ++i) all.append(",").append(text);
  return all;
}

// Lists that are short enough each, and pairs of whose members are not.
TEST(JsonSchema, PairsAreCounted) {
  const auto list = [](int first, int count, const std::string& before, const std::string& behind) {
    std::string all;
    for (int i = first; i < first + count; ++i) all += fmt::format("{}{}{}{}", i > first ? "," : "", before, i, behind);
    return all;
  };
  const auto expect_refused = [](const std::string& schema) {
    EXPECT_THAT(refusal(schema_guide(schema)), HasSubstr("too many and too long")) << schema.substr(0, 60);
  };
  const std::string low = list(10'000, 8000, "", ""), high = list(20'000, 8000, "", "");
  expect_refused(R"({"oneOf":[{"enum":[)" + low + R"(]},{"enum":[)" + high + "]}]}");
  expect_refused(R"({"allOf":[{"enum":[)" + low + R"(]},{"enum":[)" + high + "]}]}");
  const std::string names = list(10'000, 3000, "\"", "\":{}");
  expect_refused(R"({"allOf":[{"properties":{)" + names + R"(}},{"properties":{)" + list(20'000, 3000, "\"", "\":{}") +
                 "}}]}");
  expect_refused("{\"allOf\":[{" + names + "},{" + names + "}]}");
  // Values that are long themselves, and begin alike.
  const auto lists = [](const std::string& end) {
    return "{\"enum\":[" + repeated(300, "[" + repeated(160, "1") + "," + end + "]") + "]}";
  };
  expect_refused("{\"allOf\":[" + lists("0") + "," + lists("1") + "]}");
  // What each of many properties requires is looked for among all that is required.
  const std::string required = "\"required\":[" + list(30'000, 9000, "\"", "\"") + "]";
  const std::string object =
      R"({"type":"object",)" + required + ",\"properties\":{" + names.substr(0, 11 * 1000) + "\"k\":{}}}";
  expect_refused("{\"oneOf\":[" + object + "," + object + "]}");
}

double seconds_to_compile(const std::string& guide) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  refusal(guide);
  return now() - start;
}

// Of three times.
double least_seconds_to_compile(const std::string& guide) {
  return std::min({seconds_to_compile(guide), seconds_to_compile(guide), seconds_to_compile(guide)});
}

// Each of them took a second to minutes, or the square of its length. The processor's time is compared with what a
// plain schema of 90,000 values takes in the same run, since machines and sanitizers differ. The cases took 0.2 to 4.1
// times as long, with a sanitizer and without; references that are looked for among all keys take ten times as long.
TEST(JsonSchema, HostileOnesTakeNoTime) {
  const std::string plain = schema_guide("{\"enum\":[" + repeated(90'000, "1") + "]}");
  ASSERT_EQ(refusal(plain), "");
  const double plain_s = least_seconds_to_compile(plain);
  const auto expect_fast = [plain_s](const char* what, const std::string& guide, double most = 20,
                                     const testing::Matcher<std::string>& refused = IsEmpty()) {
    EXPECT_THAT(refusal(guide), refused) << what;
    EXPECT_LT(least_seconds_to_compile(guide), most * plain_s) << what;
  };
  const auto numbered = [](int count, const char* before, const char* behind) {
    std::string all;
    for (int i = 0; i < count; ++i)
      all.append(i > 0 ? "," : "").append(before).append(std::to_string(i)).append(behind);
    return all;
  };
  const std::string keys = numbered(4000, "\"key", "\":1");
  // References that lead to references, each looked for among thousands.
  std::string chains, heads;
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k < 16; ++k) {
      const std::string next = k == 15 ? "{\"const\":" + std::to_string(i) + "}"
                                       : "{\"$ref\":\"#/$defs/z" + std::to_string(16 * i + k + 1) + "\"}";
      chains.append(",\"z").append(std::to_string(16 * i + k)).append("\":").append(next);
    }
    heads.append(i > 0 ? "," : "").append(R"({"$ref":"#/$defs/z)").append(std::to_string(16 * i)).append("\"}");
  }
  expect_fast("references",
              schema_guide("{\"$defs\":{" + numbered(800, "\"key", "\":1") + chains + "},\"oneOf\":[" + heads + "]}"),
              /*most=*/5);
  expect_fast("what is required and not described",
              schema_guide(R"({"type":"object","required":[)" + numbered(3000, "\"n", "\"") +
                           R"(],"additionalProperties":{"type":"null","examples":[)" + repeated(90'000, "1") + "]}}"));
  expect_fast("many alternatives", schema_guide("{\"anyOf\":[" + repeated(49'000, "true") + "]}"));
  expect_fast("many objects", schema_guide("{\"anyOf\":[" + repeated(20'000, R"({"const":1})") + "]}"));
  expect_fast("long keywords", schema_guide("{\"allOf\":[" + repeated(5, "{" + keys + "}") + "]}"), /*most=*/20,
              HasSubstr("too many and too long"));
  std::string nested = R"({"const":1,"examples":[)" + repeated(90'000, "1") + "]}";
  for (int i = 0; i < 28; ++i) nested = fmt::format(R"({{"anyOf":[{}]}})", nested);
  expect_fast("what is copied at each level", schema_guide(nested));
}

TEST(JsonSchema, KeysOfAnObjectAreCounted) {
  const auto object = [](int count) {
    std::string keys = R"("k0":1)";
    for (int i = 1; i < count; ++i) keys.append(",\"k").append(std::to_string(i)).append("\":1");
    return R"({"type":"null","default":{)" + keys + "}}";
  };
  EXPECT_EQ(refusal(schema_guide(object(4096))), "");
  EXPECT_THAT(refusal(schema_guide(object(4097))), HasSubstr("more than 4096 keys"));
  EXPECT_EQ(refusal(schema_guide(R"({"type":"null","default":[)" + object(4000) + "," + object(4000) + "]}")), "");
  EXPECT_NO_THROW(check_keys(object(4096)));
  EXPECT_THROW(check_keys(object(4097)), RequestError);
}

// Schemas of the kind that people send, with values that jsonschema calls valid and values that it does not.
TEST(JsonSchema, TakesWhatJsonschemaCallsValid) {
  std::ifstream lines(COMPUTRON_GUIDED_FIXTURES "/schemas.jsonl");
  int schemas = 0;
  for (std::string line; std::getline(lines, line); ++schemas) {
    const auto example = nlohmann::ordered_json::parse(line);
    const std::string guide = schema_guide(example["schema"].dump());
    for (const auto& value : example["valid"]) {
      EXPECT_TRUE(accepted(guide, value.dump())) << example["name"] << "\n" << value;
      EXPECT_TRUE(accepted(guide, value.dump(2))) << example["name"] << "\n" << value;
    }
    for (const auto& value : example["invalid"]) {
      EXPECT_FALSE(accepted(guide, value.dump())) << example["name"] << "\n" << value;
    }
  }
  EXPECT_EQ(schemas, 20);
}

// Which alternative a text belongs to shows at its end only: configurations would double with every level.
TEST(JsonSchema, AmbiguityIsBounded) {
  Matcher matcher(compile_guide(schema_guide(
      R"({"anyOf":[{"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"integer"}},"required":["a"]},
                   {"type":"object","properties":{"a":{"$ref":"#"},"c":{"type":"integer"}},"required":["a"]},
                   {"type":"null"}]})")));
  std::string text;
  for (int i = 0; i < 30; ++i) text += "{\"a\":";
  Matcher::State state = state_behind(matcher, text);
  ASSERT_NE(state, Matcher::kDead);
  EXPECT_LE(matcher.width(state), Matcher::kMaxConfigurations);
  state = state_behind(matcher, text + "null" + std::string(30, '}'));
  ASSERT_NE(state, Matcher::kDead);
  EXPECT_TRUE(matcher.accepts(state));
}

}  // namespace
}  // namespace computron::test

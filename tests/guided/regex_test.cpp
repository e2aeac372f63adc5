// Expressions against std::regex on all short texts, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <vector>

#include "computron/base/utf8.h"
#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> all_texts(std::string_view letters, std::size_t longest) {
  std::vector<std::string> texts = {""};
  for (std::size_t begin = 0, length = 1; length <= longest; ++length) {
    const std::size_t end = texts.size();
    for (; begin < end; ++begin) {
      for (const char letter : letters) texts.push_back(texts[begin] + letter);
    }
  }
  return texts;
}

std::string random_regex(std::mt19937_64& random, int depth) {
  const auto one_of = [&random](auto... choices) {
    const std::string all[] = {choices...};
    return all[random() % sizeof...(choices)];
  };
  switch (depth == 0 ? 0 : random() % 6) {
    case 1:
      return random_regex(random, depth - 1) + random_regex(random, depth - 1);
    case 2:
      return "(" + random_regex(random, depth - 1) + "|" + random_regex(random, depth - 1) + ")";
    case 3:
      return "(?:" + random_regex(random, depth - 1) + ")" + one_of("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?");
    case 4:
      return random_regex(random, depth - 1) + "(" + random_regex(random, depth - 1) + ")?";
    default:
      return one_of("a", "b", "c", "[ab]", "[^a]", ".", "[b-c]", "ab", "\\w", "\\d");
  }
}

TEST(Regex, TakesTheTextsThatStdRegexMatches) {
  std::mt19937_64 random(3);
  const auto texts = all_texts("abc1", 5);
  int matched = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string pattern = random_regex(random, 4);
    const std::regex reference(pattern, std::regex::ECMAScript);
    Matcher matcher(compile_guide(regex_guide(pattern)));
    for (const std::string& text : texts) {
      const Matcher::State state = state_behind(matcher, text);
      const bool taken = state != Matcher::kDead && matcher.accepts(state);
      ASSERT_EQ(taken, std::regex_match(text, reference)) << pattern << " and '" << text << "'";
      matched += taken;
    }
  }
  EXPECT_GT(matched, 1000);
}

TEST(Regex, ReadsCharactersOfUtf8) {
  EXPECT_TRUE(accepted(regex_guide("[^é]{2}x"), "ßüx"));
  EXPECT_FALSE(accepted(regex_guide("[^é]{2}x"), "éax"));
  EXPECT_TRUE(accepted(regex_guide("[а-я]+"), "привет"));
  EXPECT_FALSE(accepted(regex_guide("[а-я]+"), "привEт"));
  EXPECT_TRUE(accepted(regex_guide("."), "\xF0\x9F\x98\x80"));
  EXPECT_FALSE(accepted(regex_guide("."), "\xED\xA0\x80")) << "a surrogate";
  EXPECT_FALSE(accepted(regex_guide("."), "\xC0\x80")) << "an overlong form";
  EXPECT_FALSE(accepted(regex_guide("."), "\xF4\x90\x80\x80")) << "beyond U+10FFFF";
  EXPECT_TRUE(accepted(regex_guide("\\u00e9\\x41"), "éA"));
}

TEST(Regex, AnchorsAtTheEndsChangeNothing) {
  EXPECT_TRUE(accepted(regex_guide("^a|b$"), "b"));
  EXPECT_FALSE(accepted(regex_guide("^a|b$"), "xb"));
}

TEST(Regex, IsRefusedByName) {
  EXPECT_THAT(refusal(regex_guide("(?=a)b")), HasSubstr("'(?'"));
  EXPECT_THAT(refusal(regex_guide("(a)\\1")), HasSubstr("'\\1'"));
  EXPECT_THAT(refusal(regex_guide("\\bword")), HasSubstr("'\\b'"));
  EXPECT_THAT(refusal(regex_guide("\\p{L}")), HasSubstr("'\\p'"));
  EXPECT_THAT(refusal(regex_guide("a$b")), HasSubstr("'$'"));
  EXPECT_THAT(refusal(regex_guide("a++")), HasSubstr("possessive"));
  EXPECT_THAT(refusal(regex_guide("(a")), HasSubstr("does not end"));
  EXPECT_THAT(refusal(regex_guide("[b-a]")), HasSubstr("before it begins"));
  EXPECT_THAT(refusal(regex_guide("*a")), HasSubstr("nothing to repeat"));
  EXPECT_THAT(refusal(regex_guide("a{3,2}")), HasSubstr("wrong way round"));
  EXPECT_THAT(refusal(regex_guide("[^\\s\\S]")), HasSubstr("no text"));
}

TEST(Regex, SpacesThatOthersKnowAreNoneAndNoOtherCharacters) {
  for (const char32_t c :
       {0x1C, 0x1F, 0x85, 0xA0, 0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF}) {
    std::string text;
    append_character(text, c);
    for (const char* pattern : {"\\S", "[\\S]", "[^\\s]", "\\s"}) {
      EXPECT_FALSE(accepted(regex_guide(pattern), text)) << pattern << " " << static_cast<int>(c);
    }
  }
  for (const char* pattern : {"\\S", "[\\S]", "[^\\s]"}) {
    EXPECT_TRUE(accepted(regex_guide(pattern), "a"));
    EXPECT_TRUE(accepted(regex_guide(pattern), "\u00e9"));
    EXPECT_FALSE(accepted(regex_guide(pattern), " "));
  }
  EXPECT_FALSE(accepted(regex_guide("a|[^\\S]"), "x"));
  EXPECT_TRUE(accepted(regex_guide("[^\\S]"), " "));
}

TEST(Regex, RepetitionsInOneAnotherAreCountedThroughGroups) {
  std::string pattern = "a";
  for (int i = 0; i < 3; ++i) pattern = "(" + pattern + std::string(30, '*') + ")";
  EXPECT_THAT(refusal(regex_guide(pattern)), HasSubstr("repetitions of repetitions"));
  EXPECT_EQ(refusal(regex_guide("(a***)(a***)")), "");
}

TEST(Regex, HostileOnesAreRefusedOrStaySmall) {
  EXPECT_THAT(refusal(regex_guide("(a{1000}){1000}")), HasSubstr("more than 100000 states"));
  EXPECT_THAT(refusal(regex_guide("(((((a{99}){99}){99}){99}){99}){99}")), HasSubstr("states"));
  EXPECT_THAT(refusal(regex_guide("(){100000}")), HasSubstr("states"));
  EXPECT_THAT(refusal(regex_guide(std::string(1000, '(') + std::string(1000, ')'))), HasSubstr("groups"));
  EXPECT_THAT(refusal(regex_guide("a{99999999999}")), HasSubstr("repetitions"));
  EXPECT_THAT(refusal(regex_guide(std::string(300'000, 'a'))), HasSubstr("longer than"));
  std::string ranges;
  for (int c = 0x4E00; c < 0x4E00 + 2 * 20'000; c += 2) append_character(ranges, static_cast<char32_t>(c));
  EXPECT_THAT(refusal(regex_guide("[" + ranges + "]")), HasSubstr("ranges"));
  EXPECT_LT(compile_guide(regex_guide("[" + ranges.substr(0, std::size_t{3} * 5000) + "]"))->nodes.size(), 300u)
      << "characters that begin alike share their bytes";
  Matcher exponential(compile_guide(regex_guide("(a|b)*a(a|b){18}")));
  EXPECT_NE(state_behind(exponential, std::string(200, 'a')), Matcher::kDead);
  EXPECT_LT(exponential.states(), 300u) << "a deterministic automaton would have 2^18";
  Matcher nested(compile_guide(regex_guide("((((a*)*)*)*)*b")));
  EXPECT_NE(state_behind(nested, std::string(1000, 'a')), Matcher::kDead);
  EXPECT_LT(nested.states(), 10u);
}

}  // namespace
}  // namespace computron::test

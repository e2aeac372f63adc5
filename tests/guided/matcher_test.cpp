// Masks against a filter that tries every token, on small vocabularies.
#include "computron/guided/matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "computron/guided/guide.h"
#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

// Pieces of the kind that vocabularies have, some of them twice, and single bytes.
std::vector<std::string> random_vocabulary(std::mt19937_64& random) {
  const std::string pieces[] = {"a",    "b",    "ab",   "\"",    "\"a\"",    "{\"",      "\":",  ": ",    ",",
                                ", \"", "}",    "]",    "[",     "1",        "12",       "-",    ".5",    "true",
                                "null", "fal",  "se",   "\n",    "  ",       "\n  ",     "\\",   "\\u00", "\\n",
                                "e9",   "é",    "\xC3", "\xA9",  "\xF0\x9F", "日本",     "\x01", "x\"",   "\"}",
                                "",     "\"]}", "a,\"", "\",\"", " a",       "abcdefgh", "[[",   "{}"};
  std::vector<std::string> vocabulary;
  for (const std::string& piece : pieces) {
    if (random() % 4 != 0) vocabulary.push_back(piece);
  }
  vocabulary.push_back(vocabulary[random() % vocabulary.size()]);
  while (vocabulary.size() < 60) {
    std::string text;
    for (std::size_t i = 0; i < 1 + random() % 3; ++i) text += pieces[random() % std::size(pieces)];
    vocabulary.push_back(text);
  }
  return vocabulary;
}

const char* const kGuides[] = {
    R"(s{"type":"string","maxLength":4})",
    R"(s{"type":"string","minLength":3})",
    R"(s{"type":"object","properties":{"a":{"type":"string","maxLength":70},"b":{"type":"integer"}},"required":["a"]})",
    R"(s{"anyOf":[{"type":"string","maxLength":2},{"type":"string","pattern":"^[a-c]+$"},{"type":"null"}]})",
    R"(s{"type":"array","items":{"anyOf":[{"type":"number"},{"type":"string"},{"$ref":"#"}]}})",
    R"(s{"type":"object","additionalProperties":{"type":"boolean"}})",
    "o",
    "r(ab|[^a]\"){2,}",
    R"(c["a","ab","true","日本"])",
};

bool bit(const TokenMask& mask, std::size_t token) { return (mask[token / 32] >> (token % 32) & 1) != 0; }

// By another matcher, which follows text and token from the beginning.
void expect_filtered(const std::string& guide, const std::string& text, const std::vector<std::string>& vocabulary,
                     const TokenMask& mask) {
  Matcher reference(compile_guide(guide));
  for (std::size_t token = 0; token < vocabulary.size(); ++token) {
    const bool may_come =
        !vocabulary[token].empty() && state_behind(reference, text + vocabulary[token]) != Matcher::kDead;
    ASSERT_EQ(bit(mask, token), may_come) << guide << "\n" << text << "\n" << vocabulary[token];
  }
}

TEST(Matcher, MasksAreWhatAFilterLeaves) {
  std::mt19937_64 random(5);
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    const std::string guide = kGuides[static_cast<std::size_t>(round) % std::size(kGuides)];
    const auto vocabulary = random_vocabulary(random);
    const TokenTrie trie(vocabulary, vocabulary.size());
    Matcher matcher(compile_guide(guide));
    std::string text;
    for (int i = 0; i < 20; ++i) {
      TokenMask mask;
      ASSERT_TRUE(trie.allow(matcher, state_behind(matcher, text), mask));
      ASSERT_NO_FATAL_FAILURE(expect_filtered(guide, text, vocabulary, mask));
      ++compared;
      std::vector<std::size_t> allowed;
      for (std::size_t token = 0; token < vocabulary.size(); ++token) {
        if (bit(mask, token)) allowed.push_back(token);
      }
      if (allowed.empty()) break;
      text += vocabulary[allowed[random() % allowed.size()]];
    }
  }
  EXPECT_GT(compared, 400);
}

// Two thousand nodes that read nothing stand between any two characters, and each of the states has some of them
// behind.
TEST(Matcher, MasksAreGivenUpForWhatIsPassedWithoutReading) {
  std::mt19937 random(3);
  std::vector<std::string> words;
  for (int i = 0; i < 4000; ++i) {
    std::string& word = words.emplace_back();
    for (int length = 3 + static_cast<int>(random() % 6); length > 0; --length) {
      word += static_cast<char>('a' + random() % 26);
    }
  }
  const TokenTrie trie(words, words.size());
  TokenMask mask;
  Matcher hostile(compile_guide("r.*[a-m](?:(?:){2000}.){12}")), plain(compile_guide("r.*[a-m].{12}"));
  EXPECT_TRUE(trie.allow(plain, plain.start(), mask));
  EXPECT_FALSE(trie.allow(hostile, hostile.start(), mask));
}

// With all bytes among the tokens there is a way on from wherever one can come, and an end that bytes lead to.
TEST(Matcher, NoStateIsADeadEnd) {
  std::mt19937_64 random(6);
  for (const char* guide : kGuides) {
    Matcher matcher(compile_guide(guide));
    for (int round = 0; round < 20; ++round) {
      Matcher::State state = matcher.start();
      for (int i = 0; i < 200; ++i) {
        std::vector<std::uint8_t> bytes;
        for (int byte = 0; byte < 256; ++byte) {
          if (matcher.next(state, static_cast<std::uint8_t>(byte)) != Matcher::kDead) {
            bytes.push_back(static_cast<std::uint8_t>(byte));
          }
        }
        if (bytes.empty()) {
          ASSERT_TRUE(matcher.accepts(state)) << guide;
          break;
        }
        state = matcher.next(state, bytes[random() % bytes.size()]);
      }
    }
  }
}

TEST(Matcher, KeepsOneStateForAllLongStrings) {
  Matcher matcher(compile_guide(R"(s{"type":"string"})"));
  state_behind(matcher, "\"" + std::string(10'000, 'a'));
  EXPECT_LT(matcher.states(), 5u);
}

}  // namespace
}  // namespace computron::test

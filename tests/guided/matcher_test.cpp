// Masks against a filter that tries every token, on small vocabularies.
#include "computron/guided/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
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

constexpr std::size_t kPlenty = std::size_t{1} << 40;  // bytes: nothing is forgotten

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
      Matcher::State state = state_behind(matcher, text);
      ASSERT_TRUE(trie.allow(matcher, state, mask, kPlenty));
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

// Whatever a guide forgets, and whenever: while it tries the tokens, between them, or since it is made again.
TEST(Matcher, MasksAreTheSameWhateverIsForgotten) {
  std::mt19937_64 random(7);
  constexpr TokenId kEnd = 0;
  for (int round = 0; round < 45; ++round) {
    const std::string name = kGuides[static_cast<std::size_t>(round) % std::size(kGuides)];
    auto vocabulary = random_vocabulary(random);
    vocabulary[kEnd].clear();
    const auto trie = std::make_shared<const TokenTrie>(vocabulary, vocabulary.size());
    const auto grammar = compile_guide(name);
    Guide usual(trie, grammar), small(trie, grammar, {.matcher_bytes = 3000, .mask_bytes = 40}),
        least(trie, grammar, {.matcher_bytes = 0, .mask_bytes = 0}), forgetful(trie, grammar);
    GuidedText text, in_small, in_least, in_forgetful, in_new;
    for (int i = 0; i < 20; ++i) {
      TokenMask mask, other;
      text.allow(usual, std::vector{kEnd}, mask);
      const auto expect_same = [&](Guide& guide, GuidedText& of, const char* what) {
        of.allow(guide, std::vector{kEnd}, other);
        EXPECT_EQ(other, mask) << name << ", " << what << ", token " << i;
      };
      expect_same(small, in_small, "little memory");
      expect_same(least, in_least, "none");
      forgetful.forget();
      expect_same(forgetful, in_forgetful, "forgets");
      Guide made_again(trie, grammar);
      expect_same(made_again, in_new, "made again");
      ASSERT_FALSE(HasFailure());
      std::vector<TokenId> may_come;
      for (std::size_t token = 1; token < vocabulary.size(); ++token) {
        if (bit(mask, token)) may_come.push_back(static_cast<TokenId>(token));
      }
      if (may_come.empty()) break;
      const TokenId token = may_come[random() % may_come.size()];
      for (GuidedText* const each : {&text, &in_small, &in_least, &in_forgetful, &in_new}) each->append(token);
    }
  }
}

std::vector<std::string> random_words(std::size_t count) {
  std::mt19937 random(3);
  std::vector<std::string> words(count);
  for (std::string& word : words) {
    for (int length = 3 + static_cast<int>(random() % 6); length > 0; --length) {
      word += static_cast<char>('a' + random() % 26);
    }
  }
  return words;
}

// A walk through the vocabulary meets thousands of states, and forgets them while it goes on.
TEST(Matcher, AWalkKeepsNoMoreThanItMay) {
  constexpr std::size_t kMost = std::size_t{128} << 10, kOfAByte = std::size_t{32} << 10;
  const auto words = random_words(4000);
  const TokenTrie trie(words, words.size());
  std::string pattern = "r.*";  // a state for each beginning of a word
  for (char letter = 'a'; letter <= 'z'; ++letter) pattern += std::string("|.*") + letter + ".{9}";
  const auto grammar = compile_guide(pattern);
  Matcher free(grammar), held(grammar);
  Matcher::State state = free.start(), held_state = held.start();
  TokenMask mask, held_mask;
  ASSERT_TRUE(trie.allow(free, state, mask, kPlenty));
  ASSERT_TRUE(trie.allow(held, held_state, held_mask, kMost));
  EXPECT_GT(free.kept_bytes(), 8 * kMost);
  EXPECT_LT(held.kept_bytes(), kMost + kOfAByte);
  EXPECT_LT(held.bytes(), 2 * (kMost + kOfAByte));
  EXPECT_EQ(mask, held_mask);
  EXPECT_EQ(held_state, held.start()) << "it has the number that it has now";
}

const char* const kAmbiguous =
    R"(s{"anyOf":[{"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"integer"}},"required":["a"]},
                  {"type":"object","properties":{"a":{"$ref":"#"},"c":{"type":"integer"}},"required":["a"]},
                  {"type":"null"}]})";

std::string times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Of what it may be there are many, each with a stack of its own.
TEST(Matcher, AStateIsBounded) {
  Matcher matcher(compile_guide(kAmbiguous));
  std::size_t most = 0, widest = 0;
  for (int depth = 1; depth < 200; depth += 9) {
    const Matcher::State state = state_behind(matcher, times(depth, "{\"a\":"));
    ASSERT_NE(state, Matcher::kDead) << depth;
    most = std::max(most, matcher.bytes_of(state));
    widest = std::max(widest, matcher.width(state));
  }
  EXPECT_GT(widest, 250u);
  EXPECT_LT(most, (Matcher::kMaxReturns * 64) + (Matcher::kMaxConfigurations * 16) + 4096);
  const Matcher::State end = state_behind(matcher, times(200, "{\"a\":") + "null" + times(200, "}"));
  ASSERT_NE(end, Matcher::kDead);
  EXPECT_TRUE(matcher.accepts(end));
}

// One long token, each of whose bytes leads to a large state. Whether it is given up does not depend on what is kept.
TEST(Matcher, TheStatesOfOneTokenAreBounded) {
  const auto grammar = compile_guide(kAmbiguous);
  for (const auto& [depth, within] : {std::pair{3, true}, std::pair{100, false}}) {
    const TokenTrie trie({times(depth, "{\"a\":"), "null"}, 2);
    for (const std::size_t most : {kPlenty, std::size_t{1} << 20}) {
      Matcher matcher(grammar);
      Matcher::State state = matcher.start();
      TokenMask mask;
      EXPECT_EQ(trie.allow(matcher, state, mask, most), within) << depth;
      EXPECT_LT(matcher.kept_bytes(), most + TokenTrie::kMaxPathBytes + (std::size_t{1} << 20)) << depth;
    }
  }
}

TEST(Matcher, TokensOfAThousandBytesAreAllowedAndNoLongerOnes) {
  const TokenTrie trie({std::string(1024, 'a'), std::string(1025, 'a'), "\"" + std::string(1023, ' ')}, 3);
  Matcher matcher(compile_guide(R"(s{"type":"string"})"));
  TokenMask mask;
  Matcher::State state = matcher.start();
  ASSERT_TRUE(trie.allow(matcher, state, mask, kPlenty));
  EXPECT_EQ(mask[0], 4u);
  state = state_behind(matcher, "\"");
  ASSERT_TRUE(trie.allow(matcher, state, mask, kPlenty));
  EXPECT_EQ(mask[0], 1u);
}

// Stacks come along, with or without the matcher.
TEST(Matcher, AStateIsSavedAndRestored) {
  const auto grammar = compile_guide(schema_guide(R"({"type":"array","items":{"$ref":"#"}})"));
  Matcher one(grammar), other(grammar);
  const auto closes = [](Matcher& matcher, Matcher::State at, int brackets) {
    for (int i = 0; i < brackets && at != Matcher::kDead; ++i) at = matcher.next(at, ']');
    return at != Matcher::kDead && matcher.accepts(at);
  };
  const auto expect_three_levels = [&closes](Matcher& matcher, Matcher::State state) {
    EXPECT_TRUE(closes(matcher, state, 3));
    EXPECT_FALSE(closes(matcher, state, 2));
    EXPECT_FALSE(closes(matcher, state, 4));
  };
  Matcher::State state = state_behind(one, "[[[],[");
  expect_three_levels(other, other.restore(one.save(state)));
  EXPECT_EQ(other.restore(one.save(Matcher::kDead)), Matcher::kDead);
  const std::uint64_t epoch = one.epoch();
  std::vector<Matcher::State> kept = {state, Matcher::kDead, one.start(), state};
  one.keep_only(kept);
  EXPECT_NE(one.epoch(), epoch);
  EXPECT_EQ(kept, (std::vector{kept[0], Matcher::kDead, one.start(), kept[0]}));
  EXPECT_EQ(one.states(), 2u);
  expect_three_levels(one, kept[0]);
  EXPECT_EQ(state_behind(one, "[[[],["), kept[0]) << "the same state is the same number";
}

// Two thousand nodes that read nothing stand between any two characters, and each of the states has some of them
// behind.
TEST(Matcher, MasksAreGivenUpForWhatIsPassedWithoutReading) {
  const auto words = random_words(4000);
  const TokenTrie trie(words, words.size());
  TokenMask mask;
  Matcher hostile(compile_guide("r.*[a-m](?:(?:){2000}.){12}")), plain(compile_guide("r.*[a-m].{12}"));
  Matcher::State start = plain.start();
  EXPECT_TRUE(trie.allow(plain, start, mask, kPlenty));
  start = hostile.start();
  EXPECT_FALSE(trie.allow(hostile, start, mask, kPlenty));
  EXPECT_FALSE(trie.allow(hostile, start, mask, kPlenty)) << "though all that it meets is known by now";
  Matcher forgetful(compile_guide("r.*[a-m](?:(?:){2000}.){12}"));
  start = forgetful.start();
  EXPECT_FALSE(trie.allow(forgetful, start, mask, std::size_t{1} << 20));
}

// As many as the guides that people send pass between two characters cost nothing.
TEST(Matcher, WhatIsPassedWithoutReadingCostsBeyondAFewNodes) {
  const auto cost = [](int passed) {
    Matcher matcher(compile_guide(regex_guide("a(?:){" + std::to_string(passed) + "}b")));
    matcher.next(matcher.start(), 'a');
    return matcher.cost(matcher.start(), 'a');
  };
  EXPECT_EQ(cost(0), 1u);
  EXPECT_EQ(cost(6), 1u) << "eight nodes, with those at both ends";
  EXPECT_EQ(cost(7), 2u);
  EXPECT_EQ(cost(1000), 995u);
  for (const char* guide : kGuides) {
    Matcher matcher(compile_guide(guide));
    std::size_t most = 0, widest = 0;
    for (Matcher::State state = 0; state < 50 && static_cast<std::size_t>(state) < matcher.states(); ++state) {
      widest = std::max(widest, matcher.width(state));
      for (int byte = 0; byte < 256; ++byte) {
        matcher.next(state, static_cast<std::uint8_t>(byte));
        most = std::max(most, matcher.cost(state, static_cast<std::uint8_t>(byte)));
      }
    }
    EXPECT_LE(most, 2 * widest) << guide;
  }
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

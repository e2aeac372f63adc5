#include "computron/text/generated_text.h"

#include <gtest/gtest.h>

#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using Tokens = std::vector<TokenId>;

// Texts after each token, then after the end.
std::vector<std::string> steps(const Tokenizer& tokenizer, const Tokens& tokens, const Tokens& before = {}) {
  IncrementalDecoder decoder(tokenizer, before);
  std::vector<std::string> texts;
  for (const TokenId token : tokens) decoder.push(token, texts.emplace_back());
  decoder.finish(texts.emplace_back());
  return texts;
}

TokenId id(const Tokenizer& tokenizer, const std::string& text) { return tokenizer.token_id(text).value(); }

class SentencePiece : public testing::Test {
 protected:
  TokenId token(const std::string& text) const { return id(tokenizer_, text); }
  Tokenizer tokenizer_{tokenizer_files("llama2")};
};

TEST_F(SentencePiece, TheFirstSpaceIsDroppedOnlyWhereNothingStandsBefore) {
  const TokenId a = token("\u2581a");
  EXPECT_EQ(steps(tokenizer_, {a, a}), (std::vector<std::string>{"a", " a", ""}));
  EXPECT_EQ(steps(tokenizer_, {a}, {a}), (std::vector<std::string>{" a", ""}));
  EXPECT_EQ(steps(tokenizer_, {a}, Tokens(100, a)), (std::vector<std::string>{" a", ""}));
  EXPECT_EQ(steps(tokenizer_, {a}, {token("<s>")}), (std::vector<std::string>{"a", ""}));
}

TEST_F(SentencePiece, BytesComeWhenTheirRunEnds) {
  const Tokens sign = {token("<0xE2>"), token("<0x82>"), token("<0xAC>")};
  const TokenId b = token("b");
  const std::string sign_and_b = std::string("\u20AC") + "b", fault_and_b = std::string("\uFFFD") + "b";
  EXPECT_EQ(steps(tokenizer_, {sign[0], sign[1], sign[2], b}), (std::vector<std::string>{"", "", "", sign_and_b, ""}));
  EXPECT_EQ(steps(tokenizer_, {b, sign[0], sign[1]}), (std::vector<std::string>{"b", "", "", "\uFFFD\uFFFD"}));
  EXPECT_EQ(steps(tokenizer_, {sign[0], b}), (std::vector<std::string>{"", fault_and_b, ""}));
}

TEST_F(SentencePiece, BytesOfThePromptStayThePrompts) {
  const Tokens sign = {token("<0xE2>"), token("<0x82>"), token("<0xAC>")};
  const TokenId b = token("b");
  EXPECT_EQ(steps(tokenizer_, {b}, sign), (std::vector<std::string>{"b", ""}));
  EXPECT_EQ(steps(tokenizer_, {sign[2], b}, {sign[0], sign[1]}), (std::vector<std::string>{"",
                                                                                           "\u20AC"
                                                                                           "b",
                                                                                           ""}));
  Tokens many;
  for (int i = 0; i < 30; ++i) many.insert(many.end(), sign.begin(), sign.end());
  EXPECT_EQ(steps(tokenizer_, {b}, many), (std::vector<std::string>{"b", ""}));
}

TEST_F(SentencePiece, AStopStringOfBytesEndsTheTextAtOnce) {
  const TokenId b = token("b"), newline = token("<0x0A>");
  GeneratedText text(tokenizer_, {}, StopStrings({"\n"}), 0);
  EXPECT_FALSE(text.push(b));
  EXPECT_TRUE(text.push(newline));  // no further token is needed to see it
  EXPECT_EQ(text.text(), "b");
  GeneratedText broken(tokenizer_, {}, StopStrings({"\n"}), 0);
  EXPECT_FALSE(broken.push(token("<0xE2>")));
  EXPECT_FALSE(broken.push(newline));  // with that byte before it, it is no text
  GeneratedText later(tokenizer_, {}, StopStrings({"\n"}), 1);
  EXPECT_FALSE(later.push(newline));  // among the first token's text nothing is looked for
  EXPECT_FALSE(later.push(b));
  EXPECT_TRUE(later.push(newline));
  EXPECT_EQ(later.text(), "\nb");
}

TEST_F(SentencePiece, WhatIsHeldBackCountsForPlaces) {
  GeneratedText text(tokenizer_, {}, StopStrings(), 0);
  std::vector<std::size_t> places;
  for (const char* name : {"b", "<0xE2>", "<0x82>", "<0xAC>", "b", "b"}) {
    places.push_back(text.characters());
    text.push(token(name));
  }
  EXPECT_EQ(places, (std::vector<std::size_t>{0, 1, 1, 1, 2, 3}));
}

TEST(ByteLevelText, ACharacterComesWhole) {
  const Tokenizer tokenizer(tokenizer_files("gpt2"));
  const Tokens sign = {id(tokenizer, "\u00E2"), id(tokenizer, "\u0124"), id(tokenizer, "\u00AC")};
  const TokenId a = id(tokenizer, "a");
  EXPECT_EQ(steps(tokenizer, {a, sign[0], sign[1], sign[2], a}),
            (std::vector<std::string>{"a", "", "", "\u20AC", "a", ""}));
  EXPECT_EQ(steps(tokenizer, {sign[0], a}), (std::vector<std::string>{"",
                                                                      "\uFFFD"
                                                                      "a",
                                                                      ""}));
  EXPECT_EQ(steps(tokenizer, {sign[0], sign[1]}), (std::vector<std::string>{"", "", "\uFFFD"}));
  EXPECT_EQ(steps(tokenizer, {sign[2]}, {sign[0], sign[1]}), (std::vector<std::string>{"\u20AC", ""}));
}

TEST(WordPieceText, SpacesAndPunctuation) {
  const Tokenizer tokenizer(tokenizer_files("bert-uncased"));
  const Tokens tokens = {id(tokenizer, "a"), id(tokenizer, "##s"), id(tokenizer, "."), id(tokenizer, "[SEP]"),
                         id(tokenizer, "a")};
  EXPECT_EQ(steps(tokenizer, tokens), (std::vector<std::string>{"a", "s", ".", "", " a", ""}));
}

TEST(Tokens, AsTheyAddToAText) {
  const Tokenizer bytes(tokenizer_files("gpt2")), pieces(tokenizer_files("llama2")),
      words(tokenizer_files("bert-cased"));
  EXPECT_EQ(bytes.token_bytes(id(bytes, "\u0120a")), " a");
  EXPECT_EQ(bytes.token_bytes(id(bytes, "\u00E2")), "\xE2");
  EXPECT_EQ(bytes.token_bytes(id(bytes, "<|endoftext|>")), "<|endoftext|>");
  EXPECT_EQ(pieces.token_bytes(id(pieces, "\u2581a")), " a");
  EXPECT_EQ(pieces.token_bytes(id(pieces, "<0xE2>")), "\xE2");
  EXPECT_EQ(words.token_bytes(id(words, "##s")), "s");
  EXPECT_EQ(words.token_bytes(100000), "");
}

class Stops : public testing::Test {
 protected:
  // The text, and after how many tokens it was over (0: never).
  std::pair<std::string, int> run(const std::string& text, std::vector<std::string> stops,
                                  std::uint32_t min_tokens = 0) {
    GeneratedText generated(tokenizer_, {}, StopStrings(std::move(stops)), min_tokens);
    int over = 0, count = 0;
    for (const TokenId token : encoder_.encode(text)) {
      ++count;
      if (generated.push(token) && over == 0) over = count;
    }
    generated.finish();
    EXPECT_EQ(generated.stopped(), over > 0);
    return {generated.text(), over};
  }

  Tokenizer tokenizer_{tokenizer_files("gpt2")};
  Encoder encoder_{tokenizer_};
};

TEST_F(Stops, TheTextEndsBeforeTheStringWhereverTokensEnd) {
  const std::string text = "import numbers, then \u20AC\u20AC and more";
  for (std::size_t begin = 0; begin + 4 < text.size(); ++begin) {
    if ((text[begin] & 0xC0) == 0x80 || (text[begin + 4] & 0xC0) == 0x80) continue;
    const std::string stop = text.substr(begin, 4);
    EXPECT_EQ(run(text, {stop}).first, text.substr(0, text.find(stop))) << stop;
  }
  EXPECT_EQ(run(text, {text}).first, "");
  EXPECT_EQ(run(text, {"nowhere"}), (std::pair<std::string, int>{text, 0}));
}

TEST_F(Stops, TheFirstOfSeveralCounts) {
  EXPECT_EQ(run("one two three", {"three", "two"}).first, "one ");
  EXPECT_EQ(run("abcdef", {"cd", "bcdefg", "bc"}).first, "a");
}

TEST_F(Stops, NothingIsAddedBehindTheEnd) {
  const auto [text, over] = run("a.b.c.d", {"."});
  EXPECT_EQ(text, "a");
  EXPECT_LT(over, static_cast<int>(encoder_.encode("a.b.c.d").size()));
}

TEST_F(Stops, TheFirstTokensAreNotLookedAt) {
  const auto tokens = static_cast<std::uint32_t>(encoder_.encode("x.").size());
  EXPECT_EQ(run("x.y.z", {"."}, tokens).first, "x.y");
  EXPECT_EQ(run("x.y.z", {".y"}, tokens).first, "x.y.z");
}

}  // namespace
}  // namespace computron::test

// What a sequence's next token may be: ends, replay, and the checker that lines share.
#include "computron/guided/guide.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

constexpr TokenId kEnd = 0, kA = 1, kB = 2, kAB = 3;

std::shared_ptr<Guide> make_guide(const std::string& guide, std::size_t vocab = 40) {
  const std::vector<std::string> texts = {"", "a", "b", "ab"};
  return std::make_shared<Guide>(std::make_shared<TokenTrie>(texts, vocab), compile_guide(guide));
}

std::vector<TokenId> allowed(GuidedText& text, std::vector<TokenId> ends = {kEnd}) {
  TokenMask mask;
  text.allow(ends, mask);
  std::vector<TokenId> tokens;
  for (std::size_t t = 0; t < mask.size() * 32; ++t) {
    if ((mask[t / 32] >> (t % 32) & 1) != 0) tokens.push_back(static_cast<TokenId>(t));
  }
  return tokens;
}

using Tokens = std::vector<TokenId>;

TEST(GuidedText, MayEndWhereItIsWhole) {
  GuidedText text(make_guide("rab(ab)?"));
  EXPECT_EQ(allowed(text), (Tokens{kA, kAB}));
  text.append(kA);
  EXPECT_EQ(allowed(text), (Tokens{kB}));
  text.append(kB);
  EXPECT_EQ(allowed(text), (Tokens{kEnd, kA, kAB}));
  text.append(kAB);
  EXPECT_EQ(allowed(text), (Tokens{kEnd}));
}

TEST(GuidedText, ATokenThatEndsIsNeverPartOfTheText) {
  GuidedText text(make_guide("ra*"));
  EXPECT_EQ(allowed(text, {kEnd, kA}), (Tokens{kEnd, kA})) << "as an end";
  GuidedText other(make_guide("raa"));
  EXPECT_EQ(allowed(other, {kEnd, kA}), Tokens{});
}

TEST(GuidedText, WhatNoTokenSpellsIsADeadEnd) {
  GuidedText text(make_guide("rac"));
  EXPECT_EQ(allowed(text), (Tokens{kA}));
  text.append(kA);
  EXPECT_EQ(allowed(text), Tokens{});
}

TEST(GuidedText, IsWhereItsTokensLead) {
  const auto guide = make_guide("r(a|b){3,9}");
  GuidedText first(guide);
  for (const TokenId token : {kA, kB, kAB, kAB, kA}) {
    allowed(first);
    first.append(token);
  }
  GuidedText again(guide);  // nobody asked it before
  for (const TokenId token : {kA, kB, kAB, kAB, kA}) again.append(token);
  GuidedText elsewhere(make_guide("r(a|b){3,9}"));
  for (const TokenId token : {kA, kB, kAB, kAB, kA}) elsewhere.append(token);
  EXPECT_EQ(allowed(first), allowed(again));
  EXPECT_EQ(allowed(first), allowed(elsewhere));
}

// A guide that forgets its states, since they take too much memory, goes on from each text's own.
TEST(GuidedText, OutlivesItsGuidesMemory) {
  const std::string guide = "r((a|b)*a(a|b){60}(a|b)*)";
  const auto shared = make_guide(guide);
  GuidedText text(shared), idle(shared);
  idle.append(kA);
  Matcher reference(compile_guide(guide));
  Matcher::State state = reference.start();
  std::uint64_t bits = 1;
  for (int i = 0; i < 20'000; ++i) {
    const bool is_a = (bits = bits * 6364136223846793005u + 1442695040888963407u) >> 63 != 0;
    text.append(is_a ? kA : kB);
    state = reference.next(state, is_a ? 'a' : 'b');
    ASSERT_EQ(allowed(text).front() == kEnd, reference.accepts(state)) << i;
  }
  EXPECT_GT(reference.bytes(), std::size_t{16} << 20) << "too little to be forgotten";
  for (int i = 0; i < 60; ++i) idle.append(kB);
  EXPECT_EQ(allowed(idle).front(), kEnd);
}

// Stacks come along.
TEST(Matcher, TakesOverAStateOfAnother) {
  const auto grammar = compile_guide(schema_guide(R"({"type":"array","items":{"$ref":"#"}})"));
  Matcher one(grammar), other(grammar);
  const Matcher::State state = other.take_over(one, state_behind(one, "[[[],["));
  const auto closes = [&other](Matcher::State at, int brackets) {
    for (int i = 0; i < brackets && at != Matcher::kDead; ++i) at = other.next(at, ']');
    return at != Matcher::kDead && other.accepts(at);
  };
  EXPECT_TRUE(closes(state, 3));
  EXPECT_FALSE(closes(state, 2));
  EXPECT_FALSE(closes(state, 4));
}

TEST(GuideChecker, SharesTexts) {
  GuideChecker checker;
  const auto first = checker.checked(regex_guide("a+"));
  EXPECT_EQ(checker.checked(regex_guide("a+")), first);
  for (std::size_t i = 0; i < GuideChecker::kKept; ++i) checker.checked(regex_guide("b" + std::to_string(i)));
  EXPECT_NE(checker.checked(regex_guide("a+")), first) << "forgotten";
  EXPECT_THROW(checker.checked(regex_guide("(")), RequestError);
  EXPECT_THROW(checker.checked(regex_guide("(")), RequestError);
}

}  // namespace
}  // namespace computron::test

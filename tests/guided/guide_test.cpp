// What a sequence's next token may be: ends, replay, and the checker that lines share.
#include "computron/guided/guide.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

constexpr TokenId kEnd = 0, kA = 1, kB = 2, kAB = 3, kX = 4;

Guide make_guide(const std::string& guide, const GuideLimits& limits = {}) {
  constexpr std::size_t kVocab = 40;
  const std::vector<std::string> texts = {"", "a", "b", "ab", "x"};
  return {std::make_shared<TokenTrie>(texts, kVocab), compile_guide(guide), limits};
}

std::vector<TokenId> allowed(Guide& guide, GuidedText& text, std::vector<TokenId> ends = {kEnd}) {
  TokenMask mask;
  text.allow(guide, ends, mask);
  std::vector<TokenId> tokens;
  for (std::size_t t = 0; t < mask.size() * 32; ++t) {
    if ((mask[t / 32] >> (t % 32) & 1) != 0) tokens.push_back(static_cast<TokenId>(t));
  }
  return tokens;
}

using Tokens = std::vector<TokenId>;

TEST(GuidedText, MayEndWhereItIsWhole) {
  Guide guide = make_guide("rab(ab)?");
  GuidedText text;
  EXPECT_EQ(allowed(guide, text), (Tokens{kA, kAB}));
  text.append(kA);
  EXPECT_EQ(allowed(guide, text), (Tokens{kB}));
  text.append(kB);
  EXPECT_EQ(allowed(guide, text), (Tokens{kEnd, kA, kAB}));
  text.append(kAB);
  EXPECT_EQ(allowed(guide, text), (Tokens{kEnd}));
}

TEST(GuidedText, ATokenThatEndsIsNeverPartOfTheText) {
  Guide guide = make_guide("ra*"), other_guide = make_guide("raa");
  GuidedText text, other;
  EXPECT_EQ(allowed(guide, text, {kEnd, kA}), (Tokens{kEnd, kA})) << "as an end";
  EXPECT_EQ(allowed(other_guide, other, {kEnd, kA}), Tokens{});
}

TEST(GuidedText, WhatNoTokenSpellsIsADeadEnd) {
  Guide guide = make_guide("rac");
  GuidedText text;
  EXPECT_EQ(allowed(guide, text), (Tokens{kA}));
  text.append(kA);
  EXPECT_EQ(allowed(guide, text), Tokens{});
  text.append(kA);
  EXPECT_EQ(allowed(guide, text), Tokens{}) << "and stays one";
  guide.forget();
  EXPECT_EQ(allowed(guide, text), Tokens{});
}

TEST(GuidedText, IsWhereItsTokensLead) {
  Guide guide = make_guide("r(a|b){3,9}"), elsewhere = make_guide("r(a|b){3,9}");
  GuidedText first, again, moved;
  for (const TokenId token : {kA, kB, kAB, kAB, kA}) {
    allowed(guide, first);
    first.append(token);
    again.append(token);  // nobody asks it before the end
    allowed(elsewhere, moved);
    moved.append(token);
  }
  const Tokens where = allowed(guide, first);
  EXPECT_EQ(allowed(guide, again), where);
  EXPECT_EQ(allowed(elsewhere, moved), where);
  EXPECT_EQ(allowed(guide, moved), where) << "with another guide of the same";
}

// A guide that forgets its states, since they take too much memory, goes on from each text's own.
TEST(GuidedText, OutlivesItsGuidesMemory) {
  const std::string pattern = "r((a|b)*a(a|b){60}(a|b)*)";
  const GuideLimits limits;
  Guide guide = make_guide(pattern);
  GuidedText text, idle;
  idle.append(kA);
  allowed(guide, idle);
  Matcher reference(compile_guide(pattern));
  Matcher::State state = reference.start();
  std::uint64_t bits = 1;
  for (int i = 0; i < 20'000; ++i) {
    const bool is_a = (bits = bits * 6364136223846793005u + 1442695040888963407u) >> 63 != 0;
    text.append(is_a ? kA : kB);
    state = reference.next(state, is_a ? 'a' : 'b');
    ASSERT_EQ(allowed(guide, text).front() == kEnd, reference.accepts(state)) << i;
    ASSERT_LT(guide.bytes(), Guide::kMaxBytes) << i;
  }
  EXPECT_GT(reference.kept_bytes(), limits.matcher_bytes) << "too little to be forgotten";
  for (int i = 0; i < 60; ++i) idle.append(kB);
  EXPECT_EQ(allowed(guide, idle).front(), kEnd);
}

// Many tokens at once, as of a sequence that begins again.
TEST(GuidedText, FollowsManyTokensWithinItsGuidesMemory) {
  const GuideLimits limits{.matcher_bytes = std::size_t{256} << 10};
  Guide guide = make_guide("r((a|b)*a(a|b){60}(a|b)*)", limits);
  GuidedText text;
  std::uint64_t bits = 1;
  for (int i = 0; i < 5'000; ++i) {
    text.append((bits = bits * 6364136223846793005u + 1442695040888963407u) >> 63 != 0 ? kA : kB);
  }
  GuidedText wrong = text;
  wrong.append(kX);
  EXPECT_EQ(allowed(guide, wrong), Tokens{}) << "which no walk through the vocabulary follows";
  EXPECT_LT(guide.bytes(), std::size_t{1} << 20);
  EXPECT_EQ(allowed(guide, text), (Tokens{kEnd, kA, kB, kAB}));
  EXPECT_LT(guide.bytes(), std::size_t{1} << 20);
}

// A thousand states of a vocabulary of 128,000 tokens: as whole masks they would be 16 MB, and forgotten.
TEST(GuidedText, ItsGuideKeepsOfMasksWhatTheyTellApart) {
  constexpr std::size_t kVocab = 128'000;
  Guide counted(std::make_shared<TokenTrie>(std::vector<std::string>{"", "\"", "1"}, kVocab),
                compile_guide(regex_guide("1{900}")));
  GuidedText text;
  TokenMask mask;
  for (int i = 0; i < 900; ++i) {
    text.allow(counted, {}, mask);
    ASSERT_EQ(mask[0], 4u) << i;
    text.append(2);
  }
  EXPECT_LT(counted.bytes(), std::size_t{1} << 20);
  const std::size_t before = counted.bytes();
  GuidedText again;
  for (int i = 0; i < 900; ++i) {
    again.allow(counted, {}, mask);
    ASSERT_EQ(mask[0], 4u) << "as it was kept, " << i;
    again.append(2);
  }
  EXPECT_EQ(counted.bytes(), before);
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

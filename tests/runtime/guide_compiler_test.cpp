#include "computron/runtime/guide_compiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "computron/base/error.h"
#include "computron/guided/guide_spec.h"

namespace computron {
namespace {

TokenTrie letters() { return {{"", "a", "b"}, 3}; }

std::shared_ptr<const std::string> text_of(const std::string& guide) {
  return std::make_shared<const std::string>(guide);
}

// As the executor does before each token.
std::shared_ptr<Guide> wait_for(GuideCompiler& compiler, ModelId model, const std::string& text) {
  const auto shared = text_of(text);
  std::shared_ptr<Guide> guide;
  while (!(guide = compiler.find(model, shared))) {
    compiler.want(model, shared);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return guide;
}

TokenMask mask_of(Guide& guide, GuidedText& text) {
  TokenMask mask;
  text.allow(guide, {}, mask);
  return mask;
}

TEST(GuideCompiler, MakesEachGuideOnceForAModel) {
  std::atomic<int> vocabularies = 0;
  GuideCompiler compiler([&](ModelId) {
    ++vocabularies;
    return letters();
  });
  const std::string text = regex_guide("a+");
  compiler.want(0, text_of(text));
  compiler.want(0, text_of(text));
  const auto guide = wait_for(compiler, 0, text);
  compiler.want(0, text_of(text));
  EXPECT_EQ(compiler.find(0, text_of(text)), guide);
  compiler.want(1, text_of(text));
  EXPECT_NE(wait_for(compiler, 1, text), guide);
  EXPECT_EQ(vocabularies, 2);
}

TEST(GuideCompiler, ForgetsWhatWasFoundLongestAgo) {
  GuideCompiler compiler([](ModelId) { return letters(); });
  const std::string first = regex_guide("a"), kept = regex_guide("b");
  compiler.want(0, text_of(first));
  const std::shared_ptr<Guide> held = wait_for(compiler, 0, first);
  for (std::size_t i = 0; i < GuideCompiler::kKept; ++i) {
    compiler.want(0, text_of(kept));
    const std::string text = regex_guide("b{" + std::to_string(i + 1) + "}");
    compiler.want(0, text_of(text));
    wait_for(compiler, 0, text);
    wait_for(compiler, 0, kept);
  }
  EXPECT_EQ(compiler.find(0, text_of(first)), nullptr);
  EXPECT_NE(compiler.find(0, text_of(kept)), nullptr);
  GuidedText still;  // whoever holds it goes on with it
  EXPECT_EQ(mask_of(*held, still)[0], 2u);
}

std::string long_guide(int letters) { return regex_guide("(a|b){" + std::to_string(letters) + "}a"); }

// Ten sequences take turns with guides that have room for two of them: each is made again and again, and its sequence
// goes on where it was.
TEST(GuideCompiler, KeepsNoMoreThanItMay) {
  constexpr int kSequences = 10;
  const std::size_t one = Guide(std::make_shared<TokenTrie>(letters()), compile_guide(long_guide(2000))).bytes();
  GuideCompiler compiler([](ModelId) { return letters(); }, 2 * one + one / 2);
  std::vector<GuidedText> texts(kSequences);
  std::vector<Guide*> used;
  for (int turn = 0; turn < 3; ++turn) {
    for (int i = 0; i < kSequences; ++i) compiler.want(0, text_of(long_guide(2000 - i)));  // as with a step
    for (int i = 0; i < kSequences; ++i) {
      const std::shared_ptr<Guide> guide = wait_for(compiler, 0, long_guide(2000 - i));
      EXPECT_LE(compiler.kept_bytes(), 3 * one);
      EXPECT_EQ(mask_of(*guide, texts[static_cast<std::size_t>(i)])[0], 6u) << turn << " " << i;
      for (int k = 0; k < 990; ++k) texts[static_cast<std::size_t>(i)].append(1);
    }
  }
  // 2,970 letters are too many for all of them.
  for (int i = 0; i < kSequences; ++i) {
    EXPECT_EQ(mask_of(*wait_for(compiler, 0, long_guide(2000 - i)), texts[static_cast<std::size_t>(i)])[0], 0u);
  }
  GuidedText text;
  for (int k = 0; k < 1995; ++k) text.append(2);
  EXPECT_EQ(mask_of(*wait_for(compiler, 0, long_guide(1995)), text)[0], 2u);
}

// Makes the guide keep much.
void use(Guide& guide) {
  GuidedText text;
  std::uint64_t bits = 1;
  for (int i = 0; i < 200; ++i) {
    text.append((bits = bits * 6364136223846793005u + 1442695040888963407u) >> 63 != 0 ? 1 : 2);
    mask_of(guide, text);
  }
}

// Masks and states go before grammars do, and those of the guide that has not been used longest go first.
TEST(GuideCompiler, ForgetsMasksBeforeGuides) {
  const std::string first = regex_guide("(a|b)*a(a|b){40}"), second = regex_guide("(a|b)*b(a|b){40}");
  Guide alone(std::make_shared<TokenTrie>(letters()), compile_guide(first));
  const std::size_t fresh = alone.bytes();
  use(alone);
  const std::size_t grown = alone.bytes();
  ASSERT_GT(grown, 4 * fresh) << "too little to be forgotten";
  GuideCompiler compiler([](ModelId) { return letters(); }, grown + grown / 2);
  const std::shared_ptr<Guide> first_guide = wait_for(compiler, 0, first);
  use(*first_guide);
  EXPECT_EQ(first_guide->bytes(), grown);
  const std::shared_ptr<Guide> second_guide = wait_for(compiler, 0, second);
  EXPECT_EQ(first_guide->bytes(), grown) << "both have room still";
  use(*second_guide);
  EXPECT_EQ(wait_for(compiler, 0, second), second_guide);
  EXPECT_LE(first_guide->bytes(), fresh) << "has forgotten";
  EXPECT_GT(second_guide->bytes(), grown / 2) << "is used";
  EXPECT_LE(compiler.kept_bytes(), grown + grown / 2);
  EXPECT_EQ(wait_for(compiler, 0, first), first_guide) << "is still there";
}

TEST(GuideCompiler, OneGuideFits) {
  EXPECT_GE(GuideCompiler::kept_of(GuideCompiler::kLeastBytes), Guide::kMaxBytes);
  EXPECT_EQ(GuideCompiler::kept_of(GuideCompiler::kMaxBytes), GuideCompiler::kMaxBytes - 2 * Guide::kMaxBytes);
  EXPECT_THROW(GuideCompiler::kept_of(GuideCompiler::kLeastBytes - 1), Error);
  const GuideLimits limits;
  EXPECT_GE(Guide::kMaxBytes, Grammar::kMaxBytes + 2 * limits.matcher_bytes + limits.mask_bytes);
  EXPECT_GE(limits.matcher_bytes, 2 * TokenTrie::kMaxPathBytes) << "a walk forgets more than it goes on with";
}

// As an enumeration of many words that few of are left of: the text outweighs what is made of it.
TEST(GuideCompiler, TextsAreCounted) {
  GuideCompiler compiler([](ModelId) { return letters(); });
  const std::string text = schema_guide(R"({"const":"a","description":")" + std::string(200'000, 'x') + "\"}");
  compiler.want(0, text_of(text));
  EXPECT_GE(compiler.kept_bytes(), text.size());
  const std::shared_ptr<Guide> guide = wait_for(compiler, 0, text);
  wait_for(compiler, 0, text);
  EXPECT_EQ(compiler.kept_bytes(), text.size() + guide->bytes());
}

TEST(GuideCompiler, WhatGoesWrongIsThrownWhereItIsFound) {
  GuideCompiler compiler([](ModelId) -> TokenTrie { throw Error(ExitCode::kIo, "no vocabulary"); });
  const std::string text = regex_guide("a");
  compiler.want(0, text_of(text));
  EXPECT_THROW(wait_for(compiler, 0, text), Error);
}

TEST(GuideCompiler, EndsWhileThereIsWork) {
  GuideCompiler compiler([](ModelId) { return letters(); });
  for (int i = 1; i < 30; ++i) compiler.want(0, text_of(regex_guide("a{" + std::to_string(i) + "}")));
}

}  // namespace
}  // namespace computron

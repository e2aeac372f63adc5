#include "computron/runtime/guide_compiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
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

std::shared_ptr<Guide> wait_for(GuideCompiler& compiler, ModelId model, const std::string& text) {
  std::shared_ptr<Guide> guide;
  while (!(guide = compiler.find(model, text))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return guide;
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
  EXPECT_EQ(compiler.find(0, text), guide);
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
  EXPECT_EQ(compiler.find(0, first), nullptr);
  EXPECT_NE(compiler.find(0, kept), nullptr);
  GuidedText still(held);  // whoever holds it goes on with it
  TokenMask mask;
  still.allow({}, mask);
  EXPECT_EQ(mask[0], 2u);
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

#include "computron/workload/servegen.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;

const std::string kData = COMPUTRON_SOURCE_DIR "/tests/workload/traces/servegen";

TEST(ServeGen, ClientsHaveWindowsWithRatesAndTokens) {
  const auto clients = read_servegen(kData);
  ASSERT_EQ(clients.size(), 2u);
  ASSERT_EQ(clients[0].size(), 3u);
  const ServeGenWindow &first = clients[0][0], &last = clients[0][2];
  EXPECT_EQ(first.span.duration_s, 600);
  EXPECT_EQ(first.rate_per_s, 2);
  EXPECT_EQ(std::get<GammaGaps>(first.process).cv, 2);
  EXPECT_THAT(first.prompt.tokens, ElementsAre(100, 300));
  EXPECT_THAT(first.prompt.up_to, ElementsAre(.25, 1));
  EXPECT_EQ(last.span.start_s, 1200);
  EXPECT_EQ(last.span.duration_s, 600);
  EXPECT_EQ(std::get<WeibullGaps>(last.process).shape, .7);
  EXPECT_THAT(last.prompt.tokens, ElementsAre(50));
  EXPECT_EQ(std::get<GammaGaps>(clients[1][0].process).cv, 1);
  EXPECT_TRUE(clients[1][0].prompt.tokens.empty());
}

TEST(ServeGen, SamplesFollowRatesAndDistributions) {
  const RequestTrace trace = sample_servegen(read_servegen(kData), {0, 1800}, 3, 1);
  EXPECT_EQ(trace.sources, 2u);
  EXPECT_TRUE(std::ranges::is_sorted(trace.requests, {}, &TracedRequest::time_s));
  double first = 0, idle = 0, second_client = 0, long_prompts = 0;
  for (const TracedRequest& request : trace.requests) {
    if (request.source == 1) {
      ++second_client;
      EXPECT_EQ(request.prompt_tokens, 0);
      continue;
    }
    idle += request.time_s >= 600 && request.time_s < 1200;
    if (request.time_s >= 600) continue;
    ++first;
    EXPECT_EQ(request.output_tokens, 7);
    long_prompts += request.prompt_tokens == 300;
  }
  EXPECT_NEAR(first, 3600, 5 * 2 * 60);  // five standard errors
  EXPECT_EQ(idle, 0);
  EXPECT_NEAR(long_prompts / first, .75, .04);
  EXPECT_NEAR(second_client, 900, 150);  // one window of 600 s, the data's last
}

TEST(ServeGen, APartOfTheTimeBeginsAtZero) {
  const RequestTrace trace = sample_servegen(read_servegen(kData), {1200, 100}, 3, 1);
  ASSERT_FALSE(trace.requests.empty());
  EXPECT_GE(trace.requests.front().time_s, 0);
  EXPECT_LT(trace.requests.back().time_s, 100);
}

TEST(ServeGen, WhatIsNoSuchDataIsNamed) {
  const auto refused = [](ExitCode code, const std::string& part, const std::string& trace, const std::string& tokens) {
    const TemporaryFolder folder;
    if (!trace.empty()) folder.write("chunk-3-trace.csv", trace);
    if (!tokens.empty()) folder.write("chunk-3-dataset.json", tokens);
    expect_error(code, part, [&] { read_servegen(folder / ""); });
  };
  refused(ExitCode::kData, "no chunk-N-trace.csv", "", "");
  refused(ExitCode::kNoInput, "chunk-3-dataset.json", "0,1,1,Gamma,1,1\n", "");
  refused(ExitCode::kData, "line 1: 2 columns", "0,1\n", "{}");
  refused(ExitCode::kData, "'Zipf' is neither", "0,1,1,Zipf,1,1\n", "{}");
  refused(ExitCode::kData, "order of time", "600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "{}");
  refused(ExitCode::kData, "line 2: the shape is 0,", "0,1,1,Gamma,1,1\n600,1,1,Gamma,0,1\n", "{}");
  refused(ExitCode::kData, "line 1: the shape is -1,", "0,1,1,Weibull,-1,1\n", "{}");
  refused(ExitCode::kData, "line 1: the cv is 1000,", "0,1,1,Gamma,1e-6,1\n", "{}");
  refused(ExitCode::kData, "line 1: the cv is 0,", "0,1,0,,1,1\n", "{}");
  refused(ExitCode::kData, "negative", "0,-1,1,Gamma,1,1\n", "{}");
  refused(ExitCode::kData, "'soon' is no window", "0,1,1,Gamma,1,1\n", R"({"soon": {}})");
  const auto tokens = [&refused](const std::string& text) {
    refused(ExitCode::kData, "is no distribution of tokens", "0,1,1,Gamma,1,1\n",
            R"({"0": {"input_tokens": ")" + text + R"("}})");
  };
  tokens("100");
  tokens("{}");
  tokens("{a: 1}");
  tokens("{1: x}");
  tokens("{1}");
  tokens("{-1: 1}");
  tokens("{1: -1}");
  tokens("{1: 0}");
  tokens("{1: 0.5 2: 0.5}");
}

}  // namespace
}  // namespace computron

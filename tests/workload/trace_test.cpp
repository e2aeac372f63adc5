#include "computron/workload/trace.h"

#include <gmock/gmock.h>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::Field;

const std::string kTraces = COMPUTRON_SOURCE_DIR "/tests/workload/traces/";

TEST(Trace, AzureFunctions2019CountsCallsByMinute) {
  const CallCounts counts = read_azure_functions_2019(kTraces + "functions_2019.csv", 0, 60);
  ASSERT_EQ(counts.functions.size(), 3u);  // one is silent in that hour
  EXPECT_EQ(counts.functions[0], std::vector<std::uint32_t>(60, 2));
  EXPECT_EQ(counts.functions[1][5], 7u);
  EXPECT_EQ(counts.functions[1][6], 0u);
  EXPECT_EQ(counts.functions[2][3], 1u);
  EXPECT_EQ(read_azure_functions_2019(kTraces + "functions_2019.csv", 60, 2).functions.size(), 2u);
}

TEST(Trace, AzureFunctions2021HasCallsByFunction) {
  const RequestTrace trace = read_azure_functions_2021(kTraces + "functions_2021.txt");
  EXPECT_EQ(trace.sources, 4u);
  ASSERT_EQ(trace.requests.size(), 61u);
  EXPECT_TRUE(std::ranges::is_sorted(trace.requests, {}, &TracedRequest::time_s));
  EXPECT_EQ(trace.requests.back().time_s, 5000);  // its end less its duration
  EXPECT_EQ(trace.requests.back().source, 3u);
}

TEST(Trace, AzureLlmCountsFromTheFirstRequestAndOverMidnight) {
  const RequestTrace trace = read_azure_llm(kTraces + "azure_llm.csv");
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[0].time_s, 0);
  EXPECT_NEAR(trace.requests[1].time_s, 1.25, 1e-6);
  EXPECT_NEAR(trace.requests[2].time_s, 2.5, 1e-6);
  EXPECT_EQ(trace.requests[2].prompt_tokens, 879);
  EXPECT_EQ(trace.requests[2].output_tokens, 55);
}

TEST(Trace, MooncakeIsInMillisecondsAndSorted) {
  const RequestTrace trace = read_mooncake(kTraces + "mooncake.jsonl");
  EXPECT_THAT(trace.requests, ElementsAre(Field(&TracedRequest::time_s, 0),
                                          Field(&TracedRequest::time_s, testing::DoubleNear(1.5005, 1e-9)),
                                          Field(&TracedRequest::time_s, 3)));
  EXPECT_EQ(trace.requests[1].prompt_tokens, 12);
  EXPECT_EQ(trace.requests[2].output_tokens, 490);
}

TEST(Trace, WhatIsNoTraceIsNamed) {
  const TemporaryFolder folder;
  const auto refused = [&folder](const std::string& part, const std::string& text, const auto& read) {
    const std::string file = folder.write("t", text);
    expect_error(ExitCode::kData, part, [&] { read(file); });
  };
  const auto llm = [](const std::string& file) { read_azure_llm(file); };
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  refused("line 1: must begin with", "time,tokens\n", llm);
  refused("line 2: 2 columns", head + "2023-11-16 18:15:46.68,12\n", llm);
  refused("line 3: '12x' is no number", head + "\n2023-11-16 18:15:46.68,12x,1\n", llm);
  refused("'-1' is no count", head + "2023-11-16 18:15:46.68,-1,1\n", llm);
  refused("no number of tokens", head + "2023-11-16 18:15:46.68,3999999999,1\n", llm);
  refused("'2023-13-16 18:15:46.68' is no time", head + "2023-13-16 18:15:46.68,1,1\n", llm);
  refused("'noon' is no time", head + "noon,1,1\n", llm);
  refused("line 2:", head + "2023-11-16 18:15:46.68+02:00,1,1\n", llm);
  const auto functions = [](const std::string& file) { read_azure_functions_2021(file); };
  refused("'x' is no number", "app,func,end_timestamp,duration\na,b,x,1\n", functions);
  refused("must begin", "", functions);
  const auto mooncake = [](const std::string& file) { read_mooncake(file); };
  refused("line 1:", "{\"timestamp\": 1\n", mooncake);
  refused("output_length is no number", R"({"timestamp": 1, "input_length": 1})", mooncake);
  refused("timestamp is no number", "[1]", mooncake);
  refused("no number of tokens", R"({"timestamp": 1, "input_length": -1, "output_length": 1})", mooncake);
  const auto day = [](const std::string& file) { read_azure_functions_2019(file, 0, 60); };
  refused("4 columns, expected 1444", "HashOwner,HashApp,HashFunction,Trigger,1,2\na,b,c,d\n", day);
  expect_error(ExitCode::kData, "minutes 1400 to 1460",
               [] { read_azure_functions_2019(kTraces + "functions_2019.csv", 1400, 60); });
  expect_error(ExitCode::kNoInput, "gone", [&] { read_mooncake(folder / "gone"); });
  expect_error(ExitCode::kNoInput, "folder", [&] { read_mooncake(kTraces); });
}

}  // namespace
}  // namespace computron

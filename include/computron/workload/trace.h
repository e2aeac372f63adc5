// Reads public traces of what real services were asked. The traces themselves are not part of this program; small
// samples of our own in the same formats are in tests/workload/traces.
//
//   Azure Functions 2019   invocations_per_function_md.anon.dNN.csv: calls of each function in each minute of a day
//   Azure Functions 2021   AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt: app,func,end_timestamp,duration
//   Azure LLM 2023         AzureLLMInferenceTrace_*.csv: TIMESTAMP,ContextTokens,GeneratedTokens
//   Mooncake               JSON lines with timestamp (ms), input_length, output_length
//
// Every reader throws Error{kNoInput} where it cannot read the file, and Error{kData} naming file and line where a line
// is not of the format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace computron {

struct TracedRequest {
  double time_s = 0;
  std::uint32_t source = 0;        // the function or client that called
  std::int32_t prompt_tokens = 0;  // 0 where the trace does not say
  std::int32_t output_tokens = 0;
};

struct RequestTrace {
  std::uint32_t sources = 0;
  std::vector<TracedRequest> requests;  // in order of time
};

constexpr std::uint32_t kMinutesADay = 1440;

// Calls in [first_minute, first_minute + minutes) of the day; functions without any are left out.
struct CallCounts {
  std::uint32_t minutes = 0;
  std::vector<std::vector<std::uint32_t>> functions;  // [function, in order of the file][minute]
};
CallCounts read_azure_functions_2019(const std::string& file, std::uint32_t first_minute, std::uint32_t minutes);

// A source is a function, in order of first appearance; a call's time is that of its begin, as the file counts seconds.
RequestTrace read_azure_functions_2021(const std::string& file);

// One source each. Times count from the first request.
RequestTrace read_azure_llm(const std::string& file);
RequestTrace read_mooncake(const std::string& file);

}  // namespace computron

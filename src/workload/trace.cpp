#include "computron/workload/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "computron/base/json.h"
#include "computron/base/json_text.h"
#include "src/workload/trace_lines.h"

namespace computron {
namespace {

// Throws unless the first line begins with `head`.
void check_head(TraceLines& lines, std::string_view head) {
  if (!lines.next() || !lines.line().starts_with(head)) lines.refuse(fmt::format("must begin with {}", shown(head)));
}

// "2023-11-16 18:15:46.6805900" as seconds since 1970; a time zone behind it must be +00:00.
double seconds_of(const TraceLines& lines, std::string_view text) {
  const auto bad = [&] { lines.refuse(fmt::format("{} is no time as 2023-11-16 18:15:46.68", shown(text))); };
  std::string_view time = text;
  if (time.ends_with("+00:00")) time.remove_suffix(6);
  if (time.size() < 19 || time[4] != '-' || time[7] != '-' || time[10] != ' ' || time[13] != ':' || time[16] != ':')
    bad();
  const auto part = [&](std::size_t at, std::size_t size) { return lines.count(time.substr(at, size)); };
  using namespace std::chrono;
  const year_month_day date{year(static_cast<int>(part(0, 4))), month(part(5, 2)), day(part(8, 2))};
  if (!date.ok()) bad();
  const auto days_s = static_cast<double>(sys_days(date).time_since_epoch().count()) * 86400;
  return days_s + part(11, 2) * 3600.0 + part(14, 2) * 60.0 + lines.number(time.substr(17));
}

std::int32_t tokens_of(const TraceLines& lines, double value) {
  if (!(value >= 0 && value <= kMostTokens)) lines.refuse(fmt::format("{} is no number of tokens", value));
  return static_cast<std::int32_t>(value);
}

void count_from_first(RequestTrace& trace) {
  std::ranges::stable_sort(trace.requests, {}, &TracedRequest::time_s);
  if (trace.requests.empty()) return;
  const double first = trace.requests[0].time_s;
  for (TracedRequest& request : trace.requests) request.time_s -= first;
}

}  // namespace

CallCounts read_azure_functions_2019(const std::string& file, std::uint32_t first_minute, std::uint32_t minutes) {
  TraceLines lines(file);
  check_head(lines, "HashOwner,HashApp,HashFunction,Trigger,1,");
  if (minutes == 0 || first_minute + minutes > kMinutesADay) {
    lines.refuse(fmt::format("minutes {} to {} are asked for, the day has {}", first_minute, first_minute + minutes,
                             kMinutesADay));
  }
  CallCounts counts{.minutes = minutes, .functions = {}};
  while (lines.next()) {
    const auto& fields = lines.fields(4 + kMinutesADay);
    std::vector<std::uint32_t> calls(minutes);
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < minutes; ++i) sum += calls[i] = lines.count(fields[4 + first_minute + i]);
    if (sum > 0) counts.functions.push_back(std::move(calls));
  }
  return counts;
}

RequestTrace read_azure_functions_2021(const std::string& file) {
  TraceLines lines(file);
  check_head(lines, "app,func,end_timestamp,duration");
  RequestTrace trace;
  std::map<std::string, std::uint32_t, std::less<>> functions;
  while (lines.next()) {
    const auto& fields = lines.fields(4);
    const auto [function, isnew] =
        functions.emplace(std::string(fields[1]), static_cast<std::uint32_t>(functions.size()));
    const double begin = lines.number(fields[2]) - lines.number(fields[3]);
    trace.requests.push_back({.time_s = begin, .source = function->second});
  }
  trace.sources = static_cast<std::uint32_t>(functions.size());
  std::ranges::stable_sort(trace.requests, {}, &TracedRequest::time_s);
  return trace;
}

RequestTrace read_azure_llm(const std::string& file) {
  TraceLines lines(file);
  check_head(lines, "TIMESTAMP,ContextTokens,GeneratedTokens");
  RequestTrace trace{.sources = 1, .requests = {}};
  while (lines.next()) {
    const auto& fields = lines.fields(3);
    trace.requests.push_back({.time_s = seconds_of(lines, fields[0]),
                              .prompt_tokens = tokens_of(lines, lines.count(fields[1])),
                              .output_tokens = tokens_of(lines, lines.count(fields[2]))});
  }
  count_from_first(trace);
  return trace;
}

RequestTrace read_mooncake(const std::string& file) {
  TraceLines lines(file);
  RequestTrace trace{.sources = 1, .requests = {}};
  while (lines.next()) {
    nlohmann::json object;
    if (const auto fault = parse_json(lines.line(), {}, object)) lines.refuse(cut(fault->message, 200));
    const auto number = [&](const char* key) {
      const auto found = object.is_object() ? object.find(key) : object.end();
      if (found == object.end() || !found->is_number()) lines.refuse(fmt::format("{} is no number, or absent", key));
      return found->get<double>();
    };
    trace.requests.push_back({.time_s = number("timestamp") / 1e3,
                              .prompt_tokens = tokens_of(lines, number("input_length")),
                              .output_tokens = tokens_of(lines, number("output_length"))});
  }
  count_from_first(trace);
  return trace;
}

}  // namespace computron

#include "computron/workload/servegen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/json_text.h"
#include "computron/workload/numpy_random.h"
#include "src/workload/trace_lines.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr double kWindow_s = 600;  // of a client with one window only

[[noreturn]] void bad_data(const std::string& file, const std::string& why) {
  throw Error(ExitCode::kData, fmt::format("ServeGen data '{}': {}", file, why));
}

// A Python dictionary of numbers: "{100: 0.25, 130: 0.75}".
TokenHistogram histogram_of(const std::string& file, const std::string& text) {
  const auto bad = [&] { bad_data(file, fmt::format("{} is no distribution of tokens", shown(text))); };
  TokenHistogram histogram;
  double sum = 0;
  std::map<double, double> probabilities;
  const std::size_t open = text.find('{'), close = text.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) bad();
  for (std::size_t at = open + 1; at < close;) {
    const std::size_t colon = text.find(':', at), end = std::min(text.find(',', at), close);
    if (colon > end) bad();
    char *after_tokens = nullptr, *after = nullptr;
    const double tokens = std::strtod(&text[at], &after_tokens), probability = std::strtod(&text[colon + 1], &after);
    if (after_tokens != &text[colon] || after != &text[end] || after == &text[colon + 1]) bad();
    if (!(tokens >= 0 && tokens <= kMostTokens && probability >= 0 && std::isfinite(probability))) bad();
    probabilities[tokens] += probability;
    sum += probability;
    at = end + 1;
  }
  if (!(sum > 0)) bad();
  double up_to = 0;
  for (const auto& [tokens, probability] : probabilities) {
    histogram.tokens.push_back(static_cast<std::int32_t>(tokens));
    histogram.up_to.push_back((up_to += probability) / sum);
  }
  histogram.up_to.back() = 1;
  return histogram;
}

ArrivalProcess process_of(const TraceLines& lines, std::string_view cv, std::string_view pattern,
                          std::string_view shape) {
  const auto gamma = [&lines](double own_cv) {
    if (!(own_cv >= kMinCv && own_cv <= kMaxCv)) {
      lines.refuse(fmt::format("the cv is {}, expected {} to {}", own_cv, kMinCv, kMaxCv));
    }
    return GammaGaps{own_cv};
  };
  if (pattern.empty()) return gamma(cv.empty() ? 1 : lines.number(cv));
  if (pattern != "Gamma" && pattern != "Weibull") {
    lines.refuse(fmt::format("{} is neither Gamma nor Weibull", shown(pattern)));
  }
  const double value = lines.number(shape);
  if (!(value > 0)) lines.refuse(fmt::format("the shape is {}, expected more than 0", value));
  if (pattern == "Weibull") return WeibullGaps{value};
  return gamma(1 / std::sqrt(value));
}

ServeGenClient read_windows(const std::string& file) {
  TraceLines lines(file);
  ServeGenClient windows;
  while (lines.next()) {
    const auto& fields = lines.fields(6);
    ServeGenWindow window;
    window.span = {lines.number(fields[0]), kWindow_s};
    window.rate_per_s = lines.number(fields[1]);
    if (window.rate_per_s < 0) lines.refuse("the rate is negative");
    if (window.rate_per_s > 0) window.process = process_of(lines, fields[2], fields[3], fields[4]);
    if (!windows.empty()) {
      TimeSpan& before = windows.back().span;
      before.duration_s = window.span.start_s - before.start_s;
      if (!(before.duration_s > 0)) lines.refuse("windows are not in order of time");
      window.span.duration_s = before.duration_s;
    }
    windows.push_back(std::move(window));
  }
  return windows;
}

// {"0": {"input_tokens": "{...}", "output_tokens": "{...}"}, "600": ...}: each holds from its time on.
void add_tokens(const std::string& file, ServeGenClient& windows) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw Error(ExitCode::kNoInput, fmt::format("cannot read the ServeGen data '{}'", file));
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  json object;
  if (const auto fault = parse_json(text, {}, object)) bad_data(file, cut(fault->message, 200));
  if (!object.is_object()) bad_data(file, "must be an object");
  std::map<double, const json*> by_start;
  for (const auto& [start, value] : object.items()) {
    char* end = nullptr;
    const double start_s = std::strtod(start.c_str(), &end);
    if (*end != 0 || start.empty() || !value.is_object()) bad_data(file, fmt::format("{} is no window", shown(start)));
    by_start[start_s] = &value;
  }
  for (ServeGenWindow& window : windows) {
    auto found = by_start.upper_bound(window.span.start_s);
    if (found == by_start.begin()) continue;
    const json& tokens = *std::prev(found)->second;
    const auto read = [&](const char* key, TokenHistogram& histogram) {
      const auto at = tokens.find(key);
      if (at == tokens.end()) return;
      if (!at->is_string()) bad_data(file, fmt::format("{} must be a text", key));
      histogram = histogram_of(file, at->get_ref<const std::string&>());
    };
    read("input_tokens", window.prompt);
    read("output_tokens", window.output);
  }
}

std::int32_t sampled(const TokenHistogram& histogram, NumpyRandom& random) {
  if (histogram.tokens.empty()) return 0;
  const auto at = std::ranges::upper_bound(histogram.up_to, random.uniform());
  return histogram.tokens[static_cast<std::size_t>(at - histogram.up_to.begin())];
}

// The part of a window that lies in `span`.
TimeSpan overlap(TimeSpan window, TimeSpan span) {
  const double begin = std::max(window.start_s, span.start_s);
  const double end = std::min(window.start_s + window.duration_s, span.start_s + span.duration_s);
  return {begin, end - begin};
}

}  // namespace

std::vector<ServeGenClient> read_servegen(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr std::string_view kFirst = "chunk-", kLast = "-trace.csv";
  std::error_code fault;
  std::map<std::uint32_t, std::string> chunks;
  for (const auto& entry : fs::directory_iterator(folder, fault)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFirst) || !name.ends_with(kLast)) continue;
    const std::string number = name.substr(kFirst.size(), name.size() - kFirst.size() - kLast.size());
    if (number.empty() || number.size() > 9 || number.find_first_not_of("0123456789") != std::string::npos) continue;
    chunks[static_cast<std::uint32_t>(std::stoul(number))] = number;
  }
  if (fault)
    throw Error(ExitCode::kNoInput, fmt::format("cannot read the ServeGen data '{}': {}", folder, fault.message()));
  if (chunks.empty()) bad_data(folder, "there is no chunk-N-trace.csv");
  std::vector<ServeGenClient> clients;
  for (const auto& [at, number] : chunks) {
    clients.push_back(read_windows(fmt::format("{}/chunk-{}-trace.csv", folder, number)));
    add_tokens(fmt::format("{}/chunk-{}-dataset.json", folder, number), clients.back());
  }
  return clients;
}

RequestTrace sample_servegen(const std::vector<ServeGenClient>& clients, TimeSpan span, double rate_scale,
                             std::uint32_t seed) {
  double expected = 0;
  for (const ServeGenClient& client : clients) {
    for (const ServeGenWindow& window : client) {
      const TimeSpan part = overlap(window.span, span);
      if (!(part.duration_s > 0)) continue;
      expected += expected_arrivals(window.process, rate_scale * window.rate_per_s, part.duration_s);
    }
  }
  check_expected(expected);
  RequestTrace trace{.sources = static_cast<std::uint32_t>(clients.size()), .requests = {}};
  for (std::uint32_t c = 0; c < clients.size(); ++c) {
    for (const ServeGenWindow& window : clients[c]) {
      const TimeSpan part = overlap(window.span, span);
      if (!(part.duration_s > 0)) continue;
      NumpyRandom tokens(~seed);  // other numbers than those of the arrivals
      for (const double time : arrival_times(window.process, rate_scale * window.rate_per_s, part, seed)) {
        trace.requests.push_back({.time_s = time - span.start_s,
                                  .source = c,
                                  .prompt_tokens = sampled(window.prompt, tokens),
                                  .output_tokens = sampled(window.output, tokens)});
      }
      ++seed;
    }
  }
  std::ranges::stable_sort(trace.requests, {}, &TracedRequest::time_s);
  return trace;
}

}  // namespace computron

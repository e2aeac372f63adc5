// Any bytes as a request file (the first byte says how long a line may be, the second in what pieces it comes): every
// line that is not blank gives requests that a model can take, or a failure that is a sound result line.
#include "computron/requests/request_reader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/utf8.h"
#include "computron/requests/result_format.h"
#include "computron/storage/line_splitter.h"
#include "computron/text/tokenizer.h"
#include "src/storage/result_line.h"
#include "tests/fuzz/expect.h"

namespace {

using namespace computron;

constexpr int kLines = 6;  // of an input that are read: enough for what they do to each other

constexpr const char* kCodes[] = {
    "invalid_json",        "invalid_utf8",           "line_too_long",     "too_deep",
    "duplicate_key",       "invalid_request",        "invalid_parameter", "model_not_found",
    "duplicate_custom_id", "context_length_exceeded"};

std::shared_ptr<const Tokenizer> gpt2() {
  std::ifstream in(COMPUTRON_TEXT_FIXTURES "/gpt2/tokenizer.json", std::ios::binary);
  return std::make_shared<const Tokenizer>(
      TokenizerFiles{{"tokenizer.json", {std::istreambuf_iterator<char>(in), {}}}});
}

ServedModel model(const char* id, bool causal) {
  ServedModel model{.id = id, .config = {}};
  model.config.vocab = 1200;
  model.config.max_positions = 64;
  model.config.hidden = 8;
  model.config.causal = causal;
  model.config.eos_tokens = {2};
  return model;
}

std::vector<ServedModel> models() {
  std::vector<ServedModel> models = {model("text", true), model("plain", true), model("encoder", false)};
  models[0].tokenizer = models[2].tokenizer = gpt2();
  return models;
}

void check(const Request& request, const ModelConfig& config) {
  expect(!request.prompt.empty() && request.prompt.size() <= static_cast<std::size_t>(config.max_positions), "it fits");
  for (const TokenId token : request.prompt) expect(token >= 0 && token < config.vocab, "tokens of the model");
  for (const TokenId token : request.stop_tokens) expect(token >= 0, "a token");
  expect(request.max_tokens >= 0 && request.max_tokens <= config.max_positions, "no more tokens than positions");
  expect(request.logprobs >= -1 && request.logprobs <= 20, "bounded logprobs");
  const SamplingParams& s = request.sampling;
  for (const float number :
       {s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.frequency_penalty, s.presence_penalty}) {
    expect(std::isfinite(number), "finite parameters");
  }
  expect(s.temperature >= 0 && s.top_k >= 0 && s.top_p >= 0 && s.top_p <= 1, "parameters in their ranges");
  expect(request.arrival_s >= 0 && std::isfinite(request.arrival_s), "a time");
}

void check(const IncomingRequest& incoming, const RequestFailure& failure, bool thoroughly) {
  expect(std::find(std::begin(kCodes), std::end(kCodes), failure.code) != std::end(kCodes), "a code that is known");
  expect(failure.status >= 400 && failure.status < 500, "the request's fault");
  const std::string line = format_failure(incoming, failure);
  expect(is_utf8(line) && line.find('\n') == std::string::npos, "a line of UTF-8");
  if (thoroughly) expect(line_of_result(line) == incoming.line, "a result of its line");
  expect(line.size() < 16384, "a short line");
}

void check(const IncomingRequest& incoming, const std::vector<ServedModel>& served, bool thoroughly) {
  if (const auto* failure = std::get_if<RequestFailure>(&incoming.content))
    return check(incoming, *failure, thoroughly);
  const auto& parts = std::get<RequestParts>(incoming.content);
  expect(!parts.empty() && incoming.custom_id && !incoming.custom_id->empty(), "a request has parts and a name");
  for (const Request& request : parts) check(request, served.at(request.model).config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto served = (spdlog::set_level(spdlog::level::off), models());
  if (size < 2) return 0;
  const ReaderLimits limits{.max_line_bytes = 16u * (1u + data[0])};
  const std::size_t piece = 1 + 8 * std::size_t{data[1]};
  RequestParser parser(served, limits, "/nonexistent");
  std::set<std::string> names;
  int count = 0;
  LineSplitter lines(limits.max_line_bytes, [&](const InputLine& line) {
    expect(line.too_long ? line.bytes > limits.max_line_bytes : line.text.size() <= limits.max_line_bytes,
           "a line is too long or not");
    const auto incoming = line.too_long ? parser.refuse_long(line.number, line.bytes, line.long_id)
                                        : parser.parse(line.number, line.text);
    check(incoming, served, /*thoroughly=*/data[1] % 8 == 0);  // parsing results would be half of the time
    const bool accepted = std::holds_alternative<RequestParts>(incoming.content);
    if (accepted) expect(names.insert(*incoming.custom_id).second, "a name is served once");
    return ++count < kLines;
  });
  std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  for (; !rest.empty(); rest.remove_prefix(std::min(piece, rest.size()))) {
    if (!lines.feed(rest.substr(0, piece))) return 0;
  }
  lines.end();
  return 0;
}

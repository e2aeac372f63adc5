#include <fmt/format.h>
#include <gmock/gmock.h>

#include <limits>
#include <random>
#include <span>
#include <utility>
#include <variant>

#include "computron/base/base64.h"
#include "computron/requests/request_reader.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

RequestParser fresh_parser() { return RequestParser(two_models(), {}); }

Request accepted(const std::string& line) {
  const auto incoming = fresh_parser().parse(7, line);
  if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) {
    ADD_FAILURE() << line << "\n" << failure->code << ": " << failure->message;
    return {};
  }
  return std::get<RequestParts>(incoming.content).at(0);
}

// Expects `line` to be refused with `code` and a message that has `part`, and the custom_id to be known ("": not).
void expect_refused(const std::string& line, const std::string& code, const std::string& part,
                    const std::string& id = "r", RequestId number = 7) {
  const auto incoming = fresh_parser().parse(number, line);
  const auto* failure = std::get_if<RequestFailure>(&incoming.content);
  ASSERT_NE(failure, nullptr) << "accepted: " << line;
  EXPECT_EQ(failure->code, code) << line << "\n" << failure->message;
  EXPECT_THAT(failure->message, HasSubstr(part)) << line;
  EXPECT_EQ(failure->status, code == "model_not_found" ? 404 : 400);
  EXPECT_EQ(incoming.line, number);
  EXPECT_EQ(incoming.custom_id.value_or(""), id) << line;
}

void expect_bad_parameter(const std::string& body_fields, const std::string& part) {
  expect_refused(line_with(R"("prompt":[4,5],)" + body_fields), "invalid_parameter", part);
}

TEST(RequestParser, ReadsEveryField) {
  const auto incoming = fresh_parser().parse(
      41, R"({"custom_id":"x-1","method":"POST","url":"/v1/completions","arrival":1.5,"deadline":2,"body":{)"
          R"("model":"org/opt-b.v1","prompt":[0,5,99],"max_tokens":9,"logprobs":3,"echo":true,"ignore_eos":true,)"
          R"("stop_token_ids":[7,8],"n":1,"temperature":0,"top_p":0.5,"top_k":40,"seed":-5,"user":"u"}})");
  ASSERT_TRUE(std::holds_alternative<RequestParts>(incoming.content));
  const auto& request = std::get<RequestParts>(incoming.content).at(0);
  EXPECT_EQ(incoming.line, 41u);
  EXPECT_EQ(incoming.custom_id, "x-1");
  EXPECT_EQ(incoming.model, "org/opt-b.v1");
  EXPECT_EQ(request.id, 41u);
  EXPECT_EQ(request.model, 1u);
  EXPECT_THAT(request.prompt, ElementsAre(0, 5, 99));
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_THAT(request.stop_tokens, ElementsAre(7, 8));
  EXPECT_EQ(request.arrival_s, 1.5);
}

TEST(RequestParser, DefaultsOfAbsentAndNullFields) {
  for (const std::string fields :
       {R"("prompt":[4])",
        R"("prompt":[4],"max_tokens":null,"logprobs":null,"echo":null,"stop_token_ids":null,"n":null,)"
        R"("temperature":null,"top_p":null,"seed":null,"stream":null,"stop":null,"user":null)"}) {
    const Request request = accepted(line_with(fields));
    EXPECT_EQ(request.max_tokens, 16);
    EXPECT_EQ(request.logprobs, -1);
    EXPECT_FALSE(request.echo);
    EXPECT_FALSE(request.ignore_eos);
    EXPECT_TRUE(request.stop_tokens.empty());
    EXPECT_EQ(request.arrival_s, 0);
  }
}

TEST(RequestParser, DefaultMaxTokensComesFromTheLimits) {
  RequestParser parser(two_models(), {.default_max_tokens = 3});
  EXPECT_EQ(std::get<RequestParts>(parser.parse(0, line_with(R"("prompt":[4])")).content).at(0).max_tokens, 3);
}

TEST(RequestParser, NeutralValuesAreAccepted) {
  accepted(line_with(R"("prompt":[4],"presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1.0,)"
                     R"("logit_bias":{},"stop":[],"best_of":1,"suffix":"","min_tokens":0,"use_beam_search":false,)"
                     R"("temperature":-0.0,"stream":false,"allowed_token_ids":null,"bad_words":[])"));
}

TEST(RequestParser, IntegersMayBeWrittenAsWholeFloats) {
  EXPECT_EQ(accepted(line_with(R"("prompt":[4.0,1e1],"max_tokens":1.2e1)")).max_tokens, 12);
}

TEST(RequestParser, ScoringNeedsEcho) {
  EXPECT_EQ(accepted(line_with(R"("prompt":[4],"max_tokens":0,"echo":true)")).max_tokens, 0);
  expect_bad_parameter(R"("max_tokens":0)", "body.max_tokens: must be an integer from 1 to 2147483647, or 0 with echo");
}

TEST(RequestParser, ContextIsPromptAndGeneration) {
  const auto prompt = [](int count) {
    std::string text = "\"prompt\":[4";
    for (int i = 1; i < count; ++i) text += ",4";
    return text + "]";
  };
  EXPECT_EQ(accepted(line_with(prompt(60) + R"(,"max_tokens":4)")).prompt.size(), 60u);
  expect_refused(line_with(prompt(60) + R"(,"max_tokens":5)"), "context_length_exceeded",
                 "60 tokens and max_tokens 5 exceed the 64 positions of opt-a");
  EXPECT_EQ(accepted(line_with(prompt(64) + R"(,"max_tokens":0,"echo":true)")).prompt.size(), 64u);
  expect_refused(line_with(prompt(60)), "context_length_exceeded", "max_tokens 16");
  expect_refused(line_with(R"("prompt":[4],"max_tokens":2147483647)"), "context_length_exceeded", "2147483647");
  expect_refused(line_with(prompt(1000000)), "context_length_exceeded", "1000000 tokens");
}

TEST(RequestParser, MalformedJsonGivesTheColumn) {
  expect_refused(R"({"custom_id":"r","body":{,}})", "invalid_json", "byte column 26");
  expect_refused(R"({"custom_id":"r")", "invalid_json", "byte column 17");
  expect_refused(R"({"custom_id":"r"} x)", "invalid_json", "byte column 19");
  expect_refused(R"({"custom_id":"r","a":tru})", "invalid_json", "byte column 25");
  expect_refused("{\"custom_id\":\"r\",\"a\":\"\t\"}", "invalid_json", "control character");
  expect_refused(R"({"custom_id":"r","a":"\x"})", "invalid_json", "byte column 24");
  expect_refused(R"({"custom_id":"r","a":01})", "invalid_json", "byte column");
  expect_refused(R"({"custom_id":"r",})", "invalid_json", "byte column 18");
  expect_refused(R"({'custom_id':'r'})", "invalid_json", "byte column 2", "");
  expect_refused(R"(hello)", "invalid_json", "byte column 1", "");
  expect_refused("// c\n{}", "invalid_json", "byte column 1", "");
  expect_refused("\xEF\xBB\xBF{\"custom_id\":\"r\",}", "invalid_json", "byte column 21", "r", 0);
}

TEST(RequestParser, CustomIdIsFoundWhereverItStands) {
  expect_refused(R"({"body":{,},"custom_id":"late"})", "invalid_json", "", "late");
  expect_refused(R"({"body":{"custom_id":"inner"},, "custom_id" : "late"})", "invalid_json", "", "late");
  expect_refused(R"({"a":"\"custom_id\":\"no\"",, "custom\u005fid":"la\te"})", "invalid_json", "", "la\te");
  expect_refused(R"({"a":{"a":1,"a":2},"custom_id":"late"})", "duplicate_key", "'a'", "late");
  expect_refused("{\"a\":\"\xFF\",\"custom_id\":\"late\"}", "invalid_utf8", "", "late");
  expect_refused(R"({"a":)" + std::string(100, '[') + std::string(100, ']') + R"(,"custom_id":"late"})", "too_deep",
                 "a", "late");
  expect_refused(R"({"method":"GET","custom_id":"late"})", "invalid_request", "method", "late");
}

TEST(RequestParser, DamagedCustomIdIsNotReported) {
  expect_refused("{\"custom_id\":\"x\xC3(\"}", "invalid_utf8", "byte column 16", "");
  expect_refused(R"({"custom_id":"x\ud800"})", "invalid_utf8", "lone surrogate", "");
  expect_refused(R"({"custom_id":"x)", "invalid_json", "", "");
  expect_refused(R"({"custom_id":,"a":"b"})", "invalid_json", "", "");
}

TEST(RequestParser, TextMustBeUnicode) {
  const auto body = [](const std::string& text) { return line_with(R"("prompt":[4],"user":")" + text + '"'); };
  for (const std::string bad : {"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                "\xF8\x88\x80\x80\x80", "\\\xFF"}) {
    expect_refused(body(bad), "invalid_utf8", "ill-formed UTF-8 sequence at byte column");
  }
  expect_refused(body(std::string(1, '\0')), "invalid_utf8", "a NUL byte at byte column");
  expect_refused(body("\\u0000"), "invalid_utf8", "a NUL character at byte column");
  for (const std::string bad : {"\\ud800", "\\uDC00", "\\ud800\\ud800", "\\ud83dx", "\\udbff\\u0041"}) {
    expect_refused(body(bad), "invalid_utf8", "a lone surrogate at byte column");
  }
  for (const std::string good : {"\\ud83d\\ude00", "\xF0\x9F\x98\x80", "\\\\u0000", "\\\\\\\\ud800", "\xEF\xBB\xBF",
                                 "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF", "\\u00e9"}) {
    accepted(body(good));
  }
}

TEST(RequestParser, ByteOrderMarkOpensTheFileOnly) {
  const std::string mark = "\xEF\xBB\xBF", line = line_with(R"("prompt":[4])");
  EXPECT_TRUE(std::holds_alternative<RequestParts>(fresh_parser().parse(0, mark + line).content));
  expect_refused(mark + line, "invalid_utf8", "a byte order mark", "r", 1);
  expect_refused(mark + mark + line, "invalid_utf8", "byte column 4", "r", 0);
  expect_refused(" " + mark + line, "invalid_json", "byte column 2", "r", 0);
}

TEST(RequestParser, DepthIsBounded) {
  const auto nested = [](int depth) {
    const auto count = static_cast<std::size_t>(depth - 2);  // the line and its body are two levels
    return line_with(R"("prompt":[4],"x":)" + std::string(count, '[') + std::string(count, ']'));
  };
  const CapturedLog log;
  accepted(nested(64));
  expect_refused(nested(65), "too_deep", "body.x: nested deeper than 64 levels");
  expect_refused(nested(1000000), "too_deep", "body.x");
  expect_refused(std::string(3000000, '{'), "invalid_json", "byte column 2", "");
  expect_refused(std::string(3000000, '['), "too_deep", "the line", "");
}

TEST(RequestParser, DuplicateKeysAreRefusedAtEveryLevel) {
  expect_refused(R"({"custom_id":"r","custom_id":"s"})", "duplicate_key", "'custom_id'");
  expect_refused(line_with(R"("prompt":[4],"prompt":[4])"), "duplicate_key", "'prompt'");
  expect_refused(line_with(R"("prompt":[4],"x":[{"y":{"z":1,"\u007a":2}}])"), "duplicate_key", "'z'");
  const CapturedLog log;
  accepted(line_with(R"("prompt":[4],"x":[{"y":1},{"y":2}])"));
}

TEST(RequestParser, KeysAreBounded) {
  std::string object = "{\"k\":0";
  for (int i = 0; i < 10000; ++i) object += fmt::format(R"(,"k{}":0)", i);
  expect_refused(line_with("\"x\":" + object + "}"), "invalid_request", "more than 10000 keys");
}

TEST(RequestParser, EnvelopeFieldsAreNamed) {
  const auto refused = [](const std::string& line, const std::string& part, const std::string& id = "r") {
    expect_refused(line, "invalid_request", part, id);
  };
  refused("[]", "not a JSON object", "");
  refused("[{}]", "not a JSON object", "");
  refused("5", "not a JSON object", "");
  refused("\"custom_id\"", "not a JSON object", "");
  refused("{}", "custom_id: missing", "");
  refused(R"({"custom_id":null})", "custom_id: missing", "");
  refused(R"({"custom_id":17})", "custom_id: must be a string (got 17)", "");
  refused(R"({"custom_id":["r"]})", "custom_id: must be a string (got a list)", "");
  refused(R"({"custom_id":"r"})", "method: missing");
  refused(R"({"custom_id":"r","method":1})", "method: must be a string (got 1)");
  refused(R"({"custom_id":"r","method":"GET"})", "method: must be 'POST' (got 'GET')");
  refused(R"({"custom_id":"r","method":"POST"})", "url: missing");
  refused(R"({"custom_id":"r","method":"POST","url":false})", "url: must be a string (got false)");
  refused(R"({"custom_id":"r","method":"POST","url":"/v2/x"})", "url: unknown '/v2/x'");
  refused(R"({"custom_id":"r","method":"POST","url":"/v1/chat/completions"})", "body: missing");
  const std::string head = R"({"custom_id":"r","method":"POST","url":"/v1/completions")";
  refused(head + "}", "body: missing");
  refused(head + R"(,"body":null})", "body: must be an object (got null)");
  refused(head + R"(,"body":[{"model":"opt-a"}]})", "body: must be an object (got a list)");
  refused(head + R"(,"body":{"model":"opt-a","stream":true,"prompt":[4]}})", "body.stream: must be false");
  refused(head + R"(,"body":{"model":"opt-a","stream":0,"prompt":[4]}})", "body.stream: must be false");
  refused(head + R"(,"body":{}})", "body.model: missing");
  refused(head + R"(,"body":{"model":{}}})", "body.model: must be a string (got an object)");
}

TEST(RequestParser, PromptsAreListsOfTokens) {
  const auto refused = [](const std::string& prompt, const std::string& part) {
    expect_refused(line_with("\"prompt\":" + prompt), "invalid_request", part);
  };
  expect_refused(line_with(""), "invalid_request", "body.prompt: missing");
  refused("null", "body.prompt: missing");
  refused("\"hello\"", "the checkpoint of opt-a carries no tokenizer");
  refused("5", "body.prompt: must be a text or a list of token ids (got 5)");
  refused("{\"a\":1}", "body.prompt: must be a text or a list of token ids (got an object)");
  refused("[[4,5],6]",
          "body.prompt[0]: prompts are a list of token ids, of texts or of lists of token ids, of one kind");
  refused("[4,\"a\"]", "body.prompt[1]: prompts are a list of token ids, of texts or of lists");
  refused("[\"a\",[4]]", "body.prompt[0]: prompts are");
  refused("[4,null]", "body.prompt[1]");
  refused("[true]", "body.prompt[0]");
}

TEST(RequestParser, TokensMustBeInTheVocabulary) {
  const auto refused = [](const std::string& prompt, const std::string& part) {
    expect_refused(line_with("\"prompt\":" + prompt), "invalid_parameter", part);
  };
  EXPECT_THAT(accepted(line_with(R"("prompt":[0,1023])")).prompt, ElementsAre(0, 1023));
  refused("[]", "body.prompt: must hold at least one token id");
  refused("[4,1024]", "body.prompt[1]: token ids of opt-a are integers from 0 to 1023 (got 1024)");
  refused("[-1]", "body.prompt[0]: token ids of opt-a are integers from 0 to 1023 (got -1)");
  refused("[4294967300]", "(got 4294967300)");
  refused("[4.5]", "body.prompt[0]: token ids of opt-a are integers from 0 to 1023");
  refused("[99999999999999999999]", "body.prompt[0]");
  expect_bad_parameter(R"("stop_token_ids":[5,1024])", "body.stop_token_ids[1]");
  expect_bad_parameter(R"("stop_token_ids":5)", "body.stop_token_ids: must be a list of at most 256 token ids");
  expect_bad_parameter(R"("stop_token_ids":["a"])", "body.stop_token_ids");
  std::string many = "[1";
  for (int i = 0; i < 256; ++i) many += ",1";
  expect_bad_parameter("\"stop_token_ids\":" + many + "]", "at most 256");
}

TEST(RequestParser, ParametersNameFieldAndRange) {
  for (const std::string bad : {"-1", "2147483648", "1.5", "99999999999999999999", "\"ten\"", "true", "[]"}) {
    expect_bad_parameter("\"max_tokens\":" + bad, "body.max_tokens: must be an integer from 1 to 2147483647 (got");
  }
  for (const std::string bad : {"-1", "21", "0.5", "true", "\"5\""}) {
    expect_bad_parameter("\"logprobs\":" + bad, "body.logprobs: must be an integer from 0 to 20 (got");
  }
  expect_bad_parameter(R"("echo":1)", "body.echo: must be true or false (got 1)");
  expect_bad_parameter(R"("ignore_eos":"yes")", "body.ignore_eos: must be true or false (got 'yes')");
  expect_bad_parameter(R"("n":0)", "body.n: must be an integer from 1 to 128");
  expect_bad_parameter(R"("n":129)", "body.n: must be an integer from 1 to 128");
  expect_bad_parameter(R"("temperature":-0.1)", "body.temperature: must be a number from 0 to 2 (got -0.1)");
  expect_bad_parameter(R"("temperature":2.5)", "body.temperature: must be a number from 0 to 2");
  expect_bad_parameter(R"("temperature":"hot")", "body.temperature: must be a number from 0 to 2 (got 'hot')");
  expect_bad_parameter(R"("top_p":1.5)", "body.top_p: must be a number from 0 to 1");
  expect_bad_parameter(R"("top_k":-2)", "body.top_k: must be an integer from -1 to");
  expect_bad_parameter(R"("seed":1.5)", "body.seed: must be an integer");
  expect_bad_parameter(R"("min_p":-0.5)", "body.min_p: must be a number from 0 to 1");
  expect_bad_parameter(R"("repetition_penalty":0)", "body.repetition_penalty: must be a number from 0.01 to 10");
  expect_bad_parameter(R"("frequency_penalty":2.5)", "body.frequency_penalty: must be a number from -2 to 2");
  expect_bad_parameter(R"("presence_penalty":"much")", "body.presence_penalty: must be a number from -2 to 2");
  expect_bad_parameter(R"("max_tokens":5,"min_tokens":6)", "body.min_tokens: must be an integer from 0 to 5");
  expect_bad_parameter(R"("logit_bias":[1])", "body.logit_bias: must be an object of at most 1024");
  expect_bad_parameter(R"("logit_bias":{"5":101})", "body.logit_bias.5: must be a number from -100 to 100 (got 101)");
  expect_bad_parameter(R"("logit_bias":{"5":"up"})", "body.logit_bias.5: must be a number");
  for (const std::string bad : {"-1", "100000", "5x", "", "1e1", " 5"}) {
    expect_bad_parameter(fmt::format(R"("logit_bias":{{"{}":1}})", bad),
                         "body.logit_bias: keys are token ids of opt-a");
  }
  expect_bad_parameter(R"("return_token_ids":1)", "body.return_token_ids: must be true or false");
  expect_refused(line_with(R"("prompt":[4],"user":5)"), "invalid_request", "body.user: must be a string (got 5)");
  expect_refused(line_with(R"("prompt":[4],"tenant":[])"), "invalid_request", "body.tenant: must be a string");
  expect_bad_parameter(R"("service_tier":"fast")", "body.service_tier: must be 'auto', 'default', 'flex', 'priority'");
  expect_bad_parameter(R"("service_tier":"fast","priority":1)", "or 'scale' (got 'fast')");
  expect_bad_parameter(R"("service_tier":1)", "body.service_tier: must be");
  expect_bad_parameter(R"("priority":1.5)", "body.priority: must be an integer from -2147483647 to 2147483647");
  expect_bad_parameter(R"("priority":"high")", "body.priority: must be an integer");
  expect_bad_parameter(R"("priority":-2147483648)", "body.priority: must be an integer");
}

std::vector<Request> with_class(const std::string& body_fields) {
  auto parser = fresh_parser();
  const auto incoming = parser.parse(0, line_with(R"("prompt":[4],)" + body_fields));
  EXPECT_TRUE(std::holds_alternative<RequestParts>(incoming.content)) << body_fields;
  return std::get<RequestParts>(incoming.content);
}

TEST(RequestParser, TiersAndPrioritiesSayWhoGoesFirst) {
  EXPECT_EQ(with_class(R"("n":2,"service_tier":"priority","temperature":1)")[1].priority, Request::kInteractive);
  for (const std::string tier : {"auto", "default", "flex", "scale"}) {
    EXPECT_EQ(with_class(fmt::format(R"("service_tier":"{}")", tier))[0].priority, 0) << tier;
  }
  EXPECT_EQ(with_class(R"("service_tier":null,"priority":null)")[0].priority, 0);
  EXPECT_EQ(with_class(R"("priority":-7)")[0].priority, -7);
  EXPECT_EQ(with_class(R"("priority":3,"service_tier":"priority")")[0].priority, 3);
  EXPECT_EQ(with_class(R"("priority":0,"service_tier":"priority")")[0].priority, 0);
}

TEST(RequestParser, TenantsAreToldApart) {
  EXPECT_EQ(with_class(R"("priority":1)")[0].tenant, 0u);
  EXPECT_EQ(with_class(R"("user":"")")[0].tenant, 0u);
  const std::uint64_t ann = with_class(R"("user":"ann")")[0].tenant;
  EXPECT_NE(ann, 0u);
  EXPECT_EQ(with_class(R"("tenant":"ann","n":2,"temperature":1)")[1].tenant, ann);
  EXPECT_EQ(with_class(R"("tenant":"ann","user":"bob")")[0].tenant, ann) << "the tenant wins";
  EXPECT_EQ(with_class(R"("tenant":"","user":"ann")")[0].tenant, ann);
  EXPECT_NE(with_class(R"("user":"bob")")[0].tenant, ann);
}

TEST(RequestParser, NumbersMustBeFinite) {
  for (const std::string bad : {"1e400", "-1e400", "NaN", "Infinity", "-Infinity"}) {
    expect_bad_parameter("\"temperature\":" + bad, "body.temperature: ");
    expect_bad_parameter("\"temperature\":" + bad, "is not a finite number");
    expect_refused(R"({"arrival":)" + bad + R"(,"custom_id":"r"})", "invalid_parameter", "arrival: ");
  }
  expect_bad_parameter(R"("stop_token_ids":[4,NaN])", "body.stop_token_ids: NaN is not a finite number");
  expect_refused(R"({"custom_id":"r",NaN:1})", "invalid_json", "byte column 18");
  expect_refused(R"({"custom_id":"r","a":Nan})", "invalid_json", "byte column 22");
}

TEST(RequestParser, SecondsAreNotNegative) {
  const std::string rest =
      R"(,"custom_id":"r","method":"POST","url":"/v1/completions","body":{"model":"opt-a","prompt":[4]}})";
  EXPECT_EQ(accepted(R"({"arrival":3)" + rest).arrival_s, 3);
  EXPECT_EQ(accepted(R"({"deadline":0.25)" + rest).arrival_s, 0);
  EXPECT_EQ(accepted(R"({"deadline":0.25)" + rest).deadline_s, 0.25);
  EXPECT_EQ(accepted(R"({"deadline":null)" + rest).deadline_s, kNoDeadline);
  expect_refused(R"({"arrival":-0.5)" + rest, "invalid_parameter", "arrival: must be a finite number of seconds, 0 or");
  for (const char* value : {"\"soon\"", "-1", "true", "[2]"}) {
    expect_refused(fmt::format(R"({{"deadline":{})", value) + rest, "invalid_parameter",
                   "deadline: must be a finite number");
  }
  expect_refused(R"({"deadline":1e400)" + rest, "invalid_parameter", "1e400");
  expect_refused(R"({"deadline":NaN)" + rest, "invalid_parameter", "deadline: NaN is not a finite number");
}

TEST(RequestParser, ARequestWithoutADeadlineHasThatOfItsModel) {
  std::vector<ServedModel> models = two_models();
  models[0].deadline_s = 5;
  const auto deadlines = [&models](const std::string& before, const std::string& model) {
    const std::string line = before + line_with(R"("prompt":[4],"n":2)", "r", model).substr(1);
    const auto incoming = RequestParser(models, {}).parse(0, line);
    std::vector<double> all;
    for (const Request& part : std::get<RequestParts>(incoming.content)) all.push_back(part.deadline_s);
    return all;
  };
  EXPECT_THAT(deadlines("{", "opt-a"), ElementsAre(5, 5));
  EXPECT_THAT(deadlines(R"({"deadline":7,)", "opt-a"), ElementsAre(7, 7));
  EXPECT_THAT(deadlines("{", "org/opt-b.v1"), ElementsAre(kNoDeadline, kNoDeadline));
}

TEST(RequestParser, ReadsHowTokensAreDrawn) {
  const auto incoming = fresh_parser().parse(
      7, line_with(R"("prompt":[4,5],"n":3,"temperature":0.7,"top_k":-1,"top_p":0.9,"min_p":0.05,"seed":11,)"
                   R"("repetition_penalty":1.2,"frequency_penalty":-0.5,"presence_penalty":1,"min_tokens":2,)"
                   R"("logit_bias":{"5":-100,"17":2.5},"return_token_ids":true)"));
  const auto& parts = std::get<RequestParts>(incoming.content);
  ASSERT_EQ(parts.size(), 3u);
  SamplingParams expected{.temperature = 0.7f,
                          .top_k = 0,
                          .top_p = 0.9f,
                          .min_p = 0.05f,
                          .repetition_penalty = 1.2f,
                          .frequency_penalty = -0.5f,
                          .presence_penalty = 1,
                          .logit_bias = {{17, 2.5f}, {5, -100.0f}},
                          .min_tokens = 2,
                          .key = parts[0].sampling.key};
  EXPECT_EQ(parts[0].sampling, expected);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(parts[i].part, i);
  EXPECT_EQ(incoming.prompt_token_ids, (std::vector<std::vector<TokenId>>{{4, 5}}));
}

// Logits over less are no numbers of float32; vLLM's samplers call such temperatures greedy, too.
TEST(RequestParser, TinyTemperaturesAreGreedy) {
  const auto temperature = [](const std::string& value) {
    const auto incoming = fresh_parser().parse(0, line_with(R"("prompt":[4],"top_p":0.5,"temperature":)" + value));
    return std::get<RequestParts>(incoming.content)[0].sampling.temperature;
  };
  for (const std::string value : {"0", "-0.0", "5e-324", "1e-45", "1e-39", "1e-20", "9.9e-6"}) {
    EXPECT_EQ(temperature(value), 0) << value;
  }
  EXPECT_EQ(temperature("1e-5"), 1e-5f);
  EXPECT_EQ(temperature("0.001"), 1e-3f);
}

// One seed, one noise, wherever the request stands; without one the job's seed and the line decide.
TEST(RequestParser, KeysOfNoise) {
  const auto keys = [](RequestId line, const std::string& fields, std::uint64_t job_seed) {
    RequestParser parser(two_models(), {.seed = job_seed});
    std::vector<std::uint64_t> found;
    const auto incoming = parser.parse(line, line_with(R"("prompt":[4],"n":2,"temperature":1)" + fields));
    for (const Request& request : std::get<RequestParts>(incoming.content)) found.push_back(request.sampling.key);
    return found;
  };
  EXPECT_EQ(keys(1, R"(,"seed":5)", 0), keys(9, R"(,"seed":5)", 3));
  EXPECT_NE(keys(1, R"(,"seed":5)", 0), keys(1, R"(,"seed":6)", 0));
  EXPECT_EQ(keys(1, "", 3), keys(1, "", 3));
  EXPECT_NE(keys(1, "", 3), keys(2, "", 3));
  EXPECT_NE(keys(1, "", 3), keys(1, "", 4));
  EXPECT_NE(keys(1, "", 3)[0], keys(1, "", 3)[1]);
}

TEST(RequestParser, WhatChangesResultsAndIsNotServedIsRefusedByName) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{{"best_of", "2"},
                                                                                     {"suffix", "\"x\""},
                                                                                     {"use_beam_search", "true"},
                                                                                     {"allowed_token_ids", "[1]"},
                                                                                     {"guided_grammar", "\"root\""}}) {
    expect_bad_parameter(fmt::format(R"("{}":{})", field, value), "body." + field + ": not served");
  }
}

TEST(RequestParser, UnknownModel) {
  const CapturedLog log;
  RequestParser parser = fresh_parser();
  for (RequestId line = 0; line < 3; ++line) {
    const auto incoming =
        parser.parse(line, line_with(R"("prompt":"x","max_tokens":"y")", std::to_string(line), "gpt"));
    EXPECT_EQ(incoming.model, "gpt");
    const auto& failure = std::get<RequestFailure>(incoming.content);
    EXPECT_EQ(failure.code, "model_not_found");
    EXPECT_EQ(failure.status, 404);
    EXPECT_THAT(failure.message, HasSubstr("'gpt'"));
  }
  EXPECT_THAT(log.text(), HasSubstr("serves opt-a, org/opt-b.v1"));
  EXPECT_EQ(log.text().find("opt-a"), log.text().rfind("opt-a")) << "logged more than once";
}

TEST(RequestParser, LongNamesAreCutInMessages) {
  const CapturedLog log;
  const std::string name = "x" + std::string(100000, 'y') + "\xC3\xA9";
  const auto incoming = fresh_parser().parse(0, line_with(R"("prompt":[4])", "r", name));
  EXPECT_LT(std::get<RequestFailure>(incoming.content).message.size(), 300u);
  EXPECT_LT(log.text().size(), 500u);
}

TEST(RequestParser, DuplicateCustomIds) {
  RequestParser parser = fresh_parser();
  const std::string good = line_with(R"("prompt":[4])", "same");
  EXPECT_TRUE(std::holds_alternative<RequestParts>(parser.parse(0, good).content));
  for (RequestId line = 1; line < 3; ++line) {
    const auto incoming = parser.parse(line, good);
    EXPECT_EQ(incoming.custom_id, "same");
    EXPECT_EQ(std::get<RequestFailure>(incoming.content).code, "duplicate_custom_id");
    EXPECT_THAT(std::get<RequestFailure>(incoming.content).message, HasSubstr("custom_id: an earlier line has 'same'"));
  }
  EXPECT_TRUE(std::holds_alternative<RequestParts>(parser.parse(3, line_with(R"("prompt":[4])", "other")).content));
}

TEST(RequestParser, IdsOfFailedLinesAreTakenToo) {
  RequestParser parser = fresh_parser();
  parser.parse(0, R"({"custom_id":"a",,})");
  parser.refuse_long(1, 100, "b");
  for (const std::string id : {"a", "b"}) {
    EXPECT_EQ(std::get<RequestFailure>(parser.parse(2, line_with(R"("prompt":[4])", id)).content).code,
              "duplicate_custom_id");
  }
}

TEST(RequestParser, UnknownFieldsAreIgnoredWithOneWarning) {
  const CapturedLog log;
  RequestParser parser = fresh_parser();
  const auto line = [](const std::string& name) {
    return line_with(R"("prompt":[4],")" + name + R"(":[1,{"a":2}])", name);
  };
  EXPECT_TRUE(
      std::holds_alternative<RequestParts>(parser.parse(0, line_with(R"("prompt":[4],"seed":1)", "none")).content));
  EXPECT_EQ(log.text(), "");
  EXPECT_TRUE(std::holds_alternative<RequestParts>(parser.parse(1, line("colour")).content));
  EXPECT_TRUE(std::holds_alternative<RequestParts>(parser.parse(2, line("flavour")).content));
  EXPECT_THAT(log.text(), HasSubstr("body.colour"));
  EXPECT_THAT(log.text(), Not(HasSubstr("flavour")));
}

// --- Encoders ---------------------------------------------------------------------------------------------------

ServedModel encoder(const std::string& id, int classes, int token_types) {
  ServedModel model = decoder(id, 100, 8);
  model.config.causal = false;
  model.config.hidden = 12;
  model.config.classes = classes;
  model.config.token_types = token_types;
  return model;
}

ServedModel vision(const std::string& id, int channels) {
  ServedModel model = encoder(id, 5, 0);
  model.config.vocab = 0;
  model.config.image_size = 4;
  model.config.patch_size = 2;
  model.config.channels = channels;
  model.config.max_positions = 5;
  return model;
}

RequestParser encoder_parser(const std::string& folder = ".") {
  return RequestParser(
      {encoder("bert", 3, 2), encoder("plain", 0, 0), vision("vit", 3), vision("grey", 1), decoder("opt", 100, 64)}, {},
      folder);
}

std::string encoder_line(const std::string& model, const std::string& fields, const std::string& url = "/classify") {
  return R"({"custom_id":"r","method":"POST","url":")" + url + R"(","arrival":2.5,"body":{"model":")" + model + "\"," +
         fields + "}}";
}

RequestParts parts_of(const std::string& line) {
  const auto incoming = encoder_parser().parse(7, line);
  if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) {
    ADD_FAILURE() << line << "\n" << failure->code << ": " << failure->message;
    return RequestParts(1);
  }
  return std::get<RequestParts>(incoming.content);
}

void expect_encoder_refused(const std::string& line, const std::string& code, const std::string& part) {
  const auto incoming = encoder_parser().parse(7, line);
  const auto* failure = std::get_if<RequestFailure>(&incoming.content);
  ASSERT_NE(failure, nullptr) << "accepted: " << line;
  EXPECT_EQ(failure->code, code) << line << "\n" << failure->message;
  EXPECT_THAT(failure->message, HasSubstr(part)) << line;
}

TEST(EncoderRequests, OneInputIsOnePart) {
  const RequestParts parts = parts_of(encoder_line("bert", R"("input":[5,6,99],"token_type_ids":[0,1,1])"));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].id, 7u);
  EXPECT_EQ(parts[0].part, 0u);
  EXPECT_EQ(parts[0].model, 0u);
  EXPECT_EQ(parts[0].task, Task::kClassify);
  EXPECT_EQ(parts[0].values, 3);
  EXPECT_EQ(parts[0].arrival_s, 2.5);
  EXPECT_THAT(parts[0].prompt, ElementsAre(5, 6, 99));
  EXPECT_THAT(parts[0].token_type_ids, ElementsAre(0, 1, 1));
}

TEST(EncoderRequests, AListOfInputsIsAPartEach) {
  const RequestParts parts =
      parts_of(encoder_line("bert", R"("input":[[5],[6,7],[8]],"token_type_ids":[[1],[0,1],[0]])", "/v1/embeddings"));
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].part, 2u);
  EXPECT_EQ(parts[2].id, 7u);
  EXPECT_EQ(parts[1].task, Task::kEmbed);
  EXPECT_EQ(parts[1].values, 12);
  EXPECT_THAT(parts[1].prompt, ElementsAre(6, 7));
  EXPECT_THAT(parts[1].token_type_ids, ElementsAre(0, 1));
  EXPECT_THAT(parts[2].prompt, ElementsAre(8));
  EXPECT_TRUE(parts_of(encoder_line("plain", R"("input":[[5]])", "/v1/embeddings"))[0].token_type_ids.empty());
}

TEST(EncoderRequests, VectorsMayBeWantedInBase64) {
  const auto format = [](const std::string& value) {
    const std::string fields = R"("input":[5],"encoding_format":)" + value;
    return encoder_parser().parse(0, encoder_line("bert", fields, "/v1/embeddings")).pooled.base64;
  };
  EXPECT_TRUE(format("\"base64\""));
  EXPECT_FALSE(format("\"float\""));
  EXPECT_FALSE(format("null"));
  expect_encoder_refused(encoder_line("bert", R"("input":[5],"encoding_format":"int8")"), "invalid_parameter",
                         "body.encoding_format: must be 'float' or 'base64' (got 'int8')");
}

TEST(EncoderRequests, InputsAreChecked) {
  const auto refused = [](const std::string& input, const std::string& code, const std::string& part) {
    expect_encoder_refused(encoder_line("bert", "\"input\":" + input), code, part);
  };
  refused("null", "invalid_request", "body.input: missing");
  refused("\"hello\"", "invalid_request", "body.input: text is not accepted because the checkpoint of bert carries no");
  refused("[\"hello\"]", "invalid_request", "body.input: text is not accepted");
  refused("5", "invalid_request", "body.input: must be a list of integers, or a list of such lists (got 5)");
  refused("[]", "invalid_parameter", "body.input: must hold at least one integer");
  refused("[[4],[]]", "invalid_parameter", "body.input[1]: must hold at least one integer");
  refused("[[4],5]", "invalid_request", "body.input: not all its items are lists");
  refused("[5,[4]]", "invalid_request", "body.input: not all its items are lists");
  refused("[[4],[5,[6]]]", "invalid_request", "body.input[1][1]: must be an integer (got a list)");
  refused("[[4],[5,\"a\"]]", "invalid_request", "body.input[1][1]: must be an integer (got a string)");
  refused("[4,null]", "invalid_request", "body.input[1]: must be an integer (got null)");
  refused("[[4],[5,100]]", "invalid_parameter",
          "body.input[1][1]: token ids of bert are integers from 0 to 99 (got 100)");
  refused("[[4],[1,1,1,1,1,1,1,1,1]]", "context_length_exceeded",
          "body.input[1]: 9 tokens exceed the 8 positions of bert");
  EXPECT_EQ(parts_of(encoder_line("bert", R"("input":[1,1,1,1,1,1,1,1])"))[0].prompt.size(), 8u);
}

TEST(EncoderRequests, InputsAreBounded) {
  std::string most = "[[1]";
  for (int i = 1; i < 2048; ++i) most += ",[1]";
  EXPECT_EQ(parts_of(encoder_line("bert", "\"input\":" + most + "]")).size(), 2048u);
  expect_encoder_refused(encoder_line("bert", "\"input\":" + most + ",[1]]"), "invalid_parameter",
                         "body.input: at most 2048 inputs a request (got 2049)");
  for (int i = 0; i < 300000; ++i) most += ",[]";
  expect_encoder_refused(encoder_line("bert", "\"input\":" + most + "]"), "invalid_parameter", "(got 302048)");
}

TEST(EncoderRequests, SegmentsAreChecked) {
  const auto refused = [](const std::string& input, const std::string& types, const std::string& code,
                          const std::string& part) {
    expect_encoder_refused(encoder_line("bert", "\"input\":" + input + ",\"token_type_ids\":" + types), code, part);
  };
  refused("[4,5]", "[0]", "invalid_request", "body.token_type_ids: 1 segments of 2 tokens");
  refused("[4,5]", "[0,2]", "invalid_parameter",
          "body.token_type_ids[1]: segments of bert are integers from 0 to 1 (got 2)");
  refused("[[4],[5]]", "[[0],[-1]]", "invalid_parameter", "body.token_type_ids[1][0]: segments");
  refused("[[4],[5]]", "[[0]]", "invalid_request", "body.token_type_ids: 1 lists of segments for 2 inputs");
  refused("[[4],[5]]", "[0,0]", "invalid_request", "body.token_type_ids: 1 lists of segments for 2 inputs");
  refused("[4]", "\"x\"", "invalid_request", "body.token_type_ids: must be a list");
  expect_encoder_refused(encoder_line("plain", R"("input":[4],"token_type_ids":[0])", "/v1/embeddings"),
                         "invalid_parameter", "plain has no segments");
}

TEST(EncoderRequests, ModelsSayWhatTheyCanDo) {
  const auto refused = [](const std::string& model, const std::string& url, const std::string& part) {
    expect_encoder_refused(encoder_line(model, R"("input":[4],"prompt":[4])", url), "invalid_request", part);
  };
  refused("opt", "/v1/embeddings", "url: opt is a decoder: it serves /v1/completions");
  refused("opt", "/classify", "url: opt is a decoder");
  refused("opt", "/v1/rerank", "url: opt is a decoder");
  refused("bert", "/v1/completions", "url: bert is an encoder of 3 classes: it serves /v1/embeddings and /classify");
  refused("bert", "/score", "url: bert is an encoder of 3 classes: it serves /v1/embeddings and /classify");
  refused("plain", "/classify",
          "url: plain is an encoder without classes: it serves /v1/embeddings, /score and /rerank");
  refused("bert", "/pooling",
          "url: unknown '/pooling'; this build serves /v1/completions, /v1/chat/completions, "
          "/v1/embeddings, /classify, /score, /v1/score, /rerank, /v1/rerank, /v2/rerank");
}

TEST(EncoderRequests, TokenIdsAreCutWhereTheRequestSaysSo) {
  const auto cut = [](const std::string& fields) {
    return parts_of(encoder_line("bert", R"("input":[[1,2,3,4,5],[6]],)" + fields))[0].prompt;
  };
  EXPECT_THAT(cut(R"("truncate_prompt_tokens":3)"), ElementsAre(1, 2, 3));
  EXPECT_THAT(cut(R"("truncate_prompt_tokens":3,"truncation_side":"left")"), ElementsAre(3, 4, 5));
  EXPECT_THAT(cut(R"("truncate_prompt_tokens":8)"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(cut(R"("truncate_prompt_tokens":null)"), ElementsAre(1, 2, 3, 4, 5));
  const RequestParts longest =
      parts_of(encoder_line("bert", R"("input":[1,1,1,1,1,1,1,1,2],"truncate_prompt_tokens":-1)"));
  EXPECT_THAT(longest[0].prompt, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  const auto refused = [](const std::string& fields, const std::string& part) {
    expect_encoder_refused(encoder_line("bert", R"("input":[4],)" + fields), "invalid_parameter", part);
  };
  refused(R"("truncate_prompt_tokens":0)", "body.truncate_prompt_tokens: must be an integer from 1 to 8, or -1 for 8");
  refused(R"("truncate_prompt_tokens":9)", "body.truncate_prompt_tokens: must be an integer from -1 to 8 (got 9)");
  refused(R"("truncation_side":"top")", "body.truncation_side: must be 'left' or 'right' (got 'top')");
}

// Of a list of any length the end is known as well as the beginning; what is cut away is not looked at.
TEST(EncoderRequests, LongListsAreCutOnBothSides) {
  for (const int count : {9, 1023, 1024, 1025, 1500, 2048, 2050, 5000}) {
    std::string ids, types;
    for (int i = 0; i < count; ++i) {
      ids += fmt::format("{}{}", i == 0 ? "[" : ",", i == count / 2 ? -1 : i % 100);
      types += fmt::format("{}{}", i == 0 ? "[" : ",", i == count / 2 ? 9 : i / 3 % 2);
    }
    const auto cut = [&](const std::string& side, bool nested) {
      const std::string brackets[] = {nested ? "[" : "", nested ? "]]" : "]"};
      return parts_of(encoder_line("bert", fmt::format(R"("input":{0}{2}{1},"token_type_ids":{0}{3}{1},)"
                                                       R"("truncate_prompt_tokens":4,"truncation_side":"{4}")",
                                                       brackets[0], brackets[1], ids, types, side)))[0];
    };
    for (const bool nested : {false, true}) {
      const Request left = cut("left", nested), right = cut("right", nested);
      EXPECT_THAT(right.prompt, ElementsAre(0, 1, 2, 3)) << count;
      EXPECT_THAT(right.token_type_ids, ElementsAre(0, 0, 0, 1)) << count;
      const auto id = [count](int i) { return (count - 4 + i) % 100; };
      const auto type = [count](int i) { return (count - 4 + i) / 3 % 2; };
      EXPECT_THAT(left.prompt, ElementsAre(id(0), id(1), id(2), id(3))) << count;
      EXPECT_THAT(left.token_type_ids, ElementsAre(type(0), type(1), type(2), type(3))) << count;
    }
  }
}

TEST(EncoderRequests, CutListsAreChecked) {
  const auto refused = [](const std::string& ids, const std::string& types, const std::string& side,
                          const std::string& part) {
    const std::string cut = fmt::format(R"(,"truncate_prompt_tokens":2,"truncation_side":"{}")", side);
    const std::string fields = "\"input\":" + ids + ",\"token_type_ids\":" + types + cut;
    const auto incoming = encoder_parser().parse(7, encoder_line("bert", fields));
    const auto* failure = std::get_if<RequestFailure>(&incoming.content);
    ASSERT_NE(failure, nullptr) << "accepted: " << fields;
    EXPECT_THAT(failure->message, HasSubstr(part)) << fields;
  };
  refused("[1,2,3,100]", "[0,0,0,0]", "left", "body.input[3]: token ids of bert are integers from 0 to 99 (got 100)");
  refused("[1,-1,3,4]", "[0,0,0,0]", "right", "body.input[1]: token ids of bert");
  refused("[1,2,3,4]", "[0,0,2,0]", "left",
          "body.token_type_ids[2]: segments of bert are integers from 0 to 1 (got 2)");
  refused("[1,2,3,4]", "[0,0]", "left", "body.token_type_ids: 2 segments of 4 tokens");
  refused("[1,2,3,4]", "[0,0,0,0,\"a\"]", "left", "body.token_type_ids[4]: must be an integer (got a string)");
  refused("[1,2,3,4.5]", "[0,0,0,0]", "right", "body.input[3]: must be an integer (got a number)");
}

TEST(EncoderRequests, ResultsAreAskedFor) {
  const auto pooled = [](const std::string& model, const std::string& fields, const std::string& url) {
    return encoder_parser().parse(0, encoder_line(model, R"("input":[5],)" + fields, url)).pooled;
  };
  EXPECT_EQ(pooled("plain", R"("dimensions":7)", "/v1/embeddings").dimensions, 7);
  EXPECT_EQ(pooled("plain", R"("dimensions":null)", "/v1/embeddings").dimensions, 0);
  EXPECT_TRUE(pooled("bert", R"("user":"u")", "/classify").activation);
  EXPECT_FALSE(pooled("bert", R"("use_activation":false)", "/classify").activation);
  EXPECT_FALSE(pooled("bert", R"("activation":false)", "/classify").activation);
  EXPECT_TRUE(pooled("bert", R"("activation":false,"use_activation":true)", "/classify").activation);
  const auto refused = [](const std::string& fields, const std::string& url, const std::string& part) {
    expect_encoder_refused(encoder_line("bert", R"("input":[4],)" + fields, url), "invalid_parameter", part);
  };
  refused(R"("dimensions":13)", "/v1/embeddings", "body.dimensions: must be an integer from 1 to 12 (got 13)");
  refused(R"("dimensions":0)", "/v1/embeddings", "body.dimensions: must be an integer from 1 to 12 (got 0)");
  refused(R"("dimensions":3)", "/classify", "body.dimensions: goes with /v1/embeddings");
  refused(R"("use_activation":1)", "/classify", "body.use_activation: must be true or false (got 1)");
}

std::string base64_of(const std::vector<float>& values) { return encode_base64(std::as_bytes(std::span(values))); }

std::string tensor(const std::string& shape, const std::string& data) {
  return R"("image":{"shape":)" + shape + R"(,"data":")" + data + "\"}";
}

TEST(EncoderRequests, AnImageMayBeATensor) {
  std::vector<float> values;
  for (int i = 0; i < 3 * 4 * 4; ++i) values.push_back(0.25f * static_cast<float>(i));
  const RequestParts parts = parts_of(encoder_line("vit", tensor("[3,4,4]", base64_of(values))));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].prompt.size(), 5u);
  EXPECT_EQ(parts[0].values, 5);
  ASSERT_EQ(parts[0].patches.size(), 5u * 12u);
  EXPECT_EQ(parts[0].patches[11], 0) << "of the class token";
  EXPECT_EQ(parts[0].patches[12], 0);
  EXPECT_EQ(parts[0].patches[13], 0.25f);
  EXPECT_EQ(parts[0].patches[14], 1.0f) << "the row below";
  EXPECT_EQ(parts[0].patches[16], 4.0f) << "the next channel";
}

TEST(EncoderRequests, TensorsAreChecked) {
  const std::vector<float> zeros(48);
  std::vector<float> bad = zeros;
  bad[40] = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [](const std::string& image, const std::string& code, const std::string& part) {
    expect_encoder_refused(encoder_line("vit", image), code, part);
  };
  for (const std::string shape : {"[3,4]", "[1,4,4]", "[3,4,4,1]", "5", "null", "[[3],4,4]", "[3,4.5,4]"}) {
    refused(tensor(shape, base64_of(zeros)), "invalid_request", "body.image.shape: images of vit have shape [3, 4, 4]");
  }
  refused(tensor("[3,4,4]", "AAA"), "invalid_request", "body.image.data: not base64");
  refused(tensor("[3,4,4]", "AAAA"), "invalid_request", "body.image.data: 3 bytes; the shape has 192 of float32");
  refused(tensor("[3,4,4]", base64_of(bad)), "invalid_parameter", "body.image.data: value 40 is not finite");
  refused(R"("image":{"shape":[3,4,4]})", "invalid_request", "body.image.data: missing");
  refused(R"("image":{"shape":[3,4,4],"data":{"data":"AAAA"}})", "invalid_request",
          "body.image.data: must be a string");
  refused(R"("image":5)", "invalid_request", "body.image: must be a file's path, or shape and data (got 5)");
  refused(R"("image":null)", "invalid_request", "body.image: missing");
  refused(R"("input":[4])", "invalid_request", "body.input: vit takes images, in body.image");
  refused(R"("image":{"shape":[3,4,4],"shape":[3,4,4]})", "duplicate_key", "'shape'");
  expect_encoder_refused(encoder_line("bert", R"("image":"x.png")"), "invalid_request",
                         "body.image: bert takes token ids, in body.input");
  expect_encoder_refused(encoder_line("grey", R"("image":"x.png")"), "invalid_request", "grey takes 1 channels");
}

TEST(EncoderRequests, FilesAreSoughtBesideTheRequestFile) {
  const std::string folder = std::string(COMPUTRON_FIXTURES) + "/vit";
  const auto parse = [](const std::string& image, const std::string& from) {
    return encoder_parser(from).parse(0, encoder_line("vit", "\"image\":\"" + image + '"', "/v1/embeddings"));
  };
  const auto relative = parse("image.png", folder), absolute = parse(folder + "/image.png", "/");
  ASSERT_TRUE(std::holds_alternative<RequestParts>(relative.content));
  ASSERT_TRUE(std::holds_alternative<RequestParts>(absolute.content));
  const Request& request = std::get<RequestParts>(relative.content)[0];
  EXPECT_EQ(request.patches.size(), 60u);
  EXPECT_EQ(request.patches, std::get<RequestParts>(absolute.content)[0].patches);
  const auto missing = parse("none.png", folder);
  EXPECT_THAT(std::get<RequestFailure>(missing.content).message, HasSubstr("none.png': No such file or directory"));
  EXPECT_EQ(std::get<RequestFailure>(missing.content).code, "invalid_request");
}

TEST(EncoderRequests, UnknownFieldsAreNamedOnce) {
  const CapturedLog log;
  RequestParser parser = encoder_parser();
  const std::string image =
      R"("image":{"shape":[3,4,4],"colour":1,"data":")" + base64_of(std::vector<float>(48)) + "\"}";
  EXPECT_TRUE(
      std::holds_alternative<RequestParts>(parser.parse(0, encoder_line("vit", image + R"(,"logprobs":3)")).content));
  EXPECT_THAT(log.text(), HasSubstr("body.logprobs, body.image.colour"));
  RequestParser ranking = encoder_parser();
  ranking.parse(0, encoder_line("plain", R"("query":"q","documents":["d"],"top_n":1,"input_type":"query")", "/rerank"));
  EXPECT_THAT(log.text(), HasSubstr("ignored, like such fields in later lines: body.input_type"));
}

// Whatever happens to a line, it gives one IncomingRequest of its number and never an exception; and a line that is
// not touched keeps being accepted.
TEST(RequestParser, MutatedLinesNeverThrow) {
  const CapturedLog log;
  std::mt19937 random(20240607);
  const std::string seeds[] = {
      line_with(R"("prompt":[4,5,6],"max_tokens":3,"logprobs":2,"echo":true,"stop":["a\u00e9\ud83d\ude00"])"),
      line_with(R"("prompt":[1e0,2],"logit_bias":{"5":-1.5},"arrival":[[[{}]]],"n":1,"temperature":0.0)"),
      "\xEF\xBB\xBF" + line_with("\"prompt\":\"\xC3\xA9t\xC3\xA9\",\"user\":\"\\\"\\\\\\/\\b\"")};
  const std::string bytes = std::string("{}[]\",:\\u0dDe+-.Nn\x80\xC3\xED\xF0 \t\r") + '\0';
  const auto pick = [&random](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  };
  RequestParser parser = fresh_parser();
  int refused = 0;
  for (RequestId number = 0; number < 3000; ++number) {
    std::string line = seeds[pick(3)];
    for (std::size_t edits = pick(4) + 1; edits > 0; --edits) {
      const std::size_t at = pick(line.size());
      switch (pick(4)) {
        case 0:
          line[at] = bytes[pick(bytes.size())];
          break;
        case 1:
          line.insert(at, 1, bytes[pick(bytes.size())]);
          break;
        case 2:
          line.erase(at, pick(8) + 1);
          break;
        default:
          line.resize(at + 1);
          break;
      }
      if (line.empty()) line.push_back('x');
    }
    const auto incoming = parser.parse(number, line);
    EXPECT_EQ(incoming.line, number);
    const auto* failure = std::get_if<RequestFailure>(&incoming.content);
    if (failure == nullptr) continue;
    ++refused;
    EXPECT_FALSE(failure->code.empty());
    EXPECT_FALSE(failure->message.empty());
    EXPECT_LT(failure->message.size(), 500u);
  }
  EXPECT_GT(refused, 2500);
  EXPECT_TRUE(
      std::holds_alternative<RequestParts>(parser.parse(9999, line_with(R"("prompt":[4])", "untouched")).content));
}

}  // namespace
}  // namespace computron

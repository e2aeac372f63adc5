#include "computron/requests/result_format.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using nlohmann::json;
using testing::ElementsAre;

ScoredToken plain(TokenId token) { return {.token = token, .has_logprob = false, .logprob = 0, .top = {}}; }

IncomingRequest request_with(int logprobs, bool echo = false) {
  Request request;
  request.id = 12;
  request.logprobs = logprobs;
  request.echo = echo;
  IncomingRequest incoming;
  incoming.line = 12;
  incoming.custom_id = "r";
  incoming.model = "opt-a";
  incoming.text.logprobs = logprobs;
  incoming.text.echo = echo;
  incoming.content = RequestParts{request};
  return incoming;
}

std::string format_one(const IncomingRequest& request, const Completion& completion) {
  return format_result(request, std::span(&completion, 1), ModelConfig{});
}

Completion two_tokens() {
  Completion completion;
  completion.id = 12;
  completion.tokens = {plain(7), plain(9)};
  completion.finish_reason = FinishReason::kStop;
  completion.prompt_tokens = 5;
  completion.generated_tokens = 3;
  return completion;
}

template <class Json>
std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) names.push_back(key);
  return names;
}

TEST(FormatCompletion, IsTheBatchFormat) {
  const std::string text = format_one(request_with(-1), two_tokens());
  EXPECT_THAT(keys(nlohmann::ordered_json::parse(text)), ElementsAre("id", "custom_id", "response", "error"));
  const auto line = json::parse(text);
  EXPECT_EQ(line["id"], "batch_req_12");
  EXPECT_EQ(line["custom_id"], "r");
  EXPECT_TRUE(line["error"].is_null());
  EXPECT_EQ(line["response"]["status_code"], 200);
  EXPECT_EQ(line["response"]["request_id"], "req_12");
  const auto& body = line["response"]["body"];
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["created"], 0);
  EXPECT_EQ(body["model"], "opt-a");
  EXPECT_EQ(body["usage"], (json{{"prompt_tokens", 5}, {"completion_tokens", 3}, {"total_tokens", 8}}));
  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0], json::parse(R"({"index":0,"text":"","token_ids":[7,9],"finish_reason":"stop",
                                               "logprobs":null})"));
}

TEST(FormatCompletion, IsOneLine) {
  auto request = request_with(-1);
  request.custom_id = "a\n\"\\\x01\xC3\xA9\xF0\x9F\x98\x80";
  const std::string line = format_one(request, two_tokens());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(json::parse(line)["custom_id"], *request.custom_id);
}

TEST(FormatCompletion, NothingGenerated) {
  Completion completion;
  const auto choice = json::parse(format_one(request_with(0), completion))["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["token_ids"], json::array());
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["top_logprobs"], json::array());
}

TEST(FormatCompletion, LogprobsWhenAskedFor) {
  Completion completion;
  completion.tokens = {{.token = 7, .has_logprob = true, .logprob = -0.5f, .top = {{7, -0.5f}, {3, -1.25f}}},
                       {.token = 9,
                        .has_logprob = true,
                        .logprob = 0,
                        .top = {{9, 0.0f}, {4, -std::numeric_limits<float>::infinity()}}}};
  const auto choice = json::parse(format_one(request_with(2), completion))["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["logprobs"], json::parse(R"({"tokens":["token:7","token:9"],"token_ids":[7,9],
      "token_logprobs":[-0.5,0],"top_logprobs":[{"token:7":-0.5,"token:3":-1.25},{"token:9":0,"token:4":-9999}]})"));
}

TEST(FormatCompletion, EchoPutsThePromptFirst) {
  Completion completion;
  completion.prompt = {plain(1), {.token = 2, .has_logprob = true, .logprob = -3, .top = {{5, -1.0f}}}};
  completion.tokens = {{.token = 3, .has_logprob = true, .logprob = -2, .top = {{3, -2.0f}}}};
  const auto choice =
      json::parse(format_one(request_with(1, /*echo=*/true), completion))["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["token_ids"], json({1, 2, 3}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], json::parse("[null,-3,-2]"));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"], json::parse(R"([null,{"token:5":-1},{"token:3":-2}])"));
}

TEST(FormatCompletion, PromptLogprobsAreThoseOfVllm) {
  Completion completion;
  completion.prompt = {plain(1),
                       {.token = 2, .has_logprob = true, .logprob = -3, .top = {{5, -1.0f}, {6, -1.5f}}},
                       {.token = 6, .has_logprob = true, .logprob = -1.5f, .top = {{5, -1.0f}, {6, -1.5f}}},
                       {.token = 5, .has_logprob = true, .logprob = -1, .top = {{5, -1.0f}, {6, -1.5f}}}};
  completion.tokens = {{.token = 3, .has_logprob = true, .logprob = -2, .top = {{3, -2.0f}, {4, -2.5f}}}};
  IncomingRequest request = request_with(2);
  request.text.logprobs = -1;
  request.text.prompt_logprobs = 1;
  const auto body = json::parse(format_one(request, completion))["response"]["body"];
  const auto& choice = body["choices"][0];
  EXPECT_EQ(choice["token_ids"], json({3}));
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["prompt_logprobs"], json::parse(R"([null,
      {"5": {"logprob": -1, "rank": 1, "decoded_token": "token:5"},
       "2": {"logprob": -3, "rank": null, "decoded_token": "token:2"}},
      {"5": {"logprob": -1, "rank": 1, "decoded_token": "token:5"},
       "6": {"logprob": -1.5, "rank": 2, "decoded_token": "token:6"}},
      {"5": {"logprob": -1, "rank": 1, "decoded_token": "token:5"}}])"));
  EXPECT_FALSE(body.contains("prompt_logprobs"));
  request.text.chat = true;
  request.text.logprobs = 1;
  const auto chat = json::parse(format_one(request, completion))["response"]["body"];
  EXPECT_EQ(chat["prompt_logprobs"], choice["prompt_logprobs"]);
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"].size(), 1u);
}

// Every float32 must come back as itself, and in no more digits than that takes.
TEST(FormatCompletion, FloatsRoundTrip) {
  std::mt19937 random(5);
  Completion completion;
  for (int i = 0; i < 2000; ++i) {
    float value = 0;
    const auto bits = static_cast<std::uint32_t>(random());
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value))
      completion.tokens.push_back({.token = 1, .has_logprob = true, .logprob = value, .top = {}});
  }
  completion.tokens.push_back({.token = 1, .has_logprob = true, .logprob = -0.1f, .top = {}});
  const std::string line = format_one(request_with(0), completion);
  EXPECT_NE(line.find("-0.1]"), std::string::npos);
  const auto printed = json::parse(line)["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"];
  ASSERT_EQ(printed.size(), completion.tokens.size());
  for (std::size_t i = 0; i < printed.size(); ++i) {
    EXPECT_EQ(static_cast<float>(printed[i].get<double>()), completion.tokens[i].logprob);
  }
}

TEST(FormatFailure, HasStatusCodeMessageAndLine) {
  IncomingRequest request;
  request.line = 3;
  const auto line = json::parse(format_failure(request, {404, "model_not_found", "no \"x\""}));
  EXPECT_EQ(line, json::parse(R"({"id":"batch_req_3","custom_id":null,
      "response":{"status_code":404,"request_id":"req_3","body":null},
      "error":{"code":"model_not_found","message":"no \"x\"","line":3}})"));
}

TEST(FormatFailure, OutputIsUtf8WhateverTheMessage) {
  IncomingRequest request;
  request.custom_id = "\xFF\xFE";
  const auto line = json::parse(format_failure(request, {400, "invalid_json", "last read: '\xC3'"}));
  EXPECT_EQ(line["error"]["message"], "last read: '\xEF\xBF\xBD'");
}

TEST(FormatFailure, FailedCompletionsAreFailures) {
  Completion completion = two_tokens();
  const auto status = [&completion](const std::string& code) {
    completion.error_code = code;
    completion.error_message = "why";
    const auto line = json::parse(format_one(request_with(-1), completion));
    EXPECT_TRUE(line["response"]["body"].is_null());
    EXPECT_EQ(line["error"], (json{{"code", code}, {"message", "why"}, {"line", 12}}));
    return line["response"]["status_code"].get<int>();
  };
  EXPECT_EQ(status("context_length_exceeded"), 400);
  EXPECT_EQ(status("numerical_error"), 500);
  EXPECT_EQ(status("guide_dead_end"), 500);
  EXPECT_EQ(status("model_not_found"), 404);
  EXPECT_EQ(status("deadline_exceeded"), 504);
}

// --- Encoders ---------------------------------------------------------------------------------------------------

IncomingRequest encoder_request(Task task, std::size_t inputs) {
  IncomingRequest incoming = request_with(-1);
  auto& parts = std::get<RequestParts>(incoming.content);
  parts.resize(inputs);
  for (Request& part : parts) part.task = task;
  return incoming;
}

Completion encoded(std::vector<float> values, int tokens) {
  Completion completion;
  completion.values = std::move(values);
  completion.prompt_tokens = tokens;
  return completion;
}

TEST(FormatEmbedding, IsOpenAis) {
  const std::vector<Completion> parts = {encoded({0.5f, -0.1f, 1e-20f}, 4), encoded({1, 2, 3}, 6)};
  const std::string text = format_result(encoder_request(Task::kEmbed, 2), parts, {});
  const auto line = json::parse(text);
  EXPECT_EQ(line["response"]["status_code"], 200);
  EXPECT_EQ(line["response"]["body"], json::parse(R"({"object":"list","model":"opt-a","data":[
      {"object":"embedding","index":0,"embedding":[0.5,-0.1,1e-20]},
      {"object":"embedding","index":1,"embedding":[1,2,3]}],
      "usage":{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10}})"));
  EXPECT_NE(text.find("[0.5,-0.1,1e-20]"), std::string::npos) << "the shortest digits";
}

TEST(FormatEmbedding, InBase64ItIsLittleEndianFloats) {
  IncomingRequest request = encoder_request(Task::kEmbed, 1);
  request.pooled.base64 = true;
  const auto line = json::parse(format_one(request, encoded({1, -2}, 1)));
  EXPECT_EQ(line["response"]["body"]["data"][0]["embedding"], "AACAPwAAAMA=");
}

TEST(FormatClassification, IsVllms) {
  ModelConfig config;
  config.classes = 3;
  const std::vector<Completion> parts = {encoded({0, 1000, 999}, 4), encoded({2, 2, 2}, 5)};
  const auto body = json::parse(format_result(encoder_request(Task::kClassify, 2), parts, config))["response"]["body"];
  EXPECT_THAT(keys(body), ElementsAre("created", "data", "id", "model", "object", "usage"));
  EXPECT_EQ(body["id"], "classify-12");
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["usage"]["total_tokens"], 9);
  const auto& first = body["data"][0];
  EXPECT_EQ(first["label"], "LABEL_1");
  EXPECT_EQ(first["num_classes"], 3);
  EXPECT_EQ(first["probs"][0], 0);
  EXPECT_NEAR(first["probs"][1].get<double>(), 0.7310585786, 1e-7);
  EXPECT_NEAR(first["probs"][2].get<double>(), 0.2689414214, 1e-7);
  EXPECT_EQ(body["data"][1]["index"], 1);
  EXPECT_EQ(body["data"][1]["label"], "LABEL_0") << "of equals the first";
  config.class_names = {"cat", "d\"og", "owl"};
  const auto named = json::parse(format_result(encoder_request(Task::kClassify, 2), parts, config));
  EXPECT_EQ(named["response"]["body"]["data"][0]["label"], "d\"og");
}

TEST(FormatEmbedding, CutItHasLengthOneAgainWhereTheModelsHave) {
  IncomingRequest request = encoder_request(Task::kEmbed, 1);
  request.pooled.dimensions = 2;
  ModelConfig config;
  const auto embedding = [&] {
    const std::vector<Completion> parts = {encoded({0.3f, 0.4f, 0.5f}, 4)};
    return json::parse(format_result(request, parts, config))["response"]["body"]["data"][0]["embedding"];
  };
  EXPECT_EQ(embedding(), json::parse("[0.3,0.4]"));
  config.normalize_embedding = true;
  EXPECT_EQ(embedding(), json::parse("[0.6,0.8]"));
  request.pooled.dimensions = 3;
  EXPECT_EQ(embedding(), json::parse("[0.3,0.4,0.5]")) << "what is whole is as the ranks gave it";
}

TEST(FormatClassification, ProbabilitiesAreAsTheModelSays) {
  ModelConfig config;
  config.classes = 2;
  const std::vector<Completion> parts = {encoded({0, -2}, 4)};
  IncomingRequest request = encoder_request(Task::kClassify, 1);
  const auto probs = [&] {
    return json::parse(format_result(request, parts, config))["response"]["body"]["data"][0]["probs"];
  };
  config.class_scores = ClassScores::kSigmoid;
  EXPECT_EQ(probs()[0], 0.5);
  EXPECT_NEAR(probs()[1].get<double>(), 0.1192029220, 1e-7);
  config.class_scores = ClassScores::kRaw;
  EXPECT_EQ(probs(), json::parse("[0,-2]"));
  config.class_scores = ClassScores::kSoftmax;
  EXPECT_NEAR(probs()[0].get<double>(), 0.8807970780, 1e-7);
  request.pooled.activation = false;
  EXPECT_EQ(probs(), json::parse("[0,-2]"));
}

TEST(FormatScores, AreVllmsOfTheOneClass) {
  ModelConfig config;
  config.classes = 1;
  config.class_scores = ClassScores::kSigmoid;
  IncomingRequest request = encoder_request(Task::kClassify, 2);
  request.pooled.form = PooledOutput::kScores;
  const std::vector<Completion> parts = {encoded({0}, 4), encoded({30}, 5)};
  EXPECT_EQ(json::parse(format_result(request, parts, config))["response"]["body"],
            json::parse(R"({"id":"score-12","object":"list","created":0,"model":"opt-a","data":[
      {"index":0,"object":"score","score":0.5},{"index":1,"object":"score","score":1}],
      "usage":{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}})"));
  request.pooled.activation = false;
  EXPECT_EQ(json::parse(format_result(request, parts, config))["response"]["body"]["data"][1]["score"], 30);
}

// Of folders whose problem_type is single_label_classification, and of checkpoints that do not say what scores are.
TEST(FormatScores, TheSoftmaxOfOneClassIsItsSigmoid) {
  const std::vector<Completion> parts = {encoded({0}, 4), encoded({-2}, 5)};
  IncomingRequest request = encoder_request(Task::kClassify, 2);
  const auto data = [&](const ModelConfig& config) {
    return json::parse(format_result(request, parts, config))["response"]["body"]["data"];
  };
  ModelConfig silent, said;
  silent.classes = said.classes = 1;
  said.class_scores = ClassScores::kSoftmax;
  for (const ModelConfig& config : {silent, said}) {
    request.pooled.form = PooledOutput::kScores;
    EXPECT_EQ(data(config)[0]["score"], 0.5);
    EXPECT_NEAR(data(config)[1]["score"].get<double>(), 0.1192029220, 1e-7);
    request.pooled.form = encoder_request(Task::kClassify, 2).pooled.form;
    EXPECT_NEAR(data(config)[1]["probs"][0].get<double>(), 0.1192029220, 1e-7);
  }
}

TEST(FormatScores, AreCosinesOfEmbeddings) {
  IncomingRequest request = encoder_request(Task::kEmbed, 4);
  request.pooled.form = PooledOutput::kScores;
  const std::vector<Completion> parts = {encoded({2, 0}, 1), encoded({0, 5}, 1), encoded({3, 4}, 1),
                                         encoded({0, 0}, 1)};
  const auto scores = [&](std::size_t firsts) {
    request.pooled.firsts = firsts;
    json values = json::array();
    const json line = json::parse(format_result(request, parts, {}));
    for (const json& entry : line["response"]["body"]["data"]) values.push_back(entry["score"]);
    return values;
  };
  EXPECT_EQ(scores(1), json::parse("[0,0.6,0]")) << "one for all";
  EXPECT_EQ(scores(2), json::parse("[0.6,0]")) << "one each";
}

TEST(FormatRanking, IsVllmsBestFirst) {
  IncomingRequest request = encoder_request(Task::kEmbed, 4);
  request.pooled.form = PooledOutput::kRanking;
  request.pooled.firsts = 1;
  request.pooled.documents = {"a", "b", "\"c\""};
  const std::vector<Completion> parts = {encoded({1, 0}, 1), encoded({3, 4}, 2), encoded({0, 1}, 3),
                                         encoded({3, 4}, 4)};
  const auto body = [&] { return json::parse(format_result(request, parts, {}))["response"]["body"]; };
  EXPECT_EQ(body(), json::parse(R"({"id":"rerank-12","model":"opt-a",
      "usage":{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10},"results":[
      {"index":0,"document":{"text":"a"},"relevance_score":0.6},
      {"index":2,"document":{"text":"\"c\""},"relevance_score":0.6},
      {"index":1,"document":{"text":"b"},"relevance_score":0}]})"));
  request.pooled.top_n = 1;
  request.pooled.documents.clear();
  EXPECT_EQ(body()["results"], json::parse(R"([{"index":0,"relevance_score":0.6}])"));
}

TEST(FormatFailure, OneInputThatFailsFailsTheRequest) {
  std::vector<Completion> parts = {encoded({1}, 4), encoded({}, 4)};
  parts[1].error_code = "numerical_error";
  parts[1].error_message = "why";
  const auto line = json::parse(format_result(encoder_request(Task::kEmbed, 2), parts, {}));
  EXPECT_TRUE(line["response"]["body"].is_null());
  EXPECT_EQ(line["error"], (json{{"code", "numerical_error"}, {"message", "input 1: why"}, {"line", 12}}));
}

}  // namespace
}  // namespace computron

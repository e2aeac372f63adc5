// Requests that give text, and results that are text.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "computron/requests/request_reader.h"
#include "computron/requests/result_format.h"
#include "tests/requests/requests_support.h"
#include "tests/text/text_support.h"

namespace computron {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Tokenizer> tokenizer(const std::string& kind) {
  return std::make_shared<const Tokenizer>(test::tokenizer_files(kind));
}

// A decoder with a tokenizer, one without and one that cannot be used.
class TextRequests : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    llama_ = tokenizer("llama3");
    gpt2_ = tokenizer("gpt2");
  }
  TextRequests() {
    for (const char* id : {"llama", "gpt2", "plain", "broken", "small"}) models_.push_back(decoder(id, 1200, 64));
    models_[0].tokenizer = llama_;
    models_[1].tokenizer = gpt2_;
    models_[3].tokenizer_fault = "tokenizer.json: model.type: the model 'Unigram' is not supported";
    models_[4].config.vocab = 50;
    models_[4].tokenizer = gpt2_;
  }

  IncomingRequest parse(const json& body, const std::string& url = "/v1/completions") {
    const json line{{"custom_id", fmt::format("r{}", ++lines_)}, {"method", "POST"}, {"url", url}, {"body", body}};
    return RequestParser(models_, {}).parse(3, line.dump());
  }
  RequestParts accepted(const json& body, const std::string& url = "/v1/completions") {
    incoming_ = parse(body, url);
    const auto* failure = std::get_if<RequestFailure>(&incoming_.content);
    if (failure != nullptr) throw std::runtime_error(failure->code + ": " + failure->message);
    return std::get<RequestParts>(incoming_.content);
  }
  void refused(const json& body, const std::string& code, const std::string& part,
               const std::string& url = "/v1/completions") {
    const IncomingRequest incoming = parse(body, url);
    const auto* failure = std::get_if<RequestFailure>(&incoming.content);
    ASSERT_NE(failure, nullptr) << body;
    EXPECT_EQ(failure->code, code);
    EXPECT_THAT(failure->message, HasSubstr(part));
  }
  static std::vector<TokenId> encoded(const std::string& text, bool special = true) {
    return Encoder(*llama_).encode(text, special);
  }
  // The body of the result of a line whose parts got these tokens, as the last accepted() had it.
  json result(const std::vector<std::vector<TokenId>>& tokens, FinishReason reason = FinishReason::kLength) {
    std::vector<Completion> completions;
    const auto& parts = std::get<RequestParts>(incoming_.content);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Completion& done = completions.emplace_back();
      done.id = incoming_.line;
      done.finish_reason = reason;
      done.prompt_tokens = static_cast<int>(parts[i].prompt.size());
      done.generated_tokens = static_cast<int>(tokens[i].size());
      if (parts[i].echo) done.prompt = scored(parts[i].prompt);
      done.tokens = scored(tokens[i]);
    }
    return json::parse(format_result(incoming_, completions, models_[0].config)).at("response").at("body");
  }
  static std::vector<ScoredToken> scored(const std::vector<TokenId>& tokens) {
    std::vector<ScoredToken> list;
    for (const TokenId token : tokens) {
      list.push_back({.token = token, .has_logprob = true, .logprob = -1, .top = {{token, -1.0f}, {0, -2.0f}}});
    }
    return list;
  }

  static std::shared_ptr<const Tokenizer> llama_, gpt2_;
  std::vector<ServedModel> models_;
  IncomingRequest incoming_;
  int lines_ = 0;
};
std::shared_ptr<const Tokenizer> TextRequests::llama_, TextRequests::gpt2_;

TEST_F(TextRequests, ATextIsItsTokens) {
  const RequestParts parts = accepted({{"model", "llama"}, {"prompt", "Hello, w\u00F6rld"}});
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].prompt, encoded("Hello, w\u00F6rld"));
  EXPECT_EQ(parts[0].prompt.front(), llama_->token_id("<|begin_of_text|>"));
  EXPECT_EQ(parts[0].watch, nullptr);
}

TEST_F(TextRequests, EveryPromptHasItsChoices) {
  const RequestParts parts =
      accepted({{"model", "llama"}, {"prompt", {"one", "two"}}, {"n", 2}, {"return_token_ids", true}});
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].prompt, encoded("one"));
  EXPECT_EQ(parts[1].prompt, encoded("one"));
  EXPECT_EQ(parts[2].prompt, encoded("two"));
  EXPECT_EQ(parts[3].part, 3u);
  const std::vector<TokenId> x = encoded(" x", false);
  const json body = result({x, x, x, x});
  EXPECT_EQ(body.at("choices").size(), 4u);
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["choices"][3]["text"], " x");
  EXPECT_EQ(body["choices"][2]["prompt_token_ids"], json(encoded("two")));
  EXPECT_EQ(body["usage"]["prompt_tokens"], encoded("one").size() + encoded("two").size());
}

TEST_F(TextRequests, ListsOfTokensAreManyPromptsToo) {
  const RequestParts parts = accepted({{"model", "plain"}, {"prompt", {{4, 5}, {6}}}});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_THAT(parts[0].prompt, ElementsAre(4, 5));
  EXPECT_THAT(parts[1].prompt, ElementsAre(6));
}

TEST_F(TextRequests, TextsThatCannotBeTaken) {
  refused({{"model", "plain"}, {"prompt", "a"}}, "invalid_request", "the checkpoint of plain carries no tokenizer");
  refused({{"model", "plain"}, {"prompt", {"a", "b"}}}, "invalid_request", "body.prompt[0]: text is not accepted");
  refused({{"model", "plain"}, {"prompt", {4}}, {"stop", "a"}}, "invalid_request", "body.stop: text is not accepted");
  refused({{"model", "broken"}, {"prompt", "a"}}, "invalid_request", "the model 'Unigram' is not supported");
  refused({{"model", "small"}, {"prompt", "hello there"}}, "invalid_request", "beyond the model's 50");
  refused({{"model", "gpt2"}, {"prompt", ""}}, "invalid_parameter", "body.prompt: the text has no tokens");
  refused({{"model", "llama"}, {"prompt", std::string(200, '.') + " long long"}}, "context_length_exceeded",
          "64 positions of llama");
  refused({{"model", "llama"}, {"prompt", json::array({"a", 5})}}, "invalid_request", "body.prompt[0]: prompts are");
  refused({{"model", "llama"}, {"prompt", "a"}, {"stop", json::array({"x", 5})}}, "invalid_parameter",
          "body.stop: must be");
  refused({{"model", "llama"}, {"prompt", "a"}, {"stop", {"x", ""}}}, "invalid_parameter",
          "body.stop: texts must have 1 to");
}

TEST_F(TextRequests, AStopStringEndsTheSequenceAndTheText) {
  const RequestParts parts = accepted({{"model", "llama"}, {"prompt", "a"}, {"stop", {"three", "two"}}, {"n", 2}});
  const std::vector<TokenId> tokens = encoded("one two three", false);
  ASSERT_NE(parts[0].watch, nullptr);
  ASSERT_NE(parts[0].watch, parts[1].watch);
  std::vector<TokenId> until;
  for (const TokenId token : tokens) {
    until.push_back(token);
    if (parts[0].watch->ends_with(token)) break;
  }
  EXPECT_LT(until.size(), tokens.size());
  const json body = result({until, encoded("four", false)}, FinishReason::kStop);
  EXPECT_EQ(body["choices"][0]["text"], "one ");
  EXPECT_EQ(body["choices"][0]["token_ids"], json(until));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], until.size() + encoded("four", false).size());
}

TEST_F(TextRequests, LogprobsSayWhatTokensAddAndWhere) {
  accepted({{"model", "llama"}, {"prompt", "a\u00E9"}, {"echo", true}, {"logprobs", 2}, {"max_tokens", 4}});
  const std::vector<TokenId> prompt = encoded("a\u00E9");
  const json body = result({encoded(" b\u20AC.", false)});
  const json& choice = body["choices"][0];
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(choice["text"], "a\u00E9 b\u20AC.");
  EXPECT_EQ(logprobs["tokens"].size(), logprobs["text_offset"].size());
  EXPECT_EQ(logprobs["tokens"][0], "<|begin_of_text|>");
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["tokens"].back(), ".");
  EXPECT_EQ(logprobs["text_offset"].back(), 5);  // characters, not bytes
  EXPECT_EQ(logprobs["top_logprobs"].back()["."], -1);
  const auto tokens = logprobs["tokens"].get<std::vector<std::string>>();
  EXPECT_THAT(tokens, testing::Contains(testing::StartsWith("bytes:\\x")));
}

TEST_F(TextRequests, OffsetsFitTheTextWhereTheEchoIsNotThePromptAsGiven) {
  accepted({{"model", "llama"}, {"prompt", "a<|eot_id|>b"}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 4}});
  const json body = result({encoded("c", false)});
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "abc");  // the token in the middle is no text
  EXPECT_EQ(choice["logprobs"]["text_offset"], json({0, 0, 1, 1, 2}));
  accepted({{"model", "llama"}, {"prompt", "a<|eot_id|>b"}, {"echo", true}, {"max_tokens", 4}});
  EXPECT_EQ(result({encoded("c", false)})["choices"][0]["text"], "a<|eot_id|>bc");
}

TEST_F(TextRequests, AChatIsAPromptInTheModelsFormat) {
  const json messages = {{{"role", "user"}, {"content", "Hi"}}};
  const RequestParts parts = accepted(
      {{"model", "llama"}, {"messages", messages}, {"logprobs", true}, {"top_logprobs", 2}}, "/v1/chat/completions");
  EXPECT_EQ(parts[0].prompt, encoded("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                                     "<|start_header_id|>assistant<|end_header_id|>\n\n",
                                     false));
  EXPECT_THAT(parts[0].stop_tokens, ElementsAre(llama_->token_id("<|eot_id|>").value()));
  EXPECT_EQ(parts[0].max_tokens, 64 - static_cast<int>(parts[0].prompt.size()));
  const json body = result({encoded("Yes.", false)}, FinishReason::kStop);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["id"], "chatcmpl-3");
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"], json({{"role", "assistant"}, {"content", "Yes."}}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_FALSE(choice.contains("text"));
  const json& last = choice["logprobs"]["content"].back();
  EXPECT_EQ(last["token"], ".");
  EXPECT_EQ(last["bytes"], json({46}));
  EXPECT_EQ(last["top_logprobs"][0]["logprob"], -1);
}

TEST_F(TextRequests, ChatsThatCannotBeTaken) {
  const std::string url = "/v1/chat/completions";
  const json hi = {{{"role", "user"}, {"content", "Hi"}}};
  refused({{"model", "gpt2"}, {"messages", hi}}, "invalid_request",
          "gpt2 has no chat format: there is no chat template", url);
  refused({{"model", "plain"}, {"messages", hi}}, "invalid_request", "body.messages: text is not accepted", url);
  refused({{"model", "llama"}}, "invalid_request", "body.messages: missing", url);
  refused({{"model", "llama"}, {"messages", json::array()}}, "invalid_request", "body.messages: must be a list of 1",
          url);
  const json many(2049, hi[0]);
  refused({{"model", "llama"}, {"messages", many}}, "invalid_request", "1 to 2048 messages (got 2049)", url);
  refused({{"model", "llama"}, {"messages", {5}}}, "invalid_request", "every message must be an object", url);
  refused({{"model", "llama"}, {"messages", {{{"role", "tool"}, {"content", "x"}}}}}, "invalid_request",
          "body.messages[0]: the role 'tool': tools are not served", url);
  refused({{"model", "llama"}, {"messages", {hi[0], {{"role", "user"}}}}}, "invalid_request",
          "body.messages[1].content: missing", url);
  refused({{"model", "llama"}, {"messages", hi}, {"max_tokens", 64}}, "context_length_exceeded", "body.messages", url);
  refused({{"model", "llama"}, {"messages", hi}, {"tools", {{{"type", "function"}}}}}, "invalid_parameter",
          "body.tools: not served", url);
  refused({{"model", "llama"}, {"messages", hi}, {"top_logprobs", 2}}, "invalid_parameter", "body.top_logprobs", url);
}

TEST_F(TextRequests, EncodersTakeTextsAndPairs) {
  ServedModel bert = models_[0];
  bert.id = "bert";
  bert.config.causal = false;
  bert.config.token_types = 2;
  bert.config.vocab = 1800;
  bert.tokenizer = tokenizer("bert-uncased");
  models_.push_back(bert);
  Encoder encoder(*bert.tokenizer);
  const auto embed = [&](const json& input) {
    return accepted({{"model", "bert"}, {"input", input}}, "/v1/embeddings");
  };
  EXPECT_EQ(embed("Hello there").at(0).prompt, encoder.encode("Hello there"));
  EXPECT_EQ(embed({"a", "b c"}).at(1).prompt, encoder.encode("b c"));
  const RequestParts pairs = embed(json::array({json::array({"a", "b c"})}));
  const EncodedPair expected = encoder.encode_pair("a", "b c");
  EXPECT_EQ(pairs.at(0).prompt, expected.tokens);
  EXPECT_EQ(pairs.at(0).token_type_ids, expected.token_type_ids);
  const std::string url = "/v1/embeddings";
  refused({{"model", "bert"}, {"input", {{"a", "b", "c"}}}}, "invalid_request",
          "body.input[0]: a pair must be two texts", url);
  refused({{"model", "bert"}, {"input", json::array({"a", nullptr})}}, "invalid_request", "not all its items are texts",
          url);
  refused({{"model", "bert"}, {"input", json::array({"a", 5})}}, "invalid_request", "body.input[0]: must be an integer",
          url);
  refused({{"model", "bert"}, {"input", "a"}, {"token_type_ids", {0}}}, "invalid_request",
          "body.token_type_ids: goes with token ids", url);
  models_.back().tokenizer = nullptr;
  refused({{"model", "bert"}, {"input", {"a"}}}, "invalid_request", "carries no tokenizer", url);
}

}  // namespace
}  // namespace computron

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

// An embedder with prompts and a cross-encoder, of BERT's vocabulary.
class PooledRequests : public TextRequests {
 protected:
  PooledRequests() : bert_(tokenizer("bert-uncased")), encoder_(*bert_) {
    ServedModel model = models_[0];
    model.id = "embedder";
    model.config.causal = false;
    model.config.token_types = 2;
    model.config.hidden = 12;
    model.config.vocab = 1800;
    model.config.prompts = {{"query", "find: "}, {"passage", "text: "}, {"other", ""}};
    model.config.default_prompt = "passage";
    model.tokenizer = bert_;
    models_.push_back(model);
    model.id = "cross";
    model.config.prompts.clear();
    model.config.default_prompt.clear();
    model.config.classes = 1;
    models_.push_back(model);
  }

  std::vector<TokenId> prompt(const json& more) {
    json body{{"model", "embedder"}, {"input", "a dog"}};
    body.update(more);
    return accepted(body, "/v1/embeddings").at(0).prompt;
  }

  std::shared_ptr<const Tokenizer> bert_;
  Encoder encoder_;
};

TEST_F(PooledRequests, PromptsStandBeforeTexts) {
  EXPECT_EQ(prompt(json::object()), encoder_.encode("text: a dog")) << "by default";
  EXPECT_EQ(prompt({{"input_type", "query"}}), encoder_.encode("find: a dog"));
  EXPECT_EQ(prompt({{"input_type", "document"}}), encoder_.encode("text: a dog")) << "another name of passage";
  EXPECT_EQ(prompt({{"input_type", "search_query"}}), encoder_.encode("find: a dog"));
  EXPECT_EQ(prompt({{"prompt_name", "other"}}), encoder_.encode("a dog"));
  const std::string url = "/v1/embeddings";
  const auto refused_with = [&](const json& more, const std::string& code, const std::string& part) {
    json body{{"model", "embedder"}, {"input", "a dog"}};
    body.update(more);
    refused(body, code, part, url);
  };
  refused_with({{"input_type", "clustering"}}, "invalid_parameter",
               "body.input_type: embedder has no prompt 'clustering'; it has other, passage, query");
  refused_with({{"prompt_name", "document"}}, "invalid_parameter", "body.prompt_name: embedder has no prompt");
  refused_with({{"prompt_name", 5}}, "invalid_request", "body.prompt_name: must be a string (got 5)");
  refused_with({{"prompt_name", "query"}, {"input_type", "query"}}, "invalid_request",
               "body.prompt_name: goes without body.input_type");
  refused_with({{"model", "cross"}, {"input_type", "query"}}, "invalid_parameter", "its checkpoint has none");
  refused_with({{"input", {5, 6}}, {"input_type", "query"}}, "invalid_request",
               "body.input_type: goes with texts, not with token ids");
}

// Of models whose positions begin behind it.
TEST_F(PooledRequests, PaddingIsNoInput) {
  EXPECT_EQ(prompt({{"input", {5, 1, 6}}}), (std::vector<TokenId>{5, 1, 6}));
  models_[5].config.position_offset = 2;
  EXPECT_EQ(prompt({{"input", {5, 6}}}), (std::vector<TokenId>{5, 6}));
  refused({{"model", "embedder"}, {"input", {{5, 6}, {5, 1, 6}}}}, "invalid_parameter",
          "body.input[1]: token 1 is padding", "/v1/embeddings");
  models_[5].config.position_offset = *bert_->token_id("[PAD]") + 1;
  refused({{"model", "embedder"}, {"input", "a [PAD] dog"}}, "invalid_parameter", "body.input: token 0 is padding",
          "/v1/embeddings");
}

TEST_F(PooledRequests, TextsAreCutWithTheirSpecialTokensCounted) {
  const std::vector<TokenId> whole = encoder_.encode("text: a dog");
  const std::vector<TokenId> cut = prompt({{"truncate_prompt_tokens", 4}});
  EXPECT_EQ(cut, (std::vector<TokenId>{whole[0], whole[1], whole[2], whole.back()}));
  EXPECT_EQ(prompt({{"truncate_prompt_tokens", 3}, {"truncation_side", "left"}}),
            (std::vector<TokenId>{whole[0], whole[whole.size() - 2], whole.back()}));
  models_[5].config.max_input_tokens = 4;
  EXPECT_EQ(prompt(json::object()), cut) << "as sentence-transformers does";
  refused({{"model", "embedder"}, {"input", "a"}, {"truncate_prompt_tokens", 2}}, "invalid_parameter",
          "body.input: cut to 2 tokens, it has no room beside its 2 special tokens", "/v1/embeddings");
  refused({{"model", "embedder"}, {"input", "a"}, {"truncate_prompt_tokens", 5}}, "invalid_parameter",
          "body.truncate_prompt_tokens: must be an integer from -1 to 4 (got 5)", "/v1/embeddings");
  models_[5].config.max_input_tokens = 0;
  models_[5].config.lower_case = true;
  models_[5].tokenizer = tokenizer("bert-cased");
  Encoder cased(*models_[5].tokenizer);
  EXPECT_EQ(prompt({{"input", "A DOG"}, {"prompt_name", "other"}}), cased.encode("a dog"));
}

TEST_F(PooledRequests, ScoresOfACrossEncoderAreOfPairs) {
  const auto scored = [&](const json& first, const json& second) {
    return accepted({{"model", "cross"}, {"text_1", first}, {"text_2", second}}, "/v1/score");
  };
  const RequestParts one = scored("a", {"b c", "d"});
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0].task, Task::kClassify);
  EXPECT_EQ(one[0].values, 1);
  EXPECT_EQ(one[0].prompt, encoder_.encode_pair("a", "b c").tokens);
  EXPECT_EQ(one[0].token_type_ids, encoder_.encode_pair("a", "b c").token_type_ids);
  EXPECT_EQ(one[1].prompt, encoder_.encode_pair("a", "d").tokens);
  EXPECT_EQ(incoming_.pooled.form, PooledOutput::kScores);
  EXPECT_EQ(incoming_.pooled.firsts, 0u);
  EXPECT_EQ(scored({"a", "e"}, {"b", "d"})[1].prompt, encoder_.encode_pair("e", "d").tokens);
  EXPECT_EQ(accepted({{"model", "cross"}, {"queries", "a"}, {"documents", {"d"}}}, "/score")[0].prompt,
            encoder_.encode_pair("a", "d").tokens);
  EXPECT_EQ(accepted({{"model", "cross"}, {"data_1", "a"}, {"data_2", "d"}}, "/score").size(), 1u);
  // Of ten tokens three are special: the longer text is cut to what the shorter one leaves, or both.
  const auto cut = [&](const std::string& first, const std::string& second) {
    return encoder_.encode_pair(first, second, {.most = 10}).tokens;
  };
  EXPECT_EQ(
      accepted({{"model", "cross"}, {"text_1", "a b"}, {"text_2", "c d e f g h i"}, {"truncate_prompt_tokens", 10}},
               "/score")[0]
          .prompt,
      encoder_.encode_pair("a b", "c d e f g").tokens);
  EXPECT_EQ(cut("a b c d e f", "g h i j"), encoder_.encode_pair("a b c d", "g h i").tokens);
  EXPECT_EQ(cut("a b c d", "g h i j"), encoder_.encode_pair("a b c", "g h i j").tokens);
}

// Whatever is cut of it in one of them.
TEST_F(PooledRequests, AFirstTextOfManyPairsGivesWhatEachPairGives) {
  const std::string query = "how far is the Moon [SEP] and the sun";
  const std::vector<std::string> documents = {"a", "a dog of the moon and of the sun, a dog", "the [PAD] moon"};
  for (const std::string side : {"left", "right"}) {
    for (const int most : {5, 8, 11, 14, 17, 64}) {
      const RequestParts parts = accepted({{"model", "cross"},
                                           {"query", query},
                                           {"documents", documents},
                                           {"truncate_prompt_tokens", most},
                                           {"truncation_side", side}},
                                          "/rerank");
      ASSERT_EQ(parts.size(), documents.size());
      for (std::size_t i = 0; i < documents.size(); ++i) {
        const EncodedPair expected = encoder_.encode_pair(
            query, documents[i], {.most = static_cast<std::size_t>(most), .keep_end = side == "left"});
        EXPECT_EQ(parts[i].prompt, expected.tokens) << side << ", " << most << ", " << i;
        EXPECT_EQ(parts[i].token_type_ids, expected.token_type_ids) << side << ", " << most << ", " << i;
      }
    }
  }
}

TEST_F(PooledRequests, ScoresOfAnEmbedderAreOfTextsByThemselves) {
  const RequestParts parts = accepted({{"model", "embedder"}, {"text_1", "a"}, {"text_2", {"b", "c"}}}, "/score");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].task, Task::kEmbed);
  EXPECT_EQ(parts[0].values, 12);
  EXPECT_EQ(parts[0].prompt, encoder_.encode("text: a"));
  EXPECT_EQ(parts[2].prompt, encoder_.encode("text: c"));
  EXPECT_EQ(incoming_.pooled.firsts, 1u);
}

TEST_F(PooledRequests, AskedPromptsAreOfBothSidesOfAnEmbeddersScores) {
  const json body{{"model", "embedder"}, {"text_1", "a"}, {"text_2", {"b"}}, {"input_type", "query"}};
  const RequestParts parts = accepted(body, "/score");
  EXPECT_EQ(parts.at(0).prompt, encoder_.encode("find: a"));
  EXPECT_EQ(parts.at(1).prompt, encoder_.encode("find: b"));
  for (const std::string name : {"input_type", "prompt_name"}) {
    const std::string fault = "body." + name + ": goes with texts, not with the pairs of a cross-encoder";
    refused({{"model", "cross"}, {"text_1", "a"}, {"text_2", "b"}, {name, "query"}}, "invalid_request", fault,
            "/score");
    refused({{"model", "cross"}, {"query", "a"}, {"documents", {"b"}}, {name, "query"}}, "invalid_request", fault,
            "/rerank");
  }
}

TEST_F(PooledRequests, ScoresAreChecked) {
  const auto refused_with = [&](const json& more, const std::string& code, const std::string& part) {
    json body{{"model", "cross"}};
    body.update(more);
    refused(body, code, part, "/score");
  };
  refused_with(json::object(), "invalid_request", "body.text_1: missing");
  refused_with({{"text_1", "a"}}, "invalid_request", "body.text_2: missing");
  refused_with({{"text_1", "a"}, {"text_2", json::array()}}, "invalid_request",
               "body.text_2: must be a text or a list of at least one text (got an empty list)");
  refused_with({{"text_1", 5}, {"text_2", "b"}}, "invalid_request", "body.text_1: must be a text or a list");
  refused_with({{"text_1", "a"}, {"text_2", {"b", 5}}}, "invalid_request", "body.text_2: not all its items are texts");
  refused_with({{"text_1", {"a", "b"}}, {"text_2", {"c", "d", "e"}}}, "invalid_request",
               "body.text_1: must be one text, or as many as body.text_2 has, 3 (got 2)");
  refused_with({{"text_1", "a"}, {"text_2", json(2049, "b")}}, "invalid_parameter",
               "body.text_2: at most 2048 texts a request (got 2049)");
  std::string many;
  for (int i = 0; i < 70; ++i) many += "a ";
  refused_with({{"text_1", "a"}, {"text_2", {"b", many}}}, "context_length_exceeded",
               "body.text_2[1]: 74 tokens exceed the 64 positions of cross");
}

TEST_F(PooledRequests, DocumentsAreRankedForAQuery) {
  const json objects = {{{"text", "b"}}, {{"text", "c"}, {"title", "ignored"}}};
  const RequestParts parts =
      accepted({{"model", "embedder"}, {"query", "a"}, {"documents", objects}, {"top_n", 1}}, "/v2/rerank");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].prompt, encoder_.encode("find: a"));
  EXPECT_EQ(parts[2].prompt, encoder_.encode("text: c"));
  EXPECT_EQ(incoming_.pooled.form, PooledOutput::kRanking);
  EXPECT_EQ(incoming_.pooled.top_n, 1u);
  EXPECT_THAT(incoming_.pooled.documents, ElementsAre("b", "c"));
  const json quiet{{"model", "cross"}, {"query", "a"}, {"documents", {"b", "c"}}, {"return_documents", false}};
  EXPECT_EQ(accepted(quiet, "/rerank")[1].prompt, encoder_.encode_pair("a", "c").tokens);
  EXPECT_TRUE(incoming_.pooled.documents.empty());
  const auto refused_with = [&](const json& more, const std::string& code, const std::string& part) {
    json body{{"model", "cross"}, {"query", "a"}, {"documents", {"b"}}};
    body.update(more);
    refused(body, code, part, "/v1/rerank");
  };
  refused_with({{"query", nullptr}}, "invalid_request", "body.query: missing");
  refused_with({{"query", {"a"}}}, "invalid_request", "body.query: must be a string (got a list)");
  refused_with({{"documents", nullptr}}, "invalid_request", "body.documents: missing");
  refused_with({{"documents", {{{"title", "b"}}}}}, "invalid_request", "body.documents[0].text: missing");
  refused_with({{"documents", {{{"text", 5}}}}}, "invalid_request", "body.documents[0].text: must be a string (got 5)");
  refused_with({{"documents", {"b", {{"text", "c"}}}}}, "invalid_request",
               "body.documents: not all its items are texts");
  refused_with({{"top_n", -1}}, "invalid_parameter", "body.top_n: must be an integer from 0 to");
  refused_with({{"return_documents", 1}}, "invalid_parameter", "body.return_documents: must be true or false (got 1)");
}

}  // namespace
}  // namespace computron

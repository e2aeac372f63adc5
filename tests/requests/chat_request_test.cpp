// Conversations as requests give them, and answers with their thoughts.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "computron/requests/request_reader.h"
#include "computron/requests/result_format.h"
#include "tests/requests/chat_support.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class ChatRequests : public testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = test::tokenizer_with_tokens(test::kChatTokens); }
  ChatRequests() {
    for (const char* format : {"llama3", "gpt-oss", "qwen3", "olmo3-think", "gemma2"}) {
      ServedModel& model = models_.emplace_back(decoder(format, 1300, 512));
      model.tokenizer = tokenizer_;
      model.chat_format = format;
    }
  }

  IncomingRequest parse(json body, const std::string& model) {
    body["model"] = model;
    if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
    const json line{{"custom_id", "r"}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", std::move(body)}};
    return RequestParser(models_, {}).parse(3, line.dump());
  }
  // The prompt's text.
  std::string asked(const json& body, const std::string& model) {
    incoming_ = parse(body, model);
    if (const auto* failure = std::get_if<RequestFailure>(&incoming_.content)) return failure->message;
    std::string text;
    for (const TokenId token : std::get<RequestParts>(incoming_.content).at(0).prompt) {
      text += tokenizer_->token_bytes(token);
    }
    return text;
  }
  void refused(const json& body, const std::string& code, const std::string& part,
               const std::string& model = "llama3") {
    const IncomingRequest incoming = parse(body, model);
    const auto* failure = std::get_if<RequestFailure>(&incoming.content);
    ASSERT_NE(failure, nullptr) << body;
    EXPECT_EQ(failure->code, code);
    EXPECT_THAT(failure->message, HasSubstr(part));
  }
  // The message of a result whose tokens are those of `text`, for the conversation asked last.
  json message(const std::string& text) {
    Completion done;
    for (const TokenId token : Encoder(*tokenizer_).encode(text, /*special_tokens=*/false)) {
      done.tokens.push_back({.token = token, .has_logprob = false, .logprob = 0, .top = {}});
    }
    const json line = json::parse(format_result(incoming_, std::span(&done, 1), models_[0].config));
    return line.at("response").at("body").at("choices").at(0).at("message");
  }
  json answer(const std::string& model, const std::string& text, const json& body = json::object()) {
    asked(body, model);
    return message(text);
  }

  static inline std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<ServedModel> models_;
  IncomingRequest incoming_;
};

json said(const json& content, const json& reasoning) {
  return {{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}};
}

TEST_F(ChatRequests, ContentIsATextOrParts) {
  const json parts = {{{"type", "text"}, {"text", "one"}}, {{"text", "two"}, {"type", "text"}}};
  const json messages = {{{"content", parts}, {"role", "user"}},
                         {{"role", "assistant"}, {"content", "Yes?"}},
                         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "three"}}}}}};
  EXPECT_EQ(asked({{"messages", messages}}, "llama3"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\none\ntwo<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nthree<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST_F(ChatRequests, PartsThatCannotBeTaken) {
  const auto with = [](const json& content) { return json{{"messages", {{{"role", "user"}, {"content", content}}}}}; };
  refused(with({{{"type", "text"}, {"text", "a"}}, {{"type", "image_url"}, {"image_url", {{"url", "x"}}}}}),
          "invalid_request", "body.messages[0].content[1]: only parts of the type 'text' are served (got 'image_url')");
  refused(with({{{"type", "image_url"}, {"image_url", {{"url", {1, {2}}}}}}, {{"type", "text"}, {"text", "a"}}}),
          "invalid_request", "body.messages[0].content[0]: only parts");
  refused(with({{{"text", "a"}}}), "invalid_request", "body.messages[0].content[0].type: missing");
  refused(with({{{"type", "text"}, {"text", 5}}}), "invalid_request", "body.messages[0].content[0].text: must be a");
  refused(with({"a"}), "invalid_request", "body.messages[0].content: every part must be an object");
  refused(with(json::array()), "invalid_request", "body.messages[0].content: must hold at least one part");
  refused(with(json(3000, {{"type", "text"}, {"text", "a"}})), "invalid_request", "at most 2048 parts a request");
}

TEST_F(ChatRequests, ToolsAreRefusedByName) {
  const auto with = [](const json& message) { return json{{"messages", {message}}}; };
  refused(with({{"role", "tool"}, {"content", "x"}}), "invalid_request", "the role 'tool': tools are not served");
  refused(with({{"role", "assistant"}, {"content", "x"}, {"tool_calls", {{{"id", "a"}}}}}), "invalid_request",
          "body.messages[0].tool_calls: tools are not served");
  refused({{"tools", {{{"type", "function"}}}}}, "invalid_parameter", "body.tools: not served");
  refused({{"tool_choice", "required"}}, "invalid_parameter", "body.tool_choice: tools are not served");
  refused({{"chat_template", "x"}}, "invalid_parameter", "body.chat_template: not served");
  asked({{"tools", json::array()}, {"tool_choice", "none"}, {"parallel_tool_calls", true}}, "llama3");
  EXPECT_TRUE(std::holds_alternative<RequestParts>(incoming_.content));
}

TEST_F(ChatRequests, TheTemplateIsToldWhatTheRequestSays) {
  EXPECT_THAT(asked({}, "qwen3"), testing::EndsWith("<|im_start|>assistant\n"));
  EXPECT_THAT(asked({{"chat_template_kwargs", {{"enable_thinking", false}}}}, "qwen3"),
              testing::EndsWith("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_THAT(asked({{"reasoning_effort", "high"}}, "gpt-oss"), HasSubstr("Reasoning: high\n"));
  EXPECT_THAT(asked({{"chat_template_kwargs", {{"reasoning_effort", "low"}}}}, "gpt-oss"), HasSubstr("Reasoning: low"));
  EXPECT_THAT(asked({}, "gpt-oss"), HasSubstr("Current date: 2025-08-05\n\nReasoning: medium\n"));
  refused({{"chat_template_kwargs", 5}}, "invalid_parameter", "body.chat_template_kwargs: must be an object (got 5)");
  refused({{"chat_template_kwargs", {{"messages", "x"}}}}, "invalid_parameter",
          "body.chat_template_kwargs.messages: not to be given here");
  refused({{"chat_template_kwargs", {{"a", {1}}}}}, "invalid_parameter", "body.chat_template_kwargs.a: must be");
}

TEST_F(ChatRequests, TheDateThatIsGivenCounts) {
  models_[1].chat_date = parse_date("2026-02-09");
  EXPECT_THAT(asked({}, "gpt-oss"), HasSubstr("Current date: 2026-02-09\n"));
}

TEST_F(ChatRequests, GenerationPrompts) {
  const json begun = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "Yes, I"}}};
  EXPECT_THAT(asked({{"messages", begun}, {"add_generation_prompt", false}}, "llama3"),
              testing::EndsWith("\n\nYes, I<|eot_id|>"));
  EXPECT_THAT(
      asked({{"messages", begun}, {"add_generation_prompt", false}, {"continue_final_message", true}}, "llama3"),
      testing::EndsWith("\n\nYes, I"));
  refused({{"messages", begun}, {"continue_final_message", true}}, "invalid_parameter",
          "body.continue_final_message: body.add_generation_prompt must be false beside it");
}

TEST_F(ChatRequests, ATemplatesOwnRefusalNamesTheMessage) {
  const json twice = {{{"role", "user"}, {"content", "a"}}, {{"role", "user"}, {"content", "b"}}};
  refused({{"messages", twice}}, "invalid_request", "body.messages[1]: the chat template refuses it: user and",
          "gemma2");
}

TEST_F(ChatRequests, TheTokensThatEndAnAnswerStopIt) {
  asked({}, "gpt-oss");
  EXPECT_THAT(std::get<RequestParts>(incoming_.content).at(0).stop_tokens,
              ElementsAre(*tokenizer_->token_id("<|return|>"), *tokenizer_->token_id("<|call|>")));
  asked({}, "qwen3");
  EXPECT_THAT(std::get<RequestParts>(incoming_.content).at(0).stop_tokens,
              ElementsAre(*tokenizer_->token_id("<|im_end|>")));
}

TEST_F(ChatRequests, WithoutThoughtsTheMessageIsAsEver) {
  EXPECT_EQ(answer("llama3", "Yes. <think>x</think>"),
            (json{{"role", "assistant"}, {"content", "Yes. <think>x</think>"}}));
}

TEST_F(ChatRequests, ThoughtsBetweenMarks) {
  EXPECT_EQ(answer("qwen3", "<think>\nHm, w\u00f6rld.\n</think>\n\nYes."), said("\n\nYes.", "\nHm, w\u00f6rld.\n"));
  EXPECT_EQ(answer("qwen3", "<think>\nHm, I am not"), said(nullptr, "\nHm, I am not"));
  EXPECT_EQ(answer("qwen3", "<think>\nHm.</think>"), said(nullptr, "\nHm."));
  EXPECT_EQ(answer("qwen3", "Yes."), said("Yes.", nullptr));
  EXPECT_EQ(answer("olmo3-think", "Hm.</think>Yes."), said("Yes.", "Hm."));
  EXPECT_EQ(answer("olmo3-think", "Hm, I"), said(nullptr, "Hm, I"));
}

TEST_F(ChatRequests, AGuidedAnswerIsTheAnswerFromItsFirstTokenOn) {
  const json guided = {{"guided_regex", "Yes|No"}};
  const json yes = {{"role", "assistant"}, {"content", "Yes"}};
  for (const char* model : {"olmo3-think", "qwen3", "gpt-oss"}) EXPECT_EQ(answer(model, "Yes", guided), yes) << model;
}

TEST_F(ChatRequests, ThoughtsOnChannels) {
  const std::string thoughts = "<|channel|>analysis<|message|>Hm, w\u00f6rld \u65e5\u672c.<|end|>";
  const std::string final = "<|start|>assistant<|channel|>final<|message|>Yes, w\u00f6rld.";
  EXPECT_EQ(answer("gpt-oss", thoughts + final + "<|return|>"),
            said("Yes, w\u00f6rld.", "Hm, w\u00f6rld \u65e5\u672c."));
  EXPECT_EQ(answer("gpt-oss", thoughts + final), said("Yes, w\u00f6rld.", "Hm, w\u00f6rld \u65e5\u672c."));
  EXPECT_EQ(answer("gpt-oss", thoughts), said(nullptr, "Hm, w\u00f6rld \u65e5\u672c."));
  EXPECT_EQ(answer("gpt-oss", "<|channel|>analysis<|message|>Hm, I am"), said(nullptr, "Hm, I am"));
  EXPECT_EQ(answer("gpt-oss", "<|channel|>analysis"), said(nullptr, nullptr));
  EXPECT_EQ(answer("gpt-oss", thoughts + "<|start|>assistant<|channel|>commentary<|message|>Now.<|end|>" + final),
            said("Yes, w\u00f6rld.", "Hm, w\u00f6rld \u65e5\u672c.\nNow."));
  EXPECT_EQ(answer("gpt-oss", "<|channel|>final<|message|>Yes."), said("Yes.", nullptr));
  EXPECT_EQ(answer("gpt-oss", "No marks at all."), said("No marks at all.", nullptr));
}

TEST_F(ChatRequests, AStopStringEndsTheAnswerWithinItsChannel) {
  const json stop = {{"stop", "two"}};
  EXPECT_EQ(answer("gpt-oss",
                   "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>one two "
                   "three<|return|>",
                   stop),
            said("one ", "Hm."));
}

TEST_F(ChatRequests, ThoughtsAreLeftOutWhereTheyAreNotWanted) {
  EXPECT_EQ(answer("qwen3", "<think>\nHm.\n</think>\n\nYes.", {{"include_reasoning", false}}),
            (json{{"role", "assistant"}, {"content", "\n\nYes."}}));
}

TEST_F(ChatRequests, PromptLogprobsScoreThePromptAndDoNotShowIt) {
  asked({{"prompt_logprobs", 2}, {"logprobs", true}}, "llama3");
  const Request& request = std::get<RequestParts>(incoming_.content).at(0);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_EQ(incoming_.text.logprobs, 0);
  EXPECT_EQ(incoming_.text.prompt_logprobs, 2);
  refused({{"prompt_logprobs", 21}}, "invalid_parameter", "body.prompt_logprobs: must be an integer from 0 to 20");
}

TEST_F(ChatRequests, ATemplateThatIsNotKnownIsNamedInTheError) {
  TokenizerFiles files = test::tokenizer_files("llama3");
  files["chat_template.jinja"] = "{{ messages[0].content }}\n{% include 'x' %}";
  models_[0].tokenizer = std::make_shared<const Tokenizer>(files);
  models_[0].chat_format = "";
  refused({}, "invalid_request",
          "url: llama3 has no chat format: its chat template cannot be used: line 2: the tag '{% include %}'; "
          "--chat-format takes chatml, gemma2");
}

}  // namespace
}  // namespace computron

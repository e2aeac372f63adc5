// Conversations as the published chat templates write them.
#include "computron/text/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

// A tokenizer of no words that has some special tokens, and came with a chat template if that is not empty.
Tokenizer tokenizer_with(const std::vector<std::string>& tokens, const std::string& chat_template = "") {
  std::string added;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    added += (i > 0 ? "," : "") + std::string(R"({"id":)") + std::to_string(i + 1) + R"(,"content":")" + tokens[i] +
             R"(","special":true})";
  }
  TokenizerFiles files;
  files["tokenizer.json"] = R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[)" + added + "]}";
  files["chat_template.jinja"] = chat_template;
  return Tokenizer(files);
}

const std::vector<std::string> kLlama3 = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                          "<|eot_id|>"};
const std::vector<std::string> kQwen2 = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
const std::vector<std::string> kMistral = {"<s>", "</s>", "[INST]", "[/INST]"};
const std::vector<ChatMessage> kQuestion = {{"user", " Hi \n"}};
const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Yes?"}, {"user", "Why?"}};

std::string prompt(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  return ChatFormat::recognise(tokenizer).value().prompt(messages);
}

TEST(ChatFormat, Llama3) {
  const Tokenizer tokenizer = tokenizer_with(kLlama3);
  EXPECT_EQ(prompt(tokenizer, kQuestion),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(prompt(tokenizer, kTalk),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(ChatFormat::recognise(tokenizer)->end_token(), "<|eot_id|>");
}

TEST(ChatFormat, Llama31SaysTheDateItsTemplateSays) {
  std::vector<std::string> tokens = kLlama3;
  tokens.push_back("<|eom_id|>");
  const std::string head =
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
      "Today Date: 26 Jul 2024\n\n";
  EXPECT_EQ(prompt(tokenizer_with(tokens), kQuestion),
            head +
                "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_THAT(prompt(tokenizer_with(kLlama3, "<|start_header_id|> Cutting Knowledge Date"), kTalk),
              HasSubstr(head + "Be brief.<|eot_id|><|start_header_id|>user"));
}

TEST(ChatFormat, Qwen) {
  const std::string rest = "<|im_start|>user\n Hi \n<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt(tokenizer_with(kQwen2), kQuestion),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + rest);
  const std::string newer = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n";
  EXPECT_EQ(
      prompt(tokenizer_with(kQwen2, R"('<|im_start|>system\n)" + newer.substr(0, newer.size() - 1) + "'"), kQuestion),
      "<|im_start|>system\n" + newer + rest);
  EXPECT_EQ(prompt(tokenizer_with(kQwen2), kTalk),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
}

// The parts of the published templates that print messages.
const char* const kMistralV01 =
    "{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token + ' ' }}";
const char* const kMistralV02 =
    "{{- bos_token }}{%- if loop.first and system_message is defined %}"
    "{{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}"
    "{{- ' [INST] ' + message['content'] + ' [/INST]' }}{{- ' ' + message['content'] + eos_token}}";
const char* const kMistralV03 =
    "{{- bos_token }}{%- if loop.last and system_message is defined %}"
    "{{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}"
    "{{- '[INST] ' + message['content'] + '[/INST]' }}{{- ' ' + message['content']|trim + eos_token}}"
    "{{- '[TOOL_CALLS] [' }}{{- tool_call.function|tojson }}";
const char* const kNemo =
    "{%- if loop.last and system_message is defined %}"
    "{{- '[INST]' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}"
    "{{- '[INST]' + message['content'] + '[/INST]' }}{{- (message['content'] + eos_token) }}";

TEST(ChatFormat, Mistral) {
  const auto v02 = [](const char* text) { return tokenizer_with({"<s>", "</s>"}, text); };
  const std::vector<ChatMessage> talk = {{"user", "Hi"}, {"assistant", " Yes?\n"}, {"user", "Why?"}};
  EXPECT_EQ(prompt(v02(kMistralV01), talk), "<s>[INST] Hi [/INST] Yes?\n</s> [INST] Why? [/INST]");
  EXPECT_EQ(prompt(v02(kMistralV02), kTalk), "<s> [INST] Be brief.\n\nHi [/INST] Yes?</s> [INST] Why? [/INST]");
  const std::string v03 = "<s>[INST] Hi[/INST] Yes?</s>[INST] Why?[/INST]";
  EXPECT_EQ(prompt(tokenizer_with(kMistral), talk), v03);
  EXPECT_EQ(prompt(tokenizer_with(kMistral, kMistralV03), talk), v03);
  EXPECT_EQ(prompt(tokenizer_with(kMistral), kTalk), "<s>[INST] Hi[/INST] Yes?</s>[INST] Be brief.\n\nWhy?[/INST]");
  EXPECT_EQ(prompt(tokenizer_with(kMistral, kNemo), talk), "<s>[INST]Hi[/INST] Yes?\n</s>[INST]Why?[/INST]");
  EXPECT_EQ(prompt(tokenizer_with(kMistral, kNemo), kTalk), "<s>[INST]Hi[/INST]Yes?</s>[INST]Be brief.\n\nWhy?[/INST]");
  EXPECT_EQ(ChatFormat::recognise(v02(kMistralV01))->end_token(), "</s>");
}

TEST(ChatFormat, ATemplateOfAnotherFamilyIsRefused) {
  std::vector<std::string> hermes = kLlama3;
  hermes.insert(hermes.end(), {"<|im_start|>", "<|im_end|>"});
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with(hermes, "<|im_start|> + message.role")));
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with(kQwen2, "<|im_start|>{{ message.role }}")));
  EXPECT_FALSE(ChatFormat::recognise(  // Qwen1.5: no full stop
      tokenizer_with(kQwen2, "<|im_start|>system\\nYou are a helpful assistant<|im_end|>")));
  EXPECT_TRUE(
      ChatFormat::recognise(tokenizer_with(kQwen2, "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>")));
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with(kMistral, "### Instruction: {{ message['content'] }}")));
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with(kMistral, "[INST] {{ 'unfinished")));
  EXPECT_FALSE(ChatFormat::recognise(
      tokenizer_with(kMistral,
                     "{{ '[INST] ' + message['content'] + '[/INST]' }}{{ '[INST]' + message['content'] + '[/INST]' }}"
                     "{{ message['content'] + eos_token }}")));
}

TEST(ChatFormat, OthersAreNotRecognised) {
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with({"<s>", "</s>"})));
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with({"<s>", "</s>"}, "[INST] <<SYS>>")));  // Llama-2's
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with({"<|im_start|>", "<|im_end|>"})));     // not Qwen's
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with({"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"})));
  EXPECT_FALSE(ChatFormat::recognise(tokenizer_with({"<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"})));
  EXPECT_FALSE(ChatFormat::recognise(Tokenizer(tokenizer_files("gpt2"))));
}

TEST(ChatFormat, WhatIsInTheFixtures) {
  EXPECT_EQ(ChatFormat::recognise(Tokenizer(tokenizer_files("llama3")))->kind(), ChatFormat::kLlama3);
  EXPECT_EQ(ChatFormat::recognise(Tokenizer(tokenizer_files("qwen2")))->kind(), ChatFormat::kQwen25);
  EXPECT_EQ(ChatFormat::recognise(Tokenizer(tokenizer_files("mistral")))->kind(), ChatFormat::kMistral);
}

TEST(ChatFormat, AWrongMessageIsNamed) {
  const auto refused = [](const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                          const std::string& part) {
    try {
      prompt(tokenizer, messages);
      ADD_FAILURE() << "accepted";
    } catch (const RequestError& error) {
      EXPECT_EQ(error.error_code(), "invalid_request");
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  refused(tokenizer_with(kLlama3), {{"user", "a"}, {"tool", "b"}},
          "body.messages[1]: the role must be system, user or");
  refused(tokenizer_with(kMistral), {{"assistant", "a"}}, "body.messages[0]: after an optional system message");
  refused(tokenizer_with(kMistral), {{"user", "a"}, {"user", "b"}}, "body.messages[1]");
  refused(tokenizer_with(kMistral), {{"user", "a"}, {"assistant", "b"}, {"system", "c"}}, "body.messages[2]");
}

}  // namespace
}  // namespace computron::test

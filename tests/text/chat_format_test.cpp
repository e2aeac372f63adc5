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
  EXPECT_THAT(prompt(tokenizer_with(kLlama3, "... Cutting Knowledge Date ..."), kTalk),
              HasSubstr(head + "Be brief.<|eot_id|><|start_header_id|>user"));
}

TEST(ChatFormat, Qwen) {
  const std::string rest = "<|im_start|>user\n Hi \n<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt(tokenizer_with(kQwen2), kQuestion),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + rest);
  EXPECT_EQ(
      prompt(tokenizer_with(kQwen2, "... You are Qwen, created by ..."), kQuestion),
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n" + rest);
  EXPECT_EQ(prompt(tokenizer_with(kQwen2), kTalk),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatFormat, Mistral) {
  const Tokenizer first = tokenizer_with({"<s>", "</s>"}, "' [INST] ' + message ['content']");
  EXPECT_EQ(prompt(first, kTalk), "<s> [INST] Be brief.\n\nHi [/INST] Yes?</s> [INST] Why? [/INST]");
  EXPECT_EQ(prompt(tokenizer_with(kMistral), kTalk), "<s>[INST] Hi[/INST] Yes?</s>[INST] Be brief.\n\nWhy?[/INST]");
  EXPECT_EQ(prompt(tokenizer_with(kMistral, "\"[INST]\" + message"), kTalk),
            "<s>[INST]Hi[/INST]Yes?</s>[INST]Be brief.\n\nWhy?[/INST]");
  EXPECT_EQ(ChatFormat::recognise(first)->end_token(), "</s>");
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
  EXPECT_EQ(ChatFormat::recognise(Tokenizer(tokenizer_files("mistral")))->kind(), ChatFormat::kMistralV3);
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

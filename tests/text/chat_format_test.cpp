// Conversations as Jinja2 writes them with chat templates, and the formats that are known by name beside them.
#include "computron/text/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ordered_json& fixture() {
  static const ordered_json kFixture = ordered_json::parse(read_file(COMPUTRON_CHAT_FIXTURES "/chats.json"));
  return kFixture;
}

// A tokenizer of no words that has some special tokens, and came with a chat template if that is not empty.
Tokenizer tokenizer_with(const std::vector<std::string>& tokens, const std::string& chat_template = "",
                         const ordered_json& settings = ordered_json::object()) {
  ordered_json added = ordered_json::array();
  for (const std::string& token : tokens) {
    added.push_back({{"id", added.size() + 1}, {"content", token}, {"special", true}});
  }
  TokenizerFiles files;
  files["tokenizer.json"] = ordered_json{
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", ordered_json::array()}}},
      {"added_tokens", added}}.dump();
  files["tokenizer_config.json"] = settings.dump();
  files["chat_template.jinja"] = chat_template;
  return Tokenizer(files);
}

std::vector<ChatMessage> messages_of(const ordered_json& talk) {
  std::vector<ChatMessage> messages;
  for (const ordered_json& message : talk) messages.push_back({.role = message["role"], .content = message["content"]});
  return messages;
}

ChatOptions options_of(const ordered_json& chat) {
  ChatOptions options{.add_generation_prompt = chat["add_generation_prompt"]};
  for (const auto& [name, value] : chat["arguments"].items()) {
    if (value.is_boolean()) options.arguments[name] = value.get<bool>();
    if (value.is_string()) options.arguments[name] = value.get<std::string>();
  }
  return options;
}

// The text, or that it is refused; templates say in words of their own why.
std::string written(const ChatFormat& format, const ordered_json& chat) {
  try {
    return format.prompt(messages_of(fixture()["talks"][chat["talk"].get<std::string>()]), options_of(chat)).text;
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error_code(), "invalid_request");
    EXPECT_THAT(error.what(), HasSubstr("body.messages"));
    EXPECT_THAT(error.what(), HasSubstr("the chat template refuses it: "));
    return "refused";
  }
}

void check_chats(const ordered_json& format, const Tokenizer& tokenizer, const std::string& name) {
  for (const ordered_json& chat : format["chats"]) {
    const ChatFormat chat_format(tokenizer, name, parse_date(chat["date"].get<std::string>()));
    EXPECT_EQ(written(chat_format, chat), chat.contains("text") ? chat["text"].get<std::string>() : "refused")
        << format["name"] << " " << chat["talk"] << " " << chat["arguments"];
  }
}

ordered_json special_tokens(const ordered_json& format) {
  return {{"bos_token", format["bos"]}, {"eos_token", format["eos"]}};
}

TEST(ChatFormat, TemplatesAreRenderedAsByJinja2) {
  EXPECT_EQ(fixture()["formats"].size(), 22u);
  for (const ordered_json& format : fixture()["formats"]) {
    const Tokenizer tokenizer = tokenizer_with({}, format["template"], special_tokens(format));
    EXPECT_EQ(ChatFormat(tokenizer).name(), "template");
    check_chats(format, tokenizer, "");
  }
}

TEST(ChatFormat, FormatsByNameWriteTheSame) {
  for (const ordered_json& format : fixture()["formats"]) {
    check_chats(format, tokenizer_with({}, "", special_tokens(format)), format["name"]);
  }
}

TEST(ChatFormat, EveryNameIsInTheFixture) {
  std::string names;
  for (const ordered_json& format : fixture()["formats"]) {
    EXPECT_TRUE(ChatFormat::is_known(format["name"].get<std::string>()));
    names += (names.empty() ? "" : ", ") + format["name"].get<std::string>();
  }
  EXPECT_EQ(ChatFormat::known_names().size(), names.size()) << ChatFormat::known_names() << "\n" << names;
  EXPECT_FALSE(ChatFormat::is_known("template"));
}

// Without --chat-date every format always says the same day.
TEST(ChatFormat, TheDayIsFixed) {
  for (const ordered_json& format : fixture()["formats"]) {
    const ordered_json& chat = format["chats"][0];
    const ChatFormat by_template(tokenizer_with({}, format["template"], special_tokens(format)));
    const ChatFormat by_name(tokenizer_with({}), format["name"].get<std::string>());
    const auto text = chat["text"].get<std::string>();
    EXPECT_EQ(written(by_template, chat), text) << format["name"];
    EXPECT_EQ(written(by_name, chat), text) << format["name"];
  }
}

std::string name_by_tokens(const std::vector<std::string>& tokens) {
  try {
    return ChatFormat(tokenizer_with(tokens)).name();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no chat template"));
    return "";
  }
}

TEST(ChatFormat, WithoutATemplateSpecialTokensTellTheFormat) {
  EXPECT_EQ(name_by_tokens({"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}), "llama3");
  EXPECT_EQ(
      name_by_tokens({"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"}),
      "llama3.1");
  EXPECT_EQ(name_by_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}), "qwen2");
  EXPECT_EQ(name_by_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"}), "qwen2.5");
  EXPECT_EQ(name_by_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"}), "qwen3");
  EXPECT_EQ(name_by_tokens({"<|im_start|>", "<|im_sep|>", "<|im_end|>"}), "phi4");
  EXPECT_EQ(name_by_tokens({"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}), "phi3");
  EXPECT_EQ(name_by_tokens({"<start_of_turn>", "<end_of_turn>"}), "gemma2");
  EXPECT_EQ(name_by_tokens({"<|start_of_role|>", "<|end_of_role|>"}), "granite3");
  EXPECT_EQ(name_by_tokens({"<|start|>", "<|message|>", "<|channel|>", "<|return|>"}), "gpt-oss");
  EXPECT_EQ(name_by_tokens({"[INST]", "[/INST]"}), "mistral-v3");
  for (const std::vector<std::string>& tokens : {std::vector<std::string>{"<s>", "</s>"},
                                                 {"<|im_start|>", "<|im_end|>"},
                                                 {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<functions>"},
                                                 {"[INST]", "[/INST]", "[SYSTEM_PROMPT]"}}) {
    EXPECT_EQ(name_by_tokens(tokens), "");
  }
}

TEST(ChatFormat, WhatIsInTheTokenizersOfTheFixtures) {
  EXPECT_EQ(ChatFormat(Tokenizer(tokenizer_files("llama3"))).name(), "llama3");
  EXPECT_EQ(ChatFormat(Tokenizer(tokenizer_files("qwen2"))).name(), "qwen2.5");
  EXPECT_EQ(ChatFormat(Tokenizer(tokenizer_files("mistral"))).name(), "mistral-v3");
}

TEST(ChatFormat, TheTokensThatEndAnAnswer) {
  const auto ends = [](const char* name, const std::vector<std::string>& tokens) {
    return ChatFormat(tokenizer_with(tokens), name).end_tokens();
  };
  EXPECT_THAT(ends("llama3", {"<|eot_id|>"}), ElementsAre("<|eot_id|>"));
  EXPECT_THAT(ends("qwen3", {"<|im_start|>", "<|im_end|>"}), ElementsAre("<|im_end|>"));
  EXPECT_THAT(ends("gemma2", {"<end_of_turn>", "<start_of_turn>"}), ElementsAre("<end_of_turn>"));
  EXPECT_THAT(ends("granite3", {"<|end_of_text|>"}), ElementsAre("<|end_of_text|>"));
  EXPECT_THAT(ends("zephyr", {"</s>"}), ElementsAre("</s>"));
  EXPECT_THAT(ends("llama2", {"</s>"}), ElementsAre("</s>"));
  EXPECT_THAT(ends("phi3", {"<|end|>", "<|endoftext|>"}), ElementsAre("<|end|>"));
  EXPECT_THAT(ends("gpt-oss", {"<|end|>", "<|return|>"}), ElementsAre("<|return|>", "<|call|>"));
}

std::string fault_of(const std::string& chat_template) {
  try {
    const ChatFormat format(tokenizer_with({}, chat_template));
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(ChatFormat, ATemplateIsRefusedByTheFirstThingThatIsNotKnown) {
  EXPECT_EQ(fault_of("{{ messages[0].content }}\n{{ 'a' | wordwrap }}{{ 'a' | center }}"),
            "its chat template cannot be used: line 2: the filter 'wordwrap'");
  EXPECT_THAT(fault_of("{{ 1 if messages is no_test else 2 }}"), HasSubstr("line 1: the test 'no_test'"));
  EXPECT_THAT(fault_of("\n\n{% include 'x' %}"), HasSubstr("line 3: the tag '{% include %}'"));
  EXPECT_THAT(fault_of("{{ lipsum() }}"), HasSubstr("line 1: the function 'lipsum'"));
  EXPECT_THAT(fault_of("{{ messages.append(1) }}"), HasSubstr("line 1: the method '.append()'"));
  EXPECT_THAT(fault_of("{{ messages ? 1 : 2 }}"), HasSubstr("line 1: the character '?'"));
  EXPECT_THAT(fault_of("\xC3("), HasSubstr("it is not UTF-8"));
  EXPECT_THAT(fault_of("{{ '\\ud83d' }}"), HasSubstr("line 1: an escape that is no character"));
  EXPECT_THAT(fault_of("{% if messages %}"), HasSubstr("no {% endif %}"));
  EXPECT_THAT(fault_of("{{ messages | tojson(separators=1) }}"), HasSubstr("tojson: its argument 'separators'"));
  EXPECT_THAT(fault_of("{{ messages }}"), HasSubstr("line 1: a list is printed"));
  EXPECT_THAT(fault_of("{{ strftime_now('%Q') }}"), HasSubstr("strftime_now: '%Q'"));
}

TEST(ChatFormat, HostileTemplatesEnd) {
  EXPECT_THAT(fault_of("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}"),
              HasSubstr("too many steps"));
  EXPECT_THAT(fault_of("{% set ns = namespace(x='xxxxxxxx') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}"
                       "{% endfor %}"),
              HasSubstr("too many steps"));
  EXPECT_THAT(fault_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("macros called within 50 others"));
  EXPECT_THAT(fault_of("{% set ns = namespace(x=[]) %}{% for a in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("nested deeper than 64"));
  EXPECT_THAT(fault_of("{% set ns = namespace() %}{% set ns.x = ns %}"), HasSubstr("a namespace in a namespace"));
  EXPECT_THAT(fault_of("{{ 'x' * 999999999999 }}"), HasSubstr("too many steps"));
  EXPECT_THAT(fault_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("nested deeper than 100"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) sum += " + 1";
  EXPECT_THAT(fault_of(sum + " }}"), HasSubstr("more than 4000 operators"));
  EXPECT_THAT(fault_of("{{ 9999999999999999 * 9999999999999999 }}"), HasSubstr("more than 64 bits"));
}

// As many messages as a request may have are within the bounds of work.
TEST(ChatFormat, TheLongestConversationIsWritten) {
  std::vector<ChatMessage> talk;
  for (int i = 0; i < 1024; ++i) {
    talk.push_back({"user", "question " + std::to_string(i)});
    talk.push_back({"assistant", "<think>\nHm.\n</think>\n\nanswer"});
  }
  talk.back().content = "indeed";
  for (const ordered_json& format : fixture()["formats"]) {
    const ChatFormat chat(tokenizer_with({}, format["template"], special_tokens(format)));
    const std::string text = chat.prompt(talk, {.add_generation_prompt = false}).text;
    EXPECT_THAT(text, testing::AllOf(HasSubstr("question 0"), HasSubstr("question 1023"), HasSubstr("indeed")))
        << format["name"];
  }
}

TEST(ChatFormat, ContentInPartsIsAListOnlyForTemplatesThatTakeOne) {
  const std::vector<ChatMessage> messages = {{.role = "user", .parts = {" one ", "two"}}};
  const ordered_json& formats = fixture()["formats"];
  const auto gemma = std::find_if(formats.begin(), formats.end(), [](const auto& f) { return f["name"] == "gemma3"; });
  EXPECT_EQ(ChatFormat(tokenizer_with({}, (*gemma)["template"], special_tokens(*gemma))).prompt(messages).text,
            "<bos><start_of_turn>user\nonetwo<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(ChatFormat(tokenizer_with({}), "chatml").prompt(messages).text,
            "<|im_start|>user\n one \ntwo<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatFormat, TheLastMessageCanBeTheBeginningOfTheAnswer) {
  const auto begun = [](const char* name, const std::string& answer) {
    const ChatOptions options{.add_generation_prompt = false, .continue_final_message = true};
    return ChatFormat(tokenizer_with({}), name)
        .prompt(std::vector<ChatMessage>{{"user", "Hi"}, {"assistant", answer}}, options)
        .text;
  };
  EXPECT_EQ(begun("chatml", "Yes, "), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes, ");
  EXPECT_THAT(begun("llama3", "Yes, "), testing::EndsWith("assistant<|end_header_id|>\n\nYes,"));  // it trims
  EXPECT_THAT(begun("gpt-oss", "Yes"), testing::EndsWith("<|channel|>final<|message|>Yes"));
  EXPECT_THROW(begun("chatml", " "), RequestError);
}

TEST(ChatFormat, SaysHowAnswersShowTheirThoughts) {
  const std::vector<ChatMessage> question = {{"user", "Hi"}};
  const auto reasoning = [&](const char* name) {
    return ChatFormat(tokenizer_with({}), name).prompt(question).reasoning;
  };
  EXPECT_EQ(reasoning("llama3"), Reasoning::kNone);
  EXPECT_EQ(reasoning("qwen3"), Reasoning::kThink);
  EXPECT_EQ(reasoning("olmo3-think"), Reasoning::kOpenThink);
  EXPECT_EQ(reasoning("olmo3"), Reasoning::kNone);
  EXPECT_EQ(reasoning("gpt-oss"), Reasoning::kHarmony);
  ChatOptions off;
  off.arguments["enable_thinking"] = false;
  EXPECT_EQ(ChatFormat(tokenizer_with({}), "qwen3").prompt(question, off).reasoning, Reasoning::kThink);
}

TEST(ChatFormat, EarlierThoughtsReachTheTemplate) {
  std::vector<ChatMessage> talk = {{"user", "Hi"}, {"assistant", "Yes?"}};
  talk[1].reasoning = "Hm.";
  const ChatOptions whole{.add_generation_prompt = false};
  EXPECT_THAT(ChatFormat(tokenizer_with({}), "qwen3").prompt(talk, whole).text,
              HasSubstr("assistant\n<think>\nHm.\n</think>\n\nYes?<|im_end|>"));
  EXPECT_THAT(ChatFormat(tokenizer_with({}), "gpt-oss").prompt(talk, whole).text,
              HasSubstr("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes?"));
}

TEST(ChatFormat, AWrongMessageIsNamed) {
  const auto refused = [](const char* name, const std::vector<ChatMessage>& messages, const std::string& part) {
    try {
      ChatFormat(tokenizer_with({}), name).prompt(messages);
      ADD_FAILURE() << "accepted";
    } catch (const RequestError& error) {
      EXPECT_EQ(error.error_code(), "invalid_request");
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  refused("llama3", {{"user", "a"}, {"critic", "b"}}, "body.messages[1]: the role must be system, user or assistant");
  refused("llama3", {{"user", "a"}, {"tool", "b"}}, "body.messages[1]: the role 'tool': tools are not served");
  refused("llama3", {{"developer", "a"}}, "body.messages[0]: the role must be");
  refused("mistral-v3", {{"assistant", "a"}}, "body.messages[0]: the chat template refuses it: after an optional");
  refused("mistral-v3", {{"user", "a"}, {"user", "b"}}, "body.messages[1]: ");
  refused("mistral-v3", {{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"system", "c"}}, "body.messages[3]: ");
  refused("gemma2", {{"system", "s"}, {"user", "a"}},
          "body.messages: the chat template refuses it: this format has no");
  EXPECT_THAT(ChatFormat(tokenizer_with({}), "gpt-oss")
                  .prompt(std::vector<ChatMessage>{{"developer", "D."}, {"user", "a"}})
                  .text,
              HasSubstr("<|start|>developer<|message|># Instructions\n\nD.\n\n<|end|>"));
}

TEST(ChatFormat, ANameThatIsNotKnown) { EXPECT_THROW(ChatFormat(tokenizer_with({}), "llama99"), ConfigError); }

TEST(ParseDate, TakesCalendarDaysOnly) {
  EXPECT_EQ(parse_date("2024-02-29"),
            ChatFormat::Date(std::chrono::year(2024), std::chrono::month(2), std::chrono::day(29)));
  for (const char* text :
       {"2023-02-29", "2024-13-01", "2024-1-1", "24-01-01", "2024-01-1x", "", "2024/01/01", "0000-01-01"}) {
    EXPECT_FALSE(parse_date(text)) << text;
  }
}

}  // namespace
}  // namespace computron::test

// Text in, text out through the program: what text prompts give, where stop strings end them, conversations, and models
// that take none.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/text/chat_format.h"
#include "computron/text/tokenizer.h"
#include "tests/apps/serve_job.h"
#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<CarriedFile> carried(const std::string& kind) {
  std::vector<CarriedFile> files;
  for (const auto& [name, content] : tokenizer_files(kind)) files.push_back({name, content});
  return files;
}

class ServeText : public ::testing::Test {
 protected:
  ServeText() {
    write_random_checkpoint(folder_ / "chat.h5", opt_config(kModel), DType::kF32, 5, "", carried("llama3"));
    write_random_checkpoint(folder_ / "plain.h5", opt_config(kModel), DType::kF32, 6);
    write_random_checkpoint(folder_ / "broken.h5", opt_config(kModel), DType::kF32, 7, "", {{"tokenizer.json", "{}"}});
    const ModelConfig bert = ModelConfig::from_hf_json(R"({"model_type": "bert", "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 1800,
      "max_position_embeddings": 64, "type_vocab_size": 2, "architectures": ["BertModel"]})");
    write_random_checkpoint(folder_ / "bert.h5", bert, DType::kF32, 8, "", carried("bert-uncased"));
  }

  void add(const std::string& id, json body, const std::string& model = "chat",
           const std::string& url = "/v1/completions") {
    body["model"] = model;
    lines_.push_back(json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump());
  }
  // Serves the lines added so far, which are gone then.
  Served run(int tp, int pp, std::vector<std::string> models = {"chat", "plain", "broken", "bert"}) {
    ServeJob job{.tp = tp, .pp = pp, .lines = std::exchange(lines_, {})};
    for (const std::string& id : models) job.models.push_back({id, folder_ / (id + ".h5")});
    return serve_ok(job, folder_);
  }
  std::vector<TokenId> encoded(const std::string& text, bool special = true) {
    return Encoder(tokenizer_).encode(text, special);
  }

  static constexpr int kTokens = 24;
  static inline const TinyModel kModel{
      .layers = 2, .heads = 4, .head_dim = 8, .ffn = 64, .vocab = 1180, .max_positions = 128};
  TemporaryFolder folder_;
  Tokenizer tokenizer_{tokenizer_files("llama3")};
  std::vector<std::string> lines_;
};

TEST_F(ServeText, TextIsTokensAndTokensAreText) {
  const std::string text = "Hello, w\u00F6rld";
  const json common = {{"max_tokens", 8}, {"ignore_eos", true}};
  json by_text = common, by_ids = common, echo = common, many = common, plain = common;
  by_text["prompt"] = text;
  by_ids["prompt"] = encoded(text);
  echo.update({{"prompt", text}, {"echo", true}, {"logprobs", 1}});
  many.update({{"prompt", {text, "other"}}, {"n", 2}, {"temperature", 1}, {"seed", 4}});
  plain["prompt"] = {5, 6};
  add("text", by_text);
  add("ids", by_ids);
  add("echo", echo);
  add("many", many);
  add("plain", plain, "plain");
  add("text to plain", by_text, "plain");
  add("text to broken", by_text, "broken");
  add("ids to broken", plain, "broken");
  const Served served = run(2, 1);
  const json& choice = served.results.choice("text");
  EXPECT_EQ(choice.at("token_ids"), served.results.choice("ids").at("token_ids"));
  EXPECT_EQ(choice.at("text"), served.results.choice("ids").at("text"));
  EXPECT_EQ(choice.at("text"), tokenizer_.decode(choice.at("token_ids").get<std::vector<TokenId>>()));
  EXPECT_NE(choice.at("text"), "");
  EXPECT_EQ(served.results.choice("echo").at("text"), text + choice.at("text").get<std::string>());
  EXPECT_EQ(served.results.line("many").at("response").at("body").at("choices").size(), 4u);
  EXPECT_EQ(served.results.choice("plain").at("text"), "");
  EXPECT_EQ(served.results.choice("ids to broken").at("text"), "");
  for (const char* id : {"text to plain", "text to broken"})
    EXPECT_EQ(served.results.error_code(id), "invalid_request");
  EXPECT_THAT(served.results.line("text to broken").at("error").at("message").get<std::string>(),
              HasSubstr("the tokenizer of broken cannot be used (tokenizer.json"));
}

// What convert was told lies beside the tokenizer; what the command line says stands behind it.
TEST_F(ServeText, AChatHasTheFormatOfItsCheckpoint) {
  std::vector<CarriedFile> files = carried("llama3");
  files.push_back({kChatFormatFile, "chatml"});
  write_random_checkpoint(folder_ / "named.h5", opt_config(kModel), DType::kF32, 5, "", files);
  const std::string url = "/v1/chat/completions";
  const json hi = {
      {"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 2}, {"return_token_ids", true}};
  add("chatml", hi, "named", url);
  add("llama", hi, "chat", url);
  ServeJob job{.lines = std::exchange(lines_, {})};
  for (const char* id : {"named", "chat"}) job.models.push_back({id, folder_ / (std::string(id) + ".h5")});
  const Served served = serve_ok(job, folder_);
  const auto asked = [](const Served& of, const char* id) { return of.results.choice(id).at("prompt_token_ids"); };
  EXPECT_EQ(asked(served, "chatml"),
            json(encoded("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", /*special=*/false)));
  EXPECT_EQ(asked(served, "llama"), json(encoded("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi"
                                                 "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                                                 /*special=*/false)));
  add("zephyr", hi, "named", url);
  ServeJob told{.models = job.models, .lines = std::exchange(lines_, {}), .more = {"--chat-format", "zephyr"}};
  EXPECT_EQ(asked(serve_ok(told, folder_), "zephyr"),
            json(encoded("<|user|>\nHi</s>\n<|assistant|>\n", /*special=*/false)));
}

std::string last_two_characters(const std::string& text) {
  std::size_t begin = text.size();
  for (int i = 0; i < 2 && begin > 0; ++i) {
    do --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80);
  }
  return text.substr(begin);
}

// A request whose stop string is what its text ends with after some tokens, and not before.
struct Stopped {
  json body;
  std::string text;  // that must come
  std::size_t tokens = 0;
};

// Alone, in a batch and on every mesh the text ends in the same place, with the tokens that it took to see that.
TEST_F(ServeText, AStopStringEndsTheTextTheSameEverywhere) {
  const std::vector<std::string> prompts = {"import", "one two", "The"};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    add(fmt::format("free{}", i), {{"prompt", prompts[i]}, {"max_tokens", kTokens}, {"ignore_eos", true}});
  }
  const Served free = run(1, 1, {"chat"});
  std::vector<Stopped> stopped;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const json& choice = free.results.choice(fmt::format("free{}", i));
    const auto tokens = choice.at("token_ids").get<std::vector<TokenId>>();
    std::size_t count = 2;
    std::string head, stop;
    for (; count < tokens.size(); ++count) {
      head = tokenizer_.decode(std::span(tokens).first(count));
      stop = last_two_characters(head);
      if (stop.find("\uFFFD") == std::string::npos && head.find(stop) == head.size() - stop.size()) break;
    }
    ASSERT_LT(count, tokens.size()) << choice.at("text");
    json body = {{"prompt", prompts[i]}, {"max_tokens", kTokens}, {"ignore_eos", true}};
    body["stop"] = json::array({"\u0001never", stop});
    stopped.push_back({body, head.substr(0, head.size() - stop.size()), count});
  }
  for (const auto& [tp, pp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    for (std::size_t i = 0; i < stopped.size(); ++i) {
      add(fmt::format("stop{}", i), stopped[i].body);
      add(fmt::format("free{}", i), {{"prompt", prompts[i]}, {"max_tokens", kTokens}, {"ignore_eos", true}});
    }
    const Served served = run(tp, pp, {"chat"});
    for (std::size_t i = 0; i < stopped.size(); ++i) {
      const json& body = served.results.line(fmt::format("stop{}", i)).at("response").at("body");
      EXPECT_EQ(body.at("choices")[0].at("text"), stopped[i].text);
      EXPECT_EQ(body.at("choices")[0].at("finish_reason"), "stop");
      EXPECT_EQ(body.at("usage").at("completion_tokens"), stopped[i].tokens);
      EXPECT_EQ(served.results.choice(fmt::format("free{}", i)), free.results.choice(fmt::format("free{}", i)));
    }
  }
}

TEST_F(ServeText, ConversationsAndEncoders) {
  const std::string prompt =
      "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n";
  add("chat", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 6}, {"ignore_eos", true}}, "chat",
      "/v1/chat/completions");
  add("ids", {{"prompt", encoded(prompt, false)}, {"max_tokens", 6}, {"ignore_eos", true}});
  add("no chat", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}, "plain", "/v1/chat/completions");
  const Tokenizer words(tokenizer_files("bert-uncased"));
  add("embed", {{"input", "Hello there"}}, "bert", "/v1/embeddings");
  add("embed ids", {{"input", Encoder(words).encode("Hello there")}}, "bert", "/v1/embeddings");
  const Served served = run(1, 1);
  const json& chat = served.results.line("chat").at("response").at("body");
  EXPECT_EQ(chat.at("object"), "chat.completion");
  EXPECT_EQ(chat.at("choices")[0].at("message").at("content"), served.results.choice("ids").at("text"));
  EXPECT_EQ(served.results.error_code("no chat"), "invalid_request");
  const auto vector = [&](const char* id) {
    return served.results.line(id).at("response").at("body").at("data")[0].at("embedding");
  };
  EXPECT_EQ(vector("embed"), vector("embed ids"));
}

}  // namespace
}  // namespace computron::test

// Results of two hundred requests, which openai's types have accepted (tests/fixtures/bodies): the same to the byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <variant>

#include "computron/requests/request_reader.h"
#include "computron/requests/result_format.h"
#include "tests/requests/chat_support.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using nlohmann::json;

std::vector<ServedModel> served() {
  const auto tokenizer = test::tokenizer_with_tokens(test::kChatTokens);
  std::vector<ServedModel> models;
  const auto add = [&](const char* id, const char* format) -> ServedModel& {
    ServedModel& model = models.emplace_back(decoder(id, 1300, 512));
    model.tokenizer = tokenizer;
    model.chat_format = format;
    return model;
  };
  add("llama", "llama3");
  add("qwen", "qwen3");
  add("harmony", "gpt-oss");
  add("thinker", "olmo3-think");
  models.push_back(decoder("plain", 1300, 512));
  ServedModel& bert = add("bert", "");
  bert.tokenizer = std::make_shared<const Tokenizer>(test::tokenizer_files("bert-uncased"));
  bert.config.vocab = 1800;
  bert.config.causal = false;
  bert.config.token_types = 2;
  bert.config.classes = 3;
  return models;
}

// Values that are no rounded decimals.
float made_up(std::size_t a, std::size_t b) { return static_cast<float>((a * 37 + b * 11) % 101 + 1) / -7; }

ScoredToken scored(TokenId token, std::size_t line, std::size_t position, const Request& request) {
  ScoredToken made{.token = token, .has_logprob = request.logprobs >= 0, .logprob = 0, .top = {}};
  if (!made.has_logprob) return made;
  made.logprob = made_up(line, position);
  for (int i = 0; i < request.logprobs; ++i) made.top.emplace_back(token + i, made.logprob - static_cast<float>(i) / 3);
  return made;
}

// What a model of this kind might answer: its thoughts, if it has such, and some words.
std::string answer_of(const std::string& model, std::size_t line) {
  const std::string words = line % 3 == 0 ? "one two three" : line % 3 == 1 ? "Yes, w\u00F6rld." : "def f(): return 1";
  if (model == "qwen" && line % 2 == 0) return "<think>\nHm.\n</think>\n\n" + words;
  if (model == "thinker") return line % 4 == 0 ? "Hm, I" : "Hm.</think>" + words;
  if (model != "harmony") return words;
  return "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>" + words + "<|return|>";
}

Completion completion_of(const IncomingRequest& incoming, const Request& request, const Tokenizer* tokenizer) {
  Completion done;
  done.id = incoming.line;
  done.part = request.part;
  done.model = request.model;
  done.prompt_tokens = static_cast<int>(request.prompt.size());
  if (request.encodes()) {
    const std::size_t values = request.task == Task::kEmbed ? 4 : 3;
    for (std::size_t i = 0; i < values; ++i) done.values.push_back(made_up(incoming.line + request.part, i));
    return done;
  }
  std::vector<TokenId> tokens = {5, 6, 7, 8};
  if (tokenizer != nullptr) {
    tokens =
        Encoder(*tokenizer).encode(answer_of(incoming.model, incoming.line + request.part), /*special_tokens=*/false);
  }
  const auto most = static_cast<std::size_t>(request.max_tokens);
  done.finish_reason = tokens.size() > most ? FinishReason::kLength : FinishReason::kStop;
  tokens.resize(std::min(tokens.size(), most));
  done.generated_tokens = static_cast<int>(tokens.size());
  for (const TokenId token : tokens) done.tokens.push_back(scored(token, incoming.line, done.tokens.size(), request));
  for (std::size_t i = 0; request.echo && i < request.prompt.size(); ++i) {
    done.prompt.push_back(scored(request.prompt[i], incoming.line, i, request));
    if (i == 0) done.prompt[0] = {.token = request.prompt[0], .has_logprob = false, .logprob = 0, .top = {}};
  }
  return done;
}

std::string result_of(const IncomingRequest& incoming, const std::vector<ServedModel>& models) {
  if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) return format_failure(incoming, *failure);
  const auto& parts = std::get<RequestParts>(incoming.content);
  const ServedModel& model = models.at(parts.front().model);
  std::vector<Completion> completions;
  for (const Request& part : parts) completions.push_back(completion_of(incoming, part, model.tokenizer.get()));
  return format_result(incoming, completions, model.config);
}

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream in(std::string(COMPUTRON_BODIES) + "/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> our_results() {
  const std::vector<ServedModel> models = served();
  RequestParser parser(models, {});
  std::vector<std::string> results;
  for (const std::string& line : lines_of("requests.jsonl")) {
    results.push_back(result_of(parser.parse(results.size(), line), models));
  }
  return results;
}

TEST(Bodies, AreThoseThatClientsAccept) {
  const std::vector<std::string> results = our_results();
  if (const char* path = std::getenv("COMPUTRON_WRITE_BODIES"); path != nullptr) {
    std::ofstream out(path);
    for (const std::string& line : results) out << line << '\n';
  }
  const std::vector<std::string> expected = lines_of("results.jsonl");
  EXPECT_GE(results.size(), 200u);
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], expected[i]);
}

// The verdicts of openai's types: null where a prompt's first token has no log-probability, as OpenAI's own interface
// and vLLM have it, is the one thing that they refuse.
TEST(Bodies, WereAllValidated) {
  const json validated = json::parse(read_file(COMPUTRON_BODIES "/validated.json"));
  ASSERT_EQ(validated["verdicts"].size(), lines_of("results.jsonl").size());
  std::uint64_t digest = 0xcbf29ce484222325;  // FNV-1a, as make_bodies.py has it: of the results that were looked at
  for (const char c : read_file(COMPUTRON_BODIES "/results.jsonl")) {
    digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  EXPECT_EQ(validated["results"].get<std::uint64_t>(), digest) << "results that nobody has validated";
  std::set<std::string> types;
  for (std::size_t i = 0; i < validated["verdicts"].size(); ++i) {
    const std::string verdict = validated["verdicts"][i];
    const json result = json::parse(lines_of("results.jsonl")[i]);
    const std::size_t but = verdict.find(" but for ");
    types.insert(verdict.substr(0, but));
    EXPECT_EQ(result["response"]["body"].is_null(), result["error"].is_object());
    if (result["error"].is_object()) {
      EXPECT_EQ(result["error"]["code"], verdict);
    }
    if (but != std::string::npos) {
      EXPECT_EQ(verdict, "Completion but for choices.logprobs.token_logprobs, choices.logprobs.top_logprobs");
    }
  }
  for (const char* type : {"ChatCompletion", "Completion", "CreateEmbeddingResponse"})
    EXPECT_TRUE(types.contains(type));
}

}  // namespace
}  // namespace computron

// Any text through the fixtures' tokenizers: tokens of their own, and a byte-level tokenizer without special tokens in
// the text gives the text back. Any tokens: the same text at once and one by one, and with a stop string up to that.
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "computron/base/utf8.h"
#include "computron/text/generated_text.h"
#include "tests/fuzz/expect.h"

namespace {

using computron::TokenId;

constexpr const char* kKinds[] = {"gpt2",    "llama3",   "opt",         "granite",      "cl100k",
                                  "o200k",   "gpt-neox", "qwen2",       "tekken",       "llama2",
                                  "mistral", "phi3",     "gemma",       "bert-uncased", "bert-cased",
                                  "roberta", "t5",       "xlm-roberta", "unigram-bytes"};
constexpr std::size_t kExact = 6;  // the first so many give a text back

struct Kind {
  explicit Kind(const char* name) : tokenizer(files(name)), encoder(tokenizer) {}

  static computron::TokenizerFiles files(const char* name) {
    computron::TokenizerFiles files;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(COMPUTRON_TEXT_FIXTURES) / name)) {
      std::ifstream in(entry.path(), std::ios::binary);
      if (entry.path().extension() != ".bin") files[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return files;
  }

  computron::Tokenizer tokenizer;
  computron::Encoder encoder;
};

std::vector<std::unique_ptr<Kind>> load() {
  std::vector<std::unique_ptr<Kind>> kinds;
  for (const char* name : kKinds) kinds.push_back(std::make_unique<Kind>(name));
  return kinds;
}

std::string one_by_one(const computron::Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  computron::GeneratedText text(tokenizer, {}, {}, 0);
  for (const TokenId token : tokens) text.push(token);
  text.finish();
  expect(computron::is_utf8(text.text()), "text is UTF-8");
  return text.text();
}

// The text ends before the stop string that is in the text of the tokens so far: with more of them a run of bytes may
// turn out to be no text.
void check_stop(const computron::Tokenizer& tokenizer, const std::vector<TokenId>& tokens, const std::string& stop) {
  computron::GeneratedText text(tokenizer, {}, computron::StopStrings({stop}), 0);
  std::size_t pushed = 0;
  while (pushed < tokens.size() && !text.stopped()) text.push(tokens[pushed++]);
  text.finish();
  const std::string until = tokenizer.decode(std::vector(tokens.begin(), tokens.begin() + static_cast<long>(pushed)));
  expect(text.stopped() == (until.find(stop) != std::string::npos), "a stop string stops");
  expect(text.text() == until.substr(0, until.find(stop)), "the text ends before the stop string");
}

void check_tokens(const computron::Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  const std::string text = tokenizer.decode(tokens);
  expect(one_by_one(tokenizer, tokens) == text, "one by one is the same text");
  const std::string stop = text.substr(text.size() / 2, 3);
  if (computron::is_utf8(stop) && !stop.empty()) check_stop(tokenizer, tokens, stop);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto kinds = load();
  if (size == 0) return 0;
  const std::size_t number = data[0] % kinds.size();
  Kind& kind = *kinds[number];
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1), text;
  computron::take_whole_characters(bytes, text);
  const std::vector<TokenId> tokens = kind.encoder.encode(text, /*special_tokens=*/false);
  for (const TokenId token : tokens) expect(token >= 0 && token < kind.tokenizer.tokens_end(), "a token of its own");
  const bool plain = text.find('<') == std::string::npos;
  if (plain && number < kExact) expect(kind.tokenizer.decode(tokens) == text, "the text comes back");
  check_tokens(kind.tokenizer, tokens);
  std::vector<TokenId> any;
  for (std::size_t i = 1; i + 1 < size; i += 2)
    any.push_back((data[i] << 8 | data[i + 1]) % (kind.tokenizer.tokens_end() + 2));
  check_tokens(kind.tokenizer, any);
  return 0;
}

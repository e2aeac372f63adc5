// Any texts as a tokenizer's files (parts of the input, divided by zero bytes): refused with an error of ours, or a
// tokenizer that takes some texts and gives tokens of its own, whose text is the same at once and one by one.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "computron/text/incremental_decoder.h"
#include "tests/fuzz/expect.h"

namespace {

constexpr const char* kNames[] = {
    "tokenizer.json",    "tokenizer_config.json",  "vocab.json", "merges.txt", "vocab.txt",
    "added_tokens.json", "special_tokens_map.json"};
constexpr const char* kTexts[] = {"", " ", "Hello, world  12",
                                  "ab\xC3\xA9\xF0\x9F\x98\x80\n\xE2\x96\x81 [CLS]</s> don't"};

computron::TokenizerFiles files_of(std::string_view text) {
  computron::TokenizerFiles files;
  for (const char* name : kNames) {
    const std::string_view part = text.substr(0, text.find('\0'));
    if (!part.empty()) files[name] = part;
    text.remove_prefix(std::min(text.size(), part.size() + 1));
  }
  return files;
}

void check(const computron::Tokenizer& tokenizer, const std::vector<computron::TokenId>& tokens) {
  computron::IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (const auto token : tokens) {
    expect(token >= 0 && token < tokenizer.tokens_end(), "a token of the tokenizer's own");
    decoder.push(token, text);
    tokenizer.token_bytes(token);
  }
  decoder.finish(text);
  expect(text == tokenizer.decode(tokens), "one by one is the same text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const computron::Tokenizer tokenizer(files_of({reinterpret_cast<const char*>(data), size}));
    computron::Encoder encoder(tokenizer);
    for (const char* text : kTexts) {
      check(tokenizer, encoder.encode(text));
      check(tokenizer, encoder.encode_pair(text, "b").tokens);
    }
  } catch (const computron::Error& error) {
    expect(error.code() != computron::ExitCode::kInternal, error.what());
  }
  return 0;
}

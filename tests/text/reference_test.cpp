// What the tokenizers library of Hugging Face makes of 10,000 strings and of 1,000 lists of random tokens, a kind of
// tokenizer each: the same here, for the whole text at once and token by token.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "computron/base/utf8.h"
#include "computron/text/incremental_decoder.h"
#include "computron/text/tokenizer.h"
#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<TokenId>;

constexpr std::size_t kRandomLists = 1000;

std::uint32_t fnv(std::string_view bytes, std::uint32_t state = 0x811C9DC5u) {
  for (const unsigned char byte : bytes) state = (state ^ byte) * 0x01000193u;
  return state;
}

std::uint32_t digest(const Tokens& tokens, const std::string& text) {
  std::string bytes(4 * (tokens.size() + 1), '\xFF');
  if (!tokens.empty()) std::memcpy(bytes.data(), tokens.data(), 4 * tokens.size());
  return fnv(text, fnv(bytes));
}

// The same numbers as in make_tokenizers.py.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

// The length is drawn first.
std::vector<Tokens> random_lists(std::uint64_t seed, std::uint64_t tokens) {
  SplitMix numbers(seed);
  std::vector<Tokens> lists(kRandomLists);
  for (Tokens& list : lists) {
    list.resize(numbers.next() % 24);
    for (TokenId& token : list) token = static_cast<TokenId>(numbers.next() % tokens);
  }
  return lists;
}

class Reference : public testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    strings_ = fixture_strings();
    whole_ = Json::parse(read_file(text_fixtures() / "whole.json"));
  }
  void SetUp() override {
    const std::string bytes = read_file(text_fixtures() / GetParam() / "digests.bin");
    digests_.resize(bytes.size() / 4);
    std::memcpy(digests_.data(), bytes.data(), bytes.size());
  }

  const Json& whole() const { return whole_.at(GetParam()); }
  std::vector<Tokens> lists() const { return random_lists(1, whole().at("tokens")); }

  static std::vector<std::string> strings_;
  static Json whole_;
  Tokenizer tokenizer_{tokenizer_files(GetParam())};
  Encoder encoder_{tokenizer_};
  std::vector<std::uint32_t> digests_;  // of the strings, then of the lists
};
std::vector<std::string> Reference::strings_;
Json Reference::whole_;

// First, for what it says of a difference.
TEST_P(Reference, SomeStringsInFull) {
  for (const Json& expected : whole().at("strings")) {
    const std::string& text = strings_.at(expected.at("at"));
    const Tokens tokens = encoder_.encode(text);
    EXPECT_EQ(tokens, expected.at("ids").get<Tokens>()) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer_.decode(expected.at("ids").get<Tokens>()), expected.at("text").get<std::string>())
        << testing::PrintToString(text);
  }
}

TEST_P(Reference, PairsInFull) {
  for (const Json& expected : whole().at("pairs")) {
    const EncodedPair pair =
        encoder_.encode_pair(expected.at("first").get<std::string>(), expected.at("second").get<std::string>());
    EXPECT_EQ(pair.tokens, expected.at("ids").get<Tokens>());
    EXPECT_EQ(pair.token_type_ids, expected.at("types").get<std::vector<std::int32_t>>());
    const Tokens first = encoder_.encode(expected.at("first").get<std::string>(), /*special_tokens=*/false),
                 second = encoder_.encode(expected.at("second").get<std::string>(), /*special_tokens=*/false);
    EXPECT_EQ(encoder_.encode_pair(std::span<const TokenId>(first), second).tokens, pair.tokens);
  }
}

TEST_P(Reference, SomeRandomTokensInFull) {
  const std::vector<Tokens> all = lists();
  for (const Json& expected : whole().at("random")) {
    EXPECT_EQ(tokenizer_.decode(all.at(expected.at("at"))), expected.at("text").get<std::string>())
        << expected.at("at");
  }
}

TEST_P(Reference, AllStrings) {
  ASSERT_GE(strings_.size(), 10'000u);
  ASSERT_EQ(digests_.size(), strings_.size() + kRandomLists);
  int differences = 0;
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    const Tokens tokens = encoder_.encode(strings_[i]);
    const std::string text = tokenizer_.decode(tokens);
    if (digest(tokens, text) == digests_[i] || ++differences > 10) continue;
    ADD_FAILURE() << "string " << i << " " << testing::PrintToString(strings_[i]) << ": "
                  << testing::PrintToString(tokens) << " " << testing::PrintToString(text);
  }
  EXPECT_EQ(differences, 0);
}

TEST_P(Reference, AllRandomTokens) {
  const std::vector<Tokens> all = lists();
  int differences = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string text = tokenizer_.decode(all[i]);
    if (digest({}, text) == digests_[strings_.size() + i] || ++differences > 10) continue;
    ADD_FAILURE() << "list " << i << " " << testing::PrintToString(all[i]) << ": " << testing::PrintToString(text);
  }
  EXPECT_EQ(differences, 0);
}

// A character comes when all of it is there, and behind a prompt comes what the whole text has behind the prompt's.
TEST_P(Reference, TokenByTokenIsTheSameText) {
  for (const Tokens& tokens : lists()) {
    IncrementalDecoder decoder(tokenizer_);
    std::string text;
    for (const TokenId token : tokens) decoder.push(token, text);
    decoder.finish(text);
    ASSERT_EQ(text, tokenizer_.decode(tokens));
  }
}

TEST_P(Reference, BehindAPromptComesTheRestOfTheText) {
  for (std::size_t i = 0; i < strings_.size(); i += 7) {
    const Tokens tokens = encoder_.encode(strings_[i]);
    const std::size_t cut = tokens.size() / 2;
    const std::span<const TokenId> prompt = std::span(tokens).first(cut);
    IncrementalDecoder decoder(tokenizer_, prompt);
    std::string rest;
    for (const TokenId token : std::span(tokens).subspan(cut)) decoder.push(token, rest);
    decoder.finish(rest);
    const std::string all = tokenizer_.decode(tokens), before = tokenizer_.decode(prompt);
    if (!all.starts_with(before)) continue;  // the prompt ends within a character
    ASSERT_EQ(before + rest, all) << testing::PrintToString(tokens) << " cut at " << cut;
  }
}

// Bytes as a text: what is no whole character is replaced.
std::string text_of(std::string bytes) {
  std::string text;
  take_whole_characters(bytes, text);
  if (!bytes.empty()) text += kReplacementCharacter;
  return text;
}

// Guides and logprobs read tokens' own bytes: they are what the decoder makes of a token, added ones included.
TEST_P(Reference, ATokensBytesAreWhatItAddsToAText) {
  const Tokens before = encoder_.encode("a b", /*special_tokens=*/false);
  const std::string text = tokenizer_.decode(before);
  for (TokenId token = 0; token < tokenizer_.tokens_end(); ++token) {
    if (tokenizer_.is_special(token)) continue;
    Tokens tokens = before;
    tokens.push_back(token);
    EXPECT_EQ(tokenizer_.decode(tokens), text + text_of(tokenizer_.token_bytes(token))) << token;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Reference,
                         testing::Values("gpt2", "opt", "llama3", "qwen2", "llama2", "mistral", "bert-uncased",
                                         "bert-cased", "roberta", "gpt-neox", "granite", "cl100k", "o200k", "tekken",
                                         "phi3", "gemma", "t5", "xlm-roberta", "unigram-bytes", "roberta-files",
                                         "qwen2-files"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace computron::test

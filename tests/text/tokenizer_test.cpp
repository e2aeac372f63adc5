// What tokenizer files may say, what of it is refused and how that is named; texts that are none.
#include "computron/text/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>

#include "computron/base/base64.h"
#include "computron/base/utf8.h"
#include "src/text/regex.h"
#include "src/text/unicode.h"
#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A tokenizer.json with `parts` beside a small byte-level model.
TokenizerFiles file_with(const std::string& parts,
                         const std::string& model = R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])") {
  return {{"tokenizer.json", R"({"model":{"type":"BPE",)" + model + "}" + (parts.empty() ? "" : "," + parts) + "}"}};
}

void expect_refused(const TokenizerFiles& files, const std::string& place, const std::string& why) {
  try {
    const Tokenizer tokenizer(files);
    ADD_FAILURE() << "accepted; expected '" << why << "'";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(place), HasSubstr(why)));
  }
}

TEST(TokenizerFile, WhatIsNotSupportedIsNamedWithItsPlace) {
  expect_refused(file_with(R"("normalizer":{"type":"Nmt"})"), "tokenizer.json: normalizer.type", "'Nmt'");
  expect_refused(file_with(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"UnicodeScripts"}]})"),
                 "pre_tokenizer.pretokenizers[0].type", "'UnicodeScripts' is not supported");
  expect_refused(file_with(R"("post_processor":{"type":"Else"})"), "post_processor.type", "'Else'");
  expect_refused(file_with(R"("decoder":{"type":"CTC"})"), "decoder.type", "'CTC'");
  expect_refused(file_with(R"("decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]})"),
                 "decoder.decoders[1].type", "behind Fuse");
  expect_refused(file_with("", R"("vocab":{},"merges":[],"dropout":0.1)"), "model.dropout", "not supported");
  expect_refused(file_with("", R"("vocab":{},"merges":[],"end_of_word_suffix":"</w>")"), "end_of_word_suffix",
                 "not supported");
  expect_refused({{"tokenizer.model", "x"}}, "tokenizer.model", "save the tokenizer with transformers");
  expect_refused({}, "no tokenizer", "vocab.txt");
}

// Each of these took minutes or hours for a text that a request may have.
TEST(TokenizerFile, OneThatWouldTakeForEverIsStopped) {
  const auto encode = [](const std::string& parts, const std::string& text) {
    return Encoder(*std::make_shared<Tokenizer>(file_with(parts))).encode(text, true).size();
  };
  const std::string spaces(std::size_t{1} << 20, ' ');
  for (const char* strip : {R"("lstrip":true)", R"("rstrip":true)"}) {
    EXPECT_EQ(encode(fmt::format(R"("added_tokens":[{{"id":5,"content":" ",{}}}])", strip), spaces), spaces.size());
  }
  const std::string split =
      R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a(?=.*b)|a"},"behavior":"Isolated"})";
  try {
    encode(split, std::string(300'000, 'a'));
    ADD_FAILURE() << "ended";
  } catch (const RequestError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer the text takes more than"));
  }
  expect_refused(file_with(R"("normalizer":{"type":"Replace","pattern":{"String":"x"},"content":")" +
                           std::string(1000, 'a') + R"("},"added_tokens":[{"id":5,"content":"x","normalized":true}])"),
                 "added token 'x'", "1000 bytes (limit 512)");
}

TEST(TokenizerFile, WhatIsDamagedIsNamedWithItsPlace) {
  expect_refused({{"tokenizer.json", "{"}}, "tokenizer.json", "parse error");
  expect_refused({{"tokenizer.json", "[]"}}, "tokenizer.json", "must be an object");
  expect_refused(file_with("", R"("vocab":{"a":-1},"merges":[])"), "model.vocab['a']", "from 0");
  expect_refused(file_with("", R"("vocab":{"a":0,"b":0},"merges":[])"), "", "both have number 0");
  expect_refused(file_with("", R"("vocab":{"a":0},"merges":["a b"])"), "merge 0", "'b' is not in the vocabulary");
  expect_refused(file_with("", R"("vocab":{"a":0},"merges":["a b c"])"), "model.merges[0]", "is not two tokens");
  expect_refused(file_with("", R"("vocab":{"a":0},"merges":[],"unk_token":"?")"), "model.unk_token", "'?'");
  expect_refused(file_with(R"("added_tokens":[{"id":5,"content":"a"}])"), "'a'", "has number 5, but 0");
  expect_refused(file_with(R"("added_tokens":[{"id":0,"content":"x"}])"), "'x'", "which is 'a' in the vocabulary");
  expect_refused(file_with(R"("added_tokens":[{"id":7,"content":"x"},{"id":7,"content":"y"}])"), "'y'", "stands twice");
  expect_refused(file_with(R"("post_processor":{"type":"BertProcessing","cls":["x",9],"sep":["a",0]})"),
                 "post_processor", "puts token 9 around texts, which is none");
  expect_refused(file_with(R"("normalizer":{"type":"Replace","pattern":{"Regex":"("},"content":""})"),
                 "normalizer.pattern", "'('");
  expect_refused({{"vocab.json", "{}"}, {"merges.txt", "one\n"}}, "merges.txt: line 1", "two tokens");
  expect_refused({{"vocab.txt", "[UNK]\n[CLS]\n"}}, "vocab.txt", "[SEP]");
}

TEST(TokenizerFile, IsBounded) {
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += "[";
  expect_refused({{"tokenizer.json", deep}}, "tokenizer.json", "nested deeper");
  expect_refused({{"vocab.txt", std::string(kMaxTokenizerFileBytes + 1, 'a')}}, "vocab.txt", "limit");
  expect_refused(file_with("", R"("vocab":{"a":99999999},"merges":[])"), "model.vocab['a']", "to 4194303");
  const std::string pattern(5000, 'a');
  expect_refused(
      file_with(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":")" + pattern + R"("}})"),
      "pre_tokenizer.pattern", "limit 4096");
}

TEST(Patterns, AreThoseOfTheTokenizersLibrary) {
  EXPECT_EQ(pcre2_pattern("a|[b-d]+?(?!x)"), "a|[b-d]+?(?!x)");
  EXPECT_THAT(pcre2_pattern(R"(\S)"), testing::StartsWith("[^"));
  const auto refused = [](const std::string& pattern, const std::string& why) {
    try {
      Regex::of_pattern(pattern);
      ADD_FAILURE() << pattern;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused(R"(\w+)", "'\\w' is not supported");
  refused(R"([\S])", "'\\S' in a class");
  refused(R"([a[b]])", "a class within a class");
  refused(R"([a&&b])", "'&&'");
  refused(R"(\p{Letter})", "'\\p{Letter}'");
  refused("(*LIMIT_MATCH=9)a", "'(*'");
  refused("(?m:a)", "'(?m:' is not supported");
  refused("(?<name>a)", "'(?<n'");
  refused("a{1,3}+", "'+' behind a count");
  refused("a{,3}", "'{' without a count");
  refused("a*", "matches the empty text");
  refused("a\\", "ends with");
}

TEST(Patterns, LinesEndBeforeNewlines) {
  const auto found = Regex::of_pattern("a$").find("ab a\nb a", 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, 3u);
}

// Letters by case, marks and scripts as the tokenizers' own library has them: that of Unicode 16.
TEST(Patterns, KnowCharactersThatAreYoung) {
  const auto matches = [](const std::string& pattern, const std::string& text) {
    return Regex::of_pattern(pattern).find(text, 0).has_value();
  };
  EXPECT_TRUE(matches(R"(\p{Lu})", "\uA7DA"));
  EXPECT_TRUE(matches(R"([\p{Ll}])", "\uA7DB"));
  EXPECT_FALSE(matches(R"([^\p{M}])", "\u0897"));
  EXPECT_TRUE(matches(R"(\p{Lo})", "\U0002EBF0"));
  EXPECT_TRUE(matches(R"(\p{Han})", "\U0002EBF0"));
  EXPECT_FALSE(matches(R"(\p{Han})", "\u3001"));  // shared with other scripts
}

// An expression that would never come to an end on a long text.
TEST(Patterns, GiveUpOnATextThatTakesTooLong) {
  const Regex slow = Regex::of_pattern("(a+)+$b|(?:a|a)+c");
  EXPECT_THROW(slow.find(std::string(5000, 'a') + "d", 0), RequestError);
}

TEST(Text, MustBeUtf8) {
  const Tokenizer tokenizer(tokenizer_files("gpt2"));
  Encoder encoder(tokenizer);
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80"}) {
    EXPECT_THROW(encoder.encode(text), RequestError) << text;
  }
  EXPECT_EQ(tokenizer.decode(encoder.encode(std::string("a\0b", 3))), std::string("a\0b", 3));
}

TEST(Text, CharactersAreTakenWholeAndTheRestReplaced) {
  const auto taken = [](std::string bytes) {
    std::string text;
    take_whole_characters(bytes, text);
    return std::pair(text, bytes);
  };
  EXPECT_EQ(taken("a\xE2\x82"), std::pair(std::string("a"), std::string("\xE2\x82")));
  EXPECT_EQ(taken("\xE2\x82\xAC"), std::pair(std::string("\u20AC"), std::string()));
  EXPECT_EQ(taken("\xE2\x82x"), std::pair(std::string("\uFFFDx"), std::string()));
  EXPECT_EQ(taken("\xE2\x28\xFF"), std::pair(std::string("\uFFFD(\uFFFD"), std::string()));
  EXPECT_EQ(taken("\xF0\x80\x80"), std::pair(std::string("\uFFFD\uFFFD\uFFFD"), std::string()));
}

// A tokenizer.json with a Unigram model of `vocab` whose first token is the unknown one.
TokenizerFiles unigram(const std::string& vocab, const std::string& more = "") {
  return {{"tokenizer.json", R"({"model":{"type":"Unigram","unk_id":0,"vocab":)" + vocab + more + "}}"}};
}

// Ways that score alike: the last token that begins first; a run of unknown characters is one.
TEST(Unigram, TakesTheBestWay) {
  const Tokenizer tokenizer(unigram(R"([["?",0],["a",-1],["b",-1],["ab",-2],["aba",-2.5]])"));
  Encoder encoder(tokenizer);
  EXPECT_EQ(encoder.encode("ab"), (std::vector<TokenId>{3}));
  EXPECT_EQ(encoder.encode("abab"), (std::vector<TokenId>{4, 2}));
  EXPECT_EQ(encoder.encode("\u4E2D\u6587a!"), (std::vector<TokenId>{0, 1, 0}));
}

// The limit of work would end one that is not linear.
TEST(Unigram, TakesALongTextWithoutSpaces) {
  const Tokenizer tokenizer(unigram(R"([["?",0],["a",-3],["aa",-4],["ab",-3]])"));
  std::string text;
  while (text.size() < std::size_t{1} << 20) text += "aab";
  EXPECT_EQ(Encoder(tokenizer).encode(text, true).size(), 2 * text.size() / 3);
}

TEST(Unigram, WhatIsDamagedIsNamedWithItsPlace) {
  expect_refused(unigram("{}"), "model.vocab", "must be a list");
  expect_refused(unigram("[]"), "model.vocab", "is empty");
  expect_refused(unigram(R"([["a"]])"), "model.vocab[0]", "a token and its score");
  expect_refused(unigram(R"(["ab"])"), "model.vocab[0]", "must be a list");
  expect_refused(unigram(R"([[1,0]])"), "model.vocab[0][0]", "must be a string");
  expect_refused(unigram(R"([["a",null]])"), "model.vocab[0][1]", "must be a number");
  expect_refused(unigram(R"([["a",NaN]])"), "tokenizer.json", "parse error");
  expect_refused(unigram(R"([["a",1e999]])"), "tokenizer.json", "number overflow");
  expect_refused(unigram(R"([["a",0],["a",0]])"), "", "stands twice");
  expect_refused(unigram(R"([["a",0]])", R"(,"unk_id":1)"), "model.unk_id", "from 0 to 0");
  expect_refused(unigram(R"([["a",0]])", R"(,"unk_id":null)"), "model.unk_id", "integer");
  expect_refused(unigram(R"([["a",0]])", R"(,"byte_fallback":1)"), "model.byte_fallback", "true or false");
  expect_refused(file_with("", R"("vocab":[["a",0]],"merges":[])"), "model.vocab", "must be an object");
}

// A table of replacements: a double array, then texts.
TokenizerFiles precompiled(const std::vector<std::uint32_t>& units, const std::string& texts) {
  std::vector<std::uint32_t> words{static_cast<std::uint32_t>(4 * units.size())};
  words.insert(words.end(), units.begin(), units.end());
  const auto bytes = std::as_bytes(std::span(words));
  std::vector<std::byte> table(bytes.begin(), bytes.end());
  for (const char c : texts) table.push_back(static_cast<std::byte>(c));
  return file_with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":")" + encode_base64(table) + R"("})");
}

TEST(Precompiled, WhatIsDamagedIsNamed) {
  const auto raw = [](const std::string& value) {
    return file_with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":)" + value + "}");
  };
  const std::string place = "normalizer.precompiled_charsmap";
  expect_refused(raw("null"), place, "must be a string");
  expect_refused(raw(R"("Zg=")"), place, "is not base64");
  expect_refused(raw(R"("")"), place, "before the size of its trie");
  expect_refused(raw(R"("AAAAAA==")"), place, "its trie has 0 bytes");
  expect_refused(raw(R"("CAAAAAAAAAA=")"), place, "ends within its trie");
  expect_refused(precompiled({0}, ""), place, "unit 0 of its trie leads beyond");
  expect_refused(precompiled(std::vector<std::uint32_t>(256), "\xFF"), place, "not UTF-8");
  // The root's children stand around 256, those of 'a' around `base`.
  const auto with_a = [](std::uint32_t base, std::uint32_t value) {
    std::vector<std::uint32_t> units(512);
    units[0] = 256 << 10;
    units[256 ^ 'a'] = 'a' | (256 ^ 'a' ^ base) << 10 | 0x100;
    units[base] = 0x80000000u | value;
    return units;
  };
  const std::string texts("b\0", 2);
  expect_refused(precompiled(with_a(256, 0), texts), place, "leads to itself");
  expect_refused(precompiled(with_a(128, 2), texts), place, "stands for no text");
  expect_refused(precompiled(with_a(128, 0), "\xC3"), place, "not UTF-8");
  const Tokenizer tokenizer(precompiled(with_a(128, 0), texts));
  EXPECT_EQ(Encoder(tokenizer).encode("aba"), (std::vector<TokenId>{1, 1, 1}));
}

// One that is added after another has been cut out of a text keeps its place.
TEST(AddedTokens, LongestFirstAndOnlyWholeWordsWhereAsked) {
  const Tokenizer tokenizer(file_with(R"("added_tokens":[{"id":3,"content":"<x>"},{"id":4,"content":"<x><x>"},)"
                                      R"({"id":5,"content":"ba","single_word":true,"normalized":false}])"));
  Encoder encoder(tokenizer);
  EXPECT_EQ(encoder.encode("<x><x><x>"), (std::vector<TokenId>{4, 3}));
  EXPECT_EQ(encoder.encode("ab ba"), (std::vector<TokenId>{2, 5}));
  EXPECT_EQ(encoder.encode("aba"), (std::vector<TokenId>{2, 0}));
}

TEST(Settings, WithoutAPostProcessorSayWhatStandsAround) {
  const auto tokens_of = [](const TokenizerFiles& some) {
    const Tokenizer tokenizer(some);
    return Encoder(tokenizer).encode("ab").size();
  };
  TokenizerFiles files = file_with(R"("added_tokens":[{"id":3,"content":"<s>","special":true}])");
  files["tokenizer_config.json"] = R"({"add_bos_token":true,"bos_token":"<s>"})";
  EXPECT_EQ(tokens_of(files), 2u);
  files["tokenizer_config.json"] = R"({"add_bos_token":false,"bos_token":"<s>"})";
  EXPECT_EQ(tokens_of(files), 1u);
  files["tokenizer_config.json"] = R"({"add_eos_token":true,"eos_token":{"content":"nope"}})";
  expect_refused(files, "tokenizer_config.json: eos_token", "'nope' is no token");
}

// Two letters, tokens that begin and end texts, and a post-processor.
class AroundAText : public testing::Test {
 protected:
  using Tokens = std::vector<TokenId>;

  // Tokens of "ab", which is 2; <s> is 3 and </s> is 4. Warnings come with them.
  std::pair<Tokens, std::vector<std::string>> encode(const std::string& post_processor, const std::string& settings) {
    TokenizerFiles files = file_with(R"("added_tokens":[{"id":3,"content":"<s>","special":true},)"
                                     R"({"id":4,"content":"</s>","special":true}],"post_processor":)" +
                                     post_processor);
    files["tokenizer_config.json"] = R"({"bos_token":"<s>","eos_token":"</s>")" + settings + "}";
    const Tokenizer tokenizer(files);
    return {Encoder(tokenizer).encode("ab"), tokenizer.warnings()};
  }
  void expect_tokens(const std::string& post_processor, const std::string& settings, const Tokens& tokens,
                     const std::string& warning = "") {
    const auto [found, warnings] = encode(post_processor, settings);
    EXPECT_EQ(found, tokens) << post_processor << settings;
    if (warning.empty()) {
      EXPECT_THAT(warnings, testing::IsEmpty()) << post_processor << settings;
    } else {
      EXPECT_THAT(warnings, testing::ElementsAre(HasSubstr(warning))) << post_processor << settings;
    }
  }

  const std::string none = "null", bytes = R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false})";
  // <s> A, as Llama 2 has it.
  const std::string begin =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
      R"("pair":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},)"
      R"({"SpecialToken":{"id":"<s>","type_id":1}},{"Sequence":{"id":"B","type_id":1}}],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}})";
};

// Transformers 4's Llama, Gemma, ... make their post-processor of the settings; 5 goes by tokenizer.json.
TEST_F(AroundAText, SettingsDecideInTheClassesThatGoByThem) {
  const std::string by_settings = "add_bos_token and add_eos_token say";
  for (const std::string name : {"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizerFast", "CohereTokenizerFast"}) {
    const std::string type = R"(,"tokenizer_class":")" + name + '"';
    expect_tokens(begin, type + R"(,"add_bos_token":true,"add_eos_token":true)", {3, 2, 4}, by_settings);
    expect_tokens(begin, type + R"(,"add_bos_token":true)", {3, 2});
    expect_tokens(begin, type, {3, 2});
    expect_tokens(begin, type + R"(,"add_bos_token":false)", {2}, by_settings);
    expect_tokens(bytes, type, {3, 2}, by_settings);
    expect_tokens(bytes, type + R"(,"add_bos_token":false)", {2});
  }
  expect_tokens(begin, R"(,"tokenizer_class":"GPTNeoXTokenizerFast")", {2}, "of a GPTNeoXTokenizer " + by_settings);
  expect_tokens(begin, R"(,"tokenizer_class":"GPTNeoXTokenizer","add_eos_token":true)", {2, 4}, by_settings);
}

TEST_F(AroundAText, TokenizerJsonDecidesInOtherClasses) {
  for (const std::string type : {"", R"(,"tokenizer_class":"PreTrainedTokenizerFast")"}) {
    expect_tokens(begin, type + R"(,"add_eos_token":true)", {3, 2});
    expect_tokens(begin, type + R"(,"add_bos_token":false)", {3, 2});
    expect_tokens(bytes, type, {2});
  }
}

TEST_F(AroundAText, SettingsCountWhereTokenizerJsonPutsNothing) {
  const std::string type = R"(,"tokenizer_class":"Qwen2Tokenizer")";
  for (const std::string& nothing : {none, bytes}) {
    expect_tokens(nothing, type + R"(,"add_eos_token":true)", {2, 4}, "of a Qwen2Tokenizer transformers does not");
    expect_tokens(nothing, R"(,"add_bos_token":true)", {3, 2}, "of no tokenizer_class transformers does not");
    expect_tokens(nothing, type + R"(,"add_eos_token":false)", {2});
  }
}

// Tokens that the class names stand for those that the files leave open, but not for those that they deny.
TEST_F(AroundAText, RolesThatTheFilesLeaveOpenAreTheClassesOwn) {
  TokenizerFiles files = file_with(R"("added_tokens":[{"id":3,"content":"<s>","special":true}])");
  files["tokenizer_config.json"] = R"({"tokenizer_class":"LlamaTokenizer"})";
  EXPECT_EQ(Encoder(Tokenizer(files)).encode("ab"), (Tokens{3, 2}));
  files["tokenizer_config.json"] = R"({"tokenizer_class":"LlamaTokenizer","bos_token":null})";
  EXPECT_EQ(Encoder(Tokenizer(files)).encode("ab"), (Tokens{2}));
  files["tokenizer_config.json"] = R"({"tokenizer_class":"GemmaTokenizer"})";  // its <bos> is no token here
  EXPECT_EQ(Encoder(Tokenizer(files)).encode("ab"), (Tokens{2}));
}

// What is read of vocab.json and merges.txt, and of vocab.txt, depends on the class, which the model's type tells where
// no setting does.
class VocabularyFiles : public testing::Test {
 protected:
  static TokenizerFiles of_class(const std::string& kind, const std::string& name) {
    TokenizerFiles files = tokenizer_files(kind);
    files["tokenizer_config.json"] = name.empty() ? "{}" : R"({"tokenizer_class":")" + name + R"("})";
    files.erase("added_tokens.json");
    return files;
  }
  static std::vector<TokenId> encode(const TokenizerFiles& files, std::string_view model_type = {}) {
    const Tokenizer tokenizer(files, model_type);
    return Encoder(tokenizer).encode("(self)  <mask>cafe\u0301");
  }
};

TEST_F(VocabularyFiles, TheModelsTypeTellsTheClassWhereNoSettingDoes) {
  const auto gpt2 = encode(of_class("roberta-files", "GPT2Tokenizer")),
             qwen2 = encode(of_class("roberta-files", "Qwen2Tokenizer")),
             roberta = encode(of_class("roberta-files", "RobertaTokenizer"));
  EXPECT_NE(gpt2, qwen2);
  EXPECT_NE(gpt2, roberta);
  EXPECT_EQ(encode(of_class("roberta-files", "RobertaTokenizerFast")), roberta);
  for (const char* model : {"", "gpt2", "opt", "granite"})
    EXPECT_EQ(encode(of_class("roberta-files", ""), model), gpt2) << model;
  for (const char* model : {"qwen2", "qwen3_moe"})
    EXPECT_EQ(encode(of_class("roberta-files", ""), model), qwen2) << model;
  EXPECT_EQ(encode(of_class("roberta-files", ""), "roberta"), roberta);
  EXPECT_EQ(encode(of_class("roberta-files", "GPT2Tokenizer"), "roberta"), gpt2);  // a setting goes before it
  EXPECT_EQ(encode(of_class("bert-cased", ""), "distilbert"), encode(of_class("bert-cased", "BertTokenizer")));
}

TEST_F(VocabularyFiles, OtherClassesAreRefusedByName) {
  const auto refuse = [](const TokenizerFiles& files, const char* model_type, const std::string& why) {
    try {
      const Tokenizer tokenizer(files, model_type);
      ADD_FAILURE() << "accepted; expected '" << why << "'";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(why), HasSubstr("without tokenizer.json")));
    }
  };
  refuse(of_class("opt", "HerbertTokenizer"), "bert", "vocab.json is a HerbertTokenizer's");
  refuse(of_class("opt", "BertTokenizer"), "", "vocab.json is a BertTokenizer's");
  refuse(of_class("opt", ""), "llama", "vocab.json is a llama's");
  refuse(of_class("bert-cased", "BertJapaneseTokenizer"), "bert", "vocab.txt is a BertJapaneseTokenizer's");
  refuse(of_class("bert-cased", ""), "roberta", "vocab.txt is a RobertaTokenizer's");
}

// RoBERTa's <mask> takes the space before it along unless a file describes it otherwise.
TEST_F(VocabularyFiles, RobertasMaskTakesTheSpaceBeforeIt) {
  TokenizerFiles files = tokenizer_files("roberta-files");
  const std::vector<TokenId> mask_alone = {0, 4, 2};
  const auto encode_mask = [&files] { return Encoder(*std::make_unique<Tokenizer>(files)).encode("  <mask>"); };
  EXPECT_EQ(encode_mask(), mask_alone);
  files["special_tokens_map.json"] = R"({"mask_token":{"content":"<mask>","lstrip":true}})";
  EXPECT_EQ(encode_mask(), mask_alone);
  files["special_tokens_map.json"] = R"({"mask_token":{"content":"<mask>","lstrip":false}})";
  EXPECT_NE(encode_mask(), mask_alone);
}

}  // namespace
}  // namespace computron::test

#include "computron/model/config.h"

#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace computron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string message_of(const std::function<void()>& action, ExitCode* code = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "";
}

json small_opt() {
  return {{"model_type", "opt"},      {"hidden_size", 64}, {"num_hidden_layers", 2},       {"ffn_dim", 256},
          {"num_attention_heads", 4}, {"vocab_size", 100}, {"max_position_embeddings", 32}};
}

ModelConfig from_hf(const json& hf) { return ModelConfig::from_hf_json(hf.dump()); }

// The message with which `small_opt()` is refused after `key` has been set.
std::string refusal(const std::string& key, const json& value) {
  json hf = small_opt();
  hf[key] = value;
  ExitCode code = ExitCode::kConfig;
  const auto what = message_of([&] { from_hf(hf); }, &code);
  EXPECT_EQ(code, ExitCode::kConfig);
  return what;
}

TEST(HfConfig, ReadsTheKeysOfOpt) {
  json hf = small_opt();
  hf["eos_token_id"] = 7;
  hf["bos_token_id"] = 8;
  const ModelConfig config = from_hf(hf);
  EXPECT_EQ(config.architecture, "opt");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.ffn, 256);
  EXPECT_EQ(config.vocab, 100);
  EXPECT_EQ(config.max_positions, 32);
  EXPECT_EQ(config.position_offset, 2);
  EXPECT_THAT(config.eos_tokens, ElementsAre(7));
  EXPECT_EQ(config.bos_token, 8);
}

// transformers' OPTConfig() is opt-125m.
TEST(HfConfig, AbsentKeysTakeTransformersDefaults) {
  EXPECT_EQ(from_hf({{"model_type", "opt"}}).to_json(), ModelConfig::named("opt", "125m").to_json());
}

TEST(HfConfig, Flags) {
  json hf = small_opt();
  hf["enable_bias"] = false;
  hf["_remove_final_layer_norm"] = true;
  hf["tie_word_embeddings"] = false;
  hf["activation_function"] = "gelu";
  hf["eos_token_id"] = {3, 4};
  hf["bos_token_id"] = nullptr;
  hf["word_embed_proj_dim"] = 64;
  hf["torch_dtype"] = "float16";
  const ModelConfig config = from_hf(hf);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_FALSE(config.final_norm);
  EXPECT_FALSE(config.tied_head);
  EXPECT_TRUE(config.norm_bias);
  EXPECT_EQ(config.activation, Activation::kGeluErf);
  EXPECT_THAT(config.eos_tokens, ElementsAre(3, 4));
  EXPECT_EQ(config.bos_token, -1);
}

TEST(HfConfig, RefusesWhatIsNotComputedByName) {
  EXPECT_THAT(refusal("do_layer_norm_before", false), AllOf(HasSubstr("'do_layer_norm_before'"), HasSubstr("false")));
  EXPECT_THAT(refusal("word_embed_proj_dim", 32), AllOf(HasSubstr("'word_embed_proj_dim' is 32"), HasSubstr("64")));
  EXPECT_THAT(refusal("activation_function", "silu"), AllOf(HasSubstr("'activation_function'"), HasSubstr("silu")));
  EXPECT_THAT(refusal("layer_norm_elementwise_affine", false), HasSubstr("'layer_norm_elementwise_affine'"));
  EXPECT_THAT(refusal("quantization_config", json::object()), HasSubstr("'quantization_config'"));
  EXPECT_THAT(refusal("model_type", "mamba"), AllOf(HasSubstr("'model_type'"), HasSubstr("mamba")));
  EXPECT_THAT(message_of([] { from_hf(json::object()); }), HasSubstr("'model_type'"));
}

TEST(HfConfig, RefusesWrongTypesAndNumbers) {
  EXPECT_THAT(refusal("hidden_size", "64"), AllOf(HasSubstr("'hidden_size'"), HasSubstr("integer")));
  EXPECT_THAT(refusal("hidden_size", 64.5), HasSubstr("'hidden_size'"));
  EXPECT_THAT(refusal("hidden_size", 1ull << 40), HasSubstr("'hidden_size'"));
  EXPECT_THAT(refusal("hidden_size", ~0ull), HasSubstr("'hidden_size'"));
  EXPECT_THAT(refusal("hidden_size", -64), HasSubstr("hidden"));
  EXPECT_THAT(refusal("num_hidden_layers", 0), HasSubstr("layers"));
  EXPECT_THAT(refusal("vocab_size", 0), HasSubstr("vocab"));
  EXPECT_THAT(refusal("num_attention_heads", 5), AllOf(HasSubstr("64"), HasSubstr("5")));
  EXPECT_THAT(refusal("num_attention_heads", 0), HasSubstr("'num_attention_heads' 0"));
  EXPECT_THAT(refusal("enable_bias", 1), HasSubstr("'enable_bias'"));
  EXPECT_THAT(refusal("eos_token_id", 100), HasSubstr("eos_tokens"));
  EXPECT_THAT(refusal("eos_token_id", {2, "x"}), HasSubstr("'eos_token_id'"));
}

TEST(HfConfig, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"", "{", "[]", "3", "{\"a\":1} x"}) {
    EXPECT_THAT(message_of([&] { ModelConfig::from_hf_json(text); }), HasSubstr("not a JSON object")) << text;
  }
}

ModelConfig unusual() {
  ModelConfig config = ModelConfig::named("opt", "125m");
  config.architecture = "llama";
  config.kv_heads = 4;
  config.norm = NormKind::kRmsNorm;
  config.norm_position = NormPosition::kPost;
  config.positions = PositionKind::kRotary;
  config.activation = Activation::kSilu;
  config.norm_epsilon = 1.3e-6f;
  config.norm_bias = config.attention_bias = config.mlp_bias = config.final_norm = config.tied_head = false;
  config.gated_mlp = true;
  config.position_offset = 0;
  config.eos_tokens = {5, 6};
  config.bos_token = -1;
  return config;
}

TEST(StoredConfig, IsTheIdentity) {
  for (const ModelConfig& config : {ModelConfig::named("opt", "13b"), unusual()}) {
    const ModelConfig copy = ModelConfig::from_json(config.to_json());
    EXPECT_EQ(copy.to_json(), config.to_json());
    EXPECT_EQ(copy.norm, config.norm);
    EXPECT_EQ(copy.norm_position, config.norm_position);
    EXPECT_EQ(copy.positions, config.positions);
    EXPECT_EQ(copy.activation, config.activation);
    EXPECT_EQ(copy.norm_epsilon, config.norm_epsilon);
    EXPECT_EQ(copy.gated_mlp, config.gated_mlp);
    EXPECT_EQ(copy.eos_tokens, config.eos_tokens);
    EXPECT_EQ(copy.bos_token, config.bos_token);
  }
}

TEST(StoredConfig, EveryFieldIsStoredAndNeeded) {
  const json stored = json::parse(unusual().to_json());
  EXPECT_EQ(stored.size(), 23u);
  for (const auto& [key, value] : stored.items()) {
    json without = stored;
    without.erase(key);
    EXPECT_THAT(message_of([&] { ModelConfig::from_json(without.dump()); }), HasSubstr(key + "' is missing"));
    json wrong = stored;
    wrong[key] = json::object();
    EXPECT_THAT(message_of([&] { ModelConfig::from_json(wrong.dump()); }), HasSubstr(key + "'"));
  }
  json more = stored;
  more["window"] = 3;
  EXPECT_THAT(message_of([&] { ModelConfig::from_json(more.dump()); }), HasSubstr("'window'"));
}

TEST(NamedConfig, SizesOfOpt) {
  const ModelConfig config = ModelConfig::named("opt", "6.7b");
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.ffn, 16384);
  EXPECT_EQ(config.vocab, 50272);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_NO_THROW(config.validate());
}

// The published sizes, from the tensors themselves.
TEST(NamedConfig, ParameterCounts) {
  const std::pair<const char*, double> known[] = {{"125m", 125.2e6},  {"1.3b", 1.3158e9}, {"2.7b", 2.6516e9},
                                                  {"6.7b", 6.6585e9}, {"13b", 12.853e9},  {"30b", 29.975e9},
                                                  {"66b", 65.718e9},  {"175b", 174.6e9}};
  for (const auto& [name, parameters] : known) {
    double count = 0;
    for (const TensorSpec& spec : tensor_specs(ModelConfig::named("opt", name))) {
      double elements = 1;
      for (const std::size_t extent : spec.shape) elements *= static_cast<double>(extent);
      count += elements;
    }
    EXPECT_NEAR(count, parameters, parameters * 1e-3) << name;
  }
}

TEST(NamedConfig, UnknownNamesListTheKnown) {
  ExitCode code{};
  EXPECT_THAT(message_of([] { ModelConfig::named("opt", "7b"); }, &code), AllOf(HasSubstr("'7b'"), HasSubstr("175b")));
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(message_of([] { ModelConfig::named("gpt5", "7b"); }, &code), HasSubstr("'gpt5'"));
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(message_of([] { ModelConfig::named("opt", "350m"); }, &code), HasSubstr("350m"));
  EXPECT_EQ(code, ExitCode::kUsage);
}

TEST(Validate, NamesTheContradiction) {
  const auto refused = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = ModelConfig::named("opt", "125m");
    change(config);
    return message_of([&] { config.validate(); });
  };
  EXPECT_THAT(refused([](ModelConfig&) {}), IsEmpty());
  EXPECT_THAT(refused([](ModelConfig& c) { c.architecture.clear(); }), HasSubstr("architecture"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.head_dim = 63; }), AllOf(HasSubstr("63"), HasSubstr("768")));
  EXPECT_THAT(refused([](ModelConfig& c) { c.kv_heads = 5; }), AllOf(HasSubstr("12"), HasSubstr("5")));
  EXPECT_THAT(refused([](ModelConfig& c) { c.kv_heads = 24; }), HasSubstr("kv_heads"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.ffn = 0; }), HasSubstr("ffn"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.max_positions = 0; }), HasSubstr("max_positions"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.position_offset = -1; }), HasSubstr("position_offset"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.bos_token = c.vocab; }), HasSubstr("bos_token"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.norm_epsilon = 0; }), HasSubstr("norm_epsilon"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.positions = PositionKind::kRotary;
                c.architecture = "llama";
                c.head_dim = 63;
              }),
              HasSubstr("odd"));
}

}  // namespace
}  // namespace computron

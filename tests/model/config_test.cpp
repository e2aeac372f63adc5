#include "computron/model/config.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "computron/model/family.h"

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
  EXPECT_THAT(refusal("activation_function", "mish"), AllOf(HasSubstr("'activation_function'"), HasSubstr("mish")));
  EXPECT_THAT(refusal("architectures", {"OPTForSequenceClassification"}),
              AllOf(HasSubstr("'architectures'"), HasSubstr("OPTForCausalLM")));
  EXPECT_THAT(refusal("layer_norm_elementwise_affine", false), HasSubstr("'layer_norm_elementwise_affine'"));
  EXPECT_THAT(refusal("model_type", "mamba"), AllOf(HasSubstr("'model_type'"), HasSubstr("mamba")));
  EXPECT_THAT(message_of([] { from_hf(json::object()); }), HasSubstr("'model_type'"));
}

// Llama 3.2's keys, as on the hub and as newer transformers write them.
TEST(HfConfig, RotaryOldAndNew) {
  const json scaling = {{"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  json old = {{"model_type", "llama"}, {"rope_theta", 5e5}, {"rope_scaling", scaling}, {"head_dim", 64}};
  old["rope_scaling"]["rope_type"] = "llama3";
  json now = {{"model_type", "llama"}, {"rope_parameters", scaling}, {"head_dim", 64}};
  now["rope_parameters"]["rope_type"] = "llama3";
  now["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_EQ(from_hf(old).to_json(), from_hf(now).to_json());
  EXPECT_EQ(from_hf(now).rope_scaling, RopeScaling::kLlama3);
  EXPECT_EQ(from_hf(now).rope_theta, 5e5f);
  EXPECT_EQ(from_hf(now).rope_factor, 32);
  EXPECT_EQ(from_hf(now).head_dim, 64);
  now["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_THAT(message_of([&] { from_hf(now); }),
              AllOf(HasSubstr("'rope_type'"), HasSubstr("yarn"), HasSubstr("linear")));
}

TEST(HfConfig, Windows) {
  EXPECT_EQ(from_hf({{"model_type", "mistral"}}).sliding_window, 4096);
  EXPECT_EQ(from_hf({{"model_type", "mistral"}, {"sliding_window", nullptr}}).sliding_window, 0);
  EXPECT_EQ(from_hf({{"model_type", "qwen2"}, {"sliding_window", 4096}}).sliding_window, 0);
  json qwen = {{"model_type", "qwen2"}, {"use_sliding_window", true}, {"max_window_layers", 0}};
  EXPECT_EQ(from_hf(qwen).sliding_window, 4096);
  qwen["max_window_layers"] = 5;
  EXPECT_THAT(message_of([&] { from_hf(qwen); }), HasSubstr("'max_window_layers'"));
}

TEST(HfConfig, ClassesAndTokens) {
  const ModelConfig bert = from_hf({{"model_type", "bert"},
                                    {"architectures", {"BertForSequenceClassification"}},
                                    {"id2label", {{"0", "bad"}, {"1", "good"}, {"2", "fine"}}}});
  EXPECT_EQ(bert.classes, 3);
  EXPECT_EQ(bert.class_name(1), "good");
  EXPECT_TRUE(bert.pooler);
  EXPECT_EQ(from_hf({{"model_type", "bert"}}).classes, 0);
  const ModelConfig vit = from_hf({{"model_type", "vit"}, {"num_labels", 4}});
  EXPECT_EQ(vit.class_name(3), "LABEL_3");
  EXPECT_EQ(vit.max_positions, 197);
  const ModelConfig llama =
      ModelConfig::from_hf_json(R"({"model_type": "llama"})", R"({"eos_token_id": [5, 6], "bos_token_id": 4})");
  EXPECT_THAT(llama.eos_tokens, ElementsAre(5, 6));
  EXPECT_EQ(llama.bos_token, 4);
}

TEST(HfConfig, Images) {
  const char* vit = R"({"model_type": "vit"})";
  const ModelConfig config = ModelConfig::from_hf_json(
      vit, std::nullopt, R"({"resample": 3, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]})");
  EXPECT_EQ(config.image_resampling, Resampling::kBicubic);
  EXPECT_THAT(config.image_mean, ElementsAre(0.1f, 0.2f, 0.3f));
  EXPECT_THAT(config.image_std, ElementsAre(1, 2, 3));
  EXPECT_THAT(message_of([&] { ModelConfig::from_hf_json(vit, std::nullopt, R"({"resample": 0})"); }),
              HasSubstr("'resample'"));
  EXPECT_THAT(message_of([&] { ModelConfig::from_hf_json(vit, std::nullopt, R"({"image_std": [0, 1, 1]})"); }),
              HasSubstr("'image_std'"));
}

// As transformers merges them: rope_scaling before rope_parameters, what neither says from the keys beside them.
TEST(HfConfig, WhichRotaryKeysCount) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  json hf = {{"model_type", "llama"}, {"rope_scaling", llama3}, {"rope_parameters", {{"rope_type", "default"}}}};
  EXPECT_EQ(from_hf(hf).rope_scaling, RopeScaling::kLlama3);
  hf["rope_scaling"]["rope_theta"] = 5e5;
  hf["rope_theta"] = 7e5;
  EXPECT_EQ(from_hf(hf).rope_theta, 5e5f);
  hf["original_max_position_embeddings"] = 4096;
  EXPECT_EQ(from_hf(hf).rope_original_positions, 4096);
  hf["rope_scaling"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'partial_rotary_factor' is 0.5"));
  hf["rope_scaling"] = {{"full_attention", llama3}};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'rope_parameters.full_attention'"));
}

TEST(HfConfig, OtherNamesOfKeys) {
  const ModelConfig gpt2 = from_hf({{"model_type", "gpt2"},
                                    {"hidden_size", 64},
                                    {"num_hidden_layers", 2},
                                    {"num_attention_heads", 4},
                                    {"max_position_embeddings", 32}});
  EXPECT_EQ(gpt2.hidden, 64);
  EXPECT_EQ(gpt2.layers, 2);
  EXPECT_EQ(gpt2.heads, 4);
  EXPECT_EQ(gpt2.max_positions, 32);
  EXPECT_EQ(from_hf({{"model_type", "mixtral"}, {"num_experts", 4}}).experts, 4);
}

TEST(HfConfig, LayerTypesOfQwen2) {
  json hf = {{"model_type", "qwen2"},
             {"num_hidden_layers", 2},
             {"use_sliding_window", true},
             {"sliding_window", 64},
             {"layer_types", {"sliding_attention", "sliding_attention"}}};
  EXPECT_EQ(from_hf(hf).sliding_window, 64);
  hf["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(from_hf(hf).sliding_window, 0);
  hf["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'layer_types'"));
}

TEST(HfConfig, RefusesWhatClassifiersCannotSay) {
  json hf = {{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}};
  hf["problem_type"] = "multi_label_classification";
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'problem_type'"));
  hf["problem_type"] = nullptr;
  hf["id2label"] = {{"0", "score"}};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), AllOf(HasSubstr("'id2label'"), HasSubstr("regression")));
}

TEST(HfConfig, OtherFilesAreNamed) {
  const auto refusal_of = [](const char* generation, const char* preprocessor) {
    return message_of([&] {
      ModelConfig::from_hf_json(R"({"model_type": "vit", "num_channels": 3})", generation,
                                preprocessor == nullptr ? std::nullopt : std::optional<std::string>(preprocessor));
    });
  };
  EXPECT_THAT(refusal_of("", nullptr), HasSubstr("generation_config.json is not a JSON object"));
  EXPECT_THAT(refusal_of("{}", "["), HasSubstr("preprocessor_config.json is not a JSON object"));
  EXPECT_THAT(refusal_of("{}", R"({"rescale_factor": 0.00784})"), HasSubstr("'rescale_factor'"));
  EXPECT_THAT(refusal_of("{}", R"({"size": {"height": 224, "width": 225}})"), HasSubstr("'size' is 225"));
  EXPECT_THAT(refusal_of("{}", R"({"size": 99})"), HasSubstr("'size' is 99"));
  EXPECT_EQ(refusal_of(R"({"bos_token_id": []})", R"({"size": {"height": 224, "width": 224}})"), "");
  for (const int channels : {-1, 500000000}) {
    EXPECT_THAT(message_of([&] {
                  ModelConfig::from_hf_json(json({{"model_type", "vit"}, {"num_channels", channels}}).dump(), "{}",
                                            R"({"do_normalize": false})");
                }),
                HasSubstr("'channels'"));
  }
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
  EXPECT_THAT(refusal("num_attention_heads", 0), HasSubstr("0 attention heads"));
  EXPECT_THAT(refusal("enable_bias", 1), HasSubstr("'enable_bias'"));
  EXPECT_THAT(refusal("eos_token_id", 100), HasSubstr("eos_tokens"));
  EXPECT_THAT(refusal("eos_token_id", {2, "x"}), HasSubstr("'eos_token_id'"));
}

TEST(HfConfig, RefusesWhatIsNestedWithoutEnd) {
  const std::string brackets(1 << 20, '[');
  EXPECT_THAT(message_of([&] { ModelConfig::from_hf_json(R"({"model_type":"opt","hidden_size":)" + brackets); }),
              HasSubstr("nested deeper than 64"));
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
  config.norm_bias = config.attention_bias = config.attention_output_bias = config.mlp_bias = false;
  config.final_norm = config.tied_head = false;
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
  EXPECT_EQ(stored.size(), 46u);
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

double parameters(const ModelConfig& config) {
  double count = 0;
  for (const TensorSpec& spec : tensor_specs(config)) {
    double elements = 1;
    for (const std::size_t extent : spec.shape) elements *= static_cast<double>(extent);
    count += elements;
  }
  return count;
}

// Every size of every family, from the tensors themselves, against the published counts (encoders without the
// classifier, which init leaves with two classes).
TEST(NamedConfig, ParameterCounts) {
  const std::map<std::string, std::map<std::string, double>> published = {
      {"opt",
       {{"125m", 125.24e6},
        {"350m", 331.2e6},
        {"1.3b", 1.3158e9},
        {"2.7b", 2.6516e9},
        {"6.7b", 6.6585e9},
        {"13b", 12.853e9},
        {"30b", 29.975e9},
        {"66b", 65.718e9},
        {"175b", 174.6e9}}},
      {"gpt2", {{"small", 124.44e6}, {"medium", 354.82e6}, {"large", 774.03e6}, {"xl", 1557.6e6}}},
      {"llama",
       {{"2-7b", 6.7384e9},
        {"2-13b", 13.016e9},
        {"2-70b", 68.977e9},
        {"3-8b", 8.0303e9},
        {"3.1-8b", 8.0303e9},
        {"3.1-70b", 70.554e9},
        {"3.2-1b", 1.2358e9},
        {"3.2-3b", 3.2127e9}}},
      {"qwen2",
       {{"2.5-0.5b", 494.03e6},
        {"2.5-1.5b", 1.5437e9},
        {"2.5-3b", 3.0859e9},
        {"2.5-7b", 7.6156e9},
        {"2.5-14b", 14.770e9}}},
      {"mistral", {{"7b-v0.1", 7.2417e9}, {"7b-v0.3", 7.2480e9}}},
      {"mixtral", {{"8x7b", 46.703e9}, {"8x22b", 140.62e9}}},
      {"bert", {{"tiny", 4.386e6}, {"base", 109.48e6}, {"large", 335.14e6}}},
      {"vit", {{"base", 85.80e6}, {"large", 303.30e6}, {"huge", 630.77e6}}}};
  for (const Family* family : families()) {
    const auto& sizes = published.at(std::string(family->model_type));
    EXPECT_EQ(sizes.size(), family->sizes.size()) << family->model_type;
    for (const PublishedSize& size : family->sizes) {
      const double expected = sizes.at(std::string(size.name));
      EXPECT_NEAR(parameters(ModelConfig::named(family->model_type, size.name)), expected, expected * 1e-3)
          << family->model_type << " " << size.name;
    }
  }
}

// Every tensor of every family has a name in Hugging Face files; parts of one tensor share it, nothing else does.
TEST(Families, EveryTensorHasASource) {
  for (const Family* family : families()) {
    std::set<std::pair<std::string, int>> seen;
    for (const TensorSpec& spec : tensor_specs(ModelConfig::named(family->model_type, family->sizes.front().name))) {
      const SourceTensor source = family->source_of(spec.name);
      EXPECT_TRUE(seen.emplace(source.name, source.part).second) << spec.name << " shares " << source.name;
      EXPECT_LT(source.part, source.parts);
      EXPECT_FALSE(family->ignores(source.name)) << source.name;
    }
  }
}

TEST(Families, NamesOfTensors) {
  const auto source = [](const char* family, const char* ours) { return family_of(family).source_of(ours).name; };
  EXPECT_EQ(source("opt", "layers.11.mlp.up.bias"), "decoder.layers.11.fc1.bias");
  EXPECT_EQ(source("opt", "head.weight"), "lm_head.weight");
  EXPECT_EQ(source("opt", "head.projection.weight"), "decoder.project_out.weight");
  EXPECT_EQ(source("llama", "layers.7.attention_norm.weight"), "layers.7.input_layernorm.weight");
  EXPECT_EQ(source("mixtral", "layers.3.mlp.experts.5.down.weight"), "layers.3.block_sparse_moe.experts.5.w2.weight");
  EXPECT_EQ(source("bert", "layers.0.attention_norm.bias"), "encoder.layer.0.attention.output.LayerNorm.bias");
  EXPECT_EQ(source("vit", "embedding.class_token"), "embeddings.cls_token");
  EXPECT_EQ(source("vit", "embedding.positions.weight"), "embeddings.position_embeddings");
  const SourceTensor value = family_of("gpt2").source_of("layers.2.attention.value.weight");
  EXPECT_EQ(value.name, "h.2.attn.c_attn.weight");
  EXPECT_TRUE(value.transposed);
  EXPECT_EQ(value.part, 2);
  EXPECT_EQ(value.parts, 3);
  EXPECT_FALSE(family_of("gpt2").source_of("layers.2.attention.value.bias").transposed);
}

TEST(Families, PlainNames) {
  EXPECT_EQ(family_of("opt").plain_name("model.decoder.embed_tokens.weight"), "decoder.embed_tokens.weight");
  EXPECT_EQ(family_of("opt").plain_name("decoder.embed_tokens.weight"), "decoder.embed_tokens.weight");
  EXPECT_EQ(family_of("bert").plain_name("bert.embeddings.LayerNorm.gamma"), "embeddings.LayerNorm.weight");
  EXPECT_TRUE(family_of("bert").ignores("cls.predictions.bias"));
  EXPECT_TRUE(family_of("gpt2").ignores("h.3.attn.masked_bias"));
  EXPECT_FALSE(family_of("gpt2").ignores("h.3.attn.c_attn.bias"));
}

TEST(NamedConfig, UnknownNamesListTheKnown) {
  ExitCode code{};
  EXPECT_THAT(message_of([] { ModelConfig::named("opt", "7b"); }, &code), AllOf(HasSubstr("'7b'"), HasSubstr("175b")));
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(message_of([] { ModelConfig::named("gpt5", "7b"); }, &code), HasSubstr("'gpt5'"));
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

#include "computron/model/config.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

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
  now["rope_parameters"]["rope_type"] = "dynamic";
  EXPECT_THAT(message_of([&] { from_hf(now); }),
              AllOf(HasSubstr("'rope_type'"), HasSubstr("dynamic"), HasSubstr("linear")));
}

TEST(HfConfig, Yarn) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  json hf = {{"model_type", "qwen3"}, {"rope_scaling", yarn}};
  const ModelConfig config = from_hf(hf);
  EXPECT_EQ(config.rope_scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope_factor, 4);
  EXPECT_EQ(config.rope_original_positions, 32768);
  EXPECT_EQ(config.rope_beta_fast, 32);
  EXPECT_EQ(config.rope_beta_slow, 1);
  EXPECT_TRUE(config.rope_whole_dims);
  EXPECT_FLOAT_EQ(config.rope_attention_factor, 0.1f * std::log(4.0f) + 1);
  hf["rope_scaling"]["mscale"] = 0.5;
  hf["rope_scaling"]["mscale_all_dim"] = 1.0;
  EXPECT_FLOAT_EQ(from_hf(hf).rope_attention_factor, (0.05f * std::log(4.0f) + 1) / (0.1f * std::log(4.0f) + 1));
  hf["rope_scaling"]["attention_factor"] = 1.25;
  hf["rope_scaling"]["truncate"] = false;
  EXPECT_EQ(from_hf(hf).rope_attention_factor, 1.25f);
  EXPECT_FALSE(from_hf(hf).rope_whole_dims);
  hf["rope_theta"] = 1.0;
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'rope_theta' is 1"));
}

// As vLLM, whose yarn begins at the original positions; the longer of that and max_position_embeddings counts.
TEST(HfConfig, ScalingLengthensTheContext) {
  const auto positions = [](int most, const json& scaling, const char* type = "qwen3") {
    return from_hf({{"model_type", type}, {"max_position_embeddings", most}, {"rope_scaling", scaling}}).max_positions;
  };
  json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(positions(32768, scaling), 131072);
  EXPECT_EQ(positions(40960, scaling), 131072);
  EXPECT_EQ(positions(131072, scaling), 131072);  // scaled already
  EXPECT_EQ(positions(262144, scaling), 262144);
  scaling.erase("original_max_position_embeddings");
  EXPECT_EQ(positions(32768, scaling), 131072);
  scaling["rope_type"] = "linear";
  EXPECT_EQ(positions(4096, scaling), 16384);
  EXPECT_EQ(positions(4096, scaling, "gemma3_text"), 4096);  // scaled already
  scaling["factor"] = 0.5;
  EXPECT_EQ(positions(4096, scaling), 4096);
  scaling["factor"] = 1e9;
  EXPECT_THAT(message_of([&] { positions(4096, scaling); }), HasSubstr("'max_positions' is 2147483647"));
  EXPECT_EQ(positions(4096, {{"rope_type", "llama3"}, {"factor", 4.0}}), 4096);
  EXPECT_EQ(ModelConfig::named("gpt_oss", "20b").max_positions, 131072);
  EXPECT_EQ(ModelConfig::named("gemma3_text", "4b").max_positions, 131072);
}

json long_phi() {
  const json scaling = {{"type", "longrope"}, {"short_factor", {1.0, 1.5, 2.0}}, {"long_factor", {1.0, 4.0, 9.0}}};
  return {{"model_type", "phi3"},
          {"hidden_size", 64},
          {"num_attention_heads", 8},
          {"partial_rotary_factor", 0.75},
          {"max_position_embeddings", 4096},
          {"original_max_position_embeddings", 256},
          {"rope_scaling", scaling}};
}

TEST(HfConfig, LongRope) {
  const ModelConfig config = from_hf(long_phi());
  EXPECT_EQ(config.rope_scaling, RopeScaling::kLongRope);
  EXPECT_EQ(config.rotated(), 6);
  EXPECT_THAT(config.rope_long_factors, ElementsAre(1, 4, 9));
  EXPECT_FLOAT_EQ(config.rope_attention_factor, std::sqrt(1 + std::log(16.0f) / std::log(256.0f)));
  EXPECT_FALSE(config.takes_long_factors(256));
  EXPECT_TRUE(config.takes_long_factors(257));
  EXPECT_FALSE(ModelConfig::named("phi3", "4").takes_long_factors(257));
}

TEST(HfConfig, RefusesDamagedLongRope) {
  const auto refusal_of = [](const json& change) {
    json hf = long_phi();
    hf.merge_patch(change);
    return message_of([&] { from_hf(hf); });
  };
  EXPECT_THAT(refusal_of({{"rope_scaling", {{"long_factor", {1.0, 2.0}}}}}), HasSubstr("2 factors of 3 pairs"));
  EXPECT_THAT(refusal_of({{"rope_scaling", {{"short_factor", nullptr}}}}), HasSubstr("'rope_short_factors'"));
  EXPECT_THAT(refusal_of({{"rope_scaling", {{"long_factor", {1.0, 0.0, 1.0}}}}}),
              HasSubstr("'rope_long_factors' is 0"));
  EXPECT_THAT(refusal_of({{"rope_scaling", {{"attention_factor", -1.0}}}}), HasSubstr("'rope_attention_factor' is -1"));
  EXPECT_THAT(refusal_of({{"original_max_position_embeddings", 0}}), HasSubstr("rope_"));
  EXPECT_THAT(refusal_of({{"partial_rotary_factor", 1.5}}), HasSubstr("'partial_rotary_factor' is 1.5"));
  EXPECT_THAT(refusal_of({{"partial_rotary_factor", 0.4}}), HasSubstr("'rotary_dims' 3 is odd"));
  EXPECT_THAT(refusal_of({{"partial_rotary_factor", 0.1}}), HasSubstr("'partial_rotary_factor' is 0.1"));
}

// Of layers with a window and of the others: Gemma 3 as on the hub and as newer transformers write it; OLMo 3.
TEST(HfConfig, RotaryByLayer) {
  const json old = {{"model_type", "gemma3_text"},
                    {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
                    {"rope_local_base_freq", 5000.0}};
  const json now = {{"model_type", "gemma3_text"},
                    {"rope_parameters",
                     {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5000.0}}}}}};
  EXPECT_EQ(from_hf(old).to_json(), from_hf(now).to_json());
  EXPECT_EQ(from_hf(now).rope_window_theta, 5000);
  EXPECT_EQ(from_hf(now).rope_theta, 1e6f);
  json other = now;
  other["rope_parameters"]["sliding_attention"]["rope_type"] = "yarn";
  EXPECT_THAT(message_of([&] { from_hf(other); }), HasSubstr("'rope_type' is \"yarn\""));
  EXPECT_EQ(ModelConfig::named("olmo3", "7b").rope_window_theta, 500000);
  EXPECT_EQ(from_hf({{"model_type", "olmo3"}}).rope_window_theta, 0);
}

TEST(HfConfig, LayersOfGemma) {
  const ModelConfig config = ModelConfig::named("gemma3_text", "1b");
  ASSERT_EQ(config.window_layers.size(), 26u);
  for (const int layer : {0, 4, 25}) EXPECT_EQ(config.layer(layer).window, 512) << layer;
  for (const int layer : {5, 11, 23}) EXPECT_EQ(config.layer(layer).window, 0) << layer;
  EXPECT_TRUE(config.layer(0).window_rotation);
  EXPECT_FALSE(config.layer(5).window_rotation);
  EXPECT_EQ(ModelConfig::named("gemma2", "2b").layer(0).window, 4096);
  EXPECT_EQ(ModelConfig::named("gemma2", "2b").layer(1).window, 0);
  EXPECT_FALSE(ModelConfig::named("gemma2", "2b").layer(0).window_rotation);
  json capped = {{"model_type", "gemma2"}, {"final_logit_softcapping", nullptr}};
  EXPECT_EQ(from_hf(capped).logits_soft_cap, 0);
  EXPECT_EQ(from_hf(capped).attention_soft_cap, 50);
  EXPECT_THAT(message_of([] {
                from_hf({{"model_type", "gemma3_text"}, {"sliding_window_pattern", 0}});
              }),
              HasSubstr("'sliding_window_pattern'"));
}

TEST(HfConfig, MultipliersOfGranite) {
  const ModelConfig config = ModelConfig::named("granite", "3.1-2b");
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_EQ(config.attention_scale, 0.015625f);
  EXPECT_EQ(config.residual_scale, 0.22f);
  EXPECT_EQ(config.logits_scale, 0.125f);
  const auto refusal_of = [](const char* key, const json& value) {
    return message_of([&] { from_hf({{"model_type", "granite"}, {key, value}}); });
  };
  EXPECT_THAT(refusal_of("logits_scaling", 0), HasSubstr("'logits_scale'"));
  EXPECT_THAT(refusal_of("residual_multiplier", -1), HasSubstr("'residual_scale'"));
  EXPECT_THAT(refusal_of("attention_multiplier", 0), HasSubstr("'attention_multiplier' is 0"));
  EXPECT_THAT(refusal_of("attention_bias", true), HasSubstr("'attention_bias'"));
}

// The decoder of a model that takes pictures; what tokens end texts may stand beside it.
TEST(HfConfig, WrappedDecoders) {
  json hf = {{"model_type", "gemma3"},
             {"architectures", {"Gemma3ForConditionalGeneration"}},
             {"eos_token_id", {1, 106}},
             {"text_config", {{"model_type", "gemma3_text"}, {"hidden_size", 2560}}},
             {"vision_config", {{"hidden_size", 1152}}}};
  const ModelConfig config = from_hf(hf);
  EXPECT_EQ(config.architecture, "gemma3_text");
  EXPECT_EQ(config.hidden, 2560);
  EXPECT_THAT(config.eos_tokens, ElementsAre(1, 106));
  hf["text_config"]["model_type"] = "llama";
  EXPECT_THAT(message_of([&] { from_hf(hf); }), AllOf(HasSubstr("'model_type'"), HasSubstr("gemma3_text")));
  hf.erase("text_config");
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'text_config'"));
  hf["text_config"] = 3;
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'text_config' is 3"));
  hf["architectures"] = {"Gemma3ForSequenceClassification"};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'architectures'"));
}

TEST(HfConfig, TokensBeyondTheVocabularyAreDropped) {
  const ModelConfig config =
      ModelConfig::from_hf_json(R"({"model_type": "olmo2", "vocab_size": 100, "bos_token_id": 100,
                                    "eos_token_id": [7, 100257]})",
                                R"({"eos_token_id": [9, 100257, 100]})");
  EXPECT_THAT(config.eos_tokens, ElementsAre(9));
  EXPECT_EQ(config.bos_token, -1);
}

TEST(HfConfig, RefusesArchitecturesThatAreNotThereByName) {
  for (const char* type : {"qwen3_5", "qwen3_5_text", "gemma4", "gemma4_text", "deepseek_v3"}) {
    EXPECT_THAT(message_of([&] {
                  from_hf({{"model_type", type}});
                }),
                AllOf(HasSubstr("'model_type'"), HasSubstr(type)));
  }
  EXPECT_THAT(message_of([] {
                from_hf({{"model_type", "deepseek_v3"}, {"kv_lora_rank", 512}});
              }),
              AllOf(HasSubstr("'kv_lora_rank' is 512"), HasSubstr("MLA")));
}

TEST(HfConfig, Windows) {
  EXPECT_EQ(from_hf({{"model_type", "mistral"}}).sliding_window, 4096);
  EXPECT_EQ(from_hf({{"model_type", "mistral"}, {"sliding_window", nullptr}}).sliding_window, 0);
  EXPECT_EQ(from_hf({{"model_type", "qwen2"}, {"sliding_window", 4096}}).sliding_window, 0);
  json qwen = {{"model_type", "qwen2"}, {"use_sliding_window", true}, {"max_window_layers", 0}};
  EXPECT_EQ(from_hf(qwen).sliding_window, 4096);
  EXPECT_THAT(from_hf(qwen).window_layers, IsEmpty());
  qwen["max_window_layers"] = 5;
  const ModelConfig from_fifth = from_hf(qwen);
  EXPECT_EQ(from_fifth.layer(4).window, 0);
  EXPECT_EQ(from_fifth.layer(5).window, 4096);
}

TEST(HfConfig, ClassesAndTokens) {
  const ModelConfig bert = from_hf({{"model_type", "bert"},
                                    {"architectures", {"BertForSequenceClassification"}},
                                    {"id2label", {{"0", "bad"}, {"1", "good"}, {"2", "fine"}}}});
  EXPECT_EQ(bert.classes, 3);
  EXPECT_EQ(bert.class_name(1), "good");
  EXPECT_TRUE(bert.pooler);
  EXPECT_FALSE(from_hf({{"model_type", "bert"}, {"architectures", {"BertForMaskedLM"}}}).pooler);
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
  EXPECT_THAT(from_hf(hf).window_layers, ElementsAre(0, 1));
  hf["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'window_layers' has 3 entries of 2 layers"));
  hf["layer_types"] = {"full_attention", "linear_attention"};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), AllOf(HasSubstr("'layer_types'"), HasSubstr("linear_attention")));
}

TEST(HfConfig, WhatScoresOfClassesAre) {
  json hf = {{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}};
  EXPECT_EQ(from_hf(hf).class_scores, ClassScores::kSoftmax);
  hf["problem_type"] = "multi_label_classification";
  EXPECT_EQ(from_hf(hf).class_scores, ClassScores::kSigmoid);
  hf["problem_type"] = "regression";
  EXPECT_EQ(from_hf(hf).class_scores, ClassScores::kRaw);
  hf["sentence_transformers"] = {{"activation_fn", "torch.nn.modules.activation.Sigmoid"}};
  EXPECT_EQ(from_hf(hf).class_scores, ClassScores::kSigmoid);
  hf["sentence_transformers"] = {{"activation_fn", "torch.nn.modules.activation.GELU"}};
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'activation_fn'"));
  hf.erase("sentence_transformers");
  hf["problem_type"] = "ranking";
  EXPECT_THAT(message_of([&] { from_hf(hf); }), HasSubstr("'problem_type'"));
  hf["problem_type"] = nullptr;
  hf["id2label"] = {{"0", "score"}};
  EXPECT_EQ(from_hf(hf).classes, 1);
  EXPECT_EQ(from_hf(hf).class_scores, ClassScores::kSigmoid) << "CrossEncoder's default";
  hf["sbert_ce_default_activation_function"] = "torch.nn.modules.linear.Identity";
  EXPECT_EQ(from_hf(hf).class_scores, ClassScores::kRaw);
}

TEST(HfConfig, EncodersAfterBert) {
  const ModelConfig roberta = from_hf({{"model_type", "roberta"},
                                       {"architectures", {"RobertaForSequenceClassification"}},
                                       {"max_position_embeddings", 514},
                                       {"num_labels", 3}});
  EXPECT_EQ(roberta.position_offset, 2);
  EXPECT_EQ(roberta.max_positions, 512);
  EXPECT_TRUE(roberta.class_dense);
  EXPECT_FALSE(roberta.pooler);
  const ModelConfig xlm = from_hf({{"model_type", "xlm-roberta"}, {"architectures", {"XLMRobertaModel"}}});
  EXPECT_TRUE(xlm.pooler);
  EXPECT_EQ(xlm.vocab, 250002);
  const ModelConfig distil =
      from_hf({{"model_type", "distilbert"}, {"architectures", {"DistilBertForSequenceClassification"}}});
  EXPECT_EQ(distil.class_activation, Activation::kRelu);
  EXPECT_EQ(distil.token_types, 0);
  const json modern = {{"model_type", "modernbert"}, {"architectures", {"ModernBertForSequenceClassification"}},
                       {"num_hidden_layers", 4},     {"classifier_pooling", "mean"},
                       {"local_attention", 128},     {"global_rope_theta", 160000.0},
                       {"local_rope_theta", 1e4}};
  const ModelConfig config = from_hf(modern);
  EXPECT_EQ(config.sliding_window, 65) << "tokens at a distance of 64 are seen";
  EXPECT_THAT(config.window_layers, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(config.rope_theta, 160000);
  EXPECT_EQ(config.rope_window_theta, 10000);
  EXPECT_FALSE(config.first_attention_norm);
  EXPECT_EQ(config.pooling, Pooling::kMean);
  EXPECT_FALSE(config.class_dense_bias);
  EXPECT_TRUE(config.class_norm);
  json other = modern;
  other["classifier_pooling"] = "max";
  EXPECT_THAT(message_of([&] { from_hf(other); }), HasSubstr("'classifier_pooling'"));
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
  EXPECT_THAT(refusal("eos_token_id", -1), HasSubstr("eos_tokens"));
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
  for (const ModelConfig& config :
       {ModelConfig::named("opt", "13b"), unusual(), ModelConfig::named("gemma2", "2b"), from_hf(long_phi()),
        ModelConfig::named("olmo3", "7b"), ModelConfig::named("granite", "3.1-8b"),
        ModelConfig::named("qwen2_moe", "1.5-a2.7b"), ModelConfig::named("gpt_oss", "20b")}) {
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

// Fields that the first checkpoints did not have.
const std::map<std::string, json> kLaterFields = {{"rotary_dims", 0},
                                                  {"rope_window_theta", 0.0},
                                                  {"rope_beta_fast", 32.0},
                                                  {"rope_beta_slow", 1.0},
                                                  {"rope_whole_dims", true},
                                                  {"rope_attention_factor", 1.0},
                                                  {"rope_short_factors", json::array()},
                                                  {"rope_long_factors", json::array()},
                                                  {"parallel_residual", false},
                                                  {"residual_scale", 1.0},
                                                  {"embedding_scale", 1.0},
                                                  {"window_layers", json::array()},
                                                  {"query_key_norm", "none"},
                                                  {"attention_sinks", false},
                                                  {"gate_limit", 0.0},
                                                  {"gate_offset", 0.0},
                                                  {"expert_ffn", 0},
                                                  {"shared_ffn", 0},
                                                  {"expert_layers", json::array()},
                                                  {"router_softmax", "chosen"},
                                                  {"router_bias", false},
                                                  {"attention_scale", 0.0},
                                                  {"attention_soft_cap", 0.0},
                                                  {"logits_scale", 1.0},
                                                  {"logits_soft_cap", 0.0},
                                                  {"first_attention_norm", true},
                                                  {"embeds", false},
                                                  {"pooling", "first"},
                                                  {"dense", json::array()},
                                                  {"normalize_embedding", false},
                                                  {"class_scores", "softmax"},
                                                  {"class_dense", false},
                                                  {"class_dense_bias", true},
                                                  {"class_activation", "tanh"},
                                                  {"class_norm", false},
                                                  {"max_input_tokens", 0},
                                                  {"lower_case", false},
                                                  {"prompts", json::object()},
                                                  {"default_prompt", ""}};

TEST(StoredConfig, KeepsWhatAnEmbedderIs) {
  ModelConfig config = from_hf({{"model_type", "qwen3"}});
  config.embeds = true;
  config.tied_head = false;
  config.pooling = Pooling::kMean;
  config.dense = {{1024 * 4, 64, true, Activation::kTanh}, {64, 24, false, Activation::kNone}};
  config.normalize_embedding = true;
  config.max_input_tokens = 100;
  config.prompts = {{"query", "find: "}, {"document", ""}};
  config.default_prompt = "query";
  const ModelConfig copy = ModelConfig::from_json(config.to_json());
  EXPECT_EQ(copy.to_json(), config.to_json());
  EXPECT_EQ(copy.dense, config.dense);
  EXPECT_EQ(copy.prompts, config.prompts);
  EXPECT_EQ(copy.pooling, Pooling::kMean);
  EXPECT_TRUE(copy.pools());
  EXPECT_EQ(copy.embedding_size(), 24);
  EXPECT_EQ(copy.longest_input(), 100);
  json damaged = json::parse(config.to_json());
  damaged["dense"][1].erase("bias");
  EXPECT_THAT(message_of([&] { ModelConfig::from_json(damaged.dump()); }), HasSubstr("'dense'"));
}

TEST(StoredConfig, EveryFieldIsStoredAndNeededButLaterOnes) {
  const json stored = json::parse(unusual().to_json());
  EXPECT_EQ(stored.size(), 46u + kLaterFields.size());
  for (const auto& [key, value] : stored.items()) {
    json without = stored;
    without.erase(key);
    if (const auto later = kLaterFields.find(key); later != kLaterFields.end()) {
      EXPECT_EQ(json::parse(ModelConfig::from_json(without.dump()).to_json())[key], later->second) << key;
    } else {
      EXPECT_THAT(message_of([&] { ModelConfig::from_json(without.dump()); }), HasSubstr(key + "' is missing"));
    }
    json wrong = stored;
    wrong[key] = key == "prompts" ? json::array() : json::object();
    EXPECT_THAT(message_of([&] { ModelConfig::from_json(wrong.dump()); }), HasSubstr(key + "'"));
  }
  json more = stored;
  more["window"] = 3;
  EXPECT_THAT(message_of([&] { ModelConfig::from_json(more.dump()); }), HasSubstr("'window'"));
}

TEST(HfConfig, Qwen3MoeHasExpertsInSomeLayers) {
  const json hf = {{"model_type", "qwen3_moe"}, {"num_hidden_layers", 6},      {"decoder_sparse_step", 2},
                   {"mlp_only_layers", {3, 9}}, {"moe_intermediate_size", 24}, {"num_experts", 16},
                   {"num_experts_per_tok", 3}};
  const ModelConfig config = from_hf(hf);
  EXPECT_THAT(config.expert_layers, ElementsAre(0, 1, 0, 0, 0, 1));
  EXPECT_TRUE(config.layer(1).experts);
  EXPECT_FALSE(config.layer(3).experts);
  EXPECT_EQ(config.experts, 16);
  EXPECT_EQ(config.experts_per_token, 3);
  EXPECT_EQ(config.ffn_of_expert(), 24);
  EXPECT_EQ(config.ffn, 6144);
  EXPECT_EQ(config.router_softmax, RouterSoftmax::kAll);
  EXPECT_EQ(config.query_key_norm, QueryKeyNorm::kHeads);
  const auto with = [&](const char* key, const json& value) {
    json other = hf;
    other[key] = value;
    return other;
  };
  EXPECT_EQ(from_hf(with("norm_topk_prob", true)).router_softmax, RouterSoftmax::kChosen);
  EXPECT_THAT(from_hf(with("mlp_only_layers", nullptr)).expert_layers, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(message_of([&] { from_hf(with("decoder_sparse_step", 0)); }), HasSubstr("'decoder_sparse_step'"));
  EXPECT_THAT(message_of([&] { from_hf(with("use_sliding_window", true)); }), HasSubstr("'use_sliding_window'"));
  EXPECT_THAT(message_of([&] { from_hf(with("num_experts_per_tok", 17)); }), HasSubstr("'experts_per_token'"));
  EXPECT_THAT(message_of([&] { from_hf(with("moe_intermediate_size", -5)); }), HasSubstr("'expert_ffn'"));
}

TEST(HfConfig, Qwen2MoeAndOlmoe) {
  const ModelConfig qwen = from_hf({{"model_type", "qwen2_moe"}});
  EXPECT_EQ(qwen.experts, 60);
  EXPECT_EQ(qwen.experts_per_token, 4);
  EXPECT_EQ(qwen.expert_ffn, 1408);
  EXPECT_EQ(qwen.shared_ffn, 5632);
  EXPECT_TRUE(qwen.attention_bias);
  EXPECT_FALSE(qwen.has_layers_without_experts());
  EXPECT_THAT(message_of([] {
                from_hf({{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", -1}});
              }),
              HasSubstr("'shared_ffn'"));
  const ModelConfig olmoe = from_hf({{"model_type", "olmoe"}});
  EXPECT_EQ(olmoe.experts, 64);
  EXPECT_EQ(olmoe.ffn_of_expert(), 2048);
  EXPECT_EQ(olmoe.query_key_norm, QueryKeyNorm::kWidth);
  EXPECT_EQ(olmoe.router_softmax, RouterSoftmax::kAll);
  EXPECT_THAT(message_of([] { from_hf({{"model_type", "olmoe"}, {"clip_qkv", 8.0}}); }), HasSubstr("'clip_qkv'"));
}

TEST(HfConfig, GptOss) {
  const ModelConfig config = from_hf({{"model_type", "gpt_oss"}, {"num_hidden_layers", 4}});
  EXPECT_TRUE(config.attention_sinks && config.router_bias && config.mlp_bias && config.attention_output_bias);
  EXPECT_EQ(config.gate().activation, Activation::kQuickGelu);
  EXPECT_EQ(config.gate().limit, 7);
  EXPECT_EQ(config.gate().offset, 1);
  EXPECT_EQ(config.router_softmax, RouterSoftmax::kChosen);
  EXPECT_THAT(config.window_layers, ElementsAre(1, 0, 1, 0));
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_EQ(config.rope_scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope_theta, 150000);
  EXPECT_EQ(config.rope_factor, 32);
  EXPECT_EQ(config.rope_original_positions, 4096);
  EXPECT_FALSE(config.rope_whole_dims);
  EXPECT_THAT(message_of([] {
                from_hf({{"model_type", "gpt_oss"}, {"swiglu_alpha", 1.0}});
              }),
              HasSubstr("'swiglu_alpha'"));
  EXPECT_THAT(message_of([] {
                from_hf({{"model_type", "gpt_oss"}, {"swiglu_limit", -7}});
              }),
              HasSubstr("'gate_limit'"));
  EXPECT_EQ(ModelConfig::from_json(config.to_json()).to_json(), config.to_json());
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
// classifier, which init leaves with two classes; RoBERTa and XLM-R without the pooler, which only some files have).
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
      {"mistral", {{"7b-v0.1", 7.2417e9}, {"7b-v0.3", 7.2480e9}, {"small-3.1-24b", 23.572e9}}},
      {"qwen3",
       {{"0.6b", 596.05e6},
        {"1.7b", 1.7206e9},
        {"4b", 4.0225e9},
        {"8b", 8.1907e9},
        {"14b", 14.768e9},
        {"32b", 32.762e9}}},
      {"gemma2", {{"2b", 2.6143e9}, {"9b", 9.2417e9}, {"27b", 27.227e9}}},
      {"gemma3_text", {{"270m", 268.10e6}, {"1b", 999.89e6}, {"4b", 3.8801e9}, {"12b", 11.766e9}, {"27b", 27.009e9}}},
      {"olmo2", {{"1b", 1.4849e9}, {"7b", 7.2986e9}, {"13b", 13.716e9}, {"32b", 32.234e9}}},
      {"olmo3", {{"7b", 7.2980e9}, {"32b", 32.233e9}}},
      {"granite", {{"3.1-2b", 2.5335e9}, {"3.1-8b", 8.1708e9}}},
      {"phi3", {{"3-mini-4k", 3.8211e9}, {"3-medium-4k", 13.960e9}, {"4-mini", 3.8360e9}, {"4", 14.660e9}}},
      {"gpt_neox",
       {{"pythia-70m", 70.427e6},
        {"pythia-160m", 162.32e6},
        {"pythia-410m", 405.33e6},
        {"pythia-1b", 1.0118e9},
        {"pythia-1.4b", 1.4146e9},
        {"pythia-2.8b", 2.7752e9},
        {"pythia-6.9b", 6.8573e9},
        {"pythia-12b", 11.846e9},
        {"20b", 20.555e9}}},
      {"mixtral", {{"8x7b", 46.703e9}, {"8x22b", 140.62e9}}},
      {"qwen2_moe", {{"1.5-a2.7b", 14.316e9}, {"57b-a14b", 57.409e9}}},
      {"qwen3_moe", {{"30b-a3b", 30.532e9}, {"235b-a22b", 235.09e9}}},
      {"olmoe", {{"1b-7b", 6.9192e9}}},
      {"gpt_oss", {{"20b", 20.915e9}, {"120b", 116.83e9}}},
      {"bert", {{"tiny", 4.386e6}, {"base", 109.48e6}, {"large", 335.14e6}}},
      {"roberta", {{"base", 124.06e6}, {"large", 354.31e6}}},
      {"xlm-roberta", {{"base", 277.45e6}, {"large", 558.84e6}}},
      {"distilbert", {{"base", 66.363e6}}},
      {"modernbert", {{"base", 149.01e6}, {"large", 394.78e6}}},
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
    std::set<std::tuple<std::string, int, int, std::size_t>> seen;
    const ModelConfig config = ModelConfig::named(family->model_type, family->sizes.front().name);
    for (const TensorSpec& spec : tensor_specs(config)) {
      const SourceTensor source = family->source_of(config, spec.name);
      EXPECT_TRUE(seen.emplace(source.name, source.part, source.matrix, source.fused.first).second)
          << spec.name << " shares " << source.name;
      EXPECT_LT(source.part, source.parts);
      EXPECT_LT(source.matrix, source.matrices);
      EXPECT_FALSE(family->ignores(source.name)) << source.name;
    }
  }
}

TEST(Families, NamesOfTensors) {
  const auto source_of = [](const char* type, const char* ours) {
    const Family& family = family_of(type);
    return family.source_of(ModelConfig::named(type, family.sizes.front().name), ours);
  };
  const auto source = [&](const char* type, const char* ours) { return source_of(type, ours).name; };
  EXPECT_EQ(source("opt", "layers.11.mlp.up.bias"), "decoder.layers.11.fc1.bias");
  EXPECT_EQ(source("opt", "head.weight"), "lm_head.weight");
  EXPECT_EQ(source("opt", "head.projection.weight"), "decoder.project_out.weight");
  EXPECT_EQ(source("llama", "layers.7.attention_norm.weight"), "layers.7.input_layernorm.weight");
  EXPECT_EQ(source("mixtral", "layers.3.mlp.experts.5.down.weight"), "layers.3.block_sparse_moe.experts.5.w2.weight");
  EXPECT_EQ(source("bert", "layers.0.attention_norm.bias"), "encoder.layer.0.attention.output.LayerNorm.bias");
  EXPECT_EQ(source("roberta", "classifier.weight"), "classifier.out_proj.weight");
  EXPECT_EQ(source("roberta", "classifier.dense.bias"), "classifier.dense.bias");
  EXPECT_EQ(source("distilbert", "layers.4.mlp_norm.bias"), "transformer.layer.4.output_layer_norm.bias");
  EXPECT_EQ(source("distilbert", "classifier.dense.weight"), "pre_classifier.weight");
  EXPECT_EQ(source("modernbert", "classifier.norm.weight"), "head.norm.weight");
  EXPECT_EQ(source_of("modernbert", "layers.3.mlp.up.weight").part, 1);
  EXPECT_EQ(source("vit", "embedding.class_token"), "embeddings.cls_token");
  EXPECT_EQ(source("vit", "embedding.positions.weight"), "embeddings.position_embeddings");
  EXPECT_EQ(source("gemma2", "layers.1.attention_output_norm.weight"), "layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(source("olmo2", "layers.1.attention_output_norm.weight"), "layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(source("qwen3", "layers.1.mlp_norm.weight"), "layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(source("qwen3", "layers.1.attention.key_norm.weight"), "layers.1.self_attn.k_norm.weight");
  EXPECT_EQ(source("gpt_neox", "head.weight"), "embed_out.weight");
  const SourceTensor value = source_of("gpt2", "layers.2.attention.value.weight");
  EXPECT_EQ(value.name, "h.2.attn.c_attn.weight");
  EXPECT_TRUE(value.transposed);
  EXPECT_EQ(value.part, 2);
  EXPECT_EQ(value.parts, 3);
  EXPECT_FALSE(source_of("gpt2", "layers.2.attention.value.bias").transposed);
  EXPECT_EQ(source("qwen2_moe", "layers.0.mlp.shared_gate.weight"), "layers.0.mlp.shared_expert_gate.weight");
  EXPECT_EQ(source("qwen3_moe", "layers.0.mlp.experts.77.up.weight"), "layers.0.mlp.experts.77.up_proj.weight");
  const SourceTensor up = source_of("gpt_oss", "layers.3.mlp.experts.30.up.weight");
  EXPECT_EQ(up.name, "layers.3.mlp.experts.gate_up_proj");
  EXPECT_EQ(up.part, 1);
  EXPECT_EQ(up.parts, 2);
  EXPECT_EQ(up.matrix, 30);
  EXPECT_EQ(up.matrices, 32);
  EXPECT_TRUE(up.interleaved && up.transposed);
  const SourceTensor down_bias = source_of("gpt_oss", "layers.3.mlp.experts.30.down.bias");
  EXPECT_EQ(down_bias.name, "layers.3.mlp.experts.down_proj_bias");
  EXPECT_EQ(down_bias.parts, 1);
  EXPECT_FALSE(down_bias.interleaved || down_bias.transposed);
  const FusedRows keys = source_of("gpt_neox", "layers.2.attention.key.bias").fused;
  EXPECT_EQ(keys.first, 64u);
  EXPECT_EQ(keys.block, 64u);
  EXPECT_EQ(keys.stride, 3 * 64u);
  EXPECT_EQ(keys.total, 3 * 512u);
}

TEST(Families, PlainNames) {
  EXPECT_EQ(family_of("opt").plain_name("model.decoder.embed_tokens.weight"), "decoder.embed_tokens.weight");
  EXPECT_EQ(family_of("opt").plain_name("decoder.embed_tokens.weight"), "decoder.embed_tokens.weight");
  EXPECT_EQ(family_of("bert").plain_name("bert.embeddings.LayerNorm.gamma"), "embeddings.LayerNorm.weight");
  EXPECT_EQ(family_of("gemma3_text").plain_name("language_model.model.norm.weight"), "norm.weight");
  EXPECT_EQ(family_of("gemma3_text").plain_name("model.language_model.norm.weight"), "norm.weight");
  EXPECT_TRUE(family_of("gemma3_text").ignores(family_of("gemma3_text").plain_name("model.vision_tower.a.weight")));
  EXPECT_EQ(family_of("mistral").plain_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_TRUE(family_of("mistral").ignores(family_of("mistral").plain_name("vision_tower.ln_pre.weight")));
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
  const auto said = [&](const char* name) { return HasSubstr(std::string("'") + name + "'"); };
  EXPECT_THAT(refused([](ModelConfig& c) { c.window_layers = {1}; }), said("window_layers"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.window_layers.assign(12, 1); }), said("sliding_window"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.query_key_norm = QueryKeyNorm::kHeads; }), said("query_key_norm"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.attention_scale = NAN; }), said("attention_scale"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.attention_soft_cap = -1; }), said("attention_soft_cap"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.embedding_scale = 0; }), said("embedding_scale"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.norm_position = NormPosition::kOutput; }), HasSubstr("no bias"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.residual_scale = 0.5f; }), HasSubstr("no bias"));
  const auto refused_of_embedders = [&](const std::function<void(ModelConfig&)>& change) {
    return refused([&](ModelConfig& c) {
      c.embeds = true;
      c.tied_head = false;
      c.pooling = Pooling::kLast;
      change(c);
    });
  };
  EXPECT_THAT(refused_of_embedders([](ModelConfig&) {}), IsEmpty());
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.tied_head = true; }), HasSubstr("head to tie"));
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.pooling = Pooling::kFirst; }), said("pooling"));
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.dense = {{5, 6}}; }), said("dense"));
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.causal = false; }), said("embeds"));
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.max_input_tokens = c.max_positions + 1; }),
              said("max_input_tokens"));
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.default_prompt = "query"; }), said("default_prompt"));
  EXPECT_THAT(refused_of_embedders([](ModelConfig& c) { c.class_dense = true; }), said("class_dense"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.normalize_embedding = true; }), said("normalize_embedding"));
  const auto refused_of_experts = [&](const std::function<void(ModelConfig&)>& change) {
    return refused([&](ModelConfig& c) {
      c.experts = 4;
      c.experts_per_token = 2;
      change(c);
    });
  };
  EXPECT_THAT(refused_of_experts([](ModelConfig&) {}), IsEmpty());
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.experts_per_token = 5; }), said("experts_per_token"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.experts_per_token = 0; }), said("experts_per_token"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.experts = -1; }), said("experts"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.expert_ffn = -1; }), said("expert_ffn"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.shared_ffn = -1; }), said("shared_ffn"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.shared_ffn = 8; }), said("mlp_bias"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.expert_ffn = 1 << 24; }), IsEmpty());
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) {
                c.experts = 1 << 12;
                c.expert_ffn = 1 << 24;
              }),
              HasSubstr("biases"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.expert_layers = {1, 0}; }), said("expert_layers"));
  EXPECT_THAT(refused_of_experts([](ModelConfig& c) { c.expert_layers.assign(12, 2); }), said("expert_layers"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.expert_layers.assign(12, 1); }), said("expert_layers"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.expert_ffn = 8; }), said("expert_ffn"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.router_bias = true; }), said("router_bias"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.gate_limit = 7; }), said("gate_limit"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.gated_mlp = true;
                c.gate_limit = -1;
              }),
              said("gate_limit"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.gated_mlp = true;
                c.gate_offset = INFINITY;
              }),
              said("gate_offset"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.parallel_residual = true;
                c.norm_position = NormPosition::kPost;
              }),
              said("parallel_residual"));
}

}  // namespace
}  // namespace computron

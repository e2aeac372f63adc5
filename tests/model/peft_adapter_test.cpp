// Adapters as PEFT saves them: scales and ranks by module, fused and transposed layers, and what is refused by name.
#include "computron/model/peft_adapter.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "computron/checkpoint/reader.h"
#include "computron/model/adapter.h"
#include "src/model/peft_config.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string config(const std::string& more = "", const std::string& targets = R"(["q_proj"])") {
  return R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "task_type": "CAUSAL_LM", "lora_dropout": 0.1,
      "megatron_core": "megatron.core", "bias": "none", "use_dora": false, "target_modules": )" +
         targets + more + "}";
}

std::string refusal_of_config(const std::string& text) {
  try {
    PeftConfig{text};
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PeftConfig, ScalesAreAlphaOverRank) {
  EXPECT_EQ(PeftConfig(config()).rank_of("model.layers.0.self_attn.q_proj"), 2u);
  EXPECT_EQ(PeftConfig(config()).scale_of("model.layers.0.self_attn.q_proj"), 4.0f);
  const PeftConfig stabilized(config(R"(, "use_rslora": true, "rank_pattern": {"q_proj": 16})"));
  EXPECT_EQ(stabilized.scale_of("model.layers.0.self_attn.q_proj"), 2.0f);
}

// As peft's get_pattern_key: a whole name or the end of one, behind a dot; the first that matches.
TEST(PeftConfig, PatternsAreRegularExpressionsOfWholeModules) {
  const PeftConfig read(
      config(R"(, "rank_pattern": {"q_proj": 4, "layers\\.[12]\\.mlp\\.up": 8, ".*up": 1, "^model.v": 3},
                                    "alpha_pattern": {"layers.1.q_proj": 16})"));
  EXPECT_EQ(read.rank_of("model.layers.0.q_proj"), 4u);
  EXPECT_EQ(read.rank_of("q_proj"), 4u);
  EXPECT_EQ(read.rank_of("model.layers.0.eq_proj"), 2u);
  EXPECT_EQ(read.rank_of("model.layers.2.mlp.up"), 8u);
  EXPECT_EQ(read.rank_of("model.layers.3.mlp.up"), 1u);
  EXPECT_EQ(read.rank_of("model.v"), 3u);
  EXPECT_EQ(read.rank_of("deep.model.v"), 2u);
  EXPECT_EQ(read.rank_of("model.layers.0.q_proj.more"), 2u);
  EXPECT_EQ(read.scale_of("model.layers.0.q_proj"), 2.0f);
  EXPECT_EQ(read.scale_of("model.layers.1.q_proj"), 4.0f);
}

TEST(PeftConfig, RefusesByNameWhatItDoesNotCompute) {
  for (const char* more :
       {R"(, "use_dora": true)", R"(, "bias": "all")", R"(, "lora_bias": true)",
        R"(, "target_parameters": ["experts"])", R"(, "layer_replication": [[0, 2]])",
        R"(, "trainable_token_indices": [3])", R"(, "use_qalora": true)", R"(, "alora_invocation_tokens": [1])",
        R"(, "init_lora_weights": "pissa")", R"(, "something_new": {"a": 1})", R"(, "arrow_config": {"k": 3})",
        R"(, "r": 257)", R"(, "r": 0)", R"(, "r": 1.5)", R"(, "lora_alpha": 0)", R"(, "lora_alpha": 1e300)",
        R"(, "lora_alpha": "8")", R"(, "rank_pattern": {"q_proj": 300})", R"(, "rank_pattern": [1])"}) {
    const std::string key = std::string(more).substr(3, std::string(more).find('"', 3) - 3);
    EXPECT_THAT(refusal_of_config(config(more)), AllOf(HasSubstr("adapter_config.json"), HasSubstr(key))) << more;
  }
  EXPECT_THAT(refusal_of_config(R"({"peft_type": "IA3"})"), HasSubstr("'peft_type' is \"IA3\""));
  EXPECT_THAT(refusal_of_config("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal_of_config(config(R"(, "rank_pattern": {"(": 3})")), HasSubstr("no regular expression"));
  EXPECT_EQ(refusal_of_config(config(R"(, "init_lora_weights": "gaussian", "modules_to_save": ["norm"])")), "");
}

// As PEFT: a whole name, or the end of one behind a dot. An expression, or another key, may leave modules out.
TEST(PeftConfig, KnowsTheModulesThatAListNames) {
  const PeftConfig named(config("", R"(["q_proj", "mlp.up"])"));
  EXPECT_TRUE(named.targets("model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(named.targets("q_proj"));
  EXPECT_TRUE(named.targets("layers.1.mlp.up"));
  EXPECT_FALSE(named.targets("layers.1.eq_proj"));
  EXPECT_FALSE(named.targets("layers.1.up"));
  EXPECT_FALSE(PeftConfig(config("", R"(".*q_proj")")).targets("q_proj"));
  EXPECT_FALSE(PeftConfig(config(R"(, "layers_to_transform": [1])")).targets("q_proj"));
  EXPECT_FALSE(PeftConfig(config(R"(, "exclude_modules": ["a"])")).targets("q_proj"));
  EXPECT_THAT(refusal_of_config(config("", "[3]")), HasSubstr("'target_modules' is [3]"));
}

// Whose steps would never end.
TEST(PeftConfig, AnEndlessPatternIsRefused) {
  const PeftConfig read(config(R"(, "rank_pattern": {"((a|a?)+)+b": 3})"));
  EXPECT_THROW(read.rank_of(std::string(60, 'a') + "bc"), ConfigError);
}

constexpr char kLlama[] = R"({"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"intermediate_size":12,
    "num_attention_heads":2,"num_key_value_heads":1,"vocab_size":10,"max_position_embeddings":6})";

// A folder with an adapter of a base whose tensors are not there but in its index.
class PeftAdapterTest : public testing::Test {
 protected:
  PeftAdapterTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("computron_") + info->name() + "_" + std::to_string(getpid()));
    set_config(config("", "[]"));
    base_.path = "base.h5";
    base_.architecture = "llama";
    set_base(kLlama);
  }
  ~PeftAdapterTest() override { std::filesystem::remove_all(folder_); }

  void set_config(const std::string& text) const { write_text(path() + "/adapter_config.json", text); }
  void set_base(const char* hf_config) { base_.config_json = ModelConfig::from_hf_json(hf_config).to_json(); }

  std::string path() const { return folder_.string(); }
  void add(const std::string& name, const std::vector<std::size_t>& shape) {
    stored_.push_back(counting("base_model.model." + name, shape, 100.0f * static_cast<float>(stored_.size())));
  }
  void add_lora(const std::string& module, std::size_t out, std::size_t in, std::size_t rank = 2) {
    add(module + ".lora_A.weight", {rank, in});
    add(module + ".lora_B.weight", {out, rank});
  }
  PeftAdapter open() const {
    write_text(path() + "/adapter_model.safetensors", safetensors_file(stored_));
    return PeftAdapter(path(), base_);
  }
  std::string refusal(ExitCode code = ExitCode::kConfig) const {
    try {
      open();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "";
  }

  // All elements of the tensor of this name.
  static std::vector<float> values(const PeftAdapter& adapter, const std::string& name) {
    const auto& tensors = adapter.tensors();
    const auto found = std::ranges::find(tensors, name, &TensorDeclaration::name);
    if (found == tensors.end()) return {};
    const PeftAdapter::Source& source = adapter.sources()[static_cast<std::size_t>(found - tensors.begin())];
    if (const auto* number = std::get_if<float>(&source)) return {*number};
    const auto& matrix = std::get<MatrixSource>(source);
    std::vector<float> values(matrix.elements());
    MatrixReader reader;
    const auto bytes = reader.read(matrix, DType::kF32, 0, values.size() * sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  CheckpointIndex base_;
  std::vector<StoredTensor> stored_;
  std::filesystem::path folder_;
};

TEST_F(PeftAdapterTest, AIsStoredTransposed) {
  add_lora("model.layers.0.self_attn.k_proj", 4, 8);
  const PeftAdapter adapter = open();
  EXPECT_EQ(adapter.modules(), 1u);
  EXPECT_THAT(values(adapter, "layers.0.attention.key.lora_a"),
              ElementsAre(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  EXPECT_THAT(values(adapter, "layers.0.attention.key.lora_b"), ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
  EXPECT_THAT(values(adapter, "layers.0.attention.key.lora_scale"), ElementsAre(4));
}

// Parts of a fused layer share its A, and each has its rows of B.
TEST_F(PeftAdapterTest, FusedLayersAreCutAsTheFamilyCutsThem) {
  set_base(R"({"model_type":"gpt_neox","hidden_size":4,"num_hidden_layers":1,"intermediate_size":6,
      "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":6,"rotary_pct":1})");
  add_lora("gpt_neox.layers.0.attention.query_key_value", 12, 4, 2);
  const PeftAdapter adapter = open();
  EXPECT_EQ(adapter.modules(), 3u);
  for (const char* part : {"query", "key", "value"}) {
    EXPECT_THAT(values(adapter, fmt::format("layers.0.attention.{}.lora_a", part)),
                ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
  }
  // Head by head: rows 2 and 3 of each head's six are its keys'.
  EXPECT_THAT(values(adapter, "layers.0.attention.key.lora_b"), ElementsAre(104, 105, 106, 107, 116, 117, 118, 119));
}

TEST_F(PeftAdapterTest, TensorsThatWereSavedWholeStandForTheBases) {
  add_lora("model.layers.0.mlp.down_proj", 8, 12);
  add("model.norm.weight", {8});
  add("lm_head.weight", {10, 8});
  const PeftAdapter adapter = open();
  EXPECT_EQ(adapter.modules(), 1u);
  EXPECT_EQ(values(adapter, "final_norm.weight").size(), 8u);
  EXPECT_EQ(values(adapter, "head.weight").size(), 80u);
}

TEST_F(PeftAdapterTest, RefusesByNameWhatTheBaseHasNot) {
  add_lora("model.layers.1.self_attn.q_proj", 8, 8);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("layers.1.self_attn.q_proj.lora_A.weight"), HasSubstr("no linear layer")));
}

// Which would be computed as the base has it.
TEST_F(PeftAdapterTest, RefusesAFileWithoutAModuleThatItsConfigurationNames) {
  set_config(config("", R"(["q_proj", "k_proj", "w7"])"));
  add_lora("model.layers.0.self_attn.k_proj", 4, 8);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("layers.0.self_attn.q_proj.lora_A.weight': missing, but target_modules has it"),
                    Not(HasSubstr("k_proj")), Not(HasSubstr("v_proj"))));
  add("model.layers.0.self_attn.q_proj.weight", {8, 8});  // saved whole
  EXPECT_EQ(refusal(), "");
}

TEST_F(PeftAdapterTest, RefusesOtherShapesAndRanks) {
  add_lora("model.layers.0.self_attn.q_proj", 8, 9);
  EXPECT_THAT(refusal(), HasSubstr("shape [2, 8] expected, [2, 9] stored"));
  stored_.clear();
  add_lora("model.layers.0.self_attn.q_proj", 8, 8, /*rank=*/3);
  EXPECT_THAT(refusal(), HasSubstr("shape [2, 8] expected, [3, 8] stored"));
  stored_.clear();
  add_lora("model.layers.0.self_attn.q_proj", 8, 8);
  add("model.embed_tokens.weight", {12, 8});  // a vocabulary that has grown
  EXPECT_THAT(refusal(), HasSubstr("embed_tokens.weight': shape [10, 8] expected, [12, 8] stored"));
}

TEST_F(PeftAdapterTest, RefusesHalvesMagnitudesBiasesAndEmbeddings) {
  add("model.layers.0.self_attn.q_proj.lora_A.weight", {2, 8});
  EXPECT_THAT(refusal(), HasSubstr("q_proj.lora_B.weight': missing"));
  stored_.clear();
  add_lora("model.layers.0.self_attn.q_proj", 8, 8);
  add("model.layers.0.self_attn.q_proj.lora_magnitude_vector", {8});
  add("model.layers.0.self_attn.q_proj.lora_B.bias", {8});
  add("model.embed_tokens.lora_embedding_A", {2, 10});
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("a magnitude of DoRA"), HasSubstr("a bias of LoRA"), HasSubstr("changes an embedding")));
}

TEST_F(PeftAdapterTest, ATiedHeadIsRefusedUnlessItIsTheEmbedding) {
  set_base(R"({"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"intermediate_size":12,
      "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":6,"tie_word_embeddings":true})");
  add_lora("model.layers.0.self_attn.q_proj", 8, 8);
  add("model.embed_tokens.weight", {10, 8});
  add("lm_head.weight", {10, 8});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("tied to its embedding")));
  stored_.back().bytes = stored_[stored_.size() - 2].bytes;
  EXPECT_EQ(refusal(), "");
}

TEST_F(PeftAdapterTest, AnEmptyAdapterAndAnOldFormatAreRefused) {
  add("model.layers.0.self_attn.q_proj.lora_A.weight", {2, 8});
  stored_.clear();
  EXPECT_THAT(refusal(), HasSubstr("changes nothing"));
  std::filesystem::remove(path() + "/adapter_model.safetensors");
  write_text(path() + "/adapter_model.bin", "x");
  try {
    PeftAdapter(path(), base_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("adapter_model.bin only"));
  }
}

}  // namespace
}  // namespace computron::test

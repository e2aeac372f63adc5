// Folders of all kinds of families as the tensors of a model: names, ties, orientations, and what is refused.
#include "computron/model/hf_model.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "computron/model/family.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kOpt[] =
    R"({"model_type":"opt","hidden_size":8,"word_embed_proj_dim":8,"num_hidden_layers":1,"ffn_dim":12,
    "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":6})";
constexpr char kGpt2[] = R"({"model_type":"gpt2","n_embd":8,"n_layer":1,"n_head":2,"n_inner":12,"vocab_size":10,
    "n_positions":6,"bos_token_id":1,"eos_token_id":1})";
constexpr char kBert[] = R"({"model_type":"bert","hidden_size":8,"num_hidden_layers":1,"intermediate_size":12,
    "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":6,"architectures":["BertModel"]})";
constexpr char kVit[] = R"({"model_type":"vit","hidden_size":8,"num_hidden_layers":1,"intermediate_size":12,
    "num_attention_heads":2,"image_size":8,"patch_size":4,"num_channels":3,"architectures":["ViTModel"]})";

// A folder whose files hold what a configuration needs, each tensor counting from a number of its own.
class HfModelTest : public testing::Test {
 protected:
  HfModelTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("computron_") + info->name() + "_" + std::to_string(getpid()));
  }
  ~HfModelTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_.string(); }

  // The tensors of `config` under the family's names, as its files hold them.
  void fill(const char* config, const std::string& prefix) {
    write_text(path() + "/config.json", config);
    const ModelConfig model = ModelConfig::from_hf_json(config);
    const Family& family = family_of(model.architecture);
    for (const TensorSpec& spec : tensor_specs(model)) {
      const SourceTensor source = family.source_of(model, spec.name);
      std::vector<std::size_t> shape = spec.shape;
      if (spec.transposed != source.transposed && shape.size() == 2) std::swap(shape[0], shape[1]);
      (source.transposed ? shape.back() : shape.front()) *= static_cast<std::size_t>(source.parts);
      if (source.fused.total > 0) shape.front() = source.fused.total;
      const std::string name = (source.name.starts_with("lm_head") ? "" : prefix) + source.name;
      if (find(name) == nullptr) stored_.push_back(counting(name, shape, 1000.0f * static_cast<float>(stored_.size())));
    }
  }

  StoredTensor* find(const std::string& name) {
    const auto found = std::ranges::find(stored_, name, &StoredTensor::name);
    return found == stored_.end() ? nullptr : &*found;
  }
  void rename(const std::string& from, const std::string& to) { find(from)->name = to; }

  void write() const { write_text(path() + "/model.safetensors", safetensors_file(stored_)); }
  HfModel open() const {
    write();
    return HfModel(path());
  }

  std::string refusal(ExitCode expected = ExitCode::kConfig) const {
    try {
      open();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), expected);
      EXPECT_THAT(error.what(), HasSubstr(path()));
      return error.what();
    }
    return "";
  }

  // All values of a tensor of the model.
  static std::vector<float> values(const HfModel& model, const std::string& name) {
    for (std::size_t i = 0; i < model.tensors().size(); ++i) {
      if (model.tensors()[i].name != name) continue;
      const auto& source = std::get<MatrixSource>(model.sources()[i]);
      std::vector<float> out(source.elements());
      MatrixReader reader;
      const auto bytes = reader.read(source, DType::kF32, 0, out.size() * sizeof(float));
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return out;
    }
    ADD_FAILURE() << name;
    return {};
  }

  std::filesystem::path folder_;
  std::vector<StoredTensor> stored_;
};

float first_of(const StoredTensor* tensor) {
  float value;
  std::memcpy(&value, tensor->bytes.data(), sizeof value);
  return value;
}

TEST_F(HfModelTest, OptWithAndWithoutPrefix) {
  for (const char* prefix : {"model.", ""}) {
    stored_.clear();
    fill(kOpt, prefix);
    const std::string layer = std::string(prefix) + "decoder.layers.0.";
    const HfModel model = open();
    EXPECT_EQ(model.config().hidden, 8);
    EXPECT_EQ(model.tensors().size(), stored_.size());
    const auto query = values(model, "layers.0.attention.query.weight");
    EXPECT_EQ(query[1], first_of(find(layer + "self_attn.q_proj.weight")) + 1);
    // fc2 is stored [hidden 8][ffn 12] and wanted [ffn][hidden].
    const auto down = values(model, "layers.0.mlp.down.weight");
    const float first = first_of(find(layer + "fc2.weight"));
    EXPECT_EQ(down[1], first + 12);
    EXPECT_EQ(down[8], first + 1);
  }
}

TEST_F(HfModelTest, TiedHeadUnderEitherNameOrBoth) {
  fill(kOpt, "model.");
  const std::string embedding = "model.decoder.embed_tokens.weight";
  const float first = first_of(find(embedding));
  rename(embedding, "lm_head.weight");
  EXPECT_EQ(values(open(), "embedding.tokens.weight")[0], first);
  stored_.push_back(*find("lm_head.weight"));
  stored_.back().name = embedding;
  EXPECT_EQ(values(open(), "embedding.tokens.weight")[0], first);
  stored_.back().bytes.back() ^= 1;
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("'" + embedding + "' and 'lm_head.weight' differ"), HasSubstr("tie_word_embeddings")));
}

// q, k and v head by head (GPT-NeoX): of [heads 2][q | k | v][head_dim 4] x 8 columns.
TEST_F(HfModelTest, HeadsOfAFusedTensor) {
  fill(R"({"model_type": "gpt_neox", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 12, "vocab_size": 5, "rotary_pct": 0.5, "eos_token_id": 0})",
       "gpt_neox.");
  const std::string fused = "gpt_neox.layers.0.attention.query_key_value";
  const HfModel model = open();
  const float weight = first_of(find(fused + ".weight")), bias = first_of(find(fused + ".bias"));
  const std::pair<const char*, int> parts[] = {{"query", 0}, {"key", 4}, {"value", 8}};
  for (const auto& [name, row] : parts) {
    const auto values_of = [&](const char* what) {
      return values(model, std::string("layers.0.attention.") + name + what);
    };
    const auto weights = values_of(".weight"), biases = values_of(".bias");
    ASSERT_EQ(weights.size(), 64u);
    ASSERT_EQ(biases.size(), 8u);
    for (int r = 0; r < 8; ++r) {
      const int stored = row + r % 4 + (r / 4) * 12;
      EXPECT_EQ(biases[static_cast<std::size_t>(r)], bias + static_cast<float>(stored)) << name << " " << r;
      EXPECT_EQ(weights[static_cast<std::size_t>(8 * r + 3)], weight + static_cast<float>(8 * stored + 3));
    }
  }
}

// q | k | v of unequal numbers of rows (Phi-3), and gate | up.
TEST_F(HfModelTest, RowsOfAFusedTensor) {
  fill(R"({"model_type": "phi3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 5, "eos_token_id": 0})",
       "model.");
  const HfModel model = open();
  const float qkv = first_of(find("model.layers.0.self_attn.qkv_proj.weight"));
  const float up = first_of(find("model.layers.0.mlp.gate_up_proj.weight"));
  EXPECT_EQ(values(model, "layers.0.attention.query.weight")[1], qkv + 1);
  EXPECT_EQ(values(model, "layers.0.attention.key.weight")[0], qkv + 8 * 8);
  EXPECT_EQ(values(model, "layers.0.attention.value.weight")[0], qkv + 12 * 8);
  EXPECT_EQ(values(model, "layers.0.attention.value.weight").back(), qkv + 16 * 8 - 1);
  EXPECT_EQ(values(model, "layers.0.mlp.up.weight")[0], up + 12 * 8);
}

TEST_F(HfModelTest, HeadOfItsOwn) {
  std::string config = kOpt;
  config.insert(1, R"("tie_word_embeddings":false,)");
  fill(config.c_str(), "model.");
  const HfModel model = open();
  EXPECT_EQ(values(model, "head.weight")[0], first_of(find("lm_head.weight")));
  EXPECT_NE(values(model, "embedding.tokens.weight")[0], values(model, "head.weight")[0]);
  std::erase_if(stored_, [](const StoredTensor& tensor) { return tensor.name == "lm_head.weight"; });
  EXPECT_THAT(refusal(), HasSubstr("'lm_head.weight' (head.weight): missing"));
}

// c_attn is [in 8][q 8 | k 8 | v 8]; its bias [q | k | v].
TEST_F(HfModelTest, Gpt2IsCutAndTurned) {
  fill(kGpt2, "transformer.");
  stored_.push_back(counting("transformer.h.0.attn.bias", {1, 1, 6, 6}, 0));  // a mask of old files
  const HfModel model = open();
  const float attention = first_of(find("transformer.h.0.attn.c_attn.weight"));
  const auto key = values(model, "layers.0.attention.key.weight");
  EXPECT_EQ(key[0], attention + 8);
  EXPECT_EQ(key[1], attention + 24 + 8);
  EXPECT_EQ(key[8], attention + 9);
  const auto bias = values(model, "layers.0.attention.value.bias");
  EXPECT_EQ(bias.size(), 8u);
  EXPECT_EQ(bias[0], first_of(find("transformer.h.0.attn.c_attn.bias")) + 16);
  const auto down = values(model, "layers.0.mlp.down.weight");  // [in][out] on both sides
  EXPECT_EQ(down[1], first_of(find("transformer.h.0.mlp.c_proj.weight")) + 1);
}

TEST_F(HfModelTest, OldBertNamesAndIgnoredHeads) {
  fill(kBert, "bert.");
  rename("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma");
  rename("bert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta");
  stored_.push_back(counting("cls.predictions.bias", {10}, 0));
  stored_.push_back({"bert.embeddings.position_ids", "I64", {1, 6}, std::string(48, 0)});
  const HfModel model = open();
  EXPECT_EQ(values(model, "embedding.norm.weight")[0], first_of(find("bert.embeddings.LayerNorm.gamma")));
  stored_.push_back(counting("bert.embeddings.LayerNorm.weight", {8}, 0));
  EXPECT_THAT(refusal(), HasSubstr("are the same tensor"));
}

// Files of a class without a pooler may hold one all the same.
TEST_F(HfModelTest, ThePoolerOfBertIsThereWhereFilesHaveIt) {
  const std::string masked = std::string(kBert).replace(std::string(kBert).find("BertModel"), 9, "BertForMaskedLM");
  fill(masked.c_str(), "bert.");
  stored_.push_back(counting("cls.predictions.bias", {10}, 0));
  EXPECT_FALSE(open().config().pooler);
  stored_.push_back(counting("bert.pooler.dense.weight", {8, 8}, 7));
  EXPECT_THAT(refusal(), HasSubstr("'pooler.dense.bias' (pooler.bias): missing"));
  stored_.push_back(counting("bert.pooler.dense.bias", {8}, 7));
  const HfModel model = open();
  EXPECT_TRUE(model.config().pooler);
  EXPECT_EQ(values(model, "pooler.weight")[1], 8);
  stored_.clear();
  fill(kBert, "");
  std::erase_if(stored_, [](const StoredTensor& tensor) { return tensor.name.starts_with("pooler."); });
  EXPECT_THAT(refusal(), HasSubstr("'pooler.dense.weight' (pooler.weight): missing"));
}

TEST_F(HfModelTest, VitShapesAreFlattened) {
  fill(kVit, "");
  find("embeddings.patch_embeddings.projection.weight")->shape = {8, 3, 4, 4};
  find("embeddings.cls_token")->shape = {1, 1, 8};
  find("embeddings.position_embeddings")->shape = {1, 5, 8};
  EXPECT_EQ(refusal(), "");
  find("embeddings.position_embeddings")->shape = {5, 1, 8};
  EXPECT_EQ(refusal(), "");
  find("embeddings.position_embeddings")->shape = {1, 8, 5};
  EXPECT_THAT(refusal(), HasSubstr("'embeddings.position_embeddings': shape [5, 8] expected, [1, 8, 5] stored"));
}

TEST_F(HfModelTest, RefusalsNameTheTensor) {
  fill(kOpt, "model.");
  const auto whole = stored_;
  const std::string query = "model.decoder.layers.0.self_attn.q_proj.weight";
  rename(query, "model.decoder.layers.0.self_attn.q_proj.weight_scale");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("2 differences"), HasSubstr("q_proj.weight' (layers.0.attention.query.weight): missing"),
                    HasSubstr("q_proj.weight_scale': stored, but not part of the model")));
  stored_ = whole;
  *find(query) = counting(query, {8, 9}, 0);
  EXPECT_THAT(refusal(), HasSubstr("'" + query + "': shape [8, 8] expected, [8, 9] stored"));
  *find(query) = {query, "I8", {8, 8}, std::string(64, 1)};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("'" + query + "': stored as I8"), HasSubstr("quantized")));
  stored_ = whole;
  stored_.push_back(counting("model.decoder.stray\\n", {1}, 0));
  EXPECT_THAT(refusal(), HasSubstr("'model.decoder.stray\\x0a': stored"));
  stored_.clear();
  EXPECT_THAT(refusal(), HasSubstr("; and "));
}

TEST_F(HfModelTest, ConfigurationsAreRefusedByName) {
  fill(kOpt, "model.");
  write_text(path() + "/config.json", R"({"model_type":"bloom"})");
  EXPECT_THAT(refusal(), HasSubstr("bloom"));
  write_text(path() + "/config.json", std::string(kOpt).replace(1, 0, R"("quantization_config":{"bits":4},)"));
  EXPECT_THAT(refusal(), HasSubstr("'quant_method'"));
  std::filesystem::remove(path() + "/config.json");
  EXPECT_THAT(refusal(ExitCode::kNoInput), HasSubstr("config.json"));
}

TEST_F(HfModelTest, GenerationConfigDecidesTheTokens) {
  fill(kOpt, "model.");
  EXPECT_THAT(open().config().eos_tokens, ElementsAre(2));
  write_text(path() + "/generation_config.json", R"({"eos_token_id":[4,5],"bos_token_id":3})");
  EXPECT_THAT(open().config().eos_tokens, ElementsAre(4, 5));
  EXPECT_EQ(open().config().bos_token, 3);
}

TEST_F(HfModelTest, CarriesTheTokenizer) {
  fill(kOpt, "model.");
  write_text(path() + "/vocab.json", "{}");
  write_text(path() + "/merges.txt", "a b");
  write_text(path() + "/README.md", "no");
  const auto files = open().tokenizer();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name + files[0].content + files[1].name + files[1].content, "vocab.json{}merges.txta b");
  write_text(path() + "/vocab.txt", "");
  try {
    open().tokenizer();
    ADD_FAILURE();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("vocab.txt: empty"));
  }
}

}  // namespace
}  // namespace computron::test

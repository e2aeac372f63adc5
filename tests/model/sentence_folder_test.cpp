// Folders of sentence-transformers as the tensors of a model: which modules are read, and what is refused by name.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "computron/model/hf_model.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;
namespace fs = std::filesystem;

fs::path fixture(const std::string& name) { return fs::path(COMPUTRON_SENTENCE_FIXTURES) / name; }

json read_json(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

// A copy of a fixture whose files can be changed.
class SentenceFolderTest : public testing::Test {
 protected:
  SentenceFolderTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() / (std::string("computron_") + info->name() + "_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  ~SentenceFolderTest() override { fs::remove_all(root_); }

  fs::path copy_of(const std::string& name) const {
    fs::path folder = root_ / name;
    fs::remove_all(folder);
    fs::create_directories(root_);
    fs::copy(fixture(name), folder, fs::copy_options::recursive);
    return folder;
  }

  void change(const fs::path& file, const std::function<void(json&)>& body) const {
    json content = read_json(file);
    body(content);
    std::ofstream(file) << content.dump();
  }

  // The message with which the folder is refused after a file of it has been changed.
  std::string refusal(const std::string& name, const std::string& file, const std::function<void(json&)>& body) const {
    const fs::path folder = copy_of(name);
    change(folder / file, body);
    return refusal_of(folder);
  }
  static std::string refusal_of(const fs::path& folder) {
    try {
      HfModel model(folder.string());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(folder.string()));
      return error.what();
    }
    return "";
  }

  fs::path root_;
};

ModelConfig config_of(const std::string& name) { return HfModel(fixture(name).string()).config(); }

TEST_F(SentenceFolderTest, ModulesBecomeOneConfiguration) {
  const ModelConfig minilm = config_of("minilm");
  EXPECT_EQ(minilm.architecture, "bert");
  EXPECT_EQ(minilm.pooling, Pooling::kMean);
  EXPECT_FALSE(minilm.pooler);
  EXPECT_TRUE(minilm.normalize_embedding);
  EXPECT_EQ(minilm.max_input_tokens, 96);
  EXPECT_FALSE(minilm.embeds);
  EXPECT_EQ(config_of("bge").pooling, Pooling::kFirst);
  EXPECT_EQ(config_of("bert-last").pooling, Pooling::kLast);
  EXPECT_FALSE(config_of("bert-last").normalize_embedding);

  const ModelConfig dense = config_of("distil-dense");
  const std::vector<DenseLayer> layers = {{48, 64, true, Activation::kTanh}, {64, 24, false, Activation::kNone}};
  EXPECT_EQ(dense.dense, layers);
  EXPECT_EQ(dense.embedding_size(), 24);

  const ModelConfig e5 = config_of("e5-multilingual");
  EXPECT_THAT(e5.prompts, UnorderedElementsAre(Pair("query", "query: "), Pair("document", "passage: ")));
  EXPECT_EQ(e5.default_prompt, "query");

  const ModelConfig qwen3 = config_of("qwen3-embedding");
  EXPECT_TRUE(qwen3.embeds && qwen3.causal);
  EXPECT_FALSE(qwen3.tied_head);
  EXPECT_EQ(qwen3.pooling, Pooling::kLast);
}

TEST_F(SentenceFolderTest, CrossEncodersAreClassifiers) {
  const ModelConfig minilm = config_of("cross-minilm");
  EXPECT_EQ(minilm.classes, 1);
  EXPECT_EQ(minilm.class_scores, ClassScores::kSigmoid);
  EXPECT_TRUE(minilm.pooler);
  EXPECT_EQ(minilm.max_input_tokens, 96);
  EXPECT_EQ(config_of("cross-xlm-roberta").class_scores, ClassScores::kRaw);
  EXPECT_EQ(config_of("cross-xlm-roberta").max_input_tokens, 0) << "nothing of sentence-transformers is there";
}

// Folders of the first versions kept the transformer beside the others.
TEST_F(SentenceFolderTest, TheTransformerMayHaveAFolderOfItsOwn) {
  const fs::path folder = copy_of("minilm");
  fs::create_directory(folder / "0_Transformer");
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"}) {
    fs::rename(folder / name, folder / "0_Transformer" / name);
  }
  change(folder / "modules.json", [](json& modules) { modules[0]["path"] = "0_Transformer"; });
  const HfModel model(folder.string());
  EXPECT_EQ(model.config().to_json(), config_of("minilm").to_json());
  EXPECT_EQ(model.tokenizer().size(), 2u);
}

TEST_F(SentenceFolderTest, RefusesModulesThatItDoesNotCompute) {
  const auto with_type = [&](const std::string& type) {
    return refusal("minilm", "modules.json", [&](json& modules) { modules[1]["type"] = type; });
  };
  EXPECT_THAT(with_type("sentence_transformers.models.LSTM"), AllOf(HasSubstr("modules.json"), HasSubstr("LSTM")));
  EXPECT_THAT(with_type("custom_st.Pooling"), HasSubstr("custom_st.Pooling"));
  EXPECT_THAT(with_type("sentence_transformers.models.Dense"), HasSubstr("Dense"));
  EXPECT_THAT(refusal("minilm", "modules.json", [](json& modules) { modules.erase(1); }), HasSubstr("no Pooling"));
  EXPECT_THAT(refusal("minilm", "modules.json", [](json& modules) { modules.erase(0); }), HasSubstr("no Transformer"));
  EXPECT_THAT(refusal("minilm", "modules.json", [](json& modules) { modules[1]["path"] = "../1_Pooling"; }),
              HasSubstr("'modules.json: path'"));
  EXPECT_THAT(refusal("minilm", "modules.json", [](json& modules) { modules = json::object(); }),
              HasSubstr("not a JSON list"));
}

TEST_F(SentenceFolderTest, RefusesPoolingThatItDoesNotCompute) {
  const auto pooled = [&](const std::string& name, const json& more) {
    return refusal(name, "1_Pooling/config.json", [&](json& config) { config.update(more); });
  };
  EXPECT_EQ(pooled("minilm", {{"pooling_mode_cls_token", false}}), "");
  EXPECT_THAT(pooled("minilm", {{"pooling_mode_max_tokens", true}}),
              AllOf(HasSubstr("'pooling_mode'"), HasSubstr("max")));
  EXPECT_THAT(pooled("bert-last", {{"pooling_mode", "weightedmean"}}), HasSubstr("weightedmean"));
  EXPECT_THAT(pooled("bert-last", {{"pooling_mode", {"cls", "mean"}}}), HasSubstr("[\"cls\",\"mean\"]"));
  EXPECT_THAT(pooled("bert-last", {{"include_prompt", false}}), HasSubstr("'include_prompt'"));
  EXPECT_THAT(pooled("bert-last", {{"embedding_dimension", 41}}), AllOf(HasSubstr("41"), HasSubstr("40")));
  EXPECT_THAT(pooled("llama-mean", {{"pooling_mode", "cls"}}), AllOf(HasSubstr("'pooling_mode'"), HasSubstr("cls")));
}

TEST_F(SentenceFolderTest, RefusesDenseLayersThatDoNotFit) {
  const auto dense = [&](const json& more) {
    return refusal("distil-dense", "2_Dense/config.json", [&](json& config) { config.update(more); });
  };
  EXPECT_EQ(dense(json::object()), "");
  EXPECT_THAT(dense({{"activation_function", "torch.nn.modules.activation.Softmax"}}), HasSubstr("Softmax"));
  EXPECT_THAT(dense({{"use_residual", true}}), HasSubstr("'use_residual'"));
  EXPECT_THAT(dense({{"in_features", 47}}), AllOf(HasSubstr("47 inputs"), HasSubstr("48 outputs")));
  EXPECT_THAT(dense({{"out_features", 65}}), HasSubstr("65"));
  const fs::path folder = copy_of("distil-dense");
  fs::rename(folder / "2_Dense/model.safetensors", folder / "2_Dense/pytorch_model.bin");
  EXPECT_THAT(refusal_of(folder), AllOf(HasSubstr("2_Dense"), HasSubstr("pickle")));
}

TEST_F(SentenceFolderTest, RefusesWhatIsNotSaidClearly) {
  EXPECT_THAT(refusal("e5-multilingual", "config_sentence_transformers.json",
                      [](json& config) { config["default_prompt_name"] = "passage"; }),
              AllOf(HasSubstr("'default_prompt_name'"), HasSubstr("passage")));
  EXPECT_THAT(refusal("e5-multilingual", "config_sentence_transformers.json",
                      [](json& config) { config["prompts"]["query"] = std::string(20000, 'x'); }),
              HasSubstr("'prompts'"));
  EXPECT_THAT(refusal("qwen3-embedding", "config.json", [](json& config) { config["is_causal"] = false; }),
              HasSubstr("'is_causal'"));
}

TEST_F(SentenceFolderTest, RefusesWhatPairsDoNotHave) {
  const auto changed = [&](const json& more) {
    return refusal("cross-minilm", "config_sentence_transformers.json", [&](json& config) { config.update(more); });
  };
  const json prompts{{"query", "find: "}, {"none", ""}};
  EXPECT_EQ(changed({{"prompts", prompts}}), "") << "what is asked for by nobody";
  EXPECT_EQ(changed({{"prompts", prompts}, {"default_prompt_name", "none"}}), "");
  EXPECT_THAT(changed({{"prompts", prompts}, {"default_prompt_name", "query"}}),
              AllOf(HasSubstr("'default_prompt_name'"), HasSubstr("query"), HasSubstr("cross-encoder")));
  EXPECT_THAT(
      refusal("cross-minilm", "modules.json",
              [](json& modules) {
                modules.push_back({{"path", "1_Normalize"}, {"type", "sentence_transformers.models.Normalize"}});
              }),
      HasSubstr("Normalize without a Pooling"));
}

// What is cut is the end.
TEST_F(SentenceFolderTest, RefusesToKeepTheEndOfLongInputs) {
  const auto changed = [&](const std::string& side) {
    return refusal("minilm", "tokenizer_config.json", [&](json& config) { config["truncation_side"] = side; });
  };
  EXPECT_EQ(changed("right"), "");
  EXPECT_THAT(changed("left"), AllOf(HasSubstr("'truncation_side'"), HasSubstr("left")));
}

// What links lead out of the folder is refused in the folders of modules, too.
TEST_F(SentenceFolderTest, FilesOfModulesAreTheFoldersOwn) {
  const fs::path folder = copy_of("minilm");
  fs::rename(folder / "1_Pooling/config.json", root_ / "elsewhere.json");
  fs::create_symlink(root_ / "elsewhere.json", folder / "1_Pooling/config.json");
  EXPECT_THAT(refusal_of(folder), HasSubstr("symbolic link"));
  fs::remove_all(folder / "1_Pooling");
  fs::create_directory_symlink(fixture("minilm") / "1_Pooling", folder / "1_Pooling");
  EXPECT_THAT(refusal_of(folder), HasSubstr("symbolic link"));
}

// The hub's cache: REPO/snapshots/REVISION holds links into REPO/blobs.
TEST_F(SentenceFolderTest, FilesOfModulesMayLieInTheHubsCache) {
  const fs::path folder = copy_of("minilm"), blobs = root_ / "blobs", snapshot = root_ / "snapshots" / "main";
  fs::create_directories(blobs);
  fs::create_directories(snapshot.parent_path());
  fs::rename(folder, snapshot);
  fs::rename(snapshot / "1_Pooling/config.json", blobs / "abc");
  fs::create_symlink("../../../blobs/abc", snapshot / "1_Pooling/config.json");
  EXPECT_EQ(HfModel(snapshot.string()).config().pooling, Pooling::kMean);
}

}  // namespace
}  // namespace computron::test

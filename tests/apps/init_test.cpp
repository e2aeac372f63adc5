// computron init, as a person runs it.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "computron/base/convert.h"
#include "computron/base/quantise.h"
#include "computron/checkpoint/reader.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/config.h"
#include "tests/apps/program.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr char kConfig[] = R"({"model_type": "opt", "hidden_size": 256, "num_hidden_layers": 2, "ffn_dim": 1024,
    "num_attention_heads": 8, "vocab_size": 1500, "max_position_embeddings": 100})";

class InitTest : public ProgramTest {
 protected:
  // Writes `name` from kConfig and returns its path.
  std::string init(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"init", file(name), "--config", write("config.json", kConfig)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.errors, IsEmpty());
    return file(name);
  }
};

std::vector<std::byte> bytes_of(const CheckpointIndex& index, const std::string& name) {
  const TensorEntry& tensor = index.tensors.at(name);
  std::vector<std::byte> bytes;
  TensorReader(index).read(tensor, 0, tensor.bytes, tensor.bytes, [&](std::size_t, std::span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  });
  return bytes;
}

std::vector<float> floats_of(const CheckpointIndex& index, const std::string& name) {
  const auto bytes = bytes_of(index, name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The embedding and the layers that are frozen are the model's, the rest is that of the other seed.
TEST_F(InitTest, AVariantHasTheFirstLayersOfItsModel) {
  const auto model = read_checkpoint_index(init("m.h5", {"--seed", "3"}));
  const auto other = read_checkpoint_index(init("o.h5", {"--seed", "4"}));
  const auto variant = read_checkpoint_index(init("v.h5", {"--seed", "3", "--variant", "4", "--frozen-layers", "1"}));
  for (const auto& [name, tensor] : variant.tensors) {
    const bool frozen = name.starts_with("embedding.") || name.starts_with("layers.0.");
    EXPECT_EQ(tensor.digests, (frozen ? model : other).tensors.at(name).digests) << name;
  }
  EXPECT_EQ(run({"init", file("x.h5"), "--config", file("config.json"), "--frozen-layers", "1"}).code, 64);
}

TEST_F(InitTest, ModelFitsItsConfiguration) {
  const auto index = read_checkpoint_index(init("m.h5"));
  EXPECT_EQ(index.architecture, "opt");
  EXPECT_EQ(index.config_json, ModelConfig::from_hf_json(kConfig).to_json());
  EXPECT_NO_THROW(check_tensors(ModelConfig::from_json(index.config_json), index));
}

TEST_F(InitTest, SeedDecidesThreadsDoNot) {
  const std::string one = read_file(init("one.h5", {"--seed", "7", "--threads", "1"}));
  const std::string two = read_file(init("two.h5", {"--seed", "7", "--threads", "2"}));
  const std::string five = read_file(init("five.h5", {"--seed", "7", "--threads", "5"}));
  EXPECT_GT(one.size(), std::size_t{4} << 20);
  EXPECT_TRUE(one == two);
  EXPECT_TRUE(one == five);
  EXPECT_FALSE(one == read_file(init("other.h5", {"--seed", "8"})));
}

TEST_F(InitTest, TensorsDiffer) {
  const auto index = read_checkpoint_index(init("m.h5"));
  EXPECT_NE(bytes_of(index, "layers.0.attention.query.weight"), bytes_of(index, "layers.1.attention.query.weight"));
  EXPECT_NE(bytes_of(index, "layers.0.attention.query.weight"), bytes_of(index, "layers.0.attention.key.weight"));
  EXPECT_NE(bytes_of(index, "layers.0.mlp.down.bias"), bytes_of(index, "layers.0.attention.output.bias"));
}

// Mean, deviation and kurtosis within a few of their own standard errors, and no repetition.
TEST_F(InitTest, WeightsAreNormal) {
  const auto index = read_checkpoint_index(init("m.h5"));
  const auto values = floats_of(index, "embedding.tokens.weight");
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0, fourths = 0, neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double z = values[i] / 0.02;
    sum += z;
    squares += z * z;
    fourths += z * z * z * z;
    if (i > 0) neighbours += z * values[i - 1] / 0.02;
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
}

TEST_F(InitTest, BiasesAreNotZeroAndNormWeightsAreAroundOne) {
  const auto index = read_checkpoint_index(init("m.h5"));
  for (const float value : floats_of(index, "layers.1.mlp.up.bias")) {
    EXPECT_NE(value, 0);
    EXPECT_LT(std::fabs(value), 0.2f);
  }
  for (const float value : floats_of(index, "final_norm.weight")) {
    EXPECT_NE(value, 1);
    EXPECT_NEAR(value, 1, 0.6);
  }
}

// The 16-bit models are the float32 model, rounded.
TEST_F(InitTest, DtypesHoldTheSameNumbers) {
  const auto wide = floats_of(read_checkpoint_index(init("f32.h5")), "layers.0.mlp.down.weight");
  for (const char* dtype : {"f16", "bf16"}) {
    const auto index = read_checkpoint_index(init(std::string(dtype) + ".h5", {"--dtype", dtype}));
    EXPECT_EQ(name_of(index.tensors.at("layers.0.mlp.down.weight").dtype), dtype);
    const auto bytes = bytes_of(index, "layers.0.mlp.down.weight");
    ASSERT_EQ(bytes.size(), wide.size() * 2);
    std::size_t different = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
      different += bits != (std::string(dtype) == "f16" ? f16_from_f32(wide[i]) : bf16_from_f32(wide[i]));
    }
    EXPECT_EQ(different, 0u) << dtype;
  }
}

TEST_F(InitTest, QuantisedIsTheModelOfBf16Quantised) {
  const auto index = read_checkpoint_index(init("bf16.h5", {"--dtype", "bf16"}));
  for (const DType codes : kQuantisedTo) {
    const std::string dtype(name_of(codes));
    const std::string path = init(dtype + ".h5", {"--dtype", dtype});
    const auto quantised = read_checkpoint_index(path);
    check_tensors(ModelConfig::from_json(quantised.config_json), quantised);
    EXPECT_EQ(bytes_of(quantised, "embedding.tokens.weight"), bytes_of(index, "embedding.tokens.weight"));
    const auto halves = bytes_of(index, "layers.1.mlp.up.weight");
    std::vector<float> values(halves.size() / 2);
    convert_elements(halves.data(), DType::kBF16, reinterpret_cast<std::byte*>(values.data()), DType::kF32,
                     values.size());
    std::vector<std::byte> expected(computron::bytes_of(codes, values.size()));
    std::vector<std::uint16_t> scales(values.size() / 32);
    quantise_row(values, 32, codes, expected.data(), scales.data());
    EXPECT_EQ(bytes_of(quantised, "layers.1.mlp.up.weight"), expected) << dtype;
  }
}

TEST_F(InitTest, ThreadsDoNotChangeQuantisedFiles) {
  for (const std::string dtype : {"int8", "int4"}) {
    const std::string one = read_file(init("one.h5", {"--dtype", dtype, "--threads", "1"}));
    EXPECT_TRUE(one == read_file(init("four.h5", {"--dtype", dtype, "--threads", "4"}))) << dtype;
  }
}

TEST_F(InitTest, DeviationComesFromTheConfiguration) {
  std::string config = kConfig;
  config.insert(1, R"("init_std": 0.5, )");
  ASSERT_EQ(run({"init", file("m.h5"), "--config", write("wide.json", config)}).code, 0);
  double squares = 0;
  const auto values = floats_of(read_checkpoint_index(file("m.h5")), "layers.0.mlp.up.weight");
  for (const float value : values) squares += value * value;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.5, 0.01);
}

TEST_F(InitTest, BadUsageIs64) {
  const std::string config = write("config.json", kConfig);
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"initialise"},
      {"init"},
      {"init", file("m.h5")},
      {"init", file("m.h5"), "--arch", "opt"},
      {"init", file("m.h5"), "--size", "125m"},
      {"init", file("m.h5"), "--arch", "opt", "--size", "126m"},
      {"init", file("m.h5"), "--arch", "gpt9", "--size", "125m"},
      {"init", file("m.h5"), "--arch", "opt", "--size", "125m", "--config", config},
      {"init", file("m.h5"), "--config", config, "--dtype", "f64"},
      {"init", file("m.h5"), "--config", config, "--seed", "x"},
      {"init", file("m.h5"), "--config", config, "--threads", "0"},
      {"init", file("m.h5"), "--config", config, "--dtype", "keep"},
      {"init", file("m.h5"), "--config", config, "--dtype", "int4", "--group-size", "row"},
      {"init", file("m.h5"), "--config", config, "--group-size", "32"},
      {"init", file("m.h5"), "--config", config, "--fast"}};
  for (const auto& arguments : bad) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 64) << testing::PrintToString(arguments);
    EXPECT_THAT(outcome.errors, StartsWith("computron: ")) << testing::PrintToString(arguments);
    EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
  }
}

TEST_F(InitTest, HelpAndVersion) {
  EXPECT_EQ(run({"--help"}).code, 0);
  const Outcome help = run({"init", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("--size"), HasSubstr("norm weights normal around one"),
                                 HasSubstr("llama: 2-7b, 2-13b"), HasSubstr("vit: base")));
  EXPECT_THAT(run({"--version"}).output, StartsWith("computron "));
}

TEST_F(InitTest, ConfigurationsThatDoNotWork) {
  const auto code_of = [&](const std::string& text) {
    const Outcome outcome = run({"init", file("m.h5"), "--config", write("bad.json", text)});
    EXPECT_THAT(outcome.errors, AllOf(StartsWith("computron: "), HasSubstr("bad.json")));
    return outcome.code;
  };
  EXPECT_EQ(code_of("{"), 78);
  EXPECT_EQ(code_of(R"({"model_type": "opt", "activation_function": "mish"})"), 78);
  EXPECT_EQ(code_of(R"({"model_type": "opt", "init_std": -1})"), 78);
  EXPECT_EQ(code_of(R"({"model_type": "llama", "initializer_range": -1})"), 78);
  EXPECT_EQ(code_of(""), 66);
  EXPECT_EQ(run({"init", file("m.h5"), "--config", file("none.json")}).code, 66);
  EXPECT_EQ(run({"init", file("m.h5"), "--config", file("")}).code, 66);
}

TEST_F(InitTest, OutputThatCannotBeCreated) {
  const Outcome outcome = run({"init", file("none/m.h5"), "--config", write("config.json", kConfig)});
  EXPECT_EQ(outcome.code, 73);
  EXPECT_THAT(outcome.errors, HasSubstr("none/m.h5"));
}

// What a pass must do and read follows from the shapes; what it takes does not.
TEST_F(InitTest, BenchForwardCountsWhatAPassMultipliesAndReads) {
  const std::string model = init("m.h5");
  const Outcome outcome = run({"bench", "forward", model, "--threads", "2", "--prompt", "20", "--batches", "1,3",
                               "--context", "17", "--repeats", "2", "--json", file("f.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  for (const char* line : {"\ndecode 1 ", "\ndecode 3 ", "\nprefill 20 ", "of read", "attention"}) {
    EXPECT_THAT(outcome.output, HasSubstr(line));
  }
  const std::string json = read_file(file("f.json"));
  constexpr int kLayers = 2 * (4 * 256 * 256 + 2 * 256 * 1024), kHead = 1500 * 256, kPaddedHead = 1536 * 256;
  EXPECT_THAT(json, HasSubstr(fmt::format("\"gemm_flops\": {}.0", 2 * 3 * (kLayers + kHead))));
  EXPECT_THAT(json, HasSubstr(fmt::format("\"gemm_flops\": {}.0", 2 * (20 * kLayers + kHead))));
  EXPECT_THAT(json, HasSubstr(fmt::format("\"weight_bytes\": {}.0", 4 * (kLayers + kPaddedHead))));
  EXPECT_THAT(json, HasSubstr(fmt::format("\"cache_bytes\": {}.0", 3 * 18 * 2 * 2 * 256 * 4)));
  EXPECT_EQ(run({"bench", "forward", model, "--context", "100", "--prompt", "20"}).code, 64);
}

}  // namespace
}  // namespace computron::test

// computron inspect, as a person runs it.
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "computron/checkpoint/reader.h"
#include "computron/checkpoint/writer.h"
#include "computron/model/config.h"
#include "computron/model/quantisation.h"
#include "tests/apps/program.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class InspectTest : public ProgramTest {
 protected:
  InspectTest() {
    const std::string config = write("config.json", R"({"model_type": "opt", "hidden_size": 256,
        "num_hidden_layers": 2, "ffn_dim": 1024, "num_attention_heads": 8, "vocab_size": 1500})");
    EXPECT_EQ(run({"init", path_, "--config", config, "--dtype", "bf16"}).code, 0);
  }

  // Inverts a bit of a tensor's byte in the file.
  void damage(const std::string& tensor, std::size_t byte) const {
    const auto at = static_cast<std::streamoff>(read_checkpoint_index(path_).tensors.at(tensor).offset + byte);
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const int old = file.get();
    file.seekp(at);
    file.put(static_cast<char>(old ^ 4));
  }

  const std::string path_ = file("m.h5");
};

// Half of the layers are the same ones; a page holds less than a layer.
TEST_F(InspectTest, OfSeveralFilesTellsWhatTheyHaveInCommon) {
  const std::string variant = file("v.h5");
  ASSERT_EQ(run({"init", variant, "--config", file("config.json"), "--dtype", "bf16", "--variant", "9",
                 "--frozen-layers", "1"})
                .code,
            0);
  const Outcome outcome = run({"inspect", path_, variant, path_, "--json", "--page-size", "512KiB"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json shown = json::parse(outcome.output);
  EXPECT_EQ(shown["page_bytes"], 512 << 10);
  const json &first = shown["files"][0], &second = shown["files"][1], &third = shown["files"][2];
  EXPECT_EQ(first["new_bytes"], first["bytes"]);
  EXPECT_EQ(second["bytes"], first["bytes"]);
  const double layer = 2.0 * (4 * 256 * 256 + 2 * 256 * 1024);
  EXPECT_GE(second["new_bytes"], layer);
  EXPECT_LE(second["new_bytes"], layer + 2 * (512 << 10));
  EXPECT_EQ(third["new_pages"], 0);
  EXPECT_EQ(third["new_bytes"], 0);
  EXPECT_THAT(run({"inspect", path_, variant}).output, AllOf(HasSubstr("not in those above"), HasSubstr("together")));
}

TEST_F(InspectTest, OfSeveralFilesNamesTheOneAtFault) {
  const Outcome missing = run({"inspect", path_, file("none.h5")});
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.errors, HasSubstr("none.h5"));
  EXPECT_EQ(run({"inspect", path_, path_, "--verify"}).code, 64);
  EXPECT_EQ(run({"inspect", path_, "--page-size", "1MiB"}).code, 64);
  EXPECT_EQ(run({"inspect", path_, path_, "--page-size", "100"}).code, 64);
}

TEST_F(InspectTest, TextNamesEverything) {
  const Outcome outcome = run({"inspect", path_});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.errors, IsEmpty());
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("m.h5"), HasSubstr("opt"), HasSubstr("max_positions"), HasSubstr("2048"),
                                    HasSubstr("layers.1.mlp.down.weight"), HasSubstr("[1024,256]"), HasSubstr("bf16"),
                                    HasSubstr("not verified")));
}

TEST_F(InspectTest, JsonIsTheIndex) {
  const auto index = read_checkpoint_index(path_);
  const json shown = json::parse(run({"inspect", path_, "--json"}).output);
  EXPECT_EQ(shown["path"], path_);
  EXPECT_EQ(shown["file_bytes"], index.file_bytes);
  EXPECT_EQ(shown["format_version"], kCheckpointFormatVersion);
  EXPECT_EQ(shown["architecture"], "opt");
  EXPECT_EQ(shown["config"], json::parse(index.config_json));
  EXPECT_EQ(shown["digests"]["state"], "not verified");
  ASSERT_EQ(shown["tensors"].size(), index.tensors.size());
  std::size_t parameters = 0;
  for (const json& tensor : shown["tensors"]) {
    const TensorEntry& entry = index.tensors.at(tensor["name"]);
    EXPECT_EQ(tensor["dtype"], "bf16");
    EXPECT_EQ(tensor["shape"], json(entry.shape));
    EXPECT_EQ(tensor["transposed"], entry.transposed);
    EXPECT_EQ(tensor["offset"], entry.offset);
    EXPECT_EQ(tensor["bytes"], entry.bytes);
    parameters += entry.bytes / 2;
  }
  EXPECT_EQ(shown["parameters"], parameters);
}

TEST_F(InspectTest, EstimatesWhatCodedPagesWouldTake) {
  EXPECT_THAT(run({"inspect", path_}).output, testing::ContainsRegex("coded pages   .* %\\), estimated from a sample"));
  const json coded = json::parse(run({"inspect", path_, "--json"}).output)["coded_pages"];
  const double share = coded["coded_bytes"].get<double>() / coded["bytes"].get<double>();
  EXPECT_GT(share, 0.65);
  EXPECT_LT(share, 0.85);  // tables are float32
  damage("layers.1.mlp.up.weight", 5);
  EXPECT_THAT(run({"inspect", path_}).output, HasSubstr("coded pages   cannot be told: "));
  EXPECT_TRUE(json::parse(run({"inspect", path_, "--json"}).output)["coded_pages"].is_null());
}

TEST_F(InspectTest, VerifyFindsNothingInASoundFile) {
  for (const char* threads : {"1", "3"}) {
    const Outcome outcome = run({"inspect", path_, "--verify", "--json", "--threads", threads});
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_EQ(json::parse(outcome.output)["digests"]["state"], "verified");
  }
}

TEST_F(InspectTest, VerifyNamesTheDamageAndEndsWith65) {
  damage("embedding.tokens.weight", 700'000);
  damage("layers.1.mlp.up.bias", 5);
  EXPECT_EQ(run({"inspect", path_}).code, 0);  // the metadata is sound
  const Outcome outcome = run({"inspect", path_, "--verify", "--json"});
  EXPECT_EQ(outcome.code, 65);
  EXPECT_THAT(outcome.errors, AllOf(StartsWith("computron: " + path_), HasSubstr("2 of ")));
  const json digests = json::parse(outcome.output)["digests"];
  EXPECT_EQ(digests["state"], "damaged");
  EXPECT_EQ(digests["damaged_chunks"], 2);
  EXPECT_THAT(digests["damages"].dump(),
              AllOf(HasSubstr("'embedding.tokens.weight'"), HasSubstr("'layers.1.mlp.up.bias'")));
}

TEST_F(InspectTest, VerifyNamesWhatIsNoNumberAndEndsWith78) {
  const auto config = ModelConfig::from_json(read_checkpoint_index(path_).config_json);
  std::vector<TensorDeclaration> tensors;
  for (const auto& spec : tensor_specs(config))
    tensors.push_back({spec.name, DType::kF16, spec.shape, spec.transposed});
  CheckpointWriter writer(file("nan.h5"), "opt", config.to_json(), tensors);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::size_t bytes = 2;
    for (const std::size_t extent : tensors[t].shape) bytes *= extent;
    std::vector<std::byte> values(bytes);
    if (tensors[t].name == "layers.1.mlp.up.bias") values[7] = values[8] = values[9] = std::byte{0x7c};
    writer.write(t, 0, values);
  }
  writer.finish();
  EXPECT_EQ(run({"inspect", file("nan.h5")}).code, 0);  // the values are not looked at
  const Outcome outcome = run({"inspect", file("nan.h5"), "--verify", "--json"});
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.errors, AllOf(StartsWith("computron: " + file("nan.h5")), HasSubstr("1 tensors hold NaN"),
                                    HasSubstr("2 values of tensor 'layers.1.mlp.up.bias'")));
  const json digests = json::parse(outcome.output)["digests"];
  EXPECT_EQ(digests["state"], "verified");
  EXPECT_EQ(digests["not_finite"], (json{{"layers.1.mlp.up.bias", 2}}));
}

TEST_F(InspectTest, ShowsHowWeightsAreQuantised) {
  ASSERT_EQ(run({"init", file("q.h5"), "--config", file("config.json"), "--dtype", "int4"}).code, 0);
  EXPECT_THAT(run({"inspect", file("q.h5")}).output,
              AllOf(HasSubstr("int4 in groups of 32   4.5  [1024,256]"), HasSubstr("bits a weight "),
                    HasSubstr("layers.1.mlp.up.weight.scales")));
  const json shown = json::parse(run({"inspect", file("q.h5"), "--json"}).output);
  EXPECT_EQ(shown["parameters"], json::parse(run({"inspect", path_, "--json"}).output)["parameters"]);
  EXPECT_GT(shown["bits_a_weight"], 4.5);
  EXPECT_LT(shown["bits_a_weight"], 16);
  for (const json& tensor : shown["tensors"]) {
    EXPECT_EQ(tensor.contains("group"), tensor["dtype"] == "int4");
    if (!tensor.contains("group")) continue;
    EXPECT_EQ(tensor["group"], 32);
    EXPECT_EQ(tensor["bits"], 4.5);
  }
}

// A model of zeros with codes of `dtype` and, in layers.1.mlp.up.weight or its scales, such bytes.
std::string model_of(const std::string& path, const ModelConfig& config, const std::string& dtype, bool in_scales,
                     std::byte low, std::byte high) {
  const auto specs = tensor_specs(config);
  std::vector<TensorToWrite> tensors;
  for (const auto& spec : specs) {
    tensors.push_back({{spec.name, DType::kBF16, spec.shape, spec.transposed}, DType::kBF16});
  }
  quantise(config, specs,
           {.codes = dtype == "int8"  ? DType::kInt8
                     : dtype == "fp8" ? DType::kFp8
                                      : DType::kInt4},
           tensors);
  auto declared = declarations_of(tensors);
  for (std::size_t t = 1; dtype == "fp4" && t < declared.size(); ++t) {
    if (declared[t - 1].dtype != DType::kInt4) continue;
    declared[t - 1].dtype = DType::kFp4;
    declared[t].dtype = DType::kE4M3;
  }
  CheckpointWriter writer(path, "opt", config.to_json(), declared);
  for (std::size_t t = 0; t < declared.size(); ++t) {
    std::vector<std::byte> values(bytes_of(
        declared[t].dtype,
        std::accumulate(declared[t].shape.begin(), declared[t].shape.end(), std::size_t{1}, std::multiplies<>())));
    const std::string name = "layers.1.mlp.up.weight";
    if (declared[t].name == (in_scales ? scales_name(name) : name)) {
      values[6] = low;
      values[7] = high;
    }
    writer.write(t, 0, values);
  }
  writer.finish();
  return path;
}

TEST_F(InspectTest, VerifyRefusesScalesAndCodesThatMakeNoSense) {
  const auto config = ModelConfig::from_json(read_checkpoint_index(path_).config_json);
  const auto outcome = [&](const std::string& dtype, bool in_scales, int low, int high) {
    return run(
        {"inspect",
         model_of(file("q.h5"), config, dtype, in_scales, static_cast<std::byte>(low), static_cast<std::byte>(high)),
         "--verify"});
  };
  EXPECT_EQ(outcome("int8", /*in_scales=*/true, 0x80, 0x3f).code, 0);
  EXPECT_EQ(outcome("int4", /*in_scales=*/true, 0x80, 0xbf).code, 0);  // -1
  const Outcome negative = outcome("int8", /*in_scales=*/true, 0x80, 0xbf);
  EXPECT_EQ(negative.code, 78);
  EXPECT_THAT(negative.errors, AllOf(HasSubstr("negative scales"), HasSubstr("'layers.1.mlp.up.weight.scales'")));
  EXPECT_EQ(outcome("fp8", /*in_scales=*/true, 0x80, 0xbf).code, 78);
  EXPECT_EQ(outcome("int4", /*in_scales=*/true, 0xc0, 0x7f).code, 78);  // NaN
  EXPECT_EQ(outcome("int8", /*in_scales=*/true, 0x80, 0x7f).code, 78);  // an infinity
  const Outcome nan = outcome("fp8", /*in_scales=*/false, 0x7f, 0x7e);
  EXPECT_EQ(nan.code, 78);
  EXPECT_THAT(nan.errors, HasSubstr("1 values of tensor 'layers.1.mlp.up.weight'"));
  EXPECT_EQ(outcome("int8", /*in_scales=*/false, 0x7f, 0xff).code, 0);
  EXPECT_EQ(outcome("fp4", /*in_scales=*/true, 0x7e, 0).code, 0);
  EXPECT_EQ(outcome("fp4", /*in_scales=*/true, 0x81, 0).code, 78);  // negative
  EXPECT_EQ(outcome("fp4", /*in_scales=*/true, 0x7f, 0).code, 78);  // NaN
}

TEST_F(InspectTest, MissingFileIs66) {
  const Outcome outcome = run({"inspect", file("none.h5")});
  EXPECT_EQ(outcome.code, 66);
  EXPECT_THAT(outcome.errors, AllOf(StartsWith("computron: "), HasSubstr("none.h5")));
  EXPECT_EQ(run({"inspect", "/dev/null"}).code, 66);
}

TEST_F(InspectTest, DamagedMetadataIs65) {
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  const Outcome truncated = run({"inspect", path_});
  EXPECT_EQ(truncated.code, 65);
  EXPECT_THAT(truncated.errors, AllOf(StartsWith("computron: " + path_), HasSubstr("truncated")));
  EXPECT_EQ(run({"inspect", write("text.h5", std::string(1000, 'x'))}).code, 65);
}

// HDF5's variables neither load code nor change what is read.
TEST_F(InspectTest, EnvironmentHasNoSay) {
  for (const char* name : {"HDF5_PLUGIN_PATH", "HDF5_PLUGIN_PRELOAD", "HDF5_DRIVER", "HDF5_VOL_CONNECTOR"}) {
    setenv(name, "core", 1);
  }
  setenv("HDF5_USE_FILE_LOCKING", "TRUE", 1);
  const Outcome outcome = run({"inspect", path_, "--verify"});
  for (const char* name :
       {"HDF5_PLUGIN_PATH", "HDF5_PLUGIN_PRELOAD", "HDF5_DRIVER", "HDF5_VOL_CONNECTOR", "HDF5_USE_FILE_LOCKING"}) {
    unsetenv(name);
  }
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
}

TEST_F(InspectTest, TensorsThatDoNotFitTheConfigurationAre78) {
  const auto config = ModelConfig::named("opt", "125m");
  const std::vector<std::byte> bytes(16);
  CheckpointWriter writer(file("odd.h5"), "opt", config.to_json(), {{"stray", DType::kF32, {4}}});
  writer.write(0, 0, bytes);
  writer.finish();
  const Outcome outcome = run({"inspect", file("odd.h5")});
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.output, HasSubstr("stray"));
  EXPECT_THAT(outcome.errors, AllOf(StartsWith("computron: " + file("odd.h5")), HasSubstr("embedding.tokens.weight")));
}

TEST_F(InspectTest, ConfigurationThatIsNoneIs78) {
  const std::vector<std::byte> bytes(16);
  CheckpointWriter writer(file("odd.h5"), "opt", "no json", {{"stray", DType::kF32, {4}}});
  writer.write(0, 0, bytes);
  writer.finish();
  const Outcome outcome = run({"inspect", file("odd.h5"), "--json"});
  EXPECT_EQ(outcome.code, 78);
  EXPECT_EQ(json::parse(outcome.output)["config"], "no json");
}

}  // namespace
}  // namespace computron::test

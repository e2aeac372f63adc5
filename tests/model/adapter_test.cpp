// A base beside an adapter, as one model of two files.
#include "computron/model/adapter.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "computron/base/error.h"
#include "computron/checkpoint/reader.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/weight_types.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AdapterTest : public testing::Test {
 protected:
  AdapterTest() {
    std::filesystem::create_directories(folder_);
    base_.dtype = DType::kBF16;
    base_.tied_head = false;
    write_tiny_checkpoint(path("base"), base_);
  }
  ~AdapterTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / (name + ".h5")).string(); }
  CheckpointIndex both(const RandomAdapter& adapter) const {
    write_random_adapter(path("adapter"), opt_config(base_), adapter);
    return with_adapter(read_checkpoint_index(path("base")), read_checkpoint_index(path("adapter")));
  }
  static std::string refusal(const auto& body) {
    try {
      body();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  TinyModel base_;
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("computron_adapter_test." + std::to_string(getpid()));
};

// In float32, of a base in bfloat16.
TEST_F(AdapterTest, WhatItHoldsWholeHasATypeOfItsOwn) {
  const CheckpointIndex index =
      both({.changes = [](const std::string& name) { return name.find(".mlp.") != std::string::npos; },
            .replaces = [](const std::string& name) { return name == "head.weight"; }});
  const ModelConfig config = ModelConfig::from_json(index.config_json);
  check_tensors(config, index);
  const WeightTypes types(config, index);
  EXPECT_EQ(types.of("head.weight"), DType::kF32);
  EXPECT_EQ(types.of("layers.0.mlp.up.weight"), DType::kBF16);
  EXPECT_EQ(types.most(), DType::kBF16);
}

// The scales go with the codes.
TEST_F(AdapterTest, WhatItHoldsWholeStandsForCodesToo) {
  write_quantised_pair(path("base"), path("plain"), opt_config(base_), {DType::kBF16, DType::kInt8, DType::kBF16, 16},
                       /*seed=*/1);
  const CheckpointIndex index =
      both({.replaces = [](const std::string& name) { return name == "layers.1.mlp.down.weight"; }});
  const ModelConfig config = ModelConfig::from_json(index.config_json);
  check_tensors(config, index);
  const WeightTypes types(config, index);
  EXPECT_EQ(types.of("layers.1.mlp.down.weight"), DType::kF32);
  EXPECT_TRUE(types.of("layers.0.mlp.down.weight").quantised());
}

// Those are rows of one matrix.
TEST_F(AdapterTest, WhatIsMultipliedTogetherHasOneType) {
  const CheckpointIndex index =
      both({.replaces = [](const std::string& name) { return name == "layers.1.attention.key.weight"; }});
  EXPECT_THAT(refusal([&] { check_tensors(ModelConfig::from_json(index.config_json), index); }),
              AllOf(HasSubstr("layers.1.attention"), HasSubstr("with which it is multiplied")));
}

// A file that says that it is a base beside an adapter.
TEST_F(AdapterTest, NoFileHasRanksOfAnAdapter) {
  CheckpointIndex index = both({});
  check_tensors(ModelConfig::from_json(index.config_json), index);
  index.second_path.clear();
  EXPECT_THAT(refusal([&] { check_tensors(ModelConfig::from_json(index.config_json), index); }),
              AllOf(HasSubstr(path("base")), HasSubstr("adapter_ranks")));
  const CheckpointIndex adapter = read_checkpoint_index(path("adapter"));
  EXPECT_THAT(refusal([&] { with_adapter(index, adapter); }),
              AllOf(HasSubstr(path("base")), HasSubstr("adapter_ranks")));
  CheckpointIndex of_both = adapter;
  of_both.config_json = adapter_config_json(ModelConfig::from_json(index.config_json));
  EXPECT_THAT(refusal([&] { check_adapter(of_both); }), AllOf(HasSubstr(path("adapter")), HasSubstr("adapter_ranks")));
}

}  // namespace
}  // namespace computron::test

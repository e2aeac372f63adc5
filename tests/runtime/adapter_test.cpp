// LoRA adapters against peft: models that `computron convert --merge` made of tests/fixtures/adapters and their bases,
// and the adapters beside their bases, computed on every mesh of as many ranks as there are, held against the logits
// that peft computed in float32 with the adapter beside the base (tests/fixtures/make_adapters.py).
#include "computron/model/adapter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "computron/runtime/page_contents.h"
#include "tests/runtime/family_measures.h"
#include "tests/runtime/family_model.h"
#include "tests/runtime/family_results.h"
#include "tests/support/beside.h"

namespace computron::test {
namespace {

std::filesystem::path fixtures() { return COMPUTRON_ADAPTER_FIXTURES; }

std::vector<std::string> adapter_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

CheckpointIndex file(const std::string& name) {
  return read_checkpoint_index(beside_test("adapters") / (name + ".h5"));
}

CheckpointIndex beside_its_base(const std::string& adapter) {
  std::ifstream config(fixtures() / adapter / "adapter_config.json");
  const auto base = nlohmann::json::parse(config)["base_model_name_or_path"].get<std::string>();
  return with_adapter(file("base." + base), file(adapter + ".adapter"));
}

// All ranks go through all adapters and meshes in the same order, whatever fails.
template <class IndexOf>
void expect_what_peft_computes(const std::vector<std::string>& adapters, const IndexOf& index_of) {
  const Communicator world = Communicator::world();
  for (const MeshShape shape : meshes(world.size())) {
    for (const std::string& adapter : adapters) {
      SCOPED_TRACE(fmt::format("{} on {}x{}", adapter, shape.tp, shape.pp));
      Model model(shape, index_of(adapter), world);
      if (model.multiplied_as() == DType::kBF16) continue;
      const FamilyFixture expected(fixtures() / adapter / "expected.safetensors", "");
      const std::vector<Result> results = compute(model, expected);
      EXPECT_GE(results.size(), 3u);
      for (const Result& result : results) {
        if (!model.reports()) continue;
        EXPECT_LE(distance(result.actual, result.expected), model.tolerance()) << result.name;
      }
    }
  }
}

TEST(Adapters, MergedComputeWhatPeftComputes) {
  ASSERT_GE(adapter_names().size(), 7u);
  expect_what_peft_computes(adapter_names(), file);
}

TEST(Adapters, BesideTheirBasesComputeWhatPeftComputes) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  std::vector<std::string> names = adapter_names();
  std::erase(names, "phi3");  // changes the output head, which is computed merged only
  expect_what_peft_computes(names, beside_its_base);
}

TEST(Adapters, OfTheOutputHeadAreComputedMergedOnly) {
  try {
    beside_its_base("phi3");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("head.weight"), std::string::npos) << error.what();
  }
}

// With --reproducible the same bits at tp 1, 2 and 4, an adapter's part counted in.
TEST(Adapters, AreReproducible) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  const ModelConfig config = ModelConfig::from_json(beside_its_base("llama3").config_json);
  for (const int tp : {1, 2}) {
    ModelConfig even = config;  // whose heads and inner units can be cut
    even.heads = 8;
    even.kv_heads = 2;
    even.ffn = 64;
    const ShardPlan plan = ShardPlan::make(even, {.tp = tp, .pp = 1}, 0, /*reproducible=*/true);
    const auto count = [&](const std::string& part) {
      return std::ranges::count_if(plan.tensors, [&](const ShardTensor& tensor) {
        return tensor.name.starts_with("layers.0.mlp.down.lora_" + part + ".");
      });
    };
    EXPECT_EQ(count("a"), 8 / tp);
    EXPECT_EQ(count("b"), 8 / tp);
    const auto rows = std::ranges::find(plan.tensors, "layers.0.mlp.down.lora_a.1", &ShardTensor::name)->rows;
    EXPECT_EQ(rows, 8);
    EXPECT_GE(std::ranges::find(plan.tensors, "layers.0.mlp.down.lora_b.1", &ShardTensor::name)->same_as, 0);
  }
}

// A base's pages are the same with any adapter, which has pages of its own beside them.
TEST(Adapters, LeaveTheirBasesPagesAsTheyAre) {
  const std::unique_ptr<WeightFormat> format = make_cpu_weight_format();
  const auto contents = [&](const CheckpointIndex& index, int stage) {
    const ModelConfig config = ModelConfig::from_json(index.config_json);
    const ShardPlan plan = ShardPlan::make(config, {.tp = 2, .pp = 2}, stage);
    const ShardLayout layout = ShardLayout::make(plan, *format, WeightTypes(config, index), 32768);
    return page_contents(index, layout, 2);
  };
  const CheckpointIndex base = file("base.llama3"), both = beside_its_base("llama3");
  for (const int stage : {0, 1}) {
    const std::vector<Digest128> of_base = contents(base, stage), of_both = contents(both, stage);
    for (const Digest128& page : of_base) EXPECT_EQ(std::ranges::count(of_both, page), 1);
    EXPECT_GT(of_both.size(), of_base.size());
    EXPECT_LE(of_both.size(), of_base.size() + 2) << "an adapter of some 30 KiB a rank";
  }
}

// [stage] Of two.
std::vector<std::optional<Digest128>> families(const CheckpointIndex& index) {
  const std::unique_ptr<WeightFormat> format = make_cpu_weight_format();
  const ModelConfig config = ModelConfig::from_json(index.config_json);
  std::vector<std::optional<Digest128>> families;
  for (const int stage : {0, 1}) {
    const ShardPlan plan = ShardPlan::make(config, {.tp = 2, .pp = 2}, stage);
    ShardLayout layout = ShardLayout::make(plan, *format, WeightTypes(config, index), 32768);
    EXPECT_FALSE(family_digest(layout)) << "nobody knows what it holds";
    layout.contents = page_contents(index, layout, 2);
    families.push_back(family_digest(layout));
  }
  return families;
}

TEST(Adapters, AreOfTheirBasesFamily) {
  const auto of_llama = families(file("base.llama3"));
  EXPECT_TRUE(of_llama[0] && of_llama[1]);
  EXPECT_EQ(families(beside_its_base("llama3")), of_llama);
  const auto of_opt = families(file("base.opt"));
  EXPECT_EQ(families(beside_its_base("opt-rslora")), of_opt);
  EXPECT_NE(of_opt[0], of_llama[0]);
  CheckpointIndex scaled = file("base.llama3");
  ModelConfig config = ModelConfig::from_json(scaled.config_json);
  config.rope_theta *= 2;
  scaled.config_json = config.to_json();
  EXPECT_NE(families(scaled)[0], of_llama[0]) << "equal tensors, which compute something else";
  config.rope_theta /= 2;
  config.eos_tokens = {7};
  scaled.config_json = config.to_json();
  EXPECT_EQ(families(scaled), of_llama);
}

// An output head and a norm that were saved whole are on the last stage.
TEST(Adapters, ThatHoldTensorsWholeAreOfNoFamilyWithTheirBase) {
  const auto of_base = families(file("base.gpt-neox")), of_both = families(beside_its_base("gpt-neox"));
  EXPECT_EQ(of_both[0], of_base[0]);
  EXPECT_TRUE(of_both[1]);
  EXPECT_NE(of_both[1], of_base[1]);
}

TEST(Adapters, OfModelsThatPoolTheirRowsAreOfNoFamily) {
  EXPECT_FALSE(families(beside_its_base("bert"))[0]);
  EXPECT_FALSE(families(file("base.bert"))[1]);
}

}  // namespace
}  // namespace computron::test

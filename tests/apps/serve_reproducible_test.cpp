// --reproducible: tokens and log-probabilities have the same bits at tp 1, 2, 4 and 8, drawn ones too.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/ops/ops.h"
#include "kernels/cpu/quantised_panel.h"
#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Eight heads, and a vocabulary that nothing divides.
ModelConfig base_config() {
  ModelConfig c = opt_config({.layers = 2, .heads = 8, .head_dim = 12, .ffn = 120, .vocab = 307, .max_positions = 128});
  c.eos_tokens = {};
  return c;
}

ModelConfig mixtral_config() {
  ModelConfig c = base_config();
  c.architecture = "mixtral";
  c.positions = PositionKind::kRotary;
  c.position_offset = 0;
  c.norm = NormKind::kRmsNorm;
  c.norm_bias = c.attention_bias = c.attention_output_bias = c.mlp_bias = false;
  c.activation = Activation::kSilu;
  c.gated_mlp = true;
  c.kv_heads = 2;  // at tp 4 and 8 every one is copied
  c.experts = 4;
  c.experts_per_token = 2;
  c.tied_head = false;
  return c;
}

// As Qwen2-MoE: one layer without experts, and an expert for all rows in the other.
ModelConfig shared_config() {
  ModelConfig c = mixtral_config();
  c.expert_layers = {0, 1};
  c.expert_ffn = 40;
  c.shared_ffn = 64;
  c.router_softmax = RouterSoftmax::kAll;
  return c;
}

// As gpt-oss: biases and sinks, which must count once whatever tp is.
ModelConfig sinks_config() {
  ModelConfig c = mixtral_config();
  c.mlp_bias = c.router_bias = c.attention_bias = c.attention_output_bias = c.attention_sinks = true;
  c.activation = Activation::kQuickGelu;
  c.gate_limit = 0.5f;
  c.gate_offset = 1;
  return c;
}

ModelConfig llama_like_config() {
  ModelConfig c = mixtral_config();
  c.architecture = "llama";
  c.experts = c.experts_per_token = 0;
  return c;
}

// As OLMo 3: queries and keys are normalised over the heads of all ranks, of which key heads are copies.
ModelConfig width_config() {
  ModelConfig c = llama_like_config();
  c.norm_position = NormPosition::kOutput;
  c.query_key_norm = QueryKeyNorm::kWidth;
  c.sliding_window = 20;
  c.window_layers = {1, 0};
  c.rope_window_theta = 500;
  return c;
}

// As Gemma, with every multiplier and cap that there is.
ModelConfig sandwich_config() {
  ModelConfig c = llama_like_config();
  c.norm = NormKind::kRmsNormPlusOne;
  c.norm_position = NormPosition::kSandwich;
  c.query_key_norm = QueryKeyNorm::kHeads;
  c.attention_soft_cap = 4;
  c.logits_soft_cap = 6;
  c.embedding_scale = 3;
  c.residual_scale = 0.7f;
  c.logits_scale = 1.5f;
  c.tied_head = true;
  return c;
}

// As GPT-NeoX.
ModelConfig parallel_config() {
  ModelConfig c = base_config();
  c.positions = PositionKind::kRotary;
  c.position_offset = 0;
  c.rotary_dims = 4;
  c.parallel_residual = true;
  return c;
}

// K slices of 16 columns of the attention's output, 32 of the MLP's: groups of 32 are cut, or not.
ModelConfig quantised_config() {
  return opt_config({.layers = 2, .heads = 8, .head_dim = 16, .ffn = 256, .vocab = 307, .max_positions = 128});
}

WeightType quantised_type(DType codes, DType scales, int group) {
  const std::unique_ptr<Device> device = make_cpu_device({});
  return make_cpu_ops(*device)->weight_type({DType::kBF16, codes, scales, group});
}

class ServeReproducible : public ::testing::Test {
 protected:
  ServeReproducible() {
    write_random_checkpoint(folder_ / "f32.h5", base_config(), DType::kF32, 1);
    write_random_checkpoint(folder_ / "bf16.h5", base_config(), DType::kBF16, 2);
    write_random_checkpoint(folder_ / "moe.h5", mixtral_config(), DType::kF32, 3);
    write_random_checkpoint(folder_ / "shared.h5", shared_config(), DType::kF32, 9);
    write_random_checkpoint(folder_ / "sinks.h5", sinks_config(), DType::kF32, 10);
    write_random_checkpoint(folder_ / "width.h5", width_config(), DType::kF32, 6);
    write_random_checkpoint(folder_ / "sandwich.h5", sandwich_config(), DType::kBF16, 7);
    write_random_checkpoint(folder_ / "parallel.h5", parallel_config(), DType::kF32, 8);
    write_quantised_pair(folder_ / "codes.h5", folder_ / "values.h5", quantised_config(),
                         quantised_type(DType::kInt4, DType::kBF16, 32), 4);
    write_quantised_pair(folder_ / "fp4.h5", folder_ / "of_fp4.h5", quantised_config(),
                         quantised_type(DType::kFp4, DType::kE4M3, 16), 5);
  }

  ServeJob job(int tp, int pp) {
    ServeJob job{.tp = tp, .pp = pp, .device_memory = "16MiB", .more = {"--reproducible"}};
    std::vector<int> prompt;
    for (int i = 0; i < 70; ++i) prompt.push_back((i * 37 + 11) % 300);
    for (const char* id : {"f32", "bf16", "moe", "shared", "sinks", "width", "sandwich", "parallel", "codes", "values",
                           "fp4", "of_fp4"}) {
      job.models.push_back({id, folder_ / (std::string(id) + ".h5")});
      job.lines.push_back(
          completion_line(std::string(id) + ".greedy", id, prompt, 10, {{"logprobs", 5}, {"echo", true}}));
      job.lines.push_back(
          completion_line(std::string(id) + ".drawn", id, {5, 6, 7}, 10,
                          {{"logprobs", 2}, {"temperature", 1.2}, {"top_p", 0.9}, {"seed", 3}, {"n", 2}}));
    }
    return job;
  }

  TemporaryFolder folder_;
};

std::map<std::string, json> choices(const Served& served) {
  std::map<std::string, json> choices;
  for (const std::string& id : served.results.custom_ids()) {
    choices[id] = served.results.line(id).at("response").at("body").at("choices");
  }
  return choices;
}

TEST_F(ServeReproducible, SameBitsAtEveryTp) {
  const auto alone = choices(serve_ok(job(1, 1), folder_));
  ASSERT_EQ(alone.size(), 24u);
  // Codes that are multiplied as integers are not to the bit what their values are, but choose the same tokens.
  const bool exact = !kernels::multiplies_integers(quantised_type(DType::kInt4, DType::kBF16, 32));
  for (const std::string kind : {".greedy", ".drawn"}) {
    for (const auto& [codes, values] : {std::pair{"codes", "values"}, {"fp4", "of_fp4"}}) {
      const json &of_codes = alone.at(codes + kind), &of_values = alone.at(values + kind);
      ASSERT_EQ(of_codes.size(), of_values.size());
      for (std::size_t i = 0; i < of_codes.size(); ++i) {
        EXPECT_EQ(of_codes[i].at("token_ids"), of_values[i].at("token_ids")) << codes << kind;
      }
      if (exact) {
        EXPECT_EQ(of_codes, of_values);
      }
    }
  }
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{4, 1}, std::pair{8, 1}, std::pair{2, 2}}) {
    const auto found = choices(serve_ok(job(tp, pp), folder_));
    for (const auto& [id, expected] : alone) EXPECT_EQ(found.at(id), expected) << id << " at " << tp << "x" << pp;
  }
}

TEST_F(ServeReproducible, RefusesWhatCannotBeCutEvenly) {
  ServeJob three = job(3, 1);
  const JobOutcome outcome = RunningServe(three, folder_).finish(failing_limit_s()).job;
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.errors, HasSubstr("--reproducible: tp 3 does not divide the 8 K slices"));
}

}  // namespace
}  // namespace computron::test

// computron convert --adapter and --merge, as a person runs them: a folder of PEFT in, an adapter's file and a merged
// checkpoint out.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "computron/checkpoint/reader.h"
#include "computron/model/adapter.h"
#include "computron/model/checkpoint_check.h"
#include "tests/apps/program.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kConfig[] =
    R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 80,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 32})";
constexpr char kAdapterConfig[] = R"({"peft_type": "LORA", "r": 3, "lora_alpha": 4, "bias": "none"})";

// Numbers that no rounding of their products leaves alone.
float value_at(std::size_t i, std::size_t seed) {
  return std::sin(static_cast<float>(i * 12'9898 % 10'007 + 31 * seed)) * 0.75f;
}

class ConvertAdapterTest : public ProgramTest {
 protected:
  ConvertAdapterTest() {
    write_text(file("config.json"), kConfig);
    write_text(file("peft/adapter_config.json"), kAdapterConfig);
    add_lora("model.layers.0.self_attn.q_proj", 48, 48);
    add_lora("model.layers.1.mlp.down_proj", 48, 80);
    write_text(file("peft/adapter_model.safetensors"), safetensors_file(stored_));
  }

  void add(const std::string& name, const std::vector<std::size_t>& shape) {
    std::vector<float> values(shape[0] * shape[1]);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_at(i, stored_.size());
    stored_.push_back({"base_model.model." + name, "F32", shape, bytes_of_floats(values)});
  }
  void add_lora(const std::string& module, std::size_t out, std::size_t in) {
    add(module + ".lora_A.weight", {3, in});
    add(module + ".lora_B.weight", {out, 3});
  }

  void init(const std::string& dtype) const {
    const Outcome made = run({"init", file("base.h5"), "--config", file("config.json"), "--dtype", dtype});
    ASSERT_EQ(made.code, 0) << made.errors;
  }
  Outcome convert(const std::string& out, std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"convert", file("base.h5"), file(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  Outcome make_adapter() const { return convert("adapter.h5", {"--adapter", file("peft")}); }

  // All elements, as floats.
  std::vector<float> read(const std::string& path, const std::string& name) const {
    const CheckpointIndex index = read_checkpoint_index(file(path));
    const TensorEntry& entry = index.tensors.at(name);
    std::vector<float> values(entry.bytes / size_of(entry.dtype));
    TensorReader(index).read(entry, 0, entry.bytes, entry.bytes, [&](std::size_t, std::span<const std::byte> piece) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &piece[i * size_of(entry.dtype)], size_of(entry.dtype));
        values[i] = entry.dtype == DType::kF32   ? std::bit_cast<float>(bits)
                    : entry.dtype == DType::kF16 ? f32_from_f16(static_cast<std::uint16_t>(bits))
                                                 : f32_from_bf16(static_cast<std::uint16_t>(bits));
      }
    });
    return values;
  }

  std::vector<StoredTensor> stored_;
};

// The value of a type that lies nearest, found by trying the neighbours of what two roundings would give.
double nearest(double exact, DType dtype) {
  if (dtype == DType::kF32) return static_cast<float>(exact);
  double best = INFINITY;
  for (int step = -1; step <= 1; ++step) {
    const auto once = static_cast<float>(exact);
    const auto bits =
        static_cast<std::uint16_t>((dtype == DType::kF16 ? f16_from_f32(once) : bf16_from_f32(once)) + step);
    const double candidate = dtype == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
    if (std::abs(candidate - exact) < std::abs(best - exact)) best = candidate;
  }
  return best;
}

TEST_F(ConvertAdapterTest, MergingAddsScaledProductsAndRoundsOnce) {
  for (const auto& [name, dtype] : {std::pair("f32", DType::kF32), {"f16", DType::kF16}, {"bf16", DType::kBF16}}) {
    init(name);
    ASSERT_EQ(make_adapter().code, 0);
    const Outcome merged = convert("merged.h5", {"--merge", file("adapter.h5")});
    ASSERT_EQ(merged.code, 0) << merged.errors;
    EXPECT_THAT(merged.output, HasSubstr("2 matrices changed, 0 tensors replaced"));
    std::size_t wrong = 0, moved = 0;
    for (const auto& [weight, a, transposed] :
         {std::tuple("layers.0.attention.query.weight", 0, false), std::tuple("layers.1.mlp.down.weight", 2, true)}) {
      const std::vector<float> base = read("base.h5", weight), found = read("merged.h5", weight);
      const std::size_t out = 48, in = base.size() / out;
      for (std::size_t i = 0; i < base.size(); ++i) {
        const std::size_t o = transposed ? i % out : i / in, k = transposed ? i / out : i % in;
        double sum = 0;
        for (std::size_t r = 0; r < 3; ++r) {
          sum += static_cast<double>(value_at(o * 3 + r, a + 1)) * value_at(r * in + k, a);
        }
        wrong += found[i] != nearest(base[i] + static_cast<double>(4.0f / 3.0f) * sum, dtype);
        moved += found[i] != base[i];
      }
    }
    EXPECT_EQ(wrong, 0u) << name;
    EXPECT_GT(moved, 1000u) << "the test says nothing";
    EXPECT_EQ(read("merged.h5", "layers.0.attention.key.weight"), read("base.h5", "layers.0.attention.key.weight"));
  }
}

TEST_F(ConvertAdapterTest, OneThreadOrManyWriteTheSameFile) {
  init("bf16");
  ASSERT_EQ(make_adapter().code, 0);
  ASSERT_EQ(convert("one.h5", {"--merge", file("adapter.h5"), "--threads", "1"}).code, 0);
  ASSERT_EQ(convert("many.h5", {"--merge", file("adapter.h5"), "--threads", "7"}).code, 0);
  EXPECT_EQ(read_file(file("one.h5")), read_file(file("many.h5")));
}

TEST_F(ConvertAdapterTest, InspectShowsAnAdapterAndItsBase) {
  init("f32");
  const Outcome made = make_adapter();
  ASSERT_EQ(made.code, 0) << made.errors;
  EXPECT_THAT(made.output, AllOf(HasSubstr("adapter of llama, 2 matrices"), HasSubstr("674 parameters")));
  const Outcome shown = run({"inspect", file("adapter.h5"), "--verify"});
  EXPECT_EQ(shown.code, 0) << shown.errors;
  EXPECT_THAT(shown.output, AllOf(HasSubstr("adapter          \"lora\""), HasSubstr("layers.1.mlp.down.lora_a"),
                                  HasSubstr("verified")));
}

TEST_F(ConvertAdapterTest, AnAdapterIsNoModelAndAModelNoAdapter) {
  init("f32");
  ASSERT_EQ(make_adapter().code, 0);
  const Outcome served = run({"serve", "--model", "a=" + file("adapter.h5"), "--requests", write("r.jsonl", ""),
                              "--output", file("out.jsonl"), "--device", "cpu"});
  EXPECT_EQ(served.code, 78);
  EXPECT_THAT(served.errors, HasSubstr("an adapter's, and no model by itself"));
  const Outcome merged = convert("merged.h5", {"--merge", file("base.h5")});
  EXPECT_EQ(merged.code, 78);
  EXPECT_THAT(merged.errors, HasSubstr("is no adapter"));
  const Outcome of_adapter = run({"convert", file("adapter.h5"), file("b.h5"), "--merge", file("adapter.h5")});
  EXPECT_EQ(of_adapter.code, 78);
  EXPECT_THAT(of_adapter.errors, HasSubstr("an adapter, where its base is wanted"));
}

TEST_F(ConvertAdapterTest, AnInputIsNotReplaced) {
  init("f32");
  ASSERT_EQ(make_adapter().code, 0);
  const std::string base = read_file(file("base.h5")), adapter = read_file(file("adapter.h5"));
  for (const char* output : {"base.h5", "adapter.h5"}) {
    const Outcome merged = convert(output, {"--merge", file("adapter.h5")});
    EXPECT_EQ(merged.code, 64) << merged.errors;
    EXPECT_THAT(merged.errors, HasSubstr("the output is one of the inputs"));
  }
  EXPECT_TRUE(read_file(file("base.h5")) == base && read_file(file("adapter.h5")) == adapter);
}

TEST_F(ConvertAdapterTest, RefusesABaseOfAnotherShapeAndOneOfCodes) {
  init("f32");
  ASSERT_EQ(make_adapter().code, 0);
  ASSERT_EQ(
      run({"init", file("base.h5"), "--config", file("config.json"), "--dtype", "int8", "--group-size", "row"}).code,
      0);
  const Outcome of_codes = convert("merged.h5", {"--merge", file("adapter.h5")});
  EXPECT_EQ(of_codes.code, 78);
  EXPECT_THAT(of_codes.errors, HasSubstr("cannot be merged into codes"));
  std::string other = kConfig;
  other.replace(other.find("80"), 2, "96");
  write_text(file("config.json"), other);
  init("f32");
  const Outcome of_another = convert("merged.h5", {"--merge", file("adapter.h5")});
  EXPECT_EQ(of_another.code, 78);
  EXPECT_THAT(of_another.errors,
              AllOf(HasSubstr("the base of"), HasSubstr("layers.0.mlp.down.weight: shape [80, 48]")));
}

TEST_F(ConvertAdapterTest, OptionsOfModelsDoNotGoWithIt) {
  init("f32");
  for (const auto& [option, value] : {std::pair("--dtype", "bf16"), {"--chat-format", "chatml"}, {"--merge", "x.h5"}}) {
    const Outcome outcome = convert("adapter.h5", {"--adapter", file("peft"), option, value});
    EXPECT_EQ(outcome.code, 64);
    EXPECT_THAT(outcome.errors, AllOf(HasSubstr(option), HasSubstr("does not go with --adapter")));
  }
}

}  // namespace
}  // namespace computron::test

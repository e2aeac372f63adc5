// computron convert, as a person runs it: a folder in, a checkpoint out that this program and h5py read.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>

#include "computron/checkpoint/reader.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/config.h"
#include "tests/apps/program.h"
#include "tests/support/beside.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kConfig[] = R"({"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 1, "ffn_dim": 4512,
    "num_attention_heads": 8, "vocab_size": 5000, "max_position_embeddings": 30, "word_embed_proj_dim": 64})";

std::size_t elements_of(const std::vector<std::size_t>& shape) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  return count;
}

// Element i of the tensor that a file holds under this name: halves that differ from place to place, exact in bf16.
float value_at(const std::string& name, std::size_t i) {
  return static_cast<float>((i * 37 + name.size() * 11) % 251) / 64 - 1.5f;
}

struct QuantisedType {
  std::string name, group;
  DType codes;
  std::string text;
};

const std::vector<QuantisedType> kQuantisedTypes = {
    {"int8", "32", DType::kInt8, "int8 in groups of 32 (8.5 bits a weight), rest f32"},
    {"fp8", "32", DType::kFp8, "fp8 in groups of 32 (8.5 bits a weight), rest f32"},
    {"int4", "32", DType::kInt4, "int4 in groups of 32 (4.5 bits a weight), rest f32"},
    {"int8", "row", DType::kInt8, "int8 by row (8."},
    {"fp8", "row", DType::kFp8, "fp8 by row (8."}};

double value_of_fp8(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? size : -size;
}

// Whether a value may have become this code of this scale.
bool is_near(DType codes, int code, double scale, double value) {
  if (codes == DType::kFp8) {
    const double error = std::fabs(value_of_fp8(code) * scale - value);
    return error <= std::max(std::fabs(value) / 16, std::fabs(scale) / 1024) * 1.0001;
  }
  if (codes == DType::kInt4) code = code < 8 ? code : code - 16;
  // The codes of int4 end at -8 and 7, and a scale is at least a ninth of the group's largest value.
  const double steps = codes != DType::kInt4 ? 0.5001 : code == 7 ? 2.05 : code == -8 ? 1.05 : 0.5001;
  return std::fabs(code * scale - value) <= steps * std::fabs(scale);
}

class ConvertTest : public ProgramTest {
 protected:
  ConvertTest() {
    write_text(file("hf/config.json"), kConfig);
    add("embed_tokens.weight", {5000, 64});
    add("embed_positions.weight", {32, 64});
    for (const char* norm : {"final_layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"}) {
      add(std::string(norm) + ".weight", {64});
      add(std::string(norm) + ".bias", {64});
    }
    for (const char* linear : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      add_linear(std::string("layers.0.self_attn.") + linear, 64, 64);
    }
    add_linear("layers.0.fc1", 4512, 64);
    add_linear("layers.0.fc2", 64, 4512);
  }

  void add_linear(const std::string& name, std::size_t out, std::size_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }

  void add(const std::string& name, const std::vector<std::size_t>& shape) {
    std::vector<float> values(elements_of(shape));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_at(name, i);
    stored_.push_back({"model.decoder." + name, "F32", shape, bytes_of_floats(values)});
  }

  // Two shards and their index.
  void write_folder() const {
    const auto middle = stored_.begin() + 7;
    write_text(file("hf/a.safetensors"), safetensors_file({stored_.begin(), middle}));
    write_text(file("hf/b.safetensors"), safetensors_file({middle, stored_.end()}));
    std::string map;
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      map += fmt::format(R"({}"{}":"{}.safetensors")", i == 0 ? "" : ",", stored_[i].name, i < 7 ? "a" : "b");
    }
    write_text(file("hf/model.safetensors.index.json"), fmt::format(R"({{"weight_map":{{{}}}}})", map));
  }

  Outcome convert(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"convert", file("hf"), file("m.h5")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  // All elements of a stored tensor as floats.
  std::vector<float> read(const std::string& name) const {
    const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
    const TensorEntry& entry = index.tensors.at(name);
    std::vector<float> values;
    TensorReader(index).read(entry, 0, entry.bytes, entry.bytes, [&](std::size_t, std::span<const std::byte> piece) {
      for (std::size_t at = 0; at < piece.size(); at += size_of(entry.dtype))
        values.push_back(float_at(piece, at, entry.dtype));
    });
    return values;
  }

  static float float_at(std::span<const std::byte> bytes, std::size_t at, DType dtype) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, size_of(dtype));
    if (dtype == DType::kF16) return f32_from_f16(static_cast<std::uint16_t>(bits));
    if (dtype == DType::kBF16) return f32_from_bf16(static_cast<std::uint16_t>(bits));
    return std::bit_cast<float>(bits);
  }

  // Of a [out][in] source and a target that holds it as it is, or as [in][out].
  void expect_values(const std::string& ours, const std::string& theirs, std::size_t out, std::size_t in,
                     bool transposed) const {
    const std::vector<float> found = read(ours);
    ASSERT_EQ(found.size(), out * in) << ours;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      wrong += found[i] != value_at(theirs, transposed ? i % out * in + i / out : i);
    }
    EXPECT_EQ(wrong, 0u) << ours;
  }

  // As expect_values(), of codes and their scales.
  void expect_near(const CheckpointIndex& index, const QuantisedType& type, const std::string& ours,
                   const std::string& theirs, std::size_t out, std::size_t in, bool transposed) const {
    const std::size_t group = type.group == "row" ? in : 32, groups = in / group;
    const std::vector<std::byte> codes = bytes_of(index, ours);
    const std::vector<float> scales = read(scales_name(ours));
    ASSERT_EQ(index.tensors.at(ours).dtype, type.codes) << ours;
    ASSERT_EQ(codes.size(), computron::bytes_of(type.codes, out * in)) << ours;
    ASSERT_EQ(scales.size(), out * groups) << ours;
    std::size_t wrong = 0;
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t i = 0; i < in; ++i) {
        const int code = code_at(type.codes, codes, transposed ? i * out + o : o * in + i);
        const std::size_t g = i / group;
        const double scale = scales[transposed ? g * out + o : o * groups + g];
        wrong += is_near(type.codes, code, scale, value_at(theirs, o * in + i)) ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0u) << ours << " as " << type.text;
  }

  static std::vector<std::byte> bytes_of(const CheckpointIndex& index, const std::string& name) {
    const TensorEntry& entry = index.tensors.at(name);
    std::vector<std::byte> bytes;
    TensorReader(index).read(entry, 0, entry.bytes, entry.bytes, [&](std::size_t, std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
    return bytes;
  }

  static int code_at(DType codes, const std::vector<std::byte>& bytes, std::size_t i) {
    if (codes == DType::kInt4) return std::to_integer<int>(bytes[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 15;
    const int code = std::to_integer<int>(bytes[i]);
    return codes == DType::kInt8 && code > 127 ? code - 256 : code;
  }

  std::vector<StoredTensor> stored_;
};

TEST_F(ConvertTest, TheNameOfAChatFormatIsCarriedAlong) {
  write_folder();
  ASSERT_EQ(convert({"--chat-format", "chatml"}).code, 0);
  const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
  EXPECT_EQ(TensorReader(index).read(index.tokenizer.at("chat_format")), "chatml");
  const Outcome refused = convert({"--chat-format", "chat99"});
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("--chat-format: 'chat99' is none of chatml, gemma2, "));
}

TEST_F(ConvertTest, EveryTypeHoldsTheSameValues) {
  write_folder();
  for (const std::string dtype : {"keep", "f32", "f16", "bf16"}) {
    const Outcome outcome = convert({"--dtype", dtype, "--threads", "3"});
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.errors, IsEmpty());
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("m.h5: opt, "), HasSubstr(dtype == "keep" ? "f32" : dtype)));
    const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
    const ModelConfig config = ModelConfig::from_json(index.config_json);
    EXPECT_EQ(config.ffn, 4512);
    check_tensors(config, index);
    expect_values("embedding.tokens.weight", "embed_tokens.weight", 5000, 64, false);
    expect_values("layers.0.mlp.up.weight", "layers.0.fc1.weight", 4512, 64, false);
    expect_values("layers.0.mlp.down.weight", "layers.0.fc2.weight", 64, 4512, true);
    expect_values("layers.0.attention.output.weight", "layers.0.self_attn.out_proj.weight", 64, 64, true);
    expect_values("layers.0.attention.value.bias", "layers.0.self_attn.v_proj.bias", 64, 1, false);
  }
}

TEST_F(ConvertTest, QuantisedWeightsAreNearTheirValues) {
  write_folder();
  for (const QuantisedType& type : kQuantisedTypes) {
    const Outcome outcome = convert({"--dtype", type.name, "--group-size", type.group, "--threads", "3"});
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr(type.text));
    const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
    check_tensors(ModelConfig::from_json(index.config_json), index);
    expect_near(index, type, "layers.0.mlp.up.weight", "layers.0.fc1.weight", 4512, 64, false);
    expect_near(index, type, "layers.0.mlp.down.weight", "layers.0.fc2.weight", 64, 4512, true);
    expect_values("embedding.tokens.weight", "embed_tokens.weight", 5000, 64, false);
    expect_values("layers.0.mlp.up.bias", "layers.0.fc1.bias", 4512, 1, false);
    EXPECT_EQ(run({"inspect", file("m.h5"), "--verify"}).code, 0);
  }
}

TEST_F(ConvertTest, ThreadsDoNotChangeQuantisedFiles) {
  write_folder();
  for (const QuantisedType& type : kQuantisedTypes) {
    ASSERT_EQ(convert({"--dtype", type.name, "--group-size", type.group, "--threads", "1"}).code, 0);
    const std::string one = read_file(file("m.h5"));
    ASSERT_EQ(convert({"--dtype", type.name, "--group-size", type.group, "--threads", "4"}).code, 0);
    EXPECT_TRUE(read_file(file("m.h5")) == one) << type.name;
  }
}

TEST_F(ConvertTest, QuantisesTheHeadWhereAsked) {
  write_folder();
  ASSERT_EQ(convert({"--dtype", "int8", "--quantize-head"}).code, 0);
  const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
  expect_near(index, kQuantisedTypes[0], "embedding.tokens.weight", "embed_tokens.weight", 5000, 64, false);
  EXPECT_EQ(index.tensors.at("embedding.positions.weight").dtype, DType::kF32);
}

TEST_F(ConvertTest, RefusesToQuantiseWhatIsNoNumber) {
  StoredTensor& up = *std::ranges::find(stored_, "model.decoder.layers.0.fc1.weight", &StoredTensor::name);
  const float nan = NAN;
  std::memcpy(&up.bytes[4 * (64 * 700 + 5)], &nan, sizeof nan);
  write_folder();
  const Outcome refused = convert({"--dtype", "int8"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.errors, AllOf(HasSubstr("layers.0.mlp.up.weight"), HasSubstr("output 700, input 5")));
  EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
  EXPECT_EQ(convert().code, 0);
}

TEST_F(ConvertTest, OptionsOfQuantisedTypes) {
  write_folder();
  const std::vector<std::vector<std::string>> bad = {{"--dtype", "int4", "--group-size", "row"},
                                                     {"--dtype", "int8", "--group-size", "64"},
                                                     {"--dtype", "bf16", "--group-size", "32"},
                                                     {"--quantize-head"},
                                                     {"--dtype", "int5"},
                                                     {"--dtype", "e8m0"}};
  for (const auto& options : bad) EXPECT_EQ(convert(options).code, 64) << testing::PrintToString(options);
  EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
}

TEST_F(ConvertTest, CarriesTheTokenizerAndInspectListsIt) {
  write_folder();
  write_text(file("hf/vocab.json"), R"({"a": 0})");
  write_text(file("hf/merges.txt"), "#version: 0.2\n");
  ASSERT_EQ(convert().code, 0);
  const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
  EXPECT_EQ(TensorReader(index).read(index.tokenizer.at("vocab.json")), R"({"a": 0})");
  const Outcome text = run({"inspect", file("m.h5"), "--verify"});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_THAT(text.output, AllOf(HasSubstr("tokenizer\n"), HasSubstr("merges.txt"), HasSubstr("vocab.json")));
  EXPECT_THAT(run({"inspect", file("m.h5"), "--json"}).output, HasSubstr(R"("name": "vocab.json")"));
}

TEST_F(ConvertTest, MixedTypesAreNotGuessedAt) {
  StoredTensor& query =
      *std::ranges::find(stored_, "model.decoder.layers.0.self_attn.q_proj.weight", &StoredTensor::name);
  query.dtype = "F16";
  query.bytes.resize(query.bytes.size() / 2);
  write_folder();
  const Outcome refused = convert();
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.errors, AllOf(HasSubstr("embedding.tokens.weight is stored as f32"),
                                    HasSubstr("attention.query.weight as f16"), HasSubstr("--dtype")));
  EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
  EXPECT_EQ(convert({"--dtype", "bf16"}).code, 0);
}

// A norm's weights may be of another type than the matrices.
TEST_F(ConvertTest, VectorsKeepTheirType) {
  StoredTensor& norm = *std::ranges::find(stored_, "model.decoder.final_layer_norm.weight", &StoredTensor::name);
  norm.dtype = "BF16";
  norm.bytes.resize(norm.bytes.size() / 2);
  write_folder();
  ASSERT_EQ(convert().code, 0);
  const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
  EXPECT_EQ(index.tensors.at("final_norm.weight").dtype, DType::kBF16);
  EXPECT_EQ(index.tensors.at("final_norm.bias").dtype, DType::kF32);
}

TEST_F(ConvertTest, WarnsOfTokensBeyondTheVocabulary) {
  write_folder();
  write_text(file("hf/generation_config.json"), R"({"eos_token_id": [2, 100257]})");
  const Outcome converted = convert();
  EXPECT_EQ(converted.code, 0);
  EXPECT_THAT(converted.errors, AllOf(HasSubstr("token 100257"), HasSubstr("vocabulary has 5000 tokens")));
  EXPECT_THAT(converted.output, Not(HasSubstr("100257")));
  EXPECT_THAT(ModelConfig::from_json(read_checkpoint_index(file("m.h5")).config_json).eos_tokens, ElementsAre(2));
}

TEST_F(ConvertTest, SaysWhatIsWrongAndWritesNothing) {
  EXPECT_THAT(convert().errors, HasSubstr("no model.safetensors"));
  write_text(file("hf/pytorch_model.bin"), "x");
  EXPECT_THAT(convert().errors, AllOf(HasSubstr("pickle"), HasSubstr("safe_serialization")));
  stored_.pop_back();
  write_folder();
  const Outcome missing = convert();
  EXPECT_EQ(missing.code, 78);
  EXPECT_THAT(missing.errors, HasSubstr("fc2.bias"));
  EXPECT_EQ(convert({"--dtype", "f64"}).code, 64);
  EXPECT_EQ(run({"convert", file("hf"), file("hf/a.safetensors")}).code, 64);
  EXPECT_EQ(run({"convert", file("none"), file("m.h5")}).code, 66);
  EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
  EXPECT_FALSE(std::filesystem::exists(file("m.h5.partial")));
}

// Killed by the system while it writes: what was there under the name stays, and the next run succeeds over the rest.
TEST_F(ConvertTest, KilledInTheMiddle) {
  write_folder();
  write_text(file("m.h5"), "old");
  const std::string command = fmt::format("ulimit -c 0; ulimit -f 1500; exec '{}' convert '{}' '{}' > /dev/null 2>&1",
                                          beside_test("computron").string(), file("hf"), file("m.h5"));
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  EXPECT_TRUE(read_file(file("m.h5")) == "old");
  EXPECT_TRUE(std::filesystem::exists(file("m.h5.partial")));
  ASSERT_EQ(convert().code, 0);
  EXPECT_FALSE(std::filesystem::exists(file("m.h5.partial")));
  expect_values("layers.0.mlp.up.weight", "layers.0.fc1.weight", 4512, 64, false);
}

}  // namespace
}  // namespace computron::test

// computron convert of folders that are quantised already: every code and scale of the checkpoint is the folder's.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "computron/checkpoint/reader.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/config.h"
#include "tests/apps/program.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The last block is short. The large one makes matrices of more than 1 MiB, as int4 too.
constexpr std::size_t kHidden = 256, kFfn = 288, kLargeFfn = 8736;

// How a folder stores its weights.
struct Format {
  std::string what;
  std::string quantisation;  // of config.json
  DType codes;
  std::string scale_type;  // of safetensors
  std::size_t rows;        // that share scales; 0: all
  std::size_t group;       // values that share one; 0: all
  enum class Layout { kBytes, kPacked, kGptq, kPairs, kModelOpt, kBlocks } layout = Layout::kBytes;
  std::uint32_t zero = 0;  // of GPTQ, as stored
  std::string scales = "_scale";
  std::string says = "";  // of the type, when large matrices are converted
};

std::string compressed(const std::string& format, const std::string& weights) {
  return R"("quantization_config":{"quant_method":"compressed-tensors","format":")" + format +
         R"(","config_groups":{"group_0":{"targets":["Linear"],"weights":{"symmetric":true,)" + weights +
         R"(}}},"ignore":["lm_head"]})";
}

std::string gptq(int bits, const std::string& more = "") {
  return fmt::format(
      R"("quantization_config":{{"quant_method":"gptq","bits":{},"group_size":16,"sym":true,{}"desc_act":false}})",
      bits, more);
}

constexpr char kModelOptNvfp4[] =
    R"("quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,
    "config_groups":{"group_0":{"weights":{"num_bits":4,"type":"float","group_size":16}}},"ignore":["lm_head"]})";
constexpr char kMxfp4[] = R"("quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]})";
constexpr char kBlocks128[] = R"("quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],
    "activation_scheme":"dynamic","modules_to_not_convert":["lm_head"]})";

std::vector<Format> formats() {
  const std::string int8 = R"("num_bits":8,"type":"int",)", fp8 = R"("num_bits":8,"type":"float",)";
  const std::string fp4 = R"("num_bits":4,"type":"float",)";
  const std::string int4 = R"("num_bits":4,"type":"int",)", group = R"("strategy":"group","group_size":16)";
  using enum Format::Layout;
  using enum DType;
  return {
      {"int8 by tensor", compressed("int-quantized", int8 + R"("strategy":"tensor")"), kInt8, "BF16", 0, 0, kBytes, 0,
       "_scale", "int8 by row"},
      {"int8 by row", compressed("naive-quantized", int8 + R"("strategy":"channel")"), kInt8, "F32", 1, 0},
      {"int8 in groups", compressed("int-quantized", int8 + group), kInt8, "F16", 1, 16, kBytes, 0, "_scale",
       "int8 in groups of 16 (9.0 bits a weight), rest f32"},
      {"fp8 by tensor", compressed("float-quantized", fp8 + R"("strategy":"tensor")"), kFp8, "F32", 0, 0},
      {"fp8 by row", compressed("float-quantized", fp8 + R"("strategy":"channel")"), kFp8, "BF16", 1, 0},
      {"fp8 in groups", compressed("float-quantized", fp8 + group), kFp8, "BF16", 1, 16},
      {"fp8 by blocks", compressed("float-quantized", fp8 + R"("strategy":"block","block_structure":[128,128])"), kFp8,
       "BF16", 128, 128, kBytes, 0, "_scale", "fp8 in groups of 128"},
      {"int4 in groups", compressed("pack-quantized", int4 + group), kInt4, "BF16", 1, 16, kPacked, 0, "_scale",
       "int4 in groups of 16 (5.0 bits a weight), rest f32"},
      {"int4 by row", compressed("pack-quantized", int4 + R"("strategy":"channel")"), kInt4, "F16", 1, 0, kPacked},
      {"packed int8", compressed("pack-quantized", int8 + group), kInt8, "F16", 1, 16, kPacked},
      {"DeepSeek's fp8", kBlocks128, kFp8, "F32", 128, 128, kBytes, 0, "_scale_inv"},
      {"Qwen's fp8", kBlocks128, kFp8, "BF16", 128, 128, kBytes, 0, "_scale_inv"},
      {"gptq of 4 bits", gptq(4), kInt4, "F16", 1, 16, kGptq, 7, "", "int4 in groups of 16"},
      {"gptq v2", gptq(4, R"("checkpoint_format":"gptq_v2",)"), kInt4, "F16", 1, 16, kGptq, 8},
      {"gptq of 8 bits", gptq(8), kInt8, "F16", 1, 16, kGptq, 127},
      {"nvfp4", compressed("nvfp4-pack-quantized", fp4 + R"("strategy":"tensor_group","group_size":16)"), kFp4,
       "F8_E4M3", 1, 16, kPairs, 0, "_scale", "fp4 in groups of 16 (4.5 bits a weight), rest f32"},
      {"mxfp4", compressed("mxfp4-pack-quantized", fp4 + R"("strategy":"group","group_size":32)"), kFp4, "U8", 1, 32,
       kPairs},
      {"mxfp4 with typed scales", compressed("mxfp4-pack-quantized", fp4 + R"("group_size":32)"), kFp4, "F8_E8M0", 1,
       32, kPairs},
      {"modelopt's nvfp4", kModelOptNvfp4, kFp4, "F8_E4M3", 1, 16, kModelOpt},
      {"gpt-oss's mxfp4", kMxfp4, kFp4, "U8", 1, 32, Format::Layout::kBlocks, 0, "_scales", "fp4 in groups of 32"},
  };
}

const Format& format_called(const std::string& what) {
  static const std::vector<Format> all = formats();
  return *std::ranges::find(all, what, &Format::what);
}

// The code of a weight's value (out, in): all that the type has, but fp8's NaN, as the bits of a byte.
int code_at(DType codes, const std::string& module, std::size_t out, std::size_t in) {
  const std::size_t mixed = (out * 2654435761u + in * 40503u + module.size() * 97u) >> 7;
  if (two_in_a_byte(codes)) return static_cast<int>(mixed & 15);
  const int code = static_cast<int>(mixed & 255);
  return codes == DType::kFp8 && (code & 127) == 127 ? 0x30 : code;
}

std::size_t scale_bytes(const Format& format) {
  return format.scale_type == "F32" ? 4 : format.scale_type == "F16" || format.scale_type == "BF16" ? 2 : 1;
}

// Bits of a scale: numbers, zeros, the smallest there is, and, of int4, negative numbers.
std::uint32_t scale_bits(const Format& format, std::size_t row, std::size_t group) {
  const std::size_t which = (row * 31 + group * 7) % 53;
  if (which == 0 || which == 1) return static_cast<std::uint32_t>(which);
  if (scale_bytes(format) == 1)
    return static_cast<std::uint32_t>(format.scale_type == "F8_E4M3" ? 2 * which : 90 + which);
  float value = static_cast<float>(which) / 1024;
  if (format.codes == DType::kInt4 && which % 3 == 0) value = -value;
  if (format.scale_type == "F32") return std::bit_cast<std::uint32_t>(value);
  return format.scale_type == "F16" ? f16_from_f32(value) : bf16_from_f32(value);
}

double number_of_e4m3(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits < 128 ? size : -size;
}

class ConvertQuantisedTest : public ProgramTest {
 protected:
  struct Linear {
    std::string ours, theirs;
    std::size_t out, in;
    bool transposed;
  };

  std::vector<Linear> linears() const {
    const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
    return {{"attention.query", attention + "q_proj", kHidden, kHidden, false},
            {"attention.key", attention + "k_proj", kHidden / 2, kHidden, false},
            {"attention.value", attention + "v_proj", kHidden / 2, kHidden, false},
            {"attention.output", attention + "o_proj", kHidden, kHidden, true},
            {"mlp.gate", mlp + "gate_proj", ffn_, kHidden, false},
            {"mlp.up", mlp + "up_proj", ffn_, kHidden, false},
            {"mlp.down", mlp + "down_proj", kHidden, ffn_, true}};
  }

  // A folder of a Llama of one layer.
  void fill(const Format& format, std::size_t ffn = kHidden) {
    format_ = format;
    ffn_ = ffn;
    config_ = fmt::format(R"({{"model_type":"llama","hidden_size":{},"num_hidden_layers":1,"intermediate_size":{},
        "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":40,"max_position_embeddings":30,{}}})",
                          kHidden, ffn, format.quantisation);
    stored_.clear();
    for (const char* norm : {"layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"}) {
      stored_.push_back(counting(std::string("model.") + norm + ".weight", {kHidden}, 1));
    }
    stored_.push_back(counting("model.embed_tokens.weight", {40, kHidden}, 3));
    stored_.push_back(counting("lm_head.weight", {40, kHidden}, 5));
    for (const Linear& linear : linears()) add(linear);
  }

  std::size_t rows(std::size_t out) const { return format_.rows == 0 ? out : format_.rows; }
  std::size_t group(std::size_t in) const { return format_.group == 0 ? in : format_.group; }

  void add(const Linear& linear) {
    const std::size_t scale_size = scale_bytes(format_);
    const bool by_gptq = format_.layout == Format::Layout::kGptq;
    const std::size_t scale_rows = ceil_div(linear.out, rows(linear.out)),
                      groups = ceil_div(linear.in, group(linear.in));
    std::string scales(scale_rows * groups * scale_size, '\0');
    for (std::size_t r = 0; r < scale_rows; ++r) {
      for (std::size_t g = 0; g < groups; ++g) {
        const std::uint32_t bits = scale_bits(format_, r, g);
        std::memcpy(&scales[(by_gptq ? g * scale_rows + r : r * groups + g) * scale_size], &bits, scale_size);
      }
    }
    const std::vector<std::size_t> one{1};
    if (by_gptq) {
      add_gptq(linear, groups);
      stored_.push_back({linear.theirs + ".scales", format_.scale_type, {groups, scale_rows}, scales});
      return;
    }
    if (format_.codes == DType::kFp4) {
      add_pairs(linear);
    } else {
      format_.layout == Format::Layout::kPacked ? add_packed(linear) : add_bytes(linear);
    }
    const char* weight = format_.layout == Format::Layout::kBlocks ? "" : ".weight";
    stored_.push_back({linear.theirs + weight + format_.scales, format_.scale_type,
                       format_.rows == 0 ? one : std::vector{scale_rows, groups}, scales});
  }

  void add_bytes(const Linear& linear) {
    std::string codes;
    for (std::size_t o = 0; o < linear.out; ++o) {
      for (std::size_t i = 0; i < linear.in; ++i) {
        codes += static_cast<char>(code_at(format_.codes, linear.theirs, o, i));
      }
    }
    stored_.push_back(
        {linear.theirs + ".weight", format_.codes == DType::kFp8 ? "F8_E4M3" : "I8", {linear.out, linear.in}, codes});
  }

  // Two codes in a byte, and the second level of their scales.
  void add_pairs(const Linear& linear) {
    std::string pairs;
    for (std::size_t o = 0; o < linear.out; ++o) {
      for (std::size_t i = 0; i < linear.in; i += 2) {
        pairs += static_cast<char>(code_at(DType::kFp4, linear.theirs, o, i) |
                                   code_at(DType::kFp4, linear.theirs, o, i + 1) << 4);
      }
    }
    const float level = second_level(linear);
    const std::string level_bytes(reinterpret_cast<const char*>(&level), sizeof level);
    if (format_.layout == Format::Layout::kBlocks) {
      stored_.push_back({linear.theirs + "_blocks", "U8", {linear.out, linear.in / 32, 16}, pairs});
    } else if (format_.layout == Format::Layout::kModelOpt) {
      stored_.push_back({linear.theirs + ".weight", "U8", {linear.out, linear.in / 2}, pairs});
      stored_.push_back({linear.theirs + ".weight_scale_2", "F32", {}, level_bytes});
      stored_.push_back(counting(linear.theirs + ".input_scale", {1}, 1));
    } else {
      stored_.push_back({linear.theirs + ".weight_packed", "U8", {linear.out, linear.in / 2}, pairs});
      if (format_.scale_type != "F8_E4M3") return;
      stored_.push_back({linear.theirs + ".weight_global_scale", "F32", {1}, level_bytes});
      stored_.push_back(counting(linear.theirs + ".input_global_scale", {1}, 1));
    }
  }
  static float second_level(const Linear& linear) { return 0.0371f * static_cast<float>(linear.theirs.size()); }

  // That every e4m3 comes to the scale that torch computes.
  void expect_same_level(const CheckpointIndex& index, const Linear& linear) const {
    if (format_.scale_type != "F8_E4M3") return;
    const float level = second_level(linear);
    const double factor = index.tensors.at("layers.0." + linear.ours + ".weight.scales").factor;
    for (int bits = 0; bits < 127; ++bits) {
      const auto scale = static_cast<float>(number_of_e4m3(bits));
      const float theirs = format_.layout == Format::Layout::kModelOpt ? scale * level : scale / level;
      EXPECT_EQ(static_cast<float>(scale * factor), theirs) << format_.what << " " << linear.theirs << " " << bits;
    }
  }

  // Values `first` to `first` + codes in a word of a row, lowest bits first, each plus the middle of all.
  std::uint32_t word(const Linear& linear, std::size_t out, std::size_t first) const {
    const unsigned bits = static_cast<unsigned>(bits_of(format_.codes));
    const unsigned middle = 1u << (bits - 1), mask = (1u << bits) - 1;
    std::uint32_t packed = 0;
    for (unsigned n = 0; n < 32 / bits; ++n) {
      const auto code = static_cast<unsigned>(code_at(format_.codes, linear.theirs, out, first + n));
      packed |= ((code + middle) & mask) << n * bits;
    }
    return packed;
  }

  void add_packed(const Linear& linear) {
    const std::size_t pack = 32 / bits_of(format_.codes);
    std::vector<std::uint32_t> words;
    for (std::size_t o = 0; o < linear.out; ++o) {
      for (std::size_t i = 0; i < linear.in; i += pack) words.push_back(word(linear, o, i));
    }
    stored_.push_back(
        {linear.theirs + ".weight_packed", "I32", {linear.out, ceil_div(linear.in, pack)}, bytes_of_words(words)});
    const std::uint64_t shape[] = {linear.out, linear.in};
    stored_.push_back(
        {linear.theirs + ".weight_shape", "I64", {2}, std::string(reinterpret_cast<const char*>(shape), sizeof shape)});
  }

  void add_gptq(const Linear& linear, std::size_t groups) {
    const std::size_t bits = bits_of(format_.codes), pack = 32 / bits;
    std::vector<std::uint32_t> words, order;
    for (std::size_t i = 0; i < linear.in; i += pack) {
      for (std::size_t o = 0; o < linear.out; ++o) words.push_back(word(linear, o, i));
    }
    std::uint32_t zeros = 0;
    for (std::size_t n = 0; n < pack; ++n) zeros |= format_.zero << n * bits;
    for (std::size_t i = 0; i < linear.in; ++i) order.push_back(static_cast<std::uint32_t>(i / group(linear.in)));
    stored_.push_back({linear.theirs + ".qweight", "I32", {linear.in / pack, linear.out}, bytes_of_words(words)});
    stored_.push_back({linear.theirs + ".qzeros",
                       "I32",
                       {groups, linear.out / pack},
                       bytes_of_words(std::vector(groups * linear.out / pack, zeros))});
    stored_.push_back({linear.theirs + ".g_idx", "I32", {linear.in}, bytes_of_words(order)});
  }

  static std::string bytes_of_words(const std::vector<std::uint32_t>& words) {
    return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::uint32_t)};
  }

  StoredTensor& find(const std::string& ending) {
    return *std::ranges::find_if(stored_, [&](const StoredTensor& tensor) { return tensor.name.ends_with(ending); });
  }
  void remove(const std::string& ending) { stored_.erase(stored_.begin() + (&find(ending) - stored_.data())); }

  Outcome convert(std::vector<std::string> more = {}) const {
    write_text(file("hf/config.json"), config_);
    write_text(file("hf/model.safetensors"), safetensors_file(stored_));
    std::vector<std::string> arguments = {"convert", file("hf"), file("m.h5")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  // Of a folder that is not supported.
  std::string refusal(int code = 78) const {
    const Outcome outcome = convert();
    EXPECT_EQ(outcome.code, code) << outcome.errors;
    EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
    EXPECT_FALSE(std::filesystem::exists(file("m.h5.partial")));
    return outcome.errors;
  }

  static std::vector<std::byte> bytes_of(const CheckpointIndex& index, const std::string& name) {
    const TensorEntry& entry = index.tensors.at(name);
    std::vector<std::byte> bytes;
    TensorReader(index).read(entry, 0, entry.bytes, entry.bytes, [&](std::size_t, std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
    return bytes;
  }

  void expect_same(const CheckpointIndex& index, const Linear& linear) const {
    SCOPED_TRACE(format_.what + ": " + linear.ours);
    const std::string name = "layers.0." + linear.ours + ".weight";
    const TensorEntry& entry = index.tensors.at(name);
    const std::vector<std::byte> codes = bytes_of(index, name), scales = bytes_of(index, scales_name(name));
    const std::size_t groups = ceil_div(linear.in, group(linear.in)), size = scale_bytes(format_);
    ASSERT_EQ(entry.dtype, format_.codes);
    ASSERT_EQ(entry.group, format_.group == 0 ? WeightType::kWholeRow : static_cast<int>(format_.group));
    ASSERT_EQ(codes.size(), computron::bytes_of(format_.codes, linear.out * linear.in));
    ASSERT_EQ(scales.size(), linear.out * groups * size);
    std::size_t wrong_codes = 0, wrong_scales = 0;
    for (std::size_t o = 0; o < linear.out; ++o) {
      std::size_t last_group = groups;
      std::uint32_t scale_put_in = 0;
      for (std::size_t i = 0; i < linear.in; ++i) {
        const std::size_t at = linear.transposed ? i * linear.out + o : o * linear.in + i;
        const int code = two_in_a_byte(format_.codes)
                             ? std::to_integer<int>(codes[at / 2]) >> (at % 2 == 0 ? 0 : 4) & 15
                             : std::to_integer<int>(codes[at]);
        const std::size_t g = i / group(linear.in);
        std::uint32_t scale = 0;
        std::memcpy(&scale, &scales[(linear.transposed ? g * linear.out + o : o * groups + g) * size], size);
        const int put_in = code_at(format_.codes, linear.theirs, o, i);
        if (g != last_group) scale_put_in = scale_bits(format_, o / rows(linear.out), last_group = g);
        wrong_codes += code != put_in;
        wrong_scales += scale != scale_put_in;
      }
    }
    expect_same_level(index, linear);
    EXPECT_EQ(wrong_codes, 0u);
    EXPECT_EQ(wrong_scales, 0u);
  }

  Format format_;
  std::size_t ffn_ = kHidden;
  std::string config_;
  std::vector<StoredTensor> stored_;
};

TEST_F(ConvertQuantisedTest, EveryFormatKeepsItsCodesAndScales) {
  for (const Format& format : formats()) {
    fill(format, format.says.empty() ? kFfn : kLargeFfn);
    const Outcome outcome = convert({"--threads", "3"});
    ASSERT_EQ(outcome.code, 0) << format.what << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr(format.says));
    const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
    check_tensors(ModelConfig::from_json(index.config_json), index);
    for (const Linear& linear : linears()) expect_same(index, linear);
    const Outcome inspected = run({"inspect", file("m.h5"), "--verify"});
    EXPECT_EQ(inspected.code, 0) << format.what << inspected.errors;
  }
}

TEST_F(ConvertQuantisedTest, ThreadsDoNotChangeTheFile) {
  for (const char* what : {"int4 in groups", "gptq of 4 bits", "fp8 by blocks", "gpt-oss's mxfp4"}) {
    fill(format_called(what), kLargeFfn);
    ASSERT_EQ(convert({"--threads", "1"}).code, 0);
    const std::string one = read_file(file("m.h5"));
    ASSERT_EQ(convert({"--threads", "4"}).code, 0);
    EXPECT_TRUE(read_file(file("m.h5")) == one) << what;
  }
}

// A convolution's orientation in the folder says nothing of GPTQ's, whose codes are [in / 8, out] of all three parts.
TEST_F(ConvertQuantisedTest, PartsOfGptq) {
  fill(format_called("gptq of 4 bits"));
  const Linear whole{"", "transformer.h.0.attn.c_attn", 96, 32, false};
  config_ = R"({"model_type":"gpt2","n_embd":32,"n_layer":1,"n_head":2,"n_inner":64,"vocab_size":10,"n_positions":6,
        "bos_token_id":1,"eos_token_id":1,)" +
            format_.quantisation + "}";
  stored_.clear();
  add(whole);
  add({"", "transformer.h.0.attn.c_proj", 32, 32, true});
  add({"", "transformer.h.0.mlp.c_fc", 64, 32, false});
  add({"", "transformer.h.0.mlp.c_proj", 32, 64, true});
  for (const auto& [name, size] :
       {std::pair{"attn.c_attn", 96}, {"attn.c_proj", 32}, {"mlp.c_fc", 64}, {"mlp.c_proj", 32}}) {
    stored_.push_back(counting(fmt::format("transformer.h.0.{}.bias", name), {static_cast<std::size_t>(size)}, 0));
  }
  for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
    stored_.push_back(counting(fmt::format("transformer.{}.weight", norm), {32}, 0));
    stored_.push_back(counting(fmt::format("transformer.{}.bias", norm), {32}, 0));
  }
  stored_.push_back(counting("transformer.wte.weight", {10, 32}, 0));
  stored_.push_back(counting("transformer.wpe.weight", {6, 32}, 0));
  ASSERT_EQ(convert().code, 0) << read_file(file("stderr"));
  const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
  const std::vector<std::byte> codes = bytes_of(index, "layers.0.attention.value.weight");
  const std::vector<std::byte> scales = bytes_of(index, "layers.0.attention.value.weight.scales");
  for (std::size_t at = 0; at < 32 * 32; ++at) {
    const int code = std::to_integer<int>(codes[at / 2]) >> (at % 2 == 0 ? 0 : 4) & 15;
    ASSERT_EQ(code, code_at(DType::kInt4, whole.theirs, 64 + at / 32, at % 32)) << at;
  }
  for (std::size_t at = 0; at < 32 * 2; ++at) {
    std::uint16_t scale;
    std::memcpy(&scale, &scales[2 * at], sizeof scale);
    ASSERT_EQ(scale, scale_bits(format_, 64 + at / 2, at % 2)) << at;
  }
}

TEST_F(ConvertQuantisedTest, WeightsThatAreIgnoredStayPlain) {
  fill(format_called("int4 in groups"));
  const std::string down = "model.layers.0.mlp.down_proj.weight";
  for (const char* part : {"_packed", "_shape", "_scale"}) remove(down + part);
  stored_.push_back(counting(down, {kHidden, kHidden}, 0));
  ASSERT_EQ(convert().code, 0) << read_file(file("stderr"));
  const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
  EXPECT_EQ(index.tensors.at("layers.0.mlp.down.weight").dtype, DType::kF32);
  expect_same(index, linears()[5]);
}

TEST_F(ConvertQuantisedTest, GroupsLongerThanARowAreTheRow) {
  fill(format_called("gptq of 4 bits"));
  config_.replace(config_.find(R"("group_size":16)"), 15, R"("group_size":-1)");
  for (const Linear& linear : linears()) {
    StoredTensor& scales = find(linear.theirs + ".scales");
    scales.shape[0] = 1;
    scales.bytes.resize(linear.out * 2);
    StoredTensor& zeros = find(linear.theirs + ".qzeros");
    zeros.shape[0] = 1;
    zeros.bytes.resize(linear.out / 2);
    std::ranges::fill(find(linear.theirs + ".g_idx").bytes, '\0');
  }
  for (const char* size : {R"("group_size":-1)", R"("group_size":512)"}) {
    config_.replace(config_.find(R"("group_size":)"), config_.find(R"(,"sym")") - config_.find(R"("group_size":)"),
                    size);
    ASSERT_EQ(convert().code, 0) << read_file(file("stderr"));
    const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
    EXPECT_EQ(index.tensors.at("layers.0.mlp.down.weight").group, WeightType::kWholeRow);
    format_.group = 0;
    for (const Linear& linear : linears()) expect_same(index, linear);
  }
}

// As the first tools for GPTQ wrote them.
TEST_F(ConvertQuantisedTest, BiasesOfZerosAreNoPartOfTheModel) {
  fill(format_called("gptq of 4 bits"));
  stored_.push_back({"model.layers.0.mlp.up_proj.bias", "F16", {kHidden}, std::string(2 * kHidden, '\0')});
  EXPECT_EQ(convert().code, 0) << read_file(file("stderr"));
  std::filesystem::remove(file("m.h5"));
  stored_.back().bytes[1] = 1;
  EXPECT_THAT(refusal(), HasSubstr("up_proj.bias': stored, but not part of the model"));
}

TEST_F(ConvertQuantisedTest, SaysWhatItLeavesOut) {
  fill(format_called("int8 by row"));
  EXPECT_THAT(convert().output, Not(HasSubstr("activations")));
  stored_.push_back(counting("model.layers.0.mlp.up_proj.input_scale", {1}, 1));
  stored_.push_back(counting("model.layers.0.self_attn.k_scale", {1}, 1));
  const Outcome outcome = convert();
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("activations and caches are not quantised"));
  fill(format_called("Qwen's fp8"));
  EXPECT_THAT(convert().output, HasSubstr("activations"));
}

// Before config.json said so, a file of modelopt's did.
TEST_F(ConvertQuantisedTest, ModelOptHasAFileOfItsOwn) {
  fill(format_called("modelopt's nvfp4"));
  const std::size_t begin = config_.find(R"(,"quantization_config")");
  config_ = config_.substr(0, begin) + "}";
  EXPECT_THAT(refusal(), HasSubstr("q_proj.weight': shape [256, 256] expected, [256, 128] stored"));
  write_text(file("hf/hf_quant_config.json"),
             R"({"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","group_size":16}})");
  const Outcome outcome = convert();
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("activations and caches are not quantised"));
  for (const Linear& linear : linears()) expect_same(read_checkpoint_index(file("m.h5")), linear);
}

TEST_F(ConvertQuantisedTest, InspectSaysHowManyBitsFp4Takes) {
  for (const auto& [what, bits] : {std::pair{"modelopt's nvfp4", 4.5}, {"gpt-oss's mxfp4", 4.25}}) {
    fill(format_called(what));
    ASSERT_EQ(convert().code, 0) << read_file(file("stderr"));
    const auto shown = nlohmann::json::parse(run({"inspect", file("m.h5"), "--json"}).output);
    int weights = 0;
    for (const auto& tensor : shown["tensors"]) {
      EXPECT_EQ(tensor.contains("factor"), tensor["dtype"] == "e4m3");
      if (tensor["dtype"] != "fp4") continue;
      EXPECT_EQ(tensor["bits"], bits);
      EXPECT_EQ(tensor["group"], format_.group);
      ++weights;
    }
    EXPECT_EQ(weights, 7);
  }
}

TEST_F(ConvertQuantisedTest, RefusesScalesOfFp4ThatAreNone) {
  const auto refused = [&](const char* what, const std::string& tensor, const std::string& bytes, std::size_t at) {
    fill(format_called(what));
    find(tensor).bytes.replace(at, bytes.size(), bytes);
    return refusal();
  };
  const auto level = [](float value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  EXPECT_THAT(refused("mxfp4", "up_proj.weight_scale", "\xff", 5),
              AllOf(HasSubstr("up_proj.weight_scale'"), HasSubstr("NaN")));
  EXPECT_THAT(refused("gpt-oss's mxfp4", "down_proj_scales", "\xff", 5), HasSubstr("down_proj_scales': NaN"));
  EXPECT_THAT(refused("nvfp4", "up_proj.weight_scale", "\x7f", 5), HasSubstr("up_proj.weight_scale': NaN"));
  EXPECT_THAT(refused("nvfp4", "up_proj.weight_scale", "\x81", 5), HasSubstr("up_proj.weight_scale': negative scales"));
  for (const float value : {-1.0f, 0.0f, std::nanf(""), HUGE_VALF, 1e-44f}) {
    EXPECT_THAT(refused("nvfp4", "o_proj.weight_global_scale", level(value), 0),
                AllOf(HasSubstr("o_proj.weight_global_scale'"), HasSubstr("negative or not finite")))
        << value;
  }
  for (const float value : {-1e-44f, std::nanf(""), HUGE_VALF, 1e38f}) {
    EXPECT_THAT(refused("modelopt's nvfp4", "o_proj.weight_scale_2", level(value), 0),
                AllOf(HasSubstr("o_proj.weight_scale_2'"), HasSubstr("negative or not finite")))
        << value;
  }
  for (const float value : {0.0f, 1e-44f}) {
    fill(format_called("modelopt's nvfp4"));
    find("o_proj.weight_scale_2").bytes = level(value);
    EXPECT_EQ(convert().code, 0) << value;
  }
}

// Its last row is gone.
void shorter(StoredTensor& tensor) {
  tensor.bytes.resize(tensor.bytes.size() / tensor.shape[0] * (tensor.shape[0] - 1));
  --tensor.shape[0];
}
// It goes by another name.
void vanish(StoredTensor& tensor) { tensor.name += "_not"; }

TEST_F(ConvertQuantisedTest, RefusesFp4ThatDoesNotFit) {
  const auto refused = [&](const char* what, const std::string& tensor, auto&& change) {
    fill(format_called(what));
    change(find(tensor));
    return refusal();
  };
  const auto typed = [](const char* type) { return [type](StoredTensor& tensor) { tensor.dtype = type; }; };
  EXPECT_THAT(refused("nvfp4", "up_proj.weight_packed", shorter),
              AllOf(HasSubstr("up_proj.weight_packed': [256, 128]"), HasSubstr("U8 [255, 128]")));
  EXPECT_THAT(refused("gpt-oss's mxfp4", "up_proj_blocks", shorter),
              AllOf(HasSubstr("up_proj_blocks': [256, 8, 16]"), HasSubstr("U8 [255, 8, 16]")));
  EXPECT_THAT(refused("gpt-oss's mxfp4", "up_proj_scales", shorter), HasSubstr("U8 [255, 8] stored"));
  EXPECT_THAT(refused("modelopt's nvfp4", "up_proj.weight_scale", shorter), HasSubstr("F8_E4M3 [255, 16] stored"));
  EXPECT_THAT(refused("nvfp4", "up_proj.weight_scale", typed("U8")), HasSubstr("stored as U8, only F8_E4M3 is"));
  EXPECT_THAT(refused("mxfp4", "up_proj.weight_scale", typed("I8")), HasSubstr("only U8 and F8_E8M0 are supported"));
  EXPECT_THAT(refused("mxfp4", "up_proj.weight_packed", typed("I8")), HasSubstr("says of no weights"));
  EXPECT_THAT(refused("nvfp4", "up_proj.weight_global_scale", typed("I32")), HasSubstr("F32 [1] expected, I32 [1]"));
  for (const auto& [what, tensor] : {std::pair{"nvfp4", "up_proj.weight_global_scale"},
                                     {"modelopt's nvfp4", "up_proj.weight_scale_2"},
                                     {"gpt-oss's mxfp4", "up_proj_scales"}}) {
    EXPECT_THAT(refused(what, tensor, vanish), HasSubstr(std::string(tensor) + "': missing"));
  }
  fill(format_called("nvfp4"), 264);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("down_proj.weight_packed"), HasSubstr("whole groups of 16")));
  fill(format_called("gpt-oss's mxfp4"), 16);  // half a block, padded
  StoredTensor &blocks = find("down_proj_blocks"), &scales = find("down_proj_scales");
  blocks.shape = {kHidden, 1, 16};
  blocks.bytes.resize(kHidden * 16);
  scales.shape = {kHidden, 1};
  scales.bytes.assign(kHidden, '\x7f');
  EXPECT_THAT(refusal(), AllOf(HasSubstr("down_proj_blocks"), HasSubstr("whole groups of 32")));
}

TEST_F(ConvertQuantisedTest, OnlyKeepsCodes) {
  fill(format_called("int8 by row"));
  for (const char* dtype : {"int8", "fp8", "int4", "f32", "f16", "bf16"}) {
    const Outcome outcome = convert({"--dtype", dtype});
    EXPECT_EQ(outcome.code, 64) << dtype;
    EXPECT_THAT(outcome.errors, HasSubstr("--dtype keep"));
  }
  EXPECT_EQ(convert({"--dtype", "keep"}).code, 0);
}

TEST_F(ConvertQuantisedTest, RefusesWhatIsNoNumber) {
  fill(format_called("fp8 by row"));
  for (const char code : {'\x7f', '\xff'}) {
    find("down_proj.weight").bytes[70] = code;
    EXPECT_THAT(refusal(), AllOf(HasSubstr("down_proj.weight'"), HasSubstr("NaN")));
  }
  find("down_proj.weight").bytes[70] = 0;
  const auto with_scale = [&](const char* tensor, std::uint16_t bits) {
    std::memcpy(&find(tensor).bytes[2], &bits, sizeof bits);
    return refusal();
  };
  EXPECT_THAT(with_scale("up_proj.weight_scale", 0x7f80),
              AllOf(HasSubstr("up_proj.weight_scale'"), HasSubstr("infinity")));
  EXPECT_THAT(with_scale("up_proj.weight_scale", 0x7fc0), HasSubstr("NaN"));
  EXPECT_THAT(with_scale("up_proj.weight_scale", 0xbf80), HasSubstr("negative scales"));
  fill(format_called("Qwen's fp8"));
  EXPECT_THAT(with_scale("down_proj.weight_scale_inv", 0xbf80), HasSubstr("negative scales"));
}

// In every format of scales of two bytes and more, whichever type these have and whoever shares them.
TEST_F(ConvertQuantisedTest, RefusesHostileScalesOfEveryFormat) {
  for (const Format& format : formats()) {
    if (scale_bytes(format) == 1) continue;
    SCOPED_TRACE(format.what);
    fill(format);
    const std::string name =
        format.layout == Format::Layout::kGptq ? "up_proj.scales" : "up_proj.weight" + format.scales;
    StoredTensor& scales = find(name);
    const std::size_t size = format.scale_type == "F32" ? 4 : 2, last = scales.bytes.size() - size;
    const auto with_last = [&](std::uint32_t of_f32, std::uint32_t of_f16) {
      const std::uint32_t bits = format.scale_type == "F32"   ? of_f32
                                 : format.scale_type == "F16" ? of_f16
                                                              : of_f32 >> 16;
      std::memcpy(&scales.bytes[last], &bits, size);
    };
    with_last(0x7fc00000, 0x7e00);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name + "'"), HasSubstr("NaN")));
    with_last(0x7f800000, 0x7c00);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name + "'"), HasSubstr("infinity")));
    with_last(0xff800000, 0xfc00);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name + "'"), HasSubstr("infinity")));
    with_last(0xbf800000, 0xbc00);
    if (format.codes == DType::kInt4) continue;
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name + "'"), HasSubstr("negative scales")));
  }
}

// Wherever the file ends, and wherever the header says that a tensor does.
TEST_F(ConvertQuantisedTest, RefusesTruncatedCodes) {
  for (const char* what : {"int8 in groups", "fp8 by blocks", "int4 in groups", "gptq of 4 bits", "nvfp4", "mxfp4"}) {
    SCOPED_TRACE(what);
    fill(format_called(what));
    ASSERT_EQ(convert().code, 0) << read_file(file("stderr"));
    std::filesystem::remove(file("m.h5"));
    const std::string whole = read_file(file("hf/model.safetensors"));
    for (const std::size_t left : {whole.size() - 1, whole.size() / 2, whole.size() / 50}) {
      write_text(file("hf/model.safetensors"), whole.substr(0, left));
      const Outcome outcome = run({"convert", file("hf"), file("m.h5")});
      EXPECT_NE(outcome.code, 0);
      EXPECT_THAT(outcome.errors, HasSubstr("model.safetensors"));
      EXPECT_FALSE(std::filesystem::exists(file("m.h5")));
    }
    const bool by_gptq = format_.layout == Format::Layout::kGptq;
    const bool packed = format_.layout == Format::Layout::kPacked || format_.layout == Format::Layout::kPairs;
    StoredTensor& codes = find(by_gptq ? "v_proj.qweight" : packed ? "v_proj.weight_packed" : "v_proj.weight");
    codes.bytes.resize(codes.bytes.size() - 4);  // of so many dimensions as before
    EXPECT_THAT(refusal(65), HasSubstr("v_proj"));
  }
}

TEST_F(ConvertQuantisedTest, RefusesWhatDoesNotFit) {
  const auto refused = [&](const char* what, const std::string& tensor, auto&& change) {
    fill(format_called(what));
    change(find(tensor));
    return refusal();
  };
  EXPECT_THAT(refused("int8 by row", "up_proj.weight", shorter),
              AllOf(HasSubstr("up_proj.weight': [256, 256]"), HasSubstr("I8 [255, 256]")));
  EXPECT_THAT(refused("int8 by row", "up_proj.weight_scale", shorter), HasSubstr("F32 [255, 1] stored"));
  EXPECT_THAT(refused("int4 in groups", "up_proj.weight_packed", shorter),
              HasSubstr("up_proj.weight_packed': [256, 32]"));
  EXPECT_THAT(refused("gptq of 4 bits", "o_proj.scales", shorter), HasSubstr("F16 [15, 256] stored"));
  EXPECT_THAT(refused("gptq of 4 bits", "o_proj.qzeros", shorter), HasSubstr("o_proj.qzeros': I32 [16, 32] expected"));
  EXPECT_THAT(refused("gptq of 4 bits", "o_proj.g_idx", shorter), HasSubstr("o_proj.g_idx': I32 [256] expected"));
  EXPECT_THAT(refused("fp8 by blocks", "o_proj.weight_scale", shorter), HasSubstr("BF16 [1, 2] stored"));
  for (const auto& [what, tensor] : {std::pair{"int8 by row", "up_proj.weight_scale"},
                                     {"int4 in groups", "up_proj.weight_shape"},
                                     {"gptq of 4 bits", "up_proj.qzeros"}}) {
    EXPECT_THAT(refused(what, tensor, vanish), HasSubstr(std::string(tensor) + "': missing"));
  }
  EXPECT_THAT(refused("int4 in groups", "up_proj.weight_shape", [](StoredTensor& tensor) { tensor.bytes[0] ^= 1; }),
              HasSubstr("[256, 256] expected, [257, 256] stored"));
  EXPECT_THAT(refused("gptq of 4 bits", "up_proj.qzeros", [](StoredTensor& tensor) { tensor.bytes[99] ^= 1; }),
              AllOf(HasSubstr("up_proj.qzeros'"), HasSubstr("symmetric")));
  EXPECT_THAT(
      refused("gptq v2", "up_proj.qzeros", [](StoredTensor& tensor) { std::ranges::fill(tensor.bytes, '\x77'); }),
      HasSubstr("zeros other than 8"));
  EXPECT_THAT(refused("gptq of 4 bits", "up_proj.g_idx", [](StoredTensor& tensor) { tensor.bytes[64] ^= 1; }),
              AllOf(HasSubstr("up_proj.g_idx'"), HasSubstr("act-order")));
  EXPECT_THAT(refused("int8 by row", "up_proj.weight_scale", [](StoredTensor& tensor) { tensor.dtype = "I32"; }),
              HasSubstr("scales are stored as I32"));
  EXPECT_THAT(refused("int8 by row", "up_proj.weight", [](StoredTensor& tensor) { tensor.dtype = "F8_E4M3"; }),
              HasSubstr("says of no weights that they are quantised so"));
  EXPECT_THAT(refused("int8 by row", "embed_tokens.weight", [](StoredTensor& tensor) { tensor.dtype = "I32"; }),
              HasSubstr("embed_tokens.weight': stored as I32"));
}

TEST_F(ConvertQuantisedTest, RefusesZeroPointsAndOrders) {
  for (const char* more : {"weight_zero_point", "weight_g_idx"}) {
    fill(format_called("int4 in groups"));
    stored_.push_back(counting(std::string("model.layers.0.mlp.up_proj.") + more, {1}, 1));
    EXPECT_THAT(refusal(), AllOf(HasSubstr(more), HasSubstr("not supported")));
  }
}

TEST_F(ConvertQuantisedTest, RefusesRowsThatAreNoWholeGroups) {
  fill(format_called("gptq of 4 bits"), 264);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("down_proj.qweight"), HasSubstr("whole groups of 16")));
  fill(format_called("int4 by row"), 260);
  EXPECT_THAT(refusal(), HasSubstr("down_proj"));
  for (const char* what : {"int8 in groups", "fp8 in groups", "packed int8", "int4 in groups"}) {
    fill(format_called(what), 264);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("down_proj"), HasSubstr("whole groups of 16"))) << what;
  }
}

// Query, key and value are multiplied as one.
TEST_F(ConvertQuantisedTest, RefusesWhatCouldNotBeServed) {
  fill(format_called("int8 by row"));
  remove("k_proj.weight_scale");
  find("k_proj.weight") = counting("model.layers.0.self_attn.k_proj.weight", {kHidden / 2, kHidden}, 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("attention.key.weight"), HasSubstr("with which it is multiplied")));
}

}  // namespace
}  // namespace computron::test

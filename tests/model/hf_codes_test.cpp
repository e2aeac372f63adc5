// MXFP4 as gpt-oss stores it: the experts of a layer in one tensor of blocks, gate and up by turns.
#include "src/model/hf_codes.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>

#include "src/model/folder_tensors.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kExperts = 3, kOut = 24, kIn = 64, kGroups = kIn / 32;
constexpr Family kFamily{.model_type = "any", .read = nullptr, .names = {}, .prefix = "", .ignored = {}, .sizes = {}};

// Of value (expert, row, k) of the stored tensor, whose experts have 2 kOut rows.
unsigned code_at(std::size_t expert, std::size_t row, std::size_t k) {
  return (expert * 2654435761u + row * 40503u + k * 97u) >> 5 & 15;
}
unsigned scale_at(std::size_t expert, std::size_t row, std::size_t group) {
  return static_cast<unsigned>(expert * 70 + row * 2 + group);
}

class HfCodesTest : public testing::Test {
 protected:
  HfCodesTest() {
    folder_ = std::filesystem::temp_directory_path() / ("computron_HfCodesTest_" + std::to_string(getpid()));
    std::string blocks, scales;
    for (std::size_t e = 0; e < kExperts; ++e) {
      for (std::size_t r = 0; r < 2 * kOut; ++r) {
        for (std::size_t k = 0; k < kIn; k += 2) {
          blocks += static_cast<char>(code_at(e, r, k) | code_at(e, r, k + 1) << 4);
        }
        for (std::size_t g = 0; g < kGroups; ++g) scales += static_cast<char>(scale_at(e, r, g));
      }
    }
    write_text(folder_ / "model.safetensors",
               safetensors_file({{"up_blocks", "U8", {kExperts, 2 * kOut, kGroups, 16}, blocks},
                                 {"up_scales", "U8", {kExperts, 2 * kOut, kGroups}, scales},
                                 counting("up_bias", {kExperts, 2 * kOut}, 0)}));
  }
  ~HfCodesTest() override { std::filesystem::remove_all(folder_); }

  // The part's codes and scales as a checkpoint of `spec` holds them, against what was stored.
  void expect_part(const TensorSpec& spec, const SourceTensor& source) {
    const ModelFolder folder(folder_);
    const SafetensorsFolder weights(folder);
    Differences differences;
    FolderTensors tensors(kFamily, weights, differences);
    HfCodes codes(quantisation_, tensors, differences);
    ASSERT_TRUE(codes.has(source.name));
    const std::optional<CodeSource> found = codes.find(spec, source);
    differences.throw_if_any("folder");
    ASSERT_TRUE(found);
    CodeReader reader;
    const auto read = reader.read(*found, 0, kOut * kIn);
    const std::vector<std::byte> values(read.begin(), read.end());
    const auto scales = reader.read(found->scales, 0, kOut * kGroups);
    EXPECT_EQ(found->scales.matrix.dtype, DType::kE8M0);
    for (std::size_t o = 0; o < kOut; ++o) {
      const auto part = static_cast<std::size_t>(source.part), expert = static_cast<std::size_t>(source.matrix);
      const std::size_t row = source.interleaved ? 2 * o + part : part * kOut + o;
      for (std::size_t k = 0; k < kIn; ++k) {
        const std::size_t at = spec.transposed ? k * kOut + o : o * kIn + k;
        ASSERT_EQ(std::to_integer<unsigned>(values[at / 2]) >> at % 2 * 4 & 15, code_at(expert, row, k))
            << o << " " << k;
      }
      for (std::size_t g = 0; g < kGroups; ++g) {
        const std::size_t at = spec.transposed ? g * kOut + o : o * kGroups + g;
        ASSERT_EQ(std::to_integer<unsigned>(scales[at]), scale_at(expert, row, g)) << o << " " << g;
      }
    }
  }

  HfQuantisation quantisation_ = HfQuantisation::read(R"({"quantization_config": {"quant_method": "mxfp4"}})").value();
  std::filesystem::path folder_;
};

TEST_F(HfCodesTest, ExpertsAreCutOutOfBlocks) {
  for (int expert = 0; expert < 3; ++expert) {
    for (int part = 0; part < 2; ++part) {
      for (const bool interleaved : {false, true}) {
        const SourceTensor source{
            .name = "up.weight", .part = part, .parts = 2, .interleaved = interleaved, .matrix = expert, .matrices = 3};
        expect_part({.name = "w", .role = TensorRole::kGemmWeight, .shape = {kOut, kIn}}, source);
        expect_part({.name = "w", .role = TensorRole::kGemmWeight, .shape = {kIn, kOut}, .transposed = true}, source);
      }
    }
  }
}

TEST_F(HfCodesTest, BlocksOfAnotherShapeAreRefusedByName) {
  const TensorSpec spec{.name = "w", .role = TensorRole::kGemmWeight, .shape = {kOut, kIn}};
  try {
    expect_part(spec, {.name = "up.weight", .parts = 2, .matrices = 4});
    FAIL() << "there are three experts";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("'up_blocks': [4, 48, 2, 16] with scales [4, 48, 2] expected, U8 [3, 48, 2, 16]"));
  }
}

// So are biases.
TEST_F(HfCodesTest, VectorsAreCutAsMatricesAre) {
  const ModelFolder folder(folder_);
  const SafetensorsFolder weights(folder);
  const SafetensorsTensor& stored = weights.tensors().at("up_bias");
  const TensorSpec spec{.name = "b", .shape = {kOut}};
  MatrixReader reader;
  for (int expert = 0; expert < 3; ++expert) {
    for (int part = 0; part < 2; ++part) {
      for (const bool interleaved : {false, true}) {
        const SourceTensor source{
            .name = "up.bias", .part = part, .parts = 2, .interleaved = interleaved, .matrix = expert, .matrices = 3};
        EXPECT_EQ(shape_in_files(spec, source), (std::vector<std::size_t>{kExperts, 2 * kOut}));
        const MatrixSource matrix = matrix_of(spec, source, stored, DType::kF32);
        const auto bytes = reader.read(matrix, DType::kF32, 0, kOut * sizeof(float));
        for (int o = 0; o < static_cast<int>(kOut); ++o) {
          float value = 0;
          std::memcpy(&value, &bytes[static_cast<std::size_t>(o) * sizeof value], sizeof value);
          const int row = interleaved ? 2 * o + part : part * static_cast<int>(kOut) + o;
          EXPECT_EQ(value, static_cast<float>(expert * 2 * static_cast<int>(kOut) + row));
        }
      }
    }
  }
}

}  // namespace
}  // namespace computron::test

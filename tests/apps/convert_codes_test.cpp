// computron convert of folders that other tools' functions wrote (tests/fixtures/make_codes.py): every code and scale
// of the checkpoint is what torch reads from the folder.
#include <gmock/gmock.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "computron/base/convert.h"
#include "computron/checkpoint/reader.h"
#include "tests/apps/program.h"

namespace computron::test {
namespace {

using nlohmann::json;

// As zlib's: the polynomial of IEEE 802.3, bits reflected.
std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0u;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

struct Matrix {
  const char *theirs, *ours;
  bool transposed;  // as we store it
};
constexpr Matrix kMatrices[] = {{"self_attn.q_proj", "attention.query", false},
                                {"self_attn.k_proj", "attention.key", false},
                                {"self_attn.v_proj", "attention.value", false},
                                {"self_attn.o_proj", "attention.output", true},
                                {"mlp.gate_proj", "mlp.gate", false},
                                {"mlp.up_proj", "mlp.up", false},
                                {"mlp.down_proj", "mlp.down", true}};

class ConvertCodesTest : public ProgramTest {
 protected:
  static std::vector<std::byte> bytes_of(const CheckpointIndex& index, const TensorEntry& entry) {
    std::vector<std::byte> bytes;
    TensorReader(index).read(entry, 0, entry.bytes, entry.bytes, [&](std::size_t, std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
    return bytes;
  }

  // A byte each; int4 as numbers of two's complement.
  static std::vector<std::byte> codes_of(const CheckpointIndex& index, const TensorEntry& entry) {
    const std::vector<std::byte> stored = bytes_of(index, entry);
    if (entry.dtype != DType::kInt4) return stored;
    std::vector<std::byte> codes;
    for (const std::byte two : stored) {
      for (const int shift : {0, 4}) {
        const int code = std::to_integer<int>(two) >> shift & 15;
        codes.push_back(static_cast<std::byte>(code < 8 ? code : code - 16));
      }
    }
    return codes;
  }

  static std::vector<float> scales_of(const CheckpointIndex& index, const TensorEntry& entry) {
    const std::vector<std::byte> stored = bytes_of(index, entry);
    std::vector<float> scales(stored.size() / size_of(entry.dtype));
    for (std::size_t i = 0; i < scales.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &stored[i * size_of(entry.dtype)], size_of(entry.dtype));
      if (entry.dtype == DType::kF16) scales[i] = f32_from_f16(static_cast<std::uint16_t>(bits));
      if (entry.dtype == DType::kBF16) scales[i] = f32_from_bf16(static_cast<std::uint16_t>(bits));
      if (entry.dtype == DType::kF32) std::memcpy(&scales[i], &bits, sizeof bits);
    }
    return scales;
  }

  // [out][in] of either orientation.
  template <class T>
  static std::vector<T> in_rows(const std::vector<T>& stored, std::size_t out, bool transposed) {
    if (!transposed) return stored;
    std::vector<T> rows(stored.size());
    const std::size_t count = stored.size() / out;
    for (std::size_t i = 0; i < stored.size(); ++i) rows[i % out * count + i / out] = stored[i];
    return rows;
  }

  static void expect_read(const CheckpointIndex& index, const Matrix& matrix, const json& expected, const json& sums) {
    const std::string name = std::string("layers.0.") + matrix.ours + ".weight";
    const TensorEntry &codes = index.tensors.at(name), &scales = index.tensors.at(name + ".scales");
    const int group = expected.at("group");
    EXPECT_EQ(name_of(codes.dtype), expected.at("type").get<std::string>());
    EXPECT_EQ(scales.dtype, expected.at("scales") == "float32"   ? DType::kF32
                            : expected.at("scales") == "float16" ? DType::kF16
                                                                 : DType::kBF16);
    const std::size_t out = matrix.transposed ? codes.shape.back() : codes.shape.front();
    const int in = static_cast<int>(matrix.transposed ? codes.shape.front() : codes.shape.back());
    EXPECT_EQ(codes.group, group == 0 || group > in ? WeightType::kWholeRow : group);
    EXPECT_EQ(crc32(in_rows(codes_of(index, codes), out, matrix.transposed)), sums.at("codes").get<std::uint32_t>());
    const std::vector<float> numbers = in_rows(scales_of(index, scales), out, matrix.transposed);
    EXPECT_EQ(crc32(std::as_bytes(std::span(numbers))), sums.at("scales").get<std::uint32_t>());
  }
};

TEST_F(ConvertCodesTest, KeepsWhatTorchReads) {
  std::size_t folders = 0, matrices = 0;
  for (const auto& entry : std::filesystem::directory_iterator(COMPUTRON_CODES_FIXTURES)) {
    SCOPED_TRACE(entry.path().filename());
    ++folders;
    const Outcome outcome = run({"convert", entry.path(), file("m.h5")});
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    const CheckpointIndex index = read_checkpoint_index(file("m.h5"));
    const json expected = json::parse(std::ifstream(entry.path() / "expected.json"));
    for (const Matrix& matrix : kMatrices) {
      const auto sums = expected.at("matrices").find(matrix.theirs);
      if (sums == expected.at("matrices").end()) continue;  // rows that are no whole groups stay plain
      SCOPED_TRACE(matrix.theirs);
      ++matrices;
      expect_read(index, matrix, expected, *sums);
    }
  }
  EXPECT_GE(folders, 16u);
  EXPECT_GE(matrices, 16u * 5);
}

}  // namespace
}  // namespace computron::test

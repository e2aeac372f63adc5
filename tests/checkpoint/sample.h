// Small checkpoints for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "computron/checkpoint/reader.h"
#include "computron/checkpoint/writer.h"

namespace computron::test {

// A folder of its own for one test, removed at its end.
class Folder {
 public:
  Folder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("computron_") + info->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Bytes that differ from tensor to tensor and place to place.
inline std::vector<std::byte> pattern(std::size_t bytes, unsigned tensor) {
  std::vector<std::byte> data(bytes);
  std::uint32_t state = 12345 + tensor;
  for (auto& byte : data) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return data;
}

// Two tensors of several chunks (the last short), two small ones, quantised ones with their scales; every dtype,
// transposed ones.
inline std::vector<TensorDeclaration> sample_tensors() {
  return {{"embedding.tokens.weight", DType::kF32, {1000, 700}, false},
          {"layers.0.mlp.down.weight", DType::kBF16, {1536, 1024}, true},
          {"layers.0.mlp.down.bias", DType::kF16, {1024}, false},
          {"patches", DType::kF32, {3, 2, 5, 7}, false},
          {"int8", DType::kInt8, {70, 64}, false, 32},
          {"int8.scales", DType::kBF16, {70, 2}, false},
          {"int4", DType::kInt4, {96, 30}, true, 48},
          {"int4.scales", DType::kF32, {2, 30}, true},
          {"fp8", DType::kFp8, {9, 13}, false, WeightType::kWholeRow},
          {"fp8.scales", DType::kE8M0, {9, 1}, false},
          {"fp4", DType::kFp4, {32, 46}, true, 16},
          {"fp4.scales", DType::kE4M3, {2, 46}, true, 0, 1.0 / 3}};
}

inline std::size_t bytes_of(const TensorDeclaration& tensor) {
  std::size_t elements = 1;
  for (const std::size_t extent : tensor.shape) elements *= extent;
  return bytes_of(tensor.dtype, elements);
}

inline constexpr char kSampleConfig[] = R"({"layers": 1, "name": "Größe"})";

inline void write_sample(const std::string& path) {
  const auto tensors = sample_tensors();
  CheckpointWriter writer(path, "opt", kSampleConfig, tensors);
  for (unsigned t = 0; t < tensors.size(); ++t) writer.write(t, 0, pattern(bytes_of(tensors[t]), t));
  writer.finish();
}

inline std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void flip_bit(const std::string& path, std::size_t offset, int bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ (1 << bit)));
}

// The whole tensor through a TensorReader, in pieces.
inline std::vector<std::byte> read_tensor(const TensorReader& reader, const TensorEntry& tensor, std::size_t begin,
                                          std::size_t end, std::size_t piece_bytes) {
  std::vector<std::byte> data;
  reader.read(tensor, begin, end, piece_bytes, [&](std::size_t at, std::span<const std::byte> piece) {
    EXPECT_EQ(at, data.size());
    data.insert(data.end(), piece.begin(), piece.end());
  });
  return data;
}

// What the Error says that `action` throws; empty if it throws none. `code` is set to its exit code.
template <class Action>
std::string message_of(Action&& action, ExitCode* code = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "";
}

}  // namespace computron::test

// Small safetensors files and Hugging Face folders for tests.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace computron::test {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<std::size_t> shape;
  std::string bytes;
};

// Header and data as they follow each other in a file.
inline std::string safetensors_file(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

inline std::string safetensors_file(const std::vector<StoredTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const StoredTensor& tensor : tensors) {
    std::string shape;
    for (const std::size_t extent : tensor.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", extent);
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name, tensor.dtype,
                          shape, data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  return safetensors_file(header + "}", data);
}

inline std::string bytes_of_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Float32 values base, base + 1, ...: exact, and every element differs.
inline StoredTensor counting(const std::string& name, const std::vector<std::size_t>& shape, float base) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = base + static_cast<float>(i);
  return {name, "F32", shape, bytes_of_floats(values)};
}

inline void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace computron::test

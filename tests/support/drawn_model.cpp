// drawn_model IN OUT: a Hugging Face folder OUT of the model whose config.json and tensors.json lie in IN. Its values
// are the formula of tests/fixtures/make_quantised.py (`drawn`), exact in float32:
//
//   value i of a tensor = offset + 2^exponent * (the sum of the 8 bytes of splitmix64's number `seed + i`, less 1020)
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using nlohmann::json;

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int sum_of_bytes(std::uint64_t number) {
  int sum = 0;
  for (; number != 0; number >>= 8) sum += static_cast<int>(number & 255);
  return sum;
}

StoredTensor drawn(const json& entry) {
  const auto shape = entry.at("shape").get<std::vector<std::size_t>>();
  const auto seed = entry.at("seed").get<std::uint64_t>();
  const int exponent = entry.at("exponent"), offset = entry.at("offset");
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(offset + std::ldexp(sum_of_bytes(splitmix64(seed, i)) - 1020, exponent));
  }
  return {entry.at("name"), "F32", shape, bytes_of_floats(values)};
}

void write_model(const std::filesystem::path& in, const std::filesystem::path& out) {
  std::vector<StoredTensor> tensors;
  for (const json& entry : json::parse(std::ifstream(in / "tensors.json"))) tensors.push_back(drawn(entry));
  write_text(out / "model.safetensors", safetensors_file(tensors));
  std::filesystem::copy_file(in / "config.json", out / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
}

}  // namespace
}  // namespace computron::test

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: drawn_model IN OUT");
  computron::test::write_model(argv[1], argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "drawn_model: %s\n", error.what());
  return 1;
}

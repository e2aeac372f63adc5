// Fixtures of tokenizers: tests/fixtures/text/README.md.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "computron/text/tokenizer.h"

namespace computron::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::filesystem::path text_fixtures() { return COMPUTRON_TEXT_FIXTURES; }

// A tokenizer's files, as a checkpoint would carry them.
inline TokenizerFiles tokenizer_files(const std::string& kind) {
  TokenizerFiles files;
  for (const auto& entry : std::filesystem::directory_iterator(text_fixtures() / kind)) {
    if (entry.path().extension() != ".bin") files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

// Texts, each behind its length in 16 bits.
inline std::vector<std::string> fixture_strings() {
  const std::string bytes = read_file(text_fixtures() / "strings.bin");
  std::vector<std::string> strings;
  for (std::size_t at = 0; at + 2 <= bytes.size();) {
    std::uint16_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    strings.push_back(bytes.substr(at + 2, length));
    at += 2 + length;
  }
  return strings;
}

}  // namespace computron::test

// What transformers was given and computed for one family (tests/fixtures/make_families.py, make_quantised.py,
// make_sentence.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "computron/base/types.h"
#include "computron/checkpoint/safetensors.h"

namespace computron::test {

class FamilyFixture {
 public:
  explicit FamilyFixture(const std::string& family)
      : FamilyFixture(std::filesystem::path(COMPUTRON_FAMILY_FIXTURES) / family / "expected.safetensors", "") {}
  // What sentence-transformers computed (make_sentence.py).
  static FamilyFixture of_sentences(const std::string& name) {
    const std::filesystem::path families = COMPUTRON_FAMILY_FIXTURES;
    return {families.parent_path() / "sentence" / name / "expected.safetensors", ""};
  }
  // Of a file's tensors those whose names begin so.
  FamilyFixture(const std::filesystem::path& file, std::string prefix) : prefix_(std::move(prefix)), file_(file) {}

  bool has(const std::string& name) const { return file_.entries().contains(prefix_ + name); }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const SafetensorsEntry& entry = file_.entries().at(prefix_ + name);
    std::vector<T> values((entry.end - entry.begin) / sizeof(T));
    file_.read(entry, entry.begin, std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::vector<TokenId> tokens(const std::string& name) const {
    const auto values = read<std::int64_t>(name);
    return {values.begin(), values.end()};
  }

 private:
  std::string prefix_;
  SafetensorsFile file_;
};

}  // namespace computron::test

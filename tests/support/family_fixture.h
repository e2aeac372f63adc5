// What transformers was given and computed for one family (tests/fixtures/make_families.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "computron/base/types.h"
#include "computron/checkpoint/safetensors.h"

namespace computron::test {

class FamilyFixture {
 public:
  explicit FamilyFixture(const std::string& family)
      : file_(std::filesystem::path(COMPUTRON_FAMILY_FIXTURES) / family / "expected.safetensors") {}

  bool has(const std::string& name) const { return file_.entries().contains(name); }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const SafetensorsEntry& entry = file_.entries().at(name);
    std::vector<T> values((entry.end - entry.begin) / sizeof(T));
    file_.read(entry, entry.begin, std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::vector<TokenId> tokens(const std::string& name) const {
    const auto values = read<std::int64_t>(name);
    return {values.begin(), values.end()};
  }

 private:
  SafetensorsFile file_;
};

}  // namespace computron::test

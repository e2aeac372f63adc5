// What the tests of this floor share: folders that clean up after themselves, models, request lines.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "computron/base/error.h"
#include "computron/requests/request_reader.h"
#include "tests/support/captured_log.h"

namespace computron {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "computron-serve-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline ServedModel decoder(const std::string& id, int vocab, int max_positions) {
  ServedModel model{.id = id, .config = {}};
  model.config.vocab = vocab;
  model.config.max_positions = max_positions;
  model.config.eos_tokens = {2};
  return model;
}

inline std::vector<ServedModel> two_models() {
  return {decoder("opt-a", 1024, 64), decoder("org/opt-b.v1", 100, 2048)};
}

// A request line whose body holds `body_fields` besides the model.
inline std::string line_with(const std::string& body_fields, const std::string& id = "r",
                             const std::string& model = "opt-a") {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":{"model":")" + model + '"' +
         (body_fields.empty() ? "" : "," + body_fields) + "}}";
}

// Runs `action` and expects an Error of `code` whose message has `part` in it.
inline void expect_error(ExitCode code, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with '" << part << "'";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace computron

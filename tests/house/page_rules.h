// The rules of the house for what is written in words: pages (*.md), and comments of sources and scripts.
//
//   a path of the repository that is cited exists, from the top or below include/computron
//   a page links to files and headings that exist
//   README.md has at most 160 lines
//   nothing refers to a page or place outside the repository
//   a test that tests/faults.md names exists
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/house/source_rules.h"

namespace computron::test {

// Whether the repository has a file or folder of this name, from its top.
using Exists = std::function<bool(const std::string& path)>;

// Whether the rules are for a file of this name.
bool has_words(std::string_view file);

// The violations of one file: `file` is its path from the repository's top, `text` what it holds.
std::vector<Violation> check_words(std::string_view file, std::string_view text, const Exists& exists);

// Paths of the repository that a line of words cites. Patterns and placeholders (src/*/README.md, tests/FLOOR) are
// none.
std::vector<std::string> cited_paths(const std::string& words);

// "Suite.Test" of every test that a source of tests defines.
std::vector<std::string> defined_tests(const std::string& source);

// Tests that a line names in backquotes, a test without a suite being of the suite before it: `Suite.Test`, `.Other`.
// "*" and "…" stand for anything, "/rank0" behind a name for a parameter.
std::vector<std::string> named_tests(const std::string& line);

// Whether one of `defined` is what `named` says.
bool is_defined(const std::string& named, const std::vector<std::string>& defined);

}  // namespace computron::test

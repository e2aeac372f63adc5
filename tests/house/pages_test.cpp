#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/house/page_rules.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kRoot = COMPUTRON_SOURCE_DIR;

bool nothing_exists(const std::string&) { return false; }
bool everything_exists(const std::string&) { return true; }

// The only finding of a file, or a failure.
std::string only_finding(std::string_view file, std::string_view text, const Exists& exists = everything_exists) {
  const auto found = check_words(file, text, exists);
  if (found.size() != 1) return std::to_string(found.size()) + " findings";
  return "line " + std::to_string(found[0].line) + ": " + found[0].what;
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void check_file(const fs::path& path, int& files) {
  const std::string name = path.lexically_relative(kRoot).generic_string();
  if (!has_words(name)) return;
  ++files;
  const auto exists = [](const std::string& cited) { return fs::exists(kRoot / cited); };
  for (const Violation& v : check_words(name, read(path), exists)) {
    ADD_FAILURE() << v.file << ":" << v.line << ": " << v.what;
  }
}

TEST(Pages, CiteWhatIsThere) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    if (entry.is_regular_file()) check_file(entry.path(), files);
  }
  for (const char* top : {"include", "src", "kernels", "tests", "jobs", "perf", "inputs", "cmake"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (entry.is_regular_file()) check_file(entry.path(), files);
    }
  }
  EXPECT_GT(files, 300) << "looked in the wrong folder: " << kRoot;
}

TEST(Pages, FaultsNameTestsThatAreThere) {
  std::vector<std::string> defined;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    for (std::string& test : defined_tests(read(entry.path()))) defined.push_back(std::move(test));
  }
  int named = 0;
  std::istringstream lines(read(kRoot / "tests/faults.md"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    for (const std::string& test : named_tests(line)) {
      ++named;
      EXPECT_TRUE(is_defined(test, defined)) << "tests/faults.md names " << test << ", which is not there";
    }
  }
  EXPECT_GT(named, 100);
}

TEST(PageRules, TestsAreFoundByName) {
  const auto defined = defined_tests("TEST(A, DISABLED_One) {}\n  TEST_F(A,\n   Two) {");
  EXPECT_THAT(defined, ElementsAre("A.One", "A.Two"));
  EXPECT_THAT(named_tests("`A.One`, `.Two/rank0` and `.T…`, `B.*`, `A.DISABLED_One`, `file.cpp`"),
              ElementsAre("A.One", "A.Two", "A.T…", "B.*", "A.One"));
  EXPECT_TRUE(is_defined("A.T…", defined));
  EXPECT_FALSE(is_defined("A.Three", defined));
  EXPECT_FALSE(is_defined("B.*", defined));
}

TEST(PageRules, PathsAreFoundInWords) {
  EXPECT_THAT(cited_paths("`src/sched/README.md`, (jobs/serve.sbatch). Also perf/results/, and CONTRIBUTING.md."),
              ElementsAre("src/sched/README.md", "jobs/serve.sbatch", "perf/results", "CONTRIBUTING.md"));
}

TEST(PageRules, PatternsPlaceholdersAndOtherFoldersAreNoPaths) {
  EXPECT_THAT(cited_paths("src/*/README.md tests/FLOOR/UNIT_test.cpp perf/results/<gpu>.md build/perf/gpu $out/jobs/x"),
              IsEmpty());
  EXPECT_THAT(cited_paths("share/computron/jobs/serve.sbatch ../perf/x ~/src/x"), IsEmpty());
}

TEST(PageRules, ACitedPathMustExist) {
  EXPECT_THAT(only_finding("src/README.md", "first\nsee src/gone.cpp", nothing_exists),
              testing::AllOf(HasSubstr("line 2:"), HasSubstr("src/gone.cpp")));
  EXPECT_THAT(only_finding("src/base/log.cpp", "int a;  // see src/gone.cpp", nothing_exists),
              HasSubstr("src/gone.cpp"));
  EXPECT_THAT(only_finding("jobs/a.sh", "# see perf/gone.sh", nothing_exists), HasSubstr("perf/gone.sh"));
}

TEST(PageRules, OnlyCommentsOfSourcesAreWords) {
  EXPECT_THAT(check_words("src/base/log.cpp", "#include \"src/base/gone.h\"\n", nothing_exists), IsEmpty());
  EXPECT_THAT(check_words("jobs/a.sh", "cp perf/gone.sh .", nothing_exists), IsEmpty());
}

TEST(PageRules, LinksLeadToFilesAndHeadings) {
  const char* page = "[a](#exit-codes) [b](other.md#x) [c](https://example.org/x)\n## Exit codes\n";
  const auto exists = [](const std::string& path) { return path == "jobs/other.md"; };
  EXPECT_THAT(check_words("jobs/README.md", page, exists), IsEmpty());
  EXPECT_THAT(only_finding("perf/README.md", page, exists), HasSubstr("other.md"));
  EXPECT_THAT(only_finding("jobs/README.md", "[a](#gone)\n## Exit codes\n"), HasSubstr("#gone"));
}

TEST(PageRules, ReadmeIsShort) {
  std::string text;
  for (int i = 0; i < 160; ++i) text += "a line\n";
  EXPECT_THAT(check_words("README.md", text, everything_exists), IsEmpty());
  EXPECT_THAT(only_finding("README.md", text + "one more\n"), HasSubstr("161 lines"));
  EXPECT_THAT(check_words("perf/README.md", text + text, everything_exists), IsEmpty());
}

TEST(PageRules, NothingOutsideIsReferredTo) {
  EXPECT_THAT(only_finding("src/base/log.h", "// as design.md says"), HasSubstr("design.md"));
  EXPECT_THAT(only_finding("jobs/a.sh", "# run ../shared/tools/x.sh"), HasSubstr("../shared"));
  EXPECT_THAT(only_finding("src/README.md", "python is /work/venv/bin/python"), HasSubstr("/work/"));
}

TEST(PageRules, WordsAreInPagesSourcesAndScripts) {
  for (const char* file :
       {"README.md", "src/a/b.cpp", "jobs/serve.sbatch", "cmake/Targets.cmake", "src/CMakeLists.txt"}) {
    EXPECT_TRUE(has_words(file)) << file;
  }
  for (const char* file : {"tests/fixtures/text/digests.bin", "LICENSE", "inputs/trained/held_out/manual.txt"}) {
    EXPECT_FALSE(has_words(file)) << file;
  }
}

}  // namespace
}  // namespace computron::test

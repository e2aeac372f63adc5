#include "tests/house/page_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <set>
#include <sstream>

namespace computron::test {
namespace {

constexpr int kMostReadmeLines = 160;

std::string_view extension(std::string_view file) {
  const auto dot = file.rfind('.');
  return dot == file.npos || file.find('/', dot) != file.npos ? "" : file.substr(dot);
}

bool is_page(std::string_view file) { return extension(file) == ".md"; }

// What opens a comment in a file of this name.
std::string_view comment_mark(std::string_view file) {
  static const std::set<std::string_view> slashes = {".h", ".cpp", ".cu", ".cuh", ".c"};
  return slashes.contains(extension(file)) ? "//" : "#";
}

// The words of a line: all of a page's, the comment's of any other file.
std::string words_of(std::string_view file, const std::string& line) {
  if (is_page(file)) return line;
  const auto mark = line.find(comment_mark(file));
  return mark == line.npos ? "" : line.substr(mark);
}

// A name in capitals stands for any: tests/FLOOR/UNIT_test.cpp.
bool is_placeholder(const std::string& path) {
  static const std::regex capitals(R"((^|[/._-])[A-Z]{2,}(?=$|[/._-]))"), names(R"(README|CONTRIBUTING|LICENSE)");
  const std::string rest = std::regex_replace(path, names, "");
  return path.find_first_of("*?") != path.npos || std::regex_search(rest, capitals);
}

// The anchor that a heading gets in a rendered page.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') anchor += '-';
    if (std::isalnum(byte) || c == '-' || c == '_' || byte >= 0x80) anchor += static_cast<char>(std::tolower(byte));
  }
  return anchor;
}

std::set<std::string> anchors_of(std::string_view text) {
  std::set<std::string> anchors;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const auto start = line.find_first_not_of('#');
    if (line.starts_with('#') && start != line.npos && line[start] == ' ') {
      anchors.insert(anchor_of(std::string_view(line).substr(start + 1)));
    }
  }
  return anchors;
}

// "jobs/README.md" of the target "README.md#exit-codes" on a page of jobs.
std::string from_top(std::string_view page, std::string target) {
  target = target.substr(0, target.find('#'));
  const auto slash = page.rfind('/');
  return slash == page.npos ? target : fmt::format("{}/{}", page.substr(0, slash), target);
}

// Checks one file.
class Checker {
 public:
  Checker(std::string_view file, std::string_view text, const Exists& exists)
      : file_(file), text_(text), exists_(exists), anchors_(anchors_of(text)) {}

  std::vector<Violation> run() {
    std::istringstream lines{std::string(text_)};
    for (std::string line; std::getline(lines, line);) {
      ++number_;
      const std::string words = words_of(file_, line);
      check_paths(words);
      check_outside(words);
      if (is_page(file_)) check_links(line);
    }
    if (file_ == "README.md" && number_ > kMostReadmeLines) {
      report(fmt::format("has {} lines; at most {} are for a stranger to read", number_, kMostReadmeLines));
    }
    return std::move(violations_);
  }

 private:
  void report(std::string what) { violations_.push_back({std::string(file_), number_, std::move(what)}); }

  void check_paths(const std::string& words) {
    for (const std::string& path : cited_paths(words)) {
      if (!exists_(path) && !exists_("include/computron/" + path))
        report(fmt::format("cites {}, which is not there", path));
    }
  }

  void check_outside(const std::string& words) {
    static const std::regex outside(R"(\b(design|groups|interface|facts)\.md\b|\.\./shared\b|(^|[\s`"'(])/work/)");
    std::smatch match;
    if (std::regex_search(words, match, outside)) {
      report(fmt::format("refers to '{}', which is not in the repository", match.str()));
    }
  }

  void check_links(const std::string& line) {
    static const std::regex link(R"(\]\(([^)\s]+)\))");
    for (std::sregex_iterator match(line.begin(), line.end(), link), end; match != end; ++match) {
      const std::string target = (*match)[1];
      if (target.find("://") != target.npos) continue;
      const bool here = target.starts_with('#');
      if (here ? !anchors_.contains(target.substr(1)) : !exists_(from_top(file_, target))) {
        report(fmt::format("links to {}, which is not there", target));
      }
    }
  }

  std::string_view file_, text_;
  const Exists& exists_;
  std::set<std::string> anchors_;
  int number_ = 0;
  std::vector<Violation> violations_;
};

}  // namespace

bool has_words(std::string_view file) {
  static const std::set<std::string_view> kinds = {".md", ".h",  ".cpp",    ".cu", ".cuh",
                                                   ".c",  ".sh", ".sbatch", ".py", ".cmake"};
  // Those that name what they forbid, and what is only kept here.
  static constexpr std::array kLeftOut = {"tests/house/page_rules", "tests/house/pages_test", "tests/fuzz/seeds/",
                                          "inputs/trained/held_out/"};
  if (std::any_of(kLeftOut.begin(), kLeftOut.end(), [&](const char* left) { return file.starts_with(left); })) {
    return false;
  }
  return kinds.contains(extension(file)) || file.ends_with("CMakeLists.txt");
}

std::vector<std::string> cited_paths(const std::string& words) {
  static const std::regex path(
      R"((^|[^A-Za-z0-9_./${}~<>-])((src|include|kernels|tests|jobs|perf|inputs|cmake)/[A-Za-z0-9_./*?-]+|CONTRIBUTING\.md))");
  std::vector<std::string> paths;
  for (std::sregex_iterator match(words.begin(), words.end(), path), end; match != end; ++match) {
    std::string found = (*match)[2];
    const auto next = static_cast<std::size_t>(match->position() + match->length());
    const bool goes_on = next < words.size() && std::string_view("<{$[…").find(words[next]) != std::string_view::npos;
    while (found.ends_with('.') || found.ends_with('/') || found.ends_with('-')) found.pop_back();
    if (!goes_on && !is_placeholder(found)) paths.push_back(found);
  }
  return paths;
}

std::vector<std::string> defined_tests(const std::string& source) {
  static const std::regex test(R"(\bTEST(_F|_P)?\(\s*(\w+),\s*(?:DISABLED_)?(\w+)\))");
  std::vector<std::string> tests;
  for (std::sregex_iterator match(source.begin(), source.end(), test), end; match != end; ++match) {
    tests.push_back(fmt::format("{}.{}", (*match)[2].str(), (*match)[3].str()));
  }
  return tests;
}

std::vector<std::string> named_tests(const std::string& line) {
  static const std::regex name(R"(`(\w*)\.(?:DISABLED_)?((?:[A-Z*]|…)(?:\w|[*]|…)*)(?:/\w+)?`)");
  std::vector<std::string> tests;
  std::string suite;
  for (std::sregex_iterator match(line.begin(), line.end(), name), end; match != end; ++match) {
    if (match->length(1) > 0) suite = (*match)[1];
    tests.push_back(fmt::format("{}.{}", suite, (*match)[2].str()));
  }
  return tests;
}

bool is_defined(const std::string& named, const std::vector<std::string>& defined) {
  std::string pattern = std::regex_replace(named, std::regex(R"(\.)"), R"(\.)");
  pattern = std::regex_replace(pattern, std::regex(R"([*]|…)"), ".*");
  const std::regex test(pattern);
  return std::any_of(defined.begin(), defined.end(), [&](const std::string& d) { return std::regex_match(d, test); });
}

std::vector<Violation> check_words(std::string_view file, std::string_view text, const Exists& exists) {
  return Checker(file, text, exists).run();
}

}  // namespace computron::test

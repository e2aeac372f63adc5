#include "tests/house/source_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <regex>
#include <sstream>

namespace computron::test {
namespace {

struct Floor {
  std::string_view name;
  int level;
};

// Floors on the same level do not include each other.
constexpr std::array kFloors = {
    Floor{"base", 0},      Floor{"kernels", 1}, Floor{"storage", 1},  Floor{"device", 2},     Floor{"ops", 3},
    Floor{"comm", 3},      Floor{"text", 3},    Floor{"guided", 3},   Floor{"checkpoint", 3}, Floor{"model", 4},
    Floor{"runtime", 5},   Floor{"sched", 6},   Floor{"dispatch", 7}, Floor{"requests", 7},   Floor{"workload", 8},
    Floor{"placement", 9}, Floor{"serve", 10},  Floor{"plan", 10},    Floor{"report", 10},    Floor{"cli", 11},
    Floor{"bench", 12},    Floor{"apps", 13}};

const Floor* find_floor(std::string_view name) {
  const auto* found = std::ranges::find(kFloors, name, &Floor::name);
  return found == kFloors.end() ? nullptr : found;
}

// The folder that names the floor: "comm" of "include/computron/comm/mpi.h", "src/comm/mesh.cpp" or
// "computron/comm/mpi.h"; "kernels" of "kernels/cpu/gemm.h". Nothing for any other path.
std::optional<std::string> floor_name(std::string_view path) {
  for (const std::string_view top : {"include/computron/", "computron/", "src/"}) {
    if (!path.starts_with(top)) continue;
    const auto rest = path.substr(top.size());
    return std::string(rest.substr(0, rest.find('/')));
  }
  if (path.starts_with("kernels/")) return "kernels";
  return std::nullopt;
}

bool in_cuda_folder(std::string_view path) { return path.find("/cuda/") != std::string_view::npos; }

// Blanks a file character by character.
class Blanker {
 public:
  explicit Blanker(std::string_view text) : text_(text) {}

  std::string run() {
    while (at_ < text_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    if (at_line_start() && is_include()) return keep_until("\n");
    if (looking_at("//")) return blank_until("\n");
    if (looking_at("/*")) return blank_through("*/", 2);
    if (looking_at("R\"") && !in_word()) return blank_raw_string();
    if (text_[at_] == '"') return blank_literal('"');
    if (text_[at_] == '\'' && !in_word()) return blank_literal('\'');
    out_ += text_[at_++];
  }

  bool looking_at(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool at_line_start() const { return at_ == 0 || text_[at_ - 1] == '\n'; }
  // After a letter or digit, ' is a digit separator and R part of a name.
  bool in_word() const {
    return at_ > 0 && (std::isalnum(static_cast<unsigned char>(text_[at_ - 1])) || text_[at_ - 1] == '_');
  }
  bool is_include() const {
    static const std::regex include(R"(^[ \t]*#[ \t]*include\b)");
    const auto line = text_.substr(at_, text_.find('\n', at_) - at_);
    return std::regex_search(line.begin(), line.end(), include);
  }

  std::size_t end_of(std::string_view end, std::size_t from) const {
    return std::min(text_.find(end, from), text_.size());
  }
  void keep_until(std::string_view end) {
    const auto stop = end_of(end, at_);
    out_ += text_.substr(at_, stop - at_);
    at_ = stop;
  }
  void blank_to(std::size_t stop) {
    for (stop = std::min(stop, text_.size()); at_ < stop; ++at_) out_ += text_[at_] == '\n' ? '\n' : ' ';
  }
  void blank_until(std::string_view end) { blank_to(end_of(end, at_)); }
  void blank_through(std::string_view end, std::size_t opening) { blank_to(end_of(end, at_ + opening) + end.size()); }
  void blank_raw_string() {
    const auto open = end_of("(", at_);
    blank_through(fmt::format("){}\"", text_.substr(at_ + 2, open - at_ - 2)), 2);
  }
  void blank_literal(char quote) {
    auto stop = at_ + 1;
    while (stop < text_.size() && text_[stop] != quote && text_[stop] != '\n') stop += text_[stop] == '\\' ? 2 : 1;
    blank_to(stop + 1);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string out_;
};

using Finding = std::optional<std::string>;

// Pages are coded, decoded and digested outside of operations.
bool is_of_pages_for(std::string_view from, std::string_view included) {
  const bool of_pages = included == "kernels/cpu/coded_page.h" || included == "kernels/cuda/coded_page.h" ||
                        included == "kernels/cuda/page_digest.h" || included == "computron/kernels/coded_layout.h";
  return of_pages && (from == "device" || from == "runtime");
}

Finding check_floor(std::string_view file, const std::string& included) {
  const auto to = floor_name(included);
  const auto from = floor_name(file);
  if (!to || !from) return std::nullopt;
  const Floor* upper = find_floor(*from);
  const Floor* lower = find_floor(*to);
  if (!upper || !lower) return fmt::format("'{}' is not a floor of the house", upper ? *to : *from);
  if (*to == "kernels" && *from != "kernels" && *from != "ops" && !is_of_pages_for(*from, included)) {
    return fmt::format("floor '{}' includes {} of floor 'kernels', which only 'ops' includes", *from, included);
  }
  if (upper == lower || lower->level < upper->level) return std::nullopt;
  return fmt::format("floor '{}' includes {} of floor '{}', which does not lie below it", *from, included, *to);
}

Finding check_foreign(std::string_view file, const std::string& included) {
  static const std::regex foreign(R"(^(mpi|hdf5|H5\w*|cuda\w*|cublas\w*|nccl\w*)\.h$)");
  if (!file.starts_with("include/") || !std::regex_match(included, foreign)) return std::nullopt;
  return fmt::format("public header includes {}", included);
}

// Only include/ is installed.
Finding check_installed(std::string_view file, const std::string& included) {
  const bool stays_here = included.starts_with("src/") || included.starts_with("kernels/");
  if (!file.starts_with("include/") || !stays_here) return std::nullopt;
  return fmt::format("public header includes {}, which is not installed", included);
}

Finding check_cuda_include(std::string_view file, const std::string& included) {
  if (!in_cuda_folder(included) || in_cuda_folder(file)) return std::nullopt;
  return fmt::format("includes {} from outside a cuda folder", included);
}

Finding check_cuda_word(std::string_view file, const std::string& line) {
  static const std::regex word(R"(\w*(cuda|nccl)\w*)", std::regex::icase);
  static const std::regex factory(R"(make_(cuda|nccl)_\w+|cuda_device_present)");
  if (in_cuda_folder(file)) return std::nullopt;
  for (std::sregex_iterator match(line.begin(), line.end(), word), end; match != end; ++match) {
    if (!std::regex_match(match->str(), factory)) return fmt::format("names '{}' outside a cuda folder", match->str());
  }
  return std::nullopt;
}

Finding check_openmp(const std::string& line) {
  static const std::regex pragma(R"(^\s*#\s*pragma\s+omp\b)");
  if (!std::regex_search(line, pragma)) return std::nullopt;
  return "uses OpenMP; the compute pool is the only one";
}

// One way to read JSON, with one set of limits and messages.
Finding check_json(std::string_view file, const std::string& line) {
  static const std::regex parser(R"(\b(\w*[jJ]son::parse|sax_parse)\b)");
  if (file == "src/base/json.cpp" || !file.starts_with("src/") || !std::regex_search(line, parser)) return std::nullopt;
  return "parses JSON by itself; computron/base/json.h does";
}

// HDF5 parses files of other people's in a process of its own.
Finding check_parsing(std::string_view file, const std::string& line) {
  static const std::regex in_process(R"(\bread_checkpoint_index\b)");
  if (floor_name(file) == "checkpoint" || !std::regex_search(line, in_process)) return std::nullopt;
  return "parses a checkpoint in this process; read_index_apart does not";
}

// Vectors beside the baseline's and what a processor tells of itself are the kernels'.
Finding check_processor_include(std::string_view file, const std::string& included) {
  static const std::regex intrinsics(R"(^((\w+intrin|cpuid|arm_\w+)\.h|simde/.*)$)");
  const bool own = file.starts_with("kernels/cpu/") || file == "include/computron/base/vectors.h";
  if (own || !std::regex_match(included, intrinsics)) return std::nullopt;
  return fmt::format("includes {}; computron/base/vectors.h does, for every architecture", included);
}

Finding check_pause(std::string_view file, const std::string& line) {
  if (file == "include/computron/base/processor.h") return std::nullopt;
  for (const char* name : {"_mm_pause", "__builtin_ia32_pause", "__yield"}) {
    if (line.find(name) != std::string::npos) return fmt::format("uses {}; spin_pause() is everywhere", name);
  }
  return std::nullopt;
}

// In texts and comments, too: what one library or launcher calls things is in one file.
Finding check_launcher(std::string_view file, std::string_view line) {
  if (file == "include/computron/base/launcher.h") return std::nullopt;
  for (const char* name : {"OMPI_", "ompi_", "OPEN_MPI", "PMIX_", "PMI_RANK", "PMI_SIZE", "MV2_", "PALS_", "MPIX_"}) {
    if (line.find(name) != std::string_view::npos) {
      return fmt::format("has a name of one MPI library's, '{}'; computron/base/launcher.h has those", name);
    }
  }
  return std::nullopt;
}

// Not a rule of the product alone: tests and benchmarks keep it too.
Finding check_include_path(const std::string& included) {
  static const std::regex from_a_root(R"(^(computron|src|kernels|tests|perf)/.*)");
  if (included == "git_revision.h" || std::regex_match(included, from_a_root)) return std::nullopt;
  return fmt::format("includes \"{}\", which is no path from a root (computron/, src/, kernels/, tests/, perf/)",
                     included);
}

std::vector<Finding> check_line(std::string_view file, const std::string& line) {
  static const std::regex include(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  std::smatch match;
  if (!std::regex_search(line, match, include))
    return {check_cuda_word(file, line), check_openmp(line), check_parsing(file, line), check_json(file, line),
            check_pause(file, line)};
  const std::string name = match[1];
  return {check_floor(file, name), check_foreign(file, name), check_installed(file, name),
          check_cuda_include(file, name), check_processor_include(file, name)};
}

}  // namespace

std::string code_only(std::string_view text) { return Blanker(text).run(); }

std::vector<Violation> check_source(std::string_view file, std::string_view text) {
  std::vector<Violation> violations;
  std::istringstream lines(code_only(text)), as_written{std::string(text)};
  int number = 0;
  for (std::string line, written; std::getline(as_written, written);) {
    ++number;
    std::getline(lines, line);
    std::vector<Finding> findings = check_line(file, line);
    findings.push_back(check_launcher(file, written));
    for (const Finding& finding : findings) {
      if (finding) violations.push_back({std::string(file), number, *finding});
    }
  }
  return violations;
}

std::vector<Violation> check_include_paths(std::string_view file, std::string_view text) {
  static const std::regex include(R"re(^\s*#\s*include\s*"([^"]+)")re");
  std::vector<Violation> violations;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto first = line.find_first_not_of(" \t");
    if (first == std::string::npos || line[first] != '#') continue;  // much faster than to ask the expression
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    if (const Finding finding = check_include_path(match[1]))
      violations.push_back({std::string(file), number, *finding});
  }
  return violations;
}

}  // namespace computron::test

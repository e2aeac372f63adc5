// How large the rooms and the classes of the house may grow.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/house/class_sizes.h"
#include "tests/house/source_rules.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;

constexpr int kMostMethods = 30;
constexpr double kLargestShare = 0.11;

const std::set<std::string> kMayHaveMore = {"CpuOps",  // one method an operation of a device, as in Ops
                                            "CudaOps", "Ops", "OpsProbe"};

const fs::path kSources = COMPUTRON_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<fs::path> files_below(const fs::path& folder, const std::set<std::string>& kinds) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && kinds.contains(entry.path().extension())) found.push_back(entry.path());
  }
  return found;
}

// Lines of a room's folder in src and of that in include/computron, by its name.
std::map<std::string, long> lines_of_rooms() {
  std::map<std::string, long> lines;
  for (const fs::path& top : {kSources / "src", kSources / "include" / "computron"}) {
    for (const fs::path& path : files_below(top, {".h", ".cpp", ".cu", ".cuh"})) {
      const std::string text = text_of(path);
      lines[path.lexically_relative(top).begin()->string()] += std::ranges::count(text, '\n');
    }
  }
  return lines;
}

TEST(House, NoRoomIsMuchLargerThanTheOthers) {
  std::vector<std::pair<long, std::string>> rooms;
  long all = 0;
  for (const auto& [room, lines] : lines_of_rooms()) {
    rooms.emplace_back(lines, room);
    all += lines;
  }
  std::ranges::sort(rooms, std::greater<>());
  ASSERT_GT(rooms.size(), 10u) << "looked in the wrong folder: " << kSources;
  std::string table;
  for (const auto& [lines, room] : rooms)
    table += fmt::format("{:12} {:6} {:5.1f} %\n", room, lines, 100. * lines / all);
  EXPECT_LE(rooms[0].first, kLargestShare * all) << table;
}

TEST(House, NoClassHasMoreThanThirtyMethods) {
  int classes = 0;
  for (const char* top : {"include", "src", "kernels"}) {
    for (const fs::path& path : files_below(kSources / top, {".h", ".cuh"})) {
      for (const ClassSize& size : class_sizes(code_only(text_of(path)))) {
        ++classes;
        if (kMayHaveMore.contains(size.name)) continue;
        EXPECT_LE(size.methods, kMostMethods) << size.name << " in " << path.lexically_relative(kSources);
      }
    }
  }
  EXPECT_GT(classes, 100) << "looked in the wrong folder: " << kSources;
}

int methods(const std::string& body) {
  const auto sizes = class_sizes("struct A { " + body + " };");
  return sizes.size() == 1 ? sizes[0].methods : -1;
}

TEST(ClassSizes, CountWhatIsDeclaredAndWhatIsDefined) {
  EXPECT_EQ(methods("void f(); int g(int a) const { if (a) h(); return 1; } static A make(); int h() noexcept;"), 4);
  EXPECT_EQ(methods("explicit A(int a) : a_(a), b_{a}, c_{a} { f(); } ~A(); virtual void f() = 0; int a_;"), 1);
  EXPECT_EQ(
      methods("bool operator==(const A&) const; void operator()(); A& operator<<(int b); template <class T> T f(T t);"),
      4);
}

TEST(ClassSizes, LeaveOutWhatIsNoMethod) {
  EXPECT_EQ(methods("int a = f(1); int b{g(2)}; std::function<void(int)> c; using D = int(int); friend void h(A);"), 0);
  EXPECT_EQ(methods("A(const A&) = delete; A& operator=(const A&) = default; static_assert(sizeof(int) == 4);"), 0);
  EXPECT_EQ(methods("enum class E { kOne, kTwo }; E e = E::kOne; std::vector<std::pair<int, int>> v{{1, f(2)}};"), 0);
}

TEST(ClassSizes, KnowEachClassByItself) {
  const auto sizes = class_sizes(
      "#define F(a) \\\n  class X { void a(); };\n"
      "namespace n { class Later; enum class E { kA };\n"
      "template <class T, typename U> class Outer final : public Base<T> {\n"
      " public:\n  void f();\n  struct Inner { void g(); void h(); int x; };\n private:\n  void i(); Inner j_;\n};\n"
      "void free(); inline int also() { struct Local { void k(); }; return 1; } }");
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].name, "Inner");
  EXPECT_EQ(sizes[0].methods, 2);
  EXPECT_EQ(sizes[1].name, "Outer");
  EXPECT_EQ(sizes[1].methods, 2);
}

}  // namespace
}  // namespace computron::test

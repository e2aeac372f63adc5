#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/house/source_rules.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kRoot = COMPUTRON_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

const std::vector<const char*> kProduct = {"include", "src", "kernels"};

std::vector<fs::path> sources(const std::vector<const char*>& tops) {
  static const std::set<std::string> kinds = {".h", ".cpp", ".cu", ".cuh", ".c"};
  std::vector<fs::path> found;
  for (const char* top : tops) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (entry.is_regular_file() && kinds.contains(entry.path().extension())) found.push_back(entry.path());
    }
  }
  return found;
}

std::string name_of(const fs::path& path) { return path.lexically_relative(kRoot).generic_string(); }

// The only finding of a file, or a failure.
std::string only_finding(std::string_view file, std::string_view text) {
  const auto found = check_source(file, text);
  if (found.size() != 1) return std::to_string(found.size()) + " findings";
  return "line " + std::to_string(found[0].line) + ": " + found[0].what;
}

TEST(House, EverySourceKeepsTheRules) {
  const auto files = sources(kProduct);
  EXPECT_GT(files.size(), 50u) << "looked in the wrong folder: " << kRoot;
  for (const fs::path& path : files) {
    for (const Violation& v : check_source(name_of(path), read(path))) {
      ADD_FAILURE() << v.file << ":" << v.line << ": " << v.what;
    }
  }
}

TEST(House, EveryIncludeNamesAWholePath) {
  for (const fs::path& path : sources({"include", "src", "kernels", "tests", "perf"})) {
    for (const Violation& v : check_include_paths(name_of(path), read(path))) {
      ADD_FAILURE() << v.file << ":" << v.line << ": " << v.what;
    }
  }
}

TEST(Rules, AnIncludeInQuotesNamesTheWholePathFromARoot) {
  EXPECT_THAT(check_include_paths("tests/comm/a_test.cpp",
                                  "#include <mpi.h>\n"
                                  "#include \"computron/comm/mesh.h\"\n"
                                  "#include \"src/comm/staged.h\"\n"
                                  "#include \"kernels/cpu/gemm.h\"\n"
                                  "#include \"tests/support/job.h\"\n"
                                  "#include \"perf/even_layout.h\"\n"
                                  "#include \"git_revision.h\"\n"
                                  "// #include \"staged.h\"\n"),
              testing::IsEmpty());
  for (const char* wrong : {"staged.h", "../comm/staged.h", "comm/staged.h", "./staged.h", "support/job.h"}) {
    const auto found =
        check_include_paths("src/comm/links.cpp", std::string("\n # include \"") + wrong + "\"  // near\n");
    ASSERT_EQ(found.size(), 1u) << wrong;
    EXPECT_EQ(found[0].line, 2);
    EXPECT_THAT(found[0].what, HasSubstr(wrong));
  }
}

TEST(Rules, AnIncludePointsDown) {
  EXPECT_THAT(check_source("src/model/layers.cpp",
                           "#include \"computron/base/log.h\"\n"
                           "#include \"computron/comm/mpi.h\"\n"
                           "#include \"computron/model/pass.h\"\n"
                           "#include \"src/model/join.h\"\n"
                           "#include <vector>\n"),
              testing::IsEmpty());
  EXPECT_THAT(check_source("src/ops/cpu/gemm.cpp", "#include \"kernels/cpu/gemm.h\""), testing::IsEmpty());
  EXPECT_THAT(check_source("kernels/cpu/gemm.cpp",
                           "#include \"kernels/cpu/pack.h\"\n"
                           "#include \"computron/kernels/types.h\"\n"
                           "#include \"computron/base/types.h\"\n"),
              testing::IsEmpty());
}

TEST(Rules, AnIncludeThatPointsUpIsNamedWithLineAndFloors) {
  EXPECT_THAT(
      only_finding("include/computron/comm/mesh.h", "#pragma once\n\n  #  include \"computron/model/pass.h\"\n"),
      AllOf(HasSubstr("line 3:"), HasSubstr("'comm'"), HasSubstr("'model'")));
  EXPECT_THAT(only_finding("src/base/log.cpp", "#include \"src/device/mapped_pages.h\""), HasSubstr("'device'"));
  EXPECT_THAT(only_finding("kernels/cpu/gemm.cpp", "#include \"computron/model/pass.h\""), HasSubstr("'model'"));
}

TEST(Rules, KernelsIncludeBaseAndKernelsOnly) {
  EXPECT_THAT(only_finding("kernels/cpu/gemm.h", "#include \"computron/ops/ops.h\""), HasSubstr("'ops'"));
  EXPECT_THAT(only_finding("kernels/cuda/gemm.cu", "#include \"src/ops/checks.h\""), HasSubstr("'ops'"));
  EXPECT_THAT(only_finding("kernels/cpu/gemm.cpp", "#include \"computron/device/device.h\""), HasSubstr("'device'"));
  EXPECT_THAT(only_finding("include/computron/kernels/types.h", "#include \"computron/ops/ops.h\""),
              HasSubstr("'ops'"));
}

TEST(Rules, OnlyOpsIncludesKernels) {
  EXPECT_THAT(check_source("include/computron/ops/ops.h", "#include \"computron/kernels/types.h\""),
              testing::IsEmpty());
  for (const char* file : {"src/device/cpu/event.cpp", "src/model/layers.cpp", "src/serve/preflight.cpp",
                           "src/apps/version.cpp", "src/base/log.cpp"}) {
    EXPECT_THAT(only_finding(file, "#include \"kernels/cpu/gemm.h\""), HasSubstr("'kernels'")) << file;
    EXPECT_THAT(only_finding(file, "#include \"computron/kernels/types.h\""), HasSubstr("'kernels'")) << file;
  }
  EXPECT_THAT(only_finding("include/computron/model/pass.h", "#include \"computron/kernels/types.h\""),
              HasSubstr("'kernels'"));
}

// The coder of pages is for those who hold pages and those who move them.
TEST(Rules, TheCoderOfPagesLiesBesideOps) {
  constexpr const char* kCoder = "#include \"kernels/cpu/coded_page.h\"";
  EXPECT_THAT(check_source("src/device/cpu/copy_stream.cpp", kCoder), testing::IsEmpty());
  EXPECT_THAT(check_source("src/runtime/coded_arena.h", kCoder), testing::IsEmpty());
  EXPECT_THAT(only_finding("src/serve/job.cpp", kCoder), HasSubstr("'kernels'"));
  EXPECT_THAT(only_finding("kernels/cpu/coded_page.h", "#include \"computron/device/device.h\""),
              HasSubstr("'device'"));
}

TEST(Rules, FloorsOfOneLevelStayApart) {
  EXPECT_THAT(only_finding("src/ops/ops.cpp", "#include \"computron/comm/mpi.h\""), HasSubstr("'comm'"));
  EXPECT_THAT(only_finding("src/comm/mesh.cpp", "#include \"computron/checkpoint/index.h\""),
              HasSubstr("'checkpoint'"));
}

TEST(Rules, AFolderThatIsNoFloorIsNamed) {
  EXPECT_THAT(only_finding("src/utils/a.cpp", "#include \"computron/base/log.h\""), HasSubstr("'utils'"));
  EXPECT_THAT(only_finding("src/apps/a.cpp", "#include \"computron/misc/b.h\""), HasSubstr("'misc'"));
}

TEST(Rules, PublicHeadersAreFreeOfForeignTypes) {
  for (const char* header : {"mpi.h", "hdf5.h", "H5public.h", "cuda_runtime.h", "cuda_runtime_api.h", "nccl.h"}) {
    const std::string text = std::string("#include <") + header + ">";
    EXPECT_THAT(only_finding("include/computron/comm/mpi.h", text), HasSubstr(header));
  }
  EXPECT_THAT(check_source("src/comm/mpi_call.h", "#include <mpi.h>"), testing::IsEmpty());
}

TEST(Rules, PublicHeadersIncludeWhatIsInstalled) {
  EXPECT_THAT(only_finding("include/computron/ops/ops.h", "#include \"kernels/cpu/gemm.h\""), HasSubstr("installed"));
  EXPECT_THAT(only_finding("include/computron/ops/ops.h", "#include \"src/ops/checks.h\""), HasSubstr("installed"));
  EXPECT_THAT(check_source("src/ops/cpu/cpu_ops.h", "#include \"kernels/cpu/gemm.h\""), testing::IsEmpty());
}

TEST(Rules, CudaIsNamedInItsFoldersAndByItsFactories) {
  EXPECT_THAT(only_finding("src/serve/job.cpp", "\nif (is_cuda) f();\n"),
              AllOf(HasSubstr("line 2:"), HasSubstr("'is_cuda'")));
  EXPECT_THAT(only_finding("src/ops/ops.cpp", "#ifdef COMPUTRON_HAVE_CUDA"), HasSubstr("COMPUTRON_HAVE_CUDA"));
  EXPECT_THAT(only_finding("src/ops/ops.cpp", "#include \"src/ops/cuda/gemm.h\""), HasSubstr("outside a cuda folder"));
  EXPECT_THAT(check_source("src/ops/cuda/gemm.cpp", "cudaStream_t s;\n#include \"src/ops/cuda/gemm.h\""),
              testing::IsEmpty());
  EXPECT_THAT(check_source("src/serve/job.cpp",
                           "// CUDA\n/* cuda */ if (d == \"cuda\" && cuda_device_present())\n"
                           "  return make_cuda_device(0);  // NCCL"),
              testing::IsEmpty());
}

TEST(Rules, NoOpenMpPragma) {
  EXPECT_THAT(only_finding("src/ops/cpu/norm.cpp", "\n  # pragma  omp parallel for\n"), HasSubstr("line 2:"));
  EXPECT_THAT(check_source("src/ops/cpu/norm.cpp", "#pragma once\n// #pragma omp parallel"), testing::IsEmpty());
}

TEST(Rules, CheckpointsAreParsedApart) {
  EXPECT_THAT(only_finding("src/apps/plan.cpp", "auto index = read_checkpoint_index(path);"),
              HasSubstr("read_index_apart"));
  EXPECT_THAT(check_source("src/checkpoint/index_answer.cpp", "read_checkpoint_index(path)"), testing::IsEmpty());
}

TEST(Rules, JsonIsReadInOnePlace) {
  EXPECT_THAT(only_finding("src/apps/init.cpp", "auto a = nlohmann::json::parse(text);"), HasSubstr("json.h"));
  EXPECT_THAT(only_finding("src/text/a.cpp", "Json::parse(text);"), HasSubstr("json.h"));
  EXPECT_THAT(only_finding("src/text/a.cpp", "json::sax_parse(text, &events);"), HasSubstr("json.h"));
  EXPECT_THAT(check_source("src/base/json.cpp", "json::sax_parse(text, &forward);"), testing::IsEmpty());
}

TEST(Rules, NamesOfOneMpiLibraryAreInOneFile) {
  for (const char* line : {"std::getenv(\"OMPI_COMM_WORLD_RANK\")", "// as PMIX_RANK says", "\"PMI_RANK, MV2_\"",
                           "MPIX_Comm_revoke(comm);", "#ifdef OPEN_MPI"}) {
    EXPECT_THAT(only_finding("src/serve/job.cpp", std::string("int a;\n") + line),
                AllOf(HasSubstr("line 2:"), HasSubstr("launcher.h")))
        << line;
    EXPECT_THAT(check_source("include/computron/base/launcher.h", line), testing::IsEmpty()) << line;
  }
  EXPECT_THAT(check_source("src/comm/mpi.cpp", "MPI_Comm_rank(a, b);  // Open MPI 4.1"), testing::IsEmpty());
}

TEST(Rules, IntrinsicsAreInKernelsAndBehindOneHeader) {
  EXPECT_THAT(only_finding("src/ops/cpu/norm.cpp", "#include <immintrin.h>"), HasSubstr("vectors.h"));
  EXPECT_THAT(only_finding("src/base/digest.cpp", "#include <arm_neon.h>"), HasSubstr("vectors.h"));
  EXPECT_THAT(only_finding("include/computron/base/a.h", "#include <simde/x86/avx2.h>"), HasSubstr("vectors.h"));
  EXPECT_THAT(check_source("kernels/cpu/simd512.h", "#include <immintrin.h>"), testing::IsEmpty());
  EXPECT_THAT(check_source("include/computron/base/vectors.h", "#include <immintrin.h>"), testing::IsEmpty());
  EXPECT_THAT(only_finding("kernels/cpu/gemm.cpp", "\n_mm_pause();"), AllOf(HasSubstr("line 2:"), HasSubstr("spin")));
  EXPECT_THAT(check_source("include/computron/base/processor.h", "__builtin_ia32_pause();"), testing::IsEmpty());
}

TEST(CodeOnly, BlanksCommentsAndLiteralsAndKeepsLines) {
  EXPECT_EQ(code_only("a // b\nc"), "a     \nc");
  EXPECT_EQ(code_only("a /* b\n */ c"), "a     \n    c");
  EXPECT_EQ(code_only("f(\"// \\\" x\") + 1"), "f(         ) + 1");
  EXPECT_EQ(code_only("1'000 + '\"' + x"), "1'000 +     + x");
  EXPECT_EQ(code_only("R\"(a\"b)\" + c"), "         + c");
  EXPECT_EQ(code_only("#include \"a/b.h\"\n\"x\""), "#include \"a/b.h\"\n   ");
  EXPECT_EQ(code_only("\"unfinished"), "           ");
}

}  // namespace
}  // namespace computron::test

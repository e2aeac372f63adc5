// `computron serve` as a function: a request file in, exit code, results and metrics out.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/job.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron::test {

// A model of a job by its id, as written to a file.
struct ServedFile {
  std::string id;
  std::filesystem::path path;
};

// The program under test; another one (with an emulated GPU) if COMPUTRON_TEST_PROGRAM names it.
std::string served_program();

// The same, which takes options that make it break down (injected_main.cpp).
std::string injected_program();

struct ServeJob {
  int tp = 1;
  int pp = 1;
  int ranks = 0;               // 0: tp × pp
  std::string placement = {};  // text of a placement file; then neither tp nor pp is given
  std::vector<ServedFile> models = {};
  std::vector<std::string> lines = {};  // of the request file
  std::string requests = {};            // request file; empty: one in the job's folder, made of `lines`
  std::string device = {};              // empty: the one that tests run on (tests/support/test_device.h)
  std::string device_memory = "64MiB";
  std::string page_size = "64KiB";
  int threads = 1;
  std::vector<std::string> more = {};  // further arguments
  bool quiet = true;                   // false: it says what it does
  std::string output = {};             // result file; empty: one in the job's folder
  std::string input = "/dev/null";     // standard input
  std::string program = served_program();
};

struct Served {
  JobOutcome job;
  Results results;         // empty when there is no result file
  nlohmann::json metrics;  // null when there is no metrics file
};

// Seconds within which a failing job must have ended (10 in an ordinary build on a machine with nothing else to do,
// more with sanitizers and the more the machine's load exceeds its cores), and after which a healthy one counts as
// hung.
double healthy_limit_s();
double failing_limit_s();

// Whether the program under test is watched by a sanitizer: ctest then gives it options
// (tests/support/sanitizers.cmake).
bool sanitized();

// A job under way, in a new folder below `parent`.
class RunningServe {
 public:
  RunningServe(const ServeJob& job, const TemporaryFolder& parent);

  MpiJob& mpi() { return mpi_; }
  // Where ranks keep their last events (--recorder).
  const std::filesystem::path& folder() const { return folder_; }
  // The result file, and what it is called while the job runs.
  std::filesystem::path output() const { return output_; }
  std::filesystem::path partial_output() const { return output_.string() + ".partial"; }
  // Waits for the end. The test fails if that does not come within `limit_s`.
  Served finish(double limit_s);

 private:
  std::filesystem::path folder_;
  std::filesystem::path output_;
  MpiJob mpi_;
};

Served serve(const ServeJob& job, const TemporaryFolder& parent);
// The same; the test also fails unless it exits with 0 and has one result a non-blank line.
Served serve_ok(const ServeJob& job, const TemporaryFolder& parent);

// `length` tokens that depend on `seed` only.
std::vector<int> random_prompt(const TinyModel& model, int length, std::uint64_t seed);

}  // namespace computron::test

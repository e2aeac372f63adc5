#include "tests/apps/serve_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "computron/base/digest.h"
#include "tests/support/beside.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
constexpr char kMetricsFile[] = "metrics.json";

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file(path);
  return file ? nlohmann::json::parse(file) : nlohmann::json();
}

// A folder that no earlier job of this process used.
fs::path new_folder(const TemporaryFolder& parent) {
  static int count = 0;
  fs::path folder = parent / ("job" + std::to_string(++count));
  fs::create_directory(folder);
  return folder;
}

// The request file that the job names or one made of its lines.
fs::path request_file(const ServeJob& job, const fs::path& folder) {
  if (!job.requests.empty()) return job.requests;
  write_lines(folder / "requests.jsonl", job.lines);
  return folder / "requests.jsonl";
}

std::vector<std::string> command_of(const ServeJob& job, const fs::path& folder, const fs::path& output) {
  std::vector<std::string> command = {job.program, "serve"};
  if (job.quiet) command.emplace_back("--quiet");
  const auto add = [&](const std::string& name, const std::string& value) {
    command.push_back(name);
    command.push_back(value);
  };
  for (const auto& [id, path] : job.models) add("--model", id + "=" + path.string());
  add("--requests", request_file(job, folder));
  add("--output", output);
  add("--metrics", folder / kMetricsFile);
  if (!job.placement.empty()) {
    write_lines(folder / "placement.json", {job.placement});
    add("--placement", folder / "placement.json");
  } else {
    add("--tp", std::to_string(job.tp));
    add("--pp", std::to_string(job.pp));
  }
  add("--threads", std::to_string(job.threads));
  add("--device", job.device.empty() ? on_cpu() ? "cpu" : "cuda" : job.device);
  if (!on_cpu()) command.emplace_back("--share-gpu");
  if (on_emulated_gpu()) add("--idle", "sleep:50");  // whoever spins takes the core from the emulation
  add("--device-memory", job.device_memory);
  add("--page-size", job.page_size);
  add("--recorder", folder);
  command.insert(command.end(), job.more.begin(), job.more.end());
  return command;
}

}  // namespace

std::string served_program() {
  const std::string_view other = environment("COMPUTRON_TEST_PROGRAM");
  return other.empty() ? beside_test("computron").string() : std::string(other);
}

std::string injected_program() {
  return beside_test(on_emulated_gpu() ? "computron_injected_emulated" : "computron_injected").string();
}

bool sanitized() { return !environment("ASAN_OPTIONS").empty() || !environment("TSAN_OPTIONS").empty(); }

double healthy_limit_s() { return 4 * failing_limit_s(); }
double failing_limit_s() {
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = 0;
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double alone = sanitized() ? 60 : 10;
  return alone * std::clamp(load / cores, 1.0, 8.0);
}

RunningServe::RunningServe(const ServeJob& job, const TemporaryFolder& parent)
    : folder_(new_folder(parent)),
      output_(job.output.empty() ? folder_ / "results.jsonl" : fs::path(job.output)),
      mpi_(job.ranks > 0 ? job.ranks : job.tp * job.pp, command_of(job, folder_, output_), folder_, job.input) {}

Served RunningServe::finish(double limit_s) {
  Served served;
  served.job = mpi_.wait(limit_s);
  EXPECT_FALSE(served.job.timed_out) << "still running after " << limit_s << " s\n" << served.job.errors;
  if (fs::is_regular_file(output_)) served.results = Results(output_);
  served.metrics = read_json(folder_ / kMetricsFile);
  return served;
}

Served serve(const ServeJob& job, const TemporaryFolder& parent) {
  return RunningServe(job, parent).finish(healthy_limit_s());
}

Served serve_ok(const ServeJob& job, const TemporaryFolder& parent) {
  Served served = serve(job, parent);
  EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
  const auto wanted = job.lines.size() - std::count_if(job.lines.begin(), job.lines.end(), is_blank);
  EXPECT_EQ(served.results.size(), wanted) << served.job.errors;
  return served;
}

std::vector<int> random_prompt(const TinyModel& model, int length, std::uint64_t seed) {
  std::vector<int> prompt;
  for (int i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int>(hash_tuple(seed, i) % static_cast<std::uint64_t>(model.vocab)));
  }
  return prompt;
}

}  // namespace computron::test

// The file of --trace, of a job that swaps over slow links: what it says fits together and fits the metrics.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <set>

#include "tests/apps/serve_job.h"
#include "tests/apps/trace_reader.h"

namespace computron::test {
namespace {

using nlohmann::json;

struct Mesh {
  int tp, pp, frames;
};

constexpr int kPageKib = 64;
constexpr int kRequests = 8;
const TinyModel kModel{.layers = 4, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 192, .seed = 51};

// One job a mesh: two models take turns in a pool for one, over links of 0.03 GB/s.
class ServeTrace : public ::testing::TestWithParam<Mesh> {
 protected:
  void SetUp() override {
    const auto [tp, pp, frames] = GetParam();
    ServeJob job{.tp = tp, .pp = pp};
    for (const char* id : {"a", "b"}) {
      job.models.push_back({id, folder_ / fmt::format("{}.h5", job.models.size())});
      write_tiny_checkpoint(job.models.back().path, kModel);
    }
    for (int i = 0; i < kRequests; ++i) {
      job.lines.push_back(completion_line(fmt::format("r{}", i), job.models[i % 2].id, {1, 2, 3}, 3));
    }
    job.device_memory = fmt::format("{}KiB", frames * kPageKib);
    job.page_size = fmt::format("{}KiB", kPageKib);
    const auto path = trace_path();
    // The models hold the same, and each has pages of its own.
    job.more = {"--max-seqs", "1",       "--policy", "fifo",          "--link-gbps", "0.03",          "--trace",
                path,         "--coded", "on",       "--verify-swap", "every",       "--model-pages", "private"};
    served_ = serve_ok(job, folder_);
    trace_ = std::make_unique<TraceFile>(path);
  }
  int ranks() const { return GetParam().tp * GetParam().pp; }
  std::filesystem::path trace_path() const { return folder_ / "trace.json"; }
  void expect_report();

  TemporaryFolder folder_;
  Served served_;
  std::unique_ptr<TraceFile> trace_;
};

void expect_ranks_and_tracks(const TraceFile& trace, int ranks) {
  ASSERT_EQ(trace.processes.size(), static_cast<std::size_t>(ranks));
  for (const auto& [rank, name] : trace.processes) {
    EXPECT_EQ(name, fmt::format("rank {}", rank));
    EXPECT_EQ(trace.tracks_of.at(rank), (std::set<std::string>{"control", "compute", "copy", "communication"}));
    EXPECT_EQ(trace.ranks.at(rank).at("dropped_events"), 0);
    EXPECT_LE(std::abs(trace.ranks.at(rank).at("clock_offset_s").get<double>()),  // ranks of a node share a clock
              trace.ranks.at(rank).at("clock_error_s").get<double>() + 1e-8);
    EXPECT_EQ(trace.ranks.at(rank).at("events"),
              std::count_if(trace.spans.begin(), trace.spans.end(),
                            [rank = rank](const Span& span) { return span.rank == rank; }));
  }
}

// What enclosing spans mean: on a track, two spans are apart or one holds the other.
void expect_nested(std::vector<Span> spans, int rank, const std::string& track) {
  std::erase_if(spans, [&](const Span& span) { return span.rank != rank || span.track != track; });
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
  });
  std::vector<Span> open;
  for (const Span& span : spans) {
    while (!open.empty() && open.back().end_ns <= span.begin_ns) open.pop_back();
    const bool apart = open.empty();
    EXPECT_TRUE(apart || open.back().holds(span)) << track << ": " << span.name << " leaves " << open.back().name;
    open.push_back(span);
  }
}

void expect_copies_fit(const TraceFile& trace, const json& metrics) {
  const auto fetches = trace.select("copy", "fetch");
  EXPECT_EQ(fetches.size(), metrics.at("swaps").at("pages").get<std::size_t>());
  EXPECT_EQ(trace.select("copy", "verify").size(), fetches.size());
  std::uint64_t bytes = 0, link_bytes = 0;
  for (const Span& fetch : fetches) {
    bytes += fetch.args.at("bytes").get<std::uint64_t>();
    link_bytes += fetch.args.at("link_bytes").get<std::uint64_t>();
    const auto slack_ns = std::lround(trace.ranks.at(fetch.rank).at("clock_error_s").get<double>() * 2e9);
    EXPECT_GE(fetch.begin_ns, -slack_ns);
    EXPECT_LE(fetch.end_ns, std::lround(metrics.at("wall_s").get<double>() * 1e9) + slack_ns);
  }
  EXPECT_EQ(bytes, metrics.at("swaps").at("bytes").get<std::uint64_t>());
  // The metrics count what a page takes on the rank where it takes most.
  const auto most = metrics.at("swaps").at("link_bytes").get<std::uint64_t>();
  EXPECT_LE(link_bytes, most);
  EXPECT_GE(link_bytes, most / 10 * 9);
  EXPECT_LT(most, bytes / 20 * 19);
}

// The fetch that a wait waited for: the latest of its page that had begun when it went on.
const Span* fetch_of(const Span& wait, const std::vector<Span>& fetches) {
  const Span* latest = nullptr;
  for (const Span& fetch : fetches) {
    const bool same_page = fetch.rank == wait.rank && fetch.args.at("model") == wait.args.at("model") &&
                           fetch.args.at("page") == wait.args.at("page");
    if (!same_page || fetch.begin_ns > wait.end_ns) continue;
    if (latest == nullptr || fetch.begin_ns > latest->begin_ns) latest = &fetch;
  }
  return latest;
}

// Who waited, did so in a step, and went on when the page was there and not before.
void expect_waits_fit(const TraceFile& trace) {
  const auto waits = trace.select("compute", "wait for page");
  const auto fetches = trace.select("copy", "fetch");
  const auto steps = trace.select("compute", "step");
  EXPECT_FALSE(waits.empty());
  for (const Span& wait : waits) {
    SCOPED_TRACE(fmt::format("rank {} waited for {}", wait.rank, wait.args.dump()));
    const Span* fetch = fetch_of(wait, fetches);
    ASSERT_NE(fetch, nullptr);
    EXPECT_LE(fetch->end_ns, wait.end_ns);
    EXPECT_TRUE(std::any_of(steps.begin(), steps.end(),
                            [&](const Span& step) { return step.rank == wait.rank && step.holds(wait); }));
  }
}

// Whichever rank has it: on a busy machine one may find all its pages there.
int rank_of_longest_wait(const TraceFile& trace) {
  const auto waits = trace.select("compute", "wait for page");
  const auto ns = [](const Span& wait) { return wait.end_ns - wait.begin_ns; };
  return waits.empty() ? -1 : std::ranges::max_element(waits, {}, ns)->rank;
}

// What the page shows of a figure of the metrics file is what stands there.
void expect_figures_of(const json& metrics, const std::string& page) {
  static const std::regex figure(R"re(data-figure="([^"]*)" data-value="([^"]*)")re");
  std::set<std::string> seen;
  for (std::sregex_iterator at(page.begin(), page.end(), figure), end; at != end; ++at) {
    const std::string key = (*at)[1];
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    EXPECT_EQ(std::stod((*at)[2]), metrics.at(json::json_pointer(pointer)).get<double>()) << key;
    seen.insert(key);
  }
  for (const char* key : {"wall_s", "requests.ok", "latency_s.p99", "swaps.link_fraction", "models.b.swaps.bytes"}) {
    EXPECT_TRUE(seen.contains(key)) << key;
  }
}

// Cuts the trace in the end.
void ServeTrace::expect_report() {
  write_lines(folder_ / "metrics.json", {served_.metrics.dump()});
  const std::filesystem::path page_path = folder_ / "report.html";
  const auto report = [&](const std::filesystem::path& trace) {
    return run_job(1, {served_program(), "report", page_path, "--metrics", folder_ / "metrics.json", "--trace", trace},
                   trace_path().parent_path(), healthy_limit_s());
  };
  const JobOutcome made = report(trace_path());
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  std::ifstream file(page_path);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  expect_figures_of(served_.metrics, page);
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const char* what : {"computes a", "computes b", "copies a", "copies b"}) {
      EXPECT_NE(page.find(fmt::format("<title>rank {} {}", rank, what)), std::string::npos) << rank << " " << what;
    }
  }
  EXPECT_NE(page.find(fmt::format("<title>rank {} waits for pages", rank_of_longest_wait(*trace_))), std::string::npos);
  EXPECT_NE(page.find("<dt>link-gbps</dt><dd>0.03</dd>"), std::string::npos);

  std::filesystem::resize_file(trace_path(), std::filesystem::file_size(trace_path()) / 2);
  const JobOutcome refused = report(trace_path());
  EXPECT_EQ(refused.exit_code, 65) << refused.errors;
  EXPECT_NE(refused.errors.find("trace.json: not JSON from byte"), std::string::npos) << refused.errors;
  EXPECT_EQ(report(folder_ / "none.json").exit_code, 66);
}

TEST_P(ServeTrace, TellsWhatHappened) {
  expect_ranks_and_tracks(*trace_, ranks());
  expect_copies_fit(*trace_, served_.metrics);
  expect_waits_fit(*trace_);
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const auto& track : trace_->tracks_of.at(rank)) expect_nested(trace_->spans, rank, track);
  }
  const auto [tp, pp, frames] = GetParam();
  const std::size_t steps = served_.metrics.at("steps").at("count");
  const std::size_t layers = kModel.layers;
  const std::vector<Span> executed = trace_->select("compute", "step");
  const auto passes =
      static_cast<std::size_t>(std::count_if(executed.begin(), executed.end(),
                                             [](const Span& span) {
                                               return span.args.at("rows").get<int>() > 0;  // the others fetch only
                                             })) /
      ranks();
  EXPECT_EQ(trace_->select("control", "decide and send").size(), steps);
  EXPECT_EQ(executed.size(), steps * ranks());
  EXPECT_GT(passes, 0u);
  EXPECT_EQ(trace_->select("compute", "layer").size(), passes * layers * tp);  // a layer is on one stage
  EXPECT_EQ(trace_->select("communication", "send activation").size(), passes * (pp - 1) * tp);
  EXPECT_EQ(trace_->select("communication", "receive activation").size(), passes * (pp - 1) * tp);
  const std::size_t sums = tp == 1 ? 0 : 2 * layers + 1;  // two a layer, one of the embedding
  EXPECT_EQ(trace_->select("communication", "all-reduce").size(), passes * sums * tp);
  expect_report();
}

INSTANTIATE_TEST_SUITE_P(Meshes, ServeTrace, ::testing::Values(Mesh{1, 1, 24}, Mesh{2, 2, 9}),
                         [](const auto& test) { return fmt::format("tp{}pp{}", test.param.tp, test.param.pp); });

}  // namespace
}  // namespace computron::test

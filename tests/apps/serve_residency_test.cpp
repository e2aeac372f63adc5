// Where pages and caches lie, when they move and what makes room for what: only the time may tell. On every mesh the
// answers of jobs that plan, prefetch, keep parts of models, stream models larger than the pool and move caches out are
// those of a job with room for everything; and each job shows that it did what it is here for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <regex>
#include <tuple>

#include "computron/device/device.h"
#include "computron/runtime/kv_geometry.h"
#include "tests/apps/serve_job.h"
#include "tests/apps/trace_reader.h"

namespace computron::test {
namespace {

using nlohmann::json;

constexpr std::size_t kPageBytes = 32 << 10;

// About 45 pages each on one rank.
const TinyModel kModels[] = {
    {.layers = 8, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 192, .max_positions = 96, .seed = 71},
    {.layers = 8,
     .heads = 4,
     .head_dim = 24,
     .ffn = 120,
     .vocab = 192,
     .max_positions = 96,
     .dtype = DType::kBF16,
     .seed = 72,
     .tied_head = false},
    {.layers = 6, .heads = 5, .head_dim = 12, .ffn = 100, .vocab = 131, .seed = 73, .tied_head = false},
};
constexpr int kModelCount = std::size(kModels);

struct Mesh {
  int tp, pp;
};

// What a job of these models, one page size and one mesh lays out.
class Layout {
 public:
  explicit Layout(const Mesh& mesh) {
    const auto device = make_cpu_device({.threads = 1});
    const auto ops = make_cpu_ops(*device);
    for (const TinyModel& model : kModels) {
      std::vector<ShardLayout>& stages = layouts_.emplace_back();
      for (int stage = 0; stage < mesh.pp; ++stage) {
        const ShardPlan plan = ShardPlan::make(opt_config(model), {mesh.tp, mesh.pp}, stage);
        stages.push_back(ShardLayout::make(plan, ops->weight_format(), ops->weight_type(model.dtype), kPageBytes));
      }
    }
  }
  int stages() const { return static_cast<int>(layouts_.front().size()); }
  int pages(int model, int stage) const { return layouts_[model][stage].pages(); }
  int pages(int model) const {
    int sum = 0;
    for (const ShardLayout& layout : layouts_[model]) sum += layout.pages();
    return sum;
  }
  int cache_frames(int model, int stage, int tokens) const {
    const KvGeometry cache = KvGeometry::make(layouts_[model][stage]);
    return cache.frames_for(ceil_div(tokens, cache.block_tokens));
  }
  // The most frames that the weights of a model and its cache for `tokens` take on a stage.
  int largest(int tokens) const {
    int most = 0;
    for (int m = 0; m < kModelCount; ++m) {
      for (int s = 0; s < stages(); ++s) most = std::max(most, pages(m, s) + cache_frames(m, s, tokens));
    }
    return most;
  }

 private:
  std::vector<std::vector<ShardLayout>> layouts_;  // [model][stage]
};

std::string name(int model) { return fmt::format("model{}", model); }

struct Ask {
  int model;
  int prompt;  // tokens
  int generate;
  double arrival_s = 0;  // of those jobs that are replayed
  json more = json::object();
  int beginning = 0;  // so many tokens of the prompt are those of others

  int computed_tokens() const { return prompt + std::max(generate - 1, 0); }
};

constexpr int kLong = 60;         // tokens of the sequences that are interrupted
constexpr int kCacheTokens = 64;  // the same in whole blocks

// Short ones, first of two models in turn and then of the third, some of them prompts that are only scored; then a long
// one for each of the first two. In batches of three, in order of arrival, that is seven turns.
std::vector<Ask> all_asks() {
  std::vector<Ask> asks;
  for (int i = 0; i < 15; ++i) {
    const bool scored = i % 4 == 3;
    asks.push_back({.model = i < 12 ? i % 2 : 2,
                    .prompt = 1 + i * 7 % 23,
                    .generate = scored ? 0 : 6,
                    .arrival_s = 0.004 * i,
                    .more = {{"logprobs", i % 3}, {"echo", scored || i % 3 == 1}, {"ignore_eos", true}}});
  }
  for (int m = 0; m < 2; ++m) {
    asks.push_back({.model = m,
                    .prompt = 5 + m,
                    .generate = kLong - 5 - m,
                    .arrival_s = 0.002 * m,
                    .more = {{"logprobs", 2}, {"ignore_eos", true}}});
  }
  return asks;
}

std::string line_of(const Ask& ask, std::size_t number) {
  std::vector<int> prompt = random_prompt(kModels[ask.model], ask.prompt, number);
  const std::vector<int> common = random_prompt(kModels[ask.model], ask.prompt, /*seed=*/1000);
  std::copy_n(common.begin(), ask.beginning, prompt.begin());
  json line = json::parse(completion_line(fmt::format("r{}", number), name(ask.model), prompt, ask.generate, ask.more));
  line["arrival"] = ask.arrival_s;
  return line.dump();
}

// By custom_id what a client sees of the answers: equal text of numbers is equality of bits.
std::map<std::string, std::string> answers(const Results& results) {
  std::map<std::string, std::string> all;
  for (const std::string& id : results.custom_ids()) all[id] = results.choice(id).dump();
  return all;
}

// A job that has run, and what it left behind.
struct TracedRun {
  Served served;
  TraceFile trace;

  int swaps(int model, const char* key) const {
    return served.metrics.at("models").at(name(model)).at("swaps").at(key).get<int>();
  }
  int swaps(const char* key) const { return served.metrics.at("swaps").at(key).get<int>(); }
  // By the passes of a stage together.
  int tokens_computed() const {
    int tokens = 0;
    for (const Span& step : trace.select("compute", "step")) {
      if (step.rank == 0) tokens += step.args.at("rows").get<int>();
    }
    return tokens;
  }
  // Frames of cache that left for host memory, and that came back.
  std::size_t offloaded() const { return trace.select("copy", "copy to host").size(); }
  std::size_t reloaded() const { return trace.select("copy", "copy").size(); }
  // Whether copying a page began between two passes of another model, or during one of these, on some rank. What a
  // copy stream is given during a pass may begin behind it: a short pass ends while the thread of the copies wakes up.
  bool prefetched() const {
    std::vector<Span> passes = trace.select("compute", "step");
    std::erase_if(passes, [](const Span& step) { return step.args.at("rows") == 0; });
    std::sort(passes.begin(), passes.end(),
              [](const Span& a, const Span& b) { return std::tie(a.rank, a.begin_ns) < std::tie(b.rank, b.begin_ns); });
    const std::vector<Span> fetches = trace.select("copy", "fetch");
    const auto lies_before_next = [&fetches](const Span& pass, const Span& next) {
      return pass.rank == next.rank && pass.args.at("model") == next.args.at("model") &&
             std::any_of(fetches.begin(), fetches.end(), [&](const Span& fetch) {
               return fetch.rank == pass.rank && fetch.args.at("model") != pass.args.at("model") &&
                      pass.begin_ns < fetch.begin_ns && fetch.begin_ns < next.end_ns;
             });
    };
    return std::adjacent_find(passes.begin(), passes.end(), lies_before_next) != passes.end();
  }
};

// Written once, and what jobs with room for everything answered, once a mesh.
struct Files {
  Files() {
    for (int m = 0; m < kModelCount; ++m) write_tiny_checkpoint(path(m), kModels[m]);
  }
  std::filesystem::path path(int model) const { return folder / (name(model) + ".h5"); }

  TemporaryFolder folder;
  std::map<std::pair<int, int>, std::map<std::string, std::string>> resident;  // by tp and pp
};

Files& files() {
  static Files files;
  return files;
}

class Residency : public ::testing::TestWithParam<Mesh> {
 protected:
  // `model_list` stands for all models as they are if it is empty.
  TracedRun run(int frames, const std::vector<Ask>& asks, std::vector<std::string> more,
                const std::string& model_list = "") const {
    ServeJob job{.tp = GetParam().tp, .pp = GetParam().pp};
    for (const Ask& ask : asks) job.lines.push_back(line_of(ask, job.lines.size()));
    job.device_memory = fmt::format("{}KiB", frames * (kPageBytes >> 10));
    job.page_size = fmt::format("{}KiB", kPageBytes >> 10);
    const auto trace = files().folder / "trace.json";
    job.more = std::move(more);
    job.more.insert(job.more.end(), {"--trace", trace.string()});
    for (int m = 0; model_list.empty() && m < kModelCount; ++m) job.models.push_back({name(m), files().path(m)});
    if (!model_list.empty()) job.more.insert(job.more.end(), {"--models", model_list});
    Served served = serve_ok(job, files().folder);
    TraceFile file(trace);
    for (const auto& [rank, info] : file.ranks) EXPECT_EQ(info.at("dropped_events"), 0);
    return {std::move(served), std::move(file)};
  }

  // The answers where there is room for everything; one job a mesh.
  const std::map<std::string, std::string>& resident() const {
    auto& known = files().resident[{GetParam().tp, GetParam().pp}];
    if (known.empty()) {
      const TracedRun whole = run(800, asks_, {"--coded", "off"});
      EXPECT_EQ(whole.swaps("count"), kModelCount);
      EXPECT_EQ(whole.swaps("pages"), copies_of_all());
      EXPECT_EQ(whole.tokens_computed(), tokens_to_compute());
      known = answers(whole.served.results);
      EXPECT_EQ(known.size(), asks_.size());
    }
    return known;
  }
  // Copies of pages, all ranks together, that bring a model in, and that bring every model in once.
  int copies(int model) const { return GetParam().tp * layout_.pages(model); }
  int copies_of_all() const {
    int sum = 0;
    for (int m = 0; m < kModelCount; ++m) sum += copies(m);
    return sum;
  }
  int tokens_to_compute() const {
    int tokens = 0;
    for (const Ask& ask : asks_) tokens += ask.computed_tokens();
    return tokens;
  }
  // More copies than if all of it had come whenever it was its turn: pages took turns within a turn.
  bool streamed(const TracedRun& run, int model) const {
    return run.swaps(model, "pages") > copies(model) * run.swaps(model, "count");
  }
  // Fewer: some pages were still there.
  bool kept_some(const TracedRun& run) const {
    int most = 0;
    for (int m = 0; m < kModelCount; ++m) most += copies(m) * run.swaps(m, "count");
    return run.swaps("pages") < most;
  }

  const std::vector<Ask> asks_ = all_asks();
  const Layout layout_{GetParam()};
};

class PartlyResident : public Residency {
 protected:
  // The pool holds one model and a half. A thread of copies that wakes up late, on a busy machine, begins behind the
  // passes that it was to copy beside: one run of several shows that it may.
  TracedRun run_with(const char* policy) const {
    const auto run_once = [&] {
      TracedRun partial =
          run(layout_.largest(0) * 3 / 2, asks_,
              {"--policy", policy, "--link-gbps", "0.1", "--max-seqs", "3", "--coded", "on", "--verify-swap", "every"});
      EXPECT_EQ(answers(partial.served.results), resident());
      return partial;
    };
    TracedRun partial = run_once();
    for (int more = 4; more > 0 && !partial.prefetched(); --more) partial = run_once();
    EXPECT_TRUE(partial.prefetched());
    return partial;
  }
};

TEST_P(PartlyResident, Fifo) {
  const TracedRun partial = run_with("fifo");
  EXPECT_GT(partial.swaps("pages"), copies_of_all());
  EXPECT_TRUE(kept_some(partial));
}

TEST_P(PartlyResident, Balanced) { EXPECT_GE(run_with("balanced").swaps("count"), kModelCount); }

TEST_P(PartlyResident, Throughput) {
  const TracedRun partial = run_with("throughput");
  EXPECT_EQ(partial.swaps("count"), kModelCount);
  EXPECT_EQ(partial.swaps("pages"), copies_of_all());
}

TEST_P(Residency, ModelsTwiceThePoolStreamThroughIt) {
  const TracedRun streaming =
      run(layout_.largest(0) / 2, asks_, {"--policy", "balanced", "--link-gbps", "0.5", "--coded", "on"});
  EXPECT_EQ(answers(streaming.served.results), resident());
  for (int m = 0; m < 2; ++m) EXPECT_TRUE(streamed(streaming, m)) << name(m);
}

// Arrivals interrupt long answers, and models in the middle of theirs take turns, each time that one has waited for
// a few ms. The pool has no room for a model and another's cache.
class PausedCache : public Residency {
 protected:
  TracedRun interrupted(const char* host_cache, const char* link_gbps, const char* max_wait_s) const {
    TracedRun paused = run(layout_.largest(kCacheTokens), asks_,
                           {"--replay", "--policy", "balanced", "--max-wait", max_wait_s, "--link-gbps", link_gbps,
                            "--host-cache", host_cache, "--max-batch-tokens", "6"});
    EXPECT_EQ(answers(paused.served.results), resident());
    return paused;
  }
};

TEST_P(PausedCache, MovesToHostMemoryAndBack) {
  const TracedRun paused =
      interrupted("8MiB", /*link_gbps=*/"8", /*max_wait_s=*/"0.001");  // moving is always cheaper than computing
  EXPECT_GT(paused.offloaded(), 0u);
  EXPECT_EQ(paused.reloaded(), paused.offloaded());
}

TEST_P(PausedCache, IsComputedAgain) {
  const TracedRun paused = interrupted("0", /*link_gbps=*/"0.5", /*max_wait_s=*/"0.001");
  EXPECT_EQ(paused.offloaded(), 0u);
  EXPECT_GT(paused.tokens_computed(), tokens_to_compute());
}

// How requests are batched shows in nothing but the time either.
class Batching : public Residency {
 protected:
  // With a pool so large and these arguments.
  std::map<std::string, std::string> answered(int frames, const std::vector<Ask>& asks,
                                              const std::vector<std::string>& more, int* tokens = nullptr,
                                              json* cache = nullptr) const {
    const TracedRun traced = run(frames, asks, more);
    if (tokens != nullptr) *tokens = traced.tokens_computed();
    if (cache != nullptr) *cache = traced.served.metrics.at("cache");
    return answers(traced.served.results);
  }
  static int tokens_of(const std::vector<Ask>& asks) {
    int tokens = 0;
    for (const Ask& ask : asks) tokens += ask.computed_tokens();
    return tokens;
  }
};

TEST_P(Batching, PromptsInChunksBesideThoseThatDecode) {
  EXPECT_EQ(answered(800, asks_, {"--max-batch-tokens", "7", "--max-seqs", "9"}), resident());
}

// Twenty answers that end at once teach that answers are short; then five come that are as long as they may be, and
// there is cache for little more than two of them.
TEST_P(Batching, SequencesThatArePreemptedAndResumed) {
  std::vector<int> any(static_cast<std::size_t>(kModels[0].vocab));
  std::iota(any.begin(), any.end(), 0);
  std::vector<Ask> asks;
  for (int i = 0; i < 25; ++i) {
    json more = i < 20 ? json{{"stop_token_ids", any}} : json{{"ignore_eos", true}, {"logprobs", 2}};
    asks.push_back({.model = 0, .prompt = 5, .generate = 70, .more = std::move(more)});
  }
  int frames = 0;
  for (int s = 0; s < GetParam().pp; ++s) {
    frames = std::max(frames, layout_.pages(0, s) + layout_.cache_frames(0, s, 200));
  }
  int undisturbed = 0, crowded = 0;
  const auto expected = answered(800, asks, {"--max-seqs", "5"}, &undisturbed);
  EXPECT_EQ(undisturbed, 20 * 5 + tokens_of({asks.begin() + 20, asks.end()}));
  json cache;
  EXPECT_EQ(answered(frames, asks, {"--max-seqs", "5"}, &crowded, &cache), expected);
  EXPECT_GT(crowded, undisturbed) << "nobody was preempted";
  EXPECT_GT(cache["set_asides"], 0);
}

TEST_P(Batching, PromptsThatBeginAlike) {
  std::vector<Ask> asks;
  for (int i = 0; i < 6; ++i) {
    asks.push_back({.model = 1,
                    .prompt = 40,
                    .generate = 4 + 6 * i,
                    .more = {{"ignore_eos", true}, {"logprobs", 1}},
                    .beginning = 33});
  }
  asks.back().more["echo"] = true;  // scored: it has nothing from the others
  int apart = 0, shared = 0;
  const auto expected = answered(800, asks, {"--max-seqs", "2"}, &apart);
  EXPECT_EQ(apart, tokens_of(asks));
  json cache;
  EXPECT_EQ(answered(800, asks, {"--max-seqs", "2", "--share-prefixes"}, &shared, &cache), expected);
  EXPECT_EQ(cache["shared_tokens"], apart - shared);
  EXPECT_LE(shared, apart - 3 * 32) << "the third, fourth and fifth begin with two blocks of those before them";
}

// Two of three models fit, and each request is for the one that has not been used for longest.
class Pinned : public Residency {
 protected:
  TracedRun run_pinned(bool pinned) const {
    json model_list;
    for (int m = 0; m < kModelCount; ++m) {
      model_list.push_back({{"id", name(m)}, {"path", name(m) + ".h5"}, {"pinned", pinned && m == 1}});
    }
    std::vector<Ask> asks;
    for (int i = 0; i < 9; ++i) asks.push_back({.model = i % 3, .prompt = 4, .generate = 2});
    write_lines(files().folder / "models.json", {model_list.dump()});
    int frames = 0;
    for (int s = 0; s < GetParam().pp; ++s) frames = std::max(frames, layout_.pages(1, s));
    return run(frames + layout_.largest(16), asks, {"--policy", "fifo", "--max-seqs", "1"},
               (files().folder / "models.json").string());
  }
};

TEST_P(Pinned, ModelsMoveOnce) {
  EXPECT_GT(run_pinned(false).swaps(1, "pages"), copies(1));
  const TracedRun pinned = run_pinned(true);
  EXPECT_EQ(pinned.swaps(1, "pages"), copies(1));
  EXPECT_GT(pinned.swaps(0, "pages"), copies(0));
}

// Two models that nothing tells apart but their priority, and a request for one pass of each at the same time.
class Priority : public ::testing::Test {
 protected:
  // The model whose request was answered first.
  std::string first_answered(const std::string& policy, int priority_of_second) const {
    write_tiny_checkpoint(folder_ / "tiny.h5", {});
    const json model_list = {{{"id", "first"}, {"path", "tiny.h5"}},
                             {{"id", "second"}, {"path", "tiny.h5"}, {"priority", priority_of_second}}};
    write_lines(folder_ / "models.json", {model_list.dump()});
    ServeJob job{.more = {"--models", (folder_ / "models.json").string(), "--replay", "--policy", policy}};
    for (const char* model : {"first", "second"}) {
      json line = json::parse(completion_line(model, model, {1, 2, 3}, 1));
      line["arrival"] = 0.1;  // by then both have been read
      job.lines.push_back(line.dump());
    }
    return serve_ok(job, folder_).results.lines().at(0).at("custom_id");
  }

  TemporaryFolder folder_;
};

TEST_F(Priority, ComesFromTheModelList) {
  EXPECT_EQ(first_answered("balanced", 0), "first");
  EXPECT_EQ(first_answered("balanced", 3), "second");
  EXPECT_EQ(first_answered("throughput", 3), "second");
}

const auto kMeshes = ::testing::Values(Mesh{1, 1}, Mesh{2, 1}, Mesh{1, 2}, Mesh{2, 2});
std::string mesh_name(const ::testing::TestParamInfo<Mesh>& test) {
  return fmt::format("tp{}pp{}", test.param.tp, test.param.pp);
}
INSTANTIATE_TEST_SUITE_P(Meshes, Residency, kMeshes, mesh_name);
INSTANTIATE_TEST_SUITE_P(Meshes, PartlyResident, kMeshes, mesh_name);
INSTANTIATE_TEST_SUITE_P(Meshes, PausedCache, kMeshes, mesh_name);
INSTANTIATE_TEST_SUITE_P(Meshes, Batching, ::testing::Values(Mesh{1, 1}, Mesh{2, 1}, Mesh{2, 2}), mesh_name);
INSTANTIATE_TEST_SUITE_P(Meshes, Pinned, ::testing::Values(Mesh{1, 1}, Mesh{1, 2}), mesh_name);

// --- Host pages -------------------------------------------------------------------------------------------------

// Two models of one file are loaded once and lie in host memory once, and answer as they do alone.
TEST(HostPages, TwoModelsOfOneFileAreOneCopy) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "one.h5", kModels[0]);
  write_tiny_checkpoint(folder / "other.h5", kModels[1]);
  const auto lines_for = [](const std::string& id) {
    std::vector<std::string> lines;
    for (int i = 0; i < 3; ++i) {
      lines.push_back(completion_line(fmt::format("{}{}", id, i), id, random_prompt(kModels[0], 9, 40 + i), 6));
    }
    return lines;
  };
  ServeJob job{.tp = 2, .page_size = "32KiB"};
  job.device_memory = "3MiB";  // models take turns
  job.models = {{"a", folder / "one.h5"}, {"b", folder / "other.h5"}, {"c", folder / "one.h5"}};
  for (const char* id : {"a", "b", "c"}) {
    for (const std::string& line : lines_for(id)) job.lines.push_back(line);
  }
  for (const char* pages : {"shared", "private"}) {
    ServeJob both = job;
    both.more = {"--host-pages", pages};
    const Served together = serve_ok(both, folder);
    for (const ServedFile& model : job.models) {
      ServeJob alone = job;
      alone.models = {model};
      alone.lines = lines_for(model.id);
      const Served one = serve_ok(alone, folder);
      for (int i = 0; i < 3; ++i) {
        const std::string id = fmt::format("{}{}", model.id, i);
        EXPECT_EQ(together.results.choice(id), one.results.choice(id)) << id;
      }
    }
  }
}

// The table of bytes says it, in a dry run as in a job, and so does what is loaded.
TEST(HostPages, TableCountsEqualPagesOnce) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "one.h5", kModels[0]);
  write_lines(folder / "requests.jsonl", {completion_line("r", "a", random_prompt(kModels[0], 9, 1), 3)});
  const std::string one = (folder / "one.h5").string();
  const auto log_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {served_program(),  "serve",
                                        "--model",         "a=" + one,
                                        "--device",        "cpu",
                                        "--page-size",     "32KiB",
                                        "--requests",      folder / "requests.jsonl",
                                        "--output",        folder / "out.jsonl",
                                        "--device-memory", "8MiB"};
    command.insert(command.end(), more.begin(), more.end());
    const JobOutcome outcome = run_job(/*ranks=*/2, command, folder / "", healthy_limit_s());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
    return outcome.errors;
  };
  const auto has = [](const std::string& log, const char* what) { return log.find(what) != std::string::npos; };
  const std::string dry = log_of({"--model", "c=" + one, "--dry-run"});
  EXPECT_TRUE(has(dry, "the pages of a") && has(dry, "equal pages are held once")) << dry;
  const std::string alone = log_of({"--dry-run"});
  EXPECT_FALSE(has(alone, "the pages of") || has(alone, "equal pages")) << alone;
  const std::string served = log_of({"--model", "c=" + one});
  EXPECT_TRUE(has(served, "the pages of a") && has(served, "equal pages are held once")) << served;
  EXPECT_TRUE(has(served, "loaded a (1/2)") && !has(served, "loaded c")) << served;
}

// The sizes, in bytes, that stand where `pattern` has groups: a number and a unit of format_size() each.
std::vector<double> sizes_in(const std::string& text, const std::string& pattern) {
  static const std::map<std::string, double> units = {{"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
  std::smatch match;
  std::vector<double> sizes;
  if (!std::regex_search(text, match, std::regex(pattern))) return sizes;
  for (std::size_t i = 1; i + 1 < match.size(); i += 2) sizes.push_back(std::stod(match[i]) * units.at(match[i + 1]));
  return sizes;
}

// A request of a model "a" on a rank that says what it does, as those of serve() do not.
JobOutcome run_aloud(const std::string& program, const TinyModel& model, const std::vector<std::string>& more) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "one.h5", model);
  write_lines(folder / "requests.jsonl", {completion_line("r", "a", random_prompt(model, 9, 1), 3)});
  std::vector<std::string> command = {program, "serve", "--model", "a=" + (folder / "one.h5").string()};
  command.insert(command.end(), {"--requests", folder / "requests.jsonl", "--output", folder / "out.jsonl"});
  command.insert(command.end(), more.begin(), more.end());
  JobOutcome outcome = run_job(/*ranks=*/1, command, folder / "", healthy_limit_s());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  return outcome;
}

// A sample of the files tells it before anything is loaded: the table of bytes, which memory is admitted by, and a dry
// run, which loads nothing at all.
TEST(HostPages, TableAndDryRunSayWhatCodedPagesTake) {
  const auto run = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--device", "cpu", "--page-size", "32KiB", "--device-memory", "8MiB"});
    return run_aloud(served_program(), kModels[0], more);
  };
  const std::string size = R"(([\d.]+) (\w+))", table = "kept coded: " + size + " in all instead of " + size;
  const JobOutcome dry = run({"--coded", "on", "--dry-run"}), served = run({"--coded", "on"});
  const std::vector<double> planned = sizes_in(dry.errors, table);
  ASSERT_EQ(planned.size(), 2u) << dry.errors;
  EXPECT_LT(planned[0], 0.95 * planned[1]) << "weights of normal distribution gain";
  const std::vector<double> linked =
      sizes_in(dry.output, "coded pages of " + size + " take " + size + " over the links");
  ASSERT_EQ(linked.size(), 2u) << dry.output;
  EXPECT_NEAR(linked[0] / planned[1], 1, 0.05) << "held in whole pages of the system";
  EXPECT_NEAR(linked[1] / planned[0], 1, 0.03) << "memory is admitted with a margin";
  EXPECT_EQ(sizes_in(served.errors, table), planned);
  const std::vector<double> loaded = sizes_in(served.errors, "kept coded in " + size);
  ASSERT_EQ(loaded.size(), 1u) << served.errors;
  EXPECT_NEAR(loaded[0] / linked[1], 1, 0.03);
  EXPECT_TRUE(sizes_in(run({"--coded", "off", "--dry-run"}).errors, table).empty());
}

// Copies are injected that are as fast as computing but for what each costs by itself: so raw pages are best of 2 MiB.
// Coded ones come faster than they are computed with, so that smaller ones are better.
TEST(HostPages, SizeThatIsChosenCountsWhatTheyTakeOverTheLink) {
  const TinyModel model{.layers = 4, .heads = 4, .head_dim = 64, .ffn = 1024, .vocab = 512, .seed = 33};
  const auto log_of = [&](const std::string& coded) {
    return run_aloud(injected_program(), model,
                     {"--device", "cpu", "--page-size", "auto", "--device-memory", "64MiB", "--dry-run", "--coded",
                      coded, "--inject-copy-s", "2e-5"})
        .errors;
  };
  const std::string size = R"(([\d.]+) (\w+))", chosen = "pages of " + size + ": a copy takes";
  const std::string estimate = "of coded pages " + size + " take " + size + " over the links";
  const std::string raw = log_of("off"), coded = log_of("on");
  EXPECT_EQ(sizes_in(raw, chosen), std::vector{0x1p21}) << raw;
  EXPECT_TRUE(sizes_in(raw, estimate).empty()) << raw;
  EXPECT_EQ(sizes_in(coded, chosen), std::vector{0x1p20}) << coded;
  const std::vector<double> bytes = sizes_in(coded, estimate);
  ASSERT_EQ(bytes.size(), 2u) << coded;
  EXPECT_NEAR(bytes[1] / bytes[0], 0.86, 0.04) << "float32 weights of normal distribution";
}

}  // namespace
}  // namespace computron::test

// Three models and device memory for one: nothing but the time may tell.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>

#include "tests/apps/serve_job.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

using nlohmann::json;

constexpr int kPageKib = 64;
constexpr int kLandingPages = 2;  // of a GPU's pool, with coded pages
constexpr int kRequests = 18;

const TinyModel kModels[] = {
    {.layers = 4, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 192, .seed = 21},
    {.layers = 4, .heads = 4, .head_dim = 24, .ffn = 320, .vocab = 192, .dtype = DType::kBF16, .seed = 22},
    {.layers = 4, .heads = 5, .head_dim = 12, .ffn = 200, .vocab = 131, .dtype = DType::kF16, .seed = 23},
};

// What a client sees of an answer: text equality of numbers is equality of bits.
std::string answer(const Results& results, const std::string& id) {
  const json& choice = results.choice(id);
  return json{choice.at("token_ids"), choice.at("logprobs"), choice.at("finish_reason")}.dump();
}

std::map<std::string, std::string> answers(const Results& results) {
  std::map<std::string, std::string> all;
  for (const std::string& id : results.custom_ids()) all[id] = answer(results, id);
  return all;
}

struct Mesh {
  int tp, pp;
  int frames;  // of a pool for the largest model and the cache, but for no second model
};

class Swap : public ::testing::TestWithParam<Mesh> {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    for (int m = 0; m < 3; ++m) write_tiny_checkpoint(file(m).path, kModels[m]);
  }
  static void TearDownTestSuite() {
    folder_.reset();
    resident_.clear();
    one_by_one_.clear();
  }
  static ServedFile file(int m) { return {name(m), *folder_ / (name(m) + ".h5")}; }
  static std::string name(int m) { return fmt::format("model{}", m); }

  // Request i is for model i mod 3, so that in order of arrival every turn is another model's.
  static std::string line(int i) {
    return completion_line(fmt::format("r{}", i), name(i % 3), random_prompt(kModels[i % 3], 1 + i * 7 % 23, i), 6,
                           {{"logprobs", 3}, {"echo", i % 2 == 1}, {"ignore_eos", true}});
  }
  static std::vector<std::string> all_lines() {
    std::vector<std::string> lines;
    for (int i = 0; i < kRequests; ++i) lines.push_back(line(i));
    return lines;
  }

  ServeJob job(int frames) const {
    ServeJob job{.tp = GetParam().tp, .pp = GetParam().pp, .lines = all_lines()};
    for (int m = 0; m < 3; ++m) job.models.push_back(file(m));
    job.device_memory = fmt::format("{}KiB", frames * kPageKib);
    job.page_size = fmt::format("{}KiB", kPageKib);
    return job;
  }
  ServeJob resident_job() const {
    ServeJob resident = job(200);
    resident.more = {"--coded", "off"};
    return resident;
  }
  ServeJob swapping_job() const {
    ServeJob swapping = job(GetParam().frames);
    swapping.more = {"--max-seqs", "1", "--policy", "fifo"};
    return swapping;
  }

  // The answers of the resident job; one run a mesh.
  const std::map<std::string, std::string>& resident() const {
    auto& known = resident_[{GetParam().tp, GetParam().pp}];
    if (known.empty()) known = answers(serve_ok(resident_job(), *folder_).results);
    return known;
  }

  // The same where each request is alone: what a device answers that may compute otherwise in other batches.
  const Served& resident_one_by_one() const {
    auto& known = one_by_one_[{GetParam().tp, GetParam().pp}];
    if (!known) {
      ServeJob one_by_one = resident_job();
      one_by_one.more = {"--max-seqs", "1", "--policy", "fifo"};
      known = serve_ok(one_by_one, *folder_);
    }
    return *known;
  }
  // Every page is verified; where the GPU is emulated, the last rank's link damages one.
  static void verify_on_bad_link(ServeJob& job) {
    job.more.insert(job.more.end(), {"--verify-swap", "every"});
    if (!on_emulated_gpu()) return;
    job.program = injected_program();
    const int last_rank = GetParam().tp * GetParam().pp - 1;
    job.more.insert(job.more.end(), {"--inject-flip", fmt::format("{}:60", last_rank)});
  }
  static void expect_verified(const json& swaps) {
    EXPECT_EQ(swaps.at("verified"), swaps.at("pages"));
    EXPECT_EQ(swaps.at("refetched"), on_emulated_gpu() ? 1 : 0);
  }

  static std::unique_ptr<TemporaryFolder> folder_;
  static std::map<std::pair<int, int>, std::map<std::string, std::string>> resident_;  // by tp and pp
  static std::map<std::pair<int, int>, std::optional<Served>> one_by_one_;
};

std::unique_ptr<TemporaryFolder> Swap::folder_;
std::map<std::pair<int, int>, std::map<std::string, std::string>> Swap::resident_;
std::map<std::pair<int, int>, std::optional<Served>> Swap::one_by_one_;

TEST_P(Swap, DamageOnTheLinkIsMended) {
  ServeJob damaged = swapping_job();
  damaged.program = injected_program();
  const int last_rank = GetParam().tp * GetParam().pp - 1;
  damaged.more.insert(damaged.more.end(), {"--verify-swap", "every", "--inject-flip", fmt::format("{}:60", last_rank)});
  damaged.more.insert(damaged.more.end(), {"--coded", "on"});
  const Served mended = serve_ok(damaged, *folder_);
  EXPECT_EQ(answers(mended.results), resident());
  EXPECT_EQ(mended.metrics.at("swaps").at("refetched"), 1);
  EXPECT_EQ(mended.metrics.at("swaps").at("verified"), mended.metrics.at("swaps").at("pages"));
}

TEST_P(Swap, SwappedIsResident) {
  if (on_cpu()) GTEST_SKIP() << "DamageOnTheLinkIsMended says the same";
  const bool coded = GetParam().tp == 1;  // and raw pages with more
  ServeJob swapping = job(GetParam().frames + (coded ? kLandingPages : 0));
  swapping.more = swapping_job().more;
  swapping.more.insert(swapping.more.end(), {"--coded", coded ? "on" : "off"});
  verify_on_bad_link(swapping);
  const Served swapped = serve_ok(swapping, *folder_);
  EXPECT_EQ(answers(swapped.results), answers(resident_one_by_one().results));
  const json& swaps = swapped.metrics.at("swaps");
  EXPECT_GT(swaps.at("count"), 3);
  EXPECT_EQ(swaps.at("link_bytes") < swaps.at("bytes"), coded);
  expect_verified(swaps);
}

// Pages take turns within a pass.
TEST_P(Swap, StreamedIsResident) {
  if (on_cpu()) GTEST_SKIP() << "Residency and PartlyResident say the same";
  ServeJob streaming = job(GetParam().frames / 2);
  const char* policy = GetParam().tp > 1 ? "throughput" : GetParam().pp > 1 ? "fifo" : "balanced";
  streaming.more = {"--max-seqs", "1", "--policy", policy, "--coded", "off"};
  verify_on_bad_link(streaming);
  const Served streamed = serve_ok(streaming, *folder_);
  EXPECT_EQ(answers(streamed.results), answers(resident_one_by_one().results));
  expect_verified(streamed.metrics.at("swaps"));
  const auto of_largest = [](const Served& served, const char* key) -> int {
    return served.metrics.at("models").at(name(0)).at("swaps").at(key);
  };
  EXPECT_GT(of_largest(streamed, "pages"), of_largest(streamed, "count") * of_largest(resident_one_by_one(), "pages"));
}

TEST_P(Swap, PagesAndThreadsLeaveNoTraceEither) {
  ServeJob other = resident_job();
  other.page_size = "192KiB";
  other.threads = 2;
  other.more = {"--coded", "on", "--host-pages", "private"};
  EXPECT_EQ(answers(serve_ok(other, *folder_).results), resident());
}

// Every machine decodes faster than a link of 50 MB/s carries.
TEST_P(Swap, AutoCodesPagesWhereTheLinkIsSlow) {
  if (GetParam().pp > 1) GTEST_SKIP() << "ranks vote alike on every mesh";
  ServeJob slow = swapping_job();
  slow.more.insert(slow.more.end(), {"--link-gbps", "0.05"});
  const Served served = serve_ok(slow, *folder_);
  EXPECT_EQ(answers(served.results), resident());
  EXPECT_EQ(served.metrics.at("link").at("coded"), true);
  EXPECT_LT(served.metrics.at("swaps").at("link_bytes"), served.metrics.at("swaps").at("bytes"));
}

// The resident job serves six requests of a model as one batch; here each is alone.
TEST_P(Swap, AloneOrInABatchIsTheSame) {
  ServeJob alone = resident_job();
  alone.more.insert(alone.more.end(), {"--max-seqs", "1"});
  EXPECT_EQ(answers(serve_ok(alone, *folder_).results), resident());
}

INSTANTIATE_TEST_SUITE_P(Meshes, Swap, ::testing::Values(Mesh{1, 1, 24}, Mesh{2, 1, 14}, Mesh{1, 2, 14}, Mesh{2, 2, 9}),
                         [](const auto& test) { return fmt::format("tp{}pp{}", test.param.tp, test.param.pp); });

class Metrics : public Swap {};

double sum_over_models(const json& metrics, const char* group, const char* key) {
  double sum = 0;
  for (const auto& [id, of_model] : metrics.at("models").items()) sum += of_model.at(group).at(key).get<double>();
  return sum;
}

TEST_P(Metrics, HaveTheKeysPeopleRelyOn) {
  const json metrics = serve_ok(swapping_job(), *folder_).metrics;
  const std::map<std::string, std::vector<std::string>> keys = {
      {"mesh", {"ranks", "tp", "pp", "groups"}},
      {"link", {"gb_per_s_per_rank", "emulated", "coded"}},
      {"requests", {"total", "ok", "failed"}},
      {"tokens", {"prompt", "generated", "generated_per_s"}},
      {"latency_s", {"mean", "p50", "p90", "p99", "max"}},
      {"ttft_s", {"mean", "p50", "p90", "p99", "max"}},
      {"swaps",
       {"count", "pages", "bytes", "busy_s", "exposed_s", "gb_per_s_per_rank", "link_fraction", "verified",
        "refetched"}},
      {"steps", {"count", "passes", "graphs", "rides", "mean_us", "overhead_us", "compute_s"}}};
  EXPECT_TRUE(metrics.contains("wall_s") && metrics.contains("device"));
  for (const auto& [group, names] : keys) {
    for (const auto& name : names) {
      ASSERT_TRUE(metrics.contains(group) && metrics.at(group).contains(name)) << group << "." << name;
    }
  }
  ASSERT_EQ(metrics.at("models").size(), 3u);
  for (const auto& [id, of_model] : metrics.at("models").items()) {
    for (const char* group : {"requests", "tokens", "latency_s", "ttft_s", "swaps", "steps"}) {
      EXPECT_TRUE(of_model.contains(group)) << id << "." << group;
    }
  }
  EXPECT_EQ(metrics.at("mesh").at("ranks"), GetParam().tp * GetParam().pp);
  EXPECT_EQ(metrics.at("mesh").at("tp"), GetParam().tp);
  EXPECT_EQ(metrics.at("mesh").at("pp"), GetParam().pp);
}

TEST_P(Metrics, AddUp) {
  ServeJob emulated = swapping_job();
  emulated.more.insert(emulated.more.end(), {"--link-gbps", "0.5"});
  const json metrics = serve_ok(emulated, *folder_).metrics;
  for (const char* key : {"total", "ok", "failed"}) {
    EXPECT_EQ(metrics.at("requests").at(key).get<double>(), sum_over_models(metrics, "requests", key)) << key;
  }
  for (const char* key : {"count", "pages", "bytes"}) {
    EXPECT_EQ(metrics.at("swaps").at(key).get<double>(), sum_over_models(metrics, "swaps", key)) << key;
  }
  EXPECT_EQ(metrics.at("requests").at("ok"), kRequests);
  EXPECT_EQ(metrics.at("tokens").at("generated"), 6 * kRequests);
  int prompt_tokens = 0;
  for (int i = 0; i < kRequests; ++i) prompt_tokens += 1 + i * 7 % 23;
  EXPECT_EQ(metrics.at("tokens").at("prompt"), prompt_tokens);

  const json& swaps = metrics.at("swaps");
  EXPECT_GT(swaps.at("busy_s"), 0);
  EXPECT_LE(swaps.at("exposed_s").get<double>(), metrics.at("wall_s").get<double>());
  EXPECT_LE(swaps.at("bytes").get<double>(), swaps.at("pages").get<double>() * kPageKib * 1024);
  const json& steps = metrics.at("steps");
  EXPECT_GT(steps.at("compute_s"), 0);
  EXPECT_LE(steps.at("compute_s").get<double>(), metrics.at("wall_s").get<double>());
  // A rank computes or waits. With several, the busiest one need not be the one that waited the longest.
  if (GetParam().tp == 1) {
    EXPECT_LE(steps.at("compute_s").get<double>() + swaps.at("exposed_s").get<double>(),
              metrics.at("wall_s").get<double>());
  }
  EXPECT_LE(steps.at("compute_s").get<double>(), sum_over_models(metrics, "steps", "compute_s") * (1 + 1e-12));
  EXPECT_EQ(metrics.at("link").at("emulated"), true);
  EXPECT_DOUBLE_EQ(metrics.at("link").at("gb_per_s_per_rank").get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(swaps.at("link_fraction").get<double>(), swaps.at("gb_per_s_per_rank").get<double>() / 0.5);
}

// With room for all, each model is fetched once, whole; without, as often as it is its turn and never more than whole.
TEST_P(Metrics, BytesAreThoseOfTheModels) {
  const json once = serve_ok(resident_job(), *folder_).metrics;
  const json often = serve_ok(swapping_job(), *folder_).metrics;
  EXPECT_EQ(once.at("swaps").at("count"), std::size(kModels));
  EXPECT_EQ(often.at("swaps").at("count"), kRequests);
  for (const auto& [id, of_model] : once.at("models").items()) {
    const double whole = of_model.at("swaps").at("bytes");
    const double fetched = often.at("models").at(id).at("swaps").at("bytes");
    EXPECT_GT(whole, 0) << id;
    EXPECT_GT(fetched, whole) << id;
    EXPECT_LE(fetched, whole * kRequests / 3) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Metrics, ::testing::Values(Mesh{1, 1, 24}, Mesh{2, 1, 14}),
                         [](const auto& test) { return fmt::format("tp{}", test.param.tp); });

}  // namespace
}  // namespace computron::test

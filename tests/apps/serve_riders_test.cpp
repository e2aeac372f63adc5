// Many adapters of one base in one job: their sequences are in one pass, and each has the bits that it has alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "computron/model/config.h"
#include "tests/apps/serve_job.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

struct Case {
  const char* name;
  int tp = 1, pp = 1;
  const char* policy = "balanced";
  DType dtype = DType::kF32;
  bool reproducible = false;
};

// OPT has biases, and an activation behind a product that some rows' adapters change and others' do not.
const TinyModel kBase{.layers = 3, .heads = 8, .head_dim = 8, .ffn = 128, .vocab = 300, .max_positions = 128};
constexpr int kAdapters = 5;

class ServeRiders : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
    TinyModel base = kBase;
    base.dtype = GetParam().dtype;
    write_tiny_checkpoint(path("base"), base);
    const ModelConfig config = opt_config(base);
    const auto changes = [](int adapter) {
      return [adapter](const std::string& weight) {
        const bool mlp = weight.find(".mlp.") != std::string::npos;
        return adapter % 3 == 0 || (adapter % 3 == 1) == mlp;  // all, those of MLPs, those of attention
      };
    };
    for (int i = 0; i < kAdapters; ++i) {
      write_random_adapter(path(name(i)), config,
                           {.rank = static_cast<std::size_t>(3 + 4 * i),
                            .seed = static_cast<std::uint64_t>(50 + i),
                            .changes = changes(i)});
    }
  }

  static std::string name(int adapter) { return fmt::format("adapter{}", adapter); }
  std::string path(const std::string& file) const { return (folder_ / (file + ".h5")).string(); }

  ServeJob job(const std::string& policy) const {
    ServeJob job{.tp = GetParam().tp, .pp = GetParam().pp, .device_memory = "8MiB", .page_size = "32KiB"};
    job.models.push_back({"base", path("base")});
    for (int i = 0; i < kAdapters; ++i) job.models.push_back({name(i), path("base") + "+" + path(name(i))});
    job.more = {"--policy", policy};
    if (GetParam().reproducible) job.more.emplace_back("--reproducible");
    return job;
  }

  // One that is sampled among them.
  static std::string line(const std::string& model, int number) {
    nlohmann::json more = {{"ignore_eos", true}, {"logprobs", 2}};
    if (number == 1) more.update({{"temperature", 0.8}, {"seed", 7}});
    return completion_line(fmt::format("{}.{}", model, number), model, random_prompt(kBase, 5 + 9 * number, 3), 24,
                           more);
  }

  TemporaryFolder folder_;
};

TEST_P(ServeRiders, HaveTheBitsThatTheyHaveAlone) {
  ServeJob all = job(GetParam().policy), one_by_one = job("fifo");
  for (int i = 0; i < 3; ++i) {
    for (const ServedFile& model : all.models) all.lines.push_back(line(model.id, i));
  }
  one_by_one.lines = all.lines;
  one_by_one.more.insert(one_by_one.more.end(), {"--max-seqs", "1"});
  const Served alone = serve_ok(one_by_one, folder_), together = serve_ok(all, folder_);
  EXPECT_GE(alone.metrics.at("steps").at("passes").get<int>(), 18 * 24) << "of a sequence each";
  for (int i = 0; i < 3; ++i) {
    for (const ServedFile& model : all.models) {
      const std::string id = fmt::format("{}.{}", model.id, i);
      EXPECT_EQ(together.results.choice(id).dump(), alone.results.choice(id).dump()) << id;
    }
  }
  EXPECT_NE(alone.results.tokens("base.0"), alone.results.tokens("adapter0.0")) << "the adapter changes nothing";
  const auto& steps = together.metrics.at("steps");
  EXPECT_GE(steps.at("rides").get<int>(), 60) << steps.dump();
  EXPECT_LE(steps.at("passes").get<int>(), 24 * GetParam().pp + 40) << "18 sequences of 24 tokens each";
}

INSTANTIATE_TEST_SUITE_P(Meshes, ServeRiders,
                         ::testing::Values(Case{"tp1pp1"}, Case{"tp1pp1Throughput", 1, 1, "throughput"},
                                           Case{"tp1pp1Bf16", 1, 1, "balanced", DType::kBF16}, Case{"tp2pp1", 2, 1},
                                           Case{"tp1pp2", 1, 2}, Case{"tp1pp2Throughput", 1, 2, "throughput"},
                                           Case{"tp2pp2", 2, 2, "balanced", DType::kBF16},
                                           Case{"tp2pp1Reproducible", 2, 1, "balanced", DType::kF32, true}),
                         [](const auto& mesh) { return mesh.param.name; });

// What an adapter holds whole has the type that it was saved in. Such a model computes alone: its base is another.
TEST(ServeNoRiders, WhoseAdaptersHoldTensorsWhole) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  TinyModel base = kBase;
  base.dtype = DType::kBF16;
  base.tied_head = false;
  write_tiny_checkpoint(path("base.h5"), base);
  const auto is_mlp = [](const std::string& name) { return name.find(".mlp.") != std::string::npos; };
  const auto is_head = [](const std::string& name) { return name == "head.weight" || name.ends_with("norm.weight"); };
  write_random_adapter(path("whole.h5"), opt_config(base), {.changes = is_mlp, .replaces = is_head});
  write_random_adapter(path("thin.h5"), opt_config(base), {.seed = 2, .changes = is_mlp});
  ServeJob job{.models = {{"base", path("base.h5")},
                          {"whole", path("base.h5") + "+" + path("whole.h5")},
                          {"thin", path("base.h5") + "+" + path("thin.h5")}}};
  for (const ServedFile& model : job.models) {
    job.lines.push_back(completion_line(model.id, model.id, {5, 6, 7}, 30, {{"ignore_eos", true}}));
  }
  const Served served = serve_ok(job, folder);
  const auto& models = served.metrics.at("models");
  EXPECT_EQ(models.at("whole").at("steps").at("rides"), 0);
  EXPECT_GT(models.at("base").at("steps").at("rides").get<int>() + models.at("thin").at("steps").at("rides").get<int>(),
            5);
  EXPECT_NE(served.results.tokens("whole"), served.results.tokens("base"));
}

// The paper's policy runs one model's batch at a time.
TEST(ServeNoRiders, WhereThePolicyRunsOneModelsBatch) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  const TemporaryFolder folder;
  const std::string base = (folder / "base.h5").string(), adapter = (folder / "a.h5").string();
  write_tiny_checkpoint(base, kBase);
  write_random_adapter(adapter, opt_config(kBase), {});
  ServeJob job{.models = {{"base", base}, {"a", base + "+" + adapter}}, .more = {"--policy", "fifo"}};
  for (const char* model : {"base", "a"}) job.lines.push_back(completion_line(model, model, {5, 6, 7}, 8));
  EXPECT_EQ(serve_ok(job, folder).metrics.at("steps").at("rides"), 0);
}

}  // namespace
}  // namespace computron::test

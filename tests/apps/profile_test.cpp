// computron profile: sizes of passes, what it writes, what it refuses, and the dry run that believes it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "computron/placement/profile_file.h"
#include "src/apps/profile_passes.h"
#include "src/apps/profile_shapes.h"
#include "tests/apps/program.h"
#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const TinyModel kOpt{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 128, .max_positions = 64};

// Multiplications and additions of a row in one of two layers, and in the embedding or the head.
constexpr double kLayerFlops = 2.0 * (4 * 64 * 64 + 2 * 64 * 96), kVocabularyFlops = 2.0 * 128 * 64;

std::vector<int> rows_of(const std::vector<PassClass>& classes, bool decodes) {
  std::vector<int> rows;
  for (const PassClass& pass : classes) {
    if (pass.decodes == decodes) rows.push_back(pass.rows);
  }
  return rows;
}

TEST(PassClasses, ArePowersOfTwoOfSequencesAndThenOfPrompts) {
  const ModelConfig config = opt_config({.max_positions = 2048});
  const auto classes = pass_classes(config, {.max_seqs = 8, .max_batch_tokens = 500, .context = 100}, /*pp=*/1);
  EXPECT_THAT(rows_of(classes, /*decodes=*/true), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(rows_of(classes, /*decodes=*/false), ElementsAre(16, 32, 64, 128, 256));
  EXPECT_EQ(classes.back().tokens, 64);  // prompts as long as the context, if that is a power of two
  EXPECT_EQ(classes.back().sequences, 4);
}

// As many sequences for each stage, and never more than run together: longer prompts then, of which the model takes so
// many.
TEST(PassClasses, KeepAllStagesBusyWithinTheLimits) {
  const ModelConfig config = opt_config({.max_positions = 100});
  const auto classes = pass_classes(config, {.max_seqs = 6, .max_batch_tokens = 4096, .context = 16}, /*pp=*/2);
  EXPECT_THAT(rows_of(classes, /*decodes=*/true), ElementsAre(1, 2));
  EXPECT_EQ(classes[1].sequences, 4);
  EXPECT_THAT(rows_of(classes, /*decodes=*/false), ElementsAre(4, 8, 16, 32, 64, 128));
  EXPECT_EQ(classes[5].tokens, 16);
  EXPECT_EQ(classes[5].sequences, 4);
  EXPECT_EQ(classes.back().tokens, 64);
  EXPECT_EQ(classes.back().sequences, 4);
  const auto few = pass_classes(config, {.max_seqs = 2, .max_batch_tokens = 1, .context = 16}, /*pp=*/4);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_EQ(few[0].sequences, 2);
}

TEST(PassClasses, OfEncodersAreInputs) {
  ModelConfig config = opt_config({.max_positions = 64});
  config.causal = false;
  const ProfileLimits limits{.max_seqs = 4, .max_batch_tokens = 256, .context = 32};
  const auto texts = pass_classes(config, limits, /*pp=*/1);
  EXPECT_THAT(rows_of(texts, /*decodes=*/true), IsEmpty());
  EXPECT_THAT(rows_of(texts, /*decodes=*/false), ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 256));
  EXPECT_EQ(texts.back().tokens, 64);
  config.image_size = 8, config.patch_size = 2, config.channels = 3;
  const auto images = pass_classes(config, limits, /*pp=*/1);
  EXPECT_THAT(rows_of(images, /*decodes=*/false), ElementsAre(17, 34, 68));
  EXPECT_EQ(images.back().sequences, 4);
}

// A formula that says 1 s a byte, on a shape of which one size was measured at twice that.
TEST(ProfileOfAShape, FillsInWhatWasNotMeasured) {
  ShapeMeasurement shape{.shape = {1, 1},
                         .sizes = {.stage_s = {}, .stage_bytes = {10}},
                         .stages = {{.weight_bytes = 3}},
                         .classes = {{.rows = 1, .decodes = true}, {.rows = 2, .decodes = true}, {.rows = 4}},
                         .passes = {}};
  const PassSample sample{{1, 1}, {{.weight_bytes = 3}, 1, 0}, 3};
  const PassFormula formula = PassFormula::fit({&sample, 1});
  const RequestSize request{.prompt = 3, .generated = 5};
  const ShapeProfile guessed = profile_of(shape, formula, request, /*max_batch_tokens=*/64);
  EXPECT_FALSE(guessed.measured);
  EXPECT_THAT(guessed.stage_s, ElementsAre(15));
  EXPECT_THAT(guessed.stage_bytes, ElementsAre(10));
  shape.passes = {{.of = shape.classes[1], .context = 0, .stage_s = {6}},
                  {.of = shape.classes[2], .context = 0, .stage_s = {8}}};
  const ShapeProfile profile = profile_of(shape, formula, request, /*max_batch_tokens=*/64);
  EXPECT_TRUE(profile.measured);
  ASSERT_EQ(profile.passes.size(), 3u);
  EXPECT_THAT(profile.passes[0].stage_s, ElementsAre(6));
  EXPECT_THAT(profile.passes[1].stage_s, ElementsAre(6));
  EXPECT_THAT(profile.passes[2].stage_s, ElementsAre(8));
  EXPECT_THAT(profile.stage_s, ElementsAre(7 + 4 * 6)) << "a prompt of 3, and 4 tokens behind the first";
}

ShapeProfile sizes(std::vector<std::int64_t> stage_bytes, std::vector<std::int64_t> link_bytes, bool measured) {
  return {
      .stage_s = {}, .stage_bytes = std::move(stage_bytes), .link_bytes = std::move(link_bytes), .measured = measured};
}

// 120 of 160 bytes are left of two shapes, one of which gains nothing.
TEST(LinkBytesOfAModel, AreFilledInWhereNoRankHasLoadedIt) {
  ModelProfile model{.id = "a",
                     .shapes = {{{1, 1}, sizes({100}, {60}, /*measured=*/true)},
                                {{1, 2}, sizes({30, 30}, {}, /*measured=*/true)},
                                {{2, 2}, sizes({200, 10}, {}, /*measured=*/false)},
                                {{4, 1}, sizes({0}, {}, /*measured=*/false)}}};
  fill_in_link_bytes(model);
  EXPECT_THAT(model.shapes.at({2, 2}).link_bytes, ElementsAre(150, 8)) << "to the nearest byte";
  EXPECT_THAT(model.shapes.at({4, 1}).link_bytes, ElementsAre(0));
  EXPECT_THAT(model.shapes.at({1, 1}).link_bytes, ElementsAre(60));
  EXPECT_THAT(model.shapes.at({1, 2}).link_bytes, IsEmpty()) << "what was measured stays";
}

TEST(LinkBytesOfAModel, AreNotFilledInWherePagesAreRawOrUnknown) {
  ModelProfile raw{
      .id = "a",
      .shapes = {{{1, 1}, sizes({100}, {}, /*measured=*/true)}, {{2, 1}, sizes({50}, {}, /*measured=*/false)}}};
  fill_in_link_bytes(raw);
  EXPECT_THAT(raw.shapes.at({2, 1}).link_bytes, IsEmpty());
  ModelProfile unknown{.id = "a", .shapes = {{{2, 1}, sizes({50}, {}, /*measured=*/false)}}};
  fill_in_link_bytes(unknown);
  EXPECT_THAT(unknown.shapes.at({2, 1}).link_bytes, IsEmpty());
}

class Profile : public ::testing::Test {
 protected:
  Profile() { write_tiny_checkpoint(model(), kOpt); }

  std::filesystem::path model() const { return folder_ / "opt.h5"; }
  std::filesystem::path file() const { return folder_ / "profiles.json"; }

  std::vector<std::string> command(const std::string& program, std::vector<std::string> more) const {
    std::vector<std::string> all{program, "profile",  "--model", "a=" + model().string(), "--threads",
                                 "1",     "--device", "cpu",     "--page-size",           "64KiB"};
    for (const char* option : {"--max-seqs", "--max-batch-tokens", "--prompt-tokens"}) {
      if (std::ranges::find(more, option) == more.end()) all.insert(all.end(), {option, "4"});
    }
    if (std::ranges::find(more, "--output") == more.end()) all.insert(all.end(), {"--output", file().string()});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  JobOutcome profile(int ranks, std::vector<std::string> more, const std::string& program = served_program()) const {
    return run_job(ranks, command(program, std::move(more)), folder_ / ".", healthy_limit_s());
  }

  TemporaryFolder folder_;
};

// An emulated processor never ends a pass before its time. How much later it does is the machine's affair.
TEST_F(Profile, MeasuresEmulatedProcessors) {
  const double flops = 2 * (kLayerFlops + kVocabularyFlops);  // of a row on one rank
  const double rate = flops / 12e-3;
  const JobOutcome outcome = profile(2,
                                     {"--model", "b=" + model().string(), "--shapes", "1x1,2x1,1x2,4x1", "--max-seqs",
                                      "2", "--max-tokens", "3", "--inject-gflops", fmt::format("{}", 1e-9 * rate)},
                                     injected_program());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("b is like a"));
  EXPECT_THAT(outcome.output, HasSubstr("formula: of "));
  const ProfileFile profiles = read_profiles(file());
  ASSERT_EQ(profiles.models.size(), 2u);
  EXPECT_EQ(profiles.machine.page_bytes, 64 << 10);
  EXPECT_EQ(profiles.machine.ranks_per_node, 2);
  EXPECT_GT(profiles.machine.device_bytes, 0);
  EXPECT_GT(profiles.machine.host_bytes, 0);
  EXPECT_GT(profiles.machine.link_bytes_per_s, 0);
  for (const ModelProfile& model : profiles.models) {
    ASSERT_EQ(model.shapes.size(), 4u);
    for (const auto& [shape, profile] : model.shapes) {
      EXPECT_EQ(profile.measured, shape.ranks() <= 2);
      EXPECT_EQ(profile.stage_bytes.size(), static_cast<std::size_t>(shape.pp));
      // Keys and values of float32: 64 numbers each, of two layers.
      EXPECT_EQ(profile.cache_token_bytes.front(), 2 * 4 * 64 * 2 / shape.ranks());
      EXPECT_GT(std::ranges::min(profile.operation_bytes), 0);
      ASSERT_EQ(profile.passes.size(), 3u);
      if (!profile.measured) continue;
      for (const PassTimes& pass : profile.passes) {
        for (const float stage_s : pass.stage_s) {
          const double expected_s = pass.rows * flops / rate / shape.ranks();
          const std::string which = fmt::format("{} rows at {} x {}", pass.rows, shape.tp, shape.pp);
          EXPECT_GE(stage_s / expected_s, 1 - 1e-3) << which;
        }
      }
    }
    const ShapeProfile& alone = model.shapes.at({1, 1});
    EXPECT_FLOAT_EQ(alone.stage_s[0], alone.passes[2].stage_s[0] + 2 * alone.passes[0].stage_s[0]);
  }

  // A prompt of four tokens, and ten more, on two ranks: what the profile says, not what this machine would take.
  ServeJob dry{.tp = 2, .models = {{"a", model()}}, .lines = {completion_line("r", "a", {1, 2, 3, 4}, 11)}};
  dry.more = {"--dry-run", "--profiles", file().string()};
  const Served planned = serve(dry, folder_);
  ASSERT_EQ(planned.job.exit_code, 0) << planned.job.errors;
  EXPECT_THAT(planned.job.errors, Not(HasSubstr("formula")));
  const ShapeProfile& cut = profiles.models[0].shapes.at({2, 1});
  const double expected_s = cut.passes[2].stage_s[0] + 10 * cut.passes[0].stage_s[0];
  double predicted_s = 0;
  const std::size_t at = planned.job.output.find("refused) in ");
  ASSERT_NE(at, std::string::npos) << planned.job.output;
  ASSERT_EQ(std::sscanf(planned.job.output.c_str() + at, "refused) in %lf s", &predicted_s), 1);
  // Beside passes, what the profile has measured of this machine: eleven steps there and back, and the model's copy.
  const double beside_s = 11 * 2 * profiles.machine.step_latency_s +
                          static_cast<double>(cut.stage_bytes[0]) / profiles.machine.link_bytes_per_s;
  EXPECT_GE(predicted_s, 0.95 * expected_s) << planned.job.output;
  EXPECT_LE(predicted_s, 1.05 * (expected_s + beside_s)) << planned.job.output;
}

TEST_F(Profile, MeasuresEncoders) {
  const ModelConfig bert = ModelConfig::from_hf_json(R"({"model_type": "bert", "architectures": ["BertModel"],
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 100, "vocab_size": 131,
    "max_position_embeddings": 16, "type_vocab_size": 2})");
  write_random_checkpoint(folder_ / "opt.h5", bert, DType::kF32, 21);
  const JobOutcome outcome = profile(1, {"--max-batch-tokens", "32", "--prompt-tokens", "8"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  const ShapeProfile shape = read_profiles(file()).models[0].shapes.at({1, 1});
  EXPECT_THAT(shape.cache_token_bytes, IsEmpty());
  std::vector<int> rows;
  for (const PassTimes& pass : shape.passes) rows.push_back(pass.rows);
  EXPECT_THAT(rows, ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_EQ(shape.stage_s, shape.passes[3].stage_s);
}

// Two variants whose lower layer is one's, and a model that is no sibling.
TEST_F(Profile, SaysWhatVariantsShare) {
  const TinyModel large{
      .layers = 4, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 128, .max_positions = 64, .seed = 77};
  const auto upper = [](const std::string& name) { return name.starts_with("layers.") && name[7] >= '2'; };
  write_tiny_checkpoint(folder_ / "one.h5", large);
  write_variant_checkpoint(folder_ / "other.h5", opt_config(large), large.dtype, large.seed, upper, /*other_seed=*/5);
  const JobOutcome outcome =
      profile(1, {"--model", "b=" + (folder_ / "one.h5").string(), "--model", "c=" + (folder_ / "other.h5").string(),
                  "--shapes", "1x1,1x2", "--max-tokens", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  const ProfileFile profiles = read_profiles(file());
  EXPECT_THAT(profiles.models[0].shapes.at({1, 1}).shared, IsEmpty());
  for (const GroupShape& shape : {GroupShape{1, 1}, GroupShape{1, 2}}) {
    const ShapeProfile &b = profiles.models[1].shapes.at(shape), &c = profiles.models[2].shapes.at(shape);
    ASSERT_EQ(b.shared.size(), 1u);
    EXPECT_EQ(b.shared[0].name, c.shared.at(0).name);
    EXPECT_EQ(b.shared[0].stage_bytes, c.shared[0].stage_bytes);
    // Two layers of four, and what is before them and behind: all weights but two layers.
    const double two_layers = 2 * 4 * (4 * 64 * 64 + 64 * (128 + 96));
    const auto sum = [](const std::vector<std::int64_t>& bytes) {
      return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
    };
    EXPECT_NEAR(sum(b.shared[0].stage_bytes), sum(b.stage_bytes) - two_layers, 3 * (64 << 10)) << shape.pp;
    EXPECT_EQ(b.shared[0].stage_frame_bytes()[0] % (64 << 10), 0);
  }
  EXPECT_EQ(profiles.models[1].family, "") << "no adapters";
}

// Of one shape a rank has loaded the pages; the other one's are told from them.
TEST_F(Profile, SaysWhatCodedPagesTakeOverLinks) {
  const JobOutcome outcome = profile(1, {"--shapes", "1x1,2x1", "--coded", "on", "--max-tokens", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  const ModelProfile model = read_profiles(file()).models[0];
  const auto share = [&](const GroupShape& shape) {
    const ShapeProfile& profile = model.shapes.at(shape);
    return static_cast<double>(profile.stage_link_bytes()[0]) / static_cast<double>(profile.stage_bytes[0]);
  };
  EXPECT_TRUE(model.shapes.at({1, 1}).measured);
  EXPECT_LT(share({1, 1}), 0.95) << "weights of normal distribution gain";
  EXPECT_FALSE(model.shapes.at({2, 1}).measured);
  EXPECT_NEAR(share({2, 1}), share({1, 1}), 1e-4);
}

// A rank without mpirun, which would take two seconds to end a job that failed.
class ProfileRefusals : public ProgramTest {
 protected:
  // It ends with this code and says this; nothing is written.
  void expect(int code, const std::string& why, std::vector<std::string> more) {
    write_tiny_checkpoint(file("opt.h5"), kOpt);
    std::vector<std::string> arguments{
        "profile", "--model", "a=" + file("opt.h5"), "--max-seqs", "1", "--max-batch-tokens", "2"};
    if (std::ranges::find(more, "--output") == more.end()) more.insert(more.end(), {"--output", file("p.json")});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr(why));
    EXPECT_FALSE(std::filesystem::exists(file("p.json")));
  }
};

TEST_F(ProfileRefusals, NameWhatIsWrong) {
  expect(73, "/nowhere/p.json", {"--output", "/nowhere/p.json"});
  expect(64, "--shapes: '2y1' is no shape; expected TPxPP", {"--shapes", "2y1"});
  expect(64, "'0x1' is no shape", {"--shapes", "0x1"});
  expect(64, "none of them can be measured with 1 ranks", {"--shapes", "4x1"});
  expect(78, "--shapes 1x4: no model can be served so", {"--shapes", "1x1,1x4"});
  expect(66, "/nowhere/b.h5", {"--model", "b=/nowhere/b.h5"});
}

TEST_F(Profile, EndsInOrderWhenAskedTo) {
  MpiJob job(2, command(injected_program(), {"--inject-gflops", "1e-6"}), folder_ / ".");
  std::string log;  // until the first model has been begun with: its passes take minutes
  while (job.running() && log.find("profile: ") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::ifstream file(folder_ / "stderr");
    log.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (const int rank : {0, 1}) kill(job.rank_process(rank), SIGTERM);
  const JobOutcome outcome = job.wait(healthy_limit_s());
  EXPECT_EQ(outcome.exit_code, 75) << outcome.errors;
  EXPECT_FALSE(std::filesystem::exists(file()));
}

// Where the profiles say that passes take hours, a request is rejected behind another one; what was measured lets it
// be served.
TEST_F(Profile, SchedulersBeginWithThem) {
  ASSERT_EQ(profile(1, {"--max-tokens", "2"}).exit_code, 0);
  ServeJob job{.models = {{"a", model()}}};
  for (const char* id : {"r", "s"}) job.lines.push_back(completion_line(id, "a", {1}, 2));
  job.more = {"--profiles", file().string(), "--slo", "600", "--on-late", "reject"};
  EXPECT_EQ(serve_ok(job, folder_).metrics.at("requests").at("ok"), 2);
  ProfileFile slow = read_profiles(file());
  for (PassTimes& pass : slow.models.at(0).shapes.at({1, 1}).passes) pass.stage_s = {3600};
  std::ofstream(file()) << profile_text(slow);
  EXPECT_EQ(serve(job, folder_).metrics.at("requests").at("ok"), 1);
}

TEST_F(Profile, AFileThatIsNotThereIsNamedBeforeLoading) {
  ServeJob job{.models = {{"a", model()}}, .lines = {completion_line("r", "a", {1}, 2)}};
  job.more = {"--profiles", "/nowhere/p.json"};
  const Served refused = serve(job, folder_);
  EXPECT_EQ(refused.job.exit_code, 66);
  EXPECT_THAT(refused.job.errors, HasSubstr("/nowhere/p.json"));
  job.more.emplace_back("--dry-run");
  const Served missing = serve(job, folder_);
  EXPECT_EQ(missing.job.exit_code, 66);
  EXPECT_THAT(missing.job.errors, HasSubstr("/nowhere/p.json"));
}

TEST_F(Profile, WhatItLacksIsSaidByName) {
  std::ofstream(file()) << R"({"models": [{"id": "a", "shapes": [{"tp": 2, "stage_s": [1], "stage_bytes": [1]}]},
    {"id": "c", "shapes": [{"stage_s": [1], "stage_bytes": [1]}]},
    {"id": "d", "shapes": [{"stage_s": [1], "stage_bytes": [1], "passes": [{"rows": 1, "stage_s": [1]}]}]}]})";
  ServeJob job{.lines = {completion_line("r", "a", {1}, 2)}};
  for (const char* id : {"a", "b", "c", "d"}) job.models.push_back({id, model()});
  job.more = {"--dry-run", "--profiles", file().string()};
  const Served planned = serve(job, folder_);
  ASSERT_EQ(planned.job.exit_code, 0) << planned.job.errors;
  const std::string& log = planned.job.errors;
  EXPECT_THAT(log,
              HasSubstr("nothing of a at tp 1 x pp 1, whose passes come from a formula: they do not have the shape"));
  EXPECT_THAT(log,
              HasSubstr("nothing of b at tp 1 x pp 1, whose passes come from a formula: they do not have the model"));
  EXPECT_THAT(log, HasSubstr("nothing of c at tp 1 x pp 1, whose passes come from a formula: it has no passes"));
  EXPECT_THAT(log, HasSubstr("nothing of d at tp 1 x pp 1, whose passes come from a formula: it is of 1 B in stage 0"));
}

}  // namespace
}  // namespace computron::test

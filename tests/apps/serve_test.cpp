// The whole program from checkpoint and request file to results, held against the models in double precision.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "tests/apps/serve_job.h"
#include "tests/support/reference_model.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;

constexpr double kTolerance = 1e-4;    // of a log-probability in float32
constexpr double kClearMargin = 1e-3;  // a greedy choice by less may fall either way

const TinyModel kEven{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 128, .seed = 11};
// Nothing here is a multiple of anything: heads, vocabulary, ffn units and layers are all cut unevenly.
const TinyModel kOdd{.layers = 5, .heads = 5, .head_dim = 8, .ffn = 77, .vocab = 131, .seed = 12};
const TinyModel kOddHalf{
    .layers = 4, .heads = 7, .head_dim = 5, .ffn = 51, .vocab = 101, .dtype = DType::kF16, .seed = 13};
const TinyModel kBrain{
    .layers = 2, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 128, .dtype = DType::kBF16, .seed = 14};

// The CPU multiplies float16 weights with float32 rows, exactly; a GPU rounds the rows to float16
// (NarrowTypesStayNearTheReference).
TinyModel half_precision() {
  TinyModel model = kOddHalf;
  if (!on_cpu()) model.dtype = DType::kF32;
  return model;
}

// A model in its file and its reference.
struct Known {
  TinyModel model;
  ServedFile file;
  std::unique_ptr<ReferenceModel> reference;
};

class Serve : public ::testing::Test {
 protected:
  Known add(const std::string& id, const TinyModel& model) {
    const auto path = folder_ / (id + ".h5");
    write_tiny_checkpoint(path, model);
    return {model, {id, path}, std::make_unique<ReferenceModel>(path)};
  }
  TemporaryFolder folder_;
};

// Holds the logprobs of tokens[first..] in `choice` against the reference: `choice` scores `tokens` from the start.
void expect_scores(const json& choice, const std::vector<int>& tokens, const ReferenceModel& reference,
                   double tolerance) {
  const json& logprobs = choice.at("logprobs");
  ASSERT_EQ(logprobs.at("token_ids").get<std::vector<int>>(), tokens);
  ASSERT_EQ(logprobs.at("token_logprobs").size(), tokens.size());
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null()) << "nothing precedes the first token";
  const auto rows = reference.logits(tokens);
  for (std::size_t p = 1; p < tokens.size(); ++p) {
    const auto expected = log_softmax(rows[p - 1]);
    EXPECT_NEAR(logprobs.at("token_logprobs").at(p).get<double>(), expected[tokens[p]], tolerance) << "position " << p;
  }
}

// Alternatives {"token:ID": log-probability, ...} as pairs, best first.
std::vector<std::pair<double, int>> alternatives(const json& top) {
  std::vector<std::pair<double, int>> pairs;
  for (const auto& [name, logprob] : top.items()) {
    pairs.emplace_back(logprob.get<double>(), std::stoi(name.substr(name.find(':') + 1)));
  }
  std::sort(pairs.rbegin(), pairs.rend());
  return pairs;
}

// Alternatives at one position: as many as asked for, the best there are, each with its log-probability.
void expect_alternatives(const json& top, const std::vector<double>& expected, std::size_t count) {
  const auto pairs = alternatives(top);
  ASSERT_EQ(pairs.size(), count);
  std::vector<double> best = expected;
  std::sort(best.rbegin(), best.rend());
  for (std::size_t k = 0; k < count; ++k) {
    EXPECT_NEAR(pairs[k].first, expected.at(pairs[k].second), kTolerance) << "alternative " << k;
    EXPECT_NEAR(pairs[k].first, best[k], kTolerance) << "alternative " << k;
  }
}

// Greedy tokens equal the reference's up to the first choice that float32 cannot make for certain.
void expect_greedy(const std::vector<int>& tokens, const ReferenceModel::Generation& expected) {
  ASSERT_EQ(tokens.size(), expected.tokens.size());
  for (std::size_t i = 0; i < tokens.size() && expected.margins[i] >= kClearMargin; ++i) {
    ASSERT_EQ(tokens[i], expected.tokens[i]) << "generated token " << i << ", margin " << expected.margins[i];
  }
}

TEST_F(Serve, ScoresPromptsLikeTheReference) {
  const Known even = add("even", kEven), odd = add("odd", kOdd), half = add("half", half_precision());
  ServeJob job{.models = {even.file, odd.file, half.file}};
  const json asked = {{"echo", true}, {"logprobs", 20}};
  std::map<std::string, std::pair<const Known*, std::vector<int>>> prompts;
  for (const Known* known : {&even, &odd, &half}) {
    for (const int length : {2, 17, 64}) {
      const std::string id = fmt::format("{}{}", known->file.id, length);
      prompts[id] = {known, random_prompt(known->model, length, length)};
      job.lines.push_back(completion_line(id, known->file.id, prompts[id].second, /*max_tokens=*/0, asked));
    }
  }
  const Served served = serve_ok(job, folder_);
  for (const auto& [id, request] : prompts) {
    SCOPED_TRACE(id);
    const auto& [known, prompt] = request;
    const json& choice = served.results.choice(id);
    expect_scores(choice, prompt, *known->reference, kTolerance);
    const auto rows = known->reference->logits(prompt);
    for (std::size_t p = 1; p < prompt.size(); ++p) {
      expect_alternatives(choice.at("logprobs").at("top_logprobs").at(p), log_softmax(rows[p - 1]), 20);
    }
  }
}

TEST_F(Serve, ScoresWhatItGenerates) {
  const Known odd = add("odd", kOdd);
  ServeJob job{.models = {odd.file}};
  const auto prompt = random_prompt(kOdd, 9, 1);
  const json asked = {{"echo", true}, {"logprobs", 1}, {"ignore_eos", true}};
  job.lines = {completion_line("whole", "odd", prompt, 20, asked)};
  const Served served = serve_ok(job, folder_);
  const json& choice = served.results.choice("whole");
  const auto tokens = choice.at("logprobs").at("token_ids").get<std::vector<int>>();
  ASSERT_EQ(tokens.size(), 29u);
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.begin()));
  expect_scores(choice, tokens, *odd.reference, kTolerance);
  expect_greedy({tokens.begin() + 9, tokens.end()}, odd.reference->generate(prompt, 20));
  EXPECT_EQ(choice.at("finish_reason"), "length");
  const json& steps = served.metrics.at("steps");
  EXPECT_EQ(steps.at("passes"), 20);
  EXPECT_EQ(steps.at("graphs") > 0, !on_cpu());
}

// Σ p (log p − log q) over the alternatives given, mean over positions.
double divergence(const json& logprobs, const std::vector<int>& prompt, const ReferenceModel& reference) {
  const auto rows = reference.logits(prompt);
  double sum = 0;
  for (std::size_t p = 1; p < prompt.size(); ++p) {
    const auto expected = log_softmax(rows[p - 1]);
    for (const auto& [logprob, token] : alternatives(logprobs.at("top_logprobs").at(p))) {
      sum += std::exp(expected.at(token)) * (expected.at(token) - logprob);
    }
  }
  return sum / static_cast<double>(prompt.size() - 1);
}

// Activations of two bytes: a distribution is near, not equal.
TEST_F(Serve, NarrowTypesStayNearTheReference) {
  TinyModel half_model = kBrain;
  half_model.dtype = DType::kF16;
  const Known brain = add("brain", kBrain), half = add("half", half_model);
  ServeJob job{.models = {brain.file, half.file}};
  const auto prompt = random_prompt(kBrain, 64, 3);
  const json asked = {{"echo", true}, {"logprobs", 20}};
  for (const char* id : {"brain", "half"}) job.lines.push_back(completion_line(id, id, prompt, 0, asked));
  const Served served = serve_ok(job, folder_);
  for (const Known* known : {&brain, &half}) {
    const json& logprobs = served.results.choice(known->file.id).at("logprobs");
    EXPECT_LT(std::abs(divergence(logprobs, prompt, *known->reference)), 1e-3) << known->file.id;
  }
}

TEST_F(Serve, StopsAtTheEndOfSequenceToken) {
  const Known plain = add("plain", kEven);
  const auto prompt = random_prompt(kEven, 8, 5);
  const auto expected = plain.reference->generate(prompt, 12);
  // The first token after the first that had not come before ends the sequence in a twin of the model.
  std::size_t end = 1;
  while (std::find(expected.tokens.begin(), expected.tokens.begin() + end, expected.tokens[end]) !=
         expected.tokens.begin() + end) {
    ASSERT_LT(++end, expected.tokens.size());
  }
  TinyModel twin = kEven;
  twin.eos_tokens = {expected.tokens[end]};
  const Known stopping = add("stopping", twin);
  ServeJob job{.models = {stopping.file}};
  job.lines = {completion_line("stops", "stopping", prompt, 12),
               completion_line("ignores", "stopping", prompt, 12, {{"ignore_eos", true}})};
  const Served served = serve_ok(job, folder_);
  EXPECT_THAT(served.results.tokens("stops"), ElementsAreArray(expected.tokens.data(), end));
  EXPECT_EQ(served.results.choice("stops").at("finish_reason"), "stop");
  EXPECT_EQ(served.results.tokens("ignores"), expected.tokens);
  EXPECT_EQ(served.results.choice("ignores").at("finish_reason"), "length");
  const json& usage = served.results.line("ignores").at("response").at("body").at("usage");
  EXPECT_EQ(usage.at("prompt_tokens"), 8);
  EXPECT_EQ(usage.at("completion_tokens"), 12);
}

TEST_F(Serve, ModelListsNameTheModels) {
  const Known even = add("even", kEven);
  write_lines(folder_ / "models.json",
              {R"([{"id": "first", "path": "even.h5"}, {"id": "second", "path": "even.h5"}])"});
  ServeJob job{.more = {"--models", (folder_ / "models.json").string()}};
  job.lines = {completion_line("a", "first", {3, 4}, 5), completion_line("b", "second", {3, 4}, 5)};
  const Served served = serve_ok(job, folder_);
  const auto expected = even.reference->generate({3, 4}, 5).tokens;
  EXPECT_EQ(served.results.tokens("a"), expected);
  EXPECT_EQ(served.results.tokens("b"), expected);
}

struct MeshShape {
  int tp, pp;
};

class ServeOnMesh : public Serve, public ::testing::WithParamInterface<MeshShape> {};

TEST_P(ServeOnMesh, GeneratesTheReferencesTokens) {
  const Known even = add("even", kEven), odd = add("odd", kOdd), half = add("half", half_precision());
  ServeJob job{.tp = GetParam().tp, .pp = GetParam().pp};
  std::vector<const Known*> models = {&odd, &half};
  if (job.pp <= kEven.layers) models.push_back(&even);
  for (const Known* known : models) {
    job.models.push_back(known->file);
    for (int i = 0; i < 3; ++i) {
      job.lines.push_back(completion_line(fmt::format("{}{}", known->file.id, i), known->file.id,
                                          random_prompt(known->model, 1 + 11 * i, i), 16,
                                          {{"logprobs", 0}, {"ignore_eos", true}}));
    }
  }
  const Served served = serve_ok(job, folder_);
  for (const Known* known : models) {
    for (int i = 0; i < 3; ++i) {
      const std::string id = fmt::format("{}{}", known->file.id, i);
      SCOPED_TRACE(id);
      const auto expected = known->reference->generate(random_prompt(known->model, 1 + 11 * i, i), 16);
      expect_greedy(served.results.tokens(id), expected);
      const json& scores = served.results.choice(id).at("logprobs").at("token_logprobs");
      for (std::size_t n = 0; n < 16 && expected.margins[n] >= kClearMargin; ++n) {
        EXPECT_NEAR(scores.at(n).get<double>(), expected.logprobs[n], kTolerance) << "generated token " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, ServeOnMesh,
                         ::testing::Values(MeshShape{1, 1}, MeshShape{2, 1}, MeshShape{3, 1}, MeshShape{4, 1},
                                           MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}),
                         [](const auto& test) { return fmt::format("tp{}pp{}", test.param.tp, test.param.pp); });

// Bad lines cost only themselves. `codes` says what each custom_id must come to; "" is an answer.
class BadLines : public Serve {
 protected:
  void SetUp() override {
    good_ = add("good", kEven);
    TinyModel wide = kEven;
    wide.max_positions = 4096;
    wide_ = add("wide", wide);
  }

  void good(const std::string& id) { line(id, completion_line(id, "good", {5, 6, 7}, 4), ""); }
  void line(const std::string& id, const std::string& text, const std::string& code) {
    job_.lines.push_back(text);
    codes_[id] = code;
  }
  void anonymous(const std::string& text, const std::string& code) {
    job_.lines.push_back(text);
    anonymous_codes_.push_back(code);
  }

  Known good_, wide_;
  ServeJob job_{.device_memory = "2MiB"};
  std::map<std::string, std::string> codes_;
  std::vector<std::string> anonymous_codes_;
};

std::vector<std::string> anonymous_codes_of(const Results& results) {
  std::vector<std::string> codes;
  for (const json& line : results.lines()) {
    if (line.at("custom_id").is_null()) codes.push_back(line.at("error").at("code"));
  }
  return codes;
}

TEST_F(BadLines, CostOnlyThemselves) {
  job_.models = {good_.file, wide_.file};
  good("first");
  anonymous("{\"custom_id\": ", "invalid_json");
  job_.lines.push_back("");
  job_.lines.push_back(" \t\r");
  good("second");
  line("unknown", completion_line("unknown", "nobody", {1, 2}, 4), "model_not_found");
  line("long", completion_line("long", "good", random_prompt(kEven, 65, 1), 1), "context_length_exceeded");
  line("long_answer", completion_line("long_answer", "good", {1, 2}, 63), "context_length_exceeded");
  // 2 KiB of cache a token: 4000 tokens fit the model's positions and no pool of 2 MiB.
  line("big_cache", completion_line("big_cache", "wide", {1, 2}, 4000), "context_length_exceeded");
  line("fits", completion_line("fits", "wide", {5, 6, 7}, 4), "");
  line("empty", completion_line("empty", "good", {}, 4), "invalid_parameter");
  line("range", completion_line("range", "good", {1, 128}, 4), "invalid_parameter");
  line("typed", completion_line("typed", "good", {1}, 4, {{"max_tokens", "many"}}), "invalid_parameter");
  anonymous("\xff\xfe", "invalid_utf8");
  good("last");
  job_.lines.back() += "\r";

  const Served served = serve_ok(job_, folder_);
  for (const auto& [id, code] : codes_) EXPECT_EQ(served.results.error_code(id), code) << served.results.line(id);
  EXPECT_THAT(anonymous_codes_of(served.results), ::testing::UnorderedElementsAreArray(anonymous_codes_));
  const auto expected = good_.reference->generate({5, 6, 7}, 4).tokens;
  for (const char* id : {"first", "second", "last"}) EXPECT_EQ(served.results.tokens(id), expected) << id;
  EXPECT_EQ(served.results.tokens("fits"), wide_.reference->generate({5, 6, 7}, 4).tokens);
  EXPECT_EQ(served.results.line("unknown").at("response").at("status_code"), 404);
  EXPECT_EQ(served.results.line("long").at("response").at("status_code"), 400);
  EXPECT_TRUE(served.results.line("long").at("response").at("body").is_null());
}

TEST_F(BadLines, AreCountedInTheMetrics) {
  job_.models = {good_.file};
  good("first");
  line("unknown", completion_line("unknown", "nobody", {1, 2}, 4), "model_not_found");
  anonymous("[1, 2", "invalid_json");
  const Served served = serve_ok(job_, folder_);
  EXPECT_EQ(served.metrics.at("requests"), json::parse(R"({"total": 3, "ok": 1, "failed": 2, "before": 0})"));
}

}  // namespace
}  // namespace computron::test

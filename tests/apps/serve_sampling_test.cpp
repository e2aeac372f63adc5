// Sampled tokens of a whole job: against the distribution that the double-precision reference gives, the same on every
// mesh and in every company, and as penalties, biases and bans say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tests/apps/serve_job.h"
#include "tests/support/reference_model.h"

namespace computron::test {
namespace {

using nlohmann::json;

const TinyModel kModel{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 131, .seed = 21};

class ServeSampling : public ::testing::Test {
 protected:
  ServeSampling() { write_tiny_checkpoint(folder_ / "model.h5", kModel); }

  Served run(int tp, int pp, std::vector<std::string> lines, std::vector<std::string> more = {},
             const std::string& file = "model.h5") {
    return serve_ok(
        {.tp = tp, .pp = pp, .models = {{"model", folder_ / file}}, .lines = std::move(lines), .more = std::move(more)},
        folder_);
  }
  static std::string line(const std::string& id, const std::vector<int>& prompt, int max_tokens, json more) {
    more["ignore_eos"] = true;
    return completion_line(id, "model", prompt, max_tokens, more);
  }
  // The tokens of every choice of a request.
  static std::vector<std::vector<int>> choices(const Served& served, const std::string& id) {
    std::vector<std::vector<int>> tokens;
    for (const json& choice : served.results.line(id).at("response").at("body").at("choices")) {
      EXPECT_EQ(choice.at("index").get<std::size_t>(), tokens.size());
      tokens.push_back(choice.at("token_ids").get<std::vector<int>>());
    }
    return tokens;
  }

  TemporaryFolder folder_;
};

// Pearson's statistic over the tokens expected at least five times, the others together.
void expect_sampled_from(const std::vector<double>& p, const std::map<int, int>& counts, int samples) {
  double statistic = 0, rest = samples;
  int cells = 0, rest_count = samples;
  for (std::size_t token = 0; token < p.size(); ++token) {
    const double expected = samples * p[token];
    if (expected < 5) continue;
    const auto found = counts.find(static_cast<int>(token));
    const int count = found == counts.end() ? 0 : found->second;
    statistic += (count - expected) * (count - expected) / expected;
    rest -= expected;
    rest_count -= count;
    ++cells;
  }
  if (rest >= 5) {
    statistic += (rest_count - rest) * (rest_count - rest) / rest;
    ++cells;
  }
  const double degrees = cells - 1;
  EXPECT_GT(cells, 3);
  EXPECT_LT(statistic, degrees + 4 * std::sqrt(2 * degrees) + 8);
}

std::vector<double> softmax(std::vector<double> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  for (double& x : logits) x = std::exp(x - max);
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0);
  for (double& x : logits) x /= sum;
  return logits;
}

TEST_F(ServeSampling, FollowsTheDistributionOnOneRankAndTwo) {
  const ReferenceModel reference(folder_ / "model.h5");
  const std::vector<int> prompt = {5, 7, 5, 90};
  std::vector<double> logits = reference.logits(prompt).back();
  std::vector<std::string> lines;
  for (int i = 0; i < 32; ++i) {
    lines.push_back(line(fmt::format("plain{}", i), prompt, 1, {{"temperature", 1}, {"n", 128}, {"seed", i}}));
    lines.push_back(line(fmt::format("cut{}", i), prompt, 1,
                         {{"temperature", 1.5}, {"top_k", 12}, {"n", 128}, {"seed", i}, {"repetition_penalty", 1.5}}));
  }
  std::vector<double> cut = logits;
  for (const int token : {5, 7, 90}) cut[token] = cut[token] > 0 ? cut[token] / 1.5 : cut[token] * 1.5;
  for (double& x : cut) x /= 1.5;
  std::vector<double> sorted = cut;
  std::sort(sorted.rbegin(), sorted.rend());
  for (double& x : cut) x = x >= sorted[11] ? x : -INFINITY;
  for (const int tp : {1, 2}) {
    const Served served = run(tp, 1, lines);
    for (const auto& [name, expected] : {std::pair{"plain", softmax(logits)}, std::pair{"cut", softmax(cut)}}) {
      SCOPED_TRACE(fmt::format("{} on {}", name, tp));
      std::map<int, int> counts;
      for (int i = 0; i < 32; ++i) {
        for (const auto& tokens : choices(served, fmt::format("{}{}", name, i))) ++counts[tokens.at(0)];
      }
      expect_sampled_from(expected, counts, 32 * 128);
    }
  }
}

// Texts of every kind of parameter, alone and among the others, on every mesh.
TEST_F(ServeSampling, OneSeedGivesOneTextEverywhere) {
  const std::map<std::string, json> kinds = {
      {"hot", {{"temperature", 1.3}}},
      {"top_k", {{"temperature", 1}, {"top_k", 5}}},
      {"top_p", {{"temperature", 1}, {"top_p", 0.7}}},
      {"min_p", {{"temperature", 1}, {"min_p", 0.05}}},
      {"penalties", {{"temperature", 0.8}, {"frequency_penalty", 0.6}, {"presence_penalty", -0.3}, {"logprobs", 2}}},
      {"greedy", {{"repetition_penalty", 1.4}}},
      {"plain", json::object()}};
  std::vector<std::string> lines;
  for (auto [name, more] : kinds) {
    more["seed"] = 7;
    more["n"] = 3;
    lines.push_back(line(name, {4, 8, 15, 16, 23, 42}, 12, more));
  }
  const Served whole = run(1, 1, lines);
  EXPECT_EQ(choices(whole, "plain")[0], choices(whole, "plain")[2]) << "greedy choices are alike";
  EXPECT_NE(choices(whole, "hot")[0], choices(whole, "hot")[1]) << "sampled ones have noise of their own";
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{3, 1}, std::pair{1, 2}}) {
    const Served served = run(tp, pp, lines, {"--max-batch-tokens", "7"});
    for (const auto& [name, more] : kinds) {
      EXPECT_EQ(choices(served, name), choices(whole, name)) << name << " on " << tp << "x" << pp;
    }
  }
  const Served alone = run(1, 1, {lines.front()});
  EXPECT_EQ(alone.results.line("greedy").at("response").at("body").at("choices"),
            whole.results.line("greedy").at("response").at("body").at("choices"));
}

// Distributions so flat that the best 1,024 tokens of each rank do not tell which are kept: ranks are asked for all.
TEST_F(ServeSampling, WholeRowsAreAskedForWhereCandidatesDoNotTell) {
  write_tiny_checkpoint(folder_ / "wide.h5",
                        {.layers = 2, .heads = 2, .head_dim = 8, .ffn = 32, .vocab = 6007, .seed = 3});
  std::vector<std::string> lines;
  for (const auto& [name, more] : std::map<std::string, json>{
           {"p", {{"top_p", 0.97}}}, {"k", {{"top_k", 5000}}}, {"m", {{"min_p", 0.0001}, {"top_p", 0.9}}}}) {
    json fields = more;
    fields.update({{"temperature", 2}, {"seed", 1}, {"n", 4}});
    lines.push_back(line(name, {1, 2, 3}, 6, fields));
  }
  lines.push_back(line("greedy", {1, 2, 3}, 6, json::object()));
  const Served whole = run(1, 1, lines, {}, "wide.h5");
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{1, 2}}) {
    const Served served = run(tp, pp, lines, {}, "wide.h5");
    for (const char* name : {"p", "k", "m", "greedy"}) EXPECT_EQ(choices(served, name), choices(whole, name)) << name;
  }
}

// What the rules say of every greedy token, from the reference's logits.
TEST_F(ServeSampling, PenaltiesBiasesAndBans) {
  const ReferenceModel reference(folder_ / "model.h5");
  const std::vector<int> prompt = {9, 9, 3};
  const Served served =
      run(1, 1,
          {line("penalised", prompt, 10,
                {{"repetition_penalty", 1.3}, {"frequency_penalty", 0.2}, {"presence_penalty", 0.1}, {"logprobs", 0}}),
           line("biased", prompt, 3, {{"logit_bias", {{"77", 100}}}}), line("free", prompt, 6, json::object())});
  std::vector<int> sequence = prompt;
  std::map<int, int> generated;
  const json& choice = served.results.choice("penalised");
  for (int i = 0; i < 10; ++i) {
    const std::vector<double> plain = reference.logits(sequence).back();
    std::vector<double> logits = plain;
    for (std::size_t t = 0; t < logits.size(); ++t) {
      const int token = static_cast<int>(t);
      if (std::find(sequence.begin(), sequence.end(), token) == sequence.end()) continue;
      logits[t] = logits[t] > 0 ? logits[t] / 1.3 : logits[t] * 1.3;
      logits[t] -= 0.2 * generated[token] + (generated[token] > 0 ? 0.1 : 0);
    }
    const int best = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(choice.at("token_ids").at(i), best) << "token " << i;
    EXPECT_NEAR(choice.at("logprobs").at("token_logprobs").at(i).get<double>(), log_softmax(plain)[best], 1e-4)
        << "log-probabilities are the model's own";
    sequence.push_back(best);
    ++generated[best];
  }
  EXPECT_EQ(choices(served, "biased")[0], (std::vector<int>{77, 77, 77}));
  // Whatever would stop the text at once is not sampled before min_tokens.
  const auto free = choices(served, "free")[0];
  json stops = {{"stop_token_ids", free}, {"min_tokens", 4}};
  const Served banned = run(1, 1, {completion_line("banned", "model", prompt, 6, stops)});
  const auto tokens = choices(banned, "banned")[0];
  EXPECT_GE(tokens.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(std::count(free.begin(), free.end(), tokens[i]), 0) << i;
}

TEST_F(ServeSampling, ShowsThePromptsTokensWhenAsked) {
  const Served served = run(1, 1, {line("r", {3, 1, 4}, 2, {{"return_token_ids", true}, {"n", 2}})});
  const json& body = served.results.line("r").at("response").at("body");
  for (const json& choice : body.at("choices")) EXPECT_EQ(choice.at("prompt_token_ids"), json({3, 1, 4}));
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 3) << "one prompt, whatever n";
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 4);
}

}  // namespace
}  // namespace computron::test

// The trained models of inputs/trained, converted and served side by side from a pool that holds few of them: they
// score held-out text as PyTorch did, and of the variants each kind's own foretells it best. Quantised, they lose
// little.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/apps/serve_job.h"
#include "tests/support/beside.h"

namespace computron::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kModels = {"base", "manual", "python", "licence"};
const std::vector<std::string> kKinds = {"manual", "python", "licence"};

json held_out(const std::string& name) {
  return json::parse(std::ifstream(std::filesystem::path(COMPUTRON_TRAINED_MODELS) / "held_out" / name));
}

std::string id_of(const std::string& model, const std::string& kind, std::size_t row) {
  return fmt::format("{}.{}.{}", model, kind, row);
}

// Every row of every kind, to be scored by every model, the models taking turns.
std::vector<std::string> scoring_lines(const json& rows, const std::vector<std::string>& models) {
  std::vector<std::string> lines;
  for (const std::string& kind : kKinds) {
    for (std::size_t row = 0; row < rows.at(kind).size(); ++row) {
      const auto prompt = rows.at(kind).at(row).get<std::vector<int>>();
      for (const std::string& model : models) {
        lines.push_back(completion_line(id_of(model, kind, row), model, prompt, 0, {{"echo", true}, {"logprobs", 0}}));
      }
    }
  }
  return lines;
}

// Of all tokens but the first of each row, which nothing foretells.
double perplexity(const Results& results, const std::string& model, const std::string& kind, std::size_t rows) {
  double sum = 0;
  int count = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const json& logprobs = results.choice(id_of(model, kind, row)).at("logprobs").at("token_logprobs");
    for (std::size_t i = 1; i < logprobs.size(); ++i, ++count) sum += logprobs.at(i).get<double>();
  }
  return std::exp(-sum / count);
}

class ServeTrained : public ::testing::Test {
 protected:
  // {model: {kind: perplexity}}
  std::map<std::string, std::map<std::string, double>> served_perplexities(const std::vector<std::string>& models,
                                                                           int tp, const std::string& device_memory) {
    const json rows = held_out("tokens.json");
    ServeJob job{.tp = tp, .lines = scoring_lines(rows, models), .device_memory = device_memory, .page_size = "128KiB"};
    for (const std::string& model : models) {
      job.models.push_back({model, beside_test("trained") / (model + ".h5")});
    }
    const Served served = serve_ok(job, folder_);
    EXPECT_GE(served.metrics.at("swaps").at("count").get<int>(), static_cast<int>(models.size()));
    std::map<std::string, std::map<std::string, double>> result;
    for (const std::string& model : models) {
      for (const std::string& kind : kKinds) {
        result[model][kind] = perplexity(served.results, model, kind, rows.at(kind).size());
      }
    }
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(ServeTrained, OfTheVariantsEachKindsOwnForetellsItBest) {
  constexpr double kClearlyLower = 0.9;
  const json expected = held_out("perplexities.json");
  auto served = served_perplexities(kModels, /*tp=*/2, "4MiB");
  for (const std::string& kind : kKinds) {
    for (const std::string& model : kModels) {
      const double reference = expected.at(model).at(kind);
      EXPECT_NEAR(served[model][kind], reference, 1e-3 * reference) << model << " on " << kind;
      if (model == kind || model == "base") continue;
      EXPECT_LT(served[kind][kind], kClearlyLower * served[model][kind]) << model << " on " << kind;
    }
  }
}

// Of text of all kinds, which have as many tokens.
double of_all_kinds(const std::map<std::string, double>& by_kind) {
  double sum = 0;
  for (const auto& [kind, value] : by_kind) sum += std::log(value);
  return std::exp(sum / static_cast<double>(by_kind.size()));
}

// Over what PyTorch has in float32: + 0.15 %, + 0.3 % and + 4 %.
TEST_F(ServeTrained, QuantisedModelsForetellNearlyAsWell) {
  const std::map<std::string, double> allowed = {{"int8", 0.0015}, {"fp8", 0.003}, {"int4", 0.04}};
  const json expected = held_out("perplexities.json");
  std::vector<std::string> models;
  for (const std::string& model : kModels) {
    for (const auto& [codes, share] : allowed) models.push_back(model + "." + codes);
  }
  const auto served = served_perplexities(models, /*tp=*/1, "64MiB");
  for (const std::string& model : kModels) {
    const double reference = of_all_kinds(expected.at(model).get<std::map<std::string, double>>());
    for (const auto& [codes, share] : allowed) {
      const double more = of_all_kinds(served.at(model + "." + codes)) / reference - 1;
      EXPECT_LE(more, share) << model << " in " << codes;
      EXPECT_GE(more, -share) << model << " in " << codes;
    }
  }
}

}  // namespace
}  // namespace computron::test

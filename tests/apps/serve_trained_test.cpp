// The trained models of inputs/trained, converted and served side by side from a pool that holds few of them: they
// score held-out text as PyTorch did, and of the variants each kind's own foretells it best.
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
std::vector<std::string> scoring_lines(const json& rows) {
  std::vector<std::string> lines;
  for (const std::string& kind : kKinds) {
    for (std::size_t row = 0; row < rows.at(kind).size(); ++row) {
      const auto prompt = rows.at(kind).at(row).get<std::vector<int>>();
      for (const std::string& model : kModels) {
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
  std::map<std::string, std::map<std::string, double>> served_perplexities() {
    const json rows = held_out("tokens.json");
    ServeJob job{.tp = 2, .lines = scoring_lines(rows), .device_memory = "4MiB", .page_size = "128KiB"};
    for (const std::string& model : kModels) {
      job.models.push_back({model, beside_test("trained") / (model + ".h5")});
    }
    const Served served = serve_ok(job, folder_);
    EXPECT_GE(served.metrics.at("swaps").at("count").get<int>(), static_cast<int>(kModels.size()));
    std::map<std::string, std::map<std::string, double>> result;
    for (const std::string& model : kModels) {
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
  auto served = served_perplexities();
  for (const std::string& kind : kKinds) {
    for (const std::string& model : kModels) {
      const double reference = expected.at(model).at(kind);
      EXPECT_NEAR(served[model][kind], reference, 1e-3 * reference) << model << " on " << kind;
      if (model == kind || model == "base") continue;
      EXPECT_LT(served[kind][kind], kClearlyLower * served[model][kind]) << model << " on " << kind;
    }
  }
}

}  // namespace
}  // namespace computron::test

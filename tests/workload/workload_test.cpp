#include "computron/workload/workload.h"

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "computron/base/digest.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

WorkloadOptions options_of(std::vector<WorkloadModel> models) {
  WorkloadOptions options;
  options.models = std::move(models);
  return options;
}

// Arrival times of one model.
std::vector<double> arrivals_at(const WorkloadOptions& options, const std::string& id) {
  std::vector<double> times;
  for (const Request& request : make_workload(options)) {
    if (options.models[request.model].id == id) times.push_back(request.arrival_s);
  }
  return times;
}

struct Moments {
  double count = 0, mean = 0, cv = 0;
};

Moments moments_of_gaps(const std::vector<double>& times) {
  double sum = 0, squares = 0, before = 0;
  for (const double time : times) {
    const double gap = time - std::exchange(before, time);
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(times.size());
  const double mean = sum / n;
  return {n, mean, std::sqrt(squares / n - mean * mean) / mean};
}

class WorkloadMoments : public ::testing::TestWithParam<double> {};

// Five standard errors. Of the mean: cv/sqrt(n) of it. Of cv²: by the delta method, with the Gamma's third and fourth
// central moments, cv² sqrt(2 (1 + cv²) / n).
TEST_P(WorkloadMoments, AreThoseOfTheGammaProcess) {
  const double cv = GetParam(), rate = 50;
  WorkloadOptions options = options_of({{"m", rate}});
  options.cv = cv;
  options.duration_s = 2000;
  options.prompt_tokens = 1;
  const Moments gaps = moments_of_gaps(arrivals_at(options, "m"));
  ASSERT_GT(gaps.count, 90000);
  EXPECT_NEAR(gaps.mean * rate, 1, 5 * cv / std::sqrt(gaps.count));
  const double square = cv * cv;
  EXPECT_NEAR(gaps.cv * gaps.cv, square, 5 * square * std::sqrt(2 * (1 + square) / gaps.count));
}

INSTANTIATE_TEST_SUITE_P(Cv, WorkloadMoments, ::testing::Values(0.25, 1, 4));

TEST(Workload, IsSortedNumberedAndWithinItsBounds) {
  WorkloadOptions options = options_of({{"a", 20}, {"b", 5}});
  options.vocab = 9;
  options.prompt_tokens = 11;
  options.max_tokens = 3;
  std::set<TokenId> tokens;
  double before = 0;
  RequestId next = 0;
  for (const Request& request : make_workload(options)) {
    EXPECT_EQ(request.id, next++);
    EXPECT_GE(request.arrival_s, std::exchange(before, request.arrival_s));
    EXPECT_LT(request.arrival_s, options.duration_s);
    EXPECT_EQ(request.prompt.size(), 11u);
    EXPECT_EQ(request.max_tokens, 3);
    EXPECT_TRUE(request.ignore_eos);
    tokens.insert(request.prompt.begin(), request.prompt.end());
  }
  EXPECT_EQ(tokens, (std::set<TokenId>{4, 5, 6, 7, 8}));
}

TEST(Workload, AModelIsTheSameWhateverElseThereIs) {
  const WorkloadOptions alone = options_of({{"a", 20}});
  WorkloadOptions among = options_of({{"c", 3}, {"a", 20}, {"b", 50}});
  EXPECT_EQ(arrivals_at(among, "a"), arrivals_at(alone, "a"));
  among.prompt_tokens = 100;
  EXPECT_EQ(arrivals_at(among, "a"), arrivals_at(alone, "a"));
  among.models[0].rate_per_s = 20;
  EXPECT_NE(arrivals_at(among, "c"), arrivals_at(alone, "a"));
}

TEST(Workload, SeedsDiffer) {
  WorkloadOptions options = options_of({{"a", 20}});
  const auto first = arrivals_at(options, "a");
  options.seed = 1;
  EXPECT_NE(arrivals_at(options, "a"), first);
}

// The bytes are the same on every machine, so they can be written down.
TEST(Workload, BytesAreThoseOfEveryOtherMachine) {
  WorkloadOptions options = options_of({{"opt-a", 10}, {"opt-b", 1}});
  options.cv = 4;
  options.seed = 7;
  const std::string lines = workload_lines(options.models, make_workload(options));
  EXPECT_NE(lines.find(R"({"custom_id":"opt-a-9","method":"POST","url":"/v1/completions","arrival":0.858185,)"
                       R"("body":{"model":"opt-a","prompt":[32,556,108,667,841,835,716,441],"max_tokens":1,)"
                       R"("temperature":0,"ignore_eos":true}})"
                       "\n"),
            std::string::npos);
  EXPECT_EQ(to_hex(digest128(std::as_bytes(std::span(lines)))), "b4986c733b32462fb4fe3f44fe4a8c0f");
}

// What the reader makes of the lines is what the generator meant.
TEST(Workload, LinesReadBackAsTheRequests) {
  WorkloadOptions options = options_of({{"opt-a", 40}, {"org/opt-b.v1", 20}});
  options.vocab = 100;
  options.duration_s = 5;
  const std::vector<Request> requests = make_workload(options);
  RequestParser parser(two_models(), {});
  std::istringstream lines(workload_lines(options.models, requests));
  std::string line;
  for (const Request& expected : requests) {
    ASSERT_TRUE(std::getline(lines, line));
    const IncomingRequest incoming = parser.parse(expected.id, line);
    ASSERT_TRUE(std::holds_alternative<RequestParts>(incoming.content)) << line;
    const auto& read = std::get<RequestParts>(incoming.content).at(0);
    EXPECT_EQ(read.model, expected.model);
    EXPECT_EQ(read.prompt, expected.prompt);
    EXPECT_EQ(read.max_tokens, expected.max_tokens);
    EXPECT_EQ(read.ignore_eos, expected.ignore_eos);
    EXPECT_EQ(read.arrival_s, expected.arrival_s);
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(Workload, BadOptionsAreNamed) {
  const auto refused = [](const std::string& part, const auto& spoil) {
    WorkloadOptions options = options_of({{"a", 20}});
    spoil(options);
    expect_error(ExitCode::kUsage, part, [&] { make_workload(options); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused("no models", [](auto& o) { o.models.clear(); });
  refused("model id", [](auto& o) { o.models[0].id = "a b"; });
  refused("twice", [](auto& o) { o.models.push_back({"a", 1}); });
  refused("rate of 'a'", [](auto& o) { o.models[0].rate_per_s = 0; });
  refused("rate of 'a'", [nan](auto& o) { o.models[0].rate_per_s = nan; });
  refused("--cv", [](auto& o) { o.cv = 0; });
  refused("--cv", [nan](auto& o) { o.cv = nan; });
  refused("--duration", [](auto& o) { o.duration_s = -1; });
  refused("--duration", [](auto& o) { o.duration_s = std::numeric_limits<double>::infinity(); });
  refused("--duration", [](auto& o) { o.duration_s = 1e9; });
  refused("--prompt-tokens", [](auto& o) { o.prompt_tokens = 0; });
  refused("--max-tokens", [](auto& o) { o.max_tokens = 0; });
  refused("--vocab", [](auto& o) { o.vocab = 4; });
}

TEST(WorkloadModels, AreReadFromEitherForm) {
  const auto items = parse_workload_models({"a=10", "b=0.5"});
  const auto lists = join_workload_models({"a", "b"}, {10, 0.5});
  for (const auto& models : {items, lists}) {
    ASSERT_EQ(models.size(), 2u);
    EXPECT_EQ(models[0].id, "a");
    EXPECT_EQ(models[1].rate_per_s, 0.5);
  }
  for (const char* item : {"a", "a=", "a=ten", "a=10x"}) {
    expect_error(ExitCode::kUsage, item, [item] { parse_workload_models({item}); });
  }
  expect_error(ExitCode::kUsage, "--rates has 1", [] { join_workload_models({"a", "b"}, {10}); });
}

}  // namespace
}  // namespace computron

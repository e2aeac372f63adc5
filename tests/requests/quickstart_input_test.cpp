// inputs/quickstart.jsonl is what its generator writes, and is what jobs/quickstart.sh promises of it.
#include <gmock/gmock.h>

#include <cstdio>
#include <map>
#include <set>
#include <thread>
#include <variant>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

const std::string kInputs = COMPUTRON_INPUTS;

std::vector<IncomingRequest> read_quickstart() {
  const TokenizerFiles files = {{"tokenizer.json", read_file(kInputs + "/trained/base/tokenizer.json")}};
  const auto tokenizer = std::make_shared<const Tokenizer>(files);
  std::vector<ServedModel> models;
  for (const std::string id : {"base", "manual", "python", "licence"}) {
    models.push_back(decoder(id, 2048, 256));
    models.back().tokenizer = tokenizer;
  }
  const CapturedLog log;
  RequestReader reader(kInputs + "/quickstart.jsonl", RequestParser(models, {}), {});
  std::vector<IncomingRequest> requests;
  while (!reader.finished()) {
    if (auto request = reader.poll()) requests.push_back(std::move(*request));
    std::this_thread::yield();
  }
  EXPECT_EQ(log.text().find("not known"), std::string::npos) << log.text();
  return requests;
}

TEST(QuickstartInput, IsWhatTheGeneratorWrites) {
  std::string text;
  FILE* const pipe = popen((kInputs + "/make_requests.sh").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char chunk[4096];
  for (std::size_t count; (count = fread(chunk, 1, sizeof chunk, pipe)) > 0;) text.append(chunk, count);
  ASSERT_EQ(pclose(pipe), 0);
  EXPECT_TRUE(text == read_file(kInputs + "/quickstart.jsonl")) << "regenerate it with inputs/make_requests.sh";
}

TEST(QuickstartInput, HasThreeBadLinesAtKnownPlaces) {
  std::map<RequestId, std::string> failures;
  for (const auto& request : read_quickstart()) {
    const auto* failure = std::get_if<RequestFailure>(&request.content);
    if (failure != nullptr) failures[request.line] = *request.custom_id + ": " + failure->code;
  }
  EXPECT_EQ(failures, (std::map<RequestId, std::string>{{30, "bad-unknown-model: model_not_found"},
                                                        {61, "bad-long-prompt: context_length_exceeded"},
                                                        {92, "bad-json: invalid_json"}}));
}

TEST(QuickstartInput, GoodRequestsCoverModelsAndOptions) {
  std::map<ModelId, int> per_model;
  int with_logprobs = 0, with_echo = 0, switches = 0, good = 0;
  ModelId previous = 99;
  for (const auto& incoming : read_quickstart()) {
    const auto* parts = std::get_if<RequestParts>(&incoming.content);
    if (parts == nullptr) continue;
    const Request* const request = &parts->front();
    ++good;
    ++per_model[request->model];
    with_logprobs += request->logprobs == 2;
    with_echo += request->echo;
    switches += request->model != previous;
    previous = request->model;
    EXPECT_GE(request->prompt.size(), 2u);
    EXPECT_LE(request->prompt.size(), 20u);
    EXPECT_GE(request->max_tokens, 40);
    EXPECT_LE(request->max_tokens, 60);
  }
  EXPECT_EQ(good, 120);
  EXPECT_EQ(per_model.size(), 4u);
  for (const auto& [model, count] : per_model) EXPECT_GE(count, 20) << model;
  EXPECT_GE(with_logprobs, 12);
  EXPECT_GE(with_echo, 6);
  EXPECT_GE(switches, 20);
}

}  // namespace
}  // namespace computron

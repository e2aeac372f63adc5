// The fields of a request that say what its answer is to be.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "computron/guided/guide_spec.h"
#include "tests/requests/requests_support.h"
#include "tests/text/text_support.h"

namespace computron {
namespace {

using testing::HasSubstr;

class GuideCheck : public testing::Test {
 protected:
  GuideCheck() {
    models_ = {decoder("text", 1200, 64), decoder("plain", 1200, 64), decoder("endless", 1200, 64),
               decoder("encoder", 1200, 64)};
    models_[0].tokenizer = models_[2].tokenizer = models_[3].tokenizer =
        std::make_shared<const Tokenizer>(test::tokenizer_files("gpt2"));
    models_[2].config.eos_tokens.clear();
    models_[3].config.causal = false;
    models_[3].config.hidden = 8;
    parser_.emplace(models_, ReaderLimits{});
  }

  IncomingRequest parse(const std::string& fields, const std::string& model = "text",
                        const std::string& url = "/v1/completions") {
    const std::string input = url == "/v1/embeddings" ? "input" : "prompt";
    return parser_->parse(
        3, fmt::format(R"({{"custom_id":"r{}","method":"POST","url":"{}","body":{{"model":"{}","{}":[5],"n":2,{}}}}})",
                       ++lines_, url, model, input, fields));
  }
  // "" where it asks for nothing.
  std::string guide(const std::string& fields) {
    const IncomingRequest incoming = parse(fields);
    if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) {
      ADD_FAILURE() << fields << "\n" << failure->message;
      return {};
    }
    const auto& parts = std::get<RequestParts>(incoming.content);
    EXPECT_EQ(parts[0].sampling.guide, parts[1].sampling.guide) << "copies share the text";
    return parts[0].sampling.guide ? *parts[0].sampling.guide : "";
  }
  void refused(const std::string& fields, const std::string& part, const std::string& model = "text",
               const std::string& url = "/v1/completions") {
    const IncomingRequest incoming = parse(fields, model, url);
    const auto* failure = std::get_if<RequestFailure>(&incoming.content);
    ASSERT_NE(failure, nullptr) << fields;
    EXPECT_THAT(failure->message, HasSubstr(part)) << fields;
  }

  std::vector<ServedModel> models_;
  std::optional<RequestParser> parser_;
  int lines_ = 0;
};

TEST_F(GuideCheck, ReadsEveryField) {
  const std::string schema = R"({"type":"object","properties":{"b":{"type":"number","minimum":-0.5},"a":{}}})";
  EXPECT_EQ(guide(R"("guided_json":)" + schema), schema_guide(schema)) << "in the order of its keys";
  EXPECT_EQ(guide(R"("guided_json":"{\"type\":\"null\"}")"), schema_guide(R"({"type":"null"})"));
  EXPECT_EQ(guide(R"("guided_regex":"a\\d")"), regex_guide("a\\d"));
  EXPECT_EQ(guide(R"("guided_choice":["x","y\"z"])"), choice_guide(R"(["x","y\"z"])"));
  EXPECT_EQ(guide(R"("response_format":{"type":"text"})"), "");
  EXPECT_EQ(guide(R"("response_format":{"type":"json_object"})"), object_guide());
  EXPECT_EQ(guide(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" +
                  schema + "}}"),
            schema_guide(schema));
  EXPECT_EQ(guide(R"("structured_outputs":{"regex":"a"})"), regex_guide("a"));
  EXPECT_EQ(guide(R"("structured_outputs":{"choice":["a"],"json":null})"), choice_guide(R"(["a"])"));
  EXPECT_EQ(guide(R"("structured_outputs":{"json":{"type":"null"}})"), schema_guide(R"({"type":"null"})"));
  EXPECT_EQ(guide(R"("structured_outputs":{"json_object":true})"), object_guide());
  EXPECT_EQ(guide(R"("guided_json":null,"guided_regex":null)"), "");
}

TEST_F(GuideCheck, NamesTheFieldAndTheKeyword) {
  refused(R"("guided_json":{"type":"object","properties":{"a":{"not":{}}}})",
          "body.guided_json: #/properties/a: the keyword 'not'");
  refused(R"("response_format":{"type":"json_schema","json_schema":{"schema":{"if":true}}})",
          "body.response_format.json_schema.schema: #: the keyword 'if'");
  refused(R"("response_format":{"type":"json_schema"})", "body.response_format.json_schema.schema: missing");
  refused(R"("response_format":{"type":"xml"})", "body.response_format.type");
  refused(R"("response_format":"json")", "body.response_format: must be an object (got 'json')");
  refused(R"x("guided_regex":"(?=a)")x", "body.guided_regex: the expression");
  refused(R"("guided_regex":7)", "body.guided_regex: must be a text");
  refused(R"("guided_choice":[])", "body.guided_choice: must be a list");
  refused(R"("guided_choice":["a",1])", "body.guided_choice: must be a list");
  refused(R"("guided_json":[1])", "body.guided_json: must be a JSON schema");
  refused(R"("structured_outputs":{"grammar":"x"})", "body.structured_outputs.grammar: not served");
  refused(R"("structured_outputs":{"regex":"a","choice":["b"]})", "not beside body.structured_outputs.regex");
  refused(R"("guided_regex":"a","guided_choice":["a"])", "not beside");
}

// The fixture's first tokens are single characters, from '!' on; a model may have fewer tokens than its tokenizer.
TEST_F(GuideCheck, AnAnswerThatNoTokenBeginsIsRefused) {
  models_[0].config.vocab = 20;  // to '4'
  parser_.emplace(models_, ReaderLimits{});
  refused(R"("guided_regex":"x+")", "body.guided_regex: no token of text begins an answer like that");
  refused(R"("structured_outputs":{"choice":["yes","no"]})", "body.structured_outputs.choice: no token of text");
  refused(R"("guided_json":{"type":"object"})", "body.guided_json: no token of text");
  EXPECT_EQ(guide(R"("guided_regex":"[x0]+")"), regex_guide("[x0]+"));
  refused(R"("guided_regex":"[x0]+","stop_token_ids":[15])", "no token of text");  // '0' ends answers here
  EXPECT_EQ(guide(R"("guided_regex":"[x0]+")"), regex_guide("[x0]+"));
  EXPECT_EQ(guide(R"("guided_regex":"x*")"), regex_guide("x*")) << "it may be empty";
  EXPECT_TRUE(
      std::holds_alternative<RequestParts>(parse(R"("guided_regex":"x+","stop_token_ids":[7])", "endless").content))
      << "another model has the token";
}

// Whatever it is, and without a look at it; what asks for nothing is served.
TEST_F(GuideCheck, WhereNoneAreServedTheyAreRefusedByName) {
  parser_.emplace(models_, ReaderLimits{.no_guides = "this job serves no guided answers"});
  const std::string why = ": this job serves no guided answers";
  refused(R"("guided_regex":"(((")", "body.guided_regex" + why);
  refused(R"("guided_choice":["a"])", "body.guided_choice" + why);
  refused(R"("response_format":{"type":"json_object"})", "body.response_format" + why);
  refused(R"("structured_outputs":{"regex":"a"})", "body.structured_outputs.regex" + why);
  EXPECT_EQ(guide(R"("response_format":{"type":"text"},"guided_json":null)"), "");
  RequestParser again = parser_->fresh();
  const IncomingRequest read = again.parse(
      0,
      R"({"custom_id":"r","method":"POST","url":"/v1/completions","body":{"model":"text","prompt":[5],"guided_regex":"a"}})");
  EXPECT_TRUE(std::holds_alternative<RequestFailure>(read.content)) << "lines that are read again";
}

TEST_F(GuideCheck, LongObjectsAreRefusedBeforeTheyAreRead) {
  std::string keys = "\"k\":1";
  for (int i = 0; i < 4100; ++i) keys += fmt::format(",\"k{}\":1", i);
  for (const char* field : {"response_format", "structured_outputs", "guided_json"}) {
    refused(fmt::format(R"("{}":{{{}}})", field, keys),
            fmt::format("body.{}: an object of more than 4096 keys", field));
  }
}

TEST_F(GuideCheck, WhatDoesNotGoWithItIsRefused) {
  refused(R"("guided_regex":"a","ignore_eos":true)", "body.ignore_eos");
  refused(R"("guided_regex":"a","min_tokens":2)", "body.min_tokens");
  refused(R"("guided_regex":"a")", "carries no tokenizer", "plain");
  refused(R"("guided_regex":"a")", "no token that ends an answer", "endless");
  EXPECT_TRUE(
      std::holds_alternative<RequestParts>(parse(R"("guided_regex":"a","stop_token_ids":[7])", "endless").content));
  refused(R"("guided_regex":"a")", "is an encoder", "encoder", "/v1/embeddings");
}

}  // namespace
}  // namespace computron

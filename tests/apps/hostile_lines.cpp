#include "tests/apps/hostile_lines.h"

#include <fmt/format.h>

#include <functional>

#include "computron/base/digest.h"

namespace computron::test {
namespace {

struct Kind {
  const char* code;
  std::function<std::string(const std::string& custom_id)> line;
};

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// The kinds of bad lines for a model `model`; `taken` is the custom_id of a healthy line before all of them.
class Kinds {
 public:
  Kinds(std::string model, std::string taken) : model_(std::move(model)), taken_(std::move(taken)) {
    add_broken_json();
    add_text_that_is_none();
    add_envelopes();
    add_prompts();
    add_parameters();
  }

  std::size_t size() const { return kinds_.size(); }
  const Kind& at(std::size_t i) const { return kinds_[i]; }
  std::string request(const std::string& custom_id, const std::string& body) const {
    return fmt::format(R"({{"custom_id":"{}","method":"POST","url":"/v1/completions","body":{{"model":"{}",{}}}}})",
                       custom_id, model_, body);
  }

 private:
  void add(const char* code, std::function<std::string(const std::string&)> line) {
    kinds_.push_back({code, std::move(line)});
  }
  // A request with a body that is wrong.
  void body(const char* code, const std::string& fields) {
    add(code, [this, fields](const std::string& id) { return request(id, fields); });
  }
  // A line without a custom_id.
  void anonymous(const char* code, const std::string& line) {
    add(code, [line](const std::string&) { return line; });
  }
  // A sound request but for what is put into its "user".
  void user(const char* code, const std::string& text) { body(code, R"("prompt":[4],"user":")" + text + '"'); }

  void add_broken_json() {  // I01, I02, I04, I05
    add("invalid_json", [](const std::string& id) { return R"({"custom_id":")" + id + R"(","body":{,}})"; });
    add("invalid_json", [this](const std::string& id) { return request(id, R"("prompt":[4])") + " x"; });
    add("invalid_json", [this](const std::string& id) { return request(id, R"("prompt":[4])").substr(0, 50); });
    anonymous("invalid_json", "hello");
    anonymous("invalid_json", "{'custom_id':'x'}");
    user("invalid_json", "a\tb");
    body("invalid_json", R"("prompt":[04])");
    user("line_too_long", std::string(kHostileLineBytes, 'x'));
    anonymous("line_too_long", std::string(kHostileLineBytes + 1, ' ') + "5");
    anonymous("line_too_long", std::string(100000, '['));
    body("too_deep", R"("prompt":[4],"x":)" + std::string(100, '[') + std::string(100, ']'));
    body("too_deep", R"("prompt":)" + repeated(R"({"a":)", 80) + "1" + std::string(80, '}'));
    body("duplicate_key", R"("prompt":[4],"prompt":[5])");
    add("duplicate_key",
        [](const std::string& id) { return fmt::format(R"({{"custom_id":"{0}","custom_id":"{0}"}})", id); });
  }
  void add_text_that_is_none() {  // I03
    for (const char* bad : {"\xff", "\xC0\x80", "\xED\xA0\x80", "\\ud800", "\\u0000"}) user("invalid_utf8", bad);
    user("invalid_utf8", std::string(1, '\0'));
    add("invalid_utf8", [this](const std::string& id) { return "\xEF\xBB\xBF" + request(id, R"("prompt":[4])"); });
  }
  void add_envelopes() {  // I07, I08, I09
    for (const char* line : {"{}", "[]", "17", R"({"custom_id":17})"}) anonymous("invalid_request", line);
    add("invalid_request", [](const std::string& id) { return fmt::format(R"({{"custom_id":"{}"}})", id); });
    add("invalid_request", [](const std::string& id) {
      return fmt::format(R"({{"custom_id":"{}","method":"GET","url":"/v1/completions"}})", id);
    });
    add("invalid_request", [](const std::string& id) {
      return fmt::format(R"({{"custom_id":"{}","method":"POST","url":"/v9","body":{{}}}})", id);
    });
    body("invalid_request", R"("stream":true,"prompt":[4])");
    add("duplicate_custom_id", [this](const std::string&) { return request(taken_, R"("prompt":[4])"); });
    add("model_not_found", [](const std::string& id) {
      return fmt::format(
          R"({{"custom_id":"{}","method":"POST","url":"/v1/completions","body":{{"model":"nobody","prompt":[4]}}}})",
          id);
    });
  }
  void add_prompts() {  // I10, I13
    body("context_length_exceeded", R"("prompt":[4)" + repeated(",4", 64) + R"(],"max_tokens":1)");
    body("context_length_exceeded", R"("prompt":[4],"max_tokens":2147483647)");
    body("invalid_parameter", R"("prompt":[])");
    body("invalid_request", R"("prompt":null)");
    body("invalid_request", R"("prompt":"text without a tokenizer")");
    for (const char* bad : {"0", "-1", "2147483648"}) {
      body("invalid_parameter", fmt::format(R"("prompt":[4],"max_tokens":{})", bad));
    }
    for (const char* bad : {"128", "-1", "4294967300", "1e30", "0.5"}) {
      body("invalid_parameter", fmt::format(R"("prompt":[4,{}])", bad));
    }
  }
  void add_parameters() {  // I11, I12
    for (const char* bad : {"NaN", "Infinity", "-Infinity", "1e400", "-1e400", "-0.5", "3"}) {
      body("invalid_parameter", fmt::format(R"("prompt":[4],"temperature":{})", bad));
    }
    for (const char* bad :
         {R"("seed":1e30)", R"("seed":0.5)", R"("top_k":99999999999999999999)", R"("top_p":-1)", R"("logprobs":-1)",
          R"("logprobs":2147483647)", R"("n":129)", R"("n":1e18)", R"("logit_bias":{"5":1e99})"}) {
      body("invalid_parameter", fmt::format(R"("prompt":[4],{})", bad));
    }
    body("invalid_parameter", R"("prompt":[4],"stop_token_ids":[4)" + repeated(",4", 300) + "]");
    body("invalid_parameter", R"("prompt":[4],"stop":["a")" + repeated(R"(,"b")", 100) + "]");
  }

  std::string model_, taken_;
  std::vector<Kind> kinds_;
};

// A request for one or two tokens of any kind that does not depend on what else is in the file.
std::string healthy_fields(std::uint64_t bits) {
  constexpr const char* kMore[] = {"", R"(,"temperature":0.8,"seed":7)", R"(,"logprobs":2)", R"(,"temperature":-0.0)",
                                   R"(,"temperature":1,"seed":3,"top_k":5)"};
  std::string prompt = "4";
  for (std::uint64_t i = 0; i < bits % 5; ++i) prompt += fmt::format(",{}", (bits >> (8 * i)) % 128);
  return fmt::format(R"("prompt":[{}],"max_tokens":{}{})", prompt, 1 + (bits >> 40) % 2, kMore[(bits >> 48) % 5]);
}

}  // namespace

HostileFile hostile_file(int lines, const std::string& id, std::uint64_t seed) {
  const Kinds kinds(id, "r0");
  HostileFile file;
  std::uint64_t number = 0;
  std::size_t bad = 0;
  for (int i = 0; i < lines; ++i, ++number) {
    const std::uint64_t bits = hash_tuple(seed, i);
    const std::string custom_id = fmt::format("r{}", i);
    if (bits % 50 == 7) {
      file.text += (bits >> 32) % 2 == 0 ? "\n" : " \t\r\n";
      ++number;
    }
    if (i > 0 && (bits >> 20) % 10 == 0) {
      const Kind& kind = kinds.at(bad++ % kinds.size());
      file.text += kind.line(custom_id);
      file.codes[number] = kind.code;
    } else {
      const std::string line = kinds.request(custom_id, healthy_fields(bits));
      file.text += line;
      file.healthy += line + "\n";
      file.codes[number] = "";
    }
    if (i + 1 < lines) file.text += (bits >> 16) % 16 == 0 ? "\r\n" : "\n";
  }
  return file;
}

}  // namespace computron::test

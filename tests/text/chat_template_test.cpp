// What Jinja2 does with small templates, each of one construct.
#include "src/text/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "computron/text/chat_format.h"
#include "tests/text/text_support.h"

namespace computron::test {
namespace {

using nlohmann::ordered_json;

jinja::Value value_of(const ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    jinja::List items;
    for (const ordered_json& item : json) items.push_back(value_of(item));
    return items;
  }
  if (json.is_object()) {
    jinja::Entries entries;
    for (const auto& [key, item] : json.items()) entries.emplace_back(key, value_of(item));
    return entries;
  }
  return jinja::None{};
}

TEST(ChatTemplate, DoesWhatJinja2Does) {
  const ordered_json fixture = ordered_json::parse(read_file(COMPUTRON_CHAT_FIXTURES "/chats.json"))["constructs"];
  jinja::Entries variables;
  for (const auto& [name, value] : fixture["variables"].items()) variables.emplace_back(name, value_of(value));
  EXPECT_GT(fixture["results"].size(), 50u);
  for (const ordered_json& result : fixture["results"]) {
    const std::string text = result["template"];
    std::optional<std::string> ours;
    std::string fault;
    try {
      ours = ChatTemplate(text).render(variables, *parse_date(fixture["date"].get<std::string>()), /*bytes=*/0);
    } catch (const jinja::TemplateError& error) {
      fault = error.what();
    } catch (const TemplateRefusal& refusal) {
      fault = refusal.words;
    }
    if (result.contains("text")) {
      EXPECT_EQ(ours, result["text"].get<std::string>()) << text << "\n" << fault;
    } else {
      EXPECT_EQ(ours, std::nullopt) << text;
    }
  }
}

}  // namespace
}  // namespace computron::test

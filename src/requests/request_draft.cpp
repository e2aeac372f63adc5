#include "src/requests/request_draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "computron/base/json.h"
#include "computron/base/json_text.h"
#include "computron/storage/text_fault.h"

namespace computron {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kMaxKeys = 10000;  // in one line; a request has some twenty
constexpr double kMaxExactInteger = 0x1p53;
// Fields of the body whose items are kept where they are strings.
constexpr std::string_view kTexts[] = {"data_1", "data_2",  "documents", "input",  "items",
                                       "prompt", "queries", "stop",      "text_1", "text_2"};

using Kind = JsonValue::Kind;

JsonValue number_value(double number) {
  if (std::trunc(number) == number && std::fabs(number) <= kMaxExactInteger) {
    return {.kind = Kind::kInteger, .integer = static_cast<std::int64_t>(number)};
  }
  return {.kind = Kind::kFloat, .number = number};
}

// Writes the events of one value down as JSON again, in the order of its keys.
class JsonWriter {
 public:
  // From the next begin() to the end() that belongs to it, into `out`.
  void open(std::string* out) { out_ = out; }
  bool is_open() const { return out_ != nullptr; }

  void value(std::string_view text) {
    if (!is_open()) return;
    separate();
    *out_ += text;
  }
  void key(std::string_view name) {
    if (!is_open()) return;
    separate();
    *out_ += json_string(name) + ":";
  }
  void begin(char bracket) {
    if (!is_open()) return;
    value({&bracket, 1});
    ++depth_;
  }
  void end(char bracket) {
    if (!is_open()) return;
    *out_ += bracket;
    if (--depth_ == 0) out_ = nullptr;
  }

 private:
  void separate() {
    if (out_->empty()) return;
    const char last = out_->back();
    if (last != '{' && last != '[' && last != ':') *out_ += ',';
  }

  std::string* out_ = nullptr;
  int depth_ = 0;
};

// Builds a draft of a line's events. Throws RequestError out of the parser at the first fault.
class DraftBuilder final : public JsonEvents {
 public:
  DraftBuilder(std::string_view line, std::size_t columns_before, const ParseBounds& bounds)
      : line_(line), columns_before_(columns_before), bounds_(bounds) {}

  void null() override {
    writer_.value("null");
    put({});
  }
  void boolean(bool value) override {
    writer_.value(value ? "true" : "false");
    put({.kind = Kind::kBool, .boolean = value});
  }
  void negative(std::int64_t value) override {
    writer_.value(fmt::to_string(value));
    put({.kind = Kind::kInteger, .integer = value});
  }
  void integer(std::uint64_t value) override;
  void number(double value) override {
    writer_.value(fmt::to_string(value));
    put(number_value(value));
  }
  void string(std::string& value) override {
    if (writer_.is_open()) writer_.value(json_string(value));
    put({.kind = Kind::kString, .text = std::move(value)});
  }
  void begin_object() override;
  void key(std::string& name) override;
  void end_object() override;
  void begin_list() override;
  void end_list() override;

  // Of the whole line.
  RequestDraft read();

 private:
  void put(JsonValue value);
  [[noreturn]] void fail(const JsonFault& fault) const;
  void add_item(JsonValue value);
  void add_integer(std::int64_t value);
  JsonValue* inner_list();
  void descend();
  void open(JsonValue* container);
  void begin_message_or_part();
  void close();
  void keep_whole(JsonValue* field);
  void keep_fields(JsonFields& fields);
  std::string path() const;  // of the field at hand, for messages
  std::string_view not_a_number_at(std::size_t position) const;

  std::string_view line_;
  std::size_t columns_before_;  // bytes of the input line before line_
  ParseBounds bounds_;
  RequestDraft draft_;
  JsonWriter writer_;                                       // of the field that is kept whole
  int depth_ = 0;                                           // open objects and lists
  std::vector<std::unordered_set<std::string>> open_keys_;  // of the open objects
  std::size_t keys_ = 0;
  std::string top_key_;
  std::string body_key_;
  JsonValue* target_ = nullptr;     // where the next value belongs; nullptr: nowhere
  JsonValue* container_ = nullptr;  // the field's list or object that is open
  int container_depth_ = 0;         // depth_ inside it
  JsonValue* outer_ = nullptr;      // what is open around container_, a list in a field's list or in a message
  int outer_depth_ = 0;             // depth_ inside it
  bool is_object_ = false;
  bool in_body_ = false;
  JsonFields* inner_ = nullptr;    // fields of the object that is open within the body, if they are kept
  int inner_depth_ = 0;            // depth_ inside it
  JsonFields* message_ = nullptr;  // fields of the message that the open part belongs to, if one is open
};

void DraftBuilder::integer(std::uint64_t value) {
  if (std::in_range<std::int64_t>(value)) return negative(static_cast<std::int64_t>(value));
  writer_.value(fmt::to_string(value));
  put({.kind = Kind::kFloat, .number = static_cast<double>(value)});
}

void DraftBuilder::put(JsonValue value) {
  if (container_ != nullptr && depth_ == container_depth_) {
    add_item(std::move(value));
  } else if (target_ != nullptr) {
    *target_ = std::move(value);
    target_ = nullptr;
  }
}

void DraftBuilder::add_item(JsonValue value) {
  if (container_->kind == Kind::kObject) return;  // key() counts
  if (value.kind != Kind::kInteger && !container_->has_odd_item) {
    container_->has_odd_item = true;
    container_->odd_index = container_->count;
    container_->odd_kind = value.kind;
  }
  if (value.kind == Kind::kInteger) add_integer(value.integer);
  if (value.kind == Kind::kString && in_body_ && std::ranges::find(kTexts, body_key_) != std::end(kTexts))
    container_->strings.push_back(std::move(value.text));
  ++container_->count;
}

// Of a list that holds nothing else so far the end is kept, too, where requests can ask for it.
void DraftBuilder::add_integer(std::int64_t value) {
  JsonValue& list = *container_;
  if (list.integers.size() < bounds_.max_list) return list.integers.push_back(value);
  if (!in_body_ || (body_key_ != "input" && body_key_ != "token_type_ids")) return;
  if (list.has_odd_item || bounds_.max_list == 0) return;
  const std::size_t place = list.count % bounds_.max_list;
  if (place == list.last_integers.size()) {
    list.last_integers.push_back(value);
  } else {
    list.last_integers[place] = value;
  }
}

void DraftBuilder::descend() {
  if (++depth_ <= bounds_.max_depth) return;
  throw RequestError(400, "too_deep", fmt::format("{}: nested deeper than {} levels", path(), bounds_.max_depth));
}

// A field of the body that is kept whole begins.
void DraftBuilder::keep_whole(JsonValue* field) {
  const bool kept = field != nullptr && depth_ == 2 && in_body_;
  if (kept && std::ranges::find(kGuideFields, body_key_) != std::end(kGuideFields)) writer_.open(&field->json);
}

void DraftBuilder::begin_object() {
  JsonValue* const field = target_;
  put({.kind = Kind::kObject});
  keep_whole(field);
  writer_.begin('{');
  descend();
  open_keys_.emplace_back();
  if (depth_ == 1) is_object_ = true;
  if (field == nullptr) {
    if (in_body_ && body_key_ == "messages") begin_message_or_part();
    const bool document = in_body_ && depth_ == 4 && body_key_ == "documents";
    if (document && draft_.documents.size() < bounds_.max_lists) keep_fields(draft_.documents.emplace_back());
    return;
  }
  if (depth_ == 2 && top_key_ == "body") {
    in_body_ = true;
    return;
  }
  if (depth_ == 3 && in_body_) {
    JsonFields* const kept = body_key_ == "image"                  ? &draft_.image
                             : body_key_ == "logit_bias"           ? &draft_.logit_bias
                             : body_key_ == "chat_template_kwargs" ? &draft_.template_arguments
                                                                   : nullptr;
    if (kept != nullptr) return keep_fields(*kept);
  }
  if (message_ != nullptr) return;  // in a part of a message's content
  open(field);
}

// An object of the body's "messages", or one of a list in such an object.
void DraftBuilder::begin_message_or_part() {
  if (depth_ == 4 && draft_.messages.size() < bounds_.max_lists) keep_fields(draft_.messages.emplace_back());
  const bool part = depth_ == 6 && inner_ != nullptr && container_ != nullptr && container_depth_ == 5;
  if (!part || container_ != &(*inner_)["content"] || draft_.parts.size() >= bounds_.max_lists) return;
  message_ = inner_;
  keep_fields(draft_.parts.emplace_back(draft_.messages.size() - 1, JsonFields()).second);
}

void DraftBuilder::keep_fields(JsonFields& fields) {
  inner_ = &fields;
  inner_depth_ = depth_;
}

void DraftBuilder::key(std::string& name) {
  if (++keys_ > kMaxKeys) {
    throw RequestError(400, "invalid_request", fmt::format("{}: more than {} keys in a line", path(), kMaxKeys));
  }
  const auto [stored, is_new] = open_keys_.back().insert(std::move(name));
  if (!is_new) {
    throw RequestError(400, "duplicate_key", fmt::format("the key {} stands twice in one object", shown(*stored)));
  }
  writer_.key(*stored);
  if (container_ != nullptr && depth_ == container_depth_) ++container_->count;
  if (depth_ == 1) {
    top_key_ = *stored;
    target_ = &draft_.top[top_key_];
  } else if (depth_ == 2 && in_body_) {
    body_key_ = *stored;
    target_ = &draft_.body[body_key_];
  } else if (inner_ != nullptr && depth_ == inner_depth_) {
    target_ = &(*inner_)[*stored];
  }
}

void DraftBuilder::end_object() {
  open_keys_.pop_back();
  writer_.end('}');
  close();
}

void DraftBuilder::end_list() {
  writer_.end(']');
  close();
}

void DraftBuilder::begin_list() {
  JsonValue* const field = target_;
  put({.kind = Kind::kList});
  keep_whole(field);
  writer_.begin('[');
  JsonValue* const list = field != nullptr ? field : inner_list();
  descend();
  if (list == nullptr || message_ != nullptr) return;
  open(list);
}

void DraftBuilder::open(JsonValue* container) {
  outer_ = container_;
  outer_depth_ = container_depth_;
  container_ = container;
  container_depth_ = depth_;
}

// Where the list that opens in the list of a field is kept, if it is.
JsonValue* DraftBuilder::inner_list() {
  const bool in_list = container_ != nullptr && depth_ == container_depth_ && container_->kind == Kind::kList;
  const bool kept = in_body_ && (body_key_ == "prompt" || body_key_ == "input" || body_key_ == "token_type_ids");
  if (!in_list || !kept || outer_ != nullptr || container_->lists.size() >= bounds_.max_lists) return nullptr;
  return &container_->lists.emplace_back(JsonValue{.kind = Kind::kList});
}

void DraftBuilder::close() {
  if (container_ != nullptr && depth_ == container_depth_) {
    container_ = std::exchange(outer_, nullptr);
    container_depth_ = outer_depth_;
  }
  --depth_;
  if (depth_ < inner_depth_) {
    inner_ = std::exchange(message_, nullptr);
    inner_depth_ = inner_ == nullptr ? 0 : 4;
  }
  if (depth_ == 1) {
    in_body_ = false;
    body_key_.clear();
  }
}

std::string DraftBuilder::path() const {
  if (top_key_.empty()) return "the line";
  return cut(in_body_ && !body_key_.empty() ? top_key_ + "." + body_key_ : top_key_);
}

// Python writes NaN, Infinity and -Infinity, which JSON lacks; `position` is the 1-based column of the first letter.
std::string_view DraftBuilder::not_a_number_at(std::size_t position) const {
  if (position == 0 || position > line_.size()) return {};
  for (const std::string_view name : {"NaN", "Infinity"}) {
    if (line_.substr(position - 1).starts_with(name)) return name;
  }
  return {};
}

void DraftBuilder::fail(const JsonFault& fault) const {
  const std::string_view what = fault.message;
  const bool in_value = what.find("while parsing value") != std::string_view::npos;
  const bool too_large = fault.kind == JsonFault::Kind::kNumberTooLarge;
  const std::string_view number = too_large  ? std::string_view(fault.token)
                                  : in_value ? not_a_number_at(fault.position)
                                             : std::string_view();
  if (!number.empty()) {
    throw RequestError(400, "invalid_parameter", fmt::format("{}: {} is not a finite number", path(), cut(number)));
  }
  const auto start = what.find("syntax error");
  const auto reason = what.substr(start == std::string_view::npos ? 0 : start, 160);
  throw RequestError(400, "invalid_json",
                     fmt::format("malformed JSON at byte column {}: {}", columns_before_ + fault.position, reason));
}

RequestDraft DraftBuilder::read() {
  if (const auto fault = read_json(line_, *this)) fail(*fault);
  if (!is_object_) throw RequestError(400, "invalid_request", "the line is not a JSON object");
  return std::move(draft_);
}

void check_text(std::string_view line, std::size_t columns_before) {
  std::optional<TextFault> fault = find_text_fault(line);
  // The parser would skip a byte order mark wherever it starts.
  if (line.starts_with(kByteOrderMark)) fault = {0, "a byte order mark elsewhere than at the start of the input"};
  if (!fault) return;
  throw RequestError(400, "invalid_utf8",
                     fmt::format("{} at byte column {}", fault->what, columns_before + fault->offset + 1));
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInteger:
      return "an integer";
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kObject:
      break;
  }
  return "an object";
}

RequestDraft read_draft(RequestId line_number, std::string_view line, const ParseBounds& bounds) {
  const bool marked = line_number == 0 && line.starts_with(kByteOrderMark);
  const std::size_t columns_before = marked ? kByteOrderMark.size() : 0;
  line.remove_prefix(columns_before);
  check_text(line, columns_before);
  return DraftBuilder(line, columns_before, bounds).read();
}

}  // namespace computron

#include "src/requests/encoder_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "computron/base/base64.h"
#include "computron/base/json_text.h"
#include "src/requests/encoder_texts.h"
#include "src/requests/image_values.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;

// One list of integers and where it stands.
struct List {
  const JsonValue* value;
  std::string path;
};

// Of a list of lists, or of one list, which is a list of one. Text is refused by the caller.
std::vector<List> lists_of(const JsonValue& value, const std::string& path) {
  if (value.kind != Kind::kList) {
    invalid_request(
        fmt::format("{}: must be a list of integers, or a list of such lists (got {})", path, describe(value)));
  }
  if (value.count > kMaxInputs && !value.lists.empty()) {
    invalid_parameter(fmt::format("{}: at most {} inputs a request (got {})", path, kMaxInputs, value.count));
  }
  if (value.lists.empty()) return {{&value, path}};
  if (value.lists.size() != value.count) invalid_request(fmt::format("{}: not all its items are lists", path));
  std::vector<List> lists;
  for (const JsonValue& list : value.lists) lists.push_back({&list, fmt::format("{}[{}]", path, lists.size())});
  return lists;
}

void check_integers(const List& list) {
  if (list.value->count == 0) invalid_parameter(fmt::format("{}: must hold at least one integer", list.path));
  if (!list.value->has_odd_item) return;
  invalid_request(fmt::format("{}[{}]: must be an integer (got {})", list.path, list.value->odd_index,
                              name_of(list.value->odd_kind)));
}

Request token_request(const List& input, const EncoderTexts& texts) {
  check_integers(input);
  return texts.tokens(*input.value, input.path);
}

void add_segments(const JsonValue& value, const std::vector<List>& inputs, const EncoderTexts& texts,
                  RequestParts& parts) {
  const std::string path = "body.token_type_ids";
  if (value.kind == Kind::kNull) return;
  const ServedModel& model = texts.model();
  if (model.config.token_types == 0) invalid_parameter(fmt::format("{}: {} has no segments", path, model.id));
  const std::vector<List> lists = lists_of(value, path);
  if (lists.size() != inputs.size()) {
    invalid_request(fmt::format("{}: {} lists of segments for {} inputs", path, lists.size(), inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_integers(lists[i]);
    const JsonValue &segments = *lists[i].value, &tokens = *inputs[i].value;
    if (segments.count != tokens.count) {
      invalid_request(fmt::format("{}: {} segments of {} tokens", lists[i].path, segments.count, tokens.count));
    }
    parts[i].token_type_ids = texts.segments(segments, lists[i].path);
  }
}

// Two texts as one input, told apart by their segments.
Request pair_request(const JsonValue& pair, const std::string& path, const EncoderTexts& texts) {
  if (pair.strings.size() != 2 || pair.count != 2) invalid_request(fmt::format("{}: a pair must be two texts", path));
  return texts.pair(pair.strings[0], pair.strings[1], path);
}

bool is_text(const JsonValue& input) {
  const auto has_text = [](const JsonValue& list) { return !list.strings.empty() && list.integers.empty(); };
  return input.kind == Kind::kString || has_text(input) ||
         std::any_of(input.lists.begin(), input.lists.end(), has_text);
}

// A text, a list of texts, or a list of pairs of texts.
RequestParts text_requests(const JsonValue& input, const EncoderTexts& texts) {
  const std::string path = "body.input";
  RequestParts parts;
  const std::string& prompt = texts.asked_prompt();
  if (input.kind == Kind::kString) {
    parts.push_back(texts.text(prompt, input.text, path));
    return parts;
  }
  if (input.count > kMaxInputs) {
    invalid_parameter(fmt::format("{}: at most {} inputs a request (got {})", path, kMaxInputs, input.count));
  }
  if (input.strings.size() != input.count && input.lists.size() != input.count) {
    invalid_request(fmt::format("{}: not all its items are texts, or pairs of texts", path));
  }
  for (const std::string& text : input.strings) {
    parts.push_back(texts.text(prompt, text, fmt::format("{}[{}]", path, parts.size())));
  }
  for (const JsonValue& pair : input.lists) {
    parts.push_back(pair_request(pair, fmt::format("{}[{}]", path, parts.size()), texts));
  }
  return parts;
}

RequestParts token_requests(const JsonFields& body, const ServedModel& model, std::optional<Encoder>& encoder) {
  const JsonValue& input = field(body, "input");
  if (field(body, "image").kind != Kind::kNull) {
    invalid_request(fmt::format("body.image: {} takes token ids, in body.input", model.id));
  }
  if (input.kind == Kind::kNull) invalid_request("body.input: missing");
  const EncoderTexts texts(body, model, encoder);
  if (is_text(input)) {
    if (!encoder) refuse_text("body.input", model);
    if (field(body, "token_type_ids").kind != Kind::kNull) {
      invalid_request("body.token_type_ids: goes with token ids; of a text the tokenizer knows them");
    }
    if (!input.lists.empty()) refuse_prompts(body, "pairs of them");
    return text_requests(input, texts);
  }
  refuse_prompts(body, "token ids");
  RequestParts parts;
  const std::vector<List> inputs = lists_of(input, "body.input");
  for (const List& list : inputs) parts.push_back(token_request(list, texts));
  add_segments(field(body, "token_type_ids"), inputs, texts, parts);
  return parts;
}

std::vector<float> values_of_file(const std::string& path, const ServedModel& model, const std::string& folder) {
  if (model.config.channels != 3) {
    invalid_request(fmt::format("body.image: {} takes {} channels, not a picture's 3; give shape and data", model.id,
                                model.config.channels));
  }
  return image_values(read_image_file((std::filesystem::path(folder) / path).string()), model.config);
}

// The text of a shape: "[3, 224, 224]".
std::string shape_text(const ModelConfig& config) {
  return fmt::format("[{}, {}, {}]", config.channels, config.image_size, config.image_size);
}

void check_shape(const JsonValue& shape, const ServedModel& model) {
  const ModelConfig& config = model.config;
  const std::vector<std::int64_t> wanted = {config.channels, config.image_size, config.image_size};
  if (shape.kind == Kind::kList && shape.count == wanted.size() && shape.integers == wanted) return;
  invalid_request(fmt::format("body.image.shape: images of {} have shape {}", model.id, shape_text(config)));
}

// Little-endian float32.
std::vector<float> decode_floats(const std::string& text, std::size_t count) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = decode_base64(text);
  if (!bytes) invalid_request("body.image.data: not base64");
  if (bytes->size() != count * sizeof(float)) {
    invalid_request(
        fmt::format("body.image.data: {} bytes; the shape has {} of float32", bytes->size(), count * sizeof(float)));
  }
  std::vector<float> values(count);
  std::memcpy(values.data(), bytes->data(), bytes->size());
  return values;
}

std::vector<float> values_of_tensor(const JsonFields& image, const ServedModel& model) {
  check_shape(field(image, "shape"), model);
  const ModelConfig& config = model.config;
  const std::size_t count = std::size_t{1} * config.channels * config.image_size * config.image_size;
  std::vector<float> values = decode_floats(required_string(image, "body.image.", "data"), count);
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    invalid_parameter(fmt::format("body.image.data: value {} is not finite", bad - values.begin()));
  }
  return values;
}

RequestParts image_request(const RequestDraft& draft, const ServedModel& model, const std::string& folder) {
  const JsonValue& image = field(draft.body, "image");
  for (const char* name : {"input", "input_type", "prompt_name", "token_type_ids", "truncate_prompt_tokens"}) {
    if (field(draft.body, name).kind == Kind::kNull) continue;
    invalid_request(fmt::format("body.{}: {} takes images, in body.image", name, model.id));
  }
  if (image.kind == Kind::kNull) invalid_request("body.image: missing");
  if (image.kind != Kind::kString && image.kind != Kind::kObject) {
    invalid_request(fmt::format("body.image: must be a file's path, or shape and data (got {})", describe(image)));
  }
  const std::vector<float> values =
      image.kind == Kind::kString ? values_of_file(image.text, model, folder) : values_of_tensor(draft.image, model);
  Request request;
  request.prompt.resize(static_cast<std::size_t>(model.config.max_positions));
  request.patches = cut_into_patches(values, model.config);
  RequestParts parts;
  parts.push_back(std::move(request));
  return parts;
}

bool wants_base64(const JsonFields& body) {
  const JsonValue& format = field(body, "encoding_format");
  if (format.kind == Kind::kNull) return false;
  if (format.kind != Kind::kString || (format.text != "float" && format.text != "base64")) {
    invalid_parameter(fmt::format("body.encoding_format: must be 'float' or 'base64' (got {})", describe(format)));
  }
  return format.text == "base64";
}

}  // namespace

RequestParts encoder_requests(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                              const std::string& image_folder) {
  return model.config.takes_images() ? image_request(draft, model, image_folder)
                                     : token_requests(draft.body, model, encoder);
}

void refuse_prompts(const JsonFields& body, std::string_view with) {
  for (const char* name : {"input_type", "prompt_name"}) {
    if (field(body, name).kind == Kind::kNull) continue;
    invalid_request(fmt::format("body.{}: goes with texts, not with {}", name, with));
  }
}

bool wants_activation(const JsonFields& body) {
  const OptionalFields fields(body);
  return fields.flag("use_activation", fields.flag("activation", /*fallback=*/true));
}

PooledOutput pooled_output(const JsonFields& body, bool embeddings, const ServedModel& model) {
  PooledOutput pooled{.base64 = wants_base64(body), .activation = wants_activation(body)};
  if (!embeddings) {
    if (field(body, "dimensions").kind != Kind::kNull) invalid_parameter("body.dimensions: goes with /v1/embeddings");
    return pooled;
  }
  if (!pooled.activation && model.config.normalize_embedding) {
    invalid_parameter(fmt::format("body.use_activation: embeddings of {} have length 1; must be true", model.id));
  }
  pooled.dimensions =
      static_cast<int>(OptionalFields(body).integer("dimensions", 1, model.config.embedding_size(), /*fallback=*/0));
  return pooled;
}

void complete_pooled(RequestParts& parts, Task task, const ServedModel& model) {
  const ModelConfig& config = model.config;
  for (Request& request : parts) {
    request.task = task;
    request.values = task == Task::kEmbed ? config.embedding_size() : config.classes;
    request.in_chunks = config.causal;
    request.of_all_rows = config.pooling == Pooling::kMean;
  }
}

}  // namespace computron

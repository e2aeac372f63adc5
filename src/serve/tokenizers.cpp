#include "computron/serve/tokenizers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "computron/base/bytes.h"
#include "computron/base/digest.h"
#include "computron/base/log.h"
#include "computron/checkpoint/reader.h"

namespace computron {
namespace {

TokenizerFiles read_files(const CheckpointIndex& index) {
  const TensorReader reader(index);
  TokenizerFiles files;
  for (const auto& [name, entry] : index.tokenizer) files[name] = reader.read(entry);
  return files;
}

Digest128 digest_of(const TokenizerFiles& files, const std::string& model_type) {
  ByteWriter all;
  all.put_string(model_type);
  for (const auto& [name, bytes] : files) {
    all.put_string(name);
    all.put_list(std::span(bytes.data(), bytes.size()));
  }
  return digest128(all.bytes());
}

// Models of one family often carry the same files: they share what is made of them.
using Shared = std::map<Digest128, std::shared_ptr<const Tokenizer>>;

void load_tokenizer(const CheckpointIndex& index, Shared& shared, ServedModel& model) {
  const TokenizerFiles files = read_files(index);
  try {
    std::shared_ptr<const Tokenizer>& tokenizer = shared[digest_of(files, model.config.architecture)];
    if (!tokenizer) tokenizer = std::make_shared<const Tokenizer>(files, model.config.architecture);
    for (const std::string& warning : tokenizer->warnings()) {
      spdlog::warn("model {}: its tokenizer: {}", model.id, warning);
    }
    model.tokenizer = tokenizer;
    const auto named = files.find(kChatFormatFile);
    if (model.chat_format.empty() && named != files.end()) model.chat_format = named->second;
  } catch (const CheckpointError& error) {
    model.tokenizer_fault = error.what();
    spdlog::warn("model {} takes token ids only: its tokenizer cannot be used: {}", model.id, error.what());
  }
}

}  // namespace

bool has_tokenizer(const CheckpointIndex& index) {
  return std::any_of(index.tokenizer.begin(), index.tokenizer.end(), [](const auto& file) {
    return file.first == "tokenizer.json" || file.first == "tokenizer.model" || file.first.starts_with("vocab.");
  });
}

std::vector<std::string> token_texts(const CheckpointIndex& index) {
  const Tokenizer tokenizer(read_files(index), ModelConfig::from_json(index.config_json).architecture);
  std::vector<std::string> texts(static_cast<std::size_t>(tokenizer.tokens_end()));
  for (TokenId token = 0; token < tokenizer.tokens_end(); ++token) {
    if (!tokenizer.is_special(token)) texts[static_cast<std::size_t>(token)] = tokenizer.token_bytes(token);
  }
  return texts;
}

void load_tokenizers(const ModelSet& loaded, std::vector<ServedModel>& models) {
  Shared shared;
  for (std::size_t m = 0; m < models.size(); ++m) {
    const CheckpointIndex& index = loaded.index(static_cast<ModelId>(m));
    const bool images = models[m].config.takes_images();
    if (!images && has_tokenizer(index)) load_tokenizer(index, shared, models[m]);
  }
}

}  // namespace computron

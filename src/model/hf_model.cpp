#include "computron/model/hf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "computron/base/printable.h"
#include "computron/model/family.h"
#include "src/model/differences.h"
#include "src/model/join.h"

namespace computron {
namespace {

constexpr std::size_t kMaxConfigBytes = 4 << 20;  // some list the names of 20,000 classes twice
constexpr std::size_t kMaxTokenizerBytes = 128 << 20;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",      "tokenizer_config.json",
                                           "tokenizer.model",     "vocab.json",
                                           "merges.txt",          "vocab.txt",
                                           "added_tokens.json",   "special_tokens_map.json",
                                           "chat_template.jinja", "preprocessor_config.json"};

std::optional<std::string> text_or_nothing(const ModelFolder& folder, const std::string& name) {
  if (!folder.has(name)) return std::nullopt;
  return folder.read(name, kMaxConfigBytes);
}

ModelConfig read_config(const ModelFolder& folder) try {
  return ModelConfig::from_hf_json(folder.read("config.json", kMaxConfigBytes),
                                   text_or_nothing(folder, "generation_config.json"),
                                   text_or_nothing(folder, "preprocessor_config.json"));
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", folder.path(), error.what()));
}

// `spec` as the family's files hold it: [out, in] or [in, out], of all parts.
std::vector<std::size_t> shape_in_files(const TensorSpec& spec, const SourceTensor& source) {
  std::vector<std::size_t> shape = spec.shape;
  if (spec.transposed) std::swap(shape.front(), shape.back());
  shape.front() *= static_cast<std::size_t>(source.parts);
  if (source.transposed) std::swap(shape.front(), shape.back());
  return shape;
}

// Leading ones may be left out, trailing dimensions may be one: a class token [1, 1, h] is [h], a convolution's weight
// [h, c, p, p] is [h, c × p × p].
bool same_but_flattened(std::vector<std::size_t> stored, const std::vector<std::size_t>& wanted) {
  while (stored.size() > wanted.size() && stored.front() == 1) stored.erase(stored.begin());
  if (stored.size() < wanted.size()) return false;
  std::size_t last = 1;  // no overflow: the file's header has been held against its size
  for (std::size_t i = wanted.size() - 1; i < stored.size(); ++i) last *= stored[i];
  return last == wanted.back() && std::equal(wanted.begin(), wanted.end() - 1, stored.begin());
}

MatrixSource matrix_of(const TensorSpec& spec, const SourceTensor& source, const SafetensorsTensor& stored) {
  MatrixSource matrix{.file = stored.file, .entry = stored.entry, .dtype = *stored.entry->usable_dtype()};
  const std::size_t part = static_cast<std::size_t>(source.part);
  matrix.columns = matrix.stride = spec.shape.back();
  matrix.rows = spec.shape.size() == 2 ? spec.shape.front() : 1;
  if (spec.shape.size() == 1) {
    matrix.first = part * matrix.columns;
    return matrix;
  }
  const std::size_t out = spec.transposed ? matrix.columns : matrix.rows;
  const std::size_t in = spec.transposed ? matrix.rows : matrix.columns;
  matrix.transposed = source.transposed != spec.transposed;
  matrix.stride = source.transposed ? out * static_cast<std::size_t>(source.parts) : in;
  matrix.first = source.transposed ? part * out : part * out * in;
  return matrix;
}

bool same_bytes(const SafetensorsTensor& a, const SafetensorsTensor& b) {
  constexpr std::size_t kPiece = 1 << 20;
  if (a.entry->dtype != b.entry->dtype || a.entry->shape != b.entry->shape) return false;
  std::vector<std::byte> of_a(kPiece), of_b(kPiece);
  const std::size_t bytes = a.entry->end - a.entry->begin;
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t count = std::min(kPiece, bytes - at);
    a.file->read(*a.entry, a.entry->begin + at, std::span(of_a).first(count));
    b.file->read(*b.entry, b.entry->begin + at, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin())) return false;
  }
  return true;
}

// Finds the tensors of one model in a folder's files and keeps account of what is used.
class Resolver {
 public:
  Resolver(const ModelConfig& config, const SafetensorsFolder& weights)
      : config_(config), family_(family_of(config.architecture)), weights_(weights) {
    for (const auto& [name, tensor] : weights.tensors()) take(name);
  }

  std::vector<MatrixSource> all(const std::vector<TensorSpec>& specs) {
    std::vector<MatrixSource> sources;
    for (const TensorSpec& spec : specs) sources.push_back(find(spec).value_or(MatrixSource{}));
    for (const auto& [plain, name] : names_) report_unused(plain, name);
    for (const std::string& name : weights_.unlisted()) report_unused(family_.plain_name(name), name);
    return sources;
  }

  const Differences& differences() const { return differences_; }

 private:
  void take(const std::string& name) {
    const auto [named, fresh] = names_.emplace(family_.plain_name(name), name);
    if (!fresh)
      differences_.add(fmt::format("'{}' and '{}' are the same tensor", printable(named->second), printable(name)));
  }

  void report_unused(const std::string& plain, const std::string& name) {
    if (used_.contains(plain) || family_.ignores(plain)) return;
    differences_.add(fmt::format("'{}': stored, but not part of the model", printable(name)));
  }

  const SafetensorsTensor* stored(const std::string& plain) const {
    const auto named = names_.find(plain);
    return named == names_.end() ? nullptr : &weights_.tensors().at(named->second);
  }

  // A tied head and the embedding are one tensor, stored under either name or, the same, under both.
  std::string name_of_embedding(const std::string& embedding) {
    const std::string head = family_.source_of("head.weight").name;
    const SafetensorsTensor* of_head = stored(head);
    if (of_head == nullptr) return embedding;
    used_.insert(head);
    const SafetensorsTensor* of_embedding = stored(embedding);
    if (of_embedding == nullptr) return head;
    if (!same_bytes(*of_embedding, *of_head)) {
      differences_.add(
          fmt::format("'{}' and '{}' differ, but tie_word_embeddings says that they are one tensor; set it "
                      "to false if they are not",
                      printable(names_[embedding]), printable(names_[head])));
    }
    return embedding;
  }

  std::optional<MatrixSource> find(const TensorSpec& spec) {
    const SourceTensor source = family_.source_of(spec.name);
    const bool tied = config_.tied_head && spec.name == "embedding.tokens.weight";
    const std::string plain = tied ? name_of_embedding(source.name) : source.name;
    used_.insert(plain);
    const SafetensorsTensor* found = stored(plain);
    if (found == nullptr) {
      differences_.add(fmt::format("'{}' ({}): missing", source.name, spec.name));
      return std::nullopt;
    }
    return fits(spec, source, names_[plain], *found->entry) ? std::optional(matrix_of(spec, source, *found))
                                                            : std::nullopt;
  }

  bool fits(const TensorSpec& spec, const SourceTensor& source, const std::string& name,
            const SafetensorsEntry& entry) {
    const std::vector<std::size_t> wanted = shape_in_files(spec, source);
    if (!same_but_flattened(entry.shape, wanted)) {
      differences_.add(fmt::format("'{}': shape [{}] expected, [{}] stored", printable(name), join(wanted, ", "),
                                   join(entry.shape, ", ")));
      return false;
    }
    if (entry.usable_dtype()) return true;
    differences_.add(
        fmt::format("'{}': stored as {}, only F32, F16 and BF16 are supported; if the model is quantized, "
                    "take the original",
                    printable(name), entry.dtype));
    return false;
  }

  const ModelConfig& config_;
  const Family& family_;
  const SafetensorsFolder& weights_;
  std::map<std::string, std::string> names_;  // as stored, by the name without prefix
  std::set<std::string> used_;                // names without prefix
  Differences differences_;
};

}  // namespace

HfModel::HfModel(const std::string& folder)
    : folder_(folder), weights_(folder_), config_(read_config(folder_)), tensors_(tensor_specs(config_)) {
  Resolver resolver(config_, weights_);
  sources_ = resolver.all(tensors_);
  resolver.differences().throw_if_any(folder);
}

std::vector<CarriedFile> HfModel::tokenizer() const {
  std::vector<CarriedFile> files;
  std::size_t bytes = 0;
  for (const char* name : kTokenizerFiles) {
    if (!folder_.has(name)) continue;
    files.push_back({name, folder_.read(name, kMaxCarriedFileBytes)});
    bytes += files.back().content.size();
    if (files.back().content.empty()) throw CheckpointError(fmt::format("{}/{}: empty", folder_.path(), name));
    if (bytes > kMaxTokenizerBytes) {
      throw CheckpointError(
          fmt::format("{}: tokenizer files of {} bytes (limit {})", folder_.path(), bytes, kMaxTokenizerBytes));
    }
  }
  return files;
}

}  // namespace computron

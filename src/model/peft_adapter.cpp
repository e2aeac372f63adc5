#include "computron/model/peft_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "computron/base/join.h"
#include "computron/base/printable.h"
#include "computron/checkpoint/differences.h"
#include "computron/checkpoint/reader.h"
#include "computron/model/adapter.h"
#include "computron/model/family.h"
#include "src/model/folder_tensors.h"
#include "src/model/peft_config.h"

namespace computron {
namespace {

constexpr std::size_t kMaxAdapterConfigBytes = 4 << 20;
constexpr std::string_view kOuterPrefix = "base_model.model.";  // PeftModel's, before the base's own names
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

std::string a_of(const std::string& module) { return fmt::format("{}{}", module, kA); }
std::string b_of(const std::string& module) { return fmt::format("{}{}", module, kB); }

PeftConfig read_config(const ModelFolder& folder) try {
  return PeftConfig(folder.read("adapter_config.json", kMaxAdapterConfigBytes));
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", folder.path(), error.what()));
}

std::unique_ptr<SafetensorsFile> open_weights(const ModelFolder& folder) {
  constexpr const char* kName = "adapter_model.safetensors";
  if (!folder.has(kName) && folder.has("adapter_model.bin")) {
    throw Error(ExitCode::kData, fmt::format("{}: holds adapter_model.bin only; load it with peft and save it with "
                                             "save_pretrained(..., safe_serialization=True)",
                                             folder.path()));
  }
  return std::make_unique<SafetensorsFile>(folder.resolve(kName));
}

std::string_view without_outer_prefix(std::string_view stored) {
  if (stored.starts_with(kOuterPrefix)) stored.remove_prefix(kOuterPrefix.size());
  return stored;
}

}  // namespace

// Finds the tensors of an adapter in its file and keeps account of what is used.
class PeftAdapter::Reading {
 public:
  Reading(PeftAdapter& adapter, const CheckpointIndex& base, const PeftConfig& config)
      : adapter_(adapter),
        index_(base),
        base_(ModelConfig::from_json(base.config_json)),
        family_(family_of(base_.architecture)),
        config_(config) {
    for (const auto& [name, entry] : adapter.weights_->entries()) {
      const std::string plain = family_.plain_name(without_outer_prefix(name));
      const auto [named, fresh] = names_.emplace(plain, name);
      if (fresh) continue;
      differences_.add(fmt::format("'{}' and '{}' are the same tensor", printable(named->second), printable(name)));
    }
  }

  void read(const std::string& folder) {
    for (const TensorSpec& spec : tensor_specs(base_)) {
      if (spec.name.starts_with("dense.")) continue;  // of sentence-transformers, not of the model that PEFT knows
      const SourceTensor source = family_.source_of(base_, spec.name);
      if (takes_adapter(spec)) add_lora(spec, source);
      if (const std::string* name = find(source.name)) add_whole(spec, source, *name);
      check_copy(spec, source);
      check_left_out(spec, source);
    }
    drop_tied_head();
    for (const auto& [plain, name] : names_) {
      if (!used_.contains(plain)) differences_.add(unused(plain, name));
    }
    if (adapter_.tensors_.empty()) differences_.add("it changes nothing");
    differences_.throw_if_any(folder, "an adapter of its base");
  }

 private:
  const std::string* find(const std::string& plain) const {
    const auto found = names_.find(plain);
    return found == names_.end() ? nullptr : &found->second;
  }
  SafetensorsTensor stored(const std::string& name) const {
    return {adapter_.weights_.get(), &adapter_.weights_->entries().at(name)};
  }

  void add_lora(const TensorSpec& spec, const SourceTensor& source) {
    const std::string module = source.name.substr(0, source.name.rfind('.'));
    const std::string *a = find(a_of(module)), *b = find(b_of(module));
    if (a == nullptr && b == nullptr) return;
    used_.insert(a_of(module));
    used_.insert(b_of(module));
    if (a == nullptr || b == nullptr) {
      return differences_.add(fmt::format("'{}': missing", printable(module) + std::string(a == nullptr ? kA : kB)));
    }
    if (source.matrices > 1) {
      return differences_.add(fmt::format("'{}': of experts that are one tensor, which is not supported", *a));
    }
    const std::string_view stored_module =
        without_outer_prefix(*a).substr(0, without_outer_prefix(*a).size() - kA.size());
    const std::size_t rank = config_.rank_of(std::string(stored_module));
    const std::size_t differences = differences_.count();
    add(lora_a_of(spec, rank), {.name = *a, .transposed = true}, *a);
    SourceTensor of_b = source;  // B has the weight's outputs
    of_b.transposed = false;
    add(lora_b_of(spec, rank), of_b, *b);
    if (differences_.count() > differences) return;
    adapter_.tensors_.push_back({LoraNames(spec.name).scale, DType::kF32, {1}});
    adapter_.sources_.emplace_back(config_.scale_of(std::string(stored_module)));
    ++adapter_.modules_;
  }

  // What target_modules names and the file does not have would be computed as the base has it: such a file is not
  // whole. Experts are modules in some versions of transformers and parts of one tensor in others, which have no
  // adapter then. Of modules_to_save PEFT itself passes over those that the model does not have, under names that
  // change with versions of transformers, so they say nothing.
  void check_left_out(const TensorSpec& spec, const SourceTensor& source) {
    const std::string module = source.name.substr(0, source.name.rfind('.'));
    const bool left_out = takes_adapter(spec) && spec.name.find(".experts.") == std::string::npos &&
                          find(source.name) == nullptr && !used_.contains(a_of(module)) && config_.targets(module);
    if (!left_out) return;
    differences_.add(fmt::format("'{}': missing, but target_modules has it", printable(a_of(module))));
  }

  // A tensor that was trained, and saved, whole.
  void add_whole(const TensorSpec& spec, const SourceTensor& source, const std::string& name) {
    used_.insert(source.name);
    if (source.matrices > 1) {
      return differences_.add(fmt::format("'{}': of experts that are one tensor, which is not supported", name));
    }
    add(spec, source, name);
  }

  void add(const TensorSpec& spec, const SourceTensor& source, const std::string& name) {
    const SafetensorsTensor tensor = stored(name);
    const std::vector<std::size_t> wanted = shape_in_files(spec, source);
    if (tensor.entry->shape != wanted) {
      return differences_.add(fmt::format("'{}': shape [{}] expected, [{}] stored", printable(name), join(wanted, ", "),
                                          join(tensor.entry->shape, ", ")));
    }
    const std::optional<DType> dtype = tensor.entry->usable_dtype();
    if (!dtype) {
      return differences_.add(fmt::format("'{}': stored as {}, only F32, F16 and BF16 are supported", printable(name),
                                          tensor.entry->dtype));
    }
    adapter_.tensors_.push_back({spec.name, *dtype, spec.shape, spec.transposed});
    adapter_.sources_.emplace_back(matrix_of(spec, source, tensor, *dtype));
  }

  // PEFT saves an output head beside its A and B, as it is in the base.
  void check_copy(const TensorSpec& spec, const SourceTensor& source) {
    if (!takes_adapter(spec)) return;
    const std::string copy = source.name.substr(0, source.name.rfind('.')) + ".base_layer.weight";
    const std::string* name = find(copy);
    if (name == nullptr) return;
    used_.insert(copy);
    const SafetensorsTensor tensor = stored(*name);
    const TensorEntry& of_base = index_.tensors.at(spec.name);
    const std::optional<DType> dtype = tensor.entry->usable_dtype();
    const bool comparable =
        dtype && is_plain(of_base.dtype) && source.matrices == 1 && tensor.entry->shape == shape_in_files(spec, source);
    if (comparable && has_values_of(of_base, matrix_of(spec, source, tensor, *dtype))) return;
    differences_.add(fmt::format("'{}': stored, but not what {} of {} is", printable(*name), spec.name, index_.path));
  }

  bool has_values_of(const TensorEntry& of_base, const MatrixSource& copy) const {
    bool same = true;
    MatrixReader reader;
    TensorReader(index_).read(of_base, 0, of_base.bytes, kDigestChunkBytes,
                              [&](std::size_t at, std::span<const std::byte> piece) {
                                const auto values = reader.read(copy, of_base.dtype, at, at + piece.size());
                                same = same && std::ranges::equal(values, piece);
                              });
    return same;
  }

  // PEFT saves a tied head beside the embedding; where both are the same, nothing is lost.
  void drop_tied_head() {
    if (!base_.tied_head || base_.pools()) return;
    const std::string head = family_.source_of(base_, "head.weight").name;
    const std::string* of_head = find(head);
    const std::string* of_embedding = find(family_.source_of(base_, "embedding.tokens.weight").name);
    if (of_head != nullptr && of_embedding != nullptr && same_bytes(stored(*of_head), stored(*of_embedding))) {
      used_.insert(head);
    }
  }

  std::string unused(const std::string& plain, const std::string& name) const {
    const auto has = [&](std::string_view part) { return plain.find(part) != std::string::npos; };
    const char* why = "stored, but no linear layer or tensor of the base has this name";
    if (has(".lora_embedding_")) why = "changes an embedding, which is not supported";
    if (has(".lora_magnitude_vector")) why = "a magnitude of DoRA, which is not supported";
    if (has(".lora_") && plain.ends_with(".bias")) why = "a bias of LoRA, which is not supported";
    if (plain.starts_with("lm_head.") && base_.tied_head) {
      why = "changes the output head, but the base's is tied to its embedding";
    }
    return fmt::format("'{}': {}", printable(name), why);
  }

  PeftAdapter& adapter_;
  const CheckpointIndex& index_;
  const ModelConfig base_;
  const Family& family_;
  const PeftConfig& config_;
  std::map<std::string, std::string> names_;  // as stored, by the name without prefixes
  std::set<std::string> used_;                // names without prefixes
  Differences differences_;
};

PeftAdapter::PeftAdapter(const std::string& path, const CheckpointIndex& base) {
  const ModelFolder folder(path);
  const PeftConfig config = read_config(folder);
  weights_ = open_weights(folder);
  Reading(*this, base, config).read(path);
}

}  // namespace computron

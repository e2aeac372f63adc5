#include "computron/model/adapter.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "computron/base/error.h"
#include "computron/base/join.h"
#include "computron/checkpoint/differences.h"
#include "src/model/config_json.h"

namespace computron {
namespace {

constexpr char kKind[] = "adapter", kBase[] = "base", kLora[] = "lora";
constexpr std::string_view kWeight = ".weight";

nlohmann::json configuration_of(const CheckpointIndex& index) try {
  return parse_json_object(index.config_json);
} catch (const ConfigError&) {
  return nlohmann::json::object();
}

// Holds an adapter's tensors against the base's.
class AdapterComparison {
 public:
  explicit AdapterComparison(const CheckpointIndex& adapter) : adapter_(adapter) {}

  void compare(const TensorSpec& spec) {
    if (const TensorEntry* whole = find(spec.name)) compare_whole(spec, *whole);
    if (takes_adapter(spec)) compare_lora(spec);
  }

  void compare_rest() {
    if (adapter_.tensors.empty()) differences.add("no tensors");
    for (const auto& [name, entry] : adapter_.tensors) {
      if (!known_.contains(name)) differences.add(fmt::format("{}: stored, but not part of an adapter", name));
    }
  }

  Differences differences;

 private:
  const TensorEntry* find(const std::string& name) {
    const auto found = adapter_.tensors.find(name);
    if (found == adapter_.tensors.end()) return nullptr;
    known_.insert(name);
    if (!is_plain(found->second.dtype)) {
      differences.add(fmt::format("{}: {} stored, adapters have plain values", name, name_of(found->second.dtype)));
    }
    return &found->second;
  }

  void compare_whole(const TensorSpec& wanted, const TensorEntry& stored) {
    if (stored.shape != wanted.shape) {
      differences.add(fmt::format("{}: shape [{}] expected, [{}] stored", stored.name, join(wanted.shape, ", "),
                                  join(stored.shape, ", ")));
    } else if (stored.transposed != wanted.transposed) {
      differences.add(fmt::format("{}: stored the other way round", stored.name));
    }
  }

  void compare_lora(const TensorSpec& spec) {
    const LoraNames names(spec.name);
    const TensorEntry *a = find(names.a), *b = find(names.b), *scale = find(names.scale);
    if (a == nullptr && b == nullptr && scale == nullptr) return;
    for (const auto& [name, entry] : {std::pair(names.a, a), std::pair(names.b, b), std::pair(names.scale, scale)}) {
      if (entry == nullptr) return differences.add(name + ": missing");
    }
    if (adapter_.tensors.contains(spec.name)) {
      differences.add(fmt::format("{}: changed by {} and stored whole", spec.name, names.a));
    }
    const std::size_t rank = b->shape.back();
    if (rank > kMaxAdapterRank) {
      differences.add(fmt::format("{}: rank {} (limit {})", names.b, rank, kMaxAdapterRank));
    }
    compare_whole(lora_a_of(spec, rank), *a);
    compare_whole(lora_b_of(spec, rank), *b);
    compare_whole({.name = names.scale, .shape = {1}}, *scale);
    if (scale->dtype != DType::kF32) {
      differences.add(fmt::format("{}: {} stored, a scale is f32", names.scale, name_of(scale->dtype)));
    }
  }

  const CheckpointIndex& adapter_;
  std::set<std::string> known_;  // names that have been looked for and found
};

// What a model of this configuration looks like: names and shapes of its tensors.
std::map<std::string, TensorSpec> specs_by_name(const ModelConfig& config) {
  std::map<std::string, TensorSpec> specs;
  for (TensorSpec& spec : tensor_specs(config)) specs.emplace(spec.name, spec);
  return specs;
}

template <class Body>
void naming_file(const std::string& path, const Body& body) try {
  body();
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", path, error.what()));
}

void compare_shapes(const ModelConfig& wanted, const ModelConfig& found, Differences& differences) {
  if (wanted.architecture != found.architecture) {
    return differences.add(
        fmt::format("architecture '{}' expected, '{}' stored", wanted.architecture, found.architecture));
  }
  const auto there = specs_by_name(found);
  for (const auto& [name, spec] : specs_by_name(wanted)) {
    const auto other = there.find(name);
    if (other == there.end()) {
      differences.add(name + ": missing");
    } else if (other->second.shape != spec.shape) {
      differences.add(fmt::format("{}: shape [{}] expected, [{}] stored", name, join(spec.shape, ", "),
                                  join(other->second.shape, ", ")));
    }
  }
}

}  // namespace

std::string module_of(std::string_view weight) {
  ensure(weight.ends_with(kWeight), "the module of what is no weight");
  return std::string(weight.substr(0, weight.size() - kWeight.size()));
}

LoraNames::LoraNames(std::string_view weight) {
  const std::string module = module_of(weight);
  a = module + ".lora_a";
  b = module + ".lora_b";
  scale = module + ".lora_scale";
}

bool takes_adapter(const TensorSpec& spec) {
  return spec.role == TensorRole::kGemmWeight && spec.name != "embedding.tokens.weight" &&
         spec.name != "embedding.patches.weight";
}

TensorSpec lora_a_of(const TensorSpec& weight, std::size_t rank) {
  const std::size_t in = weight.transposed ? weight.shape.front() : weight.shape.back();
  return {.name = LoraNames(weight.name).a,
          .role = TensorRole::kTable,
          .split = weight.transposed ? weight.split : Split::kNone,
          .shape = {in, rank}};
}

TensorSpec lora_b_of(const TensorSpec& weight, std::size_t rank) {
  const std::size_t out = weight.transposed ? weight.shape.back() : weight.shape.front();
  return {.name = LoraNames(weight.name).b,
          .role = TensorRole::kTable,
          .split = weight.transposed ? Split::kNone : weight.split,
          .shape = {out, rank}};
}

void refuse_adapter_ranks(const ModelConfig& config) {
  if (config.adapter_ranks.empty()) return;
  throw ConfigError(
      fmt::format("the configuration has 'adapter_ranks' ('{}'), as a base beside its adapter alone has, "
                  "which are two files",
                  config.adapter_ranks.begin()->first));
}

bool is_adapter(const CheckpointIndex& index) { return configuration_of(index).contains(kKind); }

std::string adapter_config_json(const ModelConfig& base) {
  const nlohmann::json json = {{kKind, kLora}, {kBase, parse_json_object(base.to_json())}};
  return json.dump();
}

ModelConfig base_config_of(const CheckpointIndex& adapter) {
  const nlohmann::json json = configuration_of(adapter);
  if (!json.contains(kKind)) {
    throw ConfigError(fmt::format("{}: is no adapter (convert --adapter makes one)", adapter.path));
  }
  if (json[kKind] != kLora || !json.contains(kBase) || !json[kBase].is_object()) {
    throw ConfigError(
        fmt::format("{}: an adapter of another kind than \"lora\", or without its base's configuration", adapter.path));
  }
  try {
    ModelConfig base = ModelConfig::from_json(json[kBase].dump());
    refuse_adapter_ranks(base);
    return base;
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: 'base': {}", adapter.path, error.what()));
  }
}

void check_adapter(const CheckpointIndex& adapter) {
  const ModelConfig base = base_config_of(adapter);
  AdapterComparison comparison(adapter);
  if (adapter.architecture != base.architecture) {
    comparison.differences.add(
        fmt::format("architecture '{}' expected, '{}' stored", base.architecture, adapter.architecture));
  }
  for (const TensorSpec& spec : tensor_specs(base)) comparison.compare(spec);
  comparison.compare_rest();
  comparison.differences.throw_if_any(adapter.path, "an adapter of its base");
}

void check_adapter_fits(const CheckpointIndex& adapter, const CheckpointIndex& base) {
  check_adapter(adapter);
  if (is_adapter(base)) throw ConfigError(fmt::format("{}: an adapter, where a model is wanted", base.path));
  Differences differences;
  const ModelConfig config = ModelConfig::from_json(base.config_json);
  naming_file(base.path, [&] { refuse_adapter_ranks(config); });
  compare_shapes(base_config_of(adapter), config, differences);
  differences.throw_if_any(base.path, fmt::format("the base of {}", adapter.path).c_str());
}

CheckpointIndex with_adapter(CheckpointIndex base, const CheckpointIndex& adapter) {
  check_adapter_fits(adapter, base);
  ModelConfig config = ModelConfig::from_json(base.config_json);
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (!takes_adapter(spec)) continue;
    const auto b = adapter.tensors.find(LoraNames(spec.name).b);
    if (b == adapter.tensors.end()) continue;
    if (spec.name == "head.weight") {
      throw ConfigError(
          fmt::format("{}: changes the output head, {}, which is computed merged only: convert {} --merge",
                      adapter.path, spec.name, base.path));
    }
    config.adapter_ranks[module_of(spec.name)] = static_cast<int>(b->second.shape.back());
  }
  for (const auto& [name, entry] : adapter.tensors) {
    base.tensors.erase(scales_name(name));  // of the base's codes, whose place the adapter's plain values take
    TensorEntry& own = base.tensors[name] = entry;
    own.in_second_file = true;
  }
  base.config_json = config.to_json();
  base.second_path = adapter.path;
  base.second_file_bytes = adapter.file_bytes;
  return base;
}

}  // namespace computron

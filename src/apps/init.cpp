// computron init: a checkpoint with random weights.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "computron/base/json.h"
#include "computron/base/log.h"
#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/model/family.h"
#include "src/apps/commands.h"
#include "src/apps/progress.h"
#include "src/apps/random_weights.h"
#include "src/apps/stored_type.h"
#include "src/cli/option_checks.h"

namespace computron {
namespace {

constexpr float kDefaultDeviation = 0.02f;  // of transformers
constexpr std::size_t kMaxConfigBytes = 1 << 20;

struct InitOptions {
  std::string output;
  std::string arch, size;  // either both of these
  std::string config;      // or a file
  StoredTypeOptions type{.dtype = "f32"};
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> variant;  // the seed of what is not frozen
  int frozen_layers = 0;
  int threads = usable_cores();
};

// What is to be written.
struct RandomModel {
  ModelConfig config;
  float deviation = kDefaultDeviation;  // of weights and embeddings
};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) throw Error(ExitCode::kNoInput, path + ": cannot be read");
  if (file.gcount() == 0) throw Error(ExitCode::kNoInput, path + ": empty or not a regular file");
  if (!file.eof()) throw ConfigError(fmt::format("{}: longer than {} bytes", path, kMaxConfigBytes));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// OPT has a name of its own for it.
float deviation_of(const nlohmann::json& hf) {
  for (const char* key : {"init_std", "initializer_range"}) {
    const auto found = hf.find(key);
    if (found == hf.end()) continue;
    const float deviation = found->is_number() ? found->get<float>() : -1.0f;
    if (std::isfinite(deviation) && deviation >= 0) return deviation;
    throw ConfigError(fmt::format("model configuration: '{}' is {}, expected a number >= 0", key, found->dump()));
  }
  return kDefaultDeviation;
}

RandomModel model_from_file(const std::string& path) try {
  const std::string text = read_text(path);
  const ModelConfig config = ModelConfig::from_hf_json(text);
  nlohmann::json hf;
  ensure(!parse_json(text, {}, hf), "a configuration that was read is no JSON");
  return {config, deviation_of(hf)};
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("{}: {}", path, error.what()));
}

RandomModel model_of(const InitOptions& options) {
  const bool named = !options.arch.empty() && !options.size.empty();
  const bool partly = !options.arch.empty() || !options.size.empty();
  if (options.config.empty() ? !named : partly) {
    throw Error(ExitCode::kUsage, "init: give either --arch and --size or --config");
  }
  if (named) return {ModelConfig::named(options.arch, options.size)};
  return model_from_file(options.config);
}

// transformers makes biases zero and norm weights one. Ours are near that but differ from element to element, so that
// code which forgets or misplaces one changes the answers.
WeightDistribution distribution_of(const ModelConfig& config, const TensorSpec& spec, float deviation) {
  if (spec.role != TensorRole::kVector) return {0, deviation};
  if (spec.name.ends_with(".bias")) return {0, 0.02f};
  return {config.norm == NormKind::kRmsNormPlusOne ? 0.0f : 1.0f, 0.1f};
}

// Of a quantised model, the rest is bfloat16, and what is quantised is the model of bfloat16.
std::vector<TensorToWrite> plan(const ModelConfig& config, const std::vector<TensorSpec>& specs,
                                const StoredType& type) {
  const DType dtype = type.plain.value_or(DType::kBF16);
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& spec : specs) tensors.push_back({{spec.name, dtype, spec.shape, spec.transposed}, dtype});
  if (type.quantisation) quantise(config, specs, *type.quantisation, tensors);
  return tensors;
}

// Of a variant, the embedding and the first layers are those of the model that it is a variant of.
bool is_frozen(const std::string& tensor, int frozen_layers) {
  constexpr std::string_view kLayers = "layers.";
  if (tensor.starts_with("embedding.")) return true;
  return tensor.starts_with(kLayers) && std::stoi(tensor.substr(kLayers.size())) < frozen_layers;
}

std::vector<RandomTensor> generators_of(const ModelConfig& config, const std::vector<TensorSpec>& specs,
                                        const InitOptions& options, float deviation) {
  std::vector<RandomTensor> generators;
  for (const TensorSpec& spec : specs) {
    const bool tuned = options.variant && !is_frozen(spec.name, options.frozen_layers);
    generators.emplace_back(tuned ? *options.variant : options.seed, spec.name,
                            distribution_of(config, spec, deviation));
  }
  return generators;
}

// Elements [first, last) of a tensor: made in whole tiles, in a buffer of the thread's own.
std::span<const std::byte> make(const RandomTensor& generator, DType dtype, std::size_t first, std::size_t last,
                                std::vector<std::byte>& buffer) {
  const std::size_t begin = first / RandomTensor::kTile * RandomTensor::kTile;
  buffer.resize((last - begin) * size_of(dtype));
  generator.fill(begin, dtype, buffer);
  return std::span(buffer).subspan((first - begin) * size_of(dtype));
}

std::size_t parameters_of(const std::vector<TensorSpec>& specs) {
  std::size_t parameters = 0;
  for (const TensorSpec& spec : specs) {
    std::size_t elements = 1;
    for (const std::size_t extent : spec.shape) elements = checked_mul(elements, extent, spec.name);
    parameters += elements;
  }
  return parameters;
}

void run_init(const InitOptions& options) {
  init_logging(/*rank=*/0, /*quiet=*/false);
  const StoredType type = stored_type(options.type);
  const RandomModel model = model_of(options);
  const auto specs = tensor_specs(model.config);
  const std::size_t parameters = parameters_of(specs);
  const auto tensors = plan(model.config, specs, type);
  const auto generators = generators_of(model.config, specs, options, model.deviation);
  const int threads = threads_to_write(tensors, options.threads);
  CheckpointWriter writer(options.output, model.config.architecture, model.config.to_json(), declarations_of(tensors));
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(threads));
  const std::size_t bytes = bytes_to_write(tensors);
  ByteProgress progress("writing " + options.output, bytes);
  const auto read = [&](int thread, std::size_t tensor, std::size_t first, std::size_t last) {
    auto& buffer = buffers[static_cast<std::size_t>(thread)];
    return make(generators[tensor], tensors[tensor].values, first, last, buffer);
  };
  write_tensors(writer, tensors, threads, {read, [&](std::size_t some) { progress.add(some); }});
  writer.finish();
  fmt::print("{}: {}, {} parameters, {}, {} in {:.1f} s\n", options.output, model.config.architecture, parameters,
             types_of(tensors), format_size(bytes), progress.elapsed_s());
}

// "opt: 125m, 350m, ..." a line.
std::string known_sizes() {
  std::string text;
  for (const Family* family : families()) {
    text += fmt::format("\n  {}:", family->model_type);
    for (const PublishedSize& size : family->sizes) {
      text += fmt::format("{} {}", &size == family->sizes.data() ? "" : ",", size.name);
    }
  }
  return text;
}

}  // namespace

void add_init(CLI::App& app) {
  auto* command = app.add_subcommand("init", "Write a model with random weights");
  const auto options = std::make_shared<InitOptions>();
  command->footer(
      "Weights and embeddings are normal with deviation 0.02 (init_std or initializer_range of --config), as\n"
      "transformers initialises them.\n"
      "Biases are normal with deviation 0.02 instead of zero and norm weights normal around one with deviation 0.1, "
      "so\n"
      "that a computation which loses one is noticed. The same seed gives the same values with any --threads.\n"
      "int8, fp8 (e4m3) and int4 quantise the matrices of the layers, routers excepted, of the model of bf16.\n"
      "Published sizes by family:" +
      known_sizes());
  command->add_option("output", options->output, "Checkpoint to write, OUT.h5")->required();
  command->add_option("--arch", options->arch, "Family of a published size: opt, gpt2, llama, ... (below)");
  command->add_option("--size", options->size, "Published size: 125m, 8x7b, base, ... (below)");
  command->add_option("--config", options->config, "Hugging Face config.json of any other size");
  add_stored_type_options(*command, options->type, "f32, f16 or bf16");
  command->add_option("--seed", options->seed, "Seed of the weights")->check(whole_number())->capture_default_str();
  auto* const variant = command
                            ->add_option("--variant", options->variant,
                                         "Write a variant of the model of --seed: another seed, of all but the "
                                         "embedding and the first --frozen-layers")
                            ->check(whole_number());
  command->add_option("--frozen-layers", options->frozen_layers, "Layers that a variant has in common with its model")
      ->check(CLI::NonNegativeNumber)
      ->needs(variant);
  command->add_option("--threads", options->threads, "Threads that make weights (default: all cores)")
      ->check(CLI::Range(1, 1024));
  command->callback([options] { run_init(*options); });
}

}  // namespace computron

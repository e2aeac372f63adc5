// computron init: a checkpoint with random weights.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "computron/base/json.h"
#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/checkpoint/writer.h"
#include "computron/model/family.h"
#include "src/apps/commands.h"
#include "src/apps/progress.h"
#include "src/apps/random_weights.h"
#include "src/cli/option_checks.h"

namespace computron {
namespace {

constexpr float kDefaultDeviation = 0.02f;  // of transformers
constexpr std::size_t kMaxConfigBytes = 1 << 20;

struct InitOptions {
  std::string output;
  std::string arch, size;  // either both of these
  std::string config;      // or a file
  std::string dtype = "f32";
  std::uint64_t seed = 0;
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
WeightDistribution distribution_of(const TensorSpec& spec, float deviation) {
  if (spec.role != TensorRole::kVector) return {0, deviation};
  if (spec.name.ends_with(".bias")) return {0, 0.02f};
  return {1, 0.1f};
}

// A piece of a tensor that is made and written at once.
struct Piece {
  std::size_t tensor;
  std::size_t offset;
  std::size_t bytes;
};

std::size_t bytes_of(const TensorSpec& spec, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (const std::size_t extent : spec.shape) bytes = checked_mul(bytes, extent, spec.name);
  return bytes;
}

std::vector<Piece> pieces_of(const std::vector<TensorSpec>& specs, DType dtype) {
  std::vector<Piece> pieces;
  for (std::size_t tensor = 0; tensor < specs.size(); ++tensor) {
    const std::size_t bytes = bytes_of(specs[tensor], dtype);
    for (std::size_t at = 0; at < bytes; at += kDigestChunkBytes) {
      pieces.push_back({tensor, at, std::min(kDigestChunkBytes, bytes - at)});
    }
  }
  return pieces;
}

std::vector<TensorDeclaration> declarations_of(const std::vector<TensorSpec>& specs, DType dtype) {
  std::vector<TensorDeclaration> declarations;
  for (const TensorSpec& spec : specs) declarations.push_back({spec.name, dtype, spec.shape, spec.transposed});
  return declarations;
}

std::vector<RandomTensor> generators_of(const std::vector<TensorSpec>& specs, std::uint64_t seed, float deviation) {
  std::vector<RandomTensor> generators;
  for (const TensorSpec& spec : specs) generators.emplace_back(seed, spec.name, distribution_of(spec, deviation));
  return generators;
}

void run_init(const InitOptions& options) {
  const RandomModel model = model_of(options);
  const DType dtype = parse_dtype(options.dtype);
  const auto specs = tensor_specs(model.config);
  const auto generators = generators_of(specs, options.seed, model.deviation);
  const auto pieces = pieces_of(specs, dtype);
  std::size_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += piece.bytes;
  CheckpointWriter writer(options.output, model.config.architecture, model.config.to_json(),
                          declarations_of(specs, dtype));
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(options.threads));
  ByteProgress progress("writing " + options.output, total_bytes);
  parallel_for(pieces.size(), options.threads, [&](int thread, std::size_t item) {
    const Piece& piece = pieces[item];
    auto& buffer = buffers[static_cast<std::size_t>(thread)];
    buffer.resize(piece.bytes);
    generators[piece.tensor].fill(piece.offset / size_of(dtype), dtype, buffer);
    writer.write(piece.tensor, piece.offset, buffer);
    progress.add(piece.bytes);
  });
  writer.finish();
  fmt::print("{}: {}, {} parameters, {}, {} in {:.1f} s\n", options.output, model.config.architecture,
             total_bytes / size_of(dtype), name_of(dtype), format_size(total_bytes), progress.elapsed_s());
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
      "Published sizes by family:" +
      known_sizes());
  command->add_option("output", options->output, "Checkpoint to write, OUT.h5")->required();
  command->add_option("--arch", options->arch, "Family of a published size: opt, gpt2, llama, ... (below)");
  command->add_option("--size", options->size, "Published size: 125m, 8x7b, base, ... (below)");
  command->add_option("--config", options->config, "Hugging Face config.json of any other size");
  command->add_option("--dtype", options->dtype, "f32, f16 or bf16")->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the weights")->check(whole_number())->capture_default_str();
  command->add_option("--threads", options->threads, "Threads that make weights (default: all cores)")
      ->check(CLI::Range(1, 1024));
  command->callback([options] { run_init(*options); });
}

}  // namespace computron

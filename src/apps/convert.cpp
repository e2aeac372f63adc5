// computron convert: a checkpoint from the files of a Hugging Face model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/model/hf_model.h"
#include "src/apps/commands.h"
#include "src/apps/progress.h"

namespace computron {
namespace {

// Buffers of all threads together stay below half of the 512 MiB that a conversion may take. A transposed piece is as
// large as that allows: the more rows it has, the longer the pieces that are read of each line.
constexpr std::size_t kBufferBytes = std::size_t{256} << 20;
constexpr std::size_t kLargestPiece = std::size_t{64} << 20;
constexpr int kMostThreads = 64;

struct ConvertOptions {
  std::string folder, output;
  std::string dtype = "keep";
  int threads = usable_cores();
};

// What becomes of the model's tensors.
struct Conversion {
  const HfModel& model;
  std::vector<TensorDeclaration> tensors;
};

// A part of a tensor that is read and written at once.
struct Piece {
  std::size_t tensor;
  std::size_t begin, end;  // bytes as written
};

// All weights of matrix products of a checkpoint have one element type. A folder in which they differ is not guessed
// at.
void check_one_dtype(const HfModel& model, const std::vector<TensorDeclaration>& tensors) {
  const TensorDeclaration* first = nullptr;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (model.tensors()[i].role != TensorRole::kGemmWeight) continue;
    if (first == nullptr) first = &tensors[i];
    if (tensors[i].dtype == first->dtype) continue;
    throw ConfigError(
        fmt::format("{} is stored as {} and {} as {}, but all weights of a model must have one type: "
                    "choose it with --dtype",
                    first->name, name_of(first->dtype), tensors[i].name, name_of(tensors[i].dtype)));
  }
}

Conversion plan(const HfModel& model, std::optional<DType> dtype) {
  Conversion conversion{model, {}};
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const TensorSpec& spec = model.tensors()[i];
    conversion.tensors.push_back({spec.name, dtype.value_or(model.sources()[i].dtype), spec.shape, spec.transposed});
  }
  check_one_dtype(model, conversion.tensors);
  return conversion;
}

std::vector<Piece> pieces_of(const Conversion& conversion, int threads) {
  const std::size_t share = kBufferBytes / static_cast<std::size_t>(threads) / kDigestChunkBytes * kDigestChunkBytes;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < conversion.tensors.size(); ++i) {
    const MatrixSource& source = conversion.model.sources()[i];
    const std::size_t bytes = source.elements() * size_of(conversion.tensors[i].dtype);
    const std::size_t most = source.transposed ? std::min(share, kLargestPiece) : kDigestChunkBytes;
    for (std::size_t at = 0; at < bytes; at += most) pieces.push_back({i, at, std::min(at + most, bytes)});
  }
  return pieces;
}

// Lines of a tensor that is transposed are read in short pieces, which no read-ahead would foresee.
void announce(const MatrixSource& source, const Piece& piece) {
  if (source.transposed && piece.begin == 0) source.file->will_need(*source.entry);
}

// Returns the bytes written and the seconds it took.
std::pair<std::size_t, double> write(const ConvertOptions& options, const Conversion& conversion) {
  const int threads = std::min(options.threads, kMostThreads);
  const std::vector<Piece> pieces = pieces_of(conversion, threads);
  std::size_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += piece.end - piece.begin;
  const ModelConfig& config = conversion.model.config();
  CheckpointWriter writer(options.output, config.architecture, config.to_json(), conversion.tensors,
                          conversion.model.tokenizer());
  std::vector<MatrixReader> readers(static_cast<std::size_t>(threads));
  ByteProgress progress("writing " + options.output, total_bytes);
  parallel_for(pieces.size(), threads, [&](int thread, std::size_t item) {
    const Piece& piece = pieces[item];
    const MatrixSource& source = conversion.model.sources()[piece.tensor];
    announce(source, piece);
    const DType dtype = conversion.tensors[piece.tensor].dtype;
    const auto bytes = readers[static_cast<std::size_t>(thread)].read(source, dtype, piece.begin, piece.end);
    writer.write(piece.tensor, piece.begin, bytes);
    progress.add(bytes.size());
  });
  writer.finish();
  return {total_bytes, progress.elapsed_s()};
}

void run_convert(const ConvertOptions& options) {
  if (options.output.ends_with(".safetensors")) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("convert: {} would be a checkpoint with the name of a source; call it .h5", options.output));
  }
  const std::optional<DType> dtype = options.dtype == "keep" ? std::nullopt : std::optional(parse_dtype(options.dtype));
  const HfModel model(options.folder);
  const Conversion conversion = plan(model, dtype);
  const auto [bytes, seconds] = write(options, conversion);
  std::size_t parameters = 0;
  for (const MatrixSource& source : model.sources()) parameters += source.elements();
  fmt::print("{}: {}, {} parameters, {}, {} in {:.1f} s\n", options.output, model.config().architecture, parameters,
             name_of(conversion.tensors.front().dtype), format_size(bytes), seconds);
}

}  // namespace

void add_convert(CLI::App& app) {
  auto* command = app.add_subcommand("convert", "Write a model from Hugging Face files");
  const auto options = std::make_shared<ConvertOptions>();
  command->footer(
      "Reads config.json, generation_config.json and safetensors (one file or sharded); the tokenizer's files are "
      "carried\n"
      "along. Narrowing rounds to nearest even; finite values beyond the largest of --dtype become that largest, "
      "infinities\n"
      "and NaN stay. OUT.h5 appears when it is whole. Ends with 78 if the model is not supported or its tensors do not "
      "fit\n"
      "its configuration, with 65 if a file is damaged or in another format, and says which.");
  command->add_option("folder", options->folder, "Folder of the model, HF_DIR")->required();
  command->add_option("output", options->output, "Checkpoint to write, OUT.h5")->required();
  command->add_option("--dtype", options->dtype, "f32, f16, bf16, or keep: as stored")->capture_default_str();
  command->add_option("--threads", options->threads, "Threads that read and write (default: all cores, at most 64)")
      ->check(CLI::Range(1, 1024));
  command->callback([options] { run_convert(*options); });
}

}  // namespace computron

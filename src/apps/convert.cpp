// computron convert: a checkpoint from the files of a Hugging Face model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/model/hf_model.h"
#include "src/apps/commands.h"
#include "src/apps/progress.h"
#include "src/apps/stored_type.h"

namespace computron {
namespace {

struct ConvertOptions {
  std::string folder, output;
  StoredTypeOptions type{.dtype = "keep", .takes_keep = true};
  int threads = usable_cores();
};

// All plain weights of matrix products of a checkpoint have one element type. A folder in which they differ is not
// guessed at.
void check_one_dtype(const HfModel& model, const std::vector<TensorToWrite>& tensors) {
  const TensorDeclaration* first = nullptr;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (model.tensors()[i].role != TensorRole::kGemmWeight || tensors[i].quantised()) continue;
    const TensorDeclaration& tensor = tensors[i].declaration;
    if (first == nullptr) first = &tensor;
    if (tensor.dtype == first->dtype) continue;
    throw ConfigError(
        fmt::format("{} is stored as {} and {} as {}, but all weights of a model must have one type: "
                    "choose it with --dtype",
                    first->name, name_of(first->dtype), tensor.name, name_of(tensor.dtype)));
  }
}

// What becomes of the model's tensors.
std::vector<TensorToWrite> plan(const HfModel& model, const StoredType& type) {
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const TensorSpec& spec = model.tensors()[i];
    const MatrixSource& source = model.sources()[i];
    const DType dtype = type.plain.value_or(source.dtype);
    tensors.push_back({{spec.name, dtype, spec.shape, spec.transposed}, dtype, /*large_pieces=*/source.transposed});
  }
  if (type.quantisation) quantise(model.config(), model.tensors(), *type.quantisation, tensors);
  check_one_dtype(model, tensors);
  return tensors;
}

// Lines of a tensor that is transposed are read in short pieces, which no read-ahead would foresee.
void announce(const MatrixSource& source, std::size_t first) {
  if (source.transposed && first == 0) source.file->will_need(*source.entry);
}

// Returns the seconds it took.
double write(const ConvertOptions& options, const HfModel& model, const std::vector<TensorToWrite>& tensors) {
  const int threads = threads_to_write(tensors, options.threads);
  CheckpointWriter writer(options.output, model.config().architecture, model.config().to_json(),
                          declarations_of(tensors), model.tokenizer());
  std::vector<MatrixReader> readers(static_cast<std::size_t>(threads));
  ByteProgress progress("writing " + options.output, bytes_to_write(tensors));
  const auto read = [&](int thread, std::size_t tensor, std::size_t first, std::size_t last) {
    const MatrixSource& source = model.sources()[tensor];
    announce(source, first);
    const DType dtype = tensors[tensor].values;
    const std::size_t size = size_of(dtype);
    return readers[static_cast<std::size_t>(thread)].read(source, dtype, first * size, last * size);
  };
  write_tensors(writer, tensors, threads, {read, [&](std::size_t bytes) { progress.add(bytes); }});
  writer.finish();
  return progress.elapsed_s();
}

void run_convert(const ConvertOptions& options) {
  if (options.output.ends_with(".safetensors")) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("convert: {} would be a checkpoint with the name of a source; call it .h5", options.output));
  }
  const StoredType type = stored_type(options.type);
  const HfModel model(options.folder);
  const std::vector<TensorToWrite> tensors = plan(model, type);
  const double seconds = write(options, model, tensors);
  std::size_t parameters = 0;
  for (const MatrixSource& source : model.sources()) parameters += source.elements();
  fmt::print("{}: {}, {} parameters, {}, {} in {:.1f} s\n", options.output, model.config().architecture, parameters,
             types_of(tensors), format_size(bytes_to_write(tensors)), seconds);
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
      "and NaN stay. int8, fp8 (e4m3) and int4 quantise the matrices of the layers, routers excepted, and keep the "
      "rest as\n"
      "stored; NaN and infinities in these are refused. OUT.h5 appears when it is whole. Ends with 78 if the model is "
      "not supported or its tensors do not "
      "fit\n"
      "its configuration, with 65 if a file is damaged or in another format, and says which.");
  command->add_option("folder", options->folder, "Folder of the model, HF_DIR")->required();
  command->add_option("output", options->output, "Checkpoint to write, OUT.h5")->required();
  add_stored_type_options(*command, options->type, "f32, f16, bf16, or keep: as stored");
  command->add_option("--threads", options->threads, "Threads that read and write (default: all cores, at most 64)")
      ->check(CLI::Range(1, 1024));
  command->callback([options] { run_convert(*options); });
}

}  // namespace computron

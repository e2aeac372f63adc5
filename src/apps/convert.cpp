// computron convert: a checkpoint from the files of a Hugging Face model, or of an adapter of one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <variant>

#include "computron/base/json_text.h"
#include "computron/base/log.h"
#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/hf_model.h"
#include "computron/text/chat_format.h"
#include "src/apps/commands.h"
#include "src/apps/convert_adapter.h"
#include "src/apps/progress.h"
#include "src/apps/stored_type.h"

namespace computron {
namespace {

struct ConvertOptions {
  std::string folder, output, chat_format;
  std::string adapter, merge;
  StoredTypeOptions type{.dtype = "keep", .takes_keep = true};
  int threads = usable_cores();
};

// What is written, and for each of them where it comes from.
struct Plan {
  using Origin = std::variant<const MatrixSource*, const CodeSource*, const ScaleSource*>;

  std::vector<TensorToWrite> tensors;
  std::vector<Origin> origins;

  void add(TensorToWrite tensor, Origin origin) {
    tensors.push_back(std::move(tensor));
    origins.push_back(origin);
  }
};

// All plain weights of matrix products of a checkpoint have one element type. A folder in which they differ is not
// guessed at.
void check_one_dtype(const HfModel& model, const std::vector<TensorToWrite>& tensors) {
  const TensorDeclaration* first = nullptr;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (model.tensors()[i].role != TensorRole::kGemmWeight || tensors[i].has_codes()) continue;
    const TensorDeclaration& tensor = tensors[i].declaration;
    if (first == nullptr) first = &tensor;
    if (tensor.dtype == first->dtype) continue;
    throw ConfigError(fmt::format("{} is stored as {} and {} as {}, but all weights of a model must have one type{}",
                                  first->name, name_of(first->dtype), tensor.name, name_of(tensor.dtype),
                                  model.quantised() ? "" : ": choose it with --dtype"));
  }
}

// A checkpoint of these tensors could be served: what is multiplied as one is of one type.
void check_servable(const HfModel& model, const std::string& path, const std::vector<TensorToWrite>& tensors) {
  CheckpointIndex index;
  index.path = path;
  index.architecture = model.config().architecture;
  for (const TensorDeclaration& tensor : declarations_of(tensors)) {
    TensorEntry& entry = index.tensors[tensor.name];
    entry.name = tensor.name;
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entry.transposed = tensor.transposed;
    entry.group = tensor.group;
    entry.factor = tensor.factor;
  }
  check_tensors(model.config(), index);
}

// A tensor of the model, its scales left out.
TensorToWrite tensor_of(const TensorSpec& spec, const HfModel::Source& source, const StoredType& type) {
  if (const auto* codes = std::get_if<CodeSource>(&source)) {
    return {{spec.name, codes->codes, spec.shape, spec.transposed, codes->group},
            codes->codes,
            /*large_pieces=*/codes->matrix.transposed};
  }
  const auto& matrix = std::get<MatrixSource>(source);
  const DType dtype = type.plain.value_or(matrix.dtype);
  return {{spec.name, dtype, spec.shape, spec.transposed}, dtype, /*large_pieces=*/matrix.transposed};
}

TensorToWrite scales_to_write(const TensorDeclaration& codes, const ScaleSource& source) {
  TensorDeclaration scales = scales_of(codes);
  scales.dtype = source.matrix.dtype;
  scales.factor = source.factor;
  return {std::move(scales), source.matrix.dtype, /*large_pieces=*/source.matrix.transposed};
}

// Puts the scales of codes that are kept behind them.
Plan with_scales(const HfModel& model, std::vector<TensorToWrite> tensors) {
  Plan plan;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto* codes = std::get_if<CodeSource>(&model.sources()[i])) {
      TensorToWrite scales = scales_to_write(tensors[i].declaration, codes->scales);
      plan.add(std::move(tensors[i]), codes);
      plan.add(std::move(scales), &codes->scales);
    } else {
      plan.add(std::move(tensors[i]), &std::get<MatrixSource>(model.sources()[i]));
    }
  }
  return plan;
}

// What becomes of the model's tensors.
Plan plan_of(const HfModel& model, const ConvertOptions& options, const StoredType& type) {
  if (model.quantised() && options.type.dtype != "keep") {
    throw Error(ExitCode::kUsage,
                fmt::format("{} is quantised already, and its codes are only copied: use --dtype keep instead of {}",
                            options.folder, options.type.dtype));
  }
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    tensors.push_back(tensor_of(model.tensors()[i], model.sources()[i], type));
  }
  if (type.quantisation) quantise(model.config(), model.tensors(), *type.quantisation, tensors);
  check_one_dtype(model, tensors);
  Plan plan = with_scales(model, std::move(tensors));
  if (model.quantised()) check_servable(model, options.folder, plan.tensors);
  return plan;
}

// Lines of a tensor that is transposed are read in short pieces, which no read-ahead would foresee.
void announce(const MatrixSource& source, std::size_t first) {
  if (source.transposed && first == 0) source.file->will_need(*source.entry);
}

// One for each thread.
struct Readers {
  MatrixReader values;
  CodeReader codes;

  // Elements [first, last) of `tensor` as it is to be written.
  std::span<const std::byte> read(const Plan& plan, std::size_t tensor, std::size_t first, std::size_t last) {
    if (const auto* codes_of = std::get_if<const CodeSource*>(&plan.origins[tensor])) {
      announce((*codes_of)->matrix, first);
      return codes.read(**codes_of, first, last);
    }
    if (const auto* scales_of = std::get_if<const ScaleSource*>(&plan.origins[tensor])) {
      return codes.read(**scales_of, first, last);
    }
    const MatrixSource& source = *std::get<const MatrixSource*>(plan.origins[tensor]);
    announce(source, first);
    const DType dtype = plan.tensors[tensor].values;
    return values.read(source, dtype, first * size_of(dtype), last * size_of(dtype));
  }
};

// Returns the seconds it took.
double write(const ConvertOptions& options, const HfModel& model, const Plan& plan) {
  const int threads = threads_to_write(plan.tensors, options.threads);
  std::vector<CarriedFile> tokenizer = model.tokenizer();
  if (!options.chat_format.empty()) tokenizer.push_back({kChatFormatFile, options.chat_format});
  CheckpointWriter writer(options.output, model.config().architecture, model.config().to_json(),
                          declarations_of(plan.tensors), tokenizer);
  std::vector<Readers> readers(static_cast<std::size_t>(threads));
  ByteProgress progress("writing " + options.output, bytes_to_write(plan.tensors));
  const auto read = [&](int thread, std::size_t tensor, std::size_t first, std::size_t last) {
    return readers[static_cast<std::size_t>(thread)].read(plan, tensor, first, last);
  };
  write_tensors(writer, plan.tensors, threads, {read, [&](std::size_t bytes) { progress.add(bytes); }});
  writer.finish();
  return progress.elapsed_s();
}

// What follows from the model's own files does not go with --adapter and --merge.
void check_alone(const ConvertOptions& options) {
  const char* option = options.adapter.empty() ? "--merge" : "--adapter";
  const auto refuse = [&](const char* other) {
    throw Error(ExitCode::kUsage, fmt::format("convert: {} does not go with {}", other, option));
  };
  if (!options.adapter.empty() && !options.merge.empty()) refuse("--merge");
  if (options.type.dtype != "keep" || !options.type.group_size.empty() || options.type.quantize_head) refuse("--dtype");
  if (!options.chat_format.empty()) refuse("--chat-format");
}

void run_with_adapter(const ConvertOptions& options) {
  check_alone(options);
  init_logging(/*rank=*/0, /*quiet=*/false);
  const bool merges = options.adapter.empty();
  const AdapterFiles files{.base = options.folder,
                           .adapter = merges ? options.merge : options.adapter,
                           .output = options.output,
                           .threads = options.threads};
  merges ? merge_adapter(files) : convert_adapter(files);
}

void run_convert(const ConvertOptions& options) {
  if (options.output.ends_with(".safetensors")) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("convert: {} would be a checkpoint with the name of a source; call it .h5", options.output));
  }
  if (!options.chat_format.empty() && !ChatFormat::is_known(options.chat_format)) {
    throw Error(ExitCode::kUsage,
                fmt::format("--chat-format: {} is none of {}", shown(options.chat_format), ChatFormat::known_names()));
  }
  if (!options.adapter.empty() || !options.merge.empty()) return run_with_adapter(options);
  init_logging(/*rank=*/0, /*quiet=*/false);
  const StoredType type = stored_type(options.type);
  const HfModel model(options.folder);
  const Plan plan = plan_of(model, options, type);
  const double seconds = write(options, model, plan);
  std::size_t parameters = 0;
  for (const auto& source : model.sources()) {
    parameters += std::visit([](const auto& of) { return of.elements(); }, source);
  }
  fmt::print("{}: {}, {} parameters, {}, {} in {:.1f} s\n", options.output, model.config().architecture, parameters,
             types_of(plan.tensors), format_size(bytes_to_write(plan.tensors)), seconds);
  if (model.ignores_activations()) {
    fmt::print("{}: activations and caches are not quantised; what the folder says of that is left out\n",
               options.output);
  }
}

}  // namespace

void add_convert(CLI::App& app) {
  auto* command = app.add_subcommand("convert", "Write a model from Hugging Face files");
  const auto options = std::make_shared<ConvertOptions>();
  command->footer(
      R"(Reads config.json, generation_config.json and safetensors (one file or sharded), and the modules of
sentence-transformers (modules.json); the tokenizer's files are carried along. Narrowing rounds to nearest even; finite values beyond the largest of --dtype become that
largest, infinities and NaN stay. int8, fp8 (e4m3) and int4 quantise the matrices of the layers, routers
excepted, and keep the rest as stored; NaN and infinities in these are refused. Folders that are quantised
already (compressed-tensors, fp8 by blocks, symmetric gptq, MXFP4, modelopt's NVFP4) keep their codes and
scales with --dtype keep. With --adapter, HF_DIR is the checkpoint of an adapter's base, and OUT.h5 an adapter;
with --merge, HF_DIR is the base's checkpoint as well, and OUT.h5 a model with the adapter merged into it: base +
scale x B A, rounded once. OUT.h5 appears when it is whole. Ends with 78 if the model is not supported or its
tensors do not fit its configuration, with 65 if a file is damaged or in another format, and says which.)");
  command->add_option("folder", options->folder, "Folder of the model, HF_DIR; of an adapter its base, BASE.h5")
      ->required();
  command->add_option("output", options->output, "Checkpoint to write, OUT.h5")->required();
  add_stored_type_options(*command, options->type, "f32, f16, bf16, or keep: as stored");
  command->add_option("--threads", options->threads, "Threads that read and write (default: all cores, at most 64)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--chat-format", options->chat_format,
                      "Chat format, by name, to be served with instead of the tokenizer's chat template");
  command->add_option("--adapter", options->adapter,
                      "Folder of an adapter as PEFT saves it (LoRA, rsLoRA), to become OUT.h5");
  command->add_option("--merge", options->merge, "Adapter, a file of --adapter, to be merged into BASE.h5");
  command->callback([options] { run_convert(*options); });
}

}  // namespace computron

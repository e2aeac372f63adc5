#include "src/apps/convert_adapter.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <variant>
#include <vector>

#include "computron/base/convert.h"
#include "computron/base/error.h"
#include "computron/base/size.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/checkpoint/reader.h"
#include "computron/checkpoint/write_tensors.h"
#include "computron/model/adapter.h"
#include "computron/model/adapter_merge.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/peft_adapter.h"
#include "src/apps/progress.h"
#include "src/apps/stored_type.h"

namespace computron {
namespace {

// A model's index whose tensors are the model's.
CheckpointIndex read_base(const std::string& path) {
  CheckpointIndex index = read_index_apart(path);
  if (is_adapter(index)) throw ConfigError(fmt::format("{}: an adapter, where its base is wanted", path));
  check_tensors(ModelConfig::from_json(index.config_json), index);
  return index;
}

std::vector<TensorToWrite> to_write(const std::vector<TensorDeclaration>& declarations) {
  std::vector<TensorToWrite> tensors;
  for (const TensorDeclaration& declaration : declarations) {
    const bool turned = declaration.transposed || declaration.name.ends_with(".lora_a");  // in PEFT's file
    tensors.push_back({declaration, declaration.dtype, /*large_pieces=*/turned});
  }
  return tensors;
}

// One for each thread.
class AdapterReader {
 public:
  // Elements [first, last) as stored; valid until the next call.
  std::span<const std::byte> read(const PeftAdapter& adapter, std::size_t tensor, std::size_t first, std::size_t last) {
    if (const auto* number = std::get_if<float>(&adapter.sources()[tensor])) return std::as_bytes(std::span(number, 1));
    const auto& matrix = std::get<MatrixSource>(adapter.sources()[tensor]);
    const std::size_t size = size_of(matrix.dtype);
    return values_.read(matrix, matrix.dtype, first * size, last * size);
  }

 private:
  MatrixReader values_;
};

// A base's tensors with those of an adapter among them or added to them; one for each thread.
class MergedReader {
 public:
  struct Model {
    const CheckpointIndex& index;
    const TensorReader& reader;
  };
  MergedReader(const Model& base, const Model& adapter, AdapterMatrices& matrices)
      : base_(base), adapter_(adapter), merge_(matrices) {}

  std::span<const std::byte> read(const std::string& name, std::size_t first, std::size_t last) {
    const TensorEntry& wanted = base_.index.tensors.at(name);
    if (AdapterMerge::replaces(adapter_.index, name)) {
      const TensorEntry& own = adapter_.index.tensors.at(name);
      read(adapter_.reader, own, first, last, values_);
      converted_.resize((last - first) * size_of(wanted.dtype));
      convert_elements(values_.data(), own.dtype, converted_.data(), wanted.dtype, last - first);
      return converted_;
    }
    read(base_.reader, wanted, first, last, values_);
    if (AdapterMerge::changes(adapter_.index, name)) merge_.add_to(wanted, first, values_);
    return values_;
  }

 private:
  static void read(const TensorReader& reader, const TensorEntry& tensor, std::size_t first, std::size_t last,
                   std::vector<std::byte>& values) {
    const std::size_t size = size_of(tensor.dtype);
    values.resize((last - first) * size);
    reader.read(tensor, first * size, last * size, kDigestChunkBytes,
                [&](std::size_t at, std::span<const std::byte> piece) {
                  std::ranges::copy(piece, values.begin() + static_cast<std::ptrdiff_t>(at));
                });
  }

  Model base_, adapter_;
  AdapterMerge merge_;
  std::vector<std::byte> values_, converted_;
};

void check_not_quantised(const CheckpointIndex& base) {
  for (const auto& [name, tensor] : base.tensors) {
    if (is_plain(tensor.dtype)) continue;
    throw ConfigError(fmt::format(
        "{}: {} is {}, and an adapter cannot be merged into codes: merge it into the model as it was, then quantise",
        base.path, name, name_of(tensor.dtype)));
  }
}

std::vector<CarriedFile> tokenizer_of(const CheckpointIndex& index, const TensorReader& reader) {
  std::vector<CarriedFile> files;
  for (const auto& [name, entry] : index.tokenizer) files.push_back({name, reader.read(entry)});
  return files;
}

// In the order in which `convert` writes them.
std::vector<TensorToWrite> tensors_of(const CheckpointIndex& base) {
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& spec : tensor_specs(ModelConfig::from_json(base.config_json))) {
    const DType dtype = base.tensors.at(spec.name).dtype;
    tensors.push_back({{spec.name, dtype, spec.shape, spec.transposed}, dtype});
  }
  return tensors;
}

std::size_t elements_of(const std::vector<TensorToWrite>& tensors) {
  std::size_t elements = 0;
  for (const TensorToWrite& tensor : tensors) {
    std::size_t count = 1;  // no overflow: the files' indices have been checked
    for (const std::size_t extent : tensor.declaration.shape) count *= extent;
    elements += count;
  }
  return elements;
}

// How many of the base's matrices an adapter's file changes, and the tensors that it has instead.
std::string changes_of(const CheckpointIndex& adapter) {
  std::size_t changed = 0, replaced = 0;
  for (const TensorSpec& spec : tensor_specs(base_config_of(adapter))) {
    changed += AdapterMerge::changes(adapter, spec.name) ? 1 : 0;
    replaced += AdapterMerge::replaces(adapter, spec.name) ? 1 : 0;
  }
  return fmt::format("{} matrices changed, {} tensors replaced", changed, replaced);
}

// An output takes the place of what is there.
void check_output_is_no_input(const AdapterFiles& files) {
  for (const std::string& input : {files.base, files.adapter}) {
    std::error_code none;
    if (!std::filesystem::equivalent(files.output, input, none)) continue;
    throw Error(ExitCode::kUsage, fmt::format("{}: the output is one of the inputs", files.output));
  }
}

}  // namespace

void convert_adapter(const AdapterFiles& files) {
  check_output_is_no_input(files);
  const CheckpointIndex base = read_base(files.base);
  const ModelConfig config = ModelConfig::from_json(base.config_json);
  const PeftAdapter adapter(files.adapter, base);
  const std::vector<TensorToWrite> tensors = to_write(adapter.tensors());
  const int threads = threads_to_write(tensors, files.threads);
  CheckpointWriter writer(files.output, config.architecture, adapter_config_json(config), declarations_of(tensors));
  std::vector<AdapterReader> readers(static_cast<std::size_t>(threads));
  ByteProgress progress("writing " + files.output, bytes_to_write(tensors));
  const auto read = [&](int thread, std::size_t tensor, std::size_t first, std::size_t last) {
    return readers[static_cast<std::size_t>(thread)].read(adapter, tensor, first, last);
  };
  write_tensors(writer, tensors, threads, {read, [&](std::size_t bytes) { progress.add(bytes); }});
  writer.finish();
  fmt::print("{}: adapter of {}, {} matrices, {} parameters, {} in {:.1f} s\n", files.output, config.architecture,
             adapter.modules(), elements_of(tensors), format_size(bytes_to_write(tensors)), progress.elapsed_s());
}

void merge_adapter(const AdapterFiles& files) {
  check_output_is_no_input(files);
  const CheckpointIndex base = read_base(files.base), adapter = read_index_apart(files.adapter);
  check_adapter_fits(adapter, base);
  check_not_quantised(base);
  const TensorReader base_reader(base), adapter_reader(adapter);
  const std::vector<TensorToWrite> tensors = tensors_of(base);
  const int threads = threads_to_write(tensors, files.threads);
  CheckpointWriter writer(files.output, base.architecture, base.config_json, declarations_of(tensors),
                          tokenizer_of(base, base_reader));
  AdapterMatrices matrices(adapter, adapter_reader);
  std::vector<MergedReader> readers;
  for (int i = 0; i < threads; ++i) {
    readers.push_back(MergedReader({base, base_reader}, {adapter, adapter_reader}, matrices));
  }
  ByteProgress progress("writing " + files.output, bytes_to_write(tensors));
  const auto read = [&](int thread, std::size_t tensor, std::size_t first, std::size_t last) {
    return readers[static_cast<std::size_t>(thread)].read(tensors[tensor].declaration.name, first, last);
  };
  write_tensors(writer, tensors, threads, {read, [&](std::size_t bytes) { progress.add(bytes); }});
  writer.finish();
  fmt::print("{}: {}, {} parameters, {}, {} in {:.1f} s: {}\n", files.output, base.architecture, elements_of(tensors),
             types_of(tensors), format_size(bytes_to_write(tensors)), progress.elapsed_s(), changes_of(adapter));
}

}  // namespace computron

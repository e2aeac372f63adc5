// computron inspect: what a checkpoint holds, and whether its bytes are what was written.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "computron/base/convert.h"
#include "computron/base/json.h"
#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/checkpoint/reader.h"
#include "computron/model/adapter.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/coded_estimate.h"
#include "computron/model/config.h"
#include "computron/ops/ops.h"
#include "src/apps/commands.h"
#include "src/apps/progress.h"
#include "src/apps/shared_bytes.h"

namespace computron {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kListedDamages = 10;

struct InspectOptions {
  std::vector<std::string> paths;
  std::string page_size;
  bool json = false;
  bool verify = false;
  int threads = usable_cores();
};

// How many values are wrong.
struct Faults {
  std::size_t not_finite = 0, negative = 0;
};

// A digest chunk of a tensor or of a file of the tokenizer.
struct Chunk {
  std::function<Faults(const TensorReader& reader, std::size_t begin, std::size_t end)> read;
  std::string name;
  std::size_t begin, end;  // bytes of it
};

// What is known of the digests.
struct Verification {
  bool done = false;
  std::size_t chunks = 0;
  std::map<std::size_t, std::string> damages;  // by chunk, in the order of the file
  // Values that are NaN or an infinity, and scales below zero where these make no sense, by tensor that has some.
  std::map<std::string, std::size_t> not_finite, negative;

  const char* state() const { return !done ? "not verified" : damages.empty() ? "verified" : "damaged"; }
  std::vector<std::string> listed() const;
};

std::vector<std::string> Verification::listed() const {
  std::vector<std::string> lines;
  for (const auto& [chunk, what] : damages) {
    if (lines.size() < kListedDamages) lines.push_back(what);
  }
  return lines;
}

// What the weights would take as coded pages, told from a sample.
struct CodedSizes {
  std::string fault;  // why that cannot be told; empty: it can
  std::size_t bytes = 0, coded_bytes = 0;
};

// In the type that they are stored in, laid out as on a CPU. A file that is damaged, or not a model's, is shown all the
// same.
CodedSizes coded_sizes(const CheckpointIndex& index) try {
  const ModelConfig config = ModelConfig::from_json(index.config_json);
  check_tensors(config, index);
  const std::unique_ptr<WeightFormat> format = make_cpu_weight_format();
  const CodedEstimate estimate(index, *format, WeightTypes(config, index));
  return {.fault = {}, .bytes = estimate.total_bytes(), .coded_bytes = estimate.total_coded_bytes()};
} catch (const Error& error) {
  return {.fault = error.what()};
}

std::vector<const TensorEntry*> in_file_order(const CheckpointIndex& index) {
  std::vector<const TensorEntry*> order;
  for (const auto& [name, entry] : index.tensors) order.push_back(&entry);
  std::ranges::sort(order, {}, &StoredBytes::offset);
  return order;
}

// The weight whose scales a tensor holds; null: it holds none.
const TensorEntry* scaled_by(const TensorEntry& tensor, const CheckpointIndex& index) {
  constexpr std::string_view kEnd = ".scales";
  if (!tensor.name.ends_with(kEnd)) return nullptr;
  const auto weight = index.tensors.find(tensor.name.substr(0, tensor.name.size() - kEnd.size()));
  return weight != index.tensors.end() && is_code(weight->second.dtype) ? &weight->second : nullptr;
}

// Signs of int8, fp8 and fp4 are their codes'; the largest of a group of int4 is always -8, which its scale may invert.
bool may_be_negative(const TensorEntry& tensor, const CheckpointIndex& index) {
  const TensorEntry* weight = scaled_by(tensor, index);
  return weight == nullptr || weight->dtype == DType::kInt4;
}

std::size_t elements_in(const TensorEntry& tensor, std::size_t bytes) { return bytes * 8 / bits_of(tensor.dtype); }

Faults faults_in(const TensorEntry& tensor, std::span<const std::byte> values, const CheckpointIndex& index) {
  const std::size_t n = elements_in(tensor, values.size());
  return {.not_finite = count_not_finite(values.data(), tensor.dtype, n),
          .negative = may_be_negative(tensor, index) ? 0 : count_negative(values.data(), tensor.dtype, n)};
}
Faults faults_in(const FileEntry&, std::span<const std::byte>, const CheckpointIndex&) { return {}; }

template <class Entry>
void add_chunks(const Entry& entry, const CheckpointIndex& index, std::vector<Chunk>& chunks) {
  const auto read = [&](const TensorReader& reader, std::size_t begin, std::size_t end) {
    Faults faults;
    reader.read(entry, begin, end, kDigestChunkBytes, [&](std::size_t, std::span<const std::byte> values) {
      const Faults more = faults_in(entry, values, index);
      faults.not_finite += more.not_finite;
      faults.negative += more.negative;
    });
    return faults;
  };
  for (std::size_t at = 0; at < entry.bytes; at += kDigestChunkBytes) {
    chunks.push_back({read, entry.name, at, std::min(at + kDigestChunkBytes, entry.bytes)});
  }
}

std::vector<Chunk> chunks_of(const CheckpointIndex& index) {
  std::vector<Chunk> chunks;
  for (const TensorEntry* tensor : in_file_order(index)) add_chunks(*tensor, index, chunks);
  for (const auto& [name, file] : index.tokenizer) add_chunks(file, index, chunks);
  return chunks;
}

// Reads every byte; goes on after a damaged chunk.
void verify(const CheckpointIndex& index, const std::vector<Chunk>& chunks, int threads, Verification& result) {
  std::size_t total_bytes = 0;
  for (const Chunk& chunk : chunks) total_bytes += chunk.end - chunk.begin;
  const TensorReader reader(index);
  std::mutex mutex;
  ByteProgress progress("verifying " + index.path, total_bytes);
  parallel_for(chunks.size(), threads, [&](int, std::size_t item) {
    const auto& [read, name, begin, end] = chunks[item];
    try {
      const Faults faults = read(reader, begin, end);
      const std::lock_guard lock(mutex);
      if (faults.not_finite > 0) result.not_finite[name] += faults.not_finite;
      if (faults.negative > 0) result.negative[name] += faults.negative;
    } catch (const CheckpointError& error) {
      const std::lock_guard lock(mutex);
      result.damages.emplace(item, error.what());
    }
    progress.add(end - begin);
  });
  result.done = true;
}

std::size_t parameters_of(const CheckpointIndex& index) {
  std::size_t parameters = 0;
  for (const auto& [name, entry] : index.tensors) {
    if (scaled_by(entry, index) == nullptr) parameters += elements_in(entry, entry.bytes);
  }
  return parameters;
}

// Bits that a weight of the tensor takes, its scales counted in.
double bits_a_weight(const TensorEntry& tensor, const CheckpointIndex& index) {
  std::size_t bytes = tensor.bytes;
  const auto scales = index.tensors.find(scales_name(tensor.name));
  if (is_code(tensor.dtype) && scales != index.tensors.end()) bytes += scales->second.bytes;
  return 8 * static_cast<double>(bytes) / static_cast<double>(elements_in(tensor, tensor.bytes));
}

double average_bits(const CheckpointIndex& index) {
  std::size_t bytes = 0;
  for (const auto& [name, entry] : index.tensors) bytes += entry.bytes;
  return 8 * static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(parameters_of(index), 1));
}

// "bf16", "int8 in groups of 32".
std::string type_text(const TensorEntry& tensor) {
  return name_of(WeightType(DType::kBF16, tensor.dtype, DType::kBF16, tensor.group));
}

// The stored configuration; a string if it is not JSON or too deep, which check_configuration() refuses.
ordered_json configuration_of(const CheckpointIndex& index) {
  ordered_json config;
  const bool is_json = !parse_json(index.config_json, {.depth = 64}, config);  // dump() recurses
  return is_json && config.is_object() ? config : ordered_json(index.config_json);
}

std::string text_of(const ordered_json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

std::string shape_text(const TensorEntry& tensor) { return text_of(ordered_json(tensor.shape)); }

// "group" and "bits" (a weight, its scales counted in) are of quantised tensors, "factor" of scales in two levels.
ordered_json json_of(const TensorEntry& tensor, const CheckpointIndex& index) {
  ordered_json json = {{"name", tensor.name},     {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape},   {"transposed", tensor.transposed},
                       {"offset", tensor.offset}, {"bytes", tensor.bytes}};
  if (tensor.dtype == DType::kE4M3) json["factor"] = tensor.factor;
  if (tensor.group == 0) return json;
  json["group"] = tensor.group == WeightType::kWholeRow ? ordered_json("row") : ordered_json(tensor.group);
  json["bits"] = bits_a_weight(tensor, index);
  return json;
}

ordered_json json_of(const Verification& verification) {
  return {{"algorithm", "xxh3-128"},
          {"chunk_bytes", kDigestChunkBytes},
          {"chunks", verification.chunks},
          {"state", verification.state()},
          {"damaged_chunks", verification.damages.size()},
          {"damages", verification.listed()},
          {"not_finite", verification.not_finite},
          {"negative_scales", verification.negative}};
}

ordered_json json_of(const CodedSizes& coded) {
  if (!coded.fault.empty()) return nullptr;
  return {{"bytes", coded.bytes}, {"coded_bytes", coded.coded_bytes}, {"basis", "estimated from a sample"}};
}

void print_json(const CheckpointIndex& index, const CodedSizes& coded, const Verification& verification) {
  ordered_json json = {{"path", index.path},
                       {"file_bytes", index.file_bytes},
                       {"format_version", kCheckpointFormatVersion},
                       {"architecture", index.architecture},
                       {"parameters", parameters_of(index)},
                       {"bits_a_weight", average_bits(index)},
                       {"config", configuration_of(index)},
                       {"tensors", ordered_json::array()},
                       {"tokenizer", ordered_json::array()},
                       {"coded_pages", json_of(coded)},
                       {"digests", json_of(verification)}};
  for (const TensorEntry* tensor : in_file_order(index)) json["tensors"].push_back(json_of(*tensor, index));
  for (const auto& [name, file] : index.tokenizer) {
    json["tokenizer"].push_back({{"name", name}, {"offset", file.offset}, {"bytes", file.bytes}});
  }
  fmt::print("{}\n", text_of(json, 2));
}

void print_configuration(const CheckpointIndex& index) {
  const ordered_json config = configuration_of(index);
  fmt::print("configuration\n");
  if (!config.is_object()) fmt::print("  {}\n", text_of(config));
  if (!config.is_object()) return;
  for (const auto& [key, value] : config.items()) fmt::print("  {:<16} {}\n", key, text_of(value));
}

void print_tensors(const CheckpointIndex& index) {
  std::size_t width = 4, type_width = 5;
  for (const auto& [name, entry] : index.tensors) {
    width = std::max(width, name.size());
    type_width = std::max(type_width, type_text(entry).size());
  }
  fmt::print("tensors\n  {:<{}}  {:<{}}  bits  {:<16} transposed {:>15} {:>15}\n", "name", width, "dtype", type_width,
             "shape", "offset", "bytes");
  for (const TensorEntry* tensor : in_file_order(index)) {
    fmt::print("  {:<{}}  {:<{}}  {:>4.1f}  {:<16} {:<10} {:>15} {:>15}\n", tensor->name, width, type_text(*tensor),
               type_width, bits_a_weight(*tensor, index), shape_text(*tensor), tensor->transposed ? "yes" : "no",
               tensor->offset, tensor->bytes);
  }
}

void print_tokenizer(const CheckpointIndex& index) {
  if (index.tokenizer.empty()) return;
  fmt::print("tokenizer\n");
  for (const auto& [name, file] : index.tokenizer) fmt::print("  {:<26} {:>15} bytes\n", name, file.bytes);
}

void print_coded(const CodedSizes& coded) {
  if (!coded.fault.empty()) return fmt::print("coded pages   cannot be told: {}\n", coded.fault);
  const double share =
      static_cast<double>(coded.coded_bytes) / static_cast<double>(std::max<std::size_t>(coded.bytes, 1));
  fmt::print("coded pages   {} of {} ({:.1f} %), estimated from a sample\n", format_size(coded.coded_bytes),
             format_size(coded.bytes), 100 * share);
}

void print_text(const CheckpointIndex& index, const CodedSizes& coded, const Verification& verification) {
  fmt::print("file          {} ({})\n", index.path, format_size(index.file_bytes));
  fmt::print("format        {}\n", kCheckpointFormatVersion);
  fmt::print("architecture  {}\n", text_of(index.architecture));
  fmt::print("parameters    {}\n", parameters_of(index));
  fmt::print("bits a weight {:.2f} on average, scales counted in\n", average_bits(index));
  print_coded(coded);
  print_configuration(index);
  print_tensors(index);
  print_tokenizer(index);
  fmt::print("digests       xxh3-128, {} chunks of 1 MiB: {}\n", verification.chunks, verification.state());
  for (const std::string& damage : verification.listed()) fmt::print("  {}\n", damage);
  for (const auto& [name, count] : verification.not_finite) {
    fmt::print("  tensor '{}': {} values are NaN or an infinity\n", name, count);
  }
  for (const auto& [name, count] : verification.negative) {
    fmt::print("  tensor '{}': {} scales are negative\n", name, count);
  }
}

void check_damages(const std::string& path, const Verification& verification) {
  if (verification.damages.empty()) return;
  throw CheckpointError(fmt::format("{}: {} of {} chunks are damaged; the first: {}", path, verification.damages.size(),
                                    verification.chunks, verification.damages.begin()->second));
}

// Whoever serves such a model serves on: what a request makes of it shows in its own result (src/sched/README.md).
void check_values(const std::string& path, const Verification& verification) {
  const auto refuse = [&](const std::map<std::string, std::size_t>& counts, const char* what, const char* values) {
    if (counts.empty()) return;
    const auto& [name, count] = *counts.begin();
    throw ConfigError(fmt::format("{}: {} tensors hold {}; the first: {} {} of tensor '{}'", path, counts.size(), what,
                                  count, values, name));
  };
  refuse(verification.not_finite, "NaN or an infinity", "values");
  refuse(verification.negative, "negative scales of int8, fp8 or fp4", "scales");
}

void check_configuration(const CheckpointIndex& index) try {
  if (is_adapter(index)) return check_adapter(index);
  check_tensors(ModelConfig::from_json(index.config_json), index);
} catch (const ConfigError& error) {
  const std::string what = error.what();
  throw ConfigError(what.starts_with(index.path) ? what : fmt::format("{}: {}", index.path, what));
}

void run_inspect(const InspectOptions& options) {
  if (options.paths.size() > 1) {
    if (options.verify) throw Error(ExitCode::kUsage, "inspect: --verify takes one file");
    const std::size_t page_bytes = options.page_size.empty() ? 0 : parse_size(options.page_size);
    if (page_bytes % 64 != 0) throw Error(ExitCode::kUsage, "--page-size must be a multiple of 64");
    return show_shared_bytes(options.paths, page_bytes, options.json);
  }
  if (!options.page_size.empty()) throw Error(ExitCode::kUsage, "inspect: --page-size goes with several files");
  const CheckpointIndex index = read_index_apart(options.paths.front());
  const std::vector<Chunk> chunks = chunks_of(index);
  Verification verification;
  verification.chunks = chunks.size();
  if (options.verify) verify(index, chunks, options.threads, verification);
  const CodedSizes coded = coded_sizes(index);
  options.json ? print_json(index, coded, verification) : print_text(index, coded, verification);
  check_damages(index.path, verification);
  check_configuration(index);
  check_values(index.path, verification);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "inspect", "Show the configuration, tensors and digests of a model file, or what several have in common");
  const auto options = std::make_shared<InspectOptions>();
  command->footer(
      "Ends with 65 if the file is no sound checkpoint or --verify finds damage, with 78 if its tensors do not fit "
      "its\n"
      "configuration or --verify finds NaN, infinities or negative scales (of int8, fp8 and fp4) in them.");
  command->add_option("file", options->paths, "Checkpoint, FILE.h5; of several, what they have in common is shown")
      ->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_option("--page-size", options->page_size, "Of several files: bytes of a page (default: as a job would)");
  command->add_flag("--verify", options->verify,
                    "Read every byte, compare with the stored digests and look for NaN and infinities");
  command->add_option("--threads", options->threads, "Threads that verify (default: all cores)")
      ->check(CLI::Range(1, 1024));
  command->callback([options] { run_inspect(*options); });
}

}  // namespace computron

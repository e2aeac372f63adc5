#include "src/checkpoint/index_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/checkpoint/format.h"

namespace computron {
namespace {

void check_string(const std::string& text, const char* what, const Subject& file) {
  if (text.size() > format::kMaxStringBytes) {
    file.with(what).fail(fmt::format("{} bytes (limit {})", text.size(), format::kMaxStringBytes));
  }
}

void check_stored(const StoredBytes& stored, std::size_t file_bytes, const Subject& subject) {
  if (stored.offset > file_bytes || stored.bytes > file_bytes - stored.offset) {
    subject.fail(fmt::format("bytes {} to {} + {} are outside the file of {} bytes", stored.offset, stored.offset,
                             stored.bytes, file_bytes));
  }
  const std::size_t chunks = ceil_div(stored.bytes, kDigestChunkBytes);
  if (stored.digests.size() != chunks) {
    subject.fail(fmt::format("{} digests for {} chunks of 1 MiB", stored.digests.size(), chunks));
  }
}

void check_entry(const TensorEntry& tensor, const CheckpointIndex& index, const Subject& subject) {
  const std::size_t bytes = format::tensor_bytes(tensor.shape, tensor.dtype, subject);
  format::check_group(tensor, subject);
  format::check_factor(tensor, subject);
  if (tensor.bytes != bytes) subject.fail(fmt::format("{} bytes stored, its shape needs {}", tensor.bytes, bytes));
  check_stored(tensor, index.file_bytes, subject);
}

void check_entry(const FileEntry& file, const CheckpointIndex& index, const Subject& subject) {
  if (file.bytes == 0 || file.bytes > kMaxCarriedFileBytes) {
    subject.fail(fmt::format("{} bytes (1 to {} are allowed)", file.bytes, kMaxCarriedFileBytes));
  }
  check_stored(file, index.file_bytes, subject);
}

// `what` is an entry, "tensor" or "tokenizer file".
template <class Entry>
void check_entries(const std::map<std::string, Entry>& entries, std::size_t limit, const char* what,
                   const CheckpointIndex& index, const Subject& file) {
  if (entries.size() > limit) file.fail(fmt::format("{} {}s (limit {})", entries.size(), what, limit));
  for (const auto& [name, entry] : entries) {
    if (const auto fault = format::fault_of_name(name)) file.fail(fmt::format("{}: {}", what, *fault));
    const Subject subject = file.with(fmt::format("{} '{}'", what, name));
    if (entry.name != name) subject.fail("listed under another name");
    check_entry(entry, index, subject);
  }
}

void check_disjoint(const CheckpointIndex& index, const Subject& file) {
  std::vector<const StoredBytes*> order;
  for (const auto& [name, entry] : index.tensors) order.push_back(&entry);
  for (const auto& [name, entry] : index.tokenizer) order.push_back(&entry);
  std::ranges::sort(order, {}, &StoredBytes::offset);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes <= order[i]->offset) continue;
    file.fail(fmt::format("'{}' and '{}' overlap", order[i - 1]->name, order[i]->name));
  }
}

}  // namespace

void check_index(const CheckpointIndex& index, const Subject& file) {
  check_string(index.architecture, "architecture", file);
  check_string(index.config_json, "config", file);
  check_entries(index.tensors, format::kMaxTensors, "tensor", index, file);
  check_entries(index.tokenizer, kMaxCarriedFiles, "tokenizer file", index, file);
  check_disjoint(index, file);
}

}  // namespace computron

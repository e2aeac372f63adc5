#include "computron/checkpoint/index.h"

#include "computron/base/bytes.h"

namespace computron {
namespace {

void put_bytes(ByteWriter& out, const StoredBytes& stored) {
  out.put_string(stored.name);
  out.put<std::uint64_t>(stored.offset);
  out.put<std::uint64_t>(stored.bytes);
  out.put_list(stored.digests);
}

void get_bytes(ByteReader& in, StoredBytes& stored) {
  stored.name = in.get_string();
  stored.offset = in.get<std::uint64_t>();
  stored.bytes = in.get<std::uint64_t>();
  stored.digests = in.get_list<Digest128>();
}

void put_entry(ByteWriter& out, const FileEntry& entry) { put_bytes(out, entry); }
void get_entry(ByteReader& in, FileEntry& entry) { get_bytes(in, entry); }

void put_entry(ByteWriter& out, const TensorEntry& entry) {
  put_bytes(out, entry);
  out.put(entry.dtype);
  out.put_list(entry.shape);
  out.put(static_cast<std::uint8_t>(entry.transposed));
  out.put<std::int32_t>(entry.group);
  out.put(entry.factor);
}

void get_entry(ByteReader& in, TensorEntry& entry) {
  get_bytes(in, entry);
  entry.dtype = in.get<DType>();
  entry.shape = in.get_list<std::size_t>();
  entry.transposed = in.get<std::uint8_t>() != 0;
  entry.group = in.get<std::int32_t>();
  entry.factor = in.get<double>();
}

template <class Entry>
void put_entries(ByteWriter& out, const std::map<std::string, Entry>& entries) {
  out.put(static_cast<std::uint32_t>(entries.size()));
  for (const auto& [name, entry] : entries) put_entry(out, entry);
}

template <class Entry>
void get_entries(ByteReader& in, std::map<std::string, Entry>& entries) {
  for (auto left = in.get<std::uint32_t>(); left > 0; --left) {
    Entry entry;
    get_entry(in, entry);
    entries.emplace(entry.name, std::move(entry));
  }
}

// Of a model in one file there is nothing: what is known of such a file by its digest stays so.
void put_second_file(ByteWriter& out, const CheckpointIndex& index) {
  out.put_string(index.second_path);
  out.put<std::uint64_t>(index.second_file_bytes);
  for (const auto& [name, entry] : index.tensors) out.put(static_cast<std::uint8_t>(entry.in_second_file));
}

void get_second_file(ByteReader& in, CheckpointIndex& index) {
  index.second_path = in.get_string();
  index.second_file_bytes = in.get<std::uint64_t>();
  for (auto& [name, entry] : index.tensors) entry.in_second_file = in.get<std::uint8_t>() != 0;
}

}  // namespace

std::string scales_name(std::string_view weight) { return std::string(weight) + ".scales"; }

std::vector<std::size_t> scales_shape(const std::vector<std::size_t>& codes, bool transposed, int group) {
  const std::size_t out = transposed ? codes.back() : codes.front();
  const std::size_t in = transposed ? codes.front() : codes.back();
  const std::size_t groups = group == WeightType::kWholeRow ? 1 : ceil_div(in, static_cast<std::size_t>(group));
  return transposed ? std::vector{groups, out} : std::vector{out, groups};
}

std::vector<std::byte> CheckpointIndex::serialize() const {
  ByteWriter out;
  out.put_string(path);
  out.put<std::uint64_t>(file_bytes);
  out.put_string(architecture);
  out.put_string(config_json);
  put_entries(out, tensors);
  put_entries(out, tokenizer);
  if (!second_path.empty()) put_second_file(out, *this);
  return out.take();
}

CheckpointIndex CheckpointIndex::deserialize(const std::vector<std::byte>& bytes) {
  ByteReader in(bytes);
  CheckpointIndex index;
  index.path = in.get_string();
  index.file_bytes = in.get<std::uint64_t>();
  index.architecture = in.get_string();
  index.config_json = in.get_string();
  get_entries(in, index.tensors);
  get_entries(in, index.tokenizer);
  if (in.left() > 0) get_second_file(in, index);
  in.expect_end();
  return index;
}

}  // namespace computron

#include "computron/checkpoint/index.h"

#include "computron/base/bytes.h"

namespace computron {
namespace {

void put_entry(ByteWriter& out, const TensorEntry& entry) {
  out.put_string(entry.name);
  out.put(entry.dtype);
  out.put_list(entry.shape);
  out.put(static_cast<std::uint8_t>(entry.transposed));
  out.put<std::uint64_t>(entry.offset);
  out.put<std::uint64_t>(entry.bytes);
  out.put_list(entry.digests);
}

TensorEntry get_entry(ByteReader& in) {
  TensorEntry entry;
  entry.name = in.get_string();
  entry.dtype = in.get<DType>();
  entry.shape = in.get_list<std::size_t>();
  entry.transposed = in.get<std::uint8_t>() != 0;
  entry.offset = in.get<std::uint64_t>();
  entry.bytes = in.get<std::uint64_t>();
  entry.digests = in.get_list<Digest128>();
  return entry;
}

}  // namespace

std::vector<std::byte> CheckpointIndex::serialize() const {
  ByteWriter out;
  out.put_string(path);
  out.put<std::uint64_t>(file_bytes);
  out.put_string(architecture);
  out.put_string(config_json);
  out.put(static_cast<std::uint32_t>(tensors.size()));
  for (const auto& [name, entry] : tensors) put_entry(out, entry);
  return out.take();
}

CheckpointIndex CheckpointIndex::deserialize(const std::vector<std::byte>& bytes) {
  ByteReader in(bytes);
  CheckpointIndex index;
  index.path = in.get_string();
  index.file_bytes = in.get<std::uint64_t>();
  index.architecture = in.get_string();
  index.config_json = in.get_string();
  for (auto left = in.get<std::uint32_t>(); left > 0; --left) {
    TensorEntry entry = get_entry(in);
    index.tensors.emplace(entry.name, std::move(entry));
  }
  in.expect_end();
  return index;
}

}  // namespace computron

#include "computron/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "computron/base/time.h"
#include "computron/base/types.h"
#include "src/checkpoint/file.h"

namespace computron {
namespace {

// `what` names the thing that `stored` is the bytes of.
void verify_chunk(const std::string& what, const StoredBytes& stored, std::size_t chunk,
                  std::span<const std::byte> bytes) {
  const Digest128 found = digest128(bytes);
  if (found == stored.digests[chunk]) return;
  const std::size_t begin = stored.offset + chunk * kDigestChunkBytes;
  throw CheckpointError(fmt::format("{}: chunk {} of {} (file bytes {} to {}) is damaged: digest {}, expected {}", what,
                                    chunk, stored.digests.size(), begin, begin + bytes.size(), to_hex(found),
                                    to_hex(stored.digests[chunk])));
}

// Verifies whole chunks; `bytes` begins with chunk `first`.
void verify_chunks(const std::string& what, const StoredBytes& stored, std::size_t first,
                   std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size(); done += kDigestChunkBytes) {
    const std::size_t count = std::min(kDigestChunkBytes, bytes.size() - done);
    verify_chunk(what, stored, first + done / kDigestChunkBytes, bytes.subspan(done, count));
  }
}

FileDescriptor open_as_indexed(const std::string& path, std::size_t indexed_bytes) {
  FileDescriptor file = open_input(path);
  const std::size_t bytes = file_bytes(file.get(), path);
  if (bytes == indexed_bytes) return file;
  throw Error(ExitCode::kNoInput, fmt::format("{}: the file has {} bytes now and had {} when its index was read", path,
                                              bytes, indexed_bytes));
}

}  // namespace

TensorReader::TensorReader(const CheckpointIndex& index)
    : index_(index), file_(open_as_indexed(index.path, index.file_bytes)) {
  if (!index.second_path.empty()) second_file_ = open_as_indexed(index.second_path, index.second_file_bytes);
}

void TensorReader::fill(const StoredBytes& stored, const std::string& what, std::size_t begin,
                        std::span<std::byte> bytes) const {
  const FileDescriptor& file = stored.in_second_file ? second_file_ : file_;
  if (read_at(file.get(), stored.offset + begin, bytes, path_of(stored)) == bytes.size()) return;
  throw CheckpointError(what + ": the file ends within it");
}

std::span<const std::byte> TensorReader::read_chunk(const TensorEntry& tensor, std::size_t chunk,
                                                    std::span<std::byte, kDigestChunkBytes> buffer,
                                                    Times* times) const {
  ensure(chunk < tensor.digests.size(), "read outside a tensor");
  const std::string what = name_of(tensor);
  const std::size_t begin = chunk * kDigestChunkBytes;
  const std::span<std::byte> bytes = buffer.first(std::min(kDigestChunkBytes, tensor.bytes - begin));
  const double start = now_s();
  fill(tensor, what, begin, bytes);
  const double filled = now_s();
  verify_chunk(what, tensor, chunk, bytes);
  if (times != nullptr) {
    times->read_s += filled - start;
    times->verify_s += now_s() - filled;
  }
  return bytes;
}

std::string TensorReader::name_of(const TensorEntry& tensor) const {
  return fmt::format("{}: tensor '{}'", path_of(tensor), tensor.name);
}

void TensorReader::read(const TensorEntry& tensor, std::size_t begin, std::size_t end, std::size_t piece_bytes,
                        const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const {
  read_stored(tensor, name_of(tensor), begin, end, piece_bytes, sink);
}

void TensorReader::read(const FileEntry& file, std::size_t begin, std::size_t end, std::size_t piece_bytes,
                        const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const {
  read_stored(file, fmt::format("{}: tokenizer file '{}'", path_of(file), file.name), begin, end, piece_bytes, sink);
}

std::string TensorReader::read(const FileEntry& file) const {
  std::string content;
  read(file, 0, file.bytes, kDigestChunkBytes, [&](std::size_t, std::span<const std::byte> piece) {
    content.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return content;
}

void TensorReader::read_stored(const StoredBytes& stored, const std::string& what, std::size_t begin, std::size_t end,
                               std::size_t piece_bytes,
                               const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const {
  ensure(begin <= end && end <= stored.bytes, "read outside a tensor");
  ensure(stored.digests.size() == ceil_div(stored.bytes, kDigestChunkBytes), "tensor without its digests");
  if (begin == end) return;
  const std::size_t first = begin / kDigestChunkBytes * kDigestChunkBytes;
  const std::size_t last = std::min(round_up(end, kDigestChunkBytes), stored.bytes);
  const std::size_t capacity =
      std::min(round_up(std::max(piece_bytes, std::size_t{1}), kDigestChunkBytes), last - first);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(capacity);
  for (std::size_t at = first; at < last; at += capacity) {
    const std::span piece(buffer.get(), std::min(capacity, last - at));
    fill(stored, what, at, piece);
    verify_chunks(what, stored, at / kDigestChunkBytes, piece);
    const std::size_t from = std::max(begin, at);
    const std::size_t to = std::min(end, at + piece.size());
    sink(from - begin, piece.subspan(from - at, to - from));
  }
}

}  // namespace computron

#include "computron/checkpoint/reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "computron/base/time.h"
#include "computron/base/types.h"
#include "file.h"

namespace computron {
namespace {

void verify_chunk(const std::string& path, const TensorEntry& tensor, std::size_t chunk,
                  std::span<const std::byte> bytes) {
  const Digest128 found = digest128(bytes);
  if (found == tensor.digests[chunk]) return;
  throw CheckpointError(fmt::format(
      "{}: tensor '{}': chunk {} of {} (file bytes {} to {}) is damaged: digest {}, "
      "expected {}",
      path, tensor.name, chunk, tensor.digests.size(), tensor.offset + chunk * kDigestChunkBytes,
      tensor.offset + chunk * kDigestChunkBytes + bytes.size(), to_hex(found), to_hex(tensor.digests[chunk])));
}

// Verifies whole chunks; `bytes` begins with chunk `first`.
void verify_chunks(const std::string& path, const TensorEntry& tensor, std::size_t first,
                   std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size(); done += kDigestChunkBytes) {
    const std::size_t count = std::min(kDigestChunkBytes, bytes.size() - done);
    verify_chunk(path, tensor, first + done / kDigestChunkBytes, bytes.subspan(done, count));
  }
}

}  // namespace

TensorReader::TensorReader(const CheckpointIndex& index) : index_(index) {
  FileDescriptor fd = open_input(index.path);
  const std::size_t bytes = file_bytes(fd.get(), index.path);
  if (bytes != index.file_bytes) {
    throw Error(ExitCode::kNoInput, fmt::format("{}: the file has {} bytes now and had {} when its index was read",
                                                index.path, bytes, index.file_bytes));
  }
  fd_ = fd.release();
}

TensorReader::~TensorReader() { close(fd_); }

void TensorReader::fill(const TensorEntry& tensor, std::size_t begin, std::span<std::byte> bytes) const {
  if (read_at(fd_, tensor.offset + begin, bytes, index_.path) == bytes.size()) return;
  throw CheckpointError(fmt::format("{}: tensor '{}': the file ends within it", index_.path, tensor.name));
}

std::span<const std::byte> TensorReader::read_chunk(const TensorEntry& tensor, std::size_t chunk,
                                                    std::span<std::byte, kDigestChunkBytes> buffer,
                                                    Times* times) const {
  ensure(chunk < tensor.digests.size(), "read outside a tensor");
  const std::size_t begin = chunk * kDigestChunkBytes;
  const std::span<std::byte> bytes = buffer.first(std::min(kDigestChunkBytes, tensor.bytes - begin));
  const double start = now_s();
  fill(tensor, begin, bytes);
  const double filled = now_s();
  verify_chunk(index_.path, tensor, chunk, bytes);
  if (times != nullptr) {
    times->read_s += filled - start;
    times->verify_s += now_s() - filled;
  }
  return bytes;
}

void TensorReader::read(const TensorEntry& tensor, std::size_t begin, std::size_t end, std::size_t piece_bytes,
                        const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const {
  ensure(begin <= end && end <= tensor.bytes, "read outside a tensor");
  ensure(tensor.digests.size() == ceil_div(tensor.bytes, kDigestChunkBytes), "tensor without its digests");
  if (begin == end) return;
  const std::size_t first = begin / kDigestChunkBytes * kDigestChunkBytes;
  const std::size_t last = std::min(round_up(end, kDigestChunkBytes), tensor.bytes);
  const std::size_t capacity =
      std::min(round_up(std::max(piece_bytes, std::size_t{1}), kDigestChunkBytes), last - first);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(capacity);
  for (std::size_t at = first; at < last; at += capacity) {
    const std::span piece(buffer.get(), std::min(capacity, last - at));
    fill(tensor, at, piece);
    verify_chunks(index_.path, tensor, at / kDigestChunkBytes, piece);
    const std::size_t from = std::max(begin, at);
    const std::size_t to = std::min(end, at + piece.size());
    sink(from - begin, piece.subspan(from - at, to - from));
  }
}

}  // namespace computron

#include "computron/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/checkpoint/file.h"

namespace computron {
namespace {

constexpr std::size_t kLengthBytes = 8;

std::string read_header(int fd, std::size_t file_bytes, const std::string& path) {
  std::byte head[kLengthBytes] = {};
  if (read_at(fd, 0, head, path) < kLengthBytes) throw CheckpointError(path + ": too short for a safetensors file");
  std::string header(safetensors_header_bytes(head, file_bytes, path), '\0');
  const std::size_t got = read_at(fd, kLengthBytes, std::as_writable_bytes(std::span(header)), path);
  if (got < header.size()) throw CheckpointError(path + ": the file ends within its header");
  return header;
}

}  // namespace

std::optional<DType> SafetensorsEntry::usable_dtype() const {
  if (dtype == "F32") return DType::kF32;
  if (dtype == "F16") return DType::kF16;
  if (dtype == "BF16") return DType::kBF16;
  return std::nullopt;
}

std::size_t safetensors_header_bytes(std::span<const std::byte, 8> head, std::size_t file_bytes,
                                     const std::string& path) {
  std::uint64_t length;  // little-endian, as every machine this program runs on
  std::memcpy(&length, head.data(), sizeof length);
  if (length > kMaxSafetensorsHeaderBytes) {
    throw CheckpointError(
        fmt::format("{}: a safetensors header of {} bytes (limit {})", path, length, kMaxSafetensorsHeaderBytes));
  }
  if (file_bytes < kLengthBytes || length > file_bytes - kLengthBytes) {
    throw CheckpointError(
        fmt::format("{}: a safetensors header of {} bytes in a file of {}", path, length, file_bytes));
  }
  return length;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), fd_(open_input(path)) {
  const std::size_t bytes = file_bytes(fd_.get(), path);
  const std::string header = read_header(fd_.get(), bytes, path);
  data_begin_ = kLengthBytes + header.size();
  entries_ = parse_safetensors_header(header, bytes - data_begin_, path);
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::size_t offset, std::span<std::byte> out) const {
  ensure(entry.begin <= offset && offset <= entry.end && out.size() <= entry.end - offset, "read outside a tensor");
  if (read_at(fd_.get(), data_begin_ + offset, out, path_) == out.size()) return;
  throw CheckpointError(fmt::format("{}: the file ends within its tensors; it was cut while it was read", path_));
}

// Piece by piece, since the kernel cuts what is asked for at once to a few hundred KiB.
void SafetensorsFile::will_need(const SafetensorsEntry& entry) const {
  constexpr std::size_t kPiece = 128 << 10;
  for (std::size_t at = entry.begin; at < entry.end; at += kPiece) {
    const std::size_t count = std::min(kPiece, entry.end - at);
    posix_fadvise(fd_.get(), static_cast<off_t>(data_begin_ + at), static_cast<off_t>(count), POSIX_FADV_WILLNEED);
  }
}

}  // namespace computron

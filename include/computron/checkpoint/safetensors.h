// Reads safetensors files: 8 bytes with the length of a header, the header (JSON), then the tensors' bytes.
//
// The files come from anywhere, so nothing of a header is believed before it is held against the file: the bytes of
// the tensors must cover the rest of the file without holes or overlaps, each as long as its shape and type say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/file_descriptor.h"
#include "computron/base/types.h"

namespace computron {

struct SafetensorsEntry {
  std::string dtype;               // as the file names it: "F32", "BF16", "I64", ...
  std::vector<std::size_t> shape;  // empty: a scalar
  std::size_t begin = 0, end = 0;  // bytes of the file's data, which begins behind the header

  // The element type if this program computes with it: F32, F16 or BF16.
  std::optional<DType> usable_dtype() const;
};

using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;  // by name

inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxSafetensorsTensors = 1'000'000;  // of a file, and of an index
inline constexpr std::size_t kMaxSafetensorsRank = 16;

// The length of the header, from a file's first 8 bytes. CheckpointError naming `path` if the file, of `file_bytes`
// bytes, cannot hold such a header.
std::size_t safetensors_header_bytes(std::span<const std::byte, 8> head, std::size_t file_bytes,
                                     const std::string& path);

// The tensors that a header describes, for a file with `data_bytes` bytes behind it. CheckpointError naming `path` and
// the tensor at fault.
SafetensorsEntries parse_safetensors_header(std::string_view header, std::size_t data_bytes, const std::string& path);

// The `weight_map` of a model.safetensors.index.json: the file that holds a tensor, by the tensor's name. Files are
// plain names that end in .safetensors. CheckpointError naming `path` otherwise.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& path);

// An open file. Bytes are read with pread and never mapped: a file that is cut short while it is read is an error and
// not a signal. Thread-safe.
class SafetensorsFile {
 public:
  // Error{kNoInput} if the file cannot be opened, CheckpointError if it breaks a rule of the format.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsEntries& entries() const { return entries_; }

  // Reads bytes [offset, offset + out.size()) of the file's data, which must lie in `entry`.
  void read(const SafetensorsEntry& entry, std::size_t offset, std::span<std::byte> out) const;
  // Tells the system that all of `entry` will be read soon, in some order.
  void will_need(const SafetensorsEntry& entry) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  std::size_t data_begin_ = 0;  // of the file
  SafetensorsEntries entries_;
};

}  // namespace computron

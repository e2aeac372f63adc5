// Opens a checkpoint: metadata through HDF5, tensor bytes through pread with digests verified.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "computron/base/file_descriptor.h"
#include "computron/checkpoint/index.h"

namespace computron {

// Reads the metadata of `path` in this process (else: index_helper.h) under the strict profile: contiguous, unfiltered,
// hard links only, all inside the file, disjoint. Error{kNoInput} if it cannot be opened, else CheckpointError.
CheckpointIndex read_checkpoint_index(const std::string& path);

// The library that reads and writes them: "HDF5 1.10.8".
std::string hdf5_library();

// Reads tensor bytes of a model's file, or of both of its files. Thread-safe. Throws Error{kNoInput} if the file cannot
// be opened or is not as long as the index says.
class TensorReader {
 public:
  explicit TensorReader(const CheckpointIndex& index);  // borrows the index
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  // Reads chunk `chunk` of the tensor into `buffer` and verifies it; gives what it read, kDigestChunkBytes or less at
  // the tensor's end. CheckpointError naming the tensor, the chunk and both digests on a difference. `times`: where to
  // add what it took; may be null.
  struct Times {
    double read_s = 0, verify_s = 0;
  };
  std::span<const std::byte> read_chunk(const TensorEntry& tensor, std::size_t chunk,
                                        std::span<std::byte, kDigestChunkBytes> buffer, Times* times = nullptr) const;

  // Reads bytes [begin, end) of the tensor's data in pieces, in order, each verified before `sink` sees it. Whole
  // digest chunks are read; sink gets only the wanted part: sink(offset of the piece within [begin, end), piece).
  // CheckpointError naming the tensor, the chunk and both digests on a difference. Never holds more than
  // `piece_bytes` (rounded up to chunks) at once.
  void read(const TensorEntry& tensor, std::size_t begin, std::size_t end, std::size_t piece_bytes,
            const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const;

  // The same for a carried file.
  void read(const FileEntry& file, std::size_t begin, std::size_t end, std::size_t piece_bytes,
            const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const;
  // All of a carried file, verified.
  std::string read(const FileEntry& file) const;

 private:
  const std::string& path_of(const StoredBytes& stored) const {
    return stored.in_second_file ? index_.second_path : index_.path;
  }
  std::string name_of(const TensorEntry& tensor) const;
  void read_stored(const StoredBytes& stored, const std::string& what, std::size_t begin, std::size_t end,
                   std::size_t piece_bytes,
                   const std::function<void(std::size_t, std::span<const std::byte>)>& sink) const;
  void fill(const StoredBytes& stored, const std::string& what, std::size_t begin, std::span<std::byte> bytes) const;

  const CheckpointIndex& index_;
  FileDescriptor file_, second_file_;
};

}  // namespace computron

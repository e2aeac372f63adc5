// What a checkpoint file says of itself: attributes and, for every tensor, where its bytes lie and their digests.
// Small enough to be read by rank 0 and sent round; the bytes themselves are read with pread by whoever needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/types.h"

namespace computron {

inline constexpr int kCheckpointFormatVersion = 1;
inline constexpr std::size_t kDigestChunkBytes = std::size_t{1} << 20;

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::size_t> shape;   // as stored; row-parallel weights are stored transposed
  bool transposed = false;          // true: the stored array is the transpose of the canonical [out][in] weight
  std::size_t offset = 0;           // of the first byte in the file
  std::size_t bytes = 0;
  std::vector<Digest128> digests;   // one per kDigestChunkBytes of this tensor, the last chunk shorter
};

struct CheckpointIndex {
  std::string path;
  std::size_t file_bytes = 0;
  std::string architecture;            // root attribute "architecture", e.g. "opt"
  std::string config_json;             // root attribute "config": every configuration value, as JSON
  std::map<std::string, TensorEntry> tensors;  // by canonical name

  std::vector<std::byte> serialize() const;
  static CheckpointIndex deserialize(const std::vector<std::byte>& bytes);
};

}  // namespace computron

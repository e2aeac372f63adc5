// What a checkpoint file says of itself: attributes and, for every tensor, where its bytes lie and their digests.
// Small enough to be read by rank 0 and sent round; the bytes themselves are read with pread by whoever needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "computron/base/weight_type.h"

namespace computron {

inline constexpr int kCheckpointFormatVersion = 1;
inline constexpr std::size_t kDigestChunkBytes = std::size_t{1} << 20;

// What a dataset holds.
struct StoredBytes {
  std::string name;
  bool in_second_file = false;  // it lies in CheckpointIndex::second_path
  std::size_t offset = 0;       // of the first byte in the file
  std::size_t bytes = 0;
  std::vector<Digest128> digests;  // one per kDigestChunkBytes, the last chunk shorter
};

struct TensorEntry : StoredBytes {
  DType dtype = DType::kF32;       // of a quantised weight, that of its codes; its scales are a tensor of their own
  std::vector<std::size_t> shape;  // as stored, in values; row-parallel weights are stored transposed
  bool transposed = false;         // true: the stored array is the transpose of the canonical [out][in] weight
  int group = 0;                   // of codes: values along `in` that share a scale, or WeightType::kWholeRow
  double factor = 1;               // of scales of e4m3: what all are multiplied by (weight_type.h)
};

// The tensor that holds the scales of a quantised weight: NAME.scales.
std::string scales_name(std::string_view weight);
// Its shape, for codes of this shape as stored: [out][groups], or [groups][out] where they are stored transposed.
std::vector<std::size_t> scales_shape(const std::vector<std::size_t>& codes, bool transposed, int group);

// A file that is carried along as it is, such as tokenizer.json.
struct FileEntry : StoredBytes {};

inline constexpr std::size_t kMaxCarriedFiles = 32;
inline constexpr std::size_t kMaxCarriedFileBytes = std::size_t{64} << 20;

struct CheckpointIndex {
  std::string path;
  std::size_t file_bytes = 0;
  std::string architecture;                    // root attribute "architecture", e.g. "opt"
  std::string config_json;                     // root attribute "config": every configuration value, as JSON
  std::map<std::string, TensorEntry> tensors;  // by canonical name
  std::map<std::string, FileEntry> tokenizer;  // the tokenizer's files by name; may be empty
  // Of a model with an adapter, whose tensors lie in a file of their own; else empty.
  std::string second_path = {};
  std::size_t second_file_bytes = 0;

  std::vector<std::byte> serialize() const;
  static CheckpointIndex deserialize(const std::vector<std::byte>& bytes);
};

}  // namespace computron

// Writes a checkpoint: lays all datasets out first (contiguous, 1 MiB aligned), then takes the tensors' bytes in any
// order and from several threads, and appears under its final name only when it is whole.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"

namespace computron {

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::size_t> shape;  // as stored
  bool transposed = false;
  int group = 0;      // as a TensorEntry's
  double factor = 1;  // as well
};

// That of the scales, in bfloat16, of a quantised weight.
TensorDeclaration scales_of(const TensorDeclaration& codes);

// A file that is carried along as it is.
struct CarriedFile {
  std::string name;
  std::string content;
};

class CheckpointWriter {
 public:
  // Creates `path`.partial (Error{kCannotCreate}/{kPermission} naming it) with every dataset allocated and the
  // tokenizer's files written. CheckpointError naming what the format does not allow.
  CheckpointWriter(const std::string& path, const std::string& architecture, const std::string& config_json,
                   const std::vector<TensorDeclaration>& tensors, const std::vector<CarriedFile>& tokenizer = {});
  ~CheckpointWriter();  // removes an unfinished file

  // Writes bytes [offset, offset + bytes.size()) of a tensor and digests them. Thread-safe for disjoint ranges.
  // `offset` and all but the last piece's size are multiples of kDigestChunkBytes.
  void write(std::size_t tensor, std::size_t offset, std::span<const std::byte> bytes);

  // Checks that every byte of every tensor was written, stores the digests, syncs, renames. Error{kIo} on failure.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace computron

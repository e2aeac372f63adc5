// How a model is cut over a mesh: layers into stages, every weight of a stage over its tensor-parallel ranks.
//
// All ranks of a stage compute with the same numbers: heads, ffn units and vocabulary are padded with zeros to a
// multiple of tp, so a stage has one layout. Column-parallel weights lose rows, row-parallel ones columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "computron/comm/mesh.h"
#include "computron/model/config.h"

namespace computron {

// A canonical tensor's contribution to a shard tensor: dimension 0 as stored, slice t of tp.
struct TensorPart {
  std::string source;          // canonical name
  std::size_t total = 0;       // extent of dimension 0 in the checkpoint
  std::size_t per_rank = 0;    // extent of a slice, padding included; == total when replicated
  bool split = false;
  bool transposed = false;     // stored as [in][out]: the slice is of columns
  int row = 0;                 // first row in the shard tensor (fused q | k | v)

  // Slice [begin, end) of rank t; may be short or empty at the end, where padding begins.
  std::size_t begin(int t) const { return split ? std::min(t * per_rank, total) : 0; }
  std::size_t end(int t) const { return split ? std::min((t + 1) * per_rank, total) : total; }
};

// A tensor as one rank computes with it.
struct ShardTensor {
  std::string name;  // "layers.3.attention.qkv.weight"
  TensorRole role = TensorRole::kVector;
  int rows = 0;      // out; vectors: length; tables: rows
  int columns = 0;   // in; vectors: 1
  std::vector<TensorPart> parts;
  int same_as = -1;  // ≥ 0: index of the earlier tensor whose pages this one uses again (a tied head)
};

// What the ranks of one stage compute with; the same for every t.
struct ShardPlan {
  ModelConfig config;
  MeshShape mesh;
  int stage = 0;
  int first_layer = 0;
  int layers = 0;
  int heads = 0;      // per rank, padding included
  int kv_heads = 0;   // per rank
  int ffn = 0;        // per rank
  int vocab = 0;      // per rank
  std::vector<ShardTensor> tensors;  // in execution order

  bool embeds() const { return stage == 0; }
  bool has_head() const { return stage == mesh.pp - 1; }
  // Rows of this rank's vocabulary slice that are real tokens.
  int real_vocab(int t) const;
  TokenId first_token(int t) const { return t * vocab; }

  // ConfigError when the mesh does not fit the model (fewer layers than stages, fewer heads than ranks).
  static ShardPlan make(const ModelConfig& config, MeshShape mesh, int stage);
  // First layer of every stage and, last, the number of layers: contiguous cuts that make the largest shard (embedding
  // and head counted) as small as whole layers allow.
  static std::vector<int> cut_layers(const ModelConfig& config, int pp);
};

}  // namespace computron

// How a model is cut over a mesh: layers into stages, every weight of a stage over its tensor-parallel ranks.
//
// All ranks of a stage compute with the same numbers: heads, ffn units and vocabulary are padded with zeros to a
// multiple of tp, so a stage has one layout. Column-parallel weights lose rows, row-parallel ones columns. Where there
// are fewer key/value heads than ranks, or cutting between them would leave ranks idle, the query heads of one are
// divided among ranks that each have a copy of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "computron/base/weight_type.h"
#include "computron/comm/mesh.h"
#include "computron/model/config.h"

namespace computron {

// Stored rows [begin, end), never none, that become rows (of a transposed tensor: columns) of a part from `row` on.
struct PartSlice {
  std::size_t begin = 0, end = 0;
  std::size_t row = 0;
};

// A canonical tensor's contribution to a shard tensor: dimension 0 as stored, slice t of tp.
struct TensorPart {
  std::string source;        // canonical name
  std::size_t total = 0;     // extent of dimension 0 in the checkpoint
  std::size_t per_rank = 0;  // extent of a slice, padding included; == total when replicated
  bool split = false;
  bool transposed = false;          // stored as [in][out]: the slice is of columns
  int row = 0;                      // first row in the shard tensor (fused q | k | v)
  std::size_t unit = 1;             // stored rows of a key/value head, where
  std::size_t repeat = 1;           // each stands so many times in the tensor that is sliced
  std::size_t slices_per_rank = 1;  // a rank has so many slices, of which this is number
  std::size_t slice = 0;

  // Where rank t's slice comes from; short or empty at the end, where padding begins.
  std::vector<PartSlice> slices(int t) const;
};

// A tensor as one rank computes with it.
struct ShardTensor {
  std::string name;  // "layers.3.attention.qkv.weight"
  TensorRole role = TensorRole::kVector;
  int rows = 0;     // out; vectors: length; tables: rows
  int columns = 0;  // in; vectors: 1
  std::vector<TensorPart> parts;
  int same_as = -1;  // ≥ 0: index of the earlier tensor whose pages this one uses again (a tied head)
  // Of a GEMM weight, once it is laid out (ShardLayout::make): how a rank keeps it, and what it is multiplied with.
  // A and B of an adapter are kept as what their weight is multiplied with; other tensors in float32.
  WeightType type = {};
  DType input_dtype = DType::kF32;

  bool of_adapter() const { return name.find(".lora_") != std::string::npos; }
  // B of an adapter, which lies in blocks (LowRankPart).
  bool is_low_rank_out() const { return name.find(".lora_b") != std::string::npos; }
  // Each row of a pass goes through a product with it: a weight, or A or B of an adapter.
  bool is_multiplied() const { return role == TensorRole::kGemmWeight || (role == TensorRole::kTable && of_adapter()); }
};

// What the ranks of one stage compute with; the same for every t.
//
// Reproducible: the same bits at every tp that divides kKSlices. The columns of row-parallel weights are cut into
// kKSlices equal K slices, a tensor each, multiplied one by one and summed in a fixed tree of which the all-reduce over
// the ranks is the top; the vocabulary is cut alike, and a row of logits is reduced slice by slice.
struct ShardPlan {
  static constexpr int kKSlices = 8;

  ModelConfig config;
  MeshShape mesh;
  int stage = 0;
  int first_layer = 0;
  int layers = 0;
  int heads = 0;                     // per rank, padding included
  int kv_heads = 0;                  // per rank; query head h uses key/value head h / (heads / kv_heads)
  int kv_copies = 1;                 // of every key/value head, over all ranks
  int ffn = 0;                       // per rank, of layers without experts; 0: there are none
  int expert_ffn = 0;                // per rank, of an expert; 0: there are none
  int shared_ffn = 0;                // per rank, of what is beside experts
  int vocab = 0;                     // per rank
  int k_slices = 1;                  // per rank: K slices of a row-parallel weight, and as many of the vocabulary
  std::vector<ShardTensor> tensors;  // in execution order

  bool embeds() const { return stage == 0; }
  bool has_head() const { return stage == mesh.pp - 1; }
  // Rows of this rank's vocabulary slice that are real tokens.
  int real_vocab(int t) const;
  TokenId first_token(int t) const { return t * vocab; }
  // How many of a pass's rows are multiplied with the tensor: a router gives each to some of the experts.
  double share_of_rows(const ShardTensor& tensor) const;

  // ConfigError when the mesh does not fit the model (fewer layers than stages, fewer heads than ranks; reproducible: a
  // tp or a model whose heads or inner units cannot be cut evenly; other `stage_layers` than the model and the mesh
  // have). `stage_layers`: how many layers each stage has; empty: cut_layers().
  static ShardPlan make(const ModelConfig& config, MeshShape mesh, int stage, bool reproducible = false,
                        std::span<const int> stage_layers = {});
  // First layer of every stage and, last, the number of layers: contiguous cuts that make the largest shard (embedding
  // and head counted) as small as whole layers allow.
  static std::vector<int> cut_layers(const ModelConfig& config, int pp);
};

}  // namespace computron

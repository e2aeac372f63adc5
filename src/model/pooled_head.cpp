// The head of encoders and embedders: rows pooled to a vector, dense layers, scores of classes.
#include <fmt/format.h>

#include "computron/model/layers.h"

namespace computron {

PooledHead::PooledHead(const ShardLayout& layout)
    : pooling_(layout.plan.config.pooling),
      pooler_(layout, "pooler", Activation::kTanh),
      class_dense_(layout, "classifier.dense", layout.plan.config.class_activation),
      class_norm_(layout, "classifier.norm"),
      classes_(layout, "classifier") {
  for (const DenseLayer& layer : layout.plan.config.dense) {
    dense_.emplace_back(layout, fmt::format("dense.{}", dense_.size()), layer.activation);
  }
}

void PooledHead::forward(Pass& pass, Activations hidden, const Outputs& out) {
  Activations pooled = pool(pass, hidden, out.sums);
  const auto apply = [&](ReplicatedLinear& layer) {
    pooled = multiply(pass, layer, pooled, pass.work.partial(pooled.rows, layer.out()));
  };
  if (pooler_.present()) apply(pooler_);
  for (ReplicatedLinear& layer : dense_) apply(layer);
  pass.ops.copy_to_host(pass.stream, pooled, out.pooled_embeddings);
  if (!classes_.present()) return;
  if (class_dense_.present()) apply(class_dense_);
  if (class_norm_.present()) class_norm_.forward(pass, pooled, pooled);
  const Activations scores = pass.work.fused(pooled.rows, classes_.out());  // [R, classes]
  pass.ops.copy_to_host(pass.stream, multiply(pass, classes_, pooled, scores), out.scores);
}

Activations PooledHead::multiply(Pass& pass, ReplicatedLinear& layer, Activations x, Activations out) {
  const Activations input = pass.work.input(x.rows, x.columns, layer.input_dtype());
  pass.ops.convert(pass.stream, x, input);
  layer.forward(pass, input, out);
  return out;
}

Activations PooledHead::pool(Pass& pass, Activations hidden, float* sums) const {
  if (pooling_ == Pooling::kMean) return mean(pass, hidden, sums);
  const Activations pooled = pass.work.partial(pass.batch.output_count(), hidden.columns);
  pass.ops.gather_rows(pass.stream, hidden, pass.batch.output_rows, pooled);
  return pooled;
}

Activations PooledHead::mean(Pass& pass, Activations hidden, float* sums) {
  const RowMeans& means = pass.batch.means;
  const Activations all = pass.work.partial(static_cast<int>(pass.batch.sequences.size()), hidden.columns);
  if (means.carried.empty()) {
    pass.ops.zero(pass.stream, all);
  } else {
    pass.ops.copy_from_host(pass.stream, means.carried.data(), all);
  }
  pass.ops.scatter_add(pass.stream, hidden, means.sequence_of_row, means.ones, all);
  if (sums != nullptr) pass.ops.copy_to_host(pass.stream, all, sums);
  const Activations finished = hidden.row_range(0, pass.batch.output_count());  // its rows have been summed up
  const Activations pooled = pass.work.partial(finished.rows, finished.columns);
  pass.ops.gather_rows(pass.stream, all, means.finished, finished);
  pass.ops.zero(pass.stream, pooled);
  pass.ops.scatter_add(pass.stream, finished, means.outputs, means.reciprocals, pooled);
  return pooled;
}

}  // namespace computron

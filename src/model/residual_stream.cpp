#include <optional>
#include <utility>

#include "computron/base/error.h"
#include "computron/model/layers.h"

namespace computron {
namespace {

// hidden [M, hidden] = hidden + (sum + bias).
void add_residual(Pass& pass, Activations hidden, const BranchOutput& branch) {
  const Vector bias = branch.bias != nullptr ? branch.bias->vector(pass.pages) : Vector{};
  pass.ops.add_residual(pass.stream, branch.sum, bias, hidden);
  if (branch.bias != nullptr) branch.bias->release(pass.pages);
}

}  // namespace

Norm::Norm(const ShardLayout& layout, const std::string& prefix)
    : kind_(layout.plan.config.norm),
      epsilon_(layout.plan.config.norm_epsilon),
      weight_(TensorRef::find(layout, prefix + ".weight")),
      bias_(TensorRef::find(layout, prefix + ".bias")) {}

void Norm::forward(Pass& pass, Activations in, Activations out) {
  const Vector weight = weight_.vector(pass.pages);  // one by one: pages are asked for in order
  const Vector bias = bias_.vector(pass.pages);
  pass.ops.norm(pass.stream, kind_, in, weight, bias, epsilon_, out);
  weight_.release(pass.pages);
  bias_.release(pass.pages);
}

void Norm::add_and_forward(Pass& pass, const BranchOutput& branch, Activations hidden, Activations out) {
  if (!pass.pages.at_rest()) {
    add_residual(pass, hidden, branch);
    return forward(pass, hidden, out);
  }
  const Vector branch_bias = branch.bias != nullptr ? branch.bias->vector(pass.pages) : Vector{};
  const Vector weight = weight_.vector(pass.pages), bias = bias_.vector(pass.pages);
  pass.ops.add_residual_and_norm(pass.stream, branch.sum, branch_bias, hidden, kind_, weight, bias, epsilon_, out);
  if (branch.bias != nullptr) branch.bias->release(pass.pages);
  weight_.release(pass.pages);
  bias_.release(pass.pages);
}

void ResidualStream::add(const BranchOutput& branch) {
  ensure(!pending_, "a branch's output is added while another waits");
  pending_ = branch;
}

void ResidualStream::normalise(Pass& pass, Norm& norm, Activations out) {
  if (norm.present() && pending_) {
    return norm.add_and_forward(pass, *std::exchange(pending_, std::nullopt), hidden_, out);
  }
  settle(pass);
  norm.present() ? norm.forward(pass, hidden_, out) : pass.ops.convert(pass.stream, hidden_, out);
}

void ResidualStream::settle(Pass& pass) {
  if (pending_) add_residual(pass, hidden_, *std::exchange(pending_, std::nullopt));
}

}  // namespace computron

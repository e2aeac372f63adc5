// The operations of mixtures of experts.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/cuda/experts.h"
#include "src/ops/checks.h"
#include "src/ops/cuda/cuda_ops.h"
#include "src/ops/cuda/launch.h"

namespace computron {

namespace kernel = kernels::cuda;

namespace {

struct ExpertRun {
  int expert;
  PanelRun run;
};

kernel::Routes routes_of(const ExpertRoutes& routes) {
  return {routes.data, routes.rows, routes.rule, kernel::multiplies_in_warpgroups()};
}

std::vector<ExpertRun> runs_of(std::span<const ExpertWeight> weights) {
  std::vector<ExpertRun> runs;
  for (const auto& [expert, weight] : weights) {
    for (const PanelRun& run : merge_panels(weight.panels, CudaWeightFormat::row_bytes(weight.in, weight.type))) {
      runs.push_back({expert, run});
    }
  }
  return runs;
}

// As many of the runs, from the first on, as a kernel takes and whose pages are there; the first is waited for.
std::size_t runs_together(CudaComputeStream& stream, std::span<const ExpertRun> runs) {
  wait_for(stream, runs.front().run.ready);
  const auto is_there = [&](const ExpertRun& r) {
    return r.run.ready == nullptr || r.run.ready == runs.front().run.ready || r.run.ready->query();
  };
  const std::size_t limit = std::min<std::size_t>(runs.size(), kernel::ExpertGemmCall::kMaxRuns);
  std::size_t count = 1;
  while (count < limit && is_there(runs[count])) ++count;
  return count;
}

void set_runs(std::span<const ExpertRun> runs, kernel::ExpertGemmCall& call) {
  call.count = 0;
  for (const auto& [expert, run] : runs) call.runs[call.count++] = {run.data, run.row_begin, run.rows, expert};
}

void check_routes(const ExpertRoutes& routes) {
  ensure(routes.rule.experts <= kernel::kMaxExperts, "a mixture has more experts than the CUDA kernels take (4096)");
  ensure(routes.rule.per_token <= routes.rule.experts, "a row chooses more experts than there are");
}

}  // namespace

std::size_t CudaOps::routing_bytes(int rows, const RoutingRule& rule) const {
  return kernel::Routes::bytes(rows, rule);
}

void CudaOps::route(Stream& stream, Activations logits, std::span<const std::int32_t> real_rows,
                    const ExpertRoutes& out) {
  check_rows(logits, out.rows, out.rule.experts, "logits of a router");
  check_f32(logits, "logits of a router are float32");
  check_routes(out);
  CudaComputeStream& compute = begin(stream);
  const kernel::RouteCall call{as<const float>(logits), on_device(compute, real_rows), routes_of(out),
                               out.rule.softmax};
  launch(compute, "route", [&](cudaStream_t on) { kernel::route(on, call); });
}

void CudaOps::expert_gemm(Stream& stream, Activations x, bool by_row, std::span<const ExpertWeight> weights,
                          Vector biases, const ExpertRoutes& routes, Activation activation, Activations out) {
  if (weights.empty()) return;
  const Weight& first = weights.front().weight;
  check_rows(x, by_row ? routes.rows : routes.positions(), first.in, "experts' input");
  check_rows(out, routes.positions(), first.out, "experts' output");
  ensure(x.dtype == format_.input_dtype(first.type), "experts' input has another type than their weights want");
  const auto alike = [&](const ExpertWeight& e) {
    return e.weight.in == first.in && e.weight.out == first.out && e.weight.type == first.type;
  };
  ensure(std::ranges::all_of(weights, alike), "experts that are multiplied together have weights of other shapes");
  check_routes(routes);
  check_length(biases, routes.rule.experts * first.out, "biases of experts are not of all experts");
  CudaComputeStream& compute = begin(stream);
  wait_for(compute, biases.ready);
  kernel::ExpertGemmCall call{.x = x.data,
                              .x_by_row = by_row,
                              .dtype = first.type.values,
                              .depth = first.in,
                              .routes = routes_of(routes),
                              .biases = biases.data,
                              .activation = activation,
                              .out = out.data,
                              .out_dtype = out.dtype,
                              .out_columns = out.columns,
                              .tiles = tiles_of(first)};
  multiply_experts(compute, weights, call);
}

// Runs whose pages are there go together. Quantised weights of odd depths are expanded, a run at a time.
void CudaOps::multiply_experts(CudaComputeStream& stream, std::span<const ExpertWeight> weights,
                               kernel::ExpertGemmCall call) {
  std::vector<ExpertRun> runs = runs_of(weights);
  if (!std::ranges::is_sorted(runs, {}, &ExpertRun::expert)) std::ranges::stable_sort(runs, {}, &ExpertRun::expert);
  const bool tiled = call.dtype != DType::kF32 && call.depth % 8 == 0 && is_aligned(call.x) &&
                     std::ranges::all_of(runs, [](const ExpertRun& r) { return is_aligned(r.run.data); });
  const auto give = [&](std::span<const ExpertRun> part) {
    set_runs(part, call);
    launch(stream, "expert_gemm",
           [&](cudaStream_t on) { tiled ? kernel::tiled_expert_gemm(on, call) : kernel::plain_expert_gemm(on, call); });
  };
  if (call.tiles.quantised() && !tiled) {
    const kernel::QuantisedTiles tiles = std::exchange(call.tiles, {});
    for (const auto& [expert, whole] : runs) {
      for (const PanelRun& run : cut_for_expansion({whole}, weights.front().weight)) {
        give(std::array{ExpertRun{expert, as_plain(stream, run, tiles)}});
      }
    }
    return;
  }
  for (std::span<const ExpertRun> left = runs; !left.empty();) {
    const std::size_t count = runs_together(stream, left);
    give(left.first(count));
    left = left.subspan(count);
  }
}

void CudaOps::activate_expert_gates(Stream& stream, const Gate& gate, Activations in, const ExpertRoutes& routes,
                                    ExpertRange experts, Activations out) {
  check_activate_gate(in, out);
  check_f32(in, "gates of experts are read as float32");
  CudaComputeStream& compute = begin(stream);
  kernel::with_element(out.dtype, [&]<class T>(T) {
    const kernel::ActivateGate<float, T> each{gate, as<const float>(in), out.columns, as<T>(out)};
    const auto at_experts = [&]<class Body>(const Body& body) {
      return kernel::AtExperts<Body>{routes_of(routes), experts.first, experts.end, body};
    };
    if (in_fours(in, out)) {
      run(compute, "activate_expert_gates", out.rows, out.columns / 4,
          at_experts(kernel::ActivateGateFours<float, T>{each}));
    } else {
      run(compute, "activate_expert_gates", out.rows, out.columns, at_experts(each));
    }
  });
}

void CudaOps::mix_experts(Stream& stream, Activations in, const ExpertRoutes& routes, ExpertRange experts,
                          Activations inout) {
  check_rows(in, routes.positions(), inout.columns, "what experts give");
  check_rows(inout, routes.rows, inout.columns, "a mixture of experts");
  check_f32(in, "a mixture of experts is float32");
  check_f32(inout, "a mixture of experts is float32");
  const kernel::Mix each{routes_of(routes),   experts.first, experts.end,
                         as<const float>(in), inout.columns, as<float>(inout)};
  CudaComputeStream& compute = begin(stream);
  if (in_fours(in, inout)) {
    run(compute, "mix_experts", inout.rows, inout.columns / 4, kernel::MixFours{each});
  } else {
    run(compute, "mix_experts", inout.rows, inout.columns, each);
  }
}

}  // namespace computron

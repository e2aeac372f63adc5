#include "computron/plan/machine_costs.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "computron/base/time.h"

namespace computron {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;
constexpr int kIn = 2048;
constexpr int kRows = 256;
constexpr int kRounds = 3;  // the fastest counts: the others were disturbed

template <class Work>
double fastest_s(Work&& work) {
  double fastest_s = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    const double begin_s = now_s();
    work();
    fastest_s = std::min(fastest_s, now_s() - begin_s);
  }
  return fastest_s;
}

double slowest_rank(const Communicator& world, double per_s) {
  const auto whole = static_cast<std::uint64_t>(per_s);
  return static_cast<double>(~world.all_reduce_max(~whole));
}

// A weight [out, kIn] of zeros that fills kBytes, in panels.
struct ZeroWeight {
  ZeroWeight(const WeightFormat& format, const std::byte* data, const WeightType& type) {
    const int rows = 8 * format.row_block();
    const std::size_t panel_bytes = format.panel_bytes(rows, kIn, type);
    for (std::size_t at = 0; at + panel_bytes <= kBytes; at += panel_bytes) {
      panels.push_back({data + at, nullptr, weight.out, rows});
      weight.out += rows;
    }
    weight.in = kIn;
    weight.type = type;
    weight.panels = panels;
  }
  std::vector<WeightPanel> panels;
  Weight weight;
};

}  // namespace

CostOptions measure_costs(const Communicator& world, Device& device, Ops& ops, Progress& progress,
                          const WeightType& type) {
  const auto host = device.allocate_host(kBytes, "probe of the link");
  const auto memory = device.allocate(kBytes, "probe of the memory");
  std::memset(host->data(), 0, kBytes);
  const auto link = device.make_copy_stream();
  const auto compute = device.make_compute_stream(progress);
  const ZeroWeight zeros(ops.weight_format(), memory->data(), type);
  const auto rows = static_cast<std::size_t>(ops.padded_rows(kRows));
  const auto in = device.allocate(rows * kIn * sizeof(float), "probe's input");
  const auto out = device.allocate(rows * zeros.weight.out * sizeof(float), "probe's output");
  const auto gemm_s = [&](int m) {
    const Activations x{in->data(), m, kIn, ops.weight_format().input_dtype(type)},
        y{out->data(), m, zeros.weight.out, DType::kF32};
    return fastest_s([&] {
      ops.gemm(*compute, x, zeros.weight, {}, Activation::kNone, y);
      compute->synchronize();
    });
  };

  world.barrier();
  CostOptions costs;
  costs.link_bytes_per_s = slowest_rank(world, kBytes / fastest_s([&] {
                                                 link->copy_to_device(memory->data(), host->data(), kBytes);
                                                 link->synchronize();
                                               }));
  costs.memory_bytes_per_s = slowest_rank(world, kBytes / gemm_s(1));
  costs.flops_per_s = slowest_rank(world, 2.0 * kRows * kIn * zeros.weight.out / gemm_s(kRows));
  return costs;
}

}  // namespace computron

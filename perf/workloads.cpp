#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include "computron/plan/virtual_mesh.h"
#include "computron/serve/workload.h"
using namespace computron;
namespace {
constexpr std::size_t kPage = std::size_t{64} << 20;
Image image(int pages) {
  Image im; im.page_bytes = kPage; im.plan.layers = 20; im.plan.kv_heads = 20; im.plan.config.head_dim = 128; im.weight_dtype = DType::kF16;
  for (int p = 0; p < pages; ++p) { im.used_bytes.push_back(kPage); im.uses.push_back(p); im.over_before.push_back(p - 1); }
  return im;
}
struct Cell { std::vector<double> rates; double cv; int resident; int batch; };
struct Out { double mean, p99; double swaps; };
Out run(const Cell& cell, const std::string& policy, int seed) {
  const int pages = 90;
  Image s0 = image(pages), s1 = image(pages);
  std::vector<ModelShape> shapes; std::vector<std::string> names; std::vector<std::vector<const Image*>> images;
  WorkloadOptions w; w.cv = cell.cv; w.seed = seed; w.duration_s = 30;
  for (std::size_t m = 0; m < cell.rates.size(); ++m) {
    shapes.push_back({.images = {&s0, &s1}, .caches = {KvGeometry::make(s0), KvGeometry::make(s1)}, .eos_tokens = {}});
    names.push_back(fmt::format("m{}", m)); images.push_back({&s0, &s1});
    w.models.push_back({names.back(), cell.rates[m]});
  }
  CostOptions costs{.link_bytes_per_s = pages * kPage / 0.423, .memory_bytes_per_s = pages * kPage / 0.028, .flops_per_s = 1e15, .step_s = 5e-4};
  SchedulerOptions o{.frames = cell.resident * pages + cell.resident * 2, .host_slots = 8, .max_batch_tokens = 2048, .max_seqs = cell.batch, .steps_in_flight = 3, .costs = costs};
  Scheduler scheduler(shapes, names, make_policy(policy), o);
  VirtualMesh mesh(images, CostModel(images, costs), 50e-6);
  for (Request& r : make_workload(w)) scheduler.submit(std::move(r));
  scheduler.close_input();
  VirtualRun r = run_virtually(scheduler, mesh);
  std::vector<double> lat;
  for (const auto& c : r.completions) lat.push_back(c.finished_s - c.arrival_s);
  std::sort(lat.begin(), lat.end());
  return {std::accumulate(lat.begin(), lat.end(), 0.0) / lat.size(), lat[std::min(lat.size() - 1, std::size_t(lat.size() * 0.99))], double(r.swaps)};
}
}
int main(int argc, char** argv) {
  std::vector<std::vector<double>> r3{{1,1,1},{10,1,1},{10,10,1}}, r6{{1,1,1,1,1,1},{10,10,1,1,1,1},{10,10,10,10,1,1}};
  const double theirs[18] = {1.262,.606,.518,1.172,.886,.551,1.014,.716,.374,1.847,1.282,.174,2.017,1.413,.229,1.535,1.470,.312};
  int k = 0; const int seeds = argc > 1 ? atoi(argv[1]) : 10;
  for (int six = 0; six < 2; ++six) for (auto& rates : six ? r6 : r3) for (double cv : {0.25, 1.0, 4.0}) {
    Cell c{rates, cv, six ? 4 : 2, six ? 32 : 8};
    Out a{}, b{};
    for (int s = 0; s < seeds; ++s) {
      Out f = run(c, "fifo", s), g = run(c, "balanced", s);
      a.mean += f.mean / seeds; a.p99 += f.p99 / seeds; a.swaps += f.swaps / seeds;
      b.mean += g.mean / seeds; b.p99 += g.p99 / seeds; b.swaps += g.swaps / seeds;
    }
    fmt::print("{:28} cv {:4} theirs {:6.3f} fifo {:6.3f} p99 {:6.3f} swaps {:5.1f} | balanced {:6.3f} p99 {:6.3f} swaps {:5.1f} | ratio {:5.2f} p99 {:5.2f}\n", fmt::format("{}", fmt::join(rates, ",")), cv, theirs[k++], a.mean, a.p99, a.swaps, b.mean, b.p99, b.swaps, b.mean / a.mean, b.p99 / a.p99);
  }
}

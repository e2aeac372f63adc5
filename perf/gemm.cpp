// The GEMM kernels of this CPU beside what memory and multipliers allow (perf/README.md, "Gemm").
//
//   perf_gemm [ROUNDS [MIB [TYPES]]]     rounds (5); MiB of weights of each type (512); types whose names begin so
#include "kernels/cpu/gemm.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "computron/base/quantise.h"
#include "computron/base/time.h"
#include "kernels/cpu/gemm_measure.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/read.h"

namespace computron {
namespace {

using kernels::Gemm;
using kernels::GemmKernel;

constexpr int kOut = 8192, kDepth = 4096;
constexpr int kRows[] = {1, 2, 4, 6, 8, 12, 16, 32, 64, 256};
constexpr int kTileFloats = 32768;  // as src/ops/cpu/tasks.h cuts

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

Memory huge_pages(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  auto* const p = static_cast<std::byte*>(std::aligned_alloc(kHugePage, round_up(bytes, kHugePage)));
  ensure(p != nullptr, "no memory for weights");
  madvise(p, bytes, MADV_HUGEPAGE);
  return Memory(p);
}

// Seconds from when all threads are ready until all have run work(thread).
double seconds_of(int threads, const std::function<void(int)>& work) {
  std::barrier begin(threads + 1), end(threads + 1);
  std::vector<std::jthread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      begin.arrive_and_wait();
      work(t);
      end.arrive_and_wait();
    });
  }
  begin.arrive_and_wait();
  const double begin_s = now_s();
  end.arrive_and_wait();
  return now_s() - begin_s;
}

class TypeBench {
 public:
  TypeBench(const WeightType& type, std::size_t mib, int threads)
      : type_(type),
        threads_(threads),
        bytes_(std::max<std::size_t>(1, (mib << 20) / one_weight()) * one_weight()),
        weights_(huge_pages(bytes_)) {
    fill(weights_.get(), bytes_);
    for (std::size_t i = 0; type.quantised() && i < bytes_; i += one_weight()) put_scales(weights_.get() + i);
    const std::uint32_t quarter = gemm_input() == DType::kF32 ? 0x3e800000u : 0x3e803e80u;
    x_.assign(static_cast<std::size_t>(kernels::kMaxGemmRows) * kDepth, quarter);
  }

  void round() {
    read_.push_back(static_cast<double>(bytes_) / seconds_of(threads_, [&](int t) { read(t); }));
    for (const int rows : kRows) {
      for (const GemmKernel kernel : kernels::gemm_kernels(type_)) {
        const double s = seconds_of(threads_, [&](int t) { multiply(kernel, rows, t); });
        bytes_per_s_[{rows, kernel}].push_back(static_cast<double>(used_bytes(rows)) / s);
      }
    }
  }

  std::string rows() const {
    double peak = 0;
    for (const auto& [key, rates] : bytes_per_s_) peak = std::max(peak, flops(key.first, median(rates)));
    const double read = median(read_);
    std::string text;
    for (const auto& [key, rates] : bytes_per_s_) {
      const double rate = median(rates), of_read = rate / read, of_peak = flops(key.first, rate) / peak;
      text += fmt::format("| {} | {} | {} | {:.1f} | {:.0f} | {:.3f} | {:.3f} | {:.3f} | {:.1f} |\n", name_of(type_),
                          key.first, name_of(key.second), rate / 1e9, flops(key.first, rate) / 1e9, of_read, of_peak,
                          std::max(of_read, of_peak), read / 1e9);
    }
    return text;
  }

 private:
  static std::string_view name_of(GemmKernel kernel) { return kernels::name_of(kernel); }
  static std::string name_of(const WeightType& type) { return computron::name_of(type); }

  // Values of ± 0.5 to 1, of which no sum overflows and no product is subnormal, or any codes.
  void fill(std::byte* to, std::size_t bytes) const {
    std::minstd_rand random(1);
    for (std::size_t i = 0; i < bytes; i += 4) {
      const auto noise = static_cast<std::uint32_t>(random() * 0x9e3779b9u);
      const std::uint32_t value = type_.codes == DType::kF32    ? 0x3f000000u | (noise & 0x807fffffu)
                                  : type_.codes == DType::kBF16 ? 0x3f003f00u | (noise & 0x807f807fu)
                                  : type_.codes == DType::kF16  ? 0x38003800u | (noise & 0x83ff83ffu)
                                                                : noise;
      std::memcpy(to + i, &value, sizeof(value));
    }
  }
  // A 256th.
  void put_scales(std::byte* weight) const {
    const int groups = type_.groups(kDepth);
    const std::size_t count = static_cast<std::size_t>(kOut) * groups;
    const std::vector<std::uint16_t> halves(count, 0x3b80);
    const std::vector<std::uint8_t> bytes(count, type_.scales == DType::kE8M0 ? 119 : 0x38);
    const auto* scales = type_.scales == DType::kBF16 ? reinterpret_cast<const std::byte*>(halves.data())
                                                      : reinterpret_cast<const std::byte*>(bytes.data());
    kernels::pack_scales(weight, kDepth, type_, 0, kOut, 0, groups, scales, static_cast<std::size_t>(groups), 1);
    if (type_.has_factors()) kernels::pack_factor(weight, kDepth, type_, 0, kOut, 0x1p-8);
  }

  DType gemm_input() const { return kernels::gemm_input_dtype(type_); }
  std::size_t one_weight() const { return kernels::packed_bytes(kOut, kDepth, type_); }
  double flops(int rows, double bytes_per_s) const {
    return 2.0 * rows * kOut * kDepth * bytes_per_s / static_cast<double>(one_weight());
  }
  // Many rows take long: of less weight then.
  std::size_t used_bytes(int rows) const {
    const std::size_t part = static_cast<std::size_t>(std::max(1, rows / 16)) * threads_;
    return std::max(bytes_ / part * threads_ / one_weight(), std::size_t{1}) * one_weight();
  }

  void read(int thread) const {
    const std::size_t part = bytes_ / threads_ / 256 * 256;
    kernels::read(weights_.get() + thread * part, part);
  }

  void multiply(GemmKernel kernel, int rows, int thread) const {
    Gemm gemm;
    const Memory memory = huge_pages(kTileFloats * sizeof(float));  // at whole cache lines
    auto* const tile = reinterpret_cast<float*>(memory.get());
    const int width = std::min(512, kTileFloats / rows / kernels::kRowBlock * kernels::kRowBlock);
    const std::size_t piece = kernels::packed_bytes(width, kDepth, type_), pieces = used_bytes(rows) / piece;
    const kernels::GemmChoice choice{kernel, kernels::default_gemm(type_).blocking};
    gemm.take_rows(type_, reinterpret_cast<const std::byte*>(x_.data()), rows, kDepth);
    for (std::size_t i = pieces * thread / threads_; i < pieces * (thread + 1) / threads_; ++i) {
      gemm.run(choice, weights_.get() + i * piece, width, tile);
    }
  }

  WeightType type_;
  int threads_;
  std::size_t bytes_;
  Memory weights_;
  std::vector<std::uint32_t> x_;
  std::vector<double> read_;
  std::map<std::pair<int, GemmKernel>, std::vector<double>> bytes_per_s_;
};

// Quantised ones as models have them.
std::vector<WeightType> weight_types() {
  std::vector<WeightType> types = {DType::kF32, DType::kF16, DType::kBF16};
  const DType values = kernels::multiplies_bf16() ? DType::kBF16 : DType::kF32;
  for (const DType codes : kQuantisedTo) {
    for (const int group : {32, 128}) types.emplace_back(values, codes, DType::kBF16, group);
  }
  types.emplace_back(values, DType::kFp4, DType::kE8M0, 32);
  types.emplace_back(values, DType::kFp4, DType::kE4M3, 16);
  return types;
}

// What the program would choose at its start, and how long it would take to do so.
void print_choices(std::string_view types) {
  fmt::print(
      "\n| type | chosen kernel | ahead | blocks at once | slice | again | codes ahead, bytes | measured in ms |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const WeightType& type : weight_types()) {
    if (!name_of(type).starts_with(types)) continue;
    const double begin_s = now_s();
    const kernels::GemmChoice choice = kernels::measure_gemm(type, kernels::kMeasurement_s);
    const auto& b = choice.blocking;
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {:.0f} |\n", name_of(type), kernels::name_of(choice.kernel),
               b.ahead_bytes, b.blocks_at_once, b.slice_bytes, b.again_bytes, b.codes_ahead_bytes,
               1e3 * (now_s() - begin_s));
  }
}

void run(int rounds, std::size_t mib, std::string_view types) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  fmt::print("Instructions {}, {} threads, medians of {} rounds.\n\n", kernels::name_of(kernels::usable_isa()), threads,
             rounds);
  fmt::print(
      "| type | rows | kernel | GB/s | GFLOP/s | of read | of peak | of bound | read GB/s |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const WeightType& type : weight_types()) {
    if (!name_of(type).starts_with(types)) continue;
    TypeBench bench(type, mib, threads);
    for (int i = 0; i < rounds; ++i) bench.round();
    fmt::print("{}", bench.rows());
  }
  print_choices(types);
}

}  // namespace
}  // namespace computron

int main(int argc, char** argv) {
  computron::run(argc > 1 ? std::atoi(argv[1]) : 5, argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 512,
                 argc > 3 ? argv[3] : "");
}

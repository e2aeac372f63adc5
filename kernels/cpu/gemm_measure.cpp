#include "kernels/cpu/gemm_measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>

#include "computron/base/error.h"
#include "computron/base/time.h"
#include "kernels/cpu/pack.h"

namespace computron::kernels {
namespace {

constexpr int kAheadBytes[] = {128, 256, 1 << 10, 2 << 10, 4 << 10};
constexpr int kBlocksAtOnce[] = {1, 2, PanelBlocking::kMostAtOnce};
constexpr int kSliceBytes[] = {32 << 10, 64 << 10, 128 << 10};
constexpr int kAgainBytes[] = {0, 8 << 10, 16 << 10};
constexpr int kCodesAheadBytes[] = {1024, 2048, 3072, 4096, 6144};

using Choices = std::vector<GemmChoice>;

// Each as it is, and with each other value of a member of its blocking.
template <std::size_t kCount>
Choices with_each(const Choices& choices, int PanelBlocking::*member, const int (&values)[kCount]) {
  Choices all;
  for (const GemmChoice& choice : choices) {
    all.push_back(choice);
    for (const int value : values) {
      if (value == choice.blocking.*member) continue;
      all.push_back(choice);
      all.back().blocking.*member = value;
    }
  }
  return all;
}

// What is chosen one after the other, given those before. Codes are multiplied in slices of one size.
enum class Stage { kKernel, kAhead, kBlocks, kSlices, kCodesAhead };
constexpr Stage kStages[] = {Stage::kKernel, Stage::kAhead, Stage::kBlocks, Stage::kSlices, Stage::kCodesAhead};

// How many rows show it. Narrower vectors may read memory as fast for few rows, and take twice as long for many.
std::vector<int> rows_of(Stage stage) {
  if (stage == Stage::kKernel) return {1, 4, 8, 32};
  if (stage == Stage::kBlocks) return {1, 2};
  if (stage == Stage::kSlices) return {8};
  return {1, 4};
}

Choices alternatives(const WeightType& type, const GemmChoice& to, Stage stage) {
  Choices given = {to};
  if (stage == Stage::kKernel) {
    Choices kernels;
    for (const GemmKernel kernel : gemm_kernels(type)) kernels.push_back({kernel, to.blocking});
    std::ranges::reverse(kernels);
    return kernels;
  }
  if (to.kernel == GemmKernel::kAmx) return given;
  if (stage == Stage::kCodesAhead) {
    const bool in_registers = type.quantised() && (multiplies_integers(type) || to.kernel != GemmKernel::kAvx2);
    return in_registers ? with_each(given, &PanelBlocking::codes_ahead_bytes, kCodesAheadBytes) : given;
  }
  if (type.quantised()) return given;
  if (stage == Stage::kAhead) return with_each(given, &PanelBlocking::ahead_bytes, kAheadBytes);
  if (stage == Stage::kBlocks) {
    const bool wide = to.kernel == GemmKernel::kAvx512;  // AVX2's registers hold the sums of one
    return wide ? with_each(given, &PanelBlocking::blocks_at_once, kBlocksAtOnce) : given;
  }
  return with_each(with_each(given, &PanelBlocking::slice_bytes, kSliceBytes), &PanelBlocking::again_bytes,
                   kAgainBytes);
}

// Weights that go by in turns, so that none is in a cache when its turn comes. Each piece lies behind the last, as a
// thread's tasks do.
class Bench {
 public:
  explicit Bench(const WeightType& type) : type_(type), weights_(allocate()) {
    // 1 where scales are powers of two, 0.75 where they are of two or four bytes: no product is subnormal.
    std::memset(weights_.get(), type.scales == DType::kE8M0 ? 0x7f : 0x3f, kBytes);
    x_.assign(static_cast<std::size_t>(kMostRows) * kDepth,
              gemm_input_dtype(type) == DType::kF32 ? kQuarter : kQuarters);
  }

  // What is found in the first half of the time counts if the second half confirms it.
  GemmChoice fastest(const Choices& choices, const std::vector<int>& rows, double seconds) {
    const std::vector<double> ratios = ratios_to_first(choices, rows, seconds / 2);
    const auto best = static_cast<std::size_t>(std::ranges::min_element(ratios) - ratios.begin());
    if (ratios[best] >= kWorthwhile) return choices[0];
    const bool confirmed = ratios_to_first({choices[0], choices[best]}, rows, seconds / 2)[1] < kWorthwhile;
    return choices[confirmed ? best : 0];
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{48} << 20;
  static constexpr int kMostRows = 32;
  static constexpr int kDepth = 2048, kColumns = 256;
  static constexpr int kTasks = 4;  // of a piece
  static constexpr double kWorthwhile = 0.97;
  static constexpr std::uint32_t kQuarter = 0x3e800000, kQuarters = 0x3e803e80;  // float32; two of bfloat16

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  static Memory allocate() {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, kBytes)));
    if (!memory) throw Error(ExitCode::kSystem, "no memory to measure kernels in");
    madvise(memory.get(), kBytes, MADV_HUGEPAGE);  // as frames are; without them it is as good for comparisons
    return memory;
  }

  // What each takes ÷ what the first takes: medians of rounds.
  std::vector<double> ratios_to_first(const Choices& choices, const std::vector<int>& rows, double seconds) {
    std::vector<std::vector<double>> ratios(choices.size());
    const double begin_s = now_s();
    do {
      const double first_s = run_s(choices[0], rows);
      ratios[0].push_back(1);
      for (std::size_t i = 1; i < choices.size(); ++i) ratios[i].push_back(run_s(choices[i], rows) / first_s);
    } while (now_s() < begin_s + seconds);
    std::vector<double> medians;
    for (std::vector<double>& of_one : ratios) {
      const auto middle = of_one.begin() + static_cast<std::ptrdiff_t>(of_one.size() / 2);
      std::ranges::nth_element(of_one, middle);
      medians.push_back(*middle);
    }
    return medians;
  }

  // A first piece, which asks for what the next one needs as this choice does, does not count.
  double run_s(const GemmChoice& choice, const std::vector<int>& all_rows) {
    run_piece(choice, all_rows.front());
    const double begin_s = thread_s();
    for (const int rows : all_rows) run_piece(choice, rows);
    return thread_s() - begin_s;
  }
  // As a thread takes rows of x once for all of its tasks of a GEMM.
  void run_piece(const GemmChoice& choice, int rows) {
    const std::size_t task = round_up(packed_bytes(kColumns, kDepth, type_), std::size_t{64});
    gemm_.take_rows(type_, reinterpret_cast<const std::byte*>(x_.data()), rows, kDepth);
    for (int i = 0; i < kTasks; ++i) {
      if (next_ + task > kBytes) next_ = 0;
      gemm_.run(choice, weights_.get() + next_, kColumns, tile_.data());
      next_ += task;
    }
  }
  // Time in which the processor works for others does not count.
  static double thread_s() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  WeightType type_;
  Memory weights_;
  std::size_t next_ = 0;  // place of a piece
  std::vector<std::uint32_t> x_;
  std::vector<float> tile_ = std::vector<float>(static_cast<std::size_t>(kMostRows) * kColumns);
  Gemm gemm_;
};

}  // namespace

Choices gemm_candidates(const WeightType& type) {
  Choices all = {default_gemm(type)};
  for (const Stage stage : kStages) {
    Choices more;
    for (const GemmChoice& choice : all) std::ranges::copy(alternatives(type, choice, stage), std::back_inserter(more));
    all = std::move(more);
  }
  return all;
}

GemmChoice measure_gemm(const WeightType& type, double seconds) {
  GemmChoice best = default_gemm(type);
  const auto is_open = [&](Stage stage) { return alternatives(type, best, stage).size() > 1; };
  const auto stages = std::ranges::count_if(kStages, is_open);
  if (stages == 0) return best;
  Bench bench(type);
  for (const Stage stage : kStages) {
    if (is_open(stage)) {
      best = bench.fastest(alternatives(type, best, stage), rows_of(stage), seconds / static_cast<double>(stages));
    }
  }
  return best;
}

}  // namespace computron::kernels

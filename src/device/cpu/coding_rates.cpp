#include "src/device/cpu/coding_rates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "computron/base/convert.h"
#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/base/time.h"
#include "kernels/cpu/coded_page.h"
#include "src/device/cpu/streaming_copy.h"
#include "src/device/mapped_pages.h"

namespace computron {
namespace {

constexpr std::size_t kPageBytes = std::size_t{2} << 20;
constexpr std::size_t kPatternBytes = std::size_t{64} << 10;  // that the page repeats
constexpr int kRounds = 5;

// Weights about as they are trained: sums of uniform numbers.
void fill_with_weights(std::span<std::byte> page, DType dtype) {
  std::vector<float> weights(kPatternBytes / size_of(dtype));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    float sum = 0;
    for (const std::int8_t byte : std::bit_cast<std::array<std::int8_t, 8>>(mix64(i))) sum += static_cast<float>(byte);
    weights[i] = sum * 1e-4f + 1e-6f * static_cast<float>(i % 97);
  }
  convert_elements(reinterpret_cast<const std::byte*>(weights.data()), DType::kF32, page.data(), dtype, weights.size());
  for (std::size_t at = kPatternBytes; at < page.size(); at += kPatternBytes) {
    std::memcpy(page.data() + at, page.data(), kPatternBytes);
  }
}

class CodingMeasurement {
 public:
  explicit CodingMeasurement(DType dtype) {
    if (!memory_ || !memory_->populate(/*threads=*/1)) {
      throw Error(ExitCode::kSystem, "no memory to measure how fast pages are decoded");
    }
    fill_with_weights({page_at(0), kPageBytes}, dtype);
    const std::vector<BlockEncoding> values(coded_blocks(kPageBytes), encoding_of(dtype));
    coded_bytes_ = kernels::encode_page({page_at(0), kPageBytes}, values, coded());
  }

  // Rounds of both in turn, so that what else the machine does meets them alike.
  CodingRates run() {
    CodingRates best;
    for (int round = 0; round < kRounds; ++round) {
      best.decoded_bytes_per_s = std::max(best.decoded_bytes_per_s, kPageBytes / decode_s());
      best.link_bytes_per_s = std::max(best.link_bytes_per_s, kPageBytes / copy_s());
    }
    return best;
  }

 private:
  std::byte* page_at(int page) const { return memory_->data() + static_cast<std::size_t>(page) * kPageBytes; }
  std::byte* coded() const { return page_at(2); }
  std::byte* source() const { return coded() + room_; }

  // What streaming_copy() writes is in no cache afterwards.
  double decode_s() {
    streaming_copy(source(), coded(), coded_bytes_);
    const double begin_s = now_s();
    const bool good =
        kernels::decode_blocks({source(), coded_bytes_}, kPageBytes, 0, coded_blocks(kPageBytes), page_at(1));
    const double took_s = now_s() - begin_s;
    ensure(good, "a page that was coded cannot be decoded");
    return took_s;
  }
  double copy_s() {
    streaming_copy(source(), page_at(0), kPageBytes);
    const double begin_s = now_s();
    streaming_copy(page_at(1), source(), kPageBytes);
    return now_s() - begin_s;
  }

  const std::size_t room_ = round_up(most_coded_bytes(kPageBytes), std::size_t{4096});
  // A page, its copy, it coded, what is copied from.
  std::optional<MappedPages> memory_ = MappedPages::map(2 * kPageBytes + 2 * room_);
  std::size_t coded_bytes_ = 0;
};

}  // namespace

CodingRates measure_cpu_coding_rates(double link_gb_per_s) {
  CodingRates slowest{.decoded_bytes_per_s = std::numeric_limits<double>::infinity()};
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const CodingRates rates = CodingMeasurement(dtype).run();
    slowest.decoded_bytes_per_s = std::min(slowest.decoded_bytes_per_s, rates.decoded_bytes_per_s);
    slowest.link_bytes_per_s = std::max(slowest.link_bytes_per_s, rates.link_bytes_per_s);
  }
  if (link_gb_per_s > 0) slowest.link_bytes_per_s = 1e9 * link_gb_per_s;
  return slowest;
}

}  // namespace computron

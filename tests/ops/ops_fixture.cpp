#include "tests/ops/ops_fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>

#include "tests/support/deferred_stream.h"
#include "tests/support/test_device.h"

namespace computron::testing {
namespace {

constexpr double kLinkGbPerS = 0.05;  // 10 ms for DeviceTraits::delay_bytes

DeviceCase cpu_case(std::string name, CpuDeviceOptions options) {
  options.link_gb_per_s = kLinkGbPerS;
  return {std::move(name), [options] { return make_cpu_device(options); }, make_cpu_ops};
}

DeviceCase gpu_case() {
  return {"cuda",
          [] { return make_cuda_device(0); },
          [](Device& device) { return make_cuda_ops(device); },
          {.host_memory = false, .any_batch_same_bits = false, .delay_bytes = std::size_t{64} << 20}};
}

float value_of(const std::byte* p, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return dtype == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

}  // namespace

double narrow_tolerance(DType dtype) {
  if (dtype == DType::kF32) return 3e-6;
  return dtype == DType::kF16 ? 5e-4 : 4e-3;
}

double accumulated_tolerance(const DeviceTraits& traits, DType weight) {
  return traits.host_memory || weight == DType::kF32 ? 2e-6 : 2e-5;
}

double attended_tolerance(const DeviceTraits& traits, DType cache) {
  if (traits.host_memory || cache == DType::kF32) return 4e-6;
  return cache == DType::kF16 ? 2e-3 : 1.6e-2;
}

double decoded_tolerance(const DeviceTraits& traits, DType cache) {
  return traits.host_memory || cache == DType::kF32 ? 4e-6 : 2e-5;
}

std::vector<DeviceCase> device_cases() {
  if (!test::on_cpu()) return {gpu_case()};
  return {cpu_case("cpu_1", {.threads = 1}), cpu_case("cpu_2", {.threads = 2}),
          cpu_case("cpu_2_deferred", {.threads = 2, .wrap_compute_stream = test::deferred})};
}

Floats random_floats(std::size_t n, unsigned seed, DType dtype) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(-1, 1);
  Floats values(n);
  for (float& v : values) v = distribution(generator);
  return rounded_to(std::move(values), dtype);
}

Floats rounded_to(Floats values, DType dtype) {
  const auto bytes = bytes_of(values, dtype);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(&bytes[i * size_of(dtype)], dtype);
  return values;
}

std::vector<std::byte> bytes_of(const Floats& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  if (dtype == DType::kF32) {
    std::copy_n(std::as_bytes(std::span(values)).begin(), bytes.size(), bytes.begin());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = dtype == DType::kF16 ? f16_from_f32(values[i]) : bf16_from_f32(values[i]);
    std::memcpy(&bytes[2 * i], &half, 2);
  }
  return bytes;
}

Bench::Bench(const DeviceCase& device_case)
    : traits_(device_case.traits),
      device_(device_case.make_device()),
      stream_(device_->make_compute_stream(progress_)),
      ops_(device_case.make_ops(*device_)) {}

std::vector<DType> Bench::narrow_types() const {
  if (ops_->weight_format().input_dtype(DType::kF16) != DType::kF16) return {DType::kBF16};
  return {DType::kBF16, DType::kF16};
}

std::byte* Bench::put_bytes(const std::vector<std::byte>& bytes) {
  buffers_.push_back(device_->allocate(std::max<std::size_t>(bytes.size(), 1), "a test"));
  std::byte* data = buffers_.back()->data();
  const auto& kept = keep(bytes);
  stream_->copy_to_device(data, kept.data(), kept.size());
  return data;
}

Activations Bench::put(const Floats& values, int rows, int columns, DType dtype) {
  Floats padded = values;
  padded.resize(static_cast<std::size_t>(ops_->padded_rows(rows)) * columns, std::numeric_limits<float>::quiet_NaN());
  return {put_bytes(bytes_of(padded, dtype)), rows, columns, dtype};
}

Activations Bench::empty(int rows, int columns, DType dtype) { return put({}, rows, columns, dtype); }

Floats Bench::get(const Activations& a) {
  std::vector<std::byte> bytes(a.bytes());
  ops_->copy_to_host(*stream_, a, bytes.data());
  stream_->synchronize();
  Floats values(bytes.size() / size_of(a.dtype));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(&bytes[i * size_of(a.dtype)], a.dtype);
  return values;
}

Vector Bench::vector(const Floats& values) {
  return {reinterpret_cast<const float*>(put_bytes(bytes_of(values, DType::kF32))), nullptr,
          static_cast<int>(values.size())};
}

std::vector<std::byte> Bench::pack(const float* values, int rows, int in, DType dtype) {
  const WeightFormat& format = ops_->weight_format();
  std::vector<std::byte> packed(format.panel_bytes(rows, in, dtype));
  const auto source = bytes_of(Floats(values, values + static_cast<std::size_t>(rows) * in), dtype);
  format.pack(packed.data(), in, dtype, 0, rows, 0, in, source.data(), static_cast<std::size_t>(in), 1);
  return packed;
}

Weight Bench::weight(const Floats& values, int out, int in, DType dtype, const std::vector<int>& panel_rows) {
  return weight(dtype, out, in, panel_rows,
                [&](int row, int rows) { return pack(&values[static_cast<std::size_t>(row) * in], rows, in, dtype); });
}

Weight Bench::weight(const WeightType& type, int out, int in, const std::vector<std::byte>& codes,
                     const std::vector<std::byte>& scales, const std::vector<int>& panel_rows,
                     const std::vector<double>& factors) {
  const WeightFormat& format = ops_->weight_format();
  const auto width = static_cast<std::size_t>(in), groups = static_cast<std::size_t>(type.groups(in));
  return weight(type, out, in, panel_rows, [&](int row, int rows) {
    std::vector<std::byte> packed(format.panel_bytes(rows, in, type));
    format.pack(packed.data(), in, type, 0, rows, 0, in, &codes[row * width], width, 1);
    format.pack_scales(packed.data(), in, type, 0, rows, 0, type.groups(in),
                       &scales[row * groups * size_of(type.scales)], groups, 1);
    for (int i = 0; type.has_factors() && i < rows; ++i) {
      format.pack_factor(packed.data(), in, type, i, 1, factors[static_cast<std::size_t>(row + i)]);
    }
    return packed;
  });
}

Weight Bench::weight(const WeightType& type, int out, int in, const std::vector<int>& panel_rows,
                     const std::function<std::vector<std::byte>(int, int)>& pack) {
  std::vector<WeightPanel> panels;
  for (int row = 0; row < out; row += panels.back().rows) {
    const int rows = std::min(panel_rows[std::min(panels.size(), panel_rows.size() - 1)], out - row);
    panels.push_back({put_bytes(pack(row, rows)), nullptr, row, rows});
  }
  return {keep(std::move(panels)), out, in, type};
}

SlowLink::SlowLink(Bench& bench) : bench_(bench), stream_(bench.device().make_copy_stream()) {}
SlowLink::~SlowLink() { stream_->synchronize(); }

const std::byte* SlowLink::page(const std::vector<std::byte>& bytes) {
  pages_.push_back(bench_.device().allocate_host(bytes.size(), "a test"));
  std::copy(bytes.begin(), bytes.end(), pages_.back()->data());
  return pages_.back()->data();
}

// The delay goes first: what is fetched may be copied at once and only its event come late.
std::byte* SlowLink::fetch(const std::vector<std::byte>& bytes, Event& event) {
  const std::vector<std::byte> delay(bench_.traits().delay_bytes);
  auto* to = bench_.put_bytes(std::vector<std::byte>(bytes.size(), std::byte{0x7f}));
  auto* nowhere = bench_.put_bytes(delay);
  bench_.stream().synchronize();  // the garbage is there before the link starts
  stream_->copy_to_device(nowhere, page(delay), delay.size());
  stream_->copy_to_device(to, page(bytes), bytes.size());
  stream_->record(event);
  return to;
}

void expect_close(const Floats& actual, const std::vector<double>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0, worst = 0;
  for (const double e : expected) largest = std::max(largest, std::abs(e));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << what << ": element " << i << " is " << actual[i];
    worst = std::max(worst, std::abs(actual[i] - expected[i]));
  }
  EXPECT_LE(worst, tolerance * largest) << what << ": relative to the largest value " << worst / largest;
}

void expect_same(const Floats& actual, const Floats& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  if (std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)) == 0) return;
  int differing = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) differing += std::memcmp(&actual[i], &expected[i], 4) != 0;
  FAIL() << what << ": " << differing << " of " << actual.size() << " values differ in bits";
}

Floats row_of(const Floats& matrix, int row, int columns) {
  const auto begin = matrix.begin() + static_cast<std::ptrdiff_t>(row) * columns;
  return {begin, begin + columns};
}

}  // namespace computron::testing

// A device with its stream and operations, and arrays on it. One test source runs on every device in device_cases().
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "computron/device/device.h"
#include "computron/ops/ops.h"

namespace computron::testing {

// What tests must know of a device besides.
struct DeviceTraits {
  bool host_memory = true;            // its memory is the host's
  bool any_batch_same_bits = true;    // all operations; otherwise those that say so in their tests
  std::size_t delay_bytes = 500'000;  // that take its link some milliseconds
};

struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>()> make_device;
  std::function<std::unique_ptr<Ops>(Device&)> make_ops;
  DeviceTraits traits = {};
};
inline void PrintTo(const DeviceCase& device_case, std::ostream* out) { *out << device_case.name; }
// On CPU one, two and (to prove that nothing is read too early) two threads with a deferred stream; with
// tests/support/on_gpu.sh a GPU alone.
std::vector<DeviceCase> device_cases();

// How far results may be from exact ones, relative to the largest: every tolerance of narrow types.
//   narrow       results rounded once to that type: half a unit of 8 or 11 bits, twice
//   accumulated  products of narrow numbers, summed in float32: tensor cores cut off what they add
//   attended     queries and weights rounded to the cache's type, as tensor cores take them
//   decoded      neither rounded, but added up by tensor cores
double narrow_tolerance(DType dtype);
double accumulated_tolerance(const DeviceTraits& traits, DType weight);
double attended_tolerance(const DeviceTraits& traits, DType cache);
double decoded_tolerance(const DeviceTraits& traits, DType cache);

using Floats = std::vector<float>;

// n values of roughly [-1, 1], the same for the same seed; representable in bfloat16 when `dtype` is bf16.
Floats random_floats(std::size_t n, unsigned seed, DType dtype = DType::kF32);
Floats rounded_to(Floats values, DType dtype);
// The elements of `values` as bytes of `dtype`.
std::vector<std::byte> bytes_of(const Floats& values, DType dtype);

// Everything given to it lives as long as the bench: deferred work may read it late.
class Bench {
 public:
  explicit Bench(const DeviceCase& device_case);

  const DeviceTraits& traits() const { return traits_; }
  // The two-byte types that rows of GEMM input, and so what operations write, may have.
  std::vector<DType> narrow_types() const;

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Ops& ops() { return *ops_; }

  // [rows, columns] on the device with room for padded_rows(rows); the rows behind hold NaN, as does all of empty().
  Activations put(const Floats& values, int rows, int columns, DType dtype = DType::kF32);
  Activations empty(int rows, int columns, DType dtype = DType::kF32);
  // Runs the stream and returns the values.
  Floats get(const Activations& activations);

  Vector vector(const Floats& values);
  // values [out, in] packed into panels of these numbers of rows (the last repeated as needed).
  Weight weight(const Floats& values, int out, int in, DType dtype, const std::vector<int>& panel_rows = {512});
  // A quantised weight: codes [out, in], a byte each, and scales [out, type.groups(in)] as they are stored; factors
  // [out] where these have some.
  Weight weight(const WeightType& type, int out, int in, const std::vector<std::byte>& codes,
                const std::vector<std::byte>& scales, const std::vector<int>& panel_rows = {512},
                const std::vector<double>& factors = {});
  // Host bytes of one packed panel.
  std::vector<std::byte> pack(const float* values, int rows, int in, DType dtype);
  // Device memory that holds `bytes`.
  std::byte* put_bytes(const std::vector<std::byte>& bytes);

  // Moves a value into the bench and returns a reference that stays valid.
  template <class T>
  const T& keep(T value) {
    auto kept = std::make_shared<T>(std::move(value));
    kept_.push_back(kept);
    return *kept;
  }

 private:
  // pack(row, rows) gives the host bytes of a panel.
  Weight weight(const WeightType& type, int out, int in, const std::vector<int>& panel_rows,
                const std::function<std::vector<std::byte>(int, int)>& pack);

  DeviceTraits traits_;
  Progress progress_{IdlePolicy{}};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<std::shared_ptr<void>> kept_;
};

// A link on which whatever is fetched arrives some milliseconds after the call.
class SlowLink {
 public:
  explicit SlowLink(Bench& bench);
  ~SlowLink();

  // Device memory that holds garbage until `event` is reached, and `bytes` from then on.
  std::byte* fetch(const std::vector<std::byte>& bytes, Event& event);

 private:
  // The same bytes in memory that the link reads at its own rate.
  const std::byte* page(const std::vector<std::byte>& bytes);

  Bench& bench_;
  std::unique_ptr<CopyStream> stream_;
  std::vector<std::unique_ptr<HostBuffer>> pages_;
};

class OpsTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  Bench bench_{GetParam()};
};
#define COMPUTRON_ON_EVERY_DEVICE(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Devices, Suite, ::testing::ValuesIn(::computron::testing::device_cases()), \
                           [](const auto& device) { return device.param.name; })

// Every |actual - expected| is at most `tolerance` times the largest |expected|; both are finite and of one length.
void expect_close(const Floats& actual, const std::vector<double>& expected, double tolerance, const std::string& what);
// The same bits.
void expect_same(const Floats& actual, const Floats& expected, const std::string& what);
Floats row_of(const Floats& matrix, int row, int columns);

}  // namespace computron::testing

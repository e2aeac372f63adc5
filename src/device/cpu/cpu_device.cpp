// The CPU device: memory of this process, a pool of compute threads, a copy thread a copy stream.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/memory.h"
#include "computron/base/size.h"
#include "computron/device/device.h"
#include "src/device/cpu/coding_rates.h"
#include "src/device/cpu/compute_pool.h"
#include "src/device/cpu/compute_stream.h"
#include "src/device/cpu/copy_stream.h"
#include "src/device/cpu/event.h"
#include "src/device/mapped_pages.h"

namespace computron {
namespace {

constexpr std::size_t kDefaultPageBytes = std::size_t{8} << 20;
constexpr int kMaxThreads = 4096;
constexpr double kSlowestLink_gb_per_s = 1e-6;

class CpuDeviceBuffer final : public DeviceBuffer {
 public:
  explicit CpuDeviceBuffer(MappedPages pages) : pages_(std::move(pages)) {}
  std::byte* data() const override { return pages_.data(); }
  std::size_t bytes() const override { return pages_.bytes(); }

 private:
  MappedPages pages_;
};

class CpuHostBuffer final : public HostBuffer {
 public:
  explicit CpuHostBuffer(MappedPages pages) : pages_(std::move(pages)) {}
  std::byte* data() const override { return pages_.data(); }
  std::size_t bytes() const override { return pages_.bytes(); }
  bool populate(std::size_t begin, std::size_t end) override { return pages_.populate(begin, end); }
  void trim(std::size_t bytes) override { pages_.trim(bytes); }
  void make_read_only() override {
    pages_.collapse();
    pages_.make_read_only();
  }

 private:
  MappedPages pages_;
};

std::string refusal(std::string_view kind, std::size_t bytes, std::string_view what) {
  const auto [available, source] = available_memory();
  return fmt::format("cannot allocate {} of {} memory for {} ({} available by {})", format_size(bytes), kind, what,
                     format_size(available), source);
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options), pool_(options.threads, options.spin_us) {}

  std::string name() const override {
    return fmt::format("cpu ({} thread{})", options_.threads, options_.threads == 1 ? "" : "s");
  }
  std::size_t default_page_bytes() const override { return kDefaultPageBytes; }
  bool verifies_pages() const override { return true; }
  bool decodes_pages() const override { return true; }
  CodingRates measure_coding_rates() const override { return measure_cpu_coding_rates(options_.link_gb_per_s); }

  std::unique_ptr<DeviceBuffer> allocate(std::size_t bytes, std::string_view what) override {
    auto pages = MappedPages::map(bytes);
    if (!pages || !pages->populate(options_.threads)) throw OutOfDeviceMemory(refusal("device", bytes, what));
    return std::make_unique<CpuDeviceBuffer>(std::move(*pages));
  }

  std::unique_ptr<HostBuffer> allocate_host(std::size_t bytes, std::string_view what) override {
    auto pages = MappedPages::map(bytes);
    if (!pages) throw Error(ExitCode::kSystem, refusal("host", bytes, what));
    return std::make_unique<CpuHostBuffer>(std::move(*pages));
  }
  std::unique_ptr<HostBuffer> reserve_host(std::size_t bytes, std::string_view what) override {
    auto pages = MappedPages::reserve(bytes);
    if (!pages) throw Error(ExitCode::kSystem, refusal("host", bytes, what));
    return std::make_unique<CpuHostBuffer>(std::move(*pages));
  }
  std::unique_ptr<HostBuffer> map_host(int memory, std::size_t offset, std::size_t bytes,
                                       std::string_view what) override {
    auto pages = MappedPages::map_shared(memory, offset, bytes);
    if (!pages) throw Error(ExitCode::kSystem, refusal("shared host", bytes, what));
    return std::make_unique<CpuHostBuffer>(std::move(*pages));
  }

  std::unique_ptr<Stream> make_compute_stream(Progress& progress) override {
    auto stream = std::make_unique<InlineComputeStream>(pool_, progress, options_.trace);
    if (options_.wrap_compute_stream) return options_.wrap_compute_stream(std::move(stream));
    return stream;
  }
  std::unique_ptr<CopyStream> make_copy_stream(const LargestPages& /*largest*/) override {
    return std::make_unique<CpuCopyStream>(options_.link_gb_per_s, options_.copied, options_.trace);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }

 private:
  CpuDeviceOptions options_;
  ComputePool pool_;
};

void check(const CpuDeviceOptions& options) {
  const auto refuse = [](auto value, std::string_view what) {
    throw Error(ExitCode::kUsage, fmt::format("cpu device: {} is not a {}", value, what));
  };
  if (options.threads < 1 || options.threads > kMaxThreads) refuse(options.threads, "number of compute threads");
  const double rate = options.link_gb_per_s;
  if (!std::isfinite(rate) || (rate != 0 && rate < kSlowestLink_gb_per_s)) refuse(rate, "link rate in GB/s");
  if (options.spin_us < 0) refuse(options.spin_us, "spinning time");
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  check(options);
  return std::make_unique<CpuDevice>(options);
}

}  // namespace computron

#include "computron/serve/copy_costs.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "computron/base/error.h"
#include "computron/base/time.h"

namespace computron {
namespace {

constexpr std::size_t kLeastCopy = std::size_t{64} << 10, kMostCopy = std::size_t{32} << 20;
constexpr std::size_t kSmallCopy = 4096;
constexpr double kLongEnough_s = 5e-3;  // that the clock and what goes on beside it hardly matter
constexpr int kSmallOnes = 64;          // that are timed together

double best_of_three(const auto& once) {
  double best_s = 0;
  for (int round = 0; round < 3; ++round) {
    const double begin_s = now_s();
    once();
    const double took_s = now_s() - begin_s;
    best_s = round == 0 ? took_s : std::min(best_s, took_s);
  }
  return best_s;
}

class CostMeasurement {
 public:
  CostMeasurement(Device& device, Progress& progress)
      : host_(device.allocate_host(kMostCopy, "measuring copies")),
        memory_(device.allocate(2 * kMostCopy, "measuring copies")),
        link_(device.make_copy_stream()),
        compute_(device.make_compute_stream(progress)),
        event_(device.make_event()) {
    if (!host_->populate(0, kMostCopy)) throw Error(ExitCode::kSystem, "no host memory to measure copies with");
    std::memset(host_->data(), 0, kMostCopy);
    copy(kMostCopy / 8);  // what comes first is slower
    copy_on_device();
  }

  MeasuredCosts run() {
    MeasuredCosts costs;
    std::size_t bytes = kLeastCopy;
    double large_s = best_of_three([&] { copy(bytes); });
    while (large_s < kLongEnough_s && bytes < kMostCopy) {
      bytes *= 2;
      large_s = best_of_three([&] { copy(bytes); });
    }
    // Of both sizes a copy's time is the same line: copy_s + bytes / rate.
    const double small_s = best_of_three([this] { copy_small_ones(); }) / kSmallOnes;
    const double slope = std::max(large_s - small_s, .1 * large_s) / static_cast<double>(bytes - kSmallCopy);
    costs.copies.bytes_per_s = 1 / slope;
    costs.copies.copy_s = std::max(0.0, small_s - kSmallCopy * slope);
    costs.copies.event_s = best_of_three([this] { wait_for_events(); }) / kSmallOnes;
    costs.compute_s_per_byte = best_of_three([this] { copy_on_device(); }) / (2.0 * kMostCopy);
    return costs;
  }

 private:
  void copy(std::size_t bytes) {
    link_->copy_to_device(memory_->data(), host_->data(), bytes);
    link_->synchronize();
  }
  void copy_small_ones() {
    for (int i = 0; i < kSmallOnes; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * kSmallCopy;
      link_->copy_to_device(memory_->data() + at, host_->data() + at, kSmallCopy);
    }
    link_->synchronize();
  }
  void wait_for_events() {
    for (int i = 0; i < kSmallOnes; ++i) {
      link_->record(*event_);
      compute_->wait(*event_);
    }
    compute_->synchronize();
  }
  void copy_on_device() {
    compute_->copy_on_device(memory_->data() + kMostCopy, memory_->data(), kMostCopy);
    compute_->synchronize();
  }

  std::unique_ptr<HostBuffer> host_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<CopyStream> link_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Event> event_;
};

}  // namespace

MeasuredCosts measure_costs(Device& device, Progress& progress) { return CostMeasurement(device, progress).run(); }

MeasuredCosts slowest(std::span<const MeasuredCosts> ranks) {
  ensure(!ranks.empty(), "there is no rank");
  MeasuredCosts all = ranks.front();
  for (const MeasuredCosts& rank : ranks) {
    all.copies.copy_s = std::max(all.copies.copy_s, rank.copies.copy_s);
    all.copies.bytes_per_s = std::min(all.copies.bytes_per_s, rank.copies.bytes_per_s);
    all.copies.event_s = std::max(all.copies.event_s, rank.copies.event_s);
    all.compute_s_per_byte = std::max(all.compute_s_per_byte, rank.compute_s_per_byte);
  }
  return all;
}

}  // namespace computron

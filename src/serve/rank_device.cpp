#include "computron/serve/rank_device.h"

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <span>

#include "computron/comm/agreed.h"
#include "computron/comm/gather.h"
#include "computron/serve/page_coding.h"
#include "computron/serve/preflight.h"

namespace computron {
namespace {

// Cores that the ranks of this node may run on together: bound ranks have some each, unbound ones share all.
int cores_of(const Communicator& node) {
  cpu_set_t mine, all;
  CPU_ZERO(&all);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);  // the others still wait for this rank's part
  for (const cpu_set_t& one : gather(node, mine)) CPU_OR(&all, &all, &one);
  return std::max(1, CPU_COUNT(&all));
}

}  // namespace

RankDevice::RankDevice(const JobOptions& options, const Mesh& mesh, Trace* trace, ServeHooks& hooks)
    : options_(options), mesh_(mesh), node_(mesh.job.split_shared_memory()), cores_(cores_of(node_)) {
  threads_ = options_.threads > 0 ? options_.threads : std::max(1, cores_ / node_.size());
  const bool chosen = options_.device == DeviceChoice::kAuto;
  gpu_ = chosen ? every_rank_has_gpu() : options_.device == DeviceChoice::kGpu;
  make_and_place(trace, hooks);
  if (chosen && !options_.share_gpu && shares_hardware(places_)) {
    gpu_ = false;
    make_and_place(trace, hooks);
  }
  if (mesh_.schedules()) show_places();
  agreed(mesh_.job, [&] {
    if (!options_.share_gpu) refuse_sharing(places_);
    measure();
  });
  require_same(mesh_.job, {{"the device", kind()}});
  page_coding_ = choose_coding();
  if (options_.measure_page_size && options_.page_bytes == 0) measure_copies(hooks);
}

// Collective. With kAuto all ranks measure at once, as they will decode.
PageCoding RankDevice::choose_coding() const {
  CodingRates own;
  if (options_.coded == CodedChoice::kAuto) mesh_.job.barrier();
  agreed(mesh_.job, [&] {
    const bool able = device_->decodes_pages();
    if (options_.coded == CodedChoice::kAuto && able) own = device_->measure_coding_rates();
    if (options_.coded != CodedChoice::kOn || able) return;
    throw Error(ExitCode::kUsage, fmt::format("--coded on: {} cannot decode pages: use off or auto", device_->name()));
  });
  if (options_.coded != CodedChoice::kAuto) {
    return options_.coded == CodedChoice::kOn ? PageCoding::kCoded : PageCoding::kRaw;
  }
  const std::vector<CodingRates> ranks = gather(mesh_.job, own);
  if (mesh_.schedules() && device_->decodes_pages()) spdlog::info("{}", coding_line(ranks));
  return coding_pays(ranks) ? PageCoding::kCoded : PageCoding::kRaw;
}

// Collective. All ranks at once, as they will copy.
void RankDevice::measure_copies(ServeHooks& hooks) {
  MeasuredCosts own;
  mesh_.job.barrier();
  agreed(mesh_.job, [&] {
    own = measure_costs(*device_, *progress_);
    hooks.measured(mesh_.job.rank(), own);
  });
  costs_ = slowest(gather(mesh_.job, own));
}

// Collective. A link is emulated on the CPU only.
bool RankDevice::every_rank_has_gpu() const {
  const bool missing = mesh_.job.all_reduce_max(!cuda_device_present()) > 0;
  return !missing && options_.link_gb_per_s == 0;
}

// Collective.
void RankDevice::make_and_place(Trace* trace, ServeHooks& hooks) {
  agreed(mesh_.job, [&] { make(trace, hooks); });
  // The threads that want a core each, but for the one that copies.
  places_ = gather_places(mesh_.job, *device_, gpu_ ? 1 : threads_);
}

void RankDevice::make(Trace* trace, ServeHooks& hooks) {
  const int busy_threads = gpu_ ? 2 : threads_ + 1;  // of a GPU: this one and the driver's
  progress_ =
      std::make_unique<Progress>(options_.idle.value_or(IdlePolicy::choose(cores_, node_.size(), busy_threads)));
  ops_.reset();
  gpu_ ? make_gpu() : make_cpu(trace, hooks);
  verify_swap_ = choose_verification();
}

void RankDevice::make_gpu() {
  if (options_.link_gb_per_s > 0) {
    throw Error(ExitCode::kUsage, "--link-gbps: a link is emulated with --device cpu only");
  }
  if (options_.reproducible && options_.transport == TransportChoice::kDirect && mesh_.shape.tp > 2) {
    throw Error(ExitCode::kUsage, "--reproducible: NCCL adds in an order of its own: use --transport mpi");
  }
  device_ = make_cuda_device(node_.rank());
  keep_near(device_->numa_node());
  ops_ = make_cuda_ops(*device_, options_.tf32);
}

void RankDevice::make_cpu(Trace* trace, ServeHooks& hooks) {
  const bool crowded = node_.size() * threads_ > cores_;
  device_ = make_cpu_device({.threads = threads_,
                             .link_gb_per_s = options_.link_gb_per_s,
                             .copied = hooks.copy_hook(mesh_.job.rank()),
                             .trace = trace,
                             .spin_us = crowded ? 0 : CpuDeviceOptions{}.spin_us});
  ops_ = make_cpu_ops(*device_);
}

void RankDevice::show_places() const {
  spdlog::info("where the ranks are\n{}", placement_table(places_, mesh_.groups));
  for (const std::string& warning : placement_warnings(places_)) spdlog::info("warning: {}", warning);
}

// Leaves what libraries take later: kernels as they are loaded, buffers of communicators.
void RankDevice::measure() {
  constexpr std::size_t kReserve = std::size_t{1} << 30;
  own_memory_ = device_->own_memory();
  if (!own_memory_) return;
  const std::size_t share = own_memory_->bytes / static_cast<std::size_t>(sharers_of(places_, mesh_.job.rank()));
  own_memory_->bytes = share - std::min(share, kReserve);
}

VerifySwap RankDevice::choose_verification() const {
  const bool able = device_->verifies_pages();
  // What it costs a GPU has not been measured.
  const VerifySwap wanted = options_.verify_swap.value_or(able && !gpu_ ? VerifySwap::kFirst : VerifySwap::kOff);
  if (wanted == VerifySwap::kOff || able) return wanted;
  throw Error(ExitCode::kUsage, fmt::format("--verify-swap {}: {} cannot digest pages in its memory: use off or auto",
                                            wanted == VerifySwap::kFirst ? "first" : "every", device_->name()));
}

TransportKind RankDevice::transport_kind() const {
  if (!gpu_) return TransportKind::kHost;
  if (options_.transport == TransportChoice::kDirect) return TransportKind::kDirect;
  const bool apart = mesh_.job.size() > 1 && !shares_hardware(places_);
  const bool choice = options_.transport == TransportChoice::kAuto;
  const bool direct = choice && apart && direct_transport_present() && !options_.reproducible;
  return direct ? TransportKind::kDirect : TransportKind::kStaged;
}

// The device's name without its number, or how many threads it has.
std::string RankDevice::kind() const {
  const std::string name = device_->name();
  const std::size_t number_end = name.find(": ");
  return number_end == name.npos ? name.substr(0, name.find(" (")) : name.substr(number_end + 2);
}

}  // namespace computron

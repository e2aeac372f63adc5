#include "computron/serve/job.h"

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "computron/base/memory.h"
#include "computron/base/parallel.h"
#include "computron/base/size.h"
#include "computron/base/time.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/comm/agreed.h"
#include "computron/device/profiler.h"
#include "computron/model/checkpoint_check.h"
#include "computron/serve/preflight.h"

namespace computron {
namespace {

constexpr std::size_t kStepBesidePatches = 64 << 20;  // of the longest step's message, and far more than that

MeshShape mesh_shape(const JobOptions& options, int ranks) {
  const int pp = options.pp > 0 ? options.pp : options.tp > 0 ? std::max(1, ranks / options.tp) : 1;
  const int tp = options.tp > 0 ? options.tp : std::max(1, ranks / pp);
  return {tp, pp};
}

// Cores that the ranks of this node may run on together: bound ranks have some each, unbound ones share all.
int cores_of(const Communicator& node) {
  cpu_set_t mine, all;
  CPU_ZERO(&all);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);  // the others still wait for this rank's part
  for (const std::vector<std::byte>& bytes : node.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    cpu_set_t one;
    std::memcpy(&one, bytes.data(), sizeof one);
    CPU_OR(&all, &all, &one);
  }
  return std::max(1, CPU_COUNT(&all));
}

// Everybody's `need`, by rank of `group`.
std::vector<MemoryNeed> gather(const Communicator& group, const MemoryNeed& need) {
  std::vector<MemoryNeed> needs;
  for (const std::vector<std::byte>& bytes : group.all_gather(std::as_bytes(std::span(&need, 1)))) {
    std::memcpy(&needs.emplace_back(), bytes.data(), sizeof need);
  }
  return needs;
}

// The dtype of a checkpoint's GEMM weights: check_tensors has made sure that they agree.
DType stored_dtype(const ModelConfig& config, const CheckpointIndex& index) {
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (spec.role == TensorRole::kGemmWeight) return index.tensors.at(spec.name).dtype;
  }
  throw ConfigError(fmt::format("{}: no weights", index.path));
}

}  // namespace

std::vector<CheckpointIndex> read_indices_apart(const std::vector<RosterEntry>& models) {
  std::map<std::string, CheckpointIndex> known;  // by path: several models may share a file
  std::vector<CheckpointIndex> indices;
  for (const RosterEntry& entry : models) {
    if (!known.contains(entry.path)) known.emplace(entry.path, read_index_apart(entry.path));
    indices.push_back(known.at(entry.path));
  }
  return indices;
}

Job::Job(JobOptions options, Communicator world) : options_(std::move(options)) {
  make_trace();
  const MeshShape shape = mesh_shape(options_, world.size());
  agreed(world, [&] {
    if (shape.ranks() != world.size()) {
      throw ConfigError(fmt::format("tp {} x pp {} needs {} ranks, but the job has {}", shape.tp, shape.pp,
                                    shape.ranks(), world.size()));
    }
  });
  mesh_ = std::make_unique<Mesh>(shape, std::move(world));
  const Communicator node = mesh_->world.split_shared_memory();
  ranks_on_node_ = node.size();
  rank_on_node_ = node.rank();
  cores_ = cores_of(node);
  set_up_device();
  read_indices();
  agreed(mesh_->world, [&] { make_images(); });
  plan_memory(node);
  agreed(mesh_->world, [&] { check_memory(); });
  if (!options_.load) return;
  enter(SignOfLife::kLoad);
  agreed(mesh_->world, [&] { load_pages(); });
  enter(SignOfLife::kStart);
  make_executor();
  if (options_.trace) clock_ = measure_clock_offset(mesh_->world);
}

void Job::make_trace() {
  FlightRecorder* const recorder = options_.heartbeat != nullptr ? &options_.heartbeat->recorder() : nullptr;
  TraceRanges* const ranges = profiler_ranges();
  if (!options_.trace && recorder == nullptr && ranges == nullptr) return;
  trace_ = std::make_unique<Trace>(options_.trace ? Trace::kMaxEvents : 0, recorder, ranges);
}

void Job::expect(std::optional<StepId> step, double predicted_s) const {
  if (options_.heartbeat != nullptr) options_.heartbeat->watchdog().expect(step, predicted_s);
}

void Job::expect_a_step(const std::string& why) const {
  if (options_.heartbeat != nullptr) options_.heartbeat->watchdog().expect_a_step(why);
}

// Collective. A choice of the program's gives way where it does not fit; one of the user's is an error there.
void Job::set_up_device() {
  const bool automatic = options_.device == "auto";
  if (automatic) choose_device();
  agreed(mesh_->world, [&] { make_device(); });
  places_ = gather_places(mesh_->world, *device_, busy_threads());
  if (automatic && !options_.share_gpu && shares_hardware(places_)) {
    options_.device = "cpu";
    agreed(mesh_->world, [&] { make_device(); });
    places_ = gather_places(mesh_->world, *device_, busy_threads());
  }
  if (mesh_->rank == 0) {
    spdlog::info("where the ranks are\n{}", placement_table(places_, mesh_->shape));
    for (const std::string& warning : placement_warnings(places_)) spdlog::info("warning: {}", warning);
  }
  agreed(mesh_->world, [&] {
    if (!options_.share_gpu) refuse_sharing(places_);
    measure_device();
  });
  require_same(mesh_->world, {{"the device", device_kind()}});
}

// That want a core each, but for the one that copies.
int Job::busy_threads() const { return options_.device == "cuda" ? 1 : options_.threads; }

// Without its number, or how many threads it has.
std::string Job::device_kind() const {
  const std::string name = device_->name();
  const std::size_t number_end = name.find(": ");
  return number_end == name.npos ? name.substr(0, name.find(" (")) : name.substr(number_end + 2);
}

// A link is emulated on the CPU only.
void Job::choose_device() {
  const bool missing = mesh_->world.all_reduce_max(!cuda_device_present()) > 0;
  options_.device = missing || options_.link_gb_per_s > 0 ? "cpu" : "cuda";
}

void Job::make_device() {
  if (options_.threads == 0) options_.threads = std::max(1, cores_ / ranks_on_node_);
  const int busy_threads = options_.device == "cuda" ? 2 : options_.threads + 1;  // of a GPU: this one and the driver's
  const IdlePolicy idle = options_.idle.empty() ? IdlePolicy::choose(cores_, ranks_on_node_, busy_threads)
                                                : IdlePolicy::parse(options_.idle);
  progress_ = std::make_unique<Progress>(idle);
  const bool crowded = ranks_on_node_ * options_.threads > cores_;
  ops_.reset();
  if (options_.device == "cuda") {
    if (options_.link_gb_per_s > 0)
      throw Error(ExitCode::kUsage, "--link-gbps: a link is emulated with --device cpu only");
    if (options_.reproducible && options_.transport == "nccl" && mesh_->shape.tp > 2) {
      throw Error(ExitCode::kUsage, "--reproducible: NCCL adds in an order of its own: use --transport mpi");
    }
    device_ = make_cuda_device(rank_on_node_);
    keep_near(device_->numa_node());
    ops_ = make_cuda_ops(*device_, options_.tf32);
  } else {
    device_ = make_cpu_device({.threads = options_.threads,
                               .link_gb_per_s = options_.link_gb_per_s,
                               .flip = options_.flip,
                               .trace = trace_.get(),
                               .spin_us = crowded ? 0 : CpuDeviceOptions{}.spin_us});
    ops_ = make_cpu_ops(*device_);
  }
  verify_swap();
}

// What libraries take later: kernels as they are loaded, buffers of communicators.
void Job::measure_device() {
  constexpr std::size_t kReserve = std::size_t{1} << 30;
  device_memory_ = device_->own_memory();
  if (!device_memory_) return;
  const std::size_t share = device_memory_->bytes / static_cast<std::size_t>(sharers_of(places_, mesh_->rank));
  device_memory_->bytes = share - std::min(share, kReserve);
}

VerifySwap Job::verify_swap() const {
  const bool able = device_->verifies_pages();
  if (options_.verify_swap == "auto") return able ? VerifySwap::kFirst : VerifySwap::kOff;
  const VerifySwap wanted = parse_verify_swap(options_.verify_swap);
  if (wanted == VerifySwap::kOff || able) return wanted;
  throw Error(ExitCode::kUsage, fmt::format("--verify-swap {}: {} cannot digest pages in its memory: use off or auto",
                                            options_.verify_swap, device_->name()));
}

// The same on all ranks.
LinkKind Job::link_kind() const {
  if (options_.device != "cuda") return LinkKind::kHost;
  if (options_.transport == "nccl") return LinkKind::kDirect;
  const bool apart = mesh_->shape.ranks() > 1 && !shares_hardware(places_);
  const bool direct = options_.transport == "auto" && apart && direct_links_present() && !options_.reproducible;
  return direct ? LinkKind::kDirect : LinkKind::kStaged;
}

// Rank 0 reads the files' metadata and sends it round, so that a thousand ranks are not a metadata storm.
void Job::read_indices() {
  std::vector<std::byte> bytes;
  agreed(mesh_->world, [&] {
    if (mesh_->rank != 0) return;
    ByteWriter out;
    if (options_.indices.empty()) while_working([&] { options_.indices = read_indices_apart(options_.models); });
    for (const CheckpointIndex& index : std::exchange(options_.indices, {})) out.put_list(index.serialize());
    bytes = out.take();
  });
  bytes = mesh_->world.broadcast(std::move(bytes), 0);
  const bool bf16 = mesh_->world.all_reduce_max(ops_->weight_dtype(DType::kBF16) != DType::kBF16) == 0;
  agreed(mesh_->world, [&] {
    ByteReader in(bytes);
    for (const RosterEntry& entry : options_.models) {
      Model& model = models_.emplace_back();
      model.index = CheckpointIndex::deserialize(in.get_list<std::byte>());
      model.config = ModelConfig::from_json(model.index.config_json);
      check_tensors(model.config, model.index);
      model.weight_dtype = ops_->weight_dtype(stored_dtype(model.config, model.index));
      if (!bf16) model.weight_dtype = DType::kF32;  // some rank's processor cannot multiply bf16: one layout for all
      spdlog::debug("model {} from {}", entry.id, entry.path);
    }
    lengthen_steps();
    for (std::size_t m = 0; m < models_.size(); ++m) check_message_size(models_[m].config, options_.models[m].id);
  });
}

// An encoder's input is never cut: a step holds the longest that there may be.
void Job::lengthen_steps() {
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const ModelConfig& config = models_[m].config;
    if (config.causal || config.max_positions <= options_.max_batch_tokens) continue;
    if (mesh_->rank == 0) {
      spdlog::info("--max-batch-tokens: {} instead of {}, the longest input of the encoder {}", config.max_positions,
                   options_.max_batch_tokens, options_.models[m].id);
    }
    options_.max_batch_tokens = config.max_positions;
  }
}

// MPI counts bytes in an int.
void Job::check_message_size(const ModelConfig& config, const std::string& id) const {
  const std::size_t values = static_cast<std::size_t>(std::max(config.hidden, config.patch_values()));
  const std::size_t bytes = sizeof(float) * values * options_.max_batch_tokens + kStepBesidePatches;
  if (mesh_->shape.ranks() > 1 && bytes > INT_MAX) {
    throw ConfigError(fmt::format("model {}: steps of --max-batch-tokens {} make messages of {}; the limit is 2 GiB",
                                  id, options_.max_batch_tokens, format_size(bytes)));
  }
}

void Job::make_images() {
  std::vector<std::vector<ShardPlan>> plans;
  std::size_t largest_block = 0;
  for (std::size_t m = 0; m < models_.size(); ++m) {
    auto& stages = plans.emplace_back();
    for (int stage = 0; stage < mesh_->shape.pp; ++stage) {
      try {
        stages.push_back(ShardPlan::make(models_[m].config, mesh_->shape, stage, options_.reproducible));
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("model {}: {}", options_.models[m].id, error.what()));
      }
      largest_block = std::max(
          largest_block, Image::largest_block_bytes(stages.back(), ops_->weight_format(), models_[m].weight_dtype));
    }
  }
  page_bytes_ = options_.page_bytes > 0
                    ? options_.page_bytes
                    : round_up(std::max(device_->default_page_bytes(), 16 * largest_block), std::size_t{4096});
  if (page_bytes_ % 64 != 0) throw Error(ExitCode::kUsage, "--page-size must be a multiple of 64");
  for (std::size_t m = 0; m < models_.size(); ++m) {
    for (const ShardPlan& plan : plans[m]) {
      models_[m].images.push_back(Image::make(plan, ops_->weight_format(), models_[m].weight_dtype, page_bytes_));
    }
  }
}

// What this rank, its node and every stage will take. Collective.
void Job::plan_memory(const Communicator& node) {
  Workspace::Sizes workspace;
  std::size_t widest = 0;
  for (const Model& model : models_) {
    const ShardPlan& plan = own_image(model).plan;
    workspace = workspace.max(Workspace::Sizes::of(plan, *ops_, options_.max_batch_tokens));
    widest = std::max<std::size_t>(widest, plan.config.hidden);
    memory_.host += HostStore::bytes_of(own_image(model));
  }
  // Transfers on their way to the next stage, and the parts of a sum.
  const std::size_t transfers = widest * sizeof(float) * options_.max_batch_tokens * (steps_in_flight() + 2);
  memory_.workspace = workspace.total() + transfers;
  memory_.on_device = device_memory_.has_value();
  if (memory_.on_device) memory_.host += transfers;
  limit_ = available_memory();
  if (options_.device_memory_bytes == 0) options_.device_memory_bytes = default_pool_bytes();
  const std::uint64_t own_frames = std::min<std::uint64_t>(options_.device_memory_bytes / page_bytes_, INT_MAX);
  frames_ = static_cast<int>(~mesh_->world.all_reduce_max(~own_frames));  // as many as on the poorest rank
  memory_.pool = static_cast<std::size_t>(frames_) * page_bytes_;
  const std::size_t host_cache = options_.host_cache_bytes.value_or(default_host_cache_bytes());
  const std::uint64_t own_slots = std::min<std::uint64_t>(host_cache / page_bytes_, INT_MAX);
  host_slots_ = static_cast<int>(~mesh_->world.all_reduce_max(~own_slots));
  memory_.host += static_cast<std::size_t>(host_slots_) * page_bytes_;
  for (const MemoryNeed& need : gather(node, memory_)) node_bytes_ += need.host_total();
  const std::vector<MemoryNeed> needs = gather(mesh_->world, memory_);
  if (mesh_->rank == 0) spdlog::info("{}", memory_table(needs));
}

// Collective. The largest stage counts: all ranks get the same.
std::size_t Job::default_pool_bytes() {
  std::size_t largest_pages = 0;
  std::vector<std::size_t> frames;  // of each model with its cache
  for (const Model& model : models_) {
    const KvGeometry cache = KvGeometry::make(own_image(model));
    const std::size_t pages = own_image(model).pages();
    const int blocks = ceil_div(std::max(options_.pool_for_tokens, 1), cache.block_tokens);
    largest_pages = std::max(largest_pages, pages);
    frames.push_back(pages + cache.frames_for(blocks));
  }
  if (options_.pool_for_tokens > 0) {
    std::sort(frames.begin(), frames.end(), std::greater<>());
    frames.resize(std::min<std::size_t>(frames.size(), std::max(options_.pool_models, 1)));
    return mesh_->world.all_reduce_max(std::accumulate(frames.begin(), frames.end(), std::size_t{1})) * page_bytes_;
  }
  if (device_memory_) return device_memory_->bytes - std::min(device_memory_->bytes, memory_.workspace);
  // All models twice, so that caches have room, if a quarter of the rank's share allows; else that quarter. Never less
  // than the largest model and some cache.
  const std::size_t share = limit_.bytes / static_cast<std::size_t>(ranks_on_node_);
  const std::size_t all_models = mesh_->world.all_reduce_max(memory_.host);
  const std::size_t largest_model = mesh_->world.all_reduce_max(largest_pages) * page_bytes_;
  return std::max(largest_model + 8 * page_bytes_, std::min(2 * all_models + 16 * page_bytes_, share / 4));
}

// An eighth of the pool, of half of what the rank's share of memory leaves beside everything else.
std::size_t Job::default_host_cache_bytes() const {
  const std::size_t share = limit_.bytes / static_cast<std::size_t>(ranks_on_node_);
  const std::size_t left = share - std::min(share, memory_.host_total());
  return std::min(memory_.pool / 8, left / 2);
}

// This node's ranks together against what the machine or the control group leaves; every model against the pool.
void Job::check_memory() const {
  if (frames_ < 1) {
    throw ConfigError(fmt::format("--device-memory {} holds no page of {}", format_size(options_.device_memory_bytes),
                                  format_size(page_bytes_)));
  }
  const std::string own = fmt::format("host pages {}, pool {}, workspace {}", format_size(memory_.host),
                                      format_size(memory_.pool), format_size(memory_.workspace));
  if (device_memory_ && memory_.device_total() > device_memory_->bytes) {
    throw OutOfDeviceMemory(fmt::format(
        "this rank needs {} of device memory ({}), but {} leaves {}: lower "
        "--device-memory or --max-batch-tokens",
        format_size(memory_.device_total()), own, device_memory_->source, format_size(device_memory_->bytes)));
  }
  if (node_bytes_ > limit_.bytes) {
    throw Error(ExitCode::kSystem,
                fmt::format("the {} ranks of this node need {} (this one: {}), but {} leaves {}", ranks_on_node_,
                            format_size(node_bytes_), own, limit_.source, format_size(limit_.bytes)));
  }
  if (mesh_->rank == 0) Scheduler(model_shapes(), model_names(), make_policy(options_.policy), scheduler_options());
}

// `needs` by rank; the ranks of a stage need the same.
std::string Job::memory_table(const std::vector<MemoryNeed>& needs) const {
  std::string table =
      fmt::format("{:<24}{:>7}{:>8}{:>14}{:>12}\n", "bytes a rank, stage 0", "dtype", "pages", "host pages", "waste");
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const Image& image = own_image(models_[m]);
    table += fmt::format("  {:<22}{:>7}{:>8}{:>14}{:>12}\n", options_.models[m].id, name_of(models_[m].weight_dtype),
                         image.pages(), format_size(HostStore::bytes_of(image)), format_size(image.waste_bytes()));
  }
  table +=
      fmt::format("{:<24}{:>14}{:>14}{:>14}{:>14}\n", "bytes a rank", "host pages", "pool", "workspace", "together");
  for (int stage = 0; stage < mesh_->shape.pp; ++stage) {
    const MemoryNeed& need = needs[mesh_->shape.rank_of(stage, 0)];
    table += fmt::format("  {:<22}{:>14}{:>14}{:>14}{:>14}\n", fmt::format("stage {} (x {})", stage, mesh_->shape.tp),
                         format_size(need.host), format_size(need.pool), format_size(need.workspace),
                         format_size(need.total()));
  }
  table += fmt::format("this node: {} ranks need {}, {} leaves {}", ranks_on_node_, format_size(node_bytes_),
                       limit_.source, format_size(limit_.bytes));
  return table + device_line();
}

std::string Job::device_line() const {
  if (!device_memory_) return {};
  return fmt::format("\n{}: pool and workspace need {}, {} are free for them", device_memory_->source,
                     format_size(memory_.device_total()), format_size(device_memory_->bytes));
}

void Job::load_pages() {
  const double start = now_s();
  std::size_t bytes = 0;
  host_ = std::make_unique<HostStore>(*device_);
  for (std::size_t m = 0; m < models_.size(); ++m) {
    host_->load(models_[m].index, options_.models[m].id, own_image(models_[m]), mesh_->t, ops_->weight_format(),
                options_.threads, /*times=*/nullptr, [this] { look_around(); });
    bytes += own_image(models_[m]).total_used_bytes();
    if (mesh_->rank == 0) spdlog::info("loaded {} ({}/{})", options_.models[m].id, m + 1, models_.size());
  }
  if (mesh_->rank == 0) {
    const double seconds = now_s() - start;
    spdlog::info("loaded {} a rank in {:.2f} s ({:.2f} GB/s)", format_size(bytes), seconds, 1e-9 * bytes / seconds);
  }
}

// Collective.
void Job::make_executor() {
  std::vector<const Image*> images;
  for (const Model& model : models_) images.push_back(&own_image(model));
  const ExecutorOptions options{.frames = frames_,
                                .frame_bytes = page_bytes_,
                                .host_slots = host_slots_,
                                .max_rows = options_.max_batch_tokens,
                                .steps_in_flight = steps_in_flight(),
                                .verify_swap = verify_swap(),
                                .trace = trace_.get(),
                                .divergence = options_.divergence};
  const LinkKind kind = link_kind();
  if (mesh_->rank == 0 && kind != LinkKind::kHost && mesh_->shape.ranks() > 1) {
    spdlog::info("sums and activations go {}",
                 kind == LinkKind::kDirect ? "from device to device" : "through host memory");
  }
  Links links = make_links(kind, *mesh_, *device_, *progress_, Executor::link_sizes(images, options), trace_.get());
  agreed(mesh_->world, [&] {
    executor_ = std::make_unique<Executor>(*mesh_, *device_, *ops_, *progress_, std::move(images), *host_,
                                           std::move(links), options);
  });
}

std::vector<ServedModel> Job::served_models() const {
  std::vector<ServedModel> served;
  for (std::size_t m = 0; m < models_.size(); ++m) {
    served.push_back({options_.models[m].id, models_[m].config});
  }
  return served;
}

std::vector<ModelShape> Job::model_shapes() const {
  std::vector<ModelShape> shapes;
  for (const Model& model : models_) {
    const RosterEntry& entry = options_.models[shapes.size()];
    ModelShape& shape = shapes.emplace_back();
    shape.eos_tokens = model.config.eos_tokens;
    shape.pinned = entry.pinned;
    shape.priority = entry.priority;
    for (const Image& image : model.images) {
      shape.images.push_back(&image);
      shape.caches.push_back(KvGeometry::make(image));
    }
  }
  return shapes;
}

SchedulerOptions Job::scheduler_options() const {
  SchedulerOptions options{.frames = frames_,
                           .host_slots = host_slots_,
                           .max_batch_tokens = options_.max_batch_tokens,
                           .max_seqs = options_.max_seqs,
                           .steps_in_flight = steps_in_flight(),
                           .share_prefixes = options_.share_prefixes};
  if (options_.link_gb_per_s > 0) options.costs.link_bytes_per_s = 1e9 * options_.link_gb_per_s;
  return options;
}

std::vector<std::string> Job::model_names() const {
  std::vector<std::string> names;
  for (const RosterEntry& entry : options_.models) names.push_back(entry.id);
  return names;
}

Scheduler make_scheduler(const Job& job, const CostOptions& costs) {
  SchedulerOptions options = job.scheduler_options();
  options.costs = costs;
  return {job.model_shapes(), job.model_names(),
          make_policy(job.options().policy, {.max_wait_s = job.options().max_wait_s}), options};
}

Scheduler make_scheduler(const Job& job) { return make_scheduler(job, job.scheduler_options().costs); }

}  // namespace computron

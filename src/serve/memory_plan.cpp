#include "computron/serve/memory_plan.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string_view>

#include "computron/base/size.h"
#include "computron/comm/agreed.h"
#include "computron/comm/gather.h"
#include "computron/model/coded_estimate.h"
#include "computron/model/transformer.h"
#include "computron/runtime/guide_compiler.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/kv_geometry.h"
#include "computron/serve/tokenizers.h"

namespace computron {
namespace {

constexpr std::string_view kNoneToSpare = "a node has no memory to spare for guides (--guide-memory, --host-cache)";

// Collective: how many pages of so many bytes every rank of `group` can have.
int pages_on_all(const Communicator& group, std::size_t bytes, std::size_t page_bytes) {
  const std::uint64_t own = std::min<std::uint64_t>(bytes / page_bytes, INT_MAX);
  return static_cast<int>(~group.all_reduce_max(~own));
}

}  // namespace

MemoryPlan::MemoryPlan(const JobOptions& options, const Mesh& mesh, const RankDevice& device, const ModelSet& models,
                       const PageStore& pages, int steps_in_flight)
    : page_bytes_(models.page_bytes()),
      slot_bytes_(models.slot_bytes()),
      ranks_on_node_(device.node().size()),
      limit_(available_memory()),
      own_memory_(device.own_memory()) {
  count_fixed(mesh, device, models, pages, steps_in_flight);
  const std::size_t vocabularies = vocabulary_bytes(mesh, models);
  guide_bytes_ = options.guide_bytes.value_or(GuideCompiler::kMaxBytes);
  if (options.guide_bytes) count_guides(vocabularies);
  landing_pages_ = device.page_coding() == PageCoding::kCoded ? device.device().landing_pages() : 0;
  pool_bytes_ =
      options.device_memory_bytes > 0 ? options.device_memory_bytes : default_pool_bytes(options, mesh, models);
  const int pages_of_pool = pages_on_all(mesh.group, pool_bytes_, page_bytes_);
  divide_pool(mesh, models, pages_of_pool);
  need_.pool = static_cast<std::size_t>(pages_of_pool) * page_bytes_;
  const std::size_t host_cache = options.host_cache_bytes.value_or(default_host_cache_bytes());
  own_.host_slots = pages_on_all(mesh.group, host_cache, page_bytes_);
  need_.host += static_cast<std::size_t>(own_.host_slots) * page_bytes_;
  gather_groups(mesh);
  if (!options.guide_bytes) spare_for_guides(mesh, device, vocabularies);
  for (const MemoryNeed& need : gather(device.node(), need_)) node_bytes_ += need.host_total();
  const std::vector<MemoryNeed> needs = gather(mesh.job, need_);
  if (mesh.schedules()) spdlog::info("{}", table(needs, mesh, models, pages));
}

// Collective in the group. Slots of adapters lie in pages of the pool: as many as all of them take, but no more than
// half of what the largest model's own pages leave, unless one adapter beside the pinned ones takes more. The largest
// stage counts: all ranks get the same.
void MemoryPlan::divide_pool(const Mesh& mesh, const ModelSet& models, int pages_of_pool) {
  own_.frames = pages_of_pool - landing_pages_;
  if (slot_bytes_ == 0) return;
  std::uint64_t all = 0, pinned = 0, largest = 0, largest_in_frames = 0;
  const std::vector<ModelShape> shapes = models.shapes(mesh.group_index);
  for (ModelId m = 0; m < shapes.size(); ++m) {
    const auto slots = static_cast<std::uint64_t>(models.layout(m).pages(FrameKind::kSlot));
    const auto in_frames = static_cast<std::uint64_t>(models.layout(m).pages(FrameKind::kWhole));
    all += slots;
    pinned += shapes[m].pinned ? slots : 0;
    largest = std::max(largest, shapes[m].pinned ? 0 : slots);
    largest_in_frames = std::max(largest_in_frames, in_frames);
  }
  all = mesh.group.all_reduce_max(all);
  const std::uint64_t least = mesh.group.all_reduce_max(pinned + largest);
  largest_in_frames = mesh.group.all_reduce_max(largest_in_frames);
  const auto frames = static_cast<std::uint64_t>(std::max(own_.frames, 0));
  const std::uint64_t room = (frames - std::min(frames, largest_in_frames)) / 2 * page_bytes_ / slot_bytes_;
  const std::uint64_t slots = std::min(all, std::max(least, room));
  own_.adapter_slots = static_cast<int>(slots);
  own_.frames -= static_cast<int>(ceil_div(slots * slot_bytes_, page_bytes_));
}

// Collective: every group's, from its first rank.
void MemoryPlan::gather_groups(const Mesh& mesh) {
  const std::vector<GroupMemory> all = gather(mesh.job, own_);
  for (const RankGroup& group : mesh.groups) groups_.push_back(all[static_cast<std::size_t>(group.first_rank)]);
}

// What does not depend on the pool. Collective where pages are coded.
void MemoryPlan::count_fixed(const Mesh& mesh, const RankDevice& device, const ModelSet& models, const PageStore& pages,
                             int steps_in_flight) {
  Workspace::Sizes workspace;
  std::size_t widest = 0;
  for (ModelId m = 0; m < models.in_own_group().size(); ++m) {
    const ShardPlan& plan = models.layout(m).plan;
    workspace = workspace.max(Workspace::Sizes::of(plan, device.ops(), models.max_batch_tokens()));
    widest = std::max<std::size_t>(widest, plan.config.hidden);
  }
  need_.held = pages.held_bytes();
  need_.mapped = pages.mapped_bytes();
  need_.separate = pages.separate_bytes();
  const bool coded = device.page_coding() == PageCoding::kCoded;
  if (coded) count_coding(mesh, device, pages);
  need_.host += coded ? need_.coded + need_.staging : need_.held;
  // Transfers on their way to the next stage, and the parts of a sum.
  const std::size_t transfers = widest * sizeof(float) * models.max_batch_tokens() * (steps_in_flight + 2);
  need_.workspace = workspace.total() + transfers;
  need_.on_device = own_memory_.has_value();
  if (need_.on_device) need_.host += transfers;
}

// On the last stage, where answers are guided, of models that can be. 0: nothing is ever guided on this rank.
std::size_t MemoryPlan::vocabulary_bytes(const Mesh& mesh, const ModelSet& models) {
  if (!mesh.last_stage()) return 0;
  std::size_t vocabularies = 0;
  for (ModelId m = 0; m < models.in_own_group().size(); ++m) {
    const ModelConfig& config = models.layout(m).plan.config;
    if (config.pools() || !has_tokenizer(models.index(models.in_own_group()[m]))) continue;
    vocabularies += TokenTrie::estimated_bytes(static_cast<std::size_t>(config.vocab));
  }
  return vocabularies;
}

// Guides, and each model's vocabulary: taken as requests ask for them.
void MemoryPlan::count_guides(std::size_t vocabularies) {
  if (vocabularies == 0 || guide_bytes_ == 0) return;
  need_.guides = guide_bytes_ + vocabularies;
  need_.host += need_.guides;
}

// Collective. Nobody has asked for guides: they get what is left beside everything else, so that a job without guided
// requests is as large as it would be without them. On all ranks or on none.
void MemoryPlan::spare_for_guides(const Mesh& mesh, const RankDevice& device, std::size_t vocabularies) {
  const MemoryNeed before = need_;
  count_guides(vocabularies);
  std::size_t needed = 0, guides = 0;
  for (const MemoryNeed& need : gather(device.node(), need_)) {
    needed += need.host_total() - need.guides;
    guides += need.guides;
  }
  guides_refused_ = mesh.job.all_reduce_max(has_to_spare(needed, guides, limit_.bytes) ? 0 : 1) != 0;
  if (!guides_refused_) return;
  need_ = before;
  guide_bytes_ = 0;
}

// Collective. What pages take coded is known when they are loaded; a sample of the checkpoints says it before.
void MemoryPlan::count_coding(const Mesh& mesh, const RankDevice& device, const PageStore& pages) {
  constexpr double kMargin = 1.02;  // for what the sample does not know
  agreed(mesh.job, [&] {
    std::map<const CheckpointIndex*, CodedEstimate> estimates;
    for (int shard = 0; shard < pages.shards(); ++shard) {
      if (!pages.loads(shard)) continue;
      const ShardSource& source = pages.source(shard);
      const auto [estimate, added] = estimates.try_emplace(source.index, *source.index, *source.format,
                                                           source.layout->types, CodedEstimate::kQuickSample);
      const std::vector<std::size_t> bytes = estimate->second.link_bytes(*source.layout);
      need_.coded += static_cast<std::size_t>(kMargin * std::accumulate(bytes.begin(), bytes.end(), 0.0));
      need_.staging = std::max(need_.staging, HostStore::staging_bytes(*source.layout, device.threads()));
    }
  });
}

// Collective in the group. The largest stage counts: all ranks get the same.
std::size_t MemoryPlan::default_pool_bytes(const JobOptions& options, const Mesh& mesh, const ModelSet& models) const {
  std::size_t largest_pages = 0;
  std::vector<std::size_t> frames;  // of each model with its cache
  for (ModelId m = 0; m < models.in_own_group().size(); ++m) {
    const KvGeometry cache = KvGeometry::make(models.layout(m));
    const std::size_t pages = ceil_div(models.layout(m).frame_bytes(), page_bytes_);
    const int blocks = ceil_div(std::max(options.pool_for_tokens, 1), cache.block_tokens);
    largest_pages = std::max(largest_pages, pages);
    frames.push_back(pages + cache.frames_for(blocks));
  }
  if (options.pool_for_tokens > 0) {
    std::sort(frames.begin(), frames.end(), std::greater<>());
    frames.resize(std::min<std::size_t>(frames.size(), std::max(options.pool_models, 1)));
    const std::size_t others = 1 + static_cast<std::size_t>(landing_pages_);
    return mesh.group.all_reduce_max(std::accumulate(frames.begin(), frames.end(), others)) * page_bytes_;
  }
  if (own_memory_) return own_memory_->bytes - std::min(own_memory_->bytes, need_.workspace);
  // All models twice, so that caches have room, if a quarter of the rank's share allows; else that quarter. Never less
  // than the largest model and some cache.
  const std::size_t all_models = mesh.group.all_reduce_max(need_.separate);
  const std::size_t largest_model = mesh.group.all_reduce_max(largest_pages) * page_bytes_;
  return std::max(largest_model + 8 * page_bytes_, std::min(2 * all_models + 16 * page_bytes_, share_of_node() / 4));
}

// An eighth of the pool, or half of what the rank's share of memory leaves beside everything else.
std::size_t MemoryPlan::default_host_cache_bytes() const {
  const std::size_t left = share_of_node() - std::min(share_of_node(), need_.host_total());
  return std::min(need_.pool / 8, left / 2);
}

// This rank's.
std::size_t MemoryPlan::share_of_node() const { return limit_.bytes / static_cast<std::size_t>(ranks_on_node_); }

void MemoryPlan::check() const {
  if (own_.frames < 1) {
    throw ConfigError(fmt::format("--device-memory {} holds no page of {}{}", format_size(pool_bytes_),
                                  format_size(page_bytes_),
                                  own_.adapter_slots > 0 ? " beside slots of adapters"
                                  : landing_pages_ > 0   ? " beside landing pages"
                                                         : ""));
  }
  const std::string own =
      fmt::format("host pages {}, guides {}, pool {}, workspace {}", format_size(need_.host - need_.guides),
                  format_size(need_.guides), format_size(need_.pool), format_size(need_.workspace));
  if (own_memory_ && need_.device_total() > own_memory_->bytes) {
    throw OutOfDeviceMemory(
        fmt::format("this rank needs {} of device memory ({}), but {} leaves {}: lower "
                    "--device-memory or --max-batch-tokens",
                    format_size(need_.device_total()), own, own_memory_->source, format_size(own_memory_->bytes)));
  }
  if (node_bytes_ > limit_.bytes || need_.guides > limit_.bytes) {
    throw Error(ExitCode::kSystem,
                fmt::format("the {} ranks of this node need {} (this one: {}), but {} leaves {}", ranks_on_node_,
                            format_size(node_bytes_), own, limit_.source, format_size(limit_.bytes)));
  }
}

void MemoryPlan::warn() const {
  if (guides_refused_) spdlog::warn("guided requests are refused: {}", kNoneToSpare);
}

// What of a model's pages is another's, told of this rank's group.
std::string MemoryPlan::shared_note(const PageStore& pages, const RankGroup& group, const Mesh& mesh,
                                    std::size_t local) {
  if (group.index != mesh.group_index) return {};
  const int borrowed = pages.borrowed_pages(static_cast<int>(local));
  return borrowed > 0 ? fmt::format("  {} pages are another model's", borrowed) : std::string();
}

// `needs` by rank of the job; the ranks of a stage need the same. Models that several groups have cut alike stand once.
std::string MemoryPlan::table(const std::vector<MemoryNeed>& needs, const Mesh& mesh, const ModelSet& models,
                              const PageStore& pages) const {
  const auto name_of_group = [&](const RankGroup& group) {
    return mesh.groups.size() > 1 ? fmt::format("group {} ", group.index) : std::string();
  };
  std::string table =
      fmt::format("{:<24}{:>7}{:>8}{:>14}{:>12}\n", "bytes a rank, stage 0", "dtype", "pages", "host pages", "waste");
  std::set<const ShardLayout*> seen;
  for (const RankGroup& group : mesh.groups) {
    const std::vector<ModelShape> shapes = models.shapes(group.index);
    for (std::size_t local = 0; local < shapes.size(); ++local) {
      const ShardLayout& layout = *shapes[local].layouts.front();
      if (!seen.insert(&layout).second) continue;
      const std::vector<ModelId>& ids = models.in_group(group.index);
      const std::size_t alike = group.index == mesh.group_index ? pages.first_alike(static_cast<int>(local)) : local;
      table += fmt::format("  {:<22}{:>7}{:>8}{:>14}{:>12}{}\n", name_of_group(group) + models.id(ids[local]),
                           name_of(layout.types.most().codes), layout.pages(), format_size(HostStore::bytes_of(layout)),
                           format_size(layout.waste_bytes()),
                           alike == local ? shared_note(pages, group, mesh, local)
                                          : fmt::format("  the pages of {}", models.id(ids[alike])));
    }
  }
  table += fmt::format("{:<24}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "bytes a rank", "host pages", "guides", "pool",
                       "workspace", "together");
  for (const RankGroup& group : mesh.groups) {
    for (int stage = 0; stage < group.shape.pp; ++stage) {
      const MemoryNeed& need = needs[static_cast<std::size_t>(group.job_rank(group.shape.rank_of(stage, 0)))];
      table += fmt::format("  {:<22}{:>14}{:>14}{:>14}{:>14}{:>14}\n",
                           fmt::format("{}stage {} (x {})", name_of_group(group), stage, group.shape.tp),
                           format_size(need.host - need.guides), format_size(need.guides), format_size(need.pool),
                           format_size(need.workspace), format_size(need.total()));
    }
  }
  table += fmt::format("this node: {} ranks need {}, {} leaves {}", ranks_on_node_, format_size(node_bytes_),
                       limit_.source, format_size(limit_.bytes));
  return table + slots_line(mesh) + sharing_lines(needs) + coding_line(needs) + guides_line() + device_line();
}

std::string MemoryPlan::slots_line(const Mesh& mesh) const {
  std::string lines;
  for (const RankGroup& group : mesh.groups) {
    const int slots = groups_[static_cast<std::size_t>(group.index)].adapter_slots;
    if (slots == 0) continue;
    lines += fmt::format("\nadapters{} lie in {} slots of {}, {} of each pool",
                         mesh.groups.size() > 1 ? fmt::format(" of group {}", group.index) : "", slots,
                         format_size(slot_bytes_), format_size(static_cast<std::size_t>(slots) * slot_bytes_));
  }
  return lines;
}

// Ranks hold and map pages in any shares: who loads what has been dealt by bytes.
std::string MemoryPlan::sharing_lines(const std::vector<MemoryNeed>& needs) {
  std::size_t held = 0, mapped = 0, separate = 0;
  for (const MemoryNeed& need : needs) {
    held += need.held;
    mapped += need.mapped;
    separate += need.separate;
  }
  if (held == separate) return {};
  std::string lines =
      fmt::format("\nequal pages are held once: {} in all, {} without that", format_size(held), format_size(separate));
  for (std::size_t rank = 0; mapped > 0 && rank < needs.size(); ++rank) {
    lines += fmt::format("\n  rank {}: holds {}, maps {} of other ranks", rank, format_size(needs[rank].held),
                         format_size(needs[rank].mapped));
  }
  return lines;
}

std::string MemoryPlan::coding_line(const std::vector<MemoryNeed>& needs) const {
  std::size_t held = 0, coded = 0, staging = 0;
  for (const MemoryNeed& need : needs) {
    held += need.held;
    coded += need.coded;
    staging = std::max(staging, need.staging);
  }
  if (coded == 0) return {};
  return fmt::format(
      "\nhost pages are kept coded: {} in all instead of {}, estimated from a sample of the models' files, "
      "and at most {} a rank beside them while they load{}",
      format_size(coded), format_size(held), format_size(staging),
      landing_pages_ > 0 ? fmt::format("; {} pages of each pool receive them", landing_pages_) : "");
}

std::string MemoryPlan::guides_line() const {
  if (guide_bytes_ > 0) return {};
  return fmt::format("\nguided requests are refused: {}",
                     guides_refused_ ? kNoneToSpare : std::string_view("--guide-memory 0"));
}

std::string MemoryPlan::device_line() const {
  if (!own_memory_) return {};
  return fmt::format("\n{}: pool and workspace need {}, {} are free for them", own_memory_->source,
                     format_size(need_.device_total()), format_size(own_memory_->bytes));
}

}  // namespace computron

#include "computron/serve/model_set.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "computron/base/bytes.h"
#include "computron/base/size.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/comm/agreed.h"
#include "computron/comm/gather.h"
#include "computron/model/adapter.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/coded_estimate.h"
#include "computron/runtime/page_contents.h"
#include "computron/serve/slot_size.h"
#include "src/serve/link_savings.h"

namespace computron {
namespace {

constexpr std::size_t kStepBesidePatches = 64 << 20;  // of the longest step's message, and far more than that

// Of --page-size auto.
constexpr std::size_t kSmallestPage = std::size_t{1} << 20, kLargestPage = std::size_t{256} << 20;
constexpr std::size_t kBlocksAPage = 4;  // at least, so that little is left over at the ends of pages
constexpr std::size_t kPagesAPool = 8;   // at least

// Collective.
std::size_t of_rank_0(const Communicator& job, std::size_t value) {
  const auto bytes = std::bit_cast<std::array<std::byte, sizeof value>>(value);
  const std::vector<std::byte> first = job.broadcast({bytes.begin(), bytes.end()}, 0);
  std::memcpy(&value, first.data(), sizeof value);
  return value;
}

// Of --page-size auto, where pages are coded.
std::string coded_line(std::span<const ShardBytes> shards) {
  double bytes = 0, link_bytes = 0;
  for (const ShardBytes& shard : shards) bytes += shard.bytes, link_bytes += shard.link_bytes;
  return fmt::format("; of coded pages {} take {} over the links, estimated from a sample of the models' files",
                     format_size(static_cast<std::size_t>(bytes)), format_size(static_cast<std::size_t>(link_bytes)));
}

// What is wrong with a model says which it is.
template <class Body>
void naming(const ModelEntry& entry, const Body& body) try {
  body();
} catch (const ConfigError& error) {
  throw ConfigError(fmt::format("model {}: {}", entry.id, error.what()));
}

}  // namespace

std::vector<CheckpointIndex> read_indices_apart(const std::vector<ModelEntry>& models) {
  std::map<std::string, CheckpointIndex> known;  // by path: several models may share a file
  const auto index_of = [&](const std::string& path) -> const CheckpointIndex& {
    if (!known.contains(path)) known.emplace(path, read_index_apart(path));
    return known.at(path);
  };
  std::vector<CheckpointIndex> indices;
  for (const ModelEntry& entry : models) {
    indices.push_back(index_of(entry.path));
    if (entry.adapter.empty()) continue;
    naming(entry, [&] { indices.back() = with_adapter(std::move(indices.back()), index_of(entry.adapter)); });
  }
  return indices;
}

ModelSet::ModelSet(const JobOptions& options, const std::vector<JobGroup>& groups, const Mesh& mesh,
                   const RankDevice& device, const JobHeartbeat& heartbeat, std::vector<CheckpointIndex> indices)
    : entries_(options.models),
      own_group_(mesh.group_index),
      stage_(static_cast<std::size_t>(mesh.stage)),
      max_batch_tokens_(options.max_batch_tokens) {
  read_metadata(mesh, device, heartbeat, std::move(indices));
  Cuts cuts;
  agreed(mesh.job, [&] {
    cuts = cut_models(options, groups, device);
    // The others may have pools of another size, and need not read samples of the files.
    if (mesh.schedules()) page_bytes_ = page_size(options, device, cuts, heartbeat);
  });
  page_bytes_ = of_rank_0(mesh.job, page_bytes_);
  agreed(mesh.job, [&] {
    make_layouts(cuts, groups, device);
    if (options.share_model_pages && entries_.size() > 1) tell_contents(mesh.schedules());
  });
}

// Collective. Rank 0 reads and sends it round, so that a thousand ranks are not a metadata storm.
void ModelSet::read_metadata(const Mesh& mesh, const RankDevice& device, const JobHeartbeat& heartbeat,
                             std::vector<CheckpointIndex> indices) {
  std::vector<std::byte> bytes;
  agreed(mesh.job, [&] {
    if (!mesh.schedules()) return;
    ByteWriter out;
    if (indices.empty()) heartbeat.run_beside([&] { indices = read_indices_apart(entries_); });
    for (const CheckpointIndex& index : indices) out.put_list(index.serialize());
    bytes = out.take();
  });
  bytes = mesh.job.broadcast(std::move(bytes), 0);
  agreed(mesh.job, [&] {
    take_metadata(bytes, device.ops());
    lengthen_steps(/*says_so=*/mesh.schedules());
  });
}

// All ranks have the same vector instructions (preflight.h), and so one layout.
void ModelSet::take_metadata(const std::vector<std::byte>& bytes, Ops& ops) {
  ByteReader in(bytes);
  std::vector<WeightType> types;
  for (const ModelEntry& entry : entries_) {
    Model& model = models_.emplace_back();
    model.index = CheckpointIndex::deserialize(in.get_list<std::byte>());
    model.config = ModelConfig::from_json(model.index.config_json);
    check_tensors(model.config, model.index);
    if (!model.config.adapter_ranks.empty() && !ops.computes_adapters()) {
      throw ConfigError(
          fmt::format("model {}: adapters are computed on CPUs only (--device cpu); for other devices "
                      "merge {} into its base: convert --merge",
                      entry.id, entry.adapter));
    }
    naming(entry, [&] { model.weight_types = WeightTypes(model.config, model.index).kept_by(ops); });
    std::ranges::copy(model.weight_types.all(), std::back_inserter(types));
    spdlog::debug("model {} from {}", entry.id, entry.path);
  }
  ops.choose_kernels(types);
}

// A step holds the longest input that an encoder may have.
void ModelSet::lengthen_steps(bool says_so) {
  for (std::size_t m = 0; m < size(); ++m) {
    const ModelConfig& config = models_[m].config;
    if (config.causal || config.max_positions <= max_batch_tokens_) continue;
    if (says_so) {
      spdlog::info("--max-batch-tokens: {} instead of {}, the longest input of the encoder {}", config.max_positions,
                   max_batch_tokens_, entries_[m].id);
    }
    max_batch_tokens_ = config.max_positions;
  }
}

// MPI counts bytes in an int.
void ModelSet::check_message_size(const ModelConfig& config, const MeshShape& mesh) const {
  const std::size_t values = static_cast<std::size_t>(std::max(config.hidden, config.patch_values()));
  const std::size_t bytes = sizeof(float) * values * max_batch_tokens_ + kStepBesidePatches;
  if (mesh.ranks() > 1 && bytes > INT_MAX) {
    throw ConfigError(fmt::format("steps of --max-batch-tokens {} make messages of {}; the limit is 2 GiB",
                                  max_batch_tokens_, format_size(bytes)));
  }
}

// For all groups, since pages are of one size throughout a job and rank 0 schedules every group.
ModelSet::Cuts ModelSet::cut_models(const JobOptions& options, const std::vector<JobGroup>& groups,
                                    const RankDevice& device) const {
  const WeightFormat& format = device.ops().weight_format();
  Cuts cuts;
  for (const JobGroup& group : groups) {
    std::vector<Cut>& of_group = cuts.of_groups.emplace_back();
    for (const ModelId m : group.models) {
      const Cut& cut = of_group.emplace_back(m, group.shape.tp, group.shape.pp, group.layers_of(m));
      if (cuts.plans.contains(cut)) continue;
      const std::vector<ShardPlan>& stages = cuts.plans[cut] = make_plans(m, group, options.reproducible);
      naming(entries_[m], [&] {
        for (const ShardPlan& plan : stages) {
          const WeightTypes& types = models_[m].weight_types;
          cuts.largest_block = std::max(cuts.largest_block, ShardLayout::largest_block_bytes(plan, format, types));
          cuts.common_block = common_block(cuts.common_block, ShardLayout::common_block_bytes(plan, format, types));
        }
      });
    }
  }
  return cuts;
}

void ModelSet::make_layouts(const Cuts& cuts, const std::vector<JobGroup>& groups, const RankDevice& device) {
  const WeightFormat& format = device.ops().weight_format();
  slot_bytes_ = slot_size(cuts, format);
  for (const auto& [cut, stages] : cuts.plans) {
    for (const ShardPlan& plan : stages) {
      layouts_[cut].push_back(
          ShardLayout::make(plan, format, models_[std::get<ModelId>(cut)].weight_types, page_bytes_, slot_bytes_));
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups_.emplace_back(Group{groups[g].models, {}});
    for (const Cut& cut : cuts.of_groups[g]) {
      StageLayouts& stages = group.layouts.emplace_back();
      for (ShardLayout& layout : layouts_.at(cut)) stages.push_back(&layout);
    }
  }
}

// Rank 0 knows all stages, the others need their own. Only adapters have riders: devices that compute none need not
// know of them.
void ModelSet::tell_contents(bool of_all_stages) {
  const bool adapters = std::ranges::any_of(models_, [](const Model& m) { return !m.config.adapter_ranks.empty(); });
  for (auto& [cut, stages] : layouts_) {
    const CheckpointIndex& index = models_[std::get<ModelId>(cut)].index;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      if (!of_all_stages && stage != stage_) continue;
      stages[stage].contents = page_contents(index, stages[stage], stages[stage].plan.mesh.tp);
      if (adapters) stages[stage].family = family_digest(stages[stage]);
    }
  }
}

// [model of the group, page] How much less each page takes over this rank's link than in a frame; empty if none does.
// No page that is coded saves more than 32 bits can say.
std::vector<std::uint32_t> ModelSet::own_savings(const HostStore& host) const {
  std::vector<std::uint32_t> savings;
  for (ModelId m = 0; m < in_own_group().size(); ++m) {
    for (PageId page = 0; page < static_cast<PageId>(host.pages(m)); ++page) {
      const std::size_t used = host.page_used_bytes(m, page);
      savings.push_back(static_cast<std::uint32_t>(used - std::min(used, host.page_link_bytes(m, page))));
    }
  }
  const bool any = std::ranges::any_of(savings, [](std::uint32_t saved) { return saved > 0; });
  return any ? savings : std::vector<std::uint32_t>();
}

void ModelSet::gather_link_bytes(const Mesh& mesh, const HostStore& host) {
  const std::vector<std::vector<std::uint32_t>> savings = gather_lists(mesh.job, own_savings(host));  // [rank]
  if (!mesh.schedules()) return;
  LinkSavings least;
  for (const RankGroup& group : mesh.groups) {
    for (int rank = 0; rank < group.shape.ranks(); ++rank) {
      std::span<const std::uint32_t> of_rank = savings[static_cast<std::size_t>(group.job_rank(rank))];
      for (const StageLayouts& stages : groups_[static_cast<std::size_t>(group.index)].layouts) {
        ShardLayout* const layout = stages[static_cast<std::size_t>(group.shape.stage_of(rank))];
        least.note(layout, of_rank);
        if (!of_rank.empty()) of_rank = of_rank.subspan(layout->used_bytes.size());
      }
    }
  }
  least.set_link_bytes();
}

void ModelSet::estimate_link_bytes(const WeightFormat& format) {
  std::map<ModelId, CodedEstimate> estimates;
  for (auto& [cut, stages] : layouts_) {
    const ModelId m = std::get<ModelId>(cut);
    const Model& model = models_[m];
    const CodedEstimate& estimate = estimates.try_emplace(m, model.index, format, model.weight_types).first->second;
    for (ShardLayout& layout : stages) layout.link_bytes = estimate.link_bytes(layout);
  }
}

// [stage]
std::vector<ShardPlan> ModelSet::make_plans(ModelId model, const JobGroup& group, bool reproducible) const {
  const std::vector<int> stage_layers = group.layers_of(model);
  std::vector<ShardPlan> plans;
  naming(entries_[model], [&] {
    check_message_size(models_[model].config, group.shape);
    for (int stage = 0; stage < group.shape.pp; ++stage) {
      plans.push_back(ShardPlan::make(models_[model].config, group.shape, stage, reproducible, stage_layers));
    }
  });
  return plans;
}

std::size_t ModelSet::page_size(const JobOptions& options, const RankDevice& device, const Cuts& cuts,
                                const JobHeartbeat& heartbeat) const {
  if (options.measure_page_size) return best_page_size(options, device, cuts, heartbeat);
  if (options.page_bytes % 64 != 0) throw Error(ExitCode::kUsage, "--page-size must be a multiple of 64");
  if (options.page_bytes > 0) return options.page_bytes;
  return default_page_bytes(device.device().default_page_bytes(), cuts.largest_block, cuts.common_block);
}

// One size for all adapters of the job, whichever group has them.
std::size_t ModelSet::slot_size(const Cuts& cuts, const WeightFormat& format) const {
  const auto has_adapter = [&](const auto& cut) {
    return !models_[std::get<ModelId>(cut.first)].config.adapter_ranks.empty();
  };
  // Adapters of one base, of equal ranks and cut alike, take as much: of hundreds one is laid out at each size.
  struct Alike {
    const std::pair<const Cut, std::vector<ShardPlan>>* first = nullptr;
    std::size_t count = 0;
  };
  std::map<std::tuple<std::string, std::string, int, int, std::vector<int>>, Alike> patterns;
  for (const auto& cut : cuts.plans) {
    if (!has_adapter(cut)) continue;
    const auto& [model, tp, pp, layers] = cut.first;
    Alike& alike = patterns[{entries_[model].path, models_[model].config.to_json(), tp, pp, layers}];
    if (alike.count++ == 0) alike.first = &cut;
  }
  if (patterns.empty()) return 0;
  return default_slot_bytes(page_bytes_, [&](std::size_t slot_bytes) {
    SlotUse use;
    for (const auto& [pattern, alike] : patterns) {
      const WeightTypes& types = models_[std::get<ModelId>(alike.first->first)].weight_types;
      for (const ShardPlan& plan : alike.first->second) {
        use += alike.count * slot_use(plan, format, types, page_bytes_, slot_bytes);
      }
    }
    return use;
  });
}

// Of all stages of all cuts. What pages take coded is known once they are loaded, and they are loaded in pages of the
// size that depends on it: a sample of the models' files says it before.
std::vector<ShardBytes> ModelSet::shard_bytes(const Cuts& cuts, const WeightFormat& format, PageCoding coding) const {
  const std::size_t page_bytes = std::max(kLargestPage, std::bit_ceil(cuts.largest_block));
  std::map<ModelId, CodedEstimate> estimates;
  std::vector<ShardBytes> shards;
  for (const auto& [cut, stages] : cuts.plans) {
    const ModelId m = std::get<ModelId>(cut);
    const Model& model = models_[m];
    for (const ShardPlan& plan : stages) {
      ShardLayout layout = ShardLayout::make(plan, format, model.weight_types, page_bytes);
      if (coding == PageCoding::kCoded) {
        const auto [estimate, added] =
            estimates.try_emplace(m, model.index, format, model.weight_types, CodedEstimate::kQuickSample);
        layout.link_bytes = estimate->second.link_bytes(layout);
      }
      shards.push_back({.bytes = static_cast<double>(layout.total_used_bytes()),
                        .link_bytes = static_cast<double>(layout.total_link_bytes())});
    }
  }
  return shards;
}

// --page-size auto. A size that is kept may be too small for blocks that a job under another placement has. Decoding is
// taken to keep up with the link: --coded auto asks for kLeastDecodingRate times its rate, with --coded on nobody has
// measured it.
std::size_t ModelSet::best_page_size(const JobOptions& options, const RankDevice& device, const Cuts& cuts,
                                     const JobHeartbeat& heartbeat) const {
  if (options.page_bytes > 0) {
    const std::size_t kept = std::max(options.page_bytes, std::bit_ceil(cuts.largest_block));
    spdlog::info("pages of {}, as the journal keeps it", format_size(kept));
    return kept;
  }
  const MeasuredCosts& costs = device.costs().value();
  std::vector<ShardBytes> shards;
  heartbeat.run_beside([&] { shards = shard_bytes(cuts, device.ops().weight_format(), device.page_coding()); });
  const std::size_t least = std::max(kSmallestPage, kBlocksAPage * cuts.largest_block);
  const std::size_t pool = options.device_memory_bytes;  // 0: as large as the models need
  const std::size_t most = pool > 0 ? std::min(kLargestPage, pool / kPagesAPool) : kLargestPage;
  const PageSizeChoice best =
      computron::best_page_size(shards, costs.compute_s_per_byte, costs.copies, static_cast<std::int64_t>(least),
                                static_cast<std::int64_t>(most));
  spdlog::info(
      "pages of {}: a copy takes {:.1f} us and 1 s for {:.2f} GB, its event {:.1f} us, so that passes of "
      "all models, none of them there, take {:.4g} s{}",
      format_size(static_cast<std::size_t>(best.page_bytes)), 1e6 * costs.copies.copy_s,
      1e-9 * costs.copies.bytes_per_s, 1e6 * costs.copies.event_s, best.pass_s,
      device.page_coding() == PageCoding::kCoded ? coded_line(shards) : "");
  return static_cast<std::size_t>(best.page_bytes);
}

std::vector<ServedModel> ModelSet::served() const {
  std::vector<ServedModel> served;
  for (std::size_t m = 0; m < size(); ++m) {
    ServedModel& model = served.emplace_back(ServedModel{entries_[m].id, models_[m].config});
    if (entries_[m].slo_s > 0) model.deadline_s = entries_[m].slo_s;
    model.chat_format = entries_[m].chat_format;
    model.chat_date = entries_[m].chat_date;
  }
  return served;
}

std::vector<ModelShape> ModelSet::shapes(int group) const {
  const Group& of = groups_[static_cast<std::size_t>(group)];
  std::vector<ModelShape> shapes;
  for (std::size_t local = 0; local < of.models.size(); ++local) {
    const ModelId m = of.models[local];
    ModelShape& shape = shapes.emplace_back();
    shape.layouts.assign(of.layouts[local].begin(), of.layouts[local].end());
    shape.eos_tokens = models_[m].config.eos_tokens;
    shape.pinned = entries_[m].pinned;
    shape.priority = entries_[m].priority;
    for (const ShardLayout* layout : shape.layouts) shape.caches.push_back(KvGeometry::make(*layout));
  }
  return shapes;
}

std::vector<std::string> ModelSet::names() const {
  std::vector<std::string> names;
  for (const ModelEntry& entry : entries_) names.push_back(entry.id);
  return names;
}

std::vector<std::string> ModelSet::names(int group) const {
  std::vector<std::string> names;
  for (const ModelId m : in_group(group)) names.push_back(entries_[m].id);
  return names;
}

}  // namespace computron

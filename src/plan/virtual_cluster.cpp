#include "computron/plan/virtual_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/base/size.h"
#include "computron/plan/profiled_costs.h"
#include "computron/sched/slot_division.h"

namespace computron {
namespace {

constexpr std::int64_t kMostFrames = 1 << 24;    // of a pool, and slots
constexpr std::int64_t kMostPages = 1 << 23;     // of all layouts
constexpr std::int64_t kLayerTokenBytes = 8192;  // of keys and values, where a profile does not say its layers
constexpr TokenId kPromptToken = 5;

[[noreturn]] void refuse(const std::string& why) { throw Error(ExitCode::kUsage, "simulate: " + why); }

void check(const ClusterOptions& options) {
  if (options.max_seqs < 1) refuse(fmt::format("{} sequences at a time", options.max_seqs));
  if (options.max_batch_tokens < 1) refuse(fmt::format("passes of {} tokens", options.max_batch_tokens));
  if (options.steps_ahead < 0) refuse(fmt::format("{} steps ahead", options.steps_ahead));
  if (options.page_bytes < 1) refuse(fmt::format("pages of {} bytes", options.page_bytes));
  if (options.most_pages < 0) refuse(fmt::format("at most {} pages a stage", options.most_pages));
  if (options.device_bytes < 1) refuse(fmt::format("ranks have {} bytes", options.device_bytes));
  if (options.host_cache_bytes < 0) refuse(fmt::format("{} bytes of host cache", options.host_cache_bytes));
  if (!(options.link_bytes_per_s > 0)) refuse(fmt::format("links copy {} bytes a second", options.link_bytes_per_s));
  if (!(options.latency_s >= 0)) refuse(fmt::format("a step takes {} s to a rank", options.latency_s));
}

const ShapeProfile& profile_of(const std::vector<ModelProfile>& models, std::uint32_t model, const GroupShape& shape) {
  const ShapeProfile* const profile = models.at(model).find(shape);
  if (profile == nullptr) {
    refuse(fmt::format("the profiles of {} have no shape tp {} x pp {}", models[model].id, shape.tp, shape.pp));
  }
  return *profile;
}

// A multiple of the smallest size that leaves no stage of the group's models more pages than there may be.
std::int64_t page_bytes_of(const std::vector<ModelProfile>& models, const PlacedGroup& placed,
                           const ClusterOptions& options) {
  if (options.most_pages == 0) return options.page_bytes;
  std::int64_t largest = 1;
  for (const std::uint32_t model : placed.models) {
    largest = std::max(largest, profile_of(models, model, placed.shape).rank_bytes());
  }
  return round_up(std::max(ceil_div(largest, std::int64_t{options.most_pages}), std::int64_t{1}), options.page_bytes);
}

// All slots of a job have one size: that of the adapter with the largest.
std::int64_t slot_bytes_of(const std::vector<ModelProfile>& models, const PlacedGroup& placed) {
  std::int64_t largest = 0;
  for (const std::uint32_t model : placed.models) {
    largest = std::max(largest, profile_of(models, model, placed.shape).slot_bytes);
  }
  return largest;
}

// Keys and values of a token are cut into layers whose part of a block fits a page. What is computed with the pages
// does not depend on the layers.
void add_cache(ShardLayout& layout, std::int64_t token_bytes, int layers) {
  const auto page_bytes = static_cast<std::int64_t>(layout.page_bytes);
  if (layers == 0) layers = static_cast<int>(ceil_div(token_bytes, kLayerTokenBytes));
  const std::int64_t fewest = ceil_div(KvGeometry::kBlockTokens * (token_bytes + 4 * layers), page_bytes);
  layout.plan.layers = std::max(layers, static_cast<int>(fewest));
  layout.plan.kv_heads = 1;
  layout.cache_dtype = DType::kF16;  // a number of a key and one of a value: 4 bytes
  layout.plan.config.head_dim = static_cast<int>(ceil_div(token_bytes, std::int64_t{4} * layout.plan.layers));
}

Digest128 digest_of(const std::string& text) { return digest128(std::as_bytes(std::span(text))); }

// A page of a layout to be.
struct VirtualPage {
  std::size_t used_bytes, link_bytes;
  Digest128 contents;
  bool in_slot;
};

// Alike, and link bytes are spread evenly over them.
void add_pages(const VirtualPages& of, std::int64_t page_bytes, bool in_slots, std::vector<VirtualPage>& pages) {
  const bool full = of.frame_bytes <= of.bytes;
  const std::int64_t in_a_page = full ? page_bytes : ceil_div(of.bytes, ceil_div(of.frame_bytes, page_bytes));
  const double share = of.bytes > 0 ? static_cast<double>(of.link_bytes) / static_cast<double>(of.bytes) : 1;
  std::int64_t left = of.bytes;
  for (int number = 0; left > 0; ++number, left -= in_a_page) {
    const auto used = static_cast<std::size_t>(std::min(left, in_a_page));
    const auto link =
        of.link_bytes < of.bytes ? static_cast<std::size_t>(std::llround(share * static_cast<double>(used))) : used;
    pages.push_back({used, link, digest_of(fmt::format("{} {} {}", of.contents, page_bytes, number)), in_slots});
  }
}

std::int64_t pages_of(const VirtualPages& of, std::int64_t page_bytes) {
  return ceil_div(std::max(of.bytes, of.frame_bytes), page_bytes);
}

std::int64_t pages_of(const VirtualStage& stage) {
  std::int64_t pages = pages_of(stage.own, stage.slot_bytes > 0 ? stage.slot_bytes : stage.page_bytes);
  for (const VirtualPages& shared : stage.shared) pages += pages_of(shared, stage.page_bytes);
  return pages;
}

// Those of `more` evenly among `pages`.
std::vector<VirtualPage> spread(const std::vector<VirtualPage>& pages, const std::vector<VirtualPage>& more) {
  std::vector<VirtualPage> all;
  std::size_t next = 0;
  for (std::size_t p = 0; p < pages.size(); ++p) {
    all.push_back(pages[p]);
    for (; next < more.size() && (next + 1) * pages.size() <= (p + 1) * more.size(); ++next) all.push_back(more[next]);
  }
  all.insert(all.end(), more.begin() + static_cast<std::ptrdiff_t>(next), more.end());
  return all;
}

// Pages are used one after the other, those of an operation together. An encoder has a block of cache for its own pass
// that counts for nothing.
ShardLayout make_layout(const VirtualStage& stage) {
  ShardLayout layout;
  layout.page_bytes = static_cast<std::size_t>(stage.page_bytes);
  layout.slot_bytes = static_cast<std::size_t>(stage.slot_bytes);
  layout.types = DType::kF16;
  add_cache(layout, std::max(stage.cache_token_bytes, std::int64_t{4}), stage.cache_token_bytes > 0 ? stage.layers : 1);
  if (stage.by_rows) {
    layout.plan.tensors.push_back(
        {.name = "w", .role = TensorRole::kGemmWeight, .rows = 1, .columns = 1, .parts = {}, .type = DType::kF16});
  }
  const bool in_slots = stage.slot_bytes > 0;
  std::vector<VirtualPage> pages, own;
  for (const VirtualPages& shared : stage.shared) add_pages(shared, stage.page_bytes, /*in_slots=*/false, pages);
  add_pages(stage.own, in_slots ? stage.slot_bytes : stage.page_bytes, in_slots, own);
  if (in_slots) {
    pages = spread(pages, own);
  } else {
    pages.insert(pages.end(), own.begin(), own.end());
  }
  const std::int64_t together = std::max(ceil_div(stage.operation_bytes, stage.page_bytes), std::int64_t{1});
  const bool coded = std::ranges::any_of(pages, [](const auto& page) { return page.link_bytes < page.used_bytes; });
  const bool is_alone = stage.shared.empty() && stage.family.empty() && stage.own.contents.empty();
  for (PageId page = 0; page < pages.size(); ++page) {
    layout.used_bytes.push_back(pages[page].used_bytes);
    layout.uses.push_back(page);
    layout.over_before.push_back(page / together * together - 1);
    if (coded) layout.link_bytes.push_back(pages[page].link_bytes);
    if (!is_alone) layout.contents.push_back(pages[page].contents);
    if (pages[page].in_slot) layout.adapter_pages.push_back(page);
  }
  if (!stage.family.empty()) layout.family = digest_of(stage.family);
  return layout;
}

int frames_of(std::int64_t bytes, std::int64_t page_bytes) {
  const std::int64_t frames = bytes / page_bytes;
  if (frames > kMostFrames) {
    refuse(fmt::format("{} of memory are {} pages of {}: larger pages are needed (--page-size)",
                       format_size(static_cast<std::size_t>(bytes)), frames,
                       format_size(static_cast<std::size_t>(page_bytes))));
  }
  return static_cast<int>(frames);
}

// A rank's memory, with slots for what lies in them.
DividedPool pool_of(std::int64_t bytes, const SlotDemand& demand, std::int64_t page_bytes, std::int64_t slot_bytes) {
  const DividedPool pool = divide_pool(frames_of(bytes, page_bytes), demand, page_bytes, slot_bytes);
  const auto text = [](std::int64_t size) { return format_size(static_cast<std::size_t>(size)); };
  if (pool.adapter_slots > kMostFrames) {
    refuse(fmt::format("adapters lie in {} slots of {}: larger slots are needed (slot_bytes of the profiles)",
                       demand.all, text(slot_bytes)));
  }
  if (pool.adapter_slots > 0 && pool.frames < 1) {
    throw ConfigError(fmt::format("simulate: {} of memory hold no page of {} beside {} slots of {} for adapters",
                                  text(bytes), text(page_bytes), pool.adapter_slots, text(slot_bytes)));
  }
  return pool;
}

ShapeProfile slowed(ShapeProfile profile, double factor) {
  if (factor == 1) return profile;
  const auto slow = [factor](float& time_s) { time_s = static_cast<float>(factor * static_cast<double>(time_s)); };
  std::ranges::for_each(profile.stage_s, slow);
  for (PassTimes& pass : profile.passes) std::ranges::for_each(pass.stage_s, slow);
  return profile;
}

// What every request takes more is outside of the groups: they have so much less time for it.
void add_constant(double constant_s, VirtualRun& run) {
  for (Completion& completion : run.completions) {
    completion.due_s += constant_s;
    if (completion.error_code.empty()) completion.finished_s += constant_s;
  }
}

Completion of_no_group(const Request& request) {
  Completion completion = ended(request);
  completion.error_code = "model_not_found";
  completion.error_message = "its model is in no group";
  return completion;
}

}  // namespace

VirtualCluster::VirtualCluster(const std::vector<ModelProfile>& models, const ModelPlacement& placement,
                               const ClusterOptions& options)
    : models_(models.size()), constant_s_(options.constant_s) {
  check(options);
  for (const PlacedGroup& placed : placement) add(models, placed, options);
}

const ShardLayout* VirtualCluster::layout_of(const ModelProfile& model, const ShapeProfile& profile, std::size_t stage,
                                             std::int64_t page_bytes, std::int64_t slot_bytes) {
  const auto of_stage = [stage](const auto& by_stage) { return by_stage.empty() ? 0 : by_stage[stage]; };
  VirtualStage known;
  VirtualPages& own = known.own;
  own.bytes = profile.stage_bytes[stage];
  own.link_bytes = profile.stage_link_bytes()[stage];
  own.frame_bytes = of_stage(profile.frame_bytes);
  known.page_bytes = page_bytes;
  known.slot_bytes = profile.slot_bytes > 0 ? slot_bytes : 0;
  known.family = model.family;
  known.operation_bytes = of_stage(profile.operation_bytes);
  known.cache_token_bytes = of_stage(profile.cache_token_bytes);
  known.layers = of_stage(profile.layers);
  known.by_rows = !profile.passes.empty();
  for (const SharedPart& part : profile.shared) {
    const VirtualPages pages{.bytes = part.stage_bytes[stage],
                             .link_bytes = part.stage_link_bytes()[stage],
                             .frame_bytes = part.stage_frame_bytes()[stage],
                             .contents = "part " + part.name};
    own.bytes -= pages.bytes;
    own.link_bytes -= pages.link_bytes;
    if (own.frame_bytes > 0) own.frame_bytes -= pages.frame_bytes;
    known.shared.push_back(pages);
  }
  if (!profile.shared.empty() || !model.family.empty()) own.contents = "model " + model.id;
  if (profile.stage_bytes[stage] == 0) own.bytes = own.link_bytes = 1;
  const auto [entry, is_new] = layouts_.try_emplace(known);
  if (!is_new) return &entry->second;
  pages_ += pages_of(known);
  if (pages_ > kMostPages) {
    const bool in_slots = known.slot_bytes > 0;
    refuse(fmt::format(
        "stage {} of {} has {} pages, {} in {} of {}: more than {} with those before it; larger ones "
        "are needed ({})",
        stage, model.id, pages_of(known), pages_of(own, in_slots ? slot_bytes : page_bytes),
        in_slots ? "slots" : "frames", format_size(static_cast<std::size_t>(in_slots ? slot_bytes : page_bytes)),
        kMostPages, in_slots ? "slot_bytes of the profiles" : "--page-size"));
  }
  entry->second = make_layout(known);
  return &entry->second;
}

void VirtualCluster::add(const std::vector<ModelProfile>& models, const PlacedGroup& placed,
                         const ClusterOptions& options) {
  const std::int64_t page_bytes = page_bytes_of(models, placed, options);
  const std::int64_t slot_bytes = slot_bytes_of(models, placed);
  std::vector<ModelShape> shapes;
  std::vector<std::string> names;
  std::vector<std::vector<const ShardLayout*>> layouts;
  int encoders = 0;
  for (const std::uint32_t model : placed.models) {
    const ShapeProfile& profile = profile_of(models, model, placed.shape);
    ModelShape& shape = shapes.emplace_back();
    for (std::size_t stage = 0; stage < profile.stage_bytes.size(); ++stage) {
      shape.layouts.push_back(layout_of(models[model], profile, stage, page_bytes, slot_bytes));
      shape.caches.push_back(KvGeometry::make(*shape.layouts.back()));
    }
    layouts.push_back(shape.layouts);
    names.push_back(models[model].id);
    encoders += profile.cache_token_bytes.empty() ? 1 : 0;
  }
  // Formulas play no part where all passes have been seen; where more rows come than that they are in proportion.
  const CostOptions costs{
      .link_bytes_per_s = options.link_bytes_per_s, .memory_bytes_per_s = 1e18, .flops_per_s = 2e9, .step_s = 1e-12};
  const int in_flight = placed.shape.pp + options.steps_ahead;
  const DividedPool pool = pool_of(options.device_bytes, slot_demand(shapes), page_bytes, slot_bytes);
  const SchedulerOptions own{.frames = pool.frames + std::min(encoders, in_flight + 1),
                             .host_slots = frames_of(options.host_cache_bytes, page_bytes),
                             .adapter_slots = pool.adapter_slots,
                             .max_batch_tokens = options.max_batch_tokens,
                             .max_seqs = options.max_seqs,
                             .steps_in_flight = in_flight,
                             .on_late = options.on_late,
                             .costs = costs};
  schedulers_.push_back(std::make_unique<Scheduler>(
      std::move(shapes), std::move(names), make_policy(options.policy, {.max_wait_s = options.max_wait_s}), own));
  CostModel truth(layouts, costs);
  for (ModelId local = 0; local < placed.models.size(); ++local) {
    const double slower = 1 + options.stage_penalty * placed.shape.pp;
    const ShapeProfile profile = slowed(profile_of(models, placed.models[local], placed.shape), slower);
    seed_costs(truth, local, profile);
    seed_costs(schedulers_.back()->costs(), local, profile);
  }
  meshes_.push_back(std::make_unique<VirtualMesh>(std::move(layouts), std::move(truth), options.latency_s));
  dispatch_groups_.push_back({schedulers_.back().get(), {placed.models.begin(), placed.models.end()}});
}

VirtualRun VirtualCluster::run(std::vector<Request> requests, const StepObserver& observe, RunTimes* times) {
  std::vector<bool> served(models_, false);
  for (const DispatchGroup& group : dispatch_groups_) {
    for (const ModelId model : group.models) served[model] = true;
  }
  Dispatcher dispatcher(dispatch_groups_, models_);
  std::vector<Completion> refused;
  for (Request& request : requests) {
    request.deadline_s -= constant_s_;
    if (served[request.model]) {
      dispatcher.submit(std::move(request));
    } else {
      refused.push_back(of_no_group(request));
    }
  }
  requests.clear();
  dispatcher.close_input();
  std::vector<VirtualMesh*> meshes;
  for (const auto& mesh : meshes_) meshes.push_back(mesh.get());
  VirtualRun run = run_virtually(dispatcher, meshes, observe, times);
  std::ranges::move(refused, std::back_inserter(run.completions));
  if (constant_s_ != 0) add_constant(constant_s_, run);
  return run;
}

int usual_batch_tokens(const std::vector<ModelProfile>& models, const ModelPlacement& placement, int prompt_tokens) {
  for (const PlacedGroup& placed : placement) {
    for (const std::uint32_t model : placed.models) {
      if (profile_of(models, model, placed.shape).passes.empty()) return prompt_tokens;
    }
  }
  return std::max(prompt_tokens, SchedulerOptions().max_batch_tokens);
}

bool is_encoder(const ModelProfile& model) {
  return std::ranges::all_of(model.shapes, [](const auto& entry) { return entry.second.cache_token_bytes.empty(); });
}

std::vector<Request> requests_of(std::span<const Arrival> arrivals, const std::vector<ModelProfile>& models,
                                 std::span<const float> slo_s, int prompt_tokens, int max_tokens) {
  std::vector<bool> encodes;
  for (const ModelProfile& model : models) encodes.push_back(is_encoder(model));
  std::vector<Request> requests;
  for (const Arrival& arrival : arrivals) {
    Request& request = requests.emplace_back();
    request.id = requests.size() - 1;
    request.model = arrival.model;
    request.prompt.assign(static_cast<std::size_t>(prompt_tokens), kPromptToken);
    request.arrival_s = arrival.time_s;
    request.deadline_s = static_cast<double>(slo_s[arrival.model]);  // infinity is kNoDeadline
    if (encodes[arrival.model]) {
      request.task = Task::kEmbed;
      request.values = 1;
    } else {
      request.max_tokens = max_tokens;
      request.ignore_eos = true;
    }
  }
  return requests;
}

}  // namespace computron

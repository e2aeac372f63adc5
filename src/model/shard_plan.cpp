#include "computron/model/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace computron {
namespace {

// Parameters to weigh stages by: of the layers before each, and of all; of the embeddings; of what follows the last
// layer.
struct Weights {
  std::vector<double> before;  // [layers + 1]
  double embedding = 0, head = 0;

  int layers() const { return static_cast<int>(before.size()) - 1; }
  double all() const { return before.back() + embedding + head; }
  // Of a stage beside its layers.
  double beside(int stage, int pp) const { return (stage == 0 ? embedding : 0) + (stage == pp - 1 ? head : 0); }
};

// A tied head counts on its own: with one stage there is nothing to weigh.
Weights weigh(const ModelConfig& config) {
  Weights w;
  w.before.assign(static_cast<std::size_t>(config.layers) + 1, 0);
  ModelConfig base = config;  // an adapter moves no layer, so that its base's pages stay what they are
  base.adapter_ranks.clear();
  for (const TensorSpec& spec : tensor_specs(base)) {
    const double elements = std::accumulate(spec.shape.begin(), spec.shape.end(), 1.0, std::multiplies<>());
    if (spec.name.starts_with("layers.")) {
      w.before[std::stoul(spec.name.substr(std::size("layers.") - 1)) + 1] += elements;
      continue;
    }
    (spec.name.starts_with("embedding.") ? w.embedding : w.head) += elements;
    if (config.tied_head && spec.name == "embedding.tokens.weight") w.head += elements;
  }
  std::partial_sum(w.before.begin(), w.before.end(), w.before.begin());
  return w;
}

// A cut in which no stage exceeds `limit`; empty when there is none. Every stage takes an equal part of the parameters
// left, rounded up to whole layers, or as many layers as the stages behind it cannot hold.
std::vector<int> try_cut(double limit, const Weights& w, int pp) {
  // least[s]: the first layer from which on stages s, s + 1, ... hold all, one layer each at least.
  std::vector<int> least(static_cast<std::size_t>(pp) + 1, w.layers()), firsts{0};
  for (int stage = pp - 1; stage >= 0; --stage) {
    int first = least[stage + 1];
    while (first > 0 && w.before[least[stage + 1]] - w.before[first - 1] + w.beside(stage, pp) <= limit) --first;
    if (first == least[stage + 1]) return {};
    least[stage] = std::max(first, stage);
  }
  if (least[0] > 0) return {};
  for (int stage = 0; stage < pp; ++stage) {
    const int begin = firsts.back(), last = w.layers() - (pp - 1 - stage);
    const double left = w.before.back() - w.before[begin];
    int end = begin + 1;
    const auto of_stage = [&](int e) { return w.before[e] - w.before[begin]; };
    while (end < last && (end < least[stage + 1] || of_stage(end) * (pp - stage) < left) &&
           of_stage(end + 1) + w.beside(stage, pp) <= limit) {
      ++end;
    }
    if (end < least[stage + 1] || of_stage(end) + w.beside(stage, pp) > limit) return {};
    firsts.push_back(end);
  }
  return firsts.back() == w.layers() ? firsts : std::vector<int>{};
}

// As cut_layers(), of stages that have so many layers each.
std::vector<int> first_layers(const ModelConfig& config, int pp, std::span<const int> stage_layers) {
  std::vector<int> firsts{0};
  std::string text;
  for (const int layers : stage_layers) {
    firsts.push_back(firsts.back() + layers);
    text += fmt::format("{}{}", text.empty() ? "" : " + ", layers);
  }
  if (std::cmp_not_equal(stage_layers.size(), pp) || firsts.back() != config.layers) {
    throw ConfigError(
        fmt::format("stages of {} layers do not make {} stages of {} layers together", text, pp, config.layers));
  }
  return firsts;
}

class PlanBuilder {
 public:
  explicit PlanBuilder(ShardPlan& plan) : plan_(plan) {
    for (TensorSpec& spec : tensor_specs(plan.config)) specs_.emplace(spec.name, std::move(spec));
  }

  void build() {
    if (plan_.embeds()) embedding();
    for (int layer = plan_.first_layer; layer < plan_.first_layer + plan_.layers; ++layer) block(layer);
    if (plan_.has_head()) head();
  }

 private:
  void embedding() {
    if (plan_.config.takes_images()) {
      add_column_parallel("embedding.patches", {"embedding.patches"});
      add_one("embedding.class_token");
    } else {
      add_one("embedding.tokens.weight");
      if (has("embedding.projection.weight")) add_replicated("embedding.projection");
    }
    if (has("embedding.types.weight")) add_one("embedding.types.weight");
    if (has("embedding.positions.weight")) add_one("embedding.positions.weight");
    if (plan_.config.embedding_norm) norm("embedding.norm");
  }

  void block(int layer) {
    const std::string p = fmt::format("layers.{}.", layer);
    const bool post = plan_.config.norm_position == NormPosition::kPost, parallel = plan_.config.parallel_residual;
    if (!post) norm(p + "attention_norm");
    attention(p + "attention.");
    if (parallel) norm(p + "mlp_norm");  // of what attention is not yet added to
    bias(p + "attention.output");
    norm(p + "attention_output_norm");
    if (post) norm(p + "attention_norm");
    if (!post && !parallel) norm(p + "mlp_norm");
    plan_.config.layer(layer).experts ? experts(p + "mlp.") : mlp(p + "mlp.");
    norm(p + "mlp_output_norm");
    if (post) norm(p + "mlp_norm");
  }

  // But for the bias of its output.
  void attention(const std::string& p) {
    add_column_parallel(p + "qkv", {p + "query", p + "key", p + "value"});
    if (has(p + "query_norm.weight")) {
      add(p + "query_key_norm.weight", {p + "query_norm.weight", p + "key_norm.weight"});
    }
    if (has(p + "sinks")) add_one(p + "sinks");
    add_row_parallel(p + "output");
  }

  std::string up_name() const { return plan_.config.gated_mlp ? "gate_up" : "up"; }
  std::vector<std::string> up_sources(const std::string& p) const {
    return plan_.config.gated_mlp ? std::vector{p + "gate", p + "up"} : std::vector{p + "up"};
  }

  void mlp(const std::string& p) {
    add_column_parallel(p + up_name(), up_sources(p));
    add_row_parallel(p + "down");
    bias(p + "down");
  }

  // Every rank has a slice of every expert, so that all have as much to do whatever the router chooses.
  void experts(const std::string& p) {
    add_column_parallel(p + "router", {p + "router"});
    expert_biases(p);
    for_each_expert(p, [&](const std::string& expert) {
      add(expert + up_name() + ".weight", with_ending(up_sources(expert), ".weight"));
      adapters(up_sources(expert));
      add_row_parallel(expert + "down");
    });
    if (plan_.config.shared_ffn == 0) return;
    add_replicated(p + "shared_gate");
    mlp(p + "shared.");
  }

  // Those of all experts are one vector each, by expert.
  void expert_biases(const std::string& p) {
    if (!plan_.config.mlp_bias) return;
    std::vector<std::string> up, down;
    for_each_expert(p, [&](const std::string& expert) {
      for (const std::string& source : with_ending(up_sources(expert), ".bias")) up.push_back(source);
      down.push_back(expert + "down.bias");
    });
    add(p + "experts." + up_name() + ".bias", up);
    add(p + "experts.down.bias", down);
  }

  template <class Body>
  void for_each_expert(const std::string& p, Body&& body) const {
    for (int expert = 0; expert < plan_.config.experts; ++expert) body(fmt::format("{}experts.{}.", p, expert));
  }

  static std::vector<std::string> with_ending(std::vector<std::string> names, const char* ending) {
    for (std::string& name : names) name += ending;
    return names;
  }

  void head() {
    if (plan_.config.final_norm) norm("final_norm");
    plan_.config.pools() ? pooled() : vocabulary();
  }

  void vocabulary() {
    if (has("head.projection.weight")) add_replicated("head.projection");
    if (plan_.config.tied_head) {
      add("head.weight", {"embedding.tokens.weight"});
      if (plan_.embeds()) plan_.tensors.back().same_as = 0;
    } else {
      add_one("head.weight");
    }
  }

  void pooled() {
    const ModelConfig& c = plan_.config;
    if (c.pooler) add_column_parallel("pooler", {"pooler"});
    for (std::size_t i = 0; i < c.dense.size(); ++i) {
      const std::string name = fmt::format("dense.{}", i);
      add_column_parallel(name, {name});
    }
    if (c.class_dense) add_column_parallel("classifier.dense", {"classifier.dense"});
    norm("classifier.norm");
    if (c.classes > 0) add_column_parallel("classifier", {"classifier"});
  }

  // Where the model has it.
  void norm(const std::string& prefix) {
    if (has(prefix + ".weight")) add_one(prefix + ".weight");
    bias(prefix);
  }
  void bias(const std::string& prefix) {
    if (has(prefix + ".bias")) add_one(prefix + ".bias");
  }

  // Or replicated, where nothing is split. The bias comes first: every panel of the weight needs its part of it.
  void add_column_parallel(const std::string& name, const std::vector<std::string>& sources) {
    if (has(sources.front() + ".bias")) add(name + ".bias", with_ending(sources, ".bias"));
    add(name + ".weight", with_ending(sources, ".weight"));
    adapters(sources);
  }

  // Without a bias.
  void add_replicated(const std::string& name) {
    add_one(name + ".weight");
    adapters({name});
  }

  // But for the bias, which is added once, to the sum over the ranks.
  void add_row_parallel(const std::string& name) {
    if (plan_.k_slices == 1) {
      add_replicated(name);
      return;
    }
    for (int k_slice = 0; k_slice < plan_.k_slices; ++k_slice) {
      add_k_slice(name + ".weight", k_slice);
      if (!has(name + ".lora_a")) continue;
      add_k_slice(name + ".lora_a", k_slice);
      add_for_slice(name + ".lora_scale", k_slice);
      add_for_slice(name + ".lora_b", k_slice);
    }
  }

  // What all K slices are multiplied with.
  void add_for_slice(const std::string& source, int k_slice) {
    const auto same = [&](const ShardTensor& tensor) { return tensor.name == source + ".0"; };
    const auto first = std::ranges::find_if(plan_.tensors, same);
    const bool again = first != plan_.tensors.end();
    const int index = again ? static_cast<int>(first - plan_.tensors.begin()) : -1;
    add(fmt::format("{}.{}", source, k_slice), {source});
    plan_.tensors.back().same_as = index;
  }

  // Of modules whose weights have just been added: they are read behind these.
  void adapters(const std::vector<std::string>& modules) {
    for (const std::string& module : modules) {
      if (!has(module + ".lora_a")) continue;
      for (const char* part : {".lora_a", ".lora_scale", ".lora_b"}) add_one(module + part);
    }
  }

  // Equal parts of a rank's slice.
  void add_k_slice(const std::string& source, int k_slice) {
    add(fmt::format("{}.{}", source, k_slice), {source});
    ShardTensor& tensor = plan_.tensors.back();
    TensorPart& part = tensor.parts.front();
    part.slices_per_rank = static_cast<std::size_t>(plan_.k_slices);
    part.slice = static_cast<std::size_t>(k_slice);
    part.per_rank /= part.slices_per_rank;
    (part.transposed ? tensor.columns : tensor.rows) = static_cast<int>(part.per_rank);
  }

  bool has(const std::string& name) const { return specs_.contains(name); }

  void add_one(const std::string& name) { add(name, {name}); }

  // Stacks the sources along the output dimension.
  void add(const std::string& name, const std::vector<std::string>& sources) {
    ShardTensor tensor{.name = name, .parts = {}};
    for (const std::string& source : sources) {
      const TensorSpec& spec = specs_.at(source);
      const TensorPart part = part_of(spec, tensor.rows);
      const int other = spec.shape.size() > 1 ? static_cast<int>(spec.shape[1]) : 1;
      tensor.role = spec.role;
      tensor.rows += part.transposed ? other : static_cast<int>(part.per_rank);
      tensor.columns = part.transposed ? static_cast<int>(part.per_rank) : other;
      tensor.parts.push_back(part);
    }
    plan_.tensors.push_back(std::move(tensor));
  }

  TensorPart part_of(const TensorSpec& spec, int row) const {
    const std::size_t total = spec.shape[0];
    const std::size_t sliced = slice_extent(spec.split, total);
    const bool copied = spec.split == Split::kKvHeads && plan_.kv_copies > 1;
    return {.source = spec.name,
            .total = total,
            .per_rank = sliced > 0 ? sliced : total,
            .split = sliced > 0,
            .transposed = spec.transposed,
            .row = row,
            .unit = copied ? static_cast<std::size_t>(plan_.config.head_dim) : 1,
            .repeat = copied ? static_cast<std::size_t>(plan_.kv_copies) : 1};
  }

  // Rows of a slice of so many, padding included; 0 for replicated tensors.
  std::size_t slice_extent(Split split, std::size_t total) const {
    switch (split) {
      case Split::kNone:
        return 0;
      case Split::kVocab:
        return plan_.vocab;
      case Split::kHeads:
        return static_cast<std::size_t>(plan_.heads) * plan_.config.head_dim;
      case Split::kKvHeads:
        return static_cast<std::size_t>(plan_.kv_heads) * plan_.config.head_dim;
      case Split::kSinks:
        return plan_.heads;
      case Split::kFfn:
        return ceil_div(total, static_cast<std::size_t>(plan_.mesh.tp));
    }
    return 0;
  }

  ShardPlan& plan_;
  std::map<std::string, TensorSpec> specs_;
};

void check_fits(const ModelConfig& c, MeshShape mesh) {
  if (c.layers < mesh.pp) {
    throw ConfigError(fmt::format("a model of {} layers cannot be cut into {} stages", c.layers, mesh.pp));
  }
  if (c.heads < mesh.tp) {
    throw ConfigError(fmt::format("a model of {} query heads cannot be cut over tp {}", c.heads, mesh.tp));
  }
  if (c.heads % c.kv_heads != 0) {
    throw ConfigError(fmt::format("{} query heads are not a multiple of {} key/value heads", c.heads, c.kv_heads));
  }
}

// Heads of one rank.
struct HeadCut {
  int heads = 0, kv_heads = 0, kv_copies = 1;
  int rows() const { return 2 * heads + 2 * kv_heads; }  // of q and output, k and v
};

// The query heads of a key/value head are cut into `kv_copies` equal parts, each with a copy of that head, and the
// parts dealt out in order. The number of copies is the one that gives a rank the least to hold.
HeadCut cut_heads(const ModelConfig& c, int tp) {
  const int group = c.heads / c.kv_heads;
  HeadCut best;
  for (int copies = 1; copies <= group; ++copies) {
    if (group % copies != 0) continue;
    const int kv_heads = ceil_div(c.kv_heads * copies, tp);
    const HeadCut cut{.heads = kv_heads * (group / copies), .kv_heads = kv_heads, .kv_copies = copies};
    if (copies == 1 || cut.rows() < best.rows()) best = cut;
  }
  return best;
}

// Inner units of the layers without experts, and of experts; 0: there are none.
int ffn_of_layers(const ModelConfig& c) { return c.has_layers_without_experts() ? c.ffn : 0; }
int ffn_of_experts(const ModelConfig& c) { return c.experts > 0 ? c.ffn_of_expert() : 0; }

void check_reproducible(const ModelConfig& c, MeshShape mesh, const HeadCut& cut) {
  constexpr int kSlices = ShardPlan::kKSlices;
  const auto require = [](bool condition, const std::string& what) {
    if (!condition) throw ConfigError("--reproducible: " + what);
  };
  require(kSlices % mesh.tp == 0, fmt::format("tp {} does not divide the {} K slices of every sum", mesh.tp, kSlices));
  require(cut.heads * mesh.tp == c.heads,
          fmt::format("{} query heads cannot be cut evenly over tp {}", c.heads, mesh.tp));
  require(c.heads * c.head_dim % kSlices == 0,
          fmt::format("{} heads of {} elements cannot be cut into {} equal K slices", c.heads, c.head_dim, kSlices));
  for (const int ffn : {ffn_of_layers(c), ffn_of_experts(c), c.shared_ffn}) {
    require(ffn % kSlices == 0, fmt::format("{} inner units cannot be cut into {} equal K slices", ffn, kSlices));
  }
}

}  // namespace

std::vector<int> ShardPlan::cut_layers(const ModelConfig& config, int pp) {
  const Weights w = weigh(config);
  double low = 0, high = w.all();
  std::vector<int> best = try_cut(high, w, pp);
  ensure(!best.empty(), "no cut of layers into stages");
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    auto cut = try_cut(middle, w, pp);
    (cut.empty() ? low : high) = middle;
    if (!cut.empty()) best = std::move(cut);
  }
  return best;
}

std::vector<PartSlice> TensorPart::slices(int t) const {
  const std::size_t first = split ? (t * slices_per_rank + slice) * per_rank : 0;
  const std::size_t end = std::min(first + per_rank, total * repeat);
  std::vector<PartSlice> slices;
  if (repeat == 1) {
    if (first < end) slices.push_back({.begin = first, .end = end, .row = 0});
    return slices;
  }
  for (std::size_t row = first; row < end; row += unit) {
    const std::size_t stored = row / unit / repeat * unit;
    slices.push_back({.begin = stored, .end = stored + unit, .row = row - first});
  }
  return slices;
}

double ShardPlan::share_of_rows(const ShardTensor& tensor) const {
  const bool of_expert = tensor.name.find(".experts.") != std::string::npos;
  return of_expert ? static_cast<double>(config.experts_per_token) / config.experts : 1;
}

int ShardPlan::real_vocab(int t) const { return std::clamp(config.vocab - first_token(t), 0, vocab); }

ShardPlan ShardPlan::make(const ModelConfig& config, MeshShape mesh, int stage, bool reproducible,
                          std::span<const int> stage_layers) {
  check_fits(config, mesh);
  const std::vector<int> firsts =
      stage_layers.empty() ? cut_layers(config, mesh.pp) : first_layers(config, mesh.pp, stage_layers);
  const HeadCut cut = cut_heads(config, mesh.tp);
  if (reproducible) check_reproducible(config, mesh, cut);
  const int k_slices = reproducible ? kKSlices / mesh.tp : 1;
  ShardPlan plan{.config = config,
                 .mesh = mesh,
                 .stage = stage,
                 .first_layer = firsts[stage],
                 .layers = firsts[stage + 1] - firsts[stage],
                 .heads = cut.heads,
                 .kv_heads = cut.kv_heads,
                 .kv_copies = cut.kv_copies,
                 .ffn = ceil_div(ffn_of_layers(config), mesh.tp),
                 .expert_ffn = ceil_div(ffn_of_experts(config), mesh.tp),
                 .shared_ffn = ceil_div(config.shared_ffn, mesh.tp),
                 .vocab = ceil_div(config.vocab, mesh.tp * k_slices) * k_slices,
                 .k_slices = k_slices,
                 .tensors = {}};
  PlanBuilder(plan).build();
  return plan;
}

}  // namespace computron

// The order in which a forward pass visits pages, with operations that compute nothing.

#include "computron/model/transformer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>

#include "tests/support/plain_format.h"

namespace computron {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Stands for "the page of this use has come".
class UseEvent : public Event {
 public:
  explicit UseEvent(PageUse use) : use(use) {}
  bool query() const override { return true; }
  const PageUse use;
};

// How a pass finds its pages (PageSource).
enum class PageState { kGroupByGroup, kWholeTensors, kAtRest };
constexpr PageState kPageStates[] = {PageState::kGroupByGroup, PageState::kWholeTensors, PageState::kAtRest};

// Pages are asked for in the order of their uses, none after its release, and every one is released as early as
// the layout says where that is to hold: group by group, and in one round (no more than Workspace::kLogitRows logit
// rows).
class OrderedPages : public PageSource {
 public:
  OrderedPages(const ShardLayout& layout, PageState state, bool one_round)
      : layout_(layout), state_(state), one_round_(one_round), bytes_(layout.page_bytes) {
    for (PageUse use = 0; use < layout.uses.size(); ++use) events_.emplace_back(use);
    asked_.assign(layout.uses.size(), false);
  }

  ResidentPage acquire(PageUse use) override {
    EXPECT_GT(static_cast<std::int64_t>(use), over_) << "a page is asked for after its release";
    // An operation may ask for its weight and then for its bias, but never skips a use.
    EXPECT_TRUE(use == 0 || asked_[use - 1]) << "use " << use << " comes before the one before it";
    if (group_by_group() && one_round_ && !asked_[use]) {
      EXPECT_EQ(over_, layout_.over_before[use]) << "before use " << use;
      EXPECT_LE(use - over_, ShardLayout::kGroupPages) << "an operation binds too many pages";
    }
    asked_[use] = true;
    return {bytes_.data(), &events_[use]};
  }

  void release_through(PageUse use) override {
    EXPECT_GE(static_cast<std::int64_t>(use), over_);
    EXPECT_TRUE(asked_[use]) << "use " << use << " ends before it begins";
    over_ = use;
  }

  bool group_by_group() const override { return state_ == PageState::kGroupByGroup; }
  bool at_rest() const override { return state_ == PageState::kAtRest; }

  void expect_live(const Event* ready) const {
    EXPECT_GT(static_cast<std::int64_t>(static_cast<const UseEvent*>(ready)->use), over_) << "an operation comes late";
  }
  void expect_all_over() const {
    EXPECT_THAT(asked_, Each(true));
    EXPECT_EQ(over_, static_cast<std::int64_t>(asked_.size()) - 1);
  }

 private:
  const ShardLayout& layout_;
  const PageState state_;
  const bool one_round_;
  std::vector<std::byte> bytes_;
  std::vector<UseEvent> events_;
  std::vector<bool> asked_;
  std::int64_t over_ = -1;
};

// Checks that what an operation reads is still there, and that the parts it is given of a tensor make a whole.
class CheckingOps : public Ops {
 public:
  explicit CheckingOps(const OrderedPages& pages) : pages_(pages) {}
  const WeightFormat& weight_format() const override { return format_; }
  WeightType weight_type(const WeightType& checkpoint) const override { return checkpoint; }
  int padded_rows(int rows) const override { return rows; }

  void embed(Stream&, std::span<const TokenId>, TokenId, const Weight& weight, Activations) override {
    expect_next_part(weight.panels, weight.out);
  }
  void add_rows(Stream&, std::span<const std::int32_t>, int, const Table& table, Activations) override {
    expect_next_part(table.panels, table.rows);
  }
  void copy_vector(Stream&, Vector in, Activations out) override {
    EXPECT_NE(in.data, nullptr);
    expect_vector(in, out.columns);
    copies_[out.data] = out.bytes();
  }
  void zero(Stream&, Activations) override {}
  void activate_gate(Stream&, const Gate&, Activations in, Activations out) override {
    expect_all_parts();
    EXPECT_EQ(in.columns, 2 * out.columns);
    EXPECT_EQ(in.rows, out.rows);
  }
  void add_gated_rows(Stream&, Activations x, Activations gates, Activations inout) override {
    expect_all_parts();
    EXPECT_EQ(x.columns, inout.columns);
    EXPECT_EQ(x.rows, inout.rows);
    EXPECT_EQ(gates.rows, x.rows);
    EXPECT_EQ(gates.columns, 1);
  }
  void rotary_angles(Stream&, std::span<const std::int32_t> positions, std::span<const float> frequencies,
                     Activations out) override {
    EXPECT_EQ(static_cast<std::size_t>(out.rows), positions.size());
    EXPECT_EQ(static_cast<std::size_t>(out.columns), 2 * frequencies.size());
  }
  void apply_rope(Stream&, const AttentionShape& shape, Activations angles, Activations qkv) override {
    EXPECT_LE(angles.columns, shape.head_dim);
    EXPECT_EQ(angles.rows, qkv.rows);
  }
  void norm_heads(Stream&, NormKind, const AttentionShape& shape, Vector weight, float, Activations qkv) override {
    expect_all_parts();
    expect_vector(weight, 2 * shape.head_dim);
    EXPECT_EQ(qkv.columns, (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  }
  void square_heads(Stream&, const AttentionShape&, Activations qkv, std::span<const std::int32_t> heads,
                    Activations out) override {
    expect_all_parts();
    EXPECT_EQ(static_cast<std::size_t>(out.columns), heads.size());
    EXPECT_EQ(out.rows, qkv.rows);
  }
  void norm_width(Stream&, NormKind, const AttentionShape& shape, Activations squares, int query_heads, Vector weight,
                  float, Activations qkv) override {
    expect_vector(weight, (shape.heads + shape.kv_heads) * shape.head_dim);
    EXPECT_LT(query_heads, squares.columns);
    EXPECT_EQ(squares.rows, qkv.rows);
  }
  void scale(Stream&, float, Activations inout) override { EXPECT_EQ(inout.dtype, DType::kF32); }
  void soft_cap(Stream&, float, Activations inout) override { EXPECT_EQ(inout.dtype, DType::kF32); }
  void norm(Stream&, NormKind, Activations in, Vector weight, Vector bias, float, Activations) override {
    expect_vector(weight, in.columns);
    expect_vector(bias, in.columns);
    operations.emplace_back("norm");
  }
  void add_residual_and_norm(Stream&, Activations x, Vector bias, Activations inout, NormKind, Vector weight,
                             Vector norm_bias, float, Activations) override {
    EXPECT_TRUE(pages_.at_rest()) << "an operation reads vectors that may lie in several pages";
    for (const Vector& vector : {bias, weight, norm_bias}) expect_vector(vector, inout.columns);
    EXPECT_EQ(x.columns, inout.columns);
    operations.emplace_back("add and norm");
  }
  void gemm(Stream&, Activations x, const Weight& weight, Vector bias, Activation, Activations out) override {
    expect_next_part(weight.panels, weight.out);
    if (bias.data != nullptr) {
      if (!pages_.at_rest()) expect_copied(bias);
      EXPECT_EQ(bias.length, weight.out);
    }
    EXPECT_EQ(x.columns, weight.in);
    EXPECT_EQ(out.columns, weight.out);
    EXPECT_EQ(x.dtype, weight.type.values);
    EXPECT_EQ(x.rows, out.rows);
    const bool apart = out.data + out.bytes() <= x.data || x.data + x.bytes() <= out.data;
    EXPECT_TRUE(apart) << "a product is written over what is multiplied";
  }
  void add_residual(Stream&, Activations x, Vector bias, Activations inout) override {
    expect_vector(bias, inout.columns);
    EXPECT_EQ(x.columns, inout.columns);
    operations.emplace_back("add");
  }
  void convert(Stream&, Activations, Activations) override {}
  void gather_rows(Stream&, Activations in, std::span<const std::int32_t> rows, Activations) override {
    for (const std::int32_t row : rows) EXPECT_LT(row, in.rows);
  }
  void scatter_add(Stream&, Activations in, std::span<const std::int32_t> rows, std::span<const float> weights,
                   Activations inout) override {
    expect_all_parts();
    EXPECT_EQ(static_cast<std::size_t>(in.rows), rows.size());
    EXPECT_EQ(weights.size(), rows.size());
    EXPECT_EQ(in.columns, inout.columns);
  }
  void attention(Stream&, const AttentionShape& shape, Activations qkv, std::span<const SequenceRows>,
                 const KvCacheView&, int layer, Vector sinks, Activations out) override {
    expect_all_parts();
    expect_vector(sinks, shape.heads);
    EXPECT_EQ(qkv.columns, (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
    EXPECT_EQ(out.columns, shape.heads * shape.head_dim);
    layers.push_back(layer);
    operations.emplace_back("attention");
  }
  void top_k_log_sum_exp(Stream&, Activations logits, const LogitColumns& columns, std::span<const std::int32_t> top,
                         std::span<const TokenId> targets, TopLogits* out) override {
    expect_all_parts();
    EXPECT_EQ(top.size(), targets.size());
    EXPECT_EQ(static_cast<int>(top.size()), logits.rows);
    for (int i = 0; i < logits.rows * columns.slices; ++i) ++out[i].count;
  }
  void sample(Stream&, Activations, const LogitColumns&, std::span<const RowSampling>, SliceSample*) override {}
  void copy_columns(Stream&, Activations in, int first, Activations out) override {
    EXPECT_LE(first + out.columns, in.columns);
    EXPECT_EQ(in.rows, out.rows);
  }
  void copy_from_host(Stream&, const void* in, Activations) override { EXPECT_NE(in, nullptr); }
  void copy_to_host(Stream&, Activations in, void* out) override {
    expect_all_parts();
    std::fill_n(static_cast<float*>(out), static_cast<std::size_t>(in.rows) * in.columns, 1.0f);
  }
  void expect_all_parts() const { EXPECT_EQ(next_row_, 0) << "a tensor is not whole"; }

  std::vector<int> layers;              // as attention() met them
  std::vector<std::string> operations;  // additions, norms and attention

 private:
  template <class Panel>
  void expect_next_part(std::span<const Panel> panels, int rows) {
    EXPECT_FALSE(panels.empty());
    for (const Panel& panel : panels) {
      EXPECT_EQ(panel.row_begin, next_row_);
      next_row_ += panel.rows;
      pages_.expect_live(panel.ready);
    }
    EXPECT_LE(next_row_, rows);
    if (next_row_ == rows) next_row_ = 0;
  }
  // That the vector lies within one of the copies.
  void expect_copied(const Vector& vector) const {
    const auto* begin = reinterpret_cast<const std::byte*>(vector.data);
    const auto behind = copies_.upper_bound(begin);
    ASSERT_NE(behind, copies_.begin()) << "a bias that was not copied";
    const auto& [copy, bytes] = *std::prev(behind);
    EXPECT_LE(begin + static_cast<std::size_t>(vector.length) * sizeof(float), copy + bytes);
  }
  void expect_vector(const Vector& vector, int length) const {
    if (vector.data == nullptr) return;
    EXPECT_EQ(vector.length, length);
    pages_.expect_live(vector.ready);
  }

  const OrderedPages& pages_;
  PlainFormat format_;
  int next_row_ = 0;                                // of the tensor whose parts come
  std::map<const std::byte*, std::size_t> copies_;  // what copy_vector() wrote: bytes, by where they lie
};

ModelConfig base_config() {
  ModelConfig c;
  c.architecture = "test";
  c.layers = 3;
  c.heads = c.kv_heads = 3;
  c.head_dim = 8;
  c.hidden = 24;
  c.ffn = 40;  // blocks so small that every weight lies in several pages
  c.vocab = 700;
  c.max_positions = 30;
  return c;
}

// Every kind of layer in some combination.
std::map<std::string, ModelConfig> make_configs() {
  std::map<std::string, ModelConfig> configs;
  for (const bool post : {false, true}) {
    for (const bool tied_head : {false, true}) {
      for (const bool biases : {false, true}) {
        ModelConfig& c = configs[fmt::format("post {}, tied {}, biases {}", post, tied_head, biases)] = base_config();
        c.norm_position = post ? NormPosition::kPost : NormPosition::kPre;
        c.tied_head = tied_head;
        c.norm_bias = c.attention_bias = c.attention_output_bias = c.mlp_bias = biases;
      }
    }
  }
  ModelConfig& projected = configs["projected embeddings"] = base_config();
  projected.embedding_width = 100;
  projected.final_norm = false;
  ModelConfig& llama = configs["rotary and gated"] = base_config();
  llama.positions = PositionKind::kRotary;
  llama.gated_mlp = true;
  llama.kv_heads = 1;
  llama.norm_bias = llama.attention_bias = llama.attention_output_bias = llama.mlp_bias = false;
  ModelConfig& mixtral = configs["experts"] = llama;
  mixtral.experts = 5;
  mixtral.experts_per_token = 2;
  ModelConfig& with_biases = configs["experts with biases, sinks"] = mixtral;
  with_biases.mlp_bias = with_biases.router_bias = with_biases.attention_sinks = true;
  with_biases.attention_bias = with_biases.attention_output_bias = true;
  with_biases.gate_limit = 7;
  ModelConfig& with_shared = configs["experts in some layers, one beside them"] = mixtral;
  with_shared.expert_layers = {1, 0, 1};
  with_shared.expert_ffn = 24;
  with_shared.shared_ffn = 48;
  with_shared.router_softmax = RouterSoftmax::kAll;
  for (const QueryKeyNorm norm : {QueryKeyNorm::kHeads, QueryKeyNorm::kWidth}) {
    ModelConfig& c = configs[fmt::format("norms of queries and keys {}", static_cast<int>(norm))] = llama;
    c.norm = NormKind::kRmsNorm;
    c.query_key_norm = norm;
    c.norm_position = NormPosition::kOutput;
    c.rotary_dims = 4;
  }
  ModelConfig& gemma = configs["norms around, windows, caps, scales"] = llama;
  gemma.norm = NormKind::kRmsNormPlusOne;
  gemma.norm_position = NormPosition::kSandwich;
  gemma.sliding_window = 5;
  gemma.window_layers = {1, 0, 1};
  gemma.rope_window_theta = 100;
  gemma.attention_soft_cap = gemma.logits_soft_cap = 3;
  gemma.embedding_scale = gemma.residual_scale = gemma.logits_scale = 0.5f;
  for (const bool biases : {false, true}) {
    ModelConfig& c = configs[fmt::format("parallel residual, biases {}", biases)] = base_config();
    c.parallel_residual = true;
    c.norm_bias = c.attention_bias = c.attention_output_bias = c.mlp_bias = biases;
  }
  ModelConfig& bert = configs["encoder of text"] = base_config();
  bert.causal = bert.tied_head = bert.final_norm = false;
  bert.norm_position = NormPosition::kPost;
  bert.token_types = 2;
  bert.embedding_norm = bert.pooler = true;
  bert.classes = 3;
  ModelConfig& embedder = configs["embedder"] = base_config();
  embedder.embeds = true;
  embedder.tied_head = false;
  embedder.pooling = Pooling::kMean;
  embedder.dense = {{embedder.hidden, 2 * embedder.hidden, true, Activation::kTanh},
                    {2 * embedder.hidden, 24, false, Activation::kNone}};
  ModelConfig& classifier = configs["classifier with a layer of its own"] = base_config();
  classifier.causal = classifier.tied_head = classifier.first_attention_norm = false;
  classifier.pooling = Pooling::kLast;
  classifier.classes = 3;
  classifier.class_dense = classifier.class_norm = true;
  ModelConfig& many = configs["more classes than columns"] = classifier;
  many.classes = 300;
  ModelConfig& vit = configs["encoder of images"] = base_config();
  vit.causal = vit.tied_head = false;
  vit.vocab = 0;
  vit.image_size = 20;
  vit.patch_size = 4;
  vit.channels = 3;
  vit.max_positions = 26;
  vit.classes = 70;
  return configs;
}

Batch make_batch(int rows, const ModelConfig& config) {
  const int patch_values = config.patch_values();
  Batch batch;
  batch.patches.resize(static_cast<std::size_t>(rows) * patch_values);
  batch.token_type_ids.resize(static_cast<std::size_t>(rows));
  batch.sequences.push_back({.row = 0, .rows = rows, .start = 0, .blocks = {}});
  for (int i = 0; i < rows; ++i) {
    batch.tokens.push_back(i);
    batch.positions.push_back(i);
    if (i % 2 == 0) continue;
    batch.output_rows.push_back(i);
    batch.top.push_back(1);
    batch.targets.push_back(-1);
  }
  if (config.pooling == Pooling::kMean) {
    batch.output_rows.clear();
    if (rows > 1) batch.add_pooled(config.pooling, 0);
    batch.sum_sequences();
  }
  return batch;
}

// Returns CheckingOps::operations.
std::vector<std::string> expect_sound_pass(const ModelConfig& config, MeshShape mesh, int stage,
                                           std::size_t spare_bytes, int rows, PageState state,
                                           bool reproducible = false) {
  SCOPED_TRACE(fmt::format("pp {}, stage {}, pages with {} bytes to spare, {} rows, state {}", mesh.pp, stage,
                           spare_bytes, rows, static_cast<int>(state)));
  const PlainFormat format;
  const ShardPlan plan = ShardPlan::make(config, mesh, stage, reproducible);
  const std::size_t page = ShardLayout::largest_block_bytes(plan, format, DType::kBF16) + spare_bytes;
  const ShardLayout layout = ShardLayout::make(plan, format, DType::kBF16, page);
  const Batch batch = make_batch(rows, config);
  const auto device = make_cpu_device({.threads = 1});
  Progress progress(IdlePolicy::parse("yield"));
  const auto stream = device->make_compute_stream(progress);
  const auto all_reduce = make_local_all_reduce();
  OrderedPages pages(layout, state, /*one_round=*/batch.output_count() <= Workspace::kLogitRows);
  CheckingOps ops(pages);
  Workspace work(*device, Workspace::Sizes::of(plan, ops, batch.rows()));
  const KvCacheView cache{};
  Pass pass{*stream, ops, *all_reduce, pages, work, batch, cache};
  std::vector<TopLogits> logits(batch.output_count() * plan.k_slices);
  std::vector<float> pooled_embeddings(batch.output_rows.size() * config.embedding_size()),
      scores(batch.output_rows.size() * config.classes);

  Transformer(layout, 0).forward(pass, work.hidden(batch.rows(), config.hidden),
                                 {logits.data(), nullptr, pooled_embeddings.data(), scores.data()});

  pages.expect_all_over();
  ops.expect_all_parts();
  std::vector<int> layers(plan.layers);
  std::iota(layers.begin(), layers.end(), 0);
  EXPECT_EQ(ops.layers, layers);
  const bool last = plan.has_head();
  for (const TopLogits& top_logits : logits) EXPECT_EQ(top_logits.count, last && !config.pools()) << "once, at the end";
  EXPECT_THAT(pooled_embeddings, Each(last && config.pools() ? 1.0f : 0.0f));
  EXPECT_THAT(scores, Each(last ? 1.0f : 0.0f));
  return ops.operations;
}

TEST(Transformer, VisitsPagesInOrderAndGivesThemUpInTime) {
  for (const auto& [name, config] : make_configs()) {
    SCOPED_TRACE(name);
    for (const std::size_t spare_bytes : {0, 1000, 1 << 20}) {
      for (const int rows : {1, 20, 2 * Workspace::kLogitRows + 10}) {  // no logit row, one round of them, two
        for (const PageState state : kPageStates) {
          expect_sound_pass(config, {.tp = 1, .pp = 1}, 0, spare_bytes, rows, state);
          for (int s = 0; s < 3; ++s) expect_sound_pass(config, {.tp = 1, .pp = 3}, s, spare_bytes, rows, state);
        }
      }
    }
  }
}

// Row-parallel weights in K slices are tensors of their own.
TEST(Transformer, VisitsTheKSlicesOfReproducibleSumsInOrder) {
  for (const char* name : {"post false, tied true, biases true", "experts", "encoder of text"}) {
    SCOPED_TRACE(name);
    ModelConfig config = make_configs().at(name);
    config.heads = 8;
    config.kv_heads = 4;
    for (const int tp : {1, 2, 8}) {
      for (const PageState state : kPageStates) {
        expect_sound_pass(config, {.tp = tp, .pp = 1}, 0, 1000, 20, state, /*reproducible=*/true);
      }
    }
  }
}

// What a branch gives is added by the norm that reads the sum, in the same block or behind it; alone where none does.
TEST(Transformer, AddsAndNormalisesInOneOperationWherePagesAreAtRest) {
  const auto expect_alone = [configs = make_configs()](const char* name, int pp, int stage, int additions) {
    SCOPED_TRACE(name);
    const auto operations = [&](PageState state) {
      return expect_sound_pass(configs.at(name), {.tp = 1, .pp = pp}, stage, 1000, 20, state);
    };
    std::vector<std::string> apart;
    for (const std::string& operation : operations(PageState::kAtRest)) {
      const bool both = operation == "add and norm";
      if (both) apart.emplace_back("add");
      apart.push_back(both ? "norm" : operation);
      if (operation == "add") --additions;
    }
    EXPECT_EQ(additions, 0);
    EXPECT_EQ(apart, operations(PageState::kWholeTensors));
  };
  expect_alone("post false, tied true, biases true", 1, 0, 0);
  for (int stage = 0; stage < 3; ++stage) {
    expect_alone("post false, tied true, biases true", 3, stage, stage < 2 ? 1 : 0);  // the next stage gets it whole
  }
  expect_alone("projected embeddings", 1, 0, 1);  // no final norm
  expect_alone("experts with biases, sinks", 1, 0, 0);
  expect_alone("norms around, windows, caps, scales", 1, 0, 0);
  expect_alone("parallel residual, biases true", 1, 0, 3);  // what attention gives
  expect_alone("post true, tied true, biases true", 1, 0, 0);
  expect_alone("norms of queries and keys 1", 1, 0, 5);  // norms of what a branch gives alone, and the final one
}

// Rows go to the experts with the largest logits; their weights are softmax's, made to sum to one.
TEST(Experts, ChooseTheBestAndShareOut) {
  const std::vector<float> logits = {0, 2, 1, -1,  //
                                     3, 3, 3, 0};
  const auto choices = Experts::choose(logits, {.experts = 4, .per_token = 2});
  EXPECT_THAT(choices[0].rows, ElementsAre(1));
  EXPECT_THAT(choices[1].rows, ElementsAre(0, 1)) << "of equals the first";
  EXPECT_THAT(choices[2].rows, ElementsAre(0));
  EXPECT_THAT(choices[3].rows, IsEmpty());
  EXPECT_FLOAT_EQ(choices[1].weights[0], std::exp(2.0f) / (std::exp(2.0f) + std::exp(1.0f)));
  EXPECT_FLOAT_EQ(choices[2].weights[0], std::exp(1.0f) / (std::exp(2.0f) + std::exp(1.0f)));
  EXPECT_FLOAT_EQ(choices[0].weights[0], 0.5f);
}

TEST(Experts, WeightsOfAllExpertsAreNotMadeToSumToOne) {
  const std::vector<float> logits = {0, 2, 1, -1};
  const auto choices = Experts::choose(logits, {.experts = 4, .per_token = 2, .softmax = RouterSoftmax::kAll});
  const float sum = std::exp(0.0f) + std::exp(2.0f) + std::exp(1.0f) + std::exp(-1.0f);
  EXPECT_FLOAT_EQ(choices[1].weights[0], std::exp(2.0f) / sum);
  EXPECT_FLOAT_EQ(choices[2].weights[0], std::exp(1.0f) / sum);
  EXPECT_THAT(choices[0].rows, IsEmpty());
}

std::vector<float> plain_frequencies(ModelConfig c) {
  c.rope_scaling = RopeScaling::kNone;
  return RotaryEmbedding::frequencies(c);
}

// Pairs that turn often stay, those that turn seldom are slowed down by the factor, between them it goes in steps.
TEST(RotaryEmbedding, FrequenciesOfYarn) {
  ModelConfig c = base_config();
  c.head_dim = 128;
  c.positions = PositionKind::kRotary;
  c.rope_scaling = RopeScaling::kYarn;
  c.rope_factor = 4;
  c.rope_original_positions = 4096;
  const std::vector<float> plain = plain_frequencies(c), yarn = RotaryEmbedding::frequencies(c);
  // 128 ln(4096 / 64π) / (2 ln 10000) = 20.94, and 45.03 for one turn.
  for (int i = 0; i <= 20; ++i) EXPECT_EQ(yarn[i], plain[i]) << i;
  for (int i = 46; i < 64; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i] / 4) << i;
  EXPECT_FLOAT_EQ(yarn[33], plain[33] * (1 - 0.5f * 0.75f)) << "half of the way from 20 to 46";
  c.rope_whole_dims = false;
  EXPECT_NE(RotaryEmbedding::frequencies(c)[33], yarn[33]);
}

TEST(RotaryEmbedding, FrequenciesOfLongRope) {
  ModelConfig c = base_config();
  c.rotary_dims = 6;
  c.positions = PositionKind::kRotary;
  c.rope_scaling = RopeScaling::kLongRope;
  c.rope_short_factors = {1, 2, 4};
  c.rope_long_factors = {1, 3, 9};
  const std::vector<float> plain = plain_frequencies(c);
  EXPECT_THAT(RotaryEmbedding::frequencies(c), ElementsAre(plain[0], plain[1] / 2, plain[2] / 4));
  EXPECT_THAT(RotaryEmbedding::frequencies(c, RotaryKind::kLong), ElementsAre(plain[0], plain[1] / 3, plain[2] / 9));
}

// Without the scaling of the other layers.
TEST(RotaryEmbedding, FrequenciesOfLayersWithAWindow) {
  ModelConfig c = base_config();
  c.positions = PositionKind::kRotary;
  c.rope_scaling = RopeScaling::kLinear;
  c.rope_factor = 8;
  c.rope_window_theta = 100;
  const std::vector<float> window = RotaryEmbedding::frequencies(c, RotaryKind::kWindow);
  ASSERT_EQ(window.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(window[i], std::pow(100.0f, -static_cast<float>(i) / 4));
}

// Llama 3.1's numbers: wavelengths below 2048 stay, above 8192 are stretched by 8, between them blended.
TEST(RotaryEmbedding, FrequenciesOfLlama3) {
  ModelConfig c = base_config();
  c.head_dim = 128;
  c.positions = PositionKind::kRotary;
  c.rope_theta = 500000;
  const std::vector<float> plain = RotaryEmbedding::frequencies(c);
  c.rope_scaling = RopeScaling::kLlama3;
  c.rope_factor = 8;
  c.rope_original_positions = 8192;
  const std::vector<float> scaled = RotaryEmbedding::frequencies(c);
  ASSERT_EQ(scaled.size(), 64u);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_FLOAT_EQ(plain[i], static_cast<float>(std::pow(500000.0, -2.0 * static_cast<double>(i) / 128)));
    const double wavelength = 2 * std::numbers::pi / plain[i];
    const double s = (8192 / wavelength - 1) / 3;
    const double f = wavelength < 2048   ? plain[i]
                     : wavelength > 8192 ? plain[i] / 8
                                         : (1 - s) * plain[i] / 8 + s * plain[i];
    EXPECT_NEAR(scaled[i], f, 1e-6 * f) << i;
  }
}

}  // namespace
}  // namespace computron

#include "computron/model/shard_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string_view>

namespace computron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Odd numbers everywhere, so that nothing divides.
ModelConfig odd_config() {
  ModelConfig c;
  c.architecture = "opt";
  c.layers = 5;
  c.heads = c.kv_heads = 9;
  c.head_dim = 6;
  c.hidden = c.heads * c.head_dim;
  c.ffn = 37;
  c.vocab = 101;
  c.max_positions = 23;
  c.position_offset = 2;
  return c;
}

ModelConfig grouped_config() {
  ModelConfig c = odd_config();
  c.kv_heads = 9;
  c.heads = 27;
  c.positions = PositionKind::kRotary;
  c.norm = NormKind::kRmsNorm;
  c.norm_bias = c.attention_bias = c.attention_output_bias = c.mlp_bias = false;
  c.gated_mlp = true;
  c.tied_head = false;
  return c;
}

const ShardTensor& tensor(const ShardPlan& plan, std::string_view name) {
  for (const ShardTensor& t : plan.tensors) {
    if (t.name == name) return t;
  }
  throw std::out_of_range(std::string(name));
}

std::vector<std::string> names(const ShardPlan& plan) {
  std::vector<std::string> list;
  for (const ShardTensor& t : plan.tensors) list.push_back(t.name);
  return list;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// --- Cuts of layers into stages ---------------------------------------------------------------------------------

double elements_of(const TensorSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), 1.0, std::multiplies<>());
}

// Parameters of every stage, counted tensor by tensor.
std::vector<double> stage_parameters(const ModelConfig& c, const std::vector<int>& firsts) {
  const int pp = static_cast<int>(firsts.size()) - 1;
  std::vector<double> sums(pp, 0);
  for (const TensorSpec& spec : tensor_specs(c)) {
    int stage = spec.name.starts_with("embedding.") ? 0 : pp - 1;
    if (spec.name.starts_with("layers.")) {
      const int layer = std::stoi(spec.name.substr(7));
      stage = static_cast<int>(std::upper_bound(firsts.begin(), firsts.end(), layer) - firsts.begin()) - 1;
    }
    sums[stage] += elements_of(spec);
    if (c.tied_head && pp > 1 && spec.name == "embedding.tokens.weight") sums[pp - 1] += elements_of(spec);
  }
  return sums;
}

double largest_stage(const ModelConfig& c, const std::vector<int>& firsts) {
  const auto sums = stage_parameters(c, firsts);
  return *std::max_element(sums.begin(), sums.end());
}

// The smallest largest stage over all cuts into pp stages, by trying them all: the stages behind `first` layers take
// the rest, and the one at hand each number it may.
double best_largest_stage(const ModelConfig& c, const std::vector<double>& weights, int pp, int stage = 0,
                          int first = 0) {
  const double layer = weights[1];
  const double extra = (stage == 0 ? weights[0] : 0) + (stage == pp - 1 ? weights[2] : 0);
  if (stage == pp - 1) return extra + layer * (c.layers - first);
  double best = std::numeric_limits<double>::infinity();
  for (int layers = 1; first + layers <= c.layers - (pp - 1 - stage); ++layers) {
    const double behind = best_largest_stage(c, weights, pp, stage + 1, first + layers);
    best = std::min(best, std::max(extra + layer * layers, behind));
  }
  return best;
}

// Parameters of the embeddings, of a layer and of the head: three layers on three stages, less a layer each.
std::vector<double> embedding_layer_head(ModelConfig c) {
  c.layers = 3;
  std::vector<double> sums = stage_parameters(c, {0, 1, 2, 3});
  return {sums[0] - sums[1], sums[1], sums[2] - sums[1]};
}

void expect_best_cut(const ModelConfig& c, int pp) {
  SCOPED_TRACE(fmt::format("{} layers of {}, ffn {}, vocab {}, pp {}", c.layers, c.hidden, c.ffn, c.vocab, pp));
  const std::vector<int> firsts = ShardPlan::cut_layers(c, pp);
  ASSERT_EQ(firsts.size(), static_cast<std::size_t>(pp) + 1);
  EXPECT_EQ(firsts.front(), 0);
  EXPECT_EQ(firsts.back(), c.layers);
  for (int stage = 0; stage < pp; ++stage) EXPECT_LT(firsts[stage], firsts[stage + 1]) << "stage " << stage;
  if (pp == 1) return;
  EXPECT_EQ(largest_stage(c, firsts), best_largest_stage(c, embedding_layer_head(c), pp));
}

ModelConfig random_config(std::mt19937_64& random) {
  const auto from = [&random](int least, int most) { return least + static_cast<int>(random() % (most - least + 1)); };
  ModelConfig c = random() % 2 == 0 ? odd_config() : grouped_config();
  c.layers = from(1, 9);
  c.head_dim = from(1, 8);
  c.kv_heads = from(1, 9);
  c.heads = c.kv_heads * from(1, 3);
  c.hidden = from(1, 60);
  c.ffn = from(1, 150);
  c.vocab = from(1, random() % 2 == 0 ? 50 : 3000);
  c.max_positions = from(1, 100);
  c.tied_head = random() % 2 == 0;
  c.final_norm = random() % 2 == 0;
  c.norm_position = random() % 2 == 0 ? NormPosition::kPre : NormPosition::kPost;
  return c;
}

TEST(CutLayers, TheLargestStageIsAsSmallAsWholeLayersAllow) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    const ModelConfig c = random_config(random);
    expect_best_cut(c, 1 + static_cast<int>(random() % c.layers));
    if (HasFailure()) return;
  }
}

TEST(CutLayers, RealSizes) {
  for (const char* size : {"125m", "1.3b", "13b", "175b"}) {
    const ModelConfig c = ModelConfig::named("opt", size);
    for (const int pp : {1, 2, 3, 4}) expect_best_cut(c, pp);
  }
}

TEST(CutLayers, AHeavyHeadLeavesLayersToTheOthers) {
  ModelConfig c = odd_config();
  c.layers = 9;
  c.vocab = 100000;
  EXPECT_THAT(ShardPlan::cut_layers(c, 3), ElementsAre(0, 1, 8, 9));
}

TEST(CutLayers, AsManyStagesAsLayers) {
  EXPECT_THAT(ShardPlan::cut_layers(odd_config(), 5), ElementsAre(0, 1, 2, 3, 4, 5));
}

// Of eight layers the last two have experts, which hold most of the model: nearly a stage each.
TEST(CutLayers, LayersWithExpertsWeighWhatTheyHold) {
  ModelConfig c = grouped_config();
  c.layers = 8;
  c.experts = 40;
  c.experts_per_token = 2;
  c.expert_layers = {0, 0, 0, 0, 0, 0, 1, 1};
  EXPECT_THAT(ShardPlan::cut_layers(c, 2), ElementsAre(0, 7, 8));
}

TEST(CutLayers, StagesTakeTheirLayersAndNoOthers) {
  const ModelConfig c = odd_config();
  const std::vector<int> firsts = ShardPlan::cut_layers(c, 3);
  for (int stage = 0; stage < 3; ++stage) {
    const ShardPlan plan = ShardPlan::make(c, {.tp = 1, .pp = 3}, stage);
    EXPECT_EQ(plan.first_layer, firsts[stage]);
    EXPECT_EQ(plan.layers, firsts[stage + 1] - firsts[stage]);
    for (const std::string& name : names(plan)) {
      if (!name.starts_with("layers.")) continue;
      const int layer = std::stoi(name.substr(7));
      EXPECT_TRUE(layer >= firsts[stage] && layer < firsts[stage + 1]) << name << " on stage " << stage;
    }
  }
}

// --- What a shard holds -----------------------------------------------------------------------------------------

TEST(ShardPlan, PadsHeadsFfnAndVocabularyAlikeOnAllRanks) {
  struct Expected {
    int tp, heads, ffn, vocab;
  };
  for (const Expected& e : std::initializer_list<Expected>{{1, 9, 37, 101},
                                                           {2, 5, 19, 51},
                                                           {3, 3, 13, 34},
                                                           {4, 3, 10, 26},
                                                           {5, 2, 8, 21},
                                                           {6, 2, 7, 17},
                                                           {7, 2, 6, 15},
                                                           {8, 2, 5, 13}}) {
    const ShardPlan plan = ShardPlan::make(odd_config(), {.tp = e.tp, .pp = 1}, 0);
    EXPECT_EQ(plan.heads, e.heads) << "tp " << e.tp;
    EXPECT_EQ(plan.kv_heads, e.heads) << "tp " << e.tp;
    EXPECT_EQ(plan.ffn, e.ffn) << "tp " << e.tp;
    EXPECT_EQ(plan.vocab, e.vocab) << "tp " << e.tp;
  }
}

TEST(ShardPlan, QueryHeadsFollowTheirKeyValueHeads) {
  const ShardPlan plan = ShardPlan::make(grouped_config(), {.tp = 4, .pp = 1}, 0);
  EXPECT_EQ(plan.kv_heads, 3);
  EXPECT_EQ(plan.heads, 9);
  const ShardTensor& qkv = tensor(plan, "layers.0.attention.qkv.weight");
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(qkv.parts[0].slices(t).front().begin, 3 * qkv.parts[1].slices(t).front().begin) << "rank " << t;
  }
  EXPECT_THAT(qkv.parts[0].slices(3), IsEmpty());
}

// Every query head of a rank finds its own key/value head at the place where attention looks for it, and every query
// head is on one rank.
TEST(ShardPlan, CopiesOfKeyValueHeadsLieWhereTheirQueryHeadsLook) {
  for (const auto& [kv_heads, group] : std::vector<std::pair<int, int>>{{1, 4}, {2, 4}, {2, 3}, {3, 4}, {1, 6}}) {
    for (int tp = 1; tp <= std::min(8, kv_heads * group); ++tp) {
      ModelConfig c = grouped_config();
      c.kv_heads = kv_heads;
      c.heads = kv_heads * group;
      SCOPED_TRACE(fmt::format("{} of {} heads over tp {}", kv_heads, c.heads, tp));
      const ShardPlan plan = ShardPlan::make(c, {.tp = tp, .pp = 1}, 0);
      const ShardTensor& qkv = tensor(plan, "layers.0.attention.qkv.weight");
      const std::size_t dim = c.head_dim;
      int seen = 0;
      for (int t = 0; t < tp; ++t) {
        std::map<std::size_t, std::size_t> stored_of_kv;  // place on the rank → stored head
        for (const PartSlice& slice : qkv.parts[1].slices(t)) {
          for (std::size_t r = slice.begin; r < slice.end; r += dim) {
            stored_of_kv[(slice.row + r - slice.begin) / dim] = r / dim;
          }
        }
        for (const PartSlice& slice : qkv.parts[0].slices(t)) {
          EXPECT_EQ(slice.row, 0u);
          for (std::size_t r = slice.begin; r < slice.end; r += dim, ++seen) {
            const std::size_t place = (r - slice.begin) / dim;
            const std::size_t wanted = place / (plan.heads / plan.kv_heads);
            ASSERT_TRUE(stored_of_kv.contains(wanted)) << "rank " << t << ", query head " << r / dim;
            EXPECT_EQ(stored_of_kv[wanted], r / dim / group) << "rank " << t << ", query head " << r / dim;
          }
        }
      }
      EXPECT_EQ(seen, c.heads);
    }
  }
}

// Fewer key/value heads than ranks, and a cut between heads that would leave a rank idle.
TEST(ShardPlan, KeyValueHeadsAreCopiedWhereThatSparesARankTheMost) {
  struct Expected {
    int heads, kv_heads, tp, per_rank, kv_per_rank, copies;
  };
  for (const Expected& e : std::vector<Expected>{{32, 8, 4, 8, 2, 1},
                                                 {32, 8, 8, 4, 1, 1},
                                                 {32, 8, 16, 2, 1, 2},
                                                 {8, 2, 3, 4, 1, 1},
                                                 {6, 1, 3, 2, 1, 3},
                                                 {6, 1, 2, 3, 1, 2},
                                                 {12, 3, 2, 6, 3, 2}}) {
    SCOPED_TRACE(fmt::format("{} heads, {} kv heads, tp {}", e.heads, e.kv_heads, e.tp));
    ModelConfig c = grouped_config();
    c.heads = e.heads;
    c.kv_heads = e.kv_heads;
    const ShardPlan plan = ShardPlan::make(c, {.tp = e.tp, .pp = 1}, 0);
    EXPECT_EQ(plan.heads, e.per_rank);
    EXPECT_EQ(plan.kv_heads, e.kv_per_rank);
    EXPECT_EQ(plan.kv_copies, e.copies);
  }
}

TEST(ShardPlan, VocabularySlicesHoldEveryTokenOnce) {
  for (int tp = 1; tp <= 8; ++tp) {
    const ShardPlan plan = ShardPlan::make(odd_config(), {.tp = tp, .pp = 1}, 0);
    int tokens = 0;
    for (int t = 0; t < tp; ++t) {
      if (plan.real_vocab(t) > 0) {
        EXPECT_EQ(plan.first_token(t), tokens) << "rank " << t << " of " << tp;
      }
      EXPECT_LE(plan.real_vocab(t), plan.vocab);
      tokens += plan.real_vocab(t);
    }
    EXPECT_EQ(tokens, 101) << "tp " << tp;
  }
}

TEST(ShardPlan, AVocabularySmallerThanTheRanksLeavesSomeEmpty) {
  ModelConfig c = odd_config();
  c.vocab = 3;
  const ShardPlan plan = ShardPlan::make(c, {.tp = 5, .pp = 1}, 0);
  EXPECT_EQ(plan.vocab, 1);
  EXPECT_EQ(plan.real_vocab(2), 1);
  EXPECT_EQ(plan.real_vocab(3), 0);
  EXPECT_EQ(plan.real_vocab(4), 0);
}

// Every stored row is on some rank, as often as it is repeated, in order.
void expect_slices_cover(const TensorPart& part, int tp) {
  SCOPED_TRACE(fmt::format("{} over tp {}", part.source, tp));
  if (!part.split) {
    EXPECT_EQ(part.per_rank, part.total);
  }
  std::size_t covered = 0;  // rows of the repeated tensor
  for (int t = 0; t < tp; ++t) {
    if (!part.split) covered = 0;
    std::size_t end = 0;
    for (const PartSlice& slice : part.slices(t)) {
      EXPECT_EQ(slice.row, end) << "rank " << t;
      ASSERT_LT(slice.begin, slice.end) << "rank " << t;
      for (std::size_t row = slice.begin; row < slice.end; ++row, ++covered) {
        EXPECT_EQ(row, covered / part.unit / part.repeat * part.unit + covered % part.unit) << "rank " << t;
      }
      end = slice.row + slice.end - slice.begin;
    }
    EXPECT_LE(end, part.per_rank) << "rank " << t;
  }
  EXPECT_EQ(covered, part.total * part.repeat);
}

// A part's place in its shard tensor: stacked along the output dimension without gaps.
void expect_parts_fill(const ShardTensor& t, const std::map<std::string, TensorSpec>& specs) {
  SCOPED_TRACE(t.name);
  int row = 0;
  for (const TensorPart& part : t.parts) {
    const TensorSpec& spec = specs.at(part.source);
    const int other = spec.shape.size() > 1 ? static_cast<int>(spec.shape[1]) : 1;
    EXPECT_EQ(part.row, row);
    EXPECT_EQ(part.total, spec.shape[0]);
    EXPECT_EQ(part.transposed, spec.transposed);
    EXPECT_EQ(part.split, spec.split != Split::kNone);
    EXPECT_EQ(t.role, spec.role);
    EXPECT_EQ(t.columns, part.transposed ? static_cast<int>(part.per_rank) : other);
    row += part.transposed ? other : static_cast<int>(part.per_rank);
  }
  EXPECT_EQ(t.rows, row);
}

TEST(ShardPlan, EveryCanonicalRowIsInExactlyOneSlice) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const ModelConfig c = random_config(random);
    const MeshShape mesh{.tp = 1 + static_cast<int>(random() % c.heads),
                         .pp = 1 + static_cast<int>(random() % c.layers)};
    SCOPED_TRACE(fmt::format("model {}: tp {}, pp {}", i, mesh.tp, mesh.pp));
    std::map<std::string, TensorSpec> specs;
    std::map<std::string, int> missing;
    for (const TensorSpec& spec : tensor_specs(c)) specs[spec.name] = spec, missing[spec.name] = 1;
    if (c.tied_head) missing["embedding.tokens.weight"] = 2;
    for (int stage = 0; stage < mesh.pp; ++stage) {
      for (const ShardTensor& t : ShardPlan::make(c, mesh, stage).tensors) {
        expect_parts_fill(t, specs);
        for (const TensorPart& part : t.parts) {
          --missing[part.source];
          expect_slices_cover(part, mesh.tp);
        }
      }
    }
    for (const auto& [name, count] : missing) EXPECT_EQ(count, 0) << name;
    if (HasFailure()) return;
  }
}

TEST(ShardPlan, QueryKeyAndValueAreOneWeight) {
  const ShardPlan plan = ShardPlan::make(odd_config(), {.tp = 2, .pp = 1}, 0);
  const ShardTensor& weight = tensor(plan, "layers.3.attention.qkv.weight");
  ASSERT_EQ(weight.parts.size(), 3u);
  EXPECT_EQ(weight.rows, 3 * 5 * 6);
  EXPECT_EQ(weight.columns, 54);
  EXPECT_EQ(weight.parts[0].source, "layers.3.attention.query.weight");
  EXPECT_EQ(weight.parts[1].source, "layers.3.attention.key.weight");
  EXPECT_EQ(weight.parts[2].source, "layers.3.attention.value.weight");
  EXPECT_EQ(weight.parts[1].row, 30);
  EXPECT_EQ(weight.parts[2].row, 60);
  // Rank 1 of 2 has heads 5 to 8 of 9: four real ones and one of padding.
  EXPECT_EQ(weight.parts[2].slices(1).front().begin, 30u);
  EXPECT_EQ(weight.parts[2].slices(1).front().end, 54u);

  const ShardTensor& bias = tensor(plan, "layers.3.attention.qkv.bias");
  EXPECT_EQ(bias.rows, weight.rows);
  EXPECT_EQ(bias.columns, 1);
  EXPECT_EQ(bias.parts[2].row, 60);
}

TEST(ShardPlan, RowParallelWeightsLoseColumns) {
  const ShardPlan plan = ShardPlan::make(odd_config(), {.tp = 4, .pp = 1}, 0);
  const ShardTensor& down = tensor(plan, "layers.0.mlp.down.weight");
  ASSERT_EQ(down.parts.size(), 1u);
  EXPECT_TRUE(down.parts[0].transposed);
  EXPECT_EQ(down.rows, 54);
  EXPECT_EQ(down.columns, 10);
  EXPECT_EQ(down.parts[0].slices(3).front().begin, 30u);
  EXPECT_EQ(down.parts[0].slices(3).front().end, 37u);
  const ShardTensor& output = tensor(plan, "layers.0.attention.output.weight");
  EXPECT_TRUE(output.parts[0].transposed);
  EXPECT_EQ(output.columns, 3 * 6);
  EXPECT_FALSE(tensor(plan, "layers.0.mlp.down.bias").parts[0].split) << "the bias is added once, by all";
}

TEST(ShardPlan, TensorsAreInExecutionOrder) {
  ModelConfig c = odd_config();
  c.layers = 1;
  EXPECT_THAT(names(ShardPlan::make(c, {}, 0)),
              ElementsAre("embedding.tokens.weight", "embedding.positions.weight", "layers.0.attention_norm.weight",
                          "layers.0.attention_norm.bias", "layers.0.attention.qkv.bias",
                          "layers.0.attention.qkv.weight", "layers.0.attention.output.weight",
                          "layers.0.attention.output.bias", "layers.0.mlp_norm.weight", "layers.0.mlp_norm.bias",
                          "layers.0.mlp.up.bias", "layers.0.mlp.up.weight", "layers.0.mlp.down.weight",
                          "layers.0.mlp.down.bias", "final_norm.weight", "final_norm.bias", "head.weight"));
}

TEST(ShardPlan, PostNormFollowsWhatItNormalises) {
  ModelConfig c = grouped_config();
  c.layers = 1;
  c.norm_position = NormPosition::kPost;
  c.final_norm = false;
  EXPECT_THAT(
      names(ShardPlan::make(c, {}, 0)),
      ElementsAre("embedding.tokens.weight", "layers.0.attention.qkv.weight", "layers.0.attention.output.weight",
                  "layers.0.attention_norm.weight", "layers.0.mlp.gate_up.weight", "layers.0.mlp.down.weight",
                  "layers.0.mlp_norm.weight", "head.weight"));
}

TEST(ShardPlan, NormsLieWhereTheyAreReached) {
  const auto norms_of = [](ModelConfig c) {
    c.layers = 1;
    std::string list;
    for (const std::string& name : names(ShardPlan::make(c, {.tp = 1, .pp = 1}, 0))) {
      const std::size_t dot = name.find('.', std::string_view("layers.").size());
      if (name.starts_with("layers.")) list += name.substr(dot + 1) + " ";
    }
    return list;
  };
  ModelConfig c = grouped_config();
  c.norm_position = NormPosition::kSandwich;
  c.query_key_norm = QueryKeyNorm::kHeads;
  EXPECT_EQ(norms_of(c),
            "attention_norm.weight attention.qkv.weight attention.query_key_norm.weight attention.output.weight "
            "attention_output_norm.weight mlp_norm.weight mlp.gate_up.weight mlp.down.weight mlp_output_norm.weight ");
  c.norm_position = NormPosition::kOutput;
  c.query_key_norm = QueryKeyNorm::kNone;
  EXPECT_EQ(norms_of(c),
            "attention.qkv.weight attention.output.weight attention_output_norm.weight mlp.gate_up.weight "
            "mlp.down.weight mlp_output_norm.weight ");
  c = odd_config();
  c.parallel_residual = true;
  EXPECT_EQ(norms_of(c),
            "attention_norm.weight attention_norm.bias attention.qkv.bias attention.qkv.weight attention.output.weight "
            "mlp_norm.weight mlp_norm.bias attention.output.bias mlp.up.bias mlp.up.weight mlp.down.weight "
            "mlp.down.bias ")
      << "of a parallel residual, the norm of the MLP comes before anything is added";
}

// Of each head the same weights; of the whole width those of the rank's heads, copies of key heads included.
TEST(ShardPlan, WeightsOfQueriesAndKeysFollowTheirHeads) {
  ModelConfig c = grouped_config();
  c.query_key_norm = QueryKeyNorm::kHeads;
  const ShardPlan of_heads = ShardPlan::make(c, {.tp = 4, .pp = 1}, 0);
  EXPECT_EQ(tensor(of_heads, "layers.0.attention.query_key_norm.weight").rows, 2 * c.head_dim);
  c.query_key_norm = QueryKeyNorm::kWidth;
  c.kv_heads = 1;
  c.heads = 4;
  const ShardPlan plan = ShardPlan::make(c, {.tp = 2, .pp = 1}, 0);
  const ShardTensor& norm = tensor(plan, "layers.0.attention.query_key_norm.weight");
  EXPECT_EQ(norm.rows, (plan.heads + plan.kv_heads) * c.head_dim);
  for (int t = 0; t < 2; ++t) {
    EXPECT_EQ(norm.parts[0].slices(t).front().begin, static_cast<std::size_t>(2 * t * c.head_dim));
    EXPECT_EQ(norm.parts[1].slices(t).front().begin, 0u) << "a copy";
  }
}

// A vector of the biases of all experts, and sizes of their own of experts and of what is beside them.
TEST(ShardPlan, ExpertsOfSomeLayers) {
  ModelConfig c = grouped_config();
  c.experts = 3;
  c.experts_per_token = 2;
  c.expert_ffn = 11;
  c.expert_layers = {1, 0, 1, 1, 1};
  c.router_bias = c.mlp_bias = c.attention_sinks = true;
  const ShardPlan plan = ShardPlan::make(c, {.tp = 2, .pp = 1}, 0);
  EXPECT_EQ(plan.ffn, 19);
  EXPECT_EQ(plan.expert_ffn, 6);
  EXPECT_EQ(tensor(plan, "layers.0.attention.sinks").rows, plan.heads);
  EXPECT_EQ(tensor(plan, "layers.0.mlp.router.bias").rows, 3);
  const ShardTensor& up = tensor(plan, "layers.0.mlp.experts.gate_up.bias");
  EXPECT_EQ(up.rows, 3 * 2 * 6);
  ASSERT_EQ(up.parts.size(), 6u);
  EXPECT_EQ(up.parts[3].source, "layers.0.mlp.experts.1.up.bias");
  EXPECT_EQ(up.parts[3].row, 3 * 6);
  EXPECT_EQ(up.parts[3].slices(1).front().begin, 6u);
  EXPECT_EQ(tensor(plan, "layers.0.mlp.experts.down.bias").rows, 3 * c.hidden);
  EXPECT_EQ(tensor(plan, "layers.0.mlp.experts.2.gate_up.weight").rows, 2 * 6);
  EXPECT_EQ(tensor(plan, "layers.1.mlp.gate_up.weight").rows, 2 * 19);
  EXPECT_THROW(tensor(plan, "layers.1.mlp.router.weight"), std::out_of_range);

  c.mlp_bias = false;
  c.shared_ffn = 21;
  const ShardPlan with_shared = ShardPlan::make(c, {.tp = 2, .pp = 1}, 0);
  EXPECT_EQ(tensor(with_shared, "layers.0.mlp.shared.gate_up.weight").rows, 2 * 11);
  EXPECT_EQ(tensor(with_shared, "layers.0.mlp.shared_gate.weight").rows, 1);
  EXPECT_EQ(with_shared.share_of_rows(tensor(with_shared, "layers.0.mlp.shared.down.weight")), 1);
  EXPECT_DOUBLE_EQ(with_shared.share_of_rows(tensor(with_shared, "layers.0.mlp.experts.1.down.weight")), 2.0 / 3);

  c.expert_layers.clear();
  EXPECT_EQ(ShardPlan::make(c, {.tp = 2, .pp = 1}, 0).ffn, 0) << "no layer has the plain MLP";
}

TEST(ShardPlan, ATiedHeadUsesTheEmbeddingAgainWhereBothAreOnOneStage) {
  const ShardPlan alone = ShardPlan::make(odd_config(), {.tp = 2, .pp = 1}, 0);
  EXPECT_EQ(tensor(alone, "head.weight").same_as, 0);
  EXPECT_EQ(alone.tensors[0].name, "embedding.tokens.weight");

  const ShardPlan last = ShardPlan::make(odd_config(), {.tp = 2, .pp = 2}, 1);
  EXPECT_EQ(tensor(last, "head.weight").same_as, -1);
  EXPECT_EQ(tensor(last, "head.weight").parts[0].source, "embedding.tokens.weight");
  EXPECT_EQ(tensor(ShardPlan::make(grouped_config(), {}, 0), "head.weight").same_as, -1);
}

TEST(ShardPlan, OnlyTheOuterStagesEmbedAndHaveAHead) {
  for (int stage = 0; stage < 3; ++stage) {
    const ShardPlan plan = ShardPlan::make(odd_config(), {.tp = 1, .pp = 3}, stage);
    EXPECT_EQ(plan.embeds(), stage == 0);
    EXPECT_EQ(plan.has_head(), stage == 2);
    EXPECT_EQ(plan.tensors.front().name == "embedding.tokens.weight", stage == 0);
    EXPECT_EQ(plan.tensors.back().name == "head.weight", stage == 2);
  }
}

TEST(ShardPlan, RefusalsNameBothNumbers) {
  EXPECT_THAT(message_of([] { ShardPlan::make(odd_config(), {.tp = 1, .pp = 6}, 0); }),
              AllOf(HasSubstr("5 layers"), HasSubstr("6 stages")));
  EXPECT_THAT(message_of([] { ShardPlan::make(odd_config(), {.tp = 10, .pp = 1}, 0); }),
              AllOf(HasSubstr("9 query heads"), HasSubstr("tp 10")));
  ModelConfig uneven = odd_config();
  uneven.kv_heads = 4;
  EXPECT_THAT(message_of([&] { ShardPlan::make(uneven, {}, 0); }),
              AllOf(HasSubstr("9 query heads"), HasSubstr("4 key/value heads")));
  EXPECT_THAT(message_of([] { ShardPlan::make(odd_config(), {.tp = 9, .pp = 5}, 4); }), IsEmpty());
}

}  // namespace
}  // namespace computron

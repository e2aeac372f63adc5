// Models made by hand for the scheduler: pages without bytes, and a "network" that is a hash of the tokens so far.
//
// The row of logits behind a prefix depends on that prefix alone. So the completion a request deserves is known without
// any schedule, and must come out of every schedule.
#pragma once

#include <deque>
#include <set>

#include "computron/sched/scheduler.h"

namespace computron::test {

inline constexpr std::size_t kPageBytes = 1024;  // a frame holds 8 slots: 16 tokens of one layer each
inline constexpr int kSlotsPerFrame = 8;
inline constexpr std::size_t kAdapterSlotBytes = 256;
inline constexpr int kBlockTokens = KvGeometry::kBlockTokens;
inline constexpr TokenId kVocab = 50;
inline constexpr TokenId kPoison = kVocab - 1;  // one in four rows behind it is not finite; never generated

struct FakeModel {
  std::vector<int> pages;   // [stage]
  std::vector<int> layers;  // [stage]; decides how many cache blocks a frame holds
  std::vector<TokenId> eos_tokens = {};
  int span = 1;  // page uses that an operation binds together
  bool pinned = false;
  int priority = 0;
  double link_share = 1;  // of a page's bytes that cross the link
  // [stage][page] What the page holds, where models may have pages in common: those with equal numbers (and sizes,
  // which follow from a page's number modulo 5) are one.
  std::vector<std::vector<std::uint64_t>> contents = {};
  std::uint64_t family = 0;  // models with equal ones differ in their adapters alone; 0: of none
  int base = 0;              // pages of a stage that are not the adapter's, where it has a family
  bool in_slots = false;     // those that are the adapter's lie in slots
};

// One stage, one layer.
FakeModel small_model(int pages, std::vector<TokenId> eos_tokens = {});

// Members of one family, which share the first `base` pages of each stage; member m has adapters[m] more, of which each
// pair of members has equal ones as far as both go.
std::vector<FakeModel> small_family(std::uint64_t family, int base, const std::vector<int>& adapters, int stages = 1);

// Owns the layouts that shapes() point to.
class FakeModelList {
 public:
  explicit FakeModelList(std::vector<FakeModel> models);

  int stages() const { return static_cast<int>(models_.front().pages.size()); }
  std::size_t models() const { return models_.size(); }
  std::vector<ModelShape> shapes() const { return shapes_; }
  const ModelShape& shape(ModelId model) const { return shapes_[model]; }
  std::vector<std::string> names() const;  // "model-0", ...
  std::vector<const ShardLayout*> layouts(int stage) const;

  // Frames that the model needs on a stage for its pages and this many blocks of cache.
  int frames_needed(ModelId model, int stage, int blocks) const;
  // Frames of weights that a pass of the model needs beside what is pinned, and those of that: pages that models have
  // in common once.
  int weights_needed(ModelId model, int stage) const;
  // Slots that its adapter takes on a stage beside those of pinned ones, with theirs.
  int slots_needed(ModelId model, int stage) const;
  // Whether a pass of the model with this much cache, a span of pages at a time, fits every stage's pool beside what is
  // pinned.
  bool fits(ModelId model, int blocks, int frames) const;

 private:
  std::set<PageRef> pinned_pages(int stage, FrameKind kind) const;
  std::vector<FakeModel> models_;
  std::deque<ShardLayout> layouts_;
  std::vector<ModelShape> shapes_;
};

// Cache blocks that a request may come to fill.
int blocks_of(const Request& request);

// Hash of a sequence of tokens; of the empty one: 0.
std::uint64_t extend_prefix(std::uint64_t prefix, TokenId token);
// What the last stage reports for the row behind a prefix. `poisoned`: the prefix holds kPoison.
SampledRow fake_row(std::uint64_t prefix, bool poisoned, int top, TokenId target);

// What the last stage reports for an encoder's input, or an embedder's, whose tokens have this hash: a hash of all of
// it. `poisoned`: kPoison is among the tokens; then one in four is not finite.
std::vector<float> fake_values(std::uint64_t tokens, bool poisoned, const std::vector<std::int32_t>& token_type_ids,
                               const std::vector<float>& patches, int count);

// What the request must come to when it is served; times are left out.
Completion deserved_completion(const Request& request, const std::vector<TokenId>& eos_tokens);
// What distinguishes the two, times aside; "" when nothing does. Of failures only the code is compared.
std::string difference(const Completion& found, const Completion& deserved);

// A request for greedy tokens. Its first prompt token tells the request.
Request make_request(RequestId id, ModelId model, int prompt_tokens, int max_tokens, double arrival_s = 0);
// The same for an encoder: `count` values, segments and a patch of its own.
Request make_encoder_request(RequestId id, ModelId model, int tokens, int count, double arrival_s = 0);
RequestId request_of(TokenId first_prompt_token);
// Nothing if the token is one of the vocabulary.
std::optional<RequestId> tells_request(TokenId token);
// The same request, behind tokens that all requests of its model begin with.
Request with_common_beginning(Request request, int tokens);

}  // namespace computron::test

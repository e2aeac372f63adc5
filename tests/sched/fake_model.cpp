#include "tests/sched/fake_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "computron/base/digest.h"

namespace computron::test {
namespace {

constexpr TokenId kFirstRequest = 1000;

ShardLayout make_layout(const FakeModel& model, std::size_t stage) {
  ShardLayout layout;
  layout.page_bytes = kPageBytes;
  layout.plan.layers = model.layers[stage];
  layout.plan.kv_heads = 1;
  layout.plan.config.head_dim = 1;
  for (int p = 0; p < model.pages[stage]; ++p) {
    const bool in_slot = model.in_slots && p >= model.base;
    layout.used_bytes.push_back((in_slot ? kAdapterSlotBytes : kPageBytes) - 8 * (p % 5));
    layout.uses.push_back(static_cast<PageId>(p));
  }
  for (const std::size_t used : layout.used_bytes) {
    if (model.link_share < 1) layout.link_bytes.push_back(static_cast<std::size_t>(model.link_share * used));
  }
  if (!model.contents.empty()) {
    for (const std::uint64_t number : model.contents[stage]) {
      layout.contents.push_back(digest128(std::as_bytes(std::span(&number, 1))));
    }
  }
  if (model.family != 0) {
    layout.family = digest128(std::as_bytes(std::span(&model.family, 1)));
    for (int p = model.base; p < model.pages[stage]; ++p) layout.adapter_pages.push_back(static_cast<PageId>(p));
    layout.slot_bytes = model.in_slots ? kAdapterSlotBytes : 0;
  }
  if (model.pages[stage] > 1) layout.uses.push_back(0);  // as a tied head would
  // Operations that bind model.span uses each.
  for (std::size_t use = 0; use < layout.uses.size(); ++use) {
    layout.over_before.push_back(static_cast<std::int64_t>(use - use % model.span) - 1);
  }
  return layout;
}

float score(std::uint64_t hash) { return -static_cast<float>(hash % 4096) / 256; }

// The state of a prefix that grows.
struct Prefix {
  std::uint64_t hash = 0;
  bool poisoned = false;
  void add(TokenId token) {
    hash = extend_prefix(hash, token);
    poisoned |= token == kPoison;
  }
};

bool stops(TokenId token, const Request& request, const std::vector<TokenId>& eos_tokens) {
  const auto among = [token](const auto& list) { return std::find(list.begin(), list.end(), token) != list.end(); };
  return among(request.stop_tokens) || (!request.ignore_eos && among(eos_tokens));
}

std::vector<std::pair<TokenId, float>> best(const SampledRow& row, int count) {
  return {row.top.begin(), row.top.begin() + std::clamp<std::ptrdiff_t>(count, 0, std::ssize(row.top))};
}

// Runs the prompt. False when a row that is looked at is not finite.
bool deserve_prompt(const Request& request, Prefix& prefix, Completion& c) {
  const bool scored = request.echo && request.logprobs >= 0;
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.echo) c.prompt.push_back({.token = request.prompt[i], .top = {}});
    if (scored && i > 0) {
      const SampledRow row = fake_row(prefix.hash, prefix.poisoned, request.logprobs, request.prompt[i]);
      if (!row.finite) return false;
      c.prompt[i].has_logprob = true;
      c.prompt[i].logprob = row.target_logprob;
      c.prompt[i].top = best(row, request.logprobs);
    }
    prefix.add(request.prompt[i]);
  }
  return true;
}

// Generates. False when a row is not finite.
bool deserve_tokens(const Request& request, const std::vector<TokenId>& eos_tokens, Prefix prefix, Completion& c) {
  do {
    const SampledRow row = fake_row(prefix.hash, prefix.poisoned, std::max(request.logprobs, 1), -1);
    if (!row.finite) return false;
    if (request.max_tokens == 0) return true;
    ++c.generated_tokens;
    if (stops(row.token, request, eos_tokens)) {
      c.finish_reason = FinishReason::kStop;
      return true;
    }
    const bool scored = request.logprobs >= 0;
    c.tokens.push_back({.token = row.token,
                        .has_logprob = scored,
                        .logprob = scored ? row.logprob : 0,
                        .top = best(row, request.logprobs)});
    prefix.add(row.token);
  } while (c.generated_tokens < request.max_tokens);
  return true;
}

bool same(const std::vector<ScoredToken>& a, const std::vector<ScoredToken>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const ScoredToken& x, const ScoredToken& y) {
    return x.token == y.token && x.has_logprob == y.has_logprob && (!x.has_logprob || x.logprob == y.logprob) &&
           x.top == y.top;
  });
}

}  // namespace

FakeModel small_model(int pages, std::vector<TokenId> eos_tokens) {
  return {.pages = {pages}, .layers = {1}, .eos_tokens = std::move(eos_tokens)};
}

std::vector<FakeModel> small_family(std::uint64_t family, int base, const std::vector<int>& adapters, int stages) {
  std::vector<FakeModel> models;
  for (std::size_t m = 0; m < adapters.size(); ++m) {
    FakeModel& model = models.emplace_back(FakeModel{.pages = {}, .layers = {}, .family = family, .base = base});
    for (int stage = 0; stage < stages; ++stage) {
      model.pages.push_back(base + adapters[m]);
      model.layers.push_back(1);
      std::vector<std::uint64_t>& contents = model.contents.emplace_back();
      for (int page = 0; page < model.pages.back(); ++page) {
        contents.push_back(page < base ? hash_tuple(family, stage, page) : hash_tuple(family, stage, page, m / 2));
      }
    }
  }
  return models;
}

FakeModelList::FakeModelList(std::vector<FakeModel> models) : models_(std::move(models)) {
  for (const FakeModel& model : models_) {
    ModelShape& shape = shapes_.emplace_back();
    shape.eos_tokens = model.eos_tokens;
    shape.pinned = model.pinned;
    shape.priority = model.priority;
    for (std::size_t stage = 0; stage < model.pages.size(); ++stage) {
      shape.layouts.push_back(&layouts_.emplace_back(make_layout(model, stage)));
      shape.caches.push_back(KvGeometry::make(layouts_.back()));
    }
  }
}

std::vector<std::string> FakeModelList::names() const {
  std::vector<std::string> names;
  for (std::size_t m = 0; m < models_.size(); ++m) names.push_back(fmt::format("model-{}", m));
  return names;
}

std::vector<const ShardLayout*> FakeModelList::layouts(int stage) const {
  std::vector<const ShardLayout*> layouts;
  for (const ModelShape& shape : shapes_) layouts.push_back(shape.layouts[stage]);
  return layouts;
}

int FakeModelList::frames_needed(ModelId model, int stage, int blocks) const {
  const int slots = blocks * models_[model].layers[stage];
  return models_[model].pages[stage] + (slots + kSlotsPerFrame - 1) / kSlotsPerFrame;
}

int FakeModelList::weights_needed(ModelId model, int stage) const {
  const ShardLayout& layout = *shapes_[model].layouts[static_cast<std::size_t>(stage)];
  const int pages = layout.pages(FrameKind::kWhole);
  const SharedPages shared(layouts(stage));
  std::set<PageRef> pinned = pinned_pages(stage, FrameKind::kWhole);
  int staying = 0;
  for (PageId page = 0; page < static_cast<PageId>(layout.pages()); ++page) {
    staying += static_cast<int>(pinned.erase(shared.first({model, page})));
  }
  const int fewest = models_[model].pinned ? pages : std::min(pages, models_[model].span + staying);
  return fewest + static_cast<int>(pinned.size());
}

int FakeModelList::slots_needed(ModelId model, int stage) const {
  const int pinned = static_cast<int>(pinned_pages(stage, FrameKind::kSlot).size());
  return pinned +
         (models_[model].pinned ? 0 : shapes_[model].layouts[static_cast<std::size_t>(stage)]->pages(FrameKind::kSlot));
}

// Of pages that are one, the first.
std::set<PageRef> FakeModelList::pinned_pages(int stage, FrameKind kind) const {
  const SharedPages shared(layouts(stage));
  std::set<PageRef> pinned;
  for (ModelId model = 0; model < models(); ++model) {
    for (int page = 0; models_[model].pinned && page < models_[model].pages[stage]; ++page) {
      const auto number = static_cast<PageId>(page);
      const bool counts = shapes_[model].layouts[static_cast<std::size_t>(stage)]->kind_of(number) == kind;
      if (counts) pinned.insert(shared.first({model, number}));
    }
  }
  return pinned;
}

bool FakeModelList::fits(ModelId model, int blocks, int frames) const {
  for (int stage = 0; stage < stages(); ++stage) {
    const int cache = frames_needed(model, stage, blocks) - models_[model].pages[stage];
    if (cache + weights_needed(model, stage) > frames) return false;
  }
  return true;
}

int blocks_of(const Request& request) {
  const int generated = request.encodes() ? 0 : std::max(request.max_tokens - 1, 0);
  const int tokens = static_cast<int>(request.prompt.size()) + generated;
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

std::uint64_t extend_prefix(std::uint64_t prefix, TokenId token) { return hash_tuple(prefix, token); }

SampledRow fake_row(std::uint64_t prefix, bool poisoned, int top, TokenId target) {
  SampledRow row;
  row.finite = !poisoned || (prefix >> 20) % 4 != 0;
  if (!row.finite) return row;
  row.token = static_cast<TokenId>(prefix % kPoison);
  row.logprob = score(prefix >> 8);
  if (target >= 0) row.target_logprob = score(hash_tuple(prefix, target, 1));
  for (int k = 0; k < top; ++k) row.top.emplace_back((row.token + k) % kVocab, row.logprob - k);
  return row;
}

std::vector<float> fake_values(std::uint64_t tokens, bool poisoned, const std::vector<std::int32_t>& token_type_ids,
                               const std::vector<float>& patches, int count) {
  std::uint64_t hash = tokens;
  for (const std::int32_t type : token_type_ids) hash = hash_tuple(hash, type, 2);
  for (const float value : patches) hash = hash_tuple(hash, static_cast<std::uint64_t>(value), 3);
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(score(hash_tuple(hash, i)));
  if (poisoned && (hash >> 20) % 4 == 0) values.back() = std::numeric_limits<float>::quiet_NaN();
  return values;
}

Completion deserved_completion(const Request& request, const std::vector<TokenId>& eos_tokens) {
  Completion c{
      .id = request.id, .model = request.model, .prompt = {}, .tokens = {}, .error_code = {}, .error_message = {}};
  c.prompt_tokens = static_cast<int>(request.prompt.size());
  if (request.encodes()) {
    Prefix all;
    for (const TokenId token : request.prompt) all.add(token);
    c.values = fake_values(all.hash, all.poisoned, request.token_type_ids, request.patches, request.values);
    if (std::isnan(c.values.back())) c.error_code = "numerical_error";
    return c;
  }
  Prefix prefix;
  const bool no_pass = request.max_tokens == 0 && request.logprobs < 0;
  if (!deserve_prompt(request, prefix, c) || (!no_pass && !deserve_tokens(request, eos_tokens, prefix, c))) {
    c.error_code = "numerical_error";
  }
  return c;
}

std::string difference(const Completion& found, const Completion& deserved) {
  if (found.error_code != deserved.error_code) {
    return fmt::format("error '{}', deserved '{}'", found.error_code, deserved.error_code);
  }
  if (found.id != deserved.id || found.model != deserved.model) return "the request or model";
  if (found.prompt_tokens != deserved.prompt_tokens) return "the number of prompt tokens";
  if (!found.error_code.empty()) return found.error_message.empty() ? "no error message" : "";
  if (!same(found.prompt, deserved.prompt)) return "the prompt given back";
  if (!same(found.tokens, deserved.tokens)) return "the tokens generated";
  if (found.generated_tokens != deserved.generated_tokens) return "the number of tokens generated";
  if (found.values != deserved.values) return "the values";
  if (found.finish_reason != deserved.finish_reason) return "the reason of the end";
  return "";
}

Request make_request(RequestId id, ModelId model, int prompt_tokens, int max_tokens, double arrival_s) {
  Request request{
      .id = id, .model = model, .prompt = {}, .max_tokens = max_tokens, .stop_tokens = {}, .arrival_s = arrival_s};
  for (int i = 0; i < prompt_tokens; ++i) {
    const auto token = static_cast<TokenId>(hash_tuple(id, i) % kPoison);  // any but kPoison
    request.prompt.push_back(i == 0 ? kFirstRequest + static_cast<TokenId>(id) : token);
  }
  return request;
}

Request make_encoder_request(RequestId id, ModelId model, int tokens, int count, double arrival_s) {
  Request request = make_request(id, model, tokens, /*max_tokens=*/16, arrival_s);
  request.task = id % 2 == 0 ? Task::kEmbed : Task::kClassify;
  request.values = count;
  for (int i = 0; i < tokens; ++i) {
    request.token_type_ids.push_back(static_cast<std::int32_t>(hash_tuple(id, i, 4) % 2));
  }
  request.patches = {static_cast<float>(id), 7};
  return request;
}

RequestId request_of(TokenId first_prompt_token) { return static_cast<RequestId>(first_prompt_token - kFirstRequest); }

std::optional<RequestId> tells_request(TokenId token) {
  return token >= kFirstRequest ? std::optional(request_of(token)) : std::nullopt;
}

Request with_common_beginning(Request request, int tokens) {
  std::vector<TokenId> beginning;
  for (int i = 0; i < tokens; ++i) beginning.push_back(static_cast<TokenId>(hash_tuple(request.model, i, 5) % kPoison));
  request.prompt.insert(request.prompt.begin(), beginning.begin(), beginning.end());
  return request;
}

}  // namespace computron::test

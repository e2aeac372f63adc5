#include "computron/runtime/stage_state.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "computron/base/digest.h"
#include "computron/runtime/kv_geometry.h"

namespace computron {
namespace {

constexpr std::uint32_t kBlock = KvGeometry::kBlockTokens;
constexpr std::uint32_t kMostBlocks = 1u << 26;  // of a model

struct NamedField {
  const char* name;
  std::uint64_t StateDigest::*field;
};
// first_difference() names the first of these fields that differs. What a pass uses comes last: if that alone differs,
// the tables have been damaged, and not by a step.
constexpr NamedField kFields[] = {{"pages", &StateDigest::pages},
                                  {"caches", &StateDigest::caches},
                                  {"offloaded", &StateDigest::offloaded},
                                  {"lengths", &StateDigest::lengths},
                                  {"blocks", &StateDigest::blocks},
                                  {"tokens", &StateDigest::tokens},
                                  {"bytes_fetched", &StateDigest::bytes_fetched},
                                  {"frames_moved", &StateDigest::frames_moved},
                                  {"page_table", &StateDigest::page_table},
                                  {"cache_list", &StateDigest::cache_list},
                                  {"sequences", &StateDigest::sequences}};
static_assert(sizeof(StateDigest) == std::size(kFields) * sizeof(std::uint64_t), "every field is compared");

// Of a sequence without tokens: what its keys depend on beside them.
std::uint64_t history_at_start(const SequenceChunk& chunk) { return chunk.long_factors ? 1 : 0; }

template <class T>
std::uint64_t digest_of(const std::vector<T>& list) {
  return digest64(std::as_bytes(std::span(list)));
}

// Tokens that join a history, and where it is to be written behind each of them.
struct Chain {
  std::uint64_t history = 0;
  std::span<const TokenId> tokens = {};
  std::uint64_t* out = nullptr;

  void hash(std::size_t i) { out[i] = history = hash_tuple(history, tokens[i]); }
  void skip(std::size_t n) {
    tokens = tokens.subspan(n);
    out += n;
  }
};

// Each hash waits for the one before it, but four chains wait side by side. `next`: the next chain; one without tokens
// behind the last.
template <class Next>
void hash_side_by_side(Next&& next) {
  std::array<Chain, 4> lanes;
  for (;;) {
    std::size_t steps = std::numeric_limits<std::size_t>::max();
    for (Chain& lane : lanes) {
      if (lane.tokens.empty()) lane = next();
      steps = std::min(steps, lane.tokens.size());
    }
    if (steps == 0) break;
    for (std::size_t i = 0; i < steps; ++i) {
      for (Chain& lane : lanes) lane.hash(i);
    }
    for (Chain& lane : lanes) lane.skip(steps);
  }
  for (Chain& lane : lanes) {
    for (std::size_t i = 0; i < lane.tokens.size(); ++i) lane.hash(i);
  }
}

// Xors the sequence's length and history into the digest, or out of it.
void toggle(StateDigest& digest, SequenceId id, const SequenceState& s) {
  digest.lengths ^= hash_tuple(id, s.model, s.length);
  digest.tokens ^= hash_tuple(id, s.history);
}

}  // namespace

std::string StateDigest::first_difference(const StateDigest& other) const {
  for (const auto& [name, field] : kFields) {
    if (this->*field != other.*field) return name;
  }
  return {};
}

StageState::StageState(std::vector<const ShardLayout*> layouts, int frames, int host_slots, int adapter_slots)
    : layouts_(std::move(layouts)),
      frames_(frames),
      shared_(layouts_),
      resident_(layouts_.size(), 0),
      caches_(layouts_.size()),
      offloaded_(layouts_.size()),
      slots_taken_(static_cast<std::size_t>(host_slots)),
      owners_(static_cast<std::size_t>(frames) + static_cast<std::size_t>(adapter_slots)),
      blocks_(layouts_.size()) {
  for (const ShardLayout* layout : layouts_) page_tables_.emplace_back(layout->pages(), kNoFrame);
}

const SequenceState& StageState::sequence(SequenceId id) const {
  const auto found = sequences_.find(id);
  ensure(found != sequences_.end(), "step names a sequence that is not running");
  return found->second;
}

void StageState::close(SequenceId id) {
  const SequenceState& s = sequence(id);
  toggle(digest_, id, s);
  for (std::size_t i = 0; i < s.blocks.size(); ++i) {
    digest_.blocks ^= hash_tuple(id, i, s.blocks[i]);
    --block(s.model, s.blocks[i]).holders;
  }
  sequences_.erase(id);
}

void StageState::change_cache(const CacheChange& change) {
  const ModelId model = change.model;
  ensure(model < caches_.size(), "cache change names no model");
  switch (change.kind) {
    case CacheChange::kPlain:
      ensure(offloaded_[model].empty() && change.slots.empty(), "plain change of an offloaded cache");
      take_frames(model, change.taken);
      if (change.taken > 0) drop_lost_blocks(model);
      return add_frames(model, change.added);
    case CacheChange::kOffload:
      ensure(change.taken == caches_[model].size() && change.taken > 0, "a cache is offloaded whole or not at all");
      ensure(change.slots.size() == change.taken && change.added.empty(), "an offloaded frame needs a slot");
      take_frames(model, change.taken);
      digest_.frames_moved += change.taken;
      return take_slots(model, change.slots);
    case CacheChange::kReload:
      ensure(!change.slots.empty() && change.slots == offloaded_[model], "reload of slots the cache is not in");
      ensure(change.added.size() == change.slots.size() && change.taken == 0, "a reloaded slot needs a frame");
      free_slots(model);
      digest_.frames_moved += change.added.size();
      return add_frames(model, change.added);
    case CacheChange::kDropOffloaded:
      ensure(!offloaded_[model].empty(), "drop of a cache that is not offloaded");
      ensure(change.taken == 0 && change.added.empty() && change.slots.empty(), "a drop says nothing but the model");
      free_slots(model);
      return drop_lost_blocks(model);
  }
  throw Error(ExitCode::kInternal, "internal: unknown kind of cache change");
}

void StageState::take_frames(ModelId model, std::uint32_t count) {
  std::vector<FrameId>& list = caches_[model];
  ensure(count <= list.size(), "more cache frames taken than there are");
  for (std::uint32_t i = 0; i < count; ++i) {
    digest_.caches ^= hash_tuple(model, list.size() - 1, list.back());
    owners_[list.back()] = {};
    list.pop_back();
  }
}

void StageState::add_frames(ModelId model, const std::vector<FrameId>& frames) {
  std::vector<FrameId>& list = caches_[model];
  for (const FrameId frame : frames) {
    ensure(kind_of(frame) == FrameKind::kWhole, "frame outside the pool");
    evict(frame);
    owners_[frame] = {Owner::kCache, model, static_cast<std::uint32_t>(list.size())};
    digest_.caches ^= hash_tuple(model, list.size(), frame);
    list.push_back(frame);
  }
}

void StageState::take_slots(ModelId model, const std::vector<HostSlot>& slots) {
  for (const HostSlot slot : slots) {
    ensure(slot < slots_taken_.size() && !slots_taken_[slot], "offload into a slot that is not free");
    slots_taken_[slot] = true;
    digest_.offloaded ^= hash_tuple(model, offloaded_[model].size(), slot);
    offloaded_[model].push_back(slot);
  }
}

void StageState::free_slots(ModelId model) {
  std::vector<HostSlot>& slots = offloaded_[model];
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots_taken_[slots[i]] = false;
    digest_.offloaded ^= hash_tuple(model, i, slots[i]);
  }
  slots.clear();
}

void StageState::place(const Fetch& fetch) {
  ensure(fetch.model < layouts_.size() && fetch.page < page_tables_[fetch.model].size(), "fetch names no page");
  ensure(page_tables_[fetch.model][fetch.page] == kNoFrame, "fetch of a page that is there");
  ensure(kind_of(fetch.frame) == layouts_[fetch.model]->kind_of(fetch.page),
         "fetch of a page into no frame of its kind");
  evict(fetch.frame);
  shared_.for_each({fetch.model, fetch.page}, [&](const PageRef& page) {
    page_tables_[page.model][page.page] = fetch.frame;
    ++resident_[page.model];
  });
  const PageRef first = shared_.first({fetch.model, fetch.page});
  owners_[fetch.frame] = {Owner::kPage, first.model, first.page};
  digest_.pages ^= hash_tuple(first.model, first.page, fetch.frame);
  digest_.bytes_fetched += layouts_[fetch.model]->used_bytes[fetch.page];
}

void StageState::evict(FrameId frame) {
  ensure(frame < owners_.size(), "frame outside the pool");
  const Owner owner = owners_[frame];
  ensure(owner.kind != Owner::kCache, "frame still holds cache");
  if (owner.kind == Owner::kPage) {
    shared_.for_each({owner.model, owner.index}, [&](const PageRef& page) {
      page_tables_[page.model][page.page] = kNoFrame;
      --resident_[page.model];
    });
    digest_.pages ^= hash_tuple(owner.model, owner.index, frame);
  }
  owners_[frame] = {};
}

void StageState::extend(ModelId model, const SequenceChunk& chunk, std::span<const std::uint64_t> histories) {
  ensure(model < layouts_.size(), "step names no model");
  ensure(offloaded_[model].empty(), "pass of a model whose cache is offloaded");
  const auto [found, starts] = sequences_.try_emplace(chunk.sequence, SequenceState{.model = model, .blocks = {}});
  SequenceState& s = found->second;
  if (starts) start_behind_prefix(chunk, s);
  ensure(s.model == model && s.length == chunk.start, "chunk does not continue its sequence");
  if (!starts) toggle(digest_, chunk.sequence, s);
  for (const std::uint32_t number : chunk.new_blocks) {
    Block& b = block(model, number);
    const bool cached = starts && s.blocks.size() < chunk.start / kBlock;  // a block of the prefix
    ensure(cached || b.holders == 0, "a block that is to be written is another sequence's");
    ++b.holders;
    b.full &= cached;
    digest_.blocks ^= hash_tuple(chunk.sequence, s.blocks.size(), number);
    s.blocks.push_back(number);
  }
  write(chunk, s, histories);
  toggle(digest_, chunk.sequence, s);
}

StateDigest StageState::digest_after(const Step& step) const {
  StateDigest digest = digest_;
  if (step.chunks.empty()) return digest;
  for (const ModelChunks& own : step.by_model()) {
    digest.page_table = hash_tuple(digest.page_table, digest_of(page_tables_[own.model]));
    digest.cache_list = hash_tuple(digest.cache_list, digest_of(caches_[own.model]));
  }
  for (const SequenceChunk& chunk : step.chunks) {
    const SequenceState& s = sequence(chunk.sequence);
    digest.sequences ^= hash_tuple(chunk.sequence, s.model, s.length, s.history, digest_of(s.blocks));
  }
  return digest;
}

StageState::Block& StageState::block(ModelId model, std::uint32_t number) {
  ensure(number < kMostBlocks, "step names a block that no cache has");
  std::vector<Block>& blocks = blocks_[model];
  if (number >= blocks.size()) blocks.resize(number + 1);
  return blocks[number];
}

void StageState::start_behind_prefix(const SequenceChunk& chunk, SequenceState& s) {
  s.history = history_at_start(chunk);
  const std::size_t cached = chunk.start / kBlock;
  ensure(chunk.start % kBlock == 0 && cached <= chunk.new_blocks.size(), "a sequence begins in the middle of a block");
  for (std::size_t i = 0; i < cached; ++i) {
    const Block& b = block(s.model, chunk.new_blocks[i]);
    ensure(b.full && b.before == s.history, "a sequence begins behind a block that does not continue the one before");
    s.history = b.after;
  }
  s.length = chunk.start;
}

std::uint64_t StageState::history_before(ModelId model, const SequenceChunk& chunk) const {
  if (const auto found = sequences_.find(chunk.sequence); found != sequences_.end()) return found->second.history;
  const std::size_t cached = chunk.start / kBlock;
  // Behind a cached prefix.
  return cached > 0 ? blocks_[model][chunk.new_blocks[cached - 1]].after : history_at_start(chunk);
}

std::vector<std::uint64_t> StageState::histories(ModelId model, std::span<const SequenceChunk> chunks) const {
  std::size_t tokens = 0;
  for (const SequenceChunk& chunk : chunks) tokens += chunk.tokens.size();
  std::vector<std::uint64_t> histories(tokens);
  std::uint64_t* next = histories.data();
  hash_side_by_side([&, at = chunks.begin()]() mutable {
    if (at == chunks.end()) return Chain{};
    const SequenceChunk& chunk = *at++;
    return Chain{history_before(model, chunk), chunk.tokens, std::exchange(next, next + chunk.tokens.size())};
  });
  return histories;
}

void StageState::write(const SequenceChunk& chunk, SequenceState& s, std::span<const std::uint64_t> histories) {
  ensure(histories.empty() || histories.size() == chunk.tokens.size(), "a history for every token");
  for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
    const std::size_t at = s.length++ / kBlock;
    const std::uint64_t before = s.history;
    s.history = histories.empty() ? hash_tuple(s.history, chunk.tokens[i]) : histories[i];
    if (at >= s.blocks.size()) continue;  // no step that a rank executes has tokens without a block
    Block& b = blocks_[s.model][s.blocks[at]];
    ensure(!b.full && b.holders == 1, "a chunk writes into a block that is shared");
    if ((s.length - 1) % kBlock == 0) b.before = before;
    b.after = s.history;
    b.full = s.length % kBlock == 0;
  }
}

// A block is lost with the first of the frames that it lies in.
void StageState::drop_lost_blocks(ModelId model) {
  std::vector<Block>& blocks = blocks_[model];
  if (blocks.empty()) return;
  const auto frames = static_cast<int>(caches_[model].size());
  const auto left = static_cast<std::size_t>(frames == 0 ? 0 : KvGeometry::make(*layouts_[model]).blocks_in(frames));
  if (left >= blocks.size()) return;
  ensure(std::all_of(blocks.begin() + static_cast<std::ptrdiff_t>(left), blocks.end(),
                     [](const Block& b) { return b.holders == 0; }),
         "cache is taken that a sequence has");
  blocks.resize(left);
}

void StageState::apply(const Step& step, int stage) {
  for (const SequenceId id : step.closed) close(id);
  for (const CacheChange& change : step.stages[stage].caches) change_cache(change);
  for (const Fetch& fetch : step.stages[stage].fetches) place(fetch);
  for (const SequenceChunk& chunk : step.chunks) extend(step.model_of(chunk), chunk);
}

}  // namespace computron

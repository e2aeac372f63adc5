#include "computron/runtime/stage_state.h"

#include "computron/base/digest.h"

namespace computron {

std::string StateDigest::first_difference(const StateDigest& other) const {
  if (pages != other.pages) return "pages";
  if (caches != other.caches) return "caches";
  if (sequences != other.sequences) return "sequences";
  if (bytes_fetched != other.bytes_fetched) return "bytes_fetched";
  return {};
}

StageState::StageState(std::vector<const Image*> images, int frames, int host_slots)
    : images_(std::move(images)),
      resident_(images_.size(), 0),
      caches_(images_.size()),
      spilled_(images_.size()),
      slots_taken_(static_cast<std::size_t>(host_slots)),
      owners_(static_cast<std::size_t>(frames)) {
  for (const Image* image : images_) page_tables_.emplace_back(image->pages(), kNoFrame);
}

const SequenceState& StageState::sequence(SequenceId id) const {
  const auto found = sequences_.find(id);
  ensure(found != sequences_.end(), "step names a sequence that is not open");
  return found->second;
}

void StageState::close(SequenceId id) {
  const SequenceState& s = sequence(id);
  digest_.sequences ^= hash_tuple(id, s.length);
  for (std::size_t i = 0; i < s.blocks.size(); ++i) digest_.sequences ^= hash_tuple(id, i, s.blocks[i], 1);
  sequences_.erase(id);
}

void StageState::change_cache(const CacheChange& change) {
  const ModelId model = change.model;
  ensure(model < caches_.size(), "cache change names no model");
  switch (change.kind) {
    case CacheChange::kPlain:
      ensure(spilled_[model].empty() && change.slots.empty(), "plain change of a spilled cache");
      take_frames(model, change.taken);
      return add_frames(model, change.added);
    case CacheChange::kSpill:
      ensure(change.taken == caches_[model].size() && change.taken > 0, "a cache is spilled whole or not at all");
      ensure(change.slots.size() == change.taken && change.added.empty(), "a spilled frame needs a slot");
      take_frames(model, change.taken);
      return take_slots(model, change.slots);
    case CacheChange::kRestore:
      ensure(!change.slots.empty() && change.slots == spilled_[model], "restore of slots the cache is not in");
      ensure(change.added.size() == change.slots.size() && change.taken == 0, "a restored slot needs a frame");
      free_slots(model);
      return add_frames(model, change.added);
    case CacheChange::kDropSpilled:
      ensure(!spilled_[model].empty(), "drop of a cache that is not spilled");
      ensure(change.taken == 0 && change.added.empty() && change.slots.empty(), "a drop says nothing but the model");
      return free_slots(model);
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
    vacate(frame);
    owners_[frame] = {Owner::kCache, model, static_cast<std::uint32_t>(list.size())};
    digest_.caches ^= hash_tuple(model, list.size(), frame);
    list.push_back(frame);
  }
}

void StageState::take_slots(ModelId model, const std::vector<HostSlot>& slots) {
  for (const HostSlot slot : slots) {
    ensure(slot < slots_taken_.size() && !slots_taken_[slot], "spill into a slot that is not free");
    slots_taken_[slot] = true;
    digest_.caches ^= hash_tuple(model, spilled_[model].size(), slot, 1);
    spilled_[model].push_back(slot);
  }
}

void StageState::free_slots(ModelId model) {
  std::vector<HostSlot>& slots = spilled_[model];
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots_taken_[slots[i]] = false;
    digest_.caches ^= hash_tuple(model, i, slots[i], 1);
  }
  slots.clear();
}

void StageState::place(const Fetch& fetch) {
  ensure(fetch.model < images_.size() && fetch.page < page_tables_[fetch.model].size(), "fetch names no page");
  FrameId& entry = page_tables_[fetch.model][fetch.page];
  ensure(entry == kNoFrame, "fetch of a page that is there");
  vacate(fetch.frame);
  entry = fetch.frame;
  ++resident_[fetch.model];
  owners_[fetch.frame] = {Owner::kPage, fetch.model, fetch.page};
  digest_.pages ^= hash_tuple(fetch.model, fetch.page, fetch.frame);
  digest_.bytes_fetched += images_[fetch.model]->used_bytes[fetch.page];
}

void StageState::vacate(FrameId frame) {
  ensure(frame < owners_.size(), "frame outside the pool");
  const Owner owner = owners_[frame];
  ensure(owner.kind != Owner::kCache, "frame still holds cache");
  if (owner.kind == Owner::kPage) {
    page_tables_[owner.model][owner.index] = kNoFrame;
    --resident_[owner.model];
    digest_.pages ^= hash_tuple(owner.model, owner.index, frame);
  }
  owners_[frame] = {};
}

void StageState::extend(ModelId model, const SequenceChunk& chunk) {
  ensure(model < images_.size(), "step names no model");
  ensure(spilled_[model].empty(), "pass of a model whose cache is spilled");
  const auto [found, opened] = sequences_.try_emplace(chunk.sequence, SequenceState{.model = model, .blocks = {}});
  SequenceState& s = found->second;
  ensure(s.model == model && s.length == chunk.start, "chunk does not continue its sequence");
  if (!opened) digest_.sequences ^= hash_tuple(chunk.sequence, s.length);
  for (const std::uint32_t block : chunk.new_blocks) {
    digest_.sequences ^= hash_tuple(chunk.sequence, s.blocks.size(), block, 1);
    s.blocks.push_back(block);
  }
  s.length += static_cast<std::uint32_t>(chunk.tokens.size());
  digest_.sequences ^= hash_tuple(chunk.sequence, s.length);
}

void StageState::apply(const Step& step, int stage) {
  for (const SequenceId id : step.closed) close(id);
  for (const CacheChange& change : step.stages[stage].caches) change_cache(change);
  for (const Fetch& fetch : step.stages[stage].fetches) place(fetch);
  for (const SequenceChunk& chunk : step.chunks) extend(step.model, chunk);
}

}  // namespace computron

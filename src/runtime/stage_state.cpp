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

StageState::StageState(std::vector<const Image*> images, int frames)
    : images_(std::move(images)),
      resident_(images_.size(), 0),
      caches_(images_.size()),
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
  ensure(change.model < caches_.size(), "cache change names no model");
  std::vector<FrameId>& list = caches_[change.model];
  ensure(change.taken <= list.size(), "more cache frames taken than there are");
  for (std::uint32_t i = 0; i < change.taken; ++i) {
    digest_.caches ^= hash_tuple(change.model, list.size() - 1, list.back());
    owners_[list.back()] = {};
    list.pop_back();
  }
  for (const FrameId frame : change.added) {
    vacate(frame);
    owners_[frame] = {Owner::kCache, change.model, static_cast<std::uint32_t>(list.size())};
    digest_.caches ^= hash_tuple(change.model, list.size(), frame);
    list.push_back(frame);
  }
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

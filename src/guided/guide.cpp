#include "computron/guided/guide.h"

#include <string>
#include <utility>

namespace computron {

Guide::Guide(std::shared_ptr<const TokenTrie> tokens, std::shared_ptr<const Grammar> grammar, GuideLimits limits)
    : tokens_(std::move(tokens)),
      grammar_(std::move(grammar)),
      grammar_bytes_(grammar_->bytes()),
      limits_(limits),
      matcher_(grammar_) {
  Matcher::State start = matcher_.start();
  TokenMask mask;
  if (start != Matcher::kDead) find_mask(start, mask);
}

std::size_t Guide::bytes() const { return grammar_bytes_ + matcher_.bytes() + mask_bytes_; }

void Guide::forget() {
  matcher_.keep_only({});
  masks_.clear();
  mask_bytes_ = 0;
}

Matcher::State Guide::follow(Matcher::State state, TokenId token) {
  for (const char byte : tokens_->text(token)) {
    if (state == Matcher::kDead) return state;
    state = matcher_.next(state, static_cast<std::uint8_t>(byte));
    if (matcher_.kept_bytes() > limits_.matcher_bytes) matcher_.keep_only(std::span(&state, 1));
  }
  return state;
}

void Guide::find_mask(Matcher::State& state, TokenMask& mask) {
  constexpr std::size_t kOfAMask = sizeof(KeptMask) + 64;
  const auto found = masks_epoch_ == matcher_.epoch() ? masks_.find(state) : masks_.end();
  if (found != masks_.end()) {
    const KeptMask& kept = found->second;
    if (kept.takes_too_much) {
      mask.clear();
      return;
    }
    if (kept.base != nullptr) {
      mask = *kept.base;
    } else {
      mask.assign(tokens_->words(), 0);
    }
    for (const auto& [place, word] : kept.words) mask[place] = word;
    return;
  }
  KeptMask kept{.base = tokens_->base(matcher_, state)};
  kept.takes_too_much = !tokens_->allow(matcher_, state, mask, limits_.matcher_bytes);
  if (kept.takes_too_much) {
    mask.clear();
  } else {
    keep_words(mask, kept);
  }
  const std::size_t bytes = kOfAMask + kept.words.size() * sizeof(kept.words[0]);
  if (mask_bytes_ + bytes > limits_.mask_bytes || masks_epoch_ != matcher_.epoch()) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  masks_epoch_ = matcher_.epoch();
  mask_bytes_ += bytes;
  masks_.emplace(state, std::move(kept));
}

void Guide::keep_words(const TokenMask& mask, KeptMask& kept) {
  const auto differs = [&](std::size_t i) { return mask[i] != (kept.base != nullptr ? (*kept.base)[i] : 0); };
  std::size_t count = 0;
  for (std::size_t i = 0; i < mask.size(); ++i) count += differs(i) ? 1 : 0;
  kept.words.reserve(count);
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (differs(i)) kept.words.emplace_back(static_cast<std::uint32_t>(i), mask[i]);
  }
}

void GuidedText::allow(Guide& guide, std::span<const TokenId> ends, TokenMask& mask) {
  Matcher& matcher = guide.matcher_;
  if (epoch_ != matcher.epoch()) state_ = place_ ? matcher.restore(*place_) : matcher.start();
  for (const TokenId token : unread_) state_ = guide.follow(state_, token);
  if (!unread_.empty()) place_ = matcher.save(state_);
  unread_.clear();
  const TokenTrie& tokens = guide.tokens();
  mask.clear();
  if (state_ != Matcher::kDead) guide.find_mask(state_, mask);
  epoch_ = matcher.epoch();
  mask.resize(tokens.words(), 0);
  if (state_ == Matcher::kDead) return;
  const bool may_end = matcher.accepts(state_);
  for (const TokenId token : ends) {
    if (token < 0 || static_cast<std::size_t>(token) >= tokens.vocab()) continue;
    const std::uint32_t bit = 1u << (static_cast<unsigned>(token) % 32);
    std::uint32_t& word = mask[static_cast<std::size_t>(token) / 32];
    word = may_end ? word | bit : word & ~bit;
  }
}

}  // namespace computron

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
  if (start != Matcher::kDead) mask(start);
}

std::size_t Guide::bytes() const {
  constexpr std::size_t kOfAMask = sizeof(TokenMask) + 64;
  return grammar_bytes_ + matcher_.bytes() +
         masks_.size() * (tokens_->words() * sizeof(TokenMask::value_type) + kOfAMask);
}

void Guide::forget() {
  matcher_.keep_only({});
  masks_.clear();
}

Matcher::State Guide::follow(Matcher::State state, TokenId token) {
  for (const char byte : tokens_->text(token)) {
    if (state == Matcher::kDead) return state;
    state = matcher_.next(state, static_cast<std::uint8_t>(byte));
    if (matcher_.kept_bytes() > limits_.matcher_bytes) matcher_.keep_only(std::span(&state, 1));
  }
  return state;
}

const TokenMask& Guide::mask(Matcher::State& state) {
  const auto found = masks_epoch_ == matcher_.epoch() ? masks_.find(state) : masks_.end();
  if (found != masks_.end()) return found->second;
  TokenMask mask;
  if (!tokens_->allow(matcher_, state, mask, limits_.matcher_bytes)) mask.clear();
  const bool full = (masks_.size() + 1) * tokens_->words() * sizeof(TokenMask::value_type) > limits_.mask_bytes;
  if (full || masks_epoch_ != matcher_.epoch()) masks_.clear();
  masks_epoch_ = matcher_.epoch();
  return masks_[state] = std::move(mask);
}

void GuidedText::allow(Guide& guide, std::span<const TokenId> ends, TokenMask& mask) {
  Matcher& matcher = guide.matcher_;
  if (epoch_ != matcher.epoch()) state_ = place_ ? matcher.restore(*place_) : matcher.start();
  for (const TokenId token : unread_) state_ = guide.follow(state_, token);
  if (!unread_.empty()) place_ = matcher.save(state_);
  unread_.clear();
  const TokenTrie& tokens = guide.tokens();
  mask.clear();
  if (state_ != Matcher::kDead) mask = guide.mask(state_);
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

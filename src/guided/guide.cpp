#include "computron/guided/guide.h"

#include <string>
#include <utility>

namespace computron {

Guide::Guide(std::shared_ptr<const TokenTrie> tokens, std::shared_ptr<const Grammar> grammar)
    : tokens_(std::move(tokens)), grammar_(std::move(grammar)) {
  matcher_ = std::make_shared<Matcher>(grammar_);
  if (matcher_->start() != Matcher::kDead) mask(matcher_->start());
}

const TokenMask& Guide::mask(Matcher::State state) {
  const auto found = masks_.find(state);
  if (found != masks_.end()) return found->second;
  if ((masks_.size() + 1) * tokens_->words() * sizeof(TokenMask::value_type) > kMaxMaskBytes) masks_.clear();
  TokenMask& mask = masks_[state];
  if (!tokens_->allow(*matcher_, state, mask)) mask.clear();
  return mask;
}

void Guide::trim() {
  if (matcher_->bytes() <= kMaxMatcherBytes) return;
  masks_.clear();
  matcher_ = std::make_shared<Matcher>(grammar_);
}

GuidedText::GuidedText(std::shared_ptr<Guide> guide)
    : guide_(std::move(guide)), matcher_(guide_->matcher_), state_(matcher_->start()) {}

void GuidedText::append(TokenId token) {
  for (const char byte : guide_->tokens().text(token)) {
    if (state_ != Matcher::kDead) state_ = matcher_->next(state_, static_cast<std::uint8_t>(byte));
  }
}

void GuidedText::allow(std::span<const TokenId> ends, TokenMask& mask) {
  guide_->trim();
  if (matcher_ != guide_->matcher_) {
    state_ = guide_->matcher_->take_over(*matcher_, state_);
    matcher_ = guide_->matcher_;
  }
  const TokenTrie& tokens = guide_->tokens();
  if (state_ == Matcher::kDead) {
    mask.assign(tokens.words(), 0);
    return;
  }
  mask = guide_->mask(state_);
  mask.resize(tokens.words(), 0);
  const bool may_end = matcher_->accepts(state_);
  for (const TokenId token : ends) {
    if (token < 0 || static_cast<std::size_t>(token) >= tokens.vocab()) continue;
    const std::uint32_t bit = 1u << (static_cast<unsigned>(token) % 32);
    std::uint32_t& word = mask[static_cast<std::size_t>(token) / 32];
    word = may_end ? word | bit : word & ~bit;
  }
}

}  // namespace computron

#include "computron/runtime/guide_compiler.h"

#include <algorithm>

#include "computron/guided/guide_spec.h"

namespace computron {

GuideCompiler::GuideCompiler(std::function<TokenTrie(ModelId)> vocabulary) : vocabulary_(std::move(vocabulary)) {}

GuideCompiler::~GuideCompiler() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GuideCompiler::want(ModelId model, std::shared_ptr<const std::string> text) {
  {
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = entries_.try_emplace({model, *text});
    place->second.found = ++time_;
    if (!is_new) return;
    todo_.push_back(place->first);
    forget_oldest();
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

std::shared_ptr<Guide> GuideCompiler::find(ModelId model, const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find({model, text});
  if (found == entries_.end()) return nullptr;
  if (found->second.error) std::rethrow_exception(found->second.error);
  if (found->second.guide) found->second.found = ++time_;
  return found->second.guide;
}

// Sequences that are guided by it hold it for as long as they need it.
void GuideCompiler::forget_oldest() {
  while (entries_.size() > kKept) {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.done() && (oldest == entries_.end() || it->second.found < oldest->second.found)) oldest = it;
    }
    if (oldest == entries_.end()) return;
    entries_.erase(oldest);
  }
}

void GuideCompiler::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !todo_.empty(); });
    if (ends_) return;
    const Key key = std::move(todo_.front());
    todo_.pop_front();
    lock.unlock();
    Entry made;
    try {
      made.guide = make(key);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    Entry& entry = entries_[key];
    entry.guide = std::move(made.guide);
    entry.error = made.error;
  }
}

std::shared_ptr<Guide> GuideCompiler::make(const Key& key) {
  std::shared_ptr<const TokenTrie>& trie = tries_[key.first];
  if (!trie) trie = std::make_shared<const TokenTrie>(vocabulary_(key.first));
  return std::make_shared<Guide>(trie, compile_guide(key.second));
}

}  // namespace computron

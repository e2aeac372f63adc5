#include "computron/runtime/guide_compiler.h"

#include <algorithm>
#include <vector>

#include "computron/guided/guide_spec.h"

namespace computron {

GuideCompiler::GuideCompiler(std::function<TokenTrie(ModelId)> vocabulary, std::size_t most_kept_bytes)
    : vocabulary_(std::move(vocabulary)), most_kept_bytes_(most_kept_bytes) {}

GuideCompiler::~GuideCompiler() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool GuideCompiler::Before::operator()(const Key& a, const Key& b) const {
  if (a.first != b.first) return a.first < b.first;
  return a.second != b.second && *a.second < *b.second;
}

void GuideCompiler::want(ModelId model, std::shared_ptr<const std::string> text) {
  {
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = entries_.try_emplace({model, std::move(text)});
    place->second.found = ++time_;
    if (!is_new) return;
    count_bytes(place);
    todo_.push_back(place->first);
    forget_oldest();
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

std::shared_ptr<Guide> GuideCompiler::find(ModelId model, const std::shared_ptr<const std::string>& text) {
  const std::lock_guard lock(mutex_);
  if (used_.second) {
    const auto before = entries_.find(used_);
    if (before != entries_.end() && before->second.guide) count_bytes(before);
  }
  used_ = {model, text};
  const auto found = entries_.find(used_);
  if (found == entries_.end() || !found->second.guide) used_.second = nullptr;
  fit();
  if (found == entries_.end()) return nullptr;
  if (found->second.error) std::rethrow_exception(found->second.error);
  if (found->second.guide) found->second.found = ++time_;
  return found->second.guide;
}

std::size_t GuideCompiler::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void GuideCompiler::count_bytes(Entries::iterator it) {
  Entry& entry = it->second;
  const std::size_t bytes = it->first.second->size() + (entry.guide ? entry.guide->bytes() : 0);
  bytes_ += bytes - entry.bytes;
  entry.bytes = bytes;
}

void GuideCompiler::erase(Entries::iterator it) {
  bytes_ -= it->second.bytes;
  entries_.erase(it);
}

// Whoever uses it holds it for as long as it takes.
void GuideCompiler::forget_oldest() {
  while (entries_.size() > kKept) {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.done() && (oldest == entries_.end() || it->second.found < oldest->second.found)) oldest = it;
    }
    if (oldest == entries_.end()) return;
    erase(oldest);
  }
}

// Makes the guides that are kept take no more than they may: the oldest forget first, then they go. The one that is
// used, which the rank's thread may be changing, is left alone.
void GuideCompiler::fit() {
  if (bytes_ <= most_kept_bytes_) return;
  std::vector<Entries::iterator> oldest_first;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const bool is_used = used_.second && !Before()(it->first, used_) && !Before()(used_, it->first);
    if (it->second.guide && !is_used) oldest_first.push_back(it);
  }
  std::ranges::sort(oldest_first, {}, [](const auto& it) { return it->second.found; });
  for (const auto& it : oldest_first) {
    if (bytes_ <= most_kept_bytes_) return;
    it->second.guide->forget();
    count_bytes(it);
  }
  for (const auto& it : oldest_first) {
    if (bytes_ <= most_kept_bytes_) return;
    erase(it);
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
    const auto entry = entries_.try_emplace(key).first;
    entry->second.guide = std::move(made.guide);
    entry->second.error = made.error;
    count_bytes(entry);
    fit();
  }
}

std::shared_ptr<Guide> GuideCompiler::make(const Key& key) {
  std::shared_ptr<const TokenTrie>& trie = tries_[key.first];
  if (!trie) trie = std::make_shared<const TokenTrie>(vocabulary_(key.first));
  return std::make_shared<Guide>(trie, compile_guide(*key.second));
}

}  // namespace computron

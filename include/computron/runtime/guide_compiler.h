// Makes guides of what requests ask their answers to be, beside serving.
//
//   the rank's thread   wants a guide when a step that names it arrives; looks for it before each token that it is
//                       about, and uses it until it looks for the next one
//   the compiler's      reads a model's vocabulary the first time it is wanted, compiles the guide and its first mask
//
// A guide is known by its model and text. The last kKept ones that were found are kept, so that requests that ask for
// the same, one behind the other, have it made once; fewer where they take more than a bound of memory. Then those that
// have not been used longest forget their masks and states, and where that is not enough, they go. Sequences hold none:
// a guide that is missing is wanted and made again, which costs time and changes no answer. So one guide must fit, and
// does: Guide::kMaxBytes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/types.h"
#include "computron/guided/guide.h"

namespace computron {

class GuideCompiler {
 public:
  static constexpr std::size_t kKept = 512;
  // Of all guides together, unless a job says otherwise, and at least: one that is used, one that is being made, and
  // one that is kept until it is found. Beside vocabularies.
  static constexpr std::size_t kMaxBytes = 4 * Guide::kMaxBytes;
  static constexpr std::size_t kLeastBytes = 3 * Guide::kMaxBytes;
  // What those that are neither used nor being made may take of so many bytes, when they were used last.
  static std::size_t kept_of(std::size_t all_bytes) {
    ensure(all_bytes >= kLeastBytes, "guides have too little memory");
    return all_bytes - 2 * Guide::kMaxBytes;
  }

  // `vocabulary` is called by the compiler's thread, once a model.
  explicit GuideCompiler(std::function<TokenTrie(ModelId)> vocabulary,
                         std::size_t most_kept_bytes = kept_of(kMaxBytes));
  ~GuideCompiler();
  GuideCompiler(const GuideCompiler&) = delete;
  GuideCompiler& operator=(const GuideCompiler&) = delete;

  // Begins to make the guide unless it is there or being made. The thread starts with the first one.
  void want(ModelId model, std::shared_ptr<const std::string> text);
  // Null while it is being made, and where nobody wants it or it had to go. It is the caller's to use until the next
  // find(). Throws what making it threw: rank 0 has compiled the text before, so that is about the vocabulary, or a
  // fault of this program.
  std::shared_ptr<Guide> find(ModelId model, const std::shared_ptr<const std::string>& text);

  // Of the guides that are kept, when they were used last, and of the texts of all that are wanted.
  std::size_t kept_bytes() const;

 private:
  using Key = std::pair<ModelId, std::shared_ptr<const std::string>>;
  struct Before {  // by texts
    bool operator()(const Key& a, const Key& b) const;
  };
  struct Entry {
    std::shared_ptr<Guide> guide;
    std::exception_ptr error;
    std::size_t bytes = 0;    // of the text, and of the guide when it was used last
    std::uint64_t found = 0;  // when it was found or wanted last
    bool done() const { return guide != nullptr || error != nullptr; }
  };
  using Entries = std::map<Key, Entry, Before>;
  void run();
  std::shared_ptr<Guide> make(const Key& key);
  void count_bytes(Entries::iterator it);
  void erase(Entries::iterator it);
  void forget_oldest();
  void fit();

  const std::function<TokenTrie(ModelId)> vocabulary_;
  const std::size_t most_kept_bytes_;
  std::map<ModelId, std::shared_ptr<const TokenTrie>> tries_;  // of the compiler's thread
  mutable std::mutex mutex_;                                   // of all below
  std::condition_variable changed_;
  Entries entries_;
  std::size_t bytes_ = 0;  // of all entries
  Key used_;               // by the rank's thread, if its text is not null
  std::deque<Key> todo_;
  std::uint64_t time_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace computron

// Makes guides of what requests ask their answers to be, beside serving.
//
//   the rank's thread   wants a guide when a step that names it arrives; looks for it before the first token that the
//                       guide is about
//   the compiler's      reads a model's vocabulary the first time it is wanted, compiles the guide and its first mask
//
// A guide is known by its model and text. The last kKept ones that were found are kept, so that requests that ask for
// the same, one behind the other, have it made once.
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

#include "computron/base/types.h"
#include "computron/guided/guide.h"

namespace computron {

class GuideCompiler {
 public:
  static constexpr std::size_t kKept = 32;

  // `vocabulary` is called by the compiler's thread, once a model.
  explicit GuideCompiler(std::function<TokenTrie(ModelId)> vocabulary);
  ~GuideCompiler();
  GuideCompiler(const GuideCompiler&) = delete;
  GuideCompiler& operator=(const GuideCompiler&) = delete;

  // Begins to make the guide unless it is there or being made. The thread starts with the first one.
  void want(ModelId model, std::shared_ptr<const std::string> text);
  // Null while it is being made. Throws what making it threw: rank 0 has compiled the text before, so that is about the
  // vocabulary, or a fault of this program.
  std::shared_ptr<Guide> find(ModelId model, const std::string& text);

 private:
  using Key = std::pair<ModelId, std::string>;
  struct Entry {
    std::shared_ptr<Guide> guide;
    std::exception_ptr error;
    std::uint64_t found = 0;  // when it was found or wanted last
    bool done() const { return guide != nullptr || error != nullptr; }
  };
  void run();
  std::shared_ptr<Guide> make(const Key& key);
  void forget_oldest();

  const std::function<TokenTrie(ModelId)> vocabulary_;
  std::map<ModelId, std::shared_ptr<const TokenTrie>> tries_;  // of the compiler's thread
  std::mutex mutex_;                                           // of all below
  std::condition_variable changed_;
  std::map<Key, Entry> entries_;
  std::deque<Key> todo_;
  std::uint64_t time_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace computron

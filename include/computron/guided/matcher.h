// Follows texts through a grammar byte by byte.
//
// A grammar with calls is a pushdown automaton that may be in several configurations at once: a node, and the stack of
// nodes to return to. The matcher numbers the sets of configurations that it meets and keeps where each byte leads from
// them: a deterministic automaton that is made as it is walked, over classes of bytes that no edge tells apart.
//
// A state never depends on what else was matched before, only its number does. Configurations are kept in the order in
// which they are found, and only the first kMaxConfigurations of them, with no more than kMaxReturns returns in all
// their stacks: beyond that, some of the texts of an ambiguous grammar are left out, the same ones always.
//
// What has been found out may be forgotten at any time (keep_only()), but for the states that are still needed: it is
// found out again, and is the same. A state may outlive its matcher, too (save()).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "computron/guided/grammar.h"

namespace computron {

class Matcher {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;  // no text begins so
  static constexpr std::size_t kMaxConfigurations = 512, kMaxReturns = 8192;

  // Shares the grammar, which is trimmed.
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  State start() const { return start_; }
  // Where a byte leads from a state; kDead where it may not come.
  State next(State state, std::uint8_t byte) {
    State& to = transitions_[static_cast<std::size_t>(state) * classes_ + class_of_[byte]];
    return to != kUnknown ? to : find_next(state, byte);
  }
  // The text so far is one of the grammar.
  bool accepts(State state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  // How many configurations a state is.
  std::size_t width(State state) const { return states_[static_cast<std::size_t>(state)].configurations.size(); }
  // What next() takes the first time, and then no more: configurations that read the byte, and nodes passed without
  // reading behind them, but for kFewPassed each. Requires that it has been called; follows from grammar and text
  // alone.
  std::size_t cost(State state, std::uint8_t byte) const {
    return costs_[static_cast<std::size_t>(state) * classes_ + class_of_[byte]];
  }
  // In a state that reads any characters of a JSON string: how many, at most, until its quote; 0 in any other. Other
  // texts may go on, too, unless `alone`.
  struct FreeText {
    std::uint32_t characters = 0;
    bool alone = false;
  };
  FreeText free_text(State state) const;

  // A state without its matcher; kDead, too.
  class Saved;
  Saved save(State state) const;
  // In any matcher of a grammar that was made of the same guide.
  State restore(const Saved& saved);

  // Forgets all but the start and these states, which get other numbers; kDead stays kDead.
  void keep_only(std::span<State> states);
  // Changes when states get other numbers; never that of another matcher.
  std::uint64_t epoch() const { return epoch_; }

  std::size_t states() const { return states_.size(); }
  // Of memory, about; kept_bytes() without what arrays have in reserve, which is as much again at most.
  std::size_t bytes() const;
  std::size_t kept_bytes() const { return kept_bytes_; }
  // That a state takes at most if it is the only one that is kept; follows from grammar and text alone.
  std::size_t bytes_of(State state) const { return bytes_of(states_[static_cast<std::size_t>(state)]); }

 private:
  static constexpr State kUnknown = -2;
  static constexpr std::size_t kFewPassed = 8;

  // Where a text stands: at a node that reads, with a stack. Within a JSON string: `count` characters behind its
  // beginning (no more than tell anything), and `part` of the next one.
  struct Configuration {
    GrammarNodeId node = 0;
    std::uint32_t stack = 0;
    std::uint32_t count = 0;
    std::uint32_t part = 0;
    bool operator==(const Configuration&) const = default;
  };
  struct Set {
    std::vector<Configuration> configurations;
    std::uint32_t returns = 0;  // in their stacks
    bool accepts = false;
    bool operator==(const Set&) const = default;
  };
  struct Frame {
    GrammarNodeId to = 0;      // where the caller goes on
    std::uint32_t parent = 0;  // the rest of the stack
    std::uint32_t depth = 0;
  };
  class Closure;
  using MovedStacks = std::unordered_map<std::uint32_t, std::uint32_t>;
  static constexpr std::size_t kOfAState = sizeof(Set) + 64, kOfAFrame = sizeof(Frame) + 48;

  void make_classes();
  void forget_all();
  std::size_t bytes_of(const Set& set) const;
  // The stack of `frames` among other frames: add(to, parent) gives the numbers there.
  template <class Add>
  static std::uint32_t moved_stack(std::uint32_t stack, const std::vector<Frame>& frames, MovedStacks& moved,
                                   Add&& add);
  State find_next(State state, std::uint8_t byte);
  State number_of(Set set);
  std::uint32_t push(GrammarNodeId to, std::uint32_t parent);
  void read_text(const Configuration& from, std::uint8_t byte, Closure& closure) const;

  std::shared_ptr<const Grammar> grammar_;
  std::array<std::uint8_t, 256> class_of_{};
  std::size_t classes_ = 0;
  std::vector<Frame> frames_;                                    // [stack]; the first is the empty one
  std::unordered_map<std::uint64_t, std::uint32_t> frame_ids_;   // by node and parent
  std::vector<Set> states_;                                      // [state]
  std::vector<State> transitions_;                               // [state, class]
  std::vector<std::uint32_t> costs_;                             // [state, class] of those that are known
  std::unordered_multimap<std::uint64_t, State> state_numbers_;  // by digest of the set
  std::size_t kept_bytes_ = 0;
  std::uint64_t epoch_ = 0;
  State start_ = kDead;
};

class Matcher::Saved {
 private:
  friend class Matcher;
  Set set_;  // stacks are numbers in frames_
  std::vector<Frame> frames_ = std::vector<Frame>(1);
};

}  // namespace computron

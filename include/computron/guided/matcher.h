// Follows texts through a grammar byte by byte.
//
// A grammar with calls is a pushdown automaton that may be in several configurations at once: a node, and the stack of
// nodes to return to. The matcher numbers the sets of configurations that it meets and keeps where each byte leads from
// them: a deterministic automaton that is made as it is walked, over classes of bytes that no edge tells apart.
//
// A state never depends on what else was matched before, only its number does. Configurations are kept in the order in
// which they are found, and only the first kMaxConfigurations of them: beyond that, some of the texts of an ambiguous
// grammar are left out, the same ones always.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "computron/guided/grammar.h"

namespace computron {

class Matcher {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;  // no text begins so
  static constexpr std::size_t kMaxConfigurations = 512;

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

  // The same state of another matcher of the same grammar.
  State take_over(const Matcher& other, State state);

  std::size_t states() const { return states_.size(); }
  // Of what it has kept, about.
  std::size_t bytes() const;

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
    bool accepts = false;
    bool operator==(const Set&) const = default;
  };
  struct Frame {
    GrammarNodeId to = 0;      // where the caller goes on
    std::uint32_t parent = 0;  // the rest of the stack
    std::uint32_t depth = 0;
  };
  class Closure;

  void make_classes();
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
  std::size_t configurations_ = 0;                               // in all states
  State start_ = kDead;
};

}  // namespace computron

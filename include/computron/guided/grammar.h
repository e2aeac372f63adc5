// What a guided text may be, as rules over bytes: a network of nodes in which a rule may call others, itself too.
//
//   node --byte in [first, last]--> node       reads one byte
//   node --silently--> node                    reads nothing
//   node --rule--> node                        reads what the rule reads, then goes on here
//   node --characters of a JSON string, and its closing quote--> node
//
// A text is one of the grammar where a way from the start rule's first node to an accepting node of it reads the text.
// From a trimmed grammar's nodes an accepting one can always be reached, and `depths` says how many rules must be open
// at once for that: a matcher (matcher.h) lets nothing in that would have to nest deeper than it may, so that what it
// lets in never leads into a dead end.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace computron {

using GrammarNodeId = std::uint32_t;
using GrammarRuleId = std::uint32_t;

// The characters of a JSON string from behind its opening quote on, and its closing quote.
struct GrammarText {
  static constexpr std::uint32_t kUnbounded = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t min = 0;  // code points
  std::uint32_t max = kUnbounded;
  bool escapes = true;  // with a backslash; a surrogate is never written as one
  GrammarNodeId to = 0;
};

struct GrammarNode {
  struct Bytes {
    std::uint8_t first = 0, last = 0;
    GrammarNodeId to = 0;
  };
  struct Call {
    GrammarRuleId rule = 0;
    GrammarNodeId to = 0;
  };
  std::vector<Bytes> bytes;
  std::vector<GrammarNodeId> silent;
  std::vector<Call> calls;
  int text = -1;         // in Grammar::texts; -1: none
  bool accepts = false;  // its rule may end here

  bool is_end() const { return accepts && bytes.empty() && silent.empty() && calls.empty() && text < 0; }
};

struct Grammar {
  static constexpr std::uint32_t kMaxDepth = 256;
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  std::vector<GrammarNode> nodes;
  std::vector<GrammarText> texts;
  std::vector<GrammarNodeId> rules;   // [rule] its first node
  std::vector<std::uint32_t> depths;  // [node] rules that must be open at once, at least, from there to the end of the
                                      // node's own rule; kNever: it has no end
  std::uint32_t max_depth = kMaxDepth;  // rules that may be open at once: texts that nest deeper are left out
  GrammarRuleId start = 0;

  // Takes away what leads nowhere, and fills `depths`. RequestError{invalid_parameter} where nothing is left, or a rule
  // begins with itself.
  void trim();

  // Of memory: at most kMaxBytes, as a GrammarBuilder makes it.
  std::size_t bytes() const;
  static constexpr std::size_t kMaxBytes = std::size_t{20} << 20;
};

// Builds a grammar piece by piece: each function adds what leads from one node to another.
class GrammarBuilder {
 public:
  static constexpr std::size_t kMaxNodes = 100'000, kMaxEdges = 400'000;

  // RequestError{invalid_parameter} beyond kMaxNodes, and for edges beyond kMaxEdges.
  GrammarNodeId add_node();
  void add_bytes(GrammarNodeId from, std::uint8_t first, std::uint8_t last, GrammarNodeId to);
  void add_silent(GrammarNodeId from, GrammarNodeId to);
  void add_call(GrammarNodeId from, GrammarRuleId rule, GrammarNodeId to);
  void add_text(GrammarNodeId from, const GrammarText& text);

  // These return the node behind what they add.
  GrammarNodeId literal(GrammarNodeId from, std::string_view bytes);
  GrammarNodeId call(GrammarNodeId from, GrammarRuleId rule);
  // One of the texts; beginnings that they share are shared.
  GrammarNodeId one_of(GrammarNodeId from, const std::vector<std::string_view>& texts);

  // A rule whose first node is new; what it reads is added later, and ends in accept().
  GrammarRuleId add_rule();
  GrammarNodeId first_node(GrammarRuleId rule) const { return grammar_.rules[rule]; }
  void accept(GrammarNodeId node) { grammar_.nodes[node].accepts = true; }

  // Trimmed, beginning with `start`.
  Grammar take(GrammarRuleId start);

 private:
  void count_edge();

  Grammar grammar_;
  std::size_t edges_ = 0;
};

}  // namespace computron

#include "computron/guided/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <unordered_set>
#include <utility>

#include "src/guided/refusal.h"

namespace computron {
namespace {

// How many rules must be open at once to come from each node to its rule's end: by Knuth's generalisation of Dijkstra's
// algorithm (1977), since an edge costs at least what lies behind it.
class DepthSearch {
 public:
  explicit DepthSearch(const Grammar& grammar)
      : grammar_(grammar),
        cost_(grammar.nodes.size(), Grammar::kNever),
        before_(grammar.nodes.size()),
        callers_(grammar.rules.size()) {
    for (GrammarNodeId n = 0; n < grammar.nodes.size(); ++n) note_edges(n);
    for (GrammarRuleId r = 0; r < grammar.rules.size(); ++r) rules_at_[grammar.rules[r]].push_back(r);
  }

  // [node]
  std::vector<std::uint32_t> search() {
    for (GrammarNodeId n = 0; n < grammar_.nodes.size(); ++n) {
      if (grammar_.nodes[n].accepts) offer(n, 0);
    }
    while (!queue_.empty()) {
      const auto [cost, node] = queue_.top();
      queue_.pop();
      if (cost_[node] != Grammar::kNever) continue;
      cost_[node] = cost;
      for (const Before& before : before_[node]) offer_through(before, node);
      const auto rules = rules_at_.find(node);
      if (rules == rules_at_.end()) continue;
      for (const GrammarRuleId rule : rules->second) {
        for (const auto& [from, to] : callers_[rule]) offer_call(from, rule, to);
      }
    }
    return std::move(cost_);
  }

 private:
  // An edge, at the node that it leads to.
  struct Before {
    GrammarNodeId from = 0;
    std::optional<GrammarRuleId> rule = {};  // that it calls
  };

  void note_edges(GrammarNodeId n) {
    const GrammarNode& node = grammar_.nodes[n];
    for (const auto& edge : node.bytes) before_[edge.to].push_back({n});
    for (const GrammarNodeId to : node.silent) before_[to].push_back({n});
    for (const auto& call : node.calls) {
      before_[call.to].push_back({n, call.rule});
      callers_[call.rule].emplace_back(n, call.to);
    }
    if (node.text >= 0) before_[grammar_.texts[node.text].to].push_back({n});
  }

  void offer(GrammarNodeId node, std::uint32_t cost) {
    if (cost_[node] == Grammar::kNever) queue_.emplace(cost, node);
  }

  // `to` has just been settled: each edge is looked at once then, and a call once more when its rule is.
  void offer_through(const Before& before, GrammarNodeId to) {
    before.rule ? offer_call(before.from, *before.rule, to) : offer(before.from, cost_[to]);
  }

  void offer_call(GrammarNodeId from, GrammarRuleId rule, GrammarNodeId to) {
    const std::uint32_t inside = cost_[grammar_.rules[rule]], behind = cost_[to];
    if (inside != Grammar::kNever && behind != Grammar::kNever) offer(from, std::max(inside + 1, behind));
  }

  using Offer = std::pair<std::uint32_t, GrammarNodeId>;
  const Grammar& grammar_;
  std::vector<std::uint32_t> cost_;
  std::vector<std::vector<Before>> before_;
  std::vector<std::vector<std::pair<GrammarNodeId, GrammarNodeId>>> callers_;  // [rule] from, to
  std::map<GrammarNodeId, std::vector<GrammarRuleId>> rules_at_;               // by first node
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> queue_;
};

// Refuses rules that can come to call themselves before they have read anything: a matcher would never end.
class HeadSearch {
 public:
  explicit HeadSearch(const Grammar& grammar) : grammar_(grammar) { find_empty_rules(); }

  void check() {
    std::vector<Colour> colours(grammar_.rules.size(), Colour::kNew);
    for (GrammarRuleId rule = 0; rule < grammar_.rules.size(); ++rule) visit(rule, colours);
  }

 private:
  enum class Colour : std::uint8_t { kNew, kOpen, kDone };

  // The nodes that are reached from the rule's first one without reading anything, and the rules called there.
  struct Head {
    std::vector<GrammarRuleId> calls;
    bool may_be_empty = false;
  };
  Head head_of(GrammarRuleId rule) const {
    Head head;
    std::vector<GrammarNodeId> todo = {grammar_.rules[rule]};
    std::unordered_set<GrammarNodeId> seen(todo.begin(), todo.end());
    const auto go = [&](GrammarNodeId to) {
      if (seen.insert(to).second) todo.push_back(to);
    };
    while (!todo.empty()) {
      const GrammarNode& node = grammar_.nodes[todo.back()];
      todo.pop_back();
      head.may_be_empty |= node.accepts;
      for (const GrammarNodeId to : node.silent) go(to);
      for (const auto& call : node.calls) {
        head.calls.push_back(call.rule);
        if (empty_[call.rule]) go(call.to);
      }
    }
    return head;
  }

  void find_empty_rules() {
    empty_.assign(grammar_.rules.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (GrammarRuleId rule = 0; rule < grammar_.rules.size(); ++rule) {
        if (empty_[rule] || !head_of(rule).may_be_empty) continue;
        empty_[rule] = changed = true;
      }
    }
  }

  // Depth first, with a stack of its own: chains of rules may be long.
  void visit(GrammarRuleId first, std::vector<Colour>& colours) {
    if (colours[first] != Colour::kNew) return;
    std::vector<std::pair<GrammarRuleId, std::vector<GrammarRuleId>>> path;
    const auto open = [&](GrammarRuleId rule) {
      colours[rule] = Colour::kOpen;
      path.emplace_back(rule, head_of(rule).calls);
    };
    open(first);
    while (!path.empty()) {
      auto& [rule, calls] = path.back();
      if (calls.empty()) {
        colours[rule] = Colour::kDone;
        path.pop_back();
        continue;
      }
      const GrammarRuleId next = calls.back();
      calls.pop_back();
      if (colours[next] == Colour::kOpen) refuse_guide("it refers to itself with nothing in between");
      if (colours[next] == Colour::kNew) open(next);
    }
  }

  const Grammar& grammar_;
  std::vector<bool> empty_;  // [rule] it may read nothing
};

}  // namespace

void Grammar::trim() {
  HeadSearch(*this).check();
  depths = DepthSearch(*this).search();
  const auto leads_nowhere = [this](GrammarNodeId node) { return depths[node] == kNever; };
  for (GrammarNode& node : nodes) {
    std::erase_if(node.bytes, [&](const auto& edge) { return leads_nowhere(edge.to); });
    std::erase_if(node.silent, leads_nowhere);
    std::erase_if(node.calls,
                  [&](const auto& call) { return leads_nowhere(call.to) || leads_nowhere(rules[call.rule]); });
    if (node.text >= 0 && leads_nowhere(texts[static_cast<std::size_t>(node.text)].to)) node.text = -1;
  }
  const std::uint32_t least = depths[rules[start]];
  if (least == kNever) refuse_guide("no text is what it asks for");
  if (least > max_depth) refuse_guide(fmt::format("all that it asks for nests deeper than {} levels", max_depth));
}

std::size_t Grammar::bytes() const {
  constexpr std::size_t kOfABlock = 16;  // what an allocation takes beside its content, at most
  const auto of = []<class T>(const std::vector<T>& list) {
    return list.capacity() > 0 ? list.capacity() * sizeof(T) + kOfABlock : 0;
  };
  std::size_t bytes = sizeof(Grammar) + of(nodes) + of(texts) + of(rules) + of(depths);
  for (const GrammarNode& node : nodes) bytes += of(node.bytes) + of(node.silent) + of(node.calls);
  return bytes;
}

GrammarNodeId GrammarBuilder::add_node() {
  if (grammar_.nodes.size() >= kMaxNodes) refuse_guide(fmt::format("it needs more than {} states", kMaxNodes));
  grammar_.nodes.emplace_back();
  return static_cast<GrammarNodeId>(grammar_.nodes.size() - 1);
}

void GrammarBuilder::count_edge() {
  if (++edges_ > kMaxEdges) refuse_guide(fmt::format("it needs more than {} transitions", kMaxEdges));
}

void GrammarBuilder::add_bytes(GrammarNodeId from, std::uint8_t first, std::uint8_t last, GrammarNodeId to) {
  count_edge();
  grammar_.nodes[from].bytes.push_back({first, last, to});
}

void GrammarBuilder::add_silent(GrammarNodeId from, GrammarNodeId to) {
  count_edge();
  grammar_.nodes[from].silent.push_back(to);
}

void GrammarBuilder::add_call(GrammarNodeId from, GrammarRuleId rule, GrammarNodeId to) {
  count_edge();
  grammar_.nodes[from].calls.push_back({rule, to});
}

// A node has one text at most: the text begins at a node of its own.
void GrammarBuilder::add_text(GrammarNodeId from, const GrammarText& text) {
  const GrammarNodeId node = add_node();
  add_silent(from, node);
  grammar_.nodes[node].text = static_cast<int>(grammar_.texts.size());
  grammar_.texts.push_back(text);
}

GrammarNodeId GrammarBuilder::literal(GrammarNodeId from, std::string_view bytes) {
  for (const char byte : bytes) {
    const GrammarNodeId to = add_node();
    add_bytes(from, static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), to);
    from = to;
  }
  return from;
}

GrammarNodeId GrammarBuilder::call(GrammarNodeId from, GrammarRuleId rule) {
  const GrammarNodeId to = add_node();
  add_call(from, rule, to);
  return to;
}

GrammarNodeId GrammarBuilder::one_of(GrammarNodeId from, const std::vector<std::string_view>& texts) {
  const GrammarNodeId end = add_node();
  const GrammarNodeId first = add_node();  // what else begins at `from` is no part of the tree
  add_silent(from, first);
  std::map<std::pair<GrammarNodeId, char>, GrammarNodeId> tree;
  for (const std::string_view text : texts) {
    GrammarNodeId at = first;
    for (const char byte : text) {
      const auto [place, is_new] = tree.try_emplace({at, byte}, 0);
      if (is_new) {
        place->second = literal(at, {&byte, 1});
      }
      at = place->second;
    }
    add_silent(at, end);
  }
  return end;
}

GrammarRuleId GrammarBuilder::add_rule() {
  grammar_.rules.push_back(add_node());
  return static_cast<GrammarRuleId>(grammar_.rules.size() - 1);
}

Grammar GrammarBuilder::take(GrammarRuleId start) {
  grammar_.start = start;
  grammar_.trim();
  for (GrammarNode& node : grammar_.nodes) {
    node.bytes.shrink_to_fit();
    node.silent.shrink_to_fit();
    node.calls.shrink_to_fit();
  }
  grammar_.nodes.shrink_to_fit();
  grammar_.texts.shrink_to_fit();
  return std::move(grammar_);
}

}  // namespace computron

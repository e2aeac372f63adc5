#include "computron/guided/matcher.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/error.h"

namespace computron {
namespace {

// Parts of a character of a JSON string.
enum Part : std::uint32_t {
  kBetween,  // no part: a character begins here
  kOneMore,  // so many bytes of UTF-8 are to come
  kTwoMore,
  kThreeMore,
  kAfterE0,  // the next byte's range is smaller: no overlong forms, no surrogates, nothing beyond U+10FFFF
  kAfterED,
  kAfterF0,
  kAfterF4,
  kEscape,       // behind a backslash
  kFourDigits,   // of \uXXXX
  kAfterDigitD,  // which a surrogate would begin with, too
  kThreeDigits,
  kTwoDigits,
  kOneDigit,
  kNoPart,  // the byte cannot come
  kWhole,   // the character ends
};

bool between(std::uint8_t byte, std::uint8_t first, std::uint8_t last) { return first <= byte && byte <= last; }
bool is_hex(std::uint8_t byte) { return between(byte, '0', '9') || between(byte, 'a', 'f') || between(byte, 'A', 'F'); }
bool is_escape(std::uint8_t byte) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  return kLetters.find(static_cast<char>(byte)) != std::string_view::npos;
}

Part first_part(std::uint8_t byte, bool escapes) {
  if (byte == '\\') return escapes ? kEscape : kNoPart;
  if (byte == '"' || byte < 0x20) return kNoPart;
  if (byte < 0x80) return kWhole;
  if (between(byte, 0xC2, 0xDF)) return kOneMore;
  if (byte == 0xE0) return kAfterE0;
  if (byte == 0xED) return kAfterED;
  if (between(byte, 0xE1, 0xEF)) return kTwoMore;
  if (byte == 0xF0) return kAfterF0;
  if (byte == 0xF4) return kAfterF4;
  return between(byte, 0xF1, 0xF3) ? kThreeMore : kNoPart;
}

Part next_part(std::uint32_t part, std::uint8_t byte) {
  const auto if_so = [](bool right, Part then) { return right ? then : kNoPart; };
  switch (part) {
    case kOneMore:
      return if_so(between(byte, 0x80, 0xBF), kWhole);
    case kTwoMore:
      return if_so(between(byte, 0x80, 0xBF), kOneMore);
    case kThreeMore:
      return if_so(between(byte, 0x80, 0xBF), kTwoMore);
    case kAfterE0:
      return if_so(between(byte, 0xA0, 0xBF), kOneMore);
    case kAfterED:
      return if_so(between(byte, 0x80, 0x9F), kOneMore);
    case kAfterF0:
      return if_so(between(byte, 0x90, 0xBF), kTwoMore);
    case kAfterF4:
      return if_so(between(byte, 0x80, 0x8F), kTwoMore);
    case kEscape:
      return byte == 'u' ? kFourDigits : if_so(is_escape(byte), kWhole);
    case kFourDigits:
      return byte == 'd' || byte == 'D' ? kAfterDigitD : if_so(is_hex(byte), kThreeDigits);
    case kAfterDigitD:
      return if_so(between(byte, '0', '7'), kTwoDigits);
    case kThreeDigits:
      return if_so(is_hex(byte), kTwoDigits);
    case kTwoDigits:
      return if_so(is_hex(byte), kOneDigit);
    case kOneDigit:
      return if_so(is_hex(byte), kWhole);
    default:
      return kNoPart;
  }
}

// Bytes of one class lead to one state from any state.
void cut_text_classes(std::array<bool, 257>& begins) {
  constexpr std::array<int, 40> kFirsts = {
      0x20, '"', '#', '/', '0', '8', ':', 'A',  'D',  'E',  'G',  '\\', ']',  'a',  'b',  'c',  'd',  'e',  'f',  'g',
      'n',  'o', 'r', 's', 't', 'u', 'v', 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5};
  for (const int first : kFirsts) {
    begins[static_cast<std::size_t>(first)] = true;
  }
}

std::uint64_t next_epoch() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

// Gathers a state: what is reached from given places without reading, in the order of finding.
class Matcher::Closure {
 public:
  explicit Closure(Matcher& matcher) : matcher_(matcher) {}

  void add(GrammarNodeId node, std::uint32_t stack) {
    todo_.push_back({node, stack});
    while (!todo_.empty()) {
      const Place place = todo_.back();
      todo_.pop_back();
      visit(place);
    }
  }

  // Within a JSON string.
  void add_text(const Configuration& configuration) {
    if (std::ranges::find(set_.configurations, configuration) == set_.configurations.end()) keep(configuration);
  }

  // Nodes that have been passed or kept, and those that have been looked at in vain.
  std::size_t visited() const { return seen_.size() + refused_; }
  Set take() { return std::move(set_); }

 private:
  struct Place {
    GrammarNodeId node;
    std::uint32_t stack;
  };

  void keep(const Configuration& configuration) {
    const std::uint32_t returns = set_.returns + matcher_.frames_[configuration.stack].depth;
    if (set_.configurations.size() >= kMaxConfigurations || returns > kMaxReturns) return;
    set_.configurations.push_back(configuration);
    set_.returns = returns;
  }

  // What a node leads to comes off the pile in the node's order.
  void visit(const Place& place) {
    if (is_enough()) return;
    if (is_too_deep(place.node, place.stack) || !seen_.insert(key(place)).second) {
      ++refused_;
      return;
    }
    const Grammar& grammar = *matcher_.grammar_;
    const GrammarNode& node = grammar.nodes[place.node];
    if (node.text >= 0) add_text({.node = place.node, .stack = place.stack});
    if (!node.bytes.empty()) keep({.node = place.node, .stack = place.stack});
    const std::size_t begin = todo_.size();
    if (node.accepts) end_rule(place.stack);
    for (const GrammarNodeId to : node.silent) todo_.push_back({to, place.stack});
    for (const auto& call : node.calls) begin_rule(call, place.stack);
    std::reverse(todo_.begin() + static_cast<std::ptrdiff_t>(begin), todo_.end());
  }

  void end_rule(std::uint32_t stack) {
    if (stack == 0) {
      set_.accepts = true;
      return;
    }
    const Frame& frame = matcher_.frames_[stack];
    todo_.push_back({frame.to, frame.parent});
  }

  // Neither the rule nor what its caller does afterwards may be too deep. Frames are made for what is entered only.
  void begin_rule(const GrammarNode::Call& call, std::uint32_t stack) {
    const Grammar& grammar = *matcher_.grammar_;
    const bool last = grammar.nodes[call.to].is_end();  // the caller does nothing more: it needs no frame
    const GrammarNodeId first = grammar.rules[call.rule];
    if (is_too_deep(call.to, stack) || is_too_deep(first, stack, /*frames=*/last ? 0 : 1)) {
      ++refused_;
      return;
    }
    todo_.push_back({first, last ? stack : matcher_.push(call.to, stack)});
  }

  // From there no end can be reached within the limit of depth. Whatever is visited is at a node from which one can,
  // with stacks of such nodes, and so is at least one thing that it leads to: where a text has come to, it can end.
  // `frames`: on top of the stack.
  bool is_too_deep(GrammarNodeId node, std::uint32_t stack, std::uint64_t frames = 0) const {
    const Grammar& grammar = *matcher_.grammar_;
    return matcher_.frames_[stack].depth + frames + grammar.depths[node] > grammar.max_depth;
  }
  // More is left out, but not before there is a way on.
  bool is_enough() const { return visited() > 64 * kMaxConfigurations && !set_.configurations.empty(); }

  static std::uint64_t key(const Place& place) { return std::uint64_t{place.node} << 32 | place.stack; }

  Matcher& matcher_;
  Set set_;
  std::vector<Place> todo_;
  std::unordered_set<std::uint64_t> seen_;
  std::size_t refused_ = 0;
};

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  make_classes();
  forget_all();
  Closure closure(*this);
  closure.add(grammar_->rules[grammar_->start], 0);
  start_ = number_of(closure.take());
}

void Matcher::make_classes() {
  std::array<bool, 257> begins{};
  for (const GrammarNode& node : grammar_->nodes) {
    for (const auto& edge : node.bytes) {
      begins[edge.first] = true;
      begins[std::size_t{edge.last} + 1] = true;
    }
  }
  if (!grammar_->texts.empty()) cut_text_classes(begins);
  std::uint8_t number = 0;
  for (std::size_t byte = 0; byte < class_of_.size(); ++byte) {
    if (byte > 0 && begins[byte]) ++number;
    class_of_[byte] = number;
  }
  classes_ = std::size_t{number} + 1;
}

Matcher::State Matcher::find_next(State state, std::uint8_t byte) {
  Closure closure(*this);
  const Set& from = states_[static_cast<std::size_t>(state)];
  for (const Configuration& configuration : from.configurations) {
    const GrammarNode& node = grammar_->nodes[configuration.node];
    if (node.text >= 0) read_text(configuration, byte, closure);
    for (const auto& edge : node.bytes) {
      if (between(byte, edge.first, edge.last)) closure.add(edge.to, configuration.stack);
    }
  }
  const std::size_t reading = from.configurations.size(), few = kFewPassed * reading;
  const std::size_t cost = reading + (closure.visited() > few ? closure.visited() - few : 0);
  const State to = number_of(closure.take());  // `from` is no more
  const std::size_t transition = static_cast<std::size_t>(state) * classes_ + class_of_[byte];
  transitions_[transition] = to;
  costs_[transition] = static_cast<std::uint32_t>(cost);
  return to;
}

void Matcher::read_text(const Configuration& from, std::uint8_t byte, Closure& closure) const {
  const GrammarText& text = grammar_->texts[static_cast<std::size_t>(grammar_->nodes[from.node].text)];
  Configuration to = from;
  if (from.part == kBetween) {
    if (byte == '"' && from.count >= text.min) return closure.add(text.to, from.stack);
    if (text.max != GrammarText::kUnbounded && from.count >= text.max) return;
    to.part = first_part(byte, text.escapes);
  } else {
    to.part = next_part(from.part, byte);
  }
  if (to.part == kNoPart) return;
  if (to.part == kWhole) {
    to.part = kBetween;
    const std::uint32_t counts = text.max == GrammarText::kUnbounded ? text.min : text.max;
    to.count = std::min(from.count + 1, counts);
  }
  closure.add_text(to);
}

Matcher::State Matcher::number_of(Set set) {
  if (set.configurations.empty() && !set.accepts) return kDead;
  const std::uint64_t digest = digest64(std::as_bytes(std::span(set.configurations)));
  const auto [begin, end] = state_numbers_.equal_range(digest);
  for (auto it = begin; it != end; ++it) {
    if (states_[static_cast<std::size_t>(it->second)] == set) return it->second;
  }
  const auto number = static_cast<State>(states_.size());
  kept_bytes_ += bytes_of(set) - set.returns * kOfAFrame;  // frames are counted as they come
  set.configurations.shrink_to_fit();
  states_.push_back(std::move(set));
  transitions_.resize(transitions_.size() + classes_, kUnknown);
  costs_.resize(transitions_.size(), 0);
  state_numbers_.emplace(digest, number);
  return number;
}

std::uint32_t Matcher::push(GrammarNodeId to, std::uint32_t parent) {
  const auto [place, is_new] = frame_ids_.try_emplace(std::uint64_t{to} << 32 | parent, 0);
  if (is_new) {
    place->second = static_cast<std::uint32_t>(frames_.size());
    frames_.push_back({to, parent, frames_[parent].depth + 1});
    kept_bytes_ += kOfAFrame;
  }
  return place->second;
}

template <class Add>
std::uint32_t Matcher::moved_stack(std::uint32_t stack, const std::vector<Frame>& frames, MovedStacks& moved,
                                   Add&& add) {
  std::vector<std::uint32_t> path;
  for (; stack != 0 && !moved.contains(stack); stack = frames[stack].parent) path.push_back(stack);
  std::uint32_t to = stack == 0 ? 0 : moved.at(stack);
  for (; !path.empty(); path.pop_back()) {
    to = add(frames[path.back()].to, to);
    moved.emplace(path.back(), to);
  }
  return to;
}

Matcher::Saved Matcher::save(State state) const {
  Saved saved;
  if (state == kDead) return saved;
  saved.set_ = states_[static_cast<std::size_t>(state)];
  MovedStacks moved;
  const auto add = [&frames = saved.frames_](GrammarNodeId to, std::uint32_t parent) {
    frames.push_back({to, parent, frames[parent].depth + 1});
    return static_cast<std::uint32_t>(frames.size() - 1);
  };
  for (Configuration& c : saved.set_.configurations) c.stack = moved_stack(c.stack, frames_, moved, add);
  return saved;
}

Matcher::State Matcher::restore(const Saved& saved) {
  Set set = saved.set_;
  MovedStacks moved;
  const auto add = [this](GrammarNodeId to, std::uint32_t parent) { return push(to, parent); };
  for (Configuration& c : set.configurations) c.stack = moved_stack(c.stack, saved.frames_, moved, add);
  return number_of(std::move(set));
}

void Matcher::forget_all() {
  states_ = std::vector<Set>();
  transitions_ = std::vector<State>();
  costs_ = std::vector<std::uint32_t>();
  frames_ = std::vector<Frame>(1);
  frame_ids_ = std::unordered_map<std::uint64_t, std::uint32_t>();
  state_numbers_ = std::unordered_multimap<std::uint64_t, State>();
  kept_bytes_ = 0;
  epoch_ = next_epoch();
}

void Matcher::keep_only(std::span<State> states) {
  std::vector<Set> sets = std::move(states_);
  const std::vector<Frame> frames = std::move(frames_);
  forget_all();
  MovedStacks moved;
  std::unordered_map<State, State> numbers = {{kDead, kDead}};
  const auto add = [this](GrammarNodeId to, std::uint32_t parent) { return push(to, parent); };
  const auto keep = [&](State& state) {
    const auto [place, is_new] = numbers.try_emplace(state, kDead);
    if (is_new) {
      Set& set = sets[static_cast<std::size_t>(state)];
      for (Configuration& c : set.configurations) c.stack = moved_stack(c.stack, frames, moved, add);
      place->second = number_of(std::move(set));
    }
    state = place->second;
  };
  keep(start_);
  std::ranges::for_each(states, keep);
}

Matcher::FreeText Matcher::free_text(State state) const {
  const Set& set = states_[static_cast<std::size_t>(state)];
  FreeText most;
  for (const Configuration& c : set.configurations) {
    const int number = grammar_->nodes[c.node].text;
    if (number < 0 || c.part != kBetween) continue;
    const GrammarText& text = grammar_->texts[static_cast<std::size_t>(number)];
    most.characters =
        std::max(most.characters, text.max == GrammarText::kUnbounded ? GrammarText::kUnbounded : text.max - c.count);
  }
  most.alone = set.configurations.size() == 1;
  return most;
}

std::size_t Matcher::bytes_of(const Set& set) const {
  return kOfAState + classes_ * (sizeof(State) + sizeof(std::uint32_t)) +
         set.configurations.size() * sizeof(Configuration) + set.returns * kOfAFrame;
}

std::size_t Matcher::bytes() const {
  const auto reserve = []<class T>(const std::vector<T>& list) { return (list.capacity() - list.size()) * sizeof(T); };
  return sizeof(Matcher) + kept_bytes_ + reserve(states_) + reserve(transitions_) + reserve(costs_) + reserve(frames_);
}

}  // namespace computron

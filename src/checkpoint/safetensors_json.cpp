// The JSON of safetensors: header and index, event by event. A parsed document would have lost the keys that stand
// twice, and would hold whatever somebody nests in it.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "computron/base/json.h"
#include "computron/base/printable.h"
#include "computron/checkpoint/safetensors.h"

namespace computron {
namespace {

// Refuses every event; a parser allows what it expects. An event that returns goes on, all failures throw.
class StrictHandler : public JsonEvents {
 public:
  explicit StrictHandler(std::string about) : about_(std::move(about)) {}

  // The parser takes a zero byte for the end of the text and would say nothing of what follows.
  void parse(std::string_view text) {
    const std::size_t zero = text.find('\0');
    if (zero != std::string_view::npos) throw CheckpointError(fmt::format("{}: a zero byte at {}", about_, zero));
    if (const auto fault = read_json(text, *this)) {
      throw CheckpointError(fmt::format("{}: no valid JSON in UTF-8 at byte {}", about_, fault->position));
    }
  }

  void null() override { unexpected("null"); }
  void boolean(bool) override { unexpected("true or false"); }
  void negative(std::int64_t) override { unexpected("a negative number"); }
  void integer(std::uint64_t) override { unexpected("a number"); }
  void number(double) override { unexpected("a number that is no integer of 64 bits"); }
  void string(std::string&) override { unexpected("a string"); }
  void begin_object() override { unexpected("an object"); }
  void key(std::string&) override { unexpected("a key"); }
  void end_object() override { unexpected("the end of an object"); }
  void begin_list() override { unexpected("a list"); }
  void end_list() override { unexpected("the end of a list"); }

 protected:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}{}", about_, where(), what));
  }
  [[noreturn]] void unexpected(const char* what) const { fail(fmt::format("{} is not expected here", what)); }
  // The place in the document, as the beginning of a message.
  virtual std::string where() const = 0;

 private:
  std::string about_;
};

// Bits of an element; 0: unknown.
std::size_t bits_of(std::string_view dtype) {
  struct Known {
    std::string_view name;
    std::size_t bits;
  };
  static constexpr Known kKnown[] = {
      {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},        {"I64", 64},    {"I32", 32},
      {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},        {"U16", 16},    {"U8", 8},
      {"BOOL", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},      {"C64", 64}};
  const auto* known = std::ranges::find(kKnown, dtype, &Known::name);
  return known == std::end(kKnown) ? 0 : known->bits;
}

class HeaderHandler final : public StrictHandler {
 public:
  HeaderHandler(const std::string& path, std::size_t data_bytes)
      : StrictHandler(path + ": safetensors header"), data_bytes_(data_bytes) {}

  SafetensorsEntries take() {
    check_cover();
    return std::move(entries_);
  }

  void begin_object() override {
    if (at_ == At::kOutside) return go(At::kFile);
    if (at_ == At::kFile) return go(name_ == "__metadata__" ? At::kMetadata : At::kTensor);
    unexpected("an object");
  }

  void end_object() override {
    if (at_ == At::kTensor) finish_tensor();
    return go(at_ == At::kFile ? At::kOutside : At::kFile);
  }

  void key(std::string& name) override {
    if (at_ == At::kFile) return start_entry(name);
    const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
    if (at_ == At::kTensor && !known) fail(fmt::format("unknown key '{}'", printable(name)));
    if (!keys_.insert(name).second) refuse_duplicate(name);
    if (keys_.size() > kMaxSafetensorsTensors) fail("too many keys");
    part_ = name;
  }

  void string(std::string& text) override {
    if (at_ == At::kMetadata) return;
    if (at_ != At::kTensor || part_ != "dtype") unexpected("a string");
    if (bits_of(text) == 0) fail(fmt::format("unknown dtype '{}'", printable(text)));
    entry_.dtype = text;
  }

  void begin_list() override {
    if (at_ != At::kTensor || part_ == "dtype") unexpected("a list");
    return go(part_ == "shape" ? At::kShape : At::kOffsets);
  }

  void end_list() override { return go(At::kTensor); }

  void integer(std::uint64_t value) override {
    if (at_ != At::kShape && at_ != At::kOffsets) unexpected("a number");
    auto& numbers = at_ == At::kShape ? entry_.shape : offsets_;
    if (numbers.size() == (at_ == At::kShape ? kMaxSafetensorsRank : 2)) {
      fail(fmt::format("more than {} numbers in '{}'", numbers.size(), part_));
    }
    numbers.push_back(value);
  }

 private:
  enum class At { kOutside, kFile, kMetadata, kTensor, kShape, kOffsets };

  void go(At at) { at_ = at; }

  void start_entry(const std::string& name) {
    const bool fresh = name == "__metadata__" ? !std::exchange(has_metadata_, true) : !entries_.contains(name);
    if (!fresh) refuse_duplicate(name);
    if (entries_.size() == kMaxSafetensorsTensors) fail(fmt::format("more than {} tensors", kMaxSafetensorsTensors));
    name_ = name;
    entry_ = {};
    offsets_.clear();
    keys_.clear();
  }

  void finish_tensor() {
    for (const char* part : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(part)) fail(fmt::format("'{}' is missing", part));
    }
    if (offsets_.size() != 2) fail(fmt::format("'data_offsets' has {} numbers instead of 2", offsets_.size()));
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    check_size();
    entries_.emplace(name_, std::move(entry_));
  }

  void check_size() const {
    if (entry_.begin > entry_.end || entry_.end > data_bytes_) {
      fail(fmt::format("bytes {} to {} are outside the {} bytes of data", entry_.begin, entry_.end, data_bytes_));
    }
    std::size_t bits = bits_of(entry_.dtype);
    for (const std::size_t extent : entry_.shape) {
      if (__builtin_mul_overflow(bits, extent, &bits)) fail("the size of its shape overflows");
    }
    if (bits % 8 != 0) fail("its shape and dtype are no whole number of bytes");
    if (bits / 8 == entry_.end - entry_.begin) return;
    fail(fmt::format("{} bytes stored, its shape and dtype need {}", entry_.end - entry_.begin, bits / 8));
  }

  // One tensor's bytes follow the other's, from the first byte to the last.
  void check_cover() {
    std::vector<const SafetensorsEntries::value_type*> order;
    for (const auto& named : entries_) order.push_back(&named);
    std::ranges::sort(order, {}, [](const auto* named) { return std::pair(named->second.begin, named->second.end); });
    std::size_t covered = 0;
    for (const auto* named : order) {
      name_ = named->first;
      const std::size_t begin = named->second.begin;
      if (begin > covered) fail(fmt::format("bytes {} to {} before it belong to no tensor", covered, begin));
      if (begin < covered) fail(fmt::format("begins at byte {}, within the tensor before it", begin));
      covered = named->second.end;
    }
    name_.clear();
    if (covered != data_bytes_) {
      fail(fmt::format("{} bytes of data are described, the file has {} (truncated, or too long)", covered,
                       data_bytes_));
    }
  }

  [[noreturn]] void refuse_duplicate(const std::string& name) const {
    fail(fmt::format("the key '{}' stands twice", printable(name)));
  }

  std::string where() const override { return name_.empty() ? "" : fmt::format("tensor '{}': ", printable(name_)); }

  const std::size_t data_bytes_;
  At at_ = At::kOutside;
  std::string name_, part_;     // the keys that are open
  std::set<std::string> keys_;  // of this tensor or the metadata, so far
  SafetensorsEntry entry_;      // this tensor
  std::vector<std::size_t> offsets_;
  bool has_metadata_ = false;
  SafetensorsEntries entries_;
};

// Why an index may not name this file; nullptr if it may.
const char* fault_of_file_name(std::string_view name) {
  if (!name.ends_with(".safetensors")) return "not the name of a safetensors file";
  if (name.find_first_of("/\\") != std::string_view::npos) return "a path and not a plain name in the folder";
  if (name.starts_with('.')) return "a hidden file";
  const bool control = std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return control ? "a name with control characters" : nullptr;
}

// Only the object "weight_map" matters; what stands beside it (metadata) is passed over, up to some depth.
class IndexHandler final : public StrictHandler {
 public:
  explicit IndexHandler(const std::string& path) : StrictHandler(path) {}

  std::map<std::string, std::string> take() {
    if (!has_map_) fail("'weight_map' is missing");
    if (map_.empty()) fail("'weight_map' is empty");
    return std::move(map_);
  }

  void null() override { pass("null"); }
  void boolean(bool) override { pass("true or false"); }
  void negative(std::int64_t) override { pass("a number"); }
  void integer(std::uint64_t) override { pass("a number"); }
  void number(double) override { pass("a number"); }
  void begin_list() override {
    pass("a list");
    deepen();
  }
  void end_list() override { --depth_; }
  void end_object() override {
    in_map_ = false;
    --depth_;
  }

  void begin_object() override {
    if (in_map_) unexpected("an object");
    in_map_ = depth_ == 1 && key_ == "weight_map";
    return deepen();
  }

  void key(std::string& name) override {
    if (depth_ == 1 && name == "weight_map" && std::exchange(has_map_, true)) fail("the key 'weight_map' stands twice");
    if (in_map_ && map_.contains(name)) fail(fmt::format("the tensor '{}' stands twice", printable(name)));
    if (in_map_ && map_.size() == kMaxSafetensorsTensors) fail("too many tensors");
    key_ = name;
  }

  void string(std::string& text) override {
    if (!in_map_) return pass("a string");
    if (const char* fault = fault_of_file_name(text)) {
      fail(fmt::format("tensor '{}' is said to be in '{}', {}", printable(key_), printable(text), fault));
    }
    map_.emplace(key_, text);
  }

 private:
  static constexpr int kMaxDepth = 16;

  // A value that may stand anywhere but in the map, in its place, or instead of the whole.
  void pass(const char* what) const {
    if (in_map_ || depth_ == 0 || (depth_ == 1 && key_ == "weight_map")) unexpected(what);
  }
  void deepen() {
    if (++depth_ > kMaxDepth) fail(fmt::format("nested deeper than {}", kMaxDepth));
  }
  std::string where() const override { return in_map_ ? "weight_map: " : ""; }

  int depth_ = 0;
  bool has_map_ = false, in_map_ = false;
  std::string key_;
  std::map<std::string, std::string> map_;
};

}  // namespace

SafetensorsEntries parse_safetensors_header(std::string_view header, std::size_t data_bytes, const std::string& path) {
  if (!header.starts_with('{')) throw CheckpointError(path + ": safetensors header: does not begin with '{'");
  HeaderHandler handler(path, data_bytes);
  handler.parse(header);
  return handler.take();
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& path) {
  IndexHandler handler(path);
  handler.parse(text);
  return handler.take();
}

}  // namespace computron

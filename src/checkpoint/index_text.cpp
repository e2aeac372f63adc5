#include "src/checkpoint/index_text.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <optional>

#include "computron/base/printable.h"
#include "src/checkpoint/format.h"
#include "src/checkpoint/index_check.h"

namespace computron {
namespace {

constexpr std::string_view kFirstLine = "computron-index 1";
constexpr std::size_t kMaxMessageBytes = 4096;

// Of "tensor" and the numbers of its line, beside the name and the digests.
constexpr std::size_t kMaxLineBytes = 256;

void append_hex(std::string& out, const void* data, std::size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto* from = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) {
    out += kDigits[from[i] >> 4];
    out += kDigits[from[i] & 15];
  }
}

void append_text(std::string& out, const char* key, std::string_view value) {
  out += key;
  out += ' ';
  append_hex(out, value.data(), value.size());
  out += '\n';
}

std::string type_text(const TensorEntry& tensor) {
  std::string dtype(name_of(tensor.dtype));
  if (tensor.dtype == DType::kE4M3)
    return fmt::format("{}:{:016x}", dtype, std::bit_cast<std::uint64_t>(tensor.factor));
  if (tensor.group == 0) return dtype;
  return tensor.group == WeightType::kWholeRow ? dtype + ":row" : fmt::format("{}:{}", dtype, tensor.group);
}

std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text;
  for (const std::size_t extent : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text;
}

void append_digests(std::string& out, const StoredBytes& stored) {
  out += ' ';
  for (const Digest128& digest : stored.digests) append_hex(out, digest.data(), digest.size());
  out += '\n';
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The text's lines and words, one after the other; all errors name the line.
class Words {
 public:
  Words(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: rejected: line {} of the parser's answer: {}", path_, line_number_, what));
  }
  void require(bool condition, const char* what) const {
    if (!condition) fail(what);
  }

  void next_line() {
    require(!more_, "too many words");
    ++line_number_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail(rest_.empty() ? "missing" : "it has no end");
    words_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    more_ = true;
  }

  std::string_view whole_line() {
    more_ = false;
    return words_;
  }

  // May be empty, as any part between two spaces.
  std::string_view word() {
    require(more_, "too few words");
    const std::string_view word = words_.substr(0, words_.find(' '));
    more_ = word.size() < words_.size();
    words_.remove_prefix(word.size() + (more_ ? 1 : 0));
    return word;
  }

  std::uint64_t number() { return number(word()); }

  std::uint64_t number(std::string_view digits) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail(fmt::format("'{}' is no number", printable(digits)));
    }
    return value;
  }

  // Hexadecimal; as many bytes as there are, at most `limit`.
  std::string bytes(std::size_t limit) {
    const std::string_view digits = word();
    require(digits.size() % 2 == 0 && digits.size() / 2 <= limit, "too long, or half a byte");
    std::string out(digits.size() / 2, '\0');
    decode(digits, out.data());
    return out;
  }

  void decode(std::string_view digits, char* to) const {
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
      const int high = digit_of(digits[i]), low = digit_of(digits[i + 1]);
      require(high >= 0 && low >= 0, "not hexadecimal");
      *to++ = static_cast<char>(16 * high + low);
    }
  }

  void expect_end() const {
    require(!more_, "too many words");
    require(rest_.empty(), "something follows");
  }

 private:
  std::string_view rest_, words_;  // after this line; of this line
  const std::string& path_;
  std::size_t line_number_ = 0;
  bool more_ = false;  // a word of this line is still to come
};

std::string name_in(Words& words) {
  const std::string_view name = words.word();
  if (const auto fault = format::fault_of_name(name)) words.fail(*fault);
  return std::string(name);
}

DType dtype_of(std::string_view name, const Words& words) {
  for (const DType dtype : kAllDTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  words.fail(fmt::format("'{}' is no type of tensors", printable(name)));
}

int group_of(std::string_view text, const Words& words) {
  if (text == "row") return WeightType::kWholeRow;
  const std::uint64_t group = words.number(text);
  words.require(group < static_cast<std::uint64_t>(WeightType::kWholeRow), "a group that is too long");
  return static_cast<int>(group);
}

// The bits of a double.
double factor_of(std::string_view digits, const Words& words) {
  std::uint64_t bits = 0;
  words.require(digits.size() == 2 * sizeof bits, "a factor that is not of 64 bits");
  for (const char c : digits) {
    words.require(digit_of(c) >= 0, "not hexadecimal");
    bits = bits << 4 | static_cast<std::uint64_t>(digit_of(c));
  }
  return std::bit_cast<double>(bits);
}

void type_in(Words& words, TensorEntry& tensor) {
  const std::string_view word = words.word();
  const std::size_t colon = word.find(':');
  tensor.dtype = dtype_of(word.substr(0, colon), words);
  if (tensor.dtype == DType::kE4M3) {
    words.require(colon != std::string_view::npos, "e4m3 without a factor");
    tensor.factor = factor_of(word.substr(colon + 1), words);
  } else if (colon != std::string_view::npos) {
    tensor.group = group_of(word.substr(colon + 1), words);
  }
}

std::vector<std::size_t> shape_in(Words& words) {
  std::string_view rest = words.word();
  std::vector<std::size_t> shape;
  for (bool more = true; more;) {
    words.require(shape.size() < format::kMaxRank, "too many dimensions");
    const std::string_view extent = rest.substr(0, rest.find('x'));
    more = extent.size() < rest.size();
    shape.push_back(words.number(extent));
    rest.remove_prefix(extent.size() + (more ? 1 : 0));
  }
  return shape;
}

// As many as there are: check_index counts them. The text is bounded, so they are.
std::vector<Digest128> digests_in(Words& words) {
  constexpr std::size_t kDigits = 2 * sizeof(Digest128);
  const std::string_view digits = words.word();
  words.require(digits.size() % kDigits == 0, "not whole digests");
  std::vector<Digest128> digests(digits.size() / kDigits);
  if (!digests.empty()) words.decode(digits, reinterpret_cast<char*>(digests.data()));
  return digests;
}

TensorEntry tensor_in(Words& words) {
  TensorEntry tensor;
  tensor.name = name_in(words);
  type_in(words, tensor);
  const std::uint64_t transposed = words.number();
  words.require(transposed <= 1, "transposed is neither 0 nor 1");
  tensor.transposed = transposed == 1;
  tensor.offset = words.number();
  tensor.bytes = words.number();
  tensor.shape = shape_in(words);
  tensor.digests = digests_in(words);
  return tensor;
}

FileEntry file_in(Words& words) {
  FileEntry file;
  file.name = name_in(words);
  file.offset = words.number();
  file.bytes = words.number();
  file.digests = digests_in(words);
  return file;
}

template <class Entry>
void add(std::map<std::string, Entry>& entries, Entry entry, std::size_t limit, const Words& words) {
  words.require(entries.size() < limit, "too many entries");
  const std::string name = entry.name;
  words.require(entries.emplace(name, std::move(entry)).second, "a name that was there before");
}

[[noreturn]] void throw_refusal(Words& words) {
  const std::uint64_t number = words.number();
  const std::string message = printable(words.bytes(kMaxMessageBytes), kMaxMessageBytes);
  words.expect_end();
  for (const ExitCode code : {ExitCode::kNoInput, ExitCode::kInternal, ExitCode::kIo}) {
    if (number == static_cast<std::uint64_t>(code)) throw Error(code, message);
  }
  throw CheckpointError(message);
}

std::string key_in(Words& words) {
  words.next_line();
  return std::string(words.word());
}

void expect_key(Words& words, std::string_view key) {
  const std::string found = key_in(words);
  if (found != key) words.fail(fmt::format("'{}' instead of '{}'", printable(found), key));
}

void read_entries(Words& words, CheckpointIndex& index) {
  for (std::string key = key_in(words); key != "end"; key = key_in(words)) {
    if (key == "tensor") {
      add(index.tensors, tensor_in(words), format::kMaxTensors, words);
    } else if (key == "file") {
      add(index.tokenizer, file_in(words), kMaxCarriedFiles, words);
    } else {
      words.fail(fmt::format("'{}' is no part of an index", printable(key)));
    }
  }
  words.require(words.number() == index.tensors.size(), "another number of tensors");
  words.require(words.number() == index.tokenizer.size(), "another number of files");
  words.expect_end();
}

void read_head(Words& words, CheckpointIndex& index) {
  const std::uint64_t file_bytes = words.number();
  if (file_bytes != index.file_bytes) {
    words.fail(fmt::format("the file has {} bytes, not {}", index.file_bytes, file_bytes));
  }
  expect_key(words, "architecture");
  index.architecture = words.bytes(format::kMaxStringBytes);
  expect_key(words, "config");
  index.config_json = words.bytes(format::kMaxStringBytes);
}

}  // namespace

std::string index_text(const CheckpointIndex& index) {
  std::string text = fmt::format("{}\nbytes {}\n", kFirstLine, index.file_bytes);
  append_text(text, "architecture", index.architecture);
  append_text(text, "config", index.config_json);
  for (const auto& [name, tensor] : index.tensors) {
    text += fmt::format("tensor {} {} {} {} {} {}", name, type_text(tensor), tensor.transposed ? 1 : 0, tensor.offset,
                        tensor.bytes, shape_text(tensor.shape));
    append_digests(text, tensor);
  }
  for (const auto& [name, file] : index.tokenizer) {
    text += fmt::format("file {} {} {}", name, file.offset, file.bytes);
    append_digests(text, file);
  }
  return text + fmt::format("end {} {}\n", index.tensors.size(), index.tokenizer.size());
}

std::string index_text(const Error& error) {
  std::string text = fmt::format("{}\n", kFirstLine);
  const std::string key = fmt::format("error {}", static_cast<int>(error.code()));
  append_text(text, key.c_str(), std::string_view(error.what()).substr(0, kMaxMessageBytes));
  return text;
}

CheckpointIndex parse_index_text(std::string_view text, const std::string& path, std::size_t file_bytes) {
  Words words(text, path);
  words.next_line();
  words.require(words.whole_line() == kFirstLine, "not the first line of an index");
  const std::string key = key_in(words);
  if (key == "error") throw_refusal(words);
  words.require(key == "bytes", "neither 'bytes' nor 'error'");
  CheckpointIndex index;
  index.path = path;
  index.file_bytes = file_bytes;
  read_head(words, index);
  read_entries(words, index);
  check_index(index, Subject{path});
  return index;
}

std::size_t index_text_limit(std::size_t file_bytes) {
  const std::size_t digests = 2 * sizeof(Digest128) * (file_bytes / kDigestChunkBytes);
  const std::size_t a_line = kMaxLineBytes + format::kMaxNameBytes + 2 * sizeof(Digest128);
  return digests + (format::kMaxTensors + kMaxCarriedFiles) * a_line + 4 * format::kMaxStringBytes + kMaxLineBytes;
}

}  // namespace computron

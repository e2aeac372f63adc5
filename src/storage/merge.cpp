#include "computron/storage/merge.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/storage/custom_id_scanner.h"
#include "computron/storage/files.h"
#include "computron/storage/line_splitter.h"
#include "computron/storage/shard.h"
#include "src/storage/journal_records.h"
#include "src/storage/result_line.h"

namespace computron {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::size_t kNamed = 10;  // of what is wrong

// A result: which line of the input it is of, and where it stands. A line of the input has no place.
struct Entry {
  RequestId line = 0;
  std::uint64_t id = 0;  // digest of its custom_id
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::size_t file = 0;
};

bool by_line(const Entry& a, const Entry& b) { return a.line < b.line; }

class InputFile {
 public:
  explicit InputFile(std::string path)
      : path_(std::move(path)), fd_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status {};
    if (!fd_ || fstat(fd_.get(), &status) != 0) refuse(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) refuse(fmt::format("it is {}, not a regular file", file_kind(status.st_mode)));
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  // At most `count` bytes; fewer only at the end.
  std::string read(std::uint64_t offset, std::size_t count) const {
    std::string bytes(count, '\0');
    std::size_t got = 0;
    while (got < count) {
      const ssize_t part = pread(fd_.get(), bytes.data() + got, count - got, static_cast<off_t>(offset + got));
      if (part < 0 && errno == EINTR) continue;
      if (part < 0) fail_io("read", path_, errno);
      if (part == 0) break;
      got += static_cast<std::size_t>(part);
    }
    bytes.resize(got);
    return bytes;
  }
  std::uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ExitCode::kNoInput, fmt::format("cannot read '{}': {}", path_, why));
  }

  std::string path_;
  FileDescriptor fd_;
  std::uint64_t bytes_ = 0;
};

std::uint64_t digest_of(const std::optional<std::string>& id) {
  return id ? digest64(std::as_bytes(std::span(id->data(), id->size()))) : 0;
}

std::optional<std::string> custom_id_of(std::string_view line) {
  CustomIdScanner scanner;
  scanner.feed(line);
  return scanner.found();
}

// Of an entry, for people.
std::string shown(RequestId line, const std::optional<std::string>& id) {
  return fmt::format("line {}{}", line, id ? fmt::format(" ('{}')", *id) : "");
}

// What is wrong of one kind: how often, and the first of them by name.
class Faults {
 public:
  explicit Faults(std::string what) : what_(std::move(what)) {}
  void add(const std::string& name) {
    if (count_++ < kNamed) names_ += (names_.empty() ? "" : ", ") + name;
  }
  // Nothing where there are none.
  std::string to_string() const {
    if (count_ == 0) return {};
    return fmt::format("{} {}: {}{}", count_, what_, names_, count_ > kNamed ? ", ..." : "");
  }

 private:
  std::string what_, names_;
  std::uint64_t count_ = 0;
};

[[noreturn]] void refuse_data(const std::string& what) { throw Error(ExitCode::kData, what); }

void refuse_if_any(std::initializer_list<Faults> kinds) {
  std::string all;
  for (const Faults& kind : kinds) {
    const std::string text = kind.to_string();
    if (!text.empty()) all += (all.empty() ? "" : "; ") + text;
  }
  if (!all.empty()) refuse_data(all);
}

class Merge {
 public:
  explicit Merge(const MergeOptions& options) : options_(options) {
    check_output();
    check_finished();
    for (const std::string& path : options.shards) shards_.emplace_back(path);
    for (std::size_t file = 0; file < shards_.size(); ++file) read_shard(file);
    std::stable_sort(results_.begin(), results_.end(), by_line);
    check_doubled();
    options.requests.empty() ? check_shards() : check_against_requests();
  }

  std::uint64_t write() const {
    ReplacementFile output(options_.output, 0600);  // as the shards are
    std::string block;
    for (const Entry& result : results_) {
      block += text_of(result);
      if (block.size() < kReadBytes) continue;
      output.put(block);
      block.clear();
    }
    output.put(block);
    output.publish();
    return results_.size();
  }

 private:
  void check_output() const;
  void check_finished() const;
  void read_shard(std::size_t file);
  void check_doubled() const;
  void check_shards() const;
  void check_against_requests() const;
  std::vector<Entry> read_requests() const;

  std::string text_of(const Entry& result) const { return shards_[result.file].read(result.offset, result.bytes); }
  std::string shown(const Entry& entry) const {
    return computron::shown(entry.line, entry.bytes > 0 ? custom_id_of(text_of(entry)) : std::nullopt);
  }

  const MergeOptions& options_;
  std::vector<InputFile> shards_;
  std::vector<Entry> results_;
};

void Merge::check_output() const {
  const std::string& output = options_.output;
  for (const std::string& input : options_.shards) check_replaceable(output, input);
  check_replaceable(output, options_.requests);
  for (const char* end : {".journal", ".lock", ".done"}) {
    if (access((output + end).c_str(), F_OK) != 0) continue;
    throw Error(
        ExitCode::kCannotCreate,
        fmt::format("cannot create '{}': it is the output of a serving job, as '{}{}' says", output, output, end));
  }
}

// What a job keeps beside its output until that is complete; empty if nothing is there.
std::string left_of(const std::string& output) {
  for (const char* end : {".partial", ".journal", ".lock"}) {
    if (access((output + end).c_str(), F_OK) == 0) return output + end;
  }
  return {};
}

void Merge::check_finished() const {
  Faults unfinished("shards are not finished; run their jobs again");
  for (const std::string& shard : options_.shards) {
    if (access(shard.c_str(), F_OK) == 0) continue;
    if (const std::string left = left_of(shard); !left.empty()) {
      unfinished.add(fmt::format("'{}' (there is '{}')", shard, left));
    }
  }
  if (const std::string text = unfinished.to_string(); !text.empty()) throw Error(ExitCode::kNoInput, text);
}

void Merge::read_shard(std::size_t file) {
  const InputFile& shard = shards_[file];
  FileLines lines([&](std::uint64_t offset, std::size_t count) { return shard.read(offset, count); }, 0, shard.bytes());
  std::uint64_t number = 0;
  for (; const auto text = lines.next(); ++number) {
    const std::string_view line = text->substr(0, text->size() - 1);
    const auto of = line_of_result(line);
    if (!of) refuse_data(fmt::format("'{}': line {} is no result of computron serve", shard.path(), number));
    results_.push_back({.line = *of,
                        .id = digest_of(custom_id_of(line)),
                        .offset = lines.offset() - text->size(),
                        .bytes = text->size(),
                        .file = file});
  }
  if (lines.offset() != shard.bytes()) refuse_data(fmt::format("'{}': line {} is torn", shard.path(), number));
}

void Merge::check_doubled() const {
  Faults doubled("requests have two results");
  for (std::size_t i = 1; i < results_.size(); ++i) {
    const Entry &one = results_[i - 1], &two = results_[i];
    if (one.line != two.line) continue;
    doubled.add(fmt::format("{} in '{}' and '{}'", shown(two), shards_[one.file].path(), shards_[two.file].path()));
  }
  refuse_if_any({doubled});
}

// What the job that made the file says in its OUT.done: I/N, or 0/1 of a whole input. None without one, or where the
// file is another by now.
std::optional<Shard> shard_in(const InputFile& file) {
  const std::string path = file.path() + ".done";
  if (access(path.c_str(), R_OK) != 0) return std::nullopt;
  const InputFile done(path);
  const auto found =
      journal::read_done_file([&](std::uint64_t offset, std::size_t count) { return done.read(offset, count); });
  if (!found || found->made.output_bytes != file.bytes()) return std::nullopt;
  for (const auto& [name, value] : found->made_by.settings) {
    if (name == "--shard") return parse_shard(value);
  }
  return Shard{};
}

std::string shown(const Shard& shard) {
  return shard.count == 1 ? "the whole of an input" : "shard " + shard.to_string();
}

// "1/4, 3/4": those that are not `present`, the first of them.
std::string missing_shards(const std::set<std::uint64_t>& present, std::uint64_t count) {
  std::string names;
  std::size_t named = 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    if (present.contains(index)) continue;
    if (named++ == kNamed) return names + ", ...";
    names += (names.empty() ? "" : ", ") + Shard{index, count}.to_string();
  }
  return names;
}

// Without the requests: whether the files are all shards of one input, as far as their jobs have left word of it.
void Merge::check_shards() const {
  std::optional<Shard> first;
  std::string first_path;
  std::set<std::uint64_t> present;
  std::size_t known = 0;
  for (const InputFile& file : shards_) {
    const std::optional<Shard> shard = shard_in(file);
    if (!shard) continue;
    if (!first) first_path = file.path(), first = shard;
    if (shard->count != first->count) {
      refuse_data(
          fmt::format("'{}' is {} and '{}' is {}, as the .done files beside them say: these do not belong "
                      "together, or else --requests will tell",
                      first_path, computron::shown(*first), file.path(), computron::shown(*shard)));
    }
    present.insert(shard->index);
    ++known;
  }
  const std::uint64_t others = shards_.size() - known;
  if (!first || present.size() + others >= first->count) return;
  refuse_data(fmt::format("{} of the {} shards are missing, as '{}.done' says: {}", first->count - present.size(),
                          first->count, first_path, missing_shards(present, first->count)));
}

// Lines that are not blank; their `offset` and `bytes` mean nothing.
std::vector<Entry> Merge::read_requests() const {
  const InputFile input(options_.requests);
  std::vector<Entry> requests;
  LineSplitter lines(std::size_t{8} << 20, [&](const InputLine& line) {
    requests.push_back({.line = line.number, .id = digest_of(line.too_long ? line.long_id : custom_id_of(line.text))});
    return true;
  });
  for (std::uint64_t offset = 0; offset < input.bytes();) {
    const std::string bytes = input.read(offset, kReadBytes);
    if (bytes.empty()) break;
    lines.feed(bytes);
    offset += bytes.size();
  }
  lines.end();
  return requests;
}

void Merge::check_against_requests() const {
  Faults missing("requests have no result"), surplus("results have no request"),
      strange("results have another custom_id than their request");
  const std::vector<Entry> requests = read_requests();
  auto result = results_.begin();
  for (const Entry& request : requests) {
    for (; result != results_.end() && result->line < request.line; ++result) surplus.add(shown(*result));
    if (result == results_.end() || result->line != request.line) {
      missing.add(shown(request));
      continue;
    }
    if (result->id != request.id) strange.add(shown(*result));
    ++result;
  }
  for (; result != results_.end(); ++result) surplus.add(shown(*result));
  refuse_if_any({missing, surplus, strange});
}

}  // namespace

std::uint64_t merge_results(const MergeOptions& options) { return Merge(options).write(); }

}  // namespace computron

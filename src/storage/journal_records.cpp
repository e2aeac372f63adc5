#include "src/storage/journal_records.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "computron/base/bytes.h"

namespace computron::journal {
namespace {

constexpr std::size_t kHeadBytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

enum Type : std::uint8_t { kHeader = 1, kOpen, kKeys, kBegun, kCommit, kClose, kInputEnd, kDone };

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint32_t check_of(std::string_view body) { return static_cast<std::uint32_t>(digest64(bytes_of(body), 1)); }

void put(ByteWriter& out, const Header& header) {
  out.put(kHeader);
  out.put(header.version);
  out.put(header.input_bytes);
  out.put(static_cast<std::uint32_t>(header.settings.size()));
  for (const auto& [name, value] : header.settings) {
    out.put_string(name);
    out.put_string(value);
  }
}

void put(ByteWriter& out, const Open& open) {
  out.put(kOpen);
  out.put(open.attempt);
  out.put(open.epoch);
  out.put(open.kept);
  out.put_string(open.holder);
}

void put(ByteWriter& out, const Keys& keys) {
  out.put(kKeys);
  out.put_list(keys.lines);
}

// Not inlined: GCC 12 warns of an overflow that is not there.
[[gnu::noinline]] void put(ByteWriter& out, const Begun& begun) {
  out.put(kBegun);
  out.put(static_cast<std::uint8_t>(begun.alone));
  out.put_list(begun.lines);
}

void put(ByteWriter& out, const Commit& commit) {
  out.put(kCommit);
  out.put(commit.begin);
  out.put(commit.end);
  out.put(commit.digest);
  out.put_list(commit.lines);
}

void put(ByteWriter& out, const Close& close) {
  out.put(kClose);
  out.put(static_cast<std::uint8_t>(close.complete));
}

void put(ByteWriter& out, const InputEnd& end) {
  out.put(kInputEnd);
  out.put(end.bytes);
}

void put(ByteWriter& out, const Done& done) {
  out.put(kDone);
  out.put(done.lines);
  out.put(done.digest);
  out.put(done.output_bytes);
}

Header get_header(ByteReader& in) {
  Header header;
  header.version = in.get<std::uint32_t>();
  header.input_bytes = in.get<std::uint64_t>();
  for (auto left = in.get<std::uint32_t>(); left > 0; --left) {
    std::string name = in.get_string();
    header.settings.emplace_back(std::move(name), in.get_string());
  }
  return header;
}

Open get_open(ByteReader& in) {
  Open open;
  open.attempt = in.get<std::uint32_t>();
  open.epoch = in.get<std::uint64_t>();
  open.kept = in.get<std::uint64_t>();
  open.holder = in.get_string();
  return open;
}

Begun get_begun(ByteReader& in) {
  const bool alone = in.get<std::uint8_t>() != 0;
  return {alone, in.get_list<RequestId>()};
}

Commit get_commit(ByteReader& in) {
  Commit commit;
  commit.begin = in.get<std::uint64_t>();
  commit.end = in.get<std::uint64_t>();
  commit.digest = in.get<std::uint64_t>();
  commit.lines = in.get_list<RequestId>();
  return commit;
}

Done get_done(ByteReader& in) {
  Done done;
  done.lines = in.get<std::uint64_t>();
  done.digest = in.get<std::uint64_t>();
  done.output_bytes = in.get<std::uint64_t>();
  return done;
}

Record get_record(ByteReader& in) {
  switch (in.get<std::uint8_t>()) {
    case kHeader:
      return get_header(in);
    case kOpen:
      return get_open(in);
    case kKeys:
      return Keys{in.get_list<LineKey>()};
    case kBegun:
      return get_begun(in);
    case kCommit:
      return get_commit(in);
    case kClose:
      return Close{in.get<std::uint8_t>() != 0};
    case kInputEnd:
      return InputEnd{in.get<std::uint64_t>()};
    case kDone:
      return get_done(in);
    default:
      throw Error(ExitCode::kData, "a record of an unknown type");
  }
}

// None if the body is not what a record looks like: its check held, so a later version wrote it.
std::optional<Record> decode(std::string_view body) try {
  ByteReader in(bytes_of(body));
  Record record = get_record(in);
  in.expect_end();
  return record;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

std::string encode(const Record& record) {
  ByteWriter body;
  std::visit([&body](const auto& r) { put(body, r); }, record);
  return frame({reinterpret_cast<const char*>(body.bytes().data()), body.bytes().size()});
}

std::string frame(std::string_view body) {
  ensure(body.size() - 1 <= kMaxPayload, "a journal record is too long");
  const std::uint32_t head[] = {static_cast<std::uint32_t>(body.size() - 1), check_of(body)};
  return std::string(reinterpret_cast<const char*>(head), sizeof head).append(body);
}

std::uint64_t chain_digest(std::uint64_t before, std::string_view line) { return digest64(bytes_of(line), before); }

std::optional<Record> Reader::next() {
  if (!fill(kHeadBytes)) return std::nullopt;
  std::uint32_t head[2];
  std::memcpy(head, buffer_.data() + used_, sizeof head);
  const std::size_t whole = kHeadBytes + 1 + head[0];
  if (head[0] > kMaxPayload || !fill(whole)) return std::nullopt;
  const std::string_view body = std::string_view(buffer_).substr(used_ + kHeadBytes, whole - kHeadBytes);
  if (check_of(body) != head[1]) return std::nullopt;
  std::optional<Record> record = decode(body);
  if (!record) return std::nullopt;
  used_ += whole;
  bytes_ += whole;
  return record;
}

std::uint64_t Reader::lost_from(std::uint64_t begin) const {
  constexpr std::size_t kHead = kHeadBytes + 1;
  bool found = false;
  for (std::uint64_t offset = begin;;) {
    const std::string bytes = read_at_(offset, kReadBytes);
    for (std::size_t i = 0; !found && i + kHead <= bytes.size(); ++i) {
      found = record_at(offset + i, std::string_view(bytes).substr(i, kHead));
    }
    if (bytes.size() < kReadBytes) return found ? offset + bytes.size() - begin : 0;
    offset += bytes.size() - (kHead - 1);
  }
}

// `head`: the bytes up to and with the type.
bool Reader::record_at(std::uint64_t offset, std::string_view head) const {
  const auto type = static_cast<std::uint8_t>(head[kHeadBytes]);
  std::uint32_t length = 0, check = 0;
  std::memcpy(&length, head.data(), sizeof length);
  std::memcpy(&check, head.data() + sizeof length, sizeof check);
  if (type < kHeader || type > kDone || length > kMaxPayload) return false;
  const std::string body = read_at_(offset + kHeadBytes, 1 + std::size_t{length});
  return body.size() == 1 + std::size_t{length} && check_of(body) == check;
}

// Whether so many unused bytes are in the buffer now.
bool Reader::fill(std::size_t count) {
  if (buffer_.size() - used_ >= count) return true;
  buffer_.erase(0, std::exchange(used_, 0));
  const std::size_t missing = count - buffer_.size();
  buffer_ += read_at_(bytes_ + buffer_.size(), std::max(missing, kReadBytes));
  return buffer_.size() >= count;
}

std::optional<DoneFile> read_done_file(Reader::ReadAt read_at) {
  Reader records(std::move(read_at));
  const auto header = records.next(), end = records.next();
  if (!header || !end) return std::nullopt;
  const auto* made_by = std::get_if<Header>(&*header);
  const auto* made = std::get_if<Done>(&*end);
  if (made_by == nullptr || made == nullptr) return std::nullopt;
  return DoneFile{*made_by, *made};
}

}  // namespace computron::journal

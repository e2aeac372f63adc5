#include "computron/storage/result_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>

#include "computron/base/log.h"
#include "computron/base/stop.h"
#include "computron/storage/line_splitter.h"
#include "computron/storage/shard.h"
#include "computron/storage/spool.h"
#include "src/storage/journal_recovery.h"
#include "src/storage/output_lock.h"

namespace computron {
namespace {

// The names of the files in their folder.
struct Names {
  explicit Names(const std::string& path) : output(std::filesystem::path(path).filename().string()) {}
  std::string output;
  std::string partial = output + ".partial";
  std::string journal = output + ".journal";
  std::string lock = output + ".lock";
  std::string spool = output + ".spool";
  std::string done = output + ".done";
};

constexpr std::size_t kInputChunk = std::size_t{256} << 10;

bool sleep_for(double seconds) {
  usleep(static_cast<useconds_t>(1e6 * seconds));
  return true;
}

std::uint64_t input_bytes(const std::string& input_path) {
  struct stat status {};
  return input_path != "-" && stat(input_path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

// Reads a file of the folder that may not exist.
struct Existing {
  Existing(const OutputFolder& folder, const std::string& name) {
    if (FileDescriptor fd = folder.open_existing(name)) {
      file = AppendFile(std::move(fd), folder.path_of(name), folder.calls());
    }
  }
  ReadAt reader() const {
    return [this](std::uint64_t offset, std::size_t count) { return file ? file.read(offset, count) : std::string(); };
  }
  AppendFile file;
};

std::optional<std::string> value_of(const Settings& settings, const std::string& name) {
  for (const auto& [n, value] : settings) {
    if (n == name) return value;
  }
  return std::nullopt;
}

void check_setting(const std::string& output, const Settings& before, const Settings& now, const std::string& name) {
  const auto then = value_of(before, name), value = value_of(now, name);
  if (then == value) return;
  throw Error(ExitCode::kConfig,
              fmt::format("'{}' was begun with another {} ({}, now {}): run the same command again, or move its files "
                          "away to begin afresh, or allow it with --resume-allow-config-change",
                          output, name, then.value_or("none"), value.value_or("none")));
}

void check_settings(const std::string& output, Settings before, const Settings& now, const JournalOptions& options) {
  if (options.allow_config_change) return;
  if (options.upgrade) before = options.upgrade(std::move(before));
  for (const auto& [name, value] : before) check_setting(output, before, now, name);
  for (const auto& [name, value] : now) check_setting(output, before, now, name);
}

// What `input_path` has now of the shard's lines.
journal::Done read_input(const std::string& input_path, const Shard& shard, std::size_t max_line_bytes) {
  journal::Done found;
  LineSplitter lines(max_line_bytes, [&](const InputLine& line) {
    if (!shard.has(line.number)) return true;
    ++found.lines;
    found.digest += LineHistory::digest_of(line.number, line.key);
    return true;
  });
  const FileDescriptor fd(input_path == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                            : ::open(input_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_io("read", input_path, errno);
  std::string chunk(kInputChunk, '\0');
  for (ssize_t count = 1; count != 0;) {
    throw_if_stopped();
    pollfd wait{fd.get(), POLLIN, 0};
    if (::poll(&wait, 1, 100) == 0) continue;
    count = ::read(fd.get(), chunk.data(), chunk.size());
    if (count < 0 && errno != EINTR && errno != EAGAIN) fail_io("read", input_path, errno);
    if (count > 0) lines.feed(std::string_view(chunk).substr(0, static_cast<std::size_t>(count)));
  }
  lines.end();
  return found;
}

// `path`, if an output may be made there.
const std::string& replaceable(const std::string& path, const std::string& input_path) {
  check_replaceable(path, input_path);
  return path;
}

}  // namespace

Durability parse_durability(const std::string& text) {
  if (text == "process") return Durability::kProcess;
  if (text == "node") return Durability::kNode;
  if (text == "result") return Durability::kResult;
  throw Error(ExitCode::kUsage, fmt::format("--durability: '{}' is not process, node or result", text));
}

struct JournalState {
  JournalState(const std::string& path, const std::string& input_path, Settings settings, const JournalOptions& options,
               SystemCalls& calls);

  void look_at_output();
  bool is_this_commands(const AppendFile& output, journal::Done& done) const;
  void write_done();
  void look();
  void look_without_journal(const Existing& results);
  bool must_rebuild() const;
  void check_recovered() const;
  void repair();
  void begin();
  void warn_of_damage() const;
  std::size_t tail_lines() const;
  AppendFile open(const std::string& name) const;
  std::string opening() const;
  void append_record(const journal::Record& record);
  void flush_notes();
  void tidy_up(const std::string& name) const;
  DiskWait disk_wait() const { return {options.disk_wait_s, options.disk_retry_s, pause}; }
  bool durable() const { return options.durability != Durability::kProcess; }

  std::string path, input_path;
  Settings settings;
  JournalOptions options;
  SystemCalls& calls;
  Names names;
  OutputFolder folder;
  OutputLock lock;
  std::uint64_t epoch = 0;
  bool renamed = false;  // a complete OUT is still to be tidied up after: it becomes OUT.partial once more
  Recovered recovered;
  bool complete = false;  // OUT, and nothing is left to do
  journal::Done done;     // what has been read so far
  bool new_input = true;  // no attempt has read any of it

  AppendFile partial, journal_file;
  std::function<bool(double)> pause = sleep_for;
  journal::Keys new_keys;  // not in the file yet
  std::optional<journal::InputEnd> new_input_end;
  std::mutex journal_mutex;  // guards appending to the journal
  std::atomic<bool> journal_dirty = false;
  journal::Commit open_commit;  // of what was written behind the last COMMIT
};

// --- Looking ----------------------------------------------------------------------------------------------------

JournalState::JournalState(const std::string& path, const std::string& input_path, Settings settings,
                           const JournalOptions& options, SystemCalls& calls)
    : path(path),
      input_path(input_path),
      settings(std::move(settings)),
      options(options),
      calls(calls),
      names(path),
      folder(replaceable(path, input_path), calls),
      lock(folder, names.lock, options.take_over) {
  for (const std::string& name : {names.partial, names.journal, names.spool}) {
    check_replaceable(folder.path_of(name), input_path);
  }
  epoch = lock.epoch() + 1;
  lock.claim(epoch, disk_wait());
  look();
  if (!renamed) look_at_output();
  if (!complete) check_recovered();
}

// Whoever runs a command again that has come to its end, as batch systems do, finds that out at once. Nothing else may
// take the place of a file that is there.
void JournalState::look_at_output() {
  const Existing output(folder, names.output);
  if (!output.file) return;
  if (!is_this_commands(output.file, done)) {
    throw Error(ExitCode::kCannotCreate,
                fmt::format("'{}' exists, and nothing tells that it is what this command makes: move it away", path));
  }
  const auto shard = value_of(settings, "--shard");
  const journal::Done now = read_input(input_path, shard ? parse_shard(*shard) : Shard{}, options.max_line_bytes);
  if (!done.same_input(now)) {
    const bool nothing_again = input_path == "-" && now.lines == 0;
    if (!nothing_again) {
      throw Error(
          ExitCode::kData,
          fmt::format("'{}' exists and is the result of another input, of {} requests; this one "
                      "has {}. A complete output takes no more requests: serve new ones from a file and into an "
                      "output of their own, or move it away to begin afresh",
                      path, done.lines, now.lines));
    }
  }
  complete = true;
  tidy_up(names.spool);
  tidy_up(names.journal);
}

// From OUT.done, which is of no use if it is damaged or OUT is another file by now.
bool JournalState::is_this_commands(const AppendFile& output, journal::Done& done) const {
  const Existing file(folder, names.done);
  const auto found = journal::read_done_file(file.reader());
  if (!found || found->made.output_bytes != output.end()) return false;
  check_settings(path, found->made_by.settings, settings, options);
  done = found->made;
  return true;
}

void JournalState::write_done() {
  AppendFile file = open(names.done);
  file.cut(0);
  done.output_bytes = partial.end();
  append_all(file, journal::encode(journal::Header{.settings = settings}) + journal::encode(done), /*lines=*/false,
             disk_wait());
  file.sync();
}

void JournalState::look() {
  const Existing journal(folder, names.journal), results(folder, names.partial), output(folder, names.output);
  recovered = recover(journal.reader(), results.reader(), results.file.end(), options.max_crashes);
  if (results.file && must_rebuild()) look_without_journal(results);
  if (results.file || !output.file) return;
  // The end came between the rename and the tidying up, unless OUT is not what was renamed.
  Recovered of_output = recover(journal.reader(), output.reader(), output.file.end(), options.max_crashes);
  renamed = of_output.complete && of_output.kept() == output.file.end();
  if (renamed) recovered = std::move(of_output);
}

// Where results are not what COMMITs say, what follows is not worth a look.
bool JournalState::must_rebuild() const {
  if (!recovered.header) return true;
  return recovered.journal_lost > 0 && recovered.lost == 0 && recovered.header->version == journal::kVersion;
}

void JournalState::look_without_journal(const Existing& results) {
  const std::string partial = folder.path_of(names.partial);
  if (input_path == "-") {
    const Existing spool(folder, names.spool);
    return rebuild(recovered, results.reader(), results.file.end(), spool.reader(), options.max_line_bytes, partial);
  }
  const FileDescriptor fd(::open(input_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ReadAt input = [&](std::uint64_t offset, std::size_t count) {
    std::string bytes(count, '\0');
    const ssize_t got = pread(fd.get(), bytes.data(), count, static_cast<off_t>(offset));
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
  };
  rebuild(recovered, results.reader(), results.file.end(), input, options.max_line_bytes, partial);
}

void JournalState::check_recovered() const {
  const auto& header = recovered.header;
  if (!header) return;
  const std::string journal_path = folder.path_of(names.journal);
  if (header->version != journal::kVersion) {
    throw Error(ExitCode::kConfig,
                fmt::format("'{}' is of version {}; this program writes version {}: move it and "
                            "'{}' away to begin afresh",
                            journal_path, header->version, journal::kVersion, folder.path_of(names.partial)));
  }
  check_settings(path, header->settings, settings, options);
  if (input_path != "-" && input_bytes(input_path) < header->input_bytes) {
    throw Error(ExitCode::kData,
                fmt::format("the input '{}' has changed since attempt {}: it has {} bytes and had {}", input_path,
                            recovered.attempts, input_bytes(input_path), header->input_bytes));
  }
}

// --- Beginning --------------------------------------------------------------------------------------------------

// A job that was taken over leaves the files alone, also where it has just waited for a full disk.
AppendFile JournalState::open(const std::string& name) const {
  AppendFile file(folder.open(name, input_path), folder.path_of(name), calls);
  file.set_guard([this] { lock.check(); });
  return file;
}

// The records that begin an attempt, behind what the last one did and did not come to say.
std::string JournalState::opening() const {
  std::string records = journal::encode(journal::Header{.input_bytes = input_bytes(input_path), .settings = settings});
  for (const journal::Keys& keys : recovered.keys) records += journal::encode(keys);
  for (const journal::Commit& commit : recovered.tail) records += journal::encode(commit);
  return records +
         journal::encode(journal::Open{
             .attempt = recovered.attempts + 1, .epoch = epoch, .kept = recovered.kept(), .holder = lock.holder()});
}

// Each of these steps may be the last one: whoever comes next finds the same results sound as we did.
void JournalState::repair() {
  if (recovered.epoch >= epoch) lock.claim(epoch = recovered.epoch + 1, disk_wait());
  if (renamed) folder.rename(names.output, names.partial);
  partial = open(names.partial);
  journal_file = open(names.journal);
  if (recovered.attempts > 0 && partial.end() < recovered.kept()) {
    throw Error(ExitCode::kIo, fmt::format("'{}' changes while it is read", partial.path()));
  }
  if (partial.end() > recovered.kept()) partial.cut(recovered.kept());
  if (durable()) {
    partial.write_again(recovered.committed, recovered.kept());
    partial.sync_data();
  }
  if (journal_file.end() > recovered.journal_bytes) journal_file.cut(recovered.journal_bytes);
  if (durable() && !recovered.in_order) journal_file.write_again(0, recovered.journal_bytes);
  append_all(journal_file, opening(), /*lines=*/false, disk_wait());
  if (!durable()) return;
  journal_file.sync_data();
  folder.sync();
}

void JournalState::warn_of_damage() const {
  if (recovered.lost > 0) {
    spdlog::warn("{} bytes of results in '{}' are not what was written: these requests are served again",
                 recovered.lost, partial.path());
  }
  if (recovered.journal_lost > 0) {
    spdlog::warn(
        "'{}' was damaged at byte {}: the {} bytes from there on are dropped; {} results that they may have "
        "spoken of go with the input and are kept",
        journal_file.path(), recovered.journal_bytes, recovered.journal_lost, tail_lines());
  }
}

std::size_t JournalState::tail_lines() const {
  std::size_t lines = 0;
  for (const journal::Commit& commit : recovered.tail) lines += commit.lines.size();
  return lines;
}

void JournalState::begin() {
  repair();
  open_commit.begin = open_commit.end = partial.end();
  done = {.lines = recovered.history.lines_known(), .digest = recovered.history.digest()};
  warn_of_damage();
  new_input = recovered.attempts == 0 && recovered.keys.empty();
  recovered.keys = {};  // of many lines perhaps, and in the file now
  recovered.tail = {};
  if (recovered.attempts == 0 && recovered.history.lines_done() == 0) return;
  spdlog::info("attempt {}: {} requests have their results already", recovered.attempts + 1,
               recovered.history.lines_done());
}

FoundOutput claim_output(const std::string& path, const std::string& input_path, Settings settings,
                         const JournalOptions& options, SystemCalls& calls) {
  auto state = std::make_shared<JournalState>(path, input_path, std::move(settings), options, calls);
  if (state->complete) return CompleteOutput{.lines = state->done.lines};
  return ClaimedOutput(std::move(state));
}

ClaimedOutput::ClaimedOutput(std::shared_ptr<JournalState> state) : state_(std::move(state)) {}

const LineHistory& ClaimedOutput::history() const { return state_->recovered.history; }

std::string ClaimedOutput::kept(const std::string& name) const {
  const auto& header = state_->recovered.header;
  return header ? value_of(header->settings, name).value_or("") : "";
}

void ClaimedOutput::keep(const std::string& name, const std::string& value) {
  state_->settings.emplace_back(name, value);
}

// An output whose input is silent, or behind another one, gets no result however far the job comes.
void check_progress(std::span<const ClaimedOutput* const> outputs) {
  const JournalState* stuck = nullptr;
  for (const ClaimedOutput* output : outputs) {
    const JournalState& state = *output->state_;
    const int limit = state.options.max_crashes;
    if (limit == 0 || state.recovered.without_result < limit) return;
    if (stuck == nullptr && state.recovered.fruitless >= limit) stuck = &state;
  }
  if (stuck == nullptr) return;
  throw Error(ExitCode::kInternal,
              fmt::format("no progress in {} attempts since {} results ('{}'); once the cause is gone: --max-crashes 0",
                          stuck->recovered.fruitless, stuck->recovered.history.lines_done(),
                          stuck->folder.path_of(stuck->names.journal)));
}

ResultJournal ClaimedOutput::begin() && {
  std::shared_ptr<JournalState> state = std::move(state_);
  state->begin();
  return ResultJournal(std::move(state));
}

ResultJournal::ResultJournal(std::shared_ptr<JournalState> state) : state_(std::move(state)) {}

// Others may hold the state longer: a reader of standard input, or of the history.
ResultJournal::~ResultJournal() {
  if (state_) state_->lock.give_back();
}

std::shared_ptr<const LineHistory> ResultJournal::history() const { return {state_, &state_->recovered.history}; }

std::uint32_t ResultJournal::attempt() const { return state_->recovered.attempts + 1; }

// The reader's thread may go on after the attempt has ended: the lock that its file asks before each write stays.
std::shared_ptr<Spool> ResultJournal::open_spool() {
  JournalState& s = *state_;
  AppendFile file = s.open(s.names.spool);
  file.set_guard([state = state_] { state->lock.check(); });
  std::optional<std::uint64_t> known_end = s.recovered.input_end;
  if (s.new_input) {
    if (file.end() == 0) known_end = 0;
    file.cut(0);  // of an earlier, finished job
  }
  return std::make_shared<Spool>(std::move(file), s.durable(), s.disk_wait(), known_end);
}

void ResultJournal::set_pause(std::function<bool(double)> pause) { state_->pause = std::move(pause); }

// --- Writing ----------------------------------------------------------------------------------------------------

void ResultJournal::note_line(RequestId line, const Digest128& key) {
  if (state_->recovered.history.known(line)) return;
  state_->new_keys.lines.push_back({line, key});
  ++state_->done.lines;
  state_->done.digest += LineHistory::digest_of(line, key);
}

void ResultJournal::note_input_end(std::uint64_t bytes) { state_->new_input_end = journal::InputEnd{bytes}; }

void ResultJournal::note_begun(std::span<const RequestId> lines, bool alone) {
  const std::string record = journal::encode(journal::Begun{.alone = alone, .lines = {lines.begin(), lines.end()}});
  state_->lock.check();
  const std::lock_guard lock(state_->journal_mutex);
  state_->journal_file.append(record, /*lines=*/false);
  state_->journal_dirty = true;
}

void JournalState::append_record(const journal::Record& record) {
  append_all(journal_file, journal::encode(record), /*lines=*/false, disk_wait(), &journal_mutex);
  journal_dirty = true;
}

// Any number of lines may have been read while the disk took its time.
void JournalState::flush_notes() {
  const std::vector<journal::LineKey> lines = std::exchange(new_keys, {}).lines;
  for (auto begin = lines.begin(); begin != lines.end();) {
    const auto end = begin + std::min<std::ptrdiff_t>(journal::kLinesInRecord, lines.end() - begin);
    append_record(journal::Keys{{begin, end}});
    begin = end;
  }
  if (new_input_end) append_record(*std::exchange(new_input_end, std::nullopt));
}

void ResultJournal::write(std::string_view text, std::span<const RequestId> lines) {
  JournalState& s = *state_;
  s.lock.check();
  s.flush_notes();
  if (text.empty()) return;
  append_all(s.partial, text, /*lines=*/true, s.disk_wait());
  journal::Commit& commit = s.open_commit;
  commit.end += text.size();
  commit.lines.insert(commit.lines.end(), lines.begin(), lines.end());
  for (std::size_t newline; !text.empty(); text.remove_prefix(newline + 1)) {
    newline = text.find('\n');
    ensure(newline != std::string_view::npos, "a result that is no whole line");
    commit.digest = journal::chain_digest(commit.digest, text.substr(0, newline + 1));
  }
}

bool ResultJournal::has_uncommitted() const { return !state_->open_commit.lines.empty(); }
std::size_t ResultJournal::uncommitted_lines() const { return state_->open_commit.lines.size(); }

void ResultJournal::commit() {
  JournalState& s = *state_;
  s.lock.check();
  s.flush_notes();
  if (has_uncommitted()) {
    if (s.durable()) s.partial.sync_data();
    s.append_record(s.open_commit);
    s.open_commit = {.begin = s.partial.end(), .end = s.partial.end(), .digest = 0, .lines = {}};
  }
  if (s.journal_dirty.exchange(false) && s.durable()) s.journal_file.sync_data();
}

void ResultJournal::stop() && {
  ResultJournal last = std::move(*this);  // gives the output back when it goes
  JournalState& s = *last.state_;
  last.commit();
  s.append_record(journal::Close{.complete = false});
  if (s.durable()) s.journal_file.sync_data();
}

// OUT is complete, whether or not this can be removed.
void JournalState::tidy_up(const std::string& name) const try { folder.remove(name); } catch (const Error& error) {
  spdlog::warn("{}", error.what());
}

// The rest of the files goes behind the rename: whoever finds them knows from the journal, the last to go, what OUT is.
void ResultJournal::finish() && {
  ResultJournal last = std::move(*this);  // gives the output back when it goes
  JournalState& s = *last.state_;
  last.commit();
  s.append_record(journal::Close{.complete = true});
  s.journal_file.sync();
  s.partial.sync();
  if (s.folder.exists(s.names.output)) {
    throw Error(ExitCode::kCannotCreate,
                fmt::format("'{}' has come into being meanwhile; the results, all of them, are in '{}': move the first "
                            "away and run the same command again",
                            s.path, s.partial.path()));
  }
  s.write_done();
  s.lock.check();
  s.folder.rename(s.names.partial, s.names.output);
  s.folder.sync();
  s.tidy_up(s.names.spool);
  s.tidy_up(s.names.journal);
}

}  // namespace computron

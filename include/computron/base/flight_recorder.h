// The flight recorder: the last things that a rank did, in a file that is mapped as shared memory, so that the file
// holds them even when the process has been killed. `computron postmortem` reads the files of all ranks.
//
//   file: FlightHeader | kFlightRecords × FlightRecord, a ring: record n lies at place n mod kFlightRecords
//
// Beside the ring, what the rank's main thread is doing right now: the innermost span that has begun and not ended.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace computron {

inline constexpr std::size_t kFlightRecords = 2048;
inline constexpr std::size_t kFlightHeaderBytes = 4096;
inline constexpr std::size_t kFlightsKept = 4;
inline constexpr double kFlightsKept_s = 7 * 24 * 3600;

// One begin or end of a span. Texts that are too long are cut.
struct FlightRecord {
  enum Kind : std::uint8_t { kBegin, kEnd };
  std::uint64_t number = 0;  // from 1; written last, 0 while the other fields are being written
  double time_s = 0;         // CLOCK_MONOTONIC of the rank's node
  std::uint64_t step = 0;    // the step that the span is about, or the one in execution
  std::uint32_t detail = 0;  // the first number of the traced span: a page, bytes, how many sums so far
  Kind kind = kBegin;
  std::uint8_t track = 0;  // TraceTrack
  std::array<char, 20> name = {};
  std::array<char, 14> model = {};
};
static_assert(sizeof(FlightRecord) == 64);

// What the main thread is doing. Default-constructed: polling for work.
struct Doing {
  std::array<char, 20> name = {};  // of the innermost span; empty: none has begun
  bool waits = false;              // for another rank
  std::uint64_t step = 0;
  std::uint32_t detail = 0;
  double since_s = 0;  // CLOCK_MONOTONIC
};

// The text of a fixed-size field, without its padding.
template <std::size_t size>
std::string_view text_of(const std::array<char, size>& text) {
  const std::string_view all(text.data(), size);
  return all.substr(0, all.find('\0'));
}

// What a file says about its rank beside the records.
struct FlightInfo {
  std::uint64_t job = 0;  // the same in all files of a job
  std::int32_t rank = 0, ranks = 0;
  std::int64_t process = 0;
  std::string host;
  double clock_offset_s = 0;      // CLOCK_REALTIME − CLOCK_MONOTONIC, when the file was made
  double alive_s = 0;             // when the process ran last, to a tenth of a second
  double moved_s = 0;             // when its main thread polled its queues last, to a tenth of a second
  std::optional<int> group = {};  // of ranks, in a job of several
};

struct Flight;
Flight read_flight(const std::filesystem::path& path);
// Whether its process lives on this node.
bool still_runs(const FlightInfo& info);

class FlightRecorder {
 public:
  // `folder`: where the file goes; empty: $TMPDIR, or /tmp. Error{kCannotCreate} if `folder` is named and the file
  // cannot be made there; otherwise records stay in memory and why() says so. In a folder that was not named, files of
  // this rank of jobs of the same user that went down on this node do not pile up: the latest kFlightsKept stay, none
  // for longer than kFlightsKept_s.
  FlightRecorder(const std::string& folder, std::uint64_t job, int rank, int ranks);
  ~FlightRecorder();  // the file stays, unless remove() was called
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // From any thread, about 20 ns.
  void record(FlightRecord::Kind kind, std::uint8_t track, std::string_view name, double time_s, std::string_view model,
              std::optional<std::uint64_t> step, std::uint64_t detail) noexcept;
  // What the main thread does: begun spans that enclose each other. `name` is borrowed for good. Called by it alone.
  void push(const char* name, bool waits, std::optional<std::uint64_t> step, std::uint64_t detail,
            double since_s) noexcept;
  void pop() noexcept;
  // From any thread: what the main thread does now.
  Doing doing() const noexcept;
  // From any thread: how many records were made of the rank's own work (one whose number grows gets on), and not of
  // control, which on rank 0 is that of all groups of ranks.
  std::uint64_t moves() const noexcept { return moves_.load(std::memory_order_relaxed); }

  // Which group of ranks this one is of, in a job of several.
  void note_group(int group) noexcept;
  // Called by the watchdog, now and then. In CLOCK_MONOTONIC.
  void note_alive(double alive_s, double moved_s) noexcept;

  // Removes the file: the process ends as it should, and nobody will read it.
  void remove() noexcept;
  void remove_all() noexcept;                        // also the files of the job's other ranks in the same folder
  const std::string& path() const { return path_; }  // of the file; empty where there is none
  const std::string& why() const { return why_; }    // why there is no file; empty where there is one

 private:
  struct Header;
  friend Flight read_flight(const std::filesystem::path& path);
  bool map_file(const std::string& folder);
  void map_memory();
  void publish() noexcept;

  std::string path_, why_;
  std::byte* bytes_ = nullptr;
  Header* header_ = nullptr;
  FlightRecord* records_ = nullptr;

  struct Span {
    const char* name = nullptr;
    bool waits = false;
    std::uint64_t step = 0;
    std::uint32_t detail = 0;
    double since_s = 0;
  };
  static constexpr std::size_t kDepth = 16;  // deeper spans are not followed
  std::array<Span, kDepth> open_;
  std::size_t depth_ = 0;
  std::atomic<std::uint64_t> moves_{0};
  struct {
    std::atomic<const char*> name{nullptr};
    std::atomic<bool> waits{false};
    std::atomic<std::uint64_t> step{0};
    std::atomic<std::uint32_t> detail{0};
    std::atomic<double> since_s{0};
  } now_;
};

// A file of a rank that has ended, in whatever way.
struct Flight {
  FlightInfo info;
  std::vector<FlightRecord> records;  // the oldest first; those that were being written are left out
};
// Error{kNoInput} or {kData} naming the file and what is wrong with it.
Flight read_flight(const std::filesystem::path& path);

}  // namespace computron

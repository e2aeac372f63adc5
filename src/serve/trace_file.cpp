#include "computron/serve/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

#include "computron/base/json_text.h"
#include "computron/comm/tags.h"
#include "computron/storage/files.h"

namespace computron {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

// Text that is handed on piece by piece.
class Pieces {
 public:
  Pieces(std::size_t piece_bytes, const std::function<void(std::string_view)>& put)
      : piece_bytes_(piece_bytes), put_(put) {}

  // A further element of the list.
  template <class... Args>
  void element(bool first, fmt::format_string<Args...> format, Args&&... args) {
    text_ += first ? "\n" : ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    if (text_.size() >= piece_bytes_) flush();
  }
  void flush() {
    if (!text_.empty()) put_(text_);
    text_.clear();
  }

 private:
  std::size_t piece_bytes_;
  const std::function<void(std::string_view)>& put_;
  std::string text_;
};

// Whole nanoseconds, so that rounding moves no inner span out of an outer one.
std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// In microseconds.
std::string time_text(std::int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

void put_names(Pieces& pieces, const RankTrace& trace) {
  const int rank = trace.rank;
  const std::string group = trace.group ? fmt::format(", group {}", *trace.group) : std::string();
  pieces.element(rank == 0, R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}{}"}}}})", rank, rank,
                 group);
  pieces.element(false, R"({{"ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}}}})", rank, rank);
  for (std::size_t track = 0; track < kTraceTrackNames.size(); ++track) {
    pieces.element(false, R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank, track,
                   kTraceTrackNames[track]);
    pieces.element(false, R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
                   rank, track, track);
  }
  pieces.element(false,
                 R"({{"ph":"M","name":"computron_rank","pid":{},"args":{{{}"host":{},"clock_offset_s":{:.9f},)"
                 R"("clock_error_s":{:.9f},"events":{},"dropped_events":{}}}}})",
                 rank, trace.group ? fmt::format("\"group\":{},", *trace.group) : std::string(),
                 json_string(host_name()), trace.clock.offset_s, trace.clock.error_s, trace.trace.events().size(),
                 trace.trace.dropped());
}

std::string arguments(const TraceEvent& event) {
  std::string text;
  if (!event.model.empty()) text += fmt::format(R"("model":{})", json_string(event.model));
  for (const TraceNumber& number : event.numbers) {
    if (number.key != nullptr) text += fmt::format(R"({}"{}":{})", text.empty() ? "" : ",", number.key, number.value);
  }
  return text;
}

void finish(Progress& progress, MessageRequest request) {
  progress.wait_until([&request] { return request.done(); });
}

// The other ranks' side: waits for its turn, then sends piece after piece; an empty one ends.
void send_trace(const Mesh& mesh, Progress& progress, const RankTrace& trace) {
  double start_s = 0;
  finish(progress, mesh.job.receive(std::as_writable_bytes(std::span(&start_s, 1)), 0, tags::kTrace));
  const auto send = [&](std::string_view piece) {
    for (std::size_t at = 0; at < piece.size(); at += kPieceBytes) {  // its last element may end beyond its size
      const auto bytes = std::as_bytes(std::span(piece.substr(at, kPieceBytes)));
      finish(progress, mesh.job.send(bytes, 0, tags::kTrace));
    }
  };
  format_trace(trace, start_s, kPieceBytes, send);
  finish(progress, mesh.job.send({}, 0, tags::kTrace));
}

// Rank 0's side of it.
void receive_trace(const Mesh& mesh, Progress& progress, int rank, double start_s,
                   const std::function<void(std::string_view)>& put) {
  std::vector<char> piece(kPieceBytes);
  finish(progress, mesh.job.send(std::as_bytes(std::span(&start_s, 1)), rank, tags::kTrace));
  while (true) {
    MessageRequest request = mesh.job.receive(std::as_writable_bytes(std::span(piece)), rank, tags::kTrace);
    progress.wait_until([&request] { return request.done(); });
    if (request.received_bytes() == 0) return;
    put({piece.data(), request.received_bytes()});
  }
}

}  // namespace

void format_trace(const RankTrace& trace, double start_s, std::size_t piece_bytes,
                  const std::function<void(std::string_view)>& put) {
  Pieces pieces(piece_bytes, put);
  put_names(pieces, trace);
  const double moved_s = trace.clock.offset_s - start_s;
  for (const TraceEvent& event : trace.trace.events()) {
    const std::int64_t begin_ns = nanoseconds(event.begin_s + moved_s), end_ns = nanoseconds(event.end_s + moved_s);
    pieces.element(false, R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":"{}","args":{{{}}}}})", trace.rank,
                   static_cast<int>(event.track), time_text(begin_ns), time_text(end_ns - begin_ns), event.name,
                   arguments(event));
  }
  pieces.flush();
}

void write_trace(const std::string& path, const Mesh& mesh, Progress& progress, const RankTrace& trace,
                 double start_s) {
  trace.trace.close();
  if (!mesh.schedules()) return send_trace(mesh, progress, trace);
  ReplacementFile file(path);
  const std::function<void(std::string_view)> put = [&](std::string_view text) { file.put(text); };
  put(R"({"displayTimeUnit":"ms","traceEvents":[)");
  format_trace(trace, start_s, kPieceBytes, put);
  for (int rank = 1; rank < mesh.job.size(); ++rank) receive_trace(mesh, progress, rank, start_s, put);
  put("\n]}\n");
  file.publish();
}

}  // namespace computron

#include "computron/serve/live_view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "computron/base/printable.h"
#include "computron/base/size.h"
#include "src/serve/duration.h"

namespace computron {
namespace {

constexpr std::size_t kMostModels = 40;  // with a line each

std::string first_line(const JobStatus& s) {
  std::string text = fmt::format("computron: {}{}: {}/{}{} requests done", s.end.empty() ? "" : s.end + " after ",
                                 duration_text(s.counts.time_s), s.counts.done, s.total, s.total_known ? "" : "+");
  if (s.failed > 0) text += fmt::format(", {} of them failed", s.failed);
  if (!s.end.empty()) return text;
  const auto left_s = time_left_s(s.counts.time_s, s.counts.done, s.total, s.total_known);
  return left_s ? text + fmt::format(", {} left", duration_text(std::ceil(*left_s))) : text;
}

std::string utc_text(double unix_s) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string rates_line(const char* name, const JobCounts& now, const JobCounts& before) {
  const double s = std::max(now.time_s - before.time_s, 1e-9);
  const auto rate = [s](std::uint64_t to, std::uint64_t from) { return static_cast<double>(to - from) / s; };
  return fmt::format(
      "{:<9}{:.1f} requests/s, {:.1f} tokens/s, {:.1f} steps/s, {:.2f} swaps/s ({:.3f} GB/s over all links)", name,
      rate(now.done, before.done), rate(now.tokens, before.tokens), rate(now.steps, before.steps),
      rate(now.swaps, before.swaps), 1e-9 * rate(now.swap_bytes, before.swap_bytes));
}

bool is_idle(const ModelStatus& model) {
  return model.queue.unfinished() == 0 && model.done == 0 && model.resident == 0;
}

// What a group of ranks does with the model, if any does.
std::string activity_of(const ModelStatus& model, const JobStatus& status) {
  const auto group = std::ranges::find(status.groups, model.id, &GroupStatus::running);
  if (group == status.groups.end()) return {};
  return group->swapping ? "  runs, swapping" : "  runs";
}

std::string model_lines(const JobStatus& status) {
  std::string text = fmt::format("{:<28} {:>9} {:>9} {:>9} {:>9}\n", "model", "waiting", "running", "done", "resident");
  std::size_t shown = 0;
  for (const ModelStatus& model : status.models) {
    if (is_idle(model) || shown == kMostModels) continue;
    ++shown;
    text += fmt::format("{:<28} {:>9} {:>9} {:>9} {:>7.0f} %{}\n", printable(model.id), model.queue.waiting,
                        model.queue.running, model.done, 100 * model.resident, activity_of(model, status));
  }
  const std::size_t others = status.models.size() - shown;
  return others > 0 ? text + fmt::format("and {} more model{}\n", others, others == 1 ? "" : "s") : text;
}

std::string group_lines(const JobStatus& status) {
  if (status.groups.size() < 2) return {};
  std::string text = fmt::format("{:<28} {:>9}\n", "group", "requests");
  std::size_t shown = 0;
  for (const GroupStatus& group : status.groups) {
    if (shown == kMostModels) break;
    text += fmt::format("{:<28} {:>9}{}{}\n", shown++, group.open,
                        group.running.empty() ? "" : "  runs " + printable(group.running),
                        group.swapping ? ", swapping" : "");
  }
  const std::size_t others = status.groups.size() - shown;
  return others > 0 ? text + fmt::format("and {} more group{}\n", others, others == 1 ? "" : "s") : text;
}

// One write(2), so that the block never mixes with log lines. One that is lost harms nothing.
void print(const std::string& text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::optional<double> time_left_s(double elapsed_s, std::uint64_t done, std::uint64_t total, bool total_known) {
  if (!total_known || done == 0 || done >= total) return std::nullopt;
  return elapsed_s / static_cast<double>(done) * static_cast<double>(total - done);
}

std::string status_block(const JobStatus& status) {
  std::string text = first_line(status) + "\n";
  if (status.end.empty() && status.counts.time_s - status.before.time_s >= 1)
    text += rates_line("lately", status.counts, status.before) + "\n";
  text += rates_line("overall", status.counts, {}) + "\n";
  return text + model_lines(status) + group_lines(status);
}

std::string progress_json(const JobStatus& s, double unix_s) {
  const JobCounts& before = s.counts.time_s - s.before.time_s >= 1 ? s.before : JobCounts{};
  const double since_s = std::max(s.counts.time_s - before.time_s, 1e-9);
  const bool over = s.total_known && s.counts.done >= s.total;
  const bool known = s.total_known && s.counts.done > 0 && s.end != "stopped";
  const double left_s = time_left_s(s.counts.time_s, s.counts.done, s.total, s.total_known).value_or(0);
  nlohmann::ordered_json object;
  object["total"] = std::max(s.done_before + s.total, s.known_before);
  object["done"] = s.done_before + s.counts.done;
  object["failed"] = s.failed;
  object["tokens_per_s"] = static_cast<double>(s.counts.tokens - before.tokens) / since_s;
  object["predicted_end"] = nullptr;
  if (over || known) object["predicted_end"] = utc_text(unix_s + std::ceil(left_s));
  object["updated"] = utc_text(unix_s);
  return object.dump() + "\n";
}

StatusWriter::StatusWriter(std::string status_file, std::string progress_file)
    : status_file_{std::move(status_file)},
      progress_file_{std::move(progress_file)},
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

StatusWriter::~StatusWriter() {
  thread_.request_stop();
  thread_.join();
}

void StatusWriter::put(JobStatus status, bool print) {
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    print_ |= print;
  }
  wake_.notify_one();
}

void StatusWriter::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [this] { return status_.has_value(); })) {
    const JobStatus status = std::move(*status_);
    const bool wanted = std::exchange(print_, false);
    status_.reset();
    lock.unlock();
    const std::string text = status_block(status);
    if (wanted) print(text);
    replace(status_file_, text);
    replace(progress_file_, progress_json(status, unix_now_s()));
    lock.lock();
  }
}

// Nobody's results depend on these files: a failure is told once, and the next status is tried again. Neither file nor
// name is made durable.
void StatusWriter::replace(File& of, const std::string& text) {
  if (of.path.empty()) return;
  const std::string partial = of.path + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code cause;
  if (file) std::filesystem::rename(partial, of.path, cause);
  if ((!file || cause) && !std::exchange(of.warned, true)) {
    spdlog::warn("cannot write how the job stands to {}: {}", of.path, cause ? cause.message() : std::strerror(errno));
  }
}

}  // namespace computron

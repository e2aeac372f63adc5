#include "computron/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/size.h"
#include "computron/storage/files.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNever = std::numeric_limits<double>::infinity();

// A prompt that was only scored has no first token.
bool gives_something(const Completion& part) { return part.generated_tokens > 0 || !part.values.empty(); }

// null where there is nothing to divide by.
Json ratio(double numerator, double denominator) {
  return denominator > 0 ? Json(numerator / denominator) : Json(nullptr);
}

// From the smallest value to the largest, for curves: four digits are finer than any pixel.
Json percentiles(const Distribution& values) {
  Json list = Json::array();
  for (int p = 0; p <= 100; ++p) list.push_back(std::stod(fmt::format("{:.4g}", values.percentile(p / 100.0))));
  return list;
}

Json distribution(const Distribution& values) {
  if (values.empty()) {
    return {{"mean", nullptr}, {"p50", nullptr}, {"p90", nullptr},
            {"p99", nullptr},  {"max", nullptr}, {"percentiles", Json::array()}};
  }
  return {{"mean", values.mean()},          {"p50", values.percentile(0.5)}, {"p90", values.percentile(0.9)},
          {"p99", values.percentile(0.99)}, {"max", values.max()},           {"percentiles", percentiles(values)}};
}

double gb_fetched(const SwapMetrics& swaps) { return static_cast<double>(swaps.largest_shard_bytes) / 1e9; }

Json swaps_json(const SwapMetrics& swaps, const RunInfo& info) {
  return {{"count", swaps.count},
          {"pages", swaps.pages},
          {"bytes", swaps.bytes},
          {"link_bytes", swaps.link_bytes},
          {"busy_s", swaps.busy_s},
          {"exposed_s", swaps.exposed_s},
          {"gb_per_s_per_rank", ratio(gb_fetched(swaps), swaps.busy_s)},
          {"link_fraction", ratio(gb_fetched(swaps), swaps.busy_s * info.link_gb_per_s)},
          {"verified", swaps.verified},
          {"refetched", swaps.refetched}};
}

// 0 where no rank has done anything.
double busiest(const std::vector<double>& ranks_s) {
  return ranks_s.empty() ? 0 : *std::max_element(ranks_s.begin(), ranks_s.end());
}

Json steps_json(const StepMetrics& steps) {
  const auto count = static_cast<double>(steps.count);
  return {{"count", steps.count},
          {"passes", steps.passes},
          {"graphs", steps.graphs},
          {"rides", steps.rides},
          {"mean_us", ratio(steps.total_s * 1e6, count)},
          {"overhead_us", ratio(steps.overhead_s * 1e6, count)},
          {"compute_s", busiest(steps.compute_s)}};
}

Json deadlines_json(const DeadlineCount& deadlines) {
  return {{"total", deadlines.total},
          {"met", deadlines.met},
          {"unserved", deadlines.unserved},
          {"attainment", ratio(static_cast<double>(deadlines.met), static_cast<double>(deadlines.total))}};
}

// What the job and each of its models have.
Json metrics_json(const ModelMetrics& metrics, std::uint64_t failed_lines, const RunInfo& info) {
  const std::uint64_t failed = metrics.requests_failed + failed_lines;
  return {{"requests", {{"total", metrics.requests_ok + failed}, {"ok", metrics.requests_ok}, {"failed", failed}}},
          {"deadlines", deadlines_json(metrics.deadlines)},
          {"tokens",
           {{"prompt", metrics.prompt_tokens},
            {"generated", metrics.generated_tokens},
            {"generated_per_s", ratio(static_cast<double>(metrics.generated_tokens), info.wall_s)}}},
          {"latency_s", distribution(metrics.latency_s)},
          {"ttft_s", distribution(metrics.ttft_s)},
          {"swaps", swaps_json(metrics.swaps, info)},
          {"steps", steps_json(metrics.steps)},
          {"cache", {{"set_asides", metrics.cache.preemptions}, {"shared_tokens", metrics.cache.prefix_hit_tokens}}}};
}

Json configuration_json(const RunInfo& info) {
  Json object = Json::object();
  for (const auto& [option, value] : info.configuration) object[option] = value;
  return object;
}

std::vector<std::uint64_t> sum_over_models(const QueueHistory& queues, std::size_t models) {
  std::vector<std::uint64_t> sum(queues.waiting().size(), 0);
  for (std::size_t model = 0; model < models; ++model) {
    const std::vector<std::uint64_t>& unfinished = queues.unfinished(static_cast<ModelId>(model));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += unfinished[i];
  }
  return sum;
}

// Whether the list that begins at `at` is one of numbers or texts.
bool is_plain_list(const std::string& text, std::size_t at) {
  const std::size_t first = text.find_first_not_of(" \n", at + 1);
  return first != std::string::npos && text[first] != '{';
}

// Indented JSON whose lists of numbers or texts stand in a line each.
std::string lists_in_a_line(const std::string& text) {
  std::string out;
  bool quoted = false, list = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == ']')) list = c == '[' && is_plain_list(text, i);
    if (list && !quoted && (c == '\n' || c == ' ')) continue;
    out += c;
    if (list && !quoted && c == ',') out += ' ';
    if (quoted && c == '\\') out += text[++i];  // whatever is escaped ends no string
  }
  return out;
}

Json program_json(const ProgramInfo& program) {
  return {{"version", program.version},
          {"commit", program.commit},
          {"build", program.build},
          {"compiler", program.compiler},
          {"libraries", program.libraries}};
}

Json info_json(const RunInfo& info) {
  return {{"computron", program_json(info.program)},
          {"started", info.started},
          {"host", info.host},
          {"attempt", info.attempt},
          {"wall_s", info.wall_s},
          {"mesh", {{"ranks", info.ranks}, {"tp", info.tp}, {"pp", info.pp}, {"groups", info.groups}}},
          {"device", info.device},
          {"link",
           {{"gb_per_s_per_rank", info.link_gb_per_s > 0 ? Json(info.link_gb_per_s) : Json(nullptr)},
            {"emulated", info.link_emulated},
            {"coded", info.link_coded}}}};
}

// How the times that ranks spend come together.
enum class Together {
  kOneAfterTheOther,  // the same ranks
  kSideBySide,        // other ranks
};

template <class Number>
void join(Number& to, Number from, Together together) {
  to = together == Together::kSideBySide ? std::max(to, from) : to + from;
}

void merge(SwapMetrics& to, const SwapMetrics& from, Together together) {
  to.count += from.count;
  to.pages += from.pages;
  to.bytes += from.bytes;
  to.link_bytes += from.link_bytes;
  to.verified += from.verified;
  to.refetched += from.refetched;
  // The rate is one of both: bytes and time are the same rank's.
  if (together == Together::kSideBySide && from.busy_s <= to.busy_s) {
    to.exposed_s = std::max(to.exposed_s, from.exposed_s);
    return;
  }
  if (together == Together::kSideBySide) {
    to.largest_shard_bytes = 0;
    to.busy_s = 0;
  }
  to.largest_shard_bytes += from.largest_shard_bytes;
  to.busy_s += from.busy_s;
  join(to.exposed_s, from.exposed_s, together);
}

void merge(StepMetrics& to, const StepMetrics& from) {
  to.count += from.count;
  to.passes += from.passes;
  to.graphs += from.graphs;
  to.rides += from.rides;
  to.total_s += from.total_s;
  to.overhead_s += from.overhead_s;
  to.compute_s.resize(std::max(to.compute_s.size(), from.compute_s.size()));
  for (std::size_t rank = 0; rank < from.compute_s.size(); ++rank) to.compute_s[rank] += from.compute_s[rank];
}

void merge(ModelMetrics& to, const ModelMetrics& from, bool with_times, Together together) {
  to.requests_ok += from.requests_ok;
  to.requests_failed += from.requests_failed;
  to.prompt_tokens += from.prompt_tokens;
  to.generated_tokens += from.generated_tokens;
  to.deadlines += from.deadlines;
  merge(to.swaps, from.swaps, together);
  merge(to.steps, from.steps);
  to.cache.preemptions += from.cache.preemptions;
  to.cache.prefix_hit_tokens += from.cache.prefix_hit_tokens;
  if (!with_times) return;
  to.latency_s.merge(from.latency_s);
  to.ttft_s.merge(from.ttft_s);
}

std::string deadlines_part(const DeadlineCount& deadlines) {
  if (deadlines.total == 0) return {};
  return fmt::format(", {:.1f} % of {} deadlines met ({} not served)",
                     100 * static_cast<double>(deadlines.met) / static_cast<double>(deadlines.total), deadlines.total,
                     deadlines.unserved);
}

std::string requests_line(const ModelMetrics& metrics, std::uint64_t failed_lines, const RunInfo& info) {
  const std::uint64_t failed = metrics.requests_failed + failed_lines;
  std::string line =
      fmt::format("{} requests in {:.2f} s ({} ok, {} failed), {} tokens generated", metrics.requests_ok + failed,
                  info.wall_s, metrics.requests_ok, failed, metrics.generated_tokens);
  if (info.wall_s > 0) {
    line += fmt::format(" at {:.1f} tokens/s", static_cast<double>(metrics.generated_tokens) / info.wall_s);
  }
  if (!metrics.latency_s.empty()) {
    line += fmt::format(", latency p50 {:.3f} s, p99 {:.3f} s", metrics.latency_s.percentile(0.5),
                        metrics.latency_s.percentile(0.99));
  }
  return line + deadlines_part(metrics.deadlines);
}

// Nothing in a job that was never interrupted.
std::string earlier_attempts(const RunInfo& info) {
  if (info.attempt == 1 && info.requests_before == 0) return {};
  return fmt::format("; {} by earlier attempts (this is attempt {})", info.requests_before, info.attempt);
}

std::string swaps_line(const SwapMetrics& swaps, const RunInfo& info) {
  if (swaps.count == 0) return "no swaps";
  std::string line = fmt::format("{} swaps: {} in {} pages", swaps.count, format_size(swaps.bytes), swaps.pages);
  if (swaps.link_bytes < swaps.bytes) line += fmt::format(", {} over the links", format_size(swaps.link_bytes));
  if (swaps.busy_s > 0) {
    const double rate = gb_fetched(swaps) / swaps.busy_s;
    line += fmt::format(", {:.2f} GB/s a rank", rate);
    if (info.link_gb_per_s > 0) {
      line += fmt::format(" ({:.0f} % of the {}link's {:.2f})", 100 * rate / info.link_gb_per_s,
                          info.link_emulated ? "emulated " : "", info.link_gb_per_s);
    }
  }
  return line + fmt::format("; compute waited {:.3f} s for pages", swaps.exposed_s);
}

std::string steps_line(const StepMetrics& steps) {
  if (steps.count == 0) return "no steps";
  const auto count = static_cast<double>(steps.count);
  const std::string graphs =
      steps.graphs > 0 ? fmt::format("; {} of {} passes as graphs", steps.graphs, steps.passes) : "";
  return fmt::format("{} steps of {:.0f} us on average; deciding and sending one took {:.1f} us{}", steps.count,
                     1e6 * steps.total_s / count, 1e6 * steps.overhead_s / count, graphs);
}

// Null where nothing was predicted.
Json prediction_of(const RunInfo& info) {
  Json predicted;
  if (info.predicted.empty()) return predicted;
  ensure(!parse_json(info.predicted, {}, predicted), "what was predicted is no JSON");
  return predicted;
}

// ", latency 0.2 / 0.25 s" where both are known.
std::string pair_part(const Json& predicted, const char* key, double factor, std::optional<double> measured,
                      fmt::format_string<double, double> text) {
  const auto found = predicted.find(key);
  if (found == predicted.end() || !found->is_number() || !measured) return {};
  return ", " + fmt::format(text, factor * found->get<double>(), factor * *measured);
}

// Nothing where nothing was predicted.
std::string prediction_line(const ModelMetrics& all, const RunInfo& info) {
  if (info.predicted.empty()) return {};
  const Json predicted = prediction_of(info);
  const auto part = [&](const char* key, double factor, std::optional<double> measured,
                        fmt::format_string<double, double> text) {
    return pair_part(predicted, key, factor, measured, text);
  };
  const auto percentile_s = [&all](double share) {
    return all.latency_s.empty() ? std::nullopt : std::optional(all.latency_s.percentile(share));
  };
  const DeadlineCount& deadlines = all.deadlines;
  const auto met = deadlines.total == 0
                       ? std::nullopt
                       : std::optional(static_cast<double>(deadlines.met) / static_cast<double>(deadlines.total));
  const auto mean_s = all.latency_s.empty() ? std::nullopt : std::optional(all.latency_s.mean());
  const auto swaps_per_s =
      info.wall_s > 0 ? std::optional(static_cast<double>(all.swaps.count) / info.wall_s) : std::nullopt;
  const std::string parts = part("attainment", 100, met, "{:.1f} / {:.1f} % of deadlines met") +
                            part("mean_latency_s", 1, mean_s, "latency mean {:.3f} / {:.3f} s") +
                            part("p99_latency_s", 1, percentile_s(.99), "p99 {:.3f} / {:.3f} s") +
                            part("makespan_s", 1, info.wall_s, "{:.2f} / {:.2f} s in all") +
                            part("swaps_per_s", 1, swaps_per_s, "{:.3g} / {:.3g} swaps/s");
  return parts.empty() ? "" : "\npredicted / measured:" + parts.substr(1);
}

}  // namespace

Metrics::Metrics(std::vector<std::string> model_ids) : Metrics(std::move(model_ids), {}) {}

Metrics::Metrics(std::vector<std::string> model_ids, std::vector<MetricsGroup> groups)
    : ids_(std::move(model_ids)), queues_(ids_.size()) {
  if (groups.empty()) {
    groups.emplace_back().models.resize(ids_.size());
    std::iota(groups.front().models.begin(), groups.front().models.end(), ModelId{0});
  }
  for (MetricsGroup& group : groups) {
    const std::size_t models = group.models.size();
    groups_.push_back({std::move(group), std::vector<ModelMetrics>(models)});
  }
}

std::optional<ModelId> Metrics::Group::local(ModelId job_model) const {
  const auto found = std::ranges::lower_bound(of.models, job_model);
  if (found == of.models.end() || *found != job_model) return std::nullopt;
  return static_cast<ModelId>(found - of.models.begin());
}

void Metrics::add(std::span<const Completion> parts) {
  Group& group = groups_.at(parts.front().group);
  const std::optional<ModelId> local = group.local(parts.front().model);
  ensure(local.has_value(), "a completion of a model that its group does not have");
  ModelMetrics& metrics = group.models[*local];
  metrics.deadlines.add(parts);
  if (std::any_of(parts.begin(), parts.end(), [](const Completion& part) { return !part.error_code.empty(); })) {
    ++metrics.requests_failed;
    return;
  }
  ++metrics.requests_ok;
  double first_s = kNever, finished_s = 0;
  for (const Completion& part : parts) {
    metrics.prompt_tokens += static_cast<std::uint64_t>(part.prompt_tokens);
    metrics.generated_tokens += static_cast<std::uint64_t>(part.generated_tokens);
    finished_s = std::max(finished_s, part.finished_s);
    if (gives_something(part)) first_s = std::min(first_s, part.first_token_s);
  }
  metrics.latency_s.add(finished_s - parts.front().arrival_s);
  if (first_s == kNever) return;
  if (!parts.front().values.empty()) first_s = finished_s;  // nothing of an encoder's result is there before all of it
  metrics.ttft_s.add(first_s - parts.front().arrival_s);
}

void Metrics::add_failure(bool with_deadline) {
  ++failed_lines_;
  failed_lines_with_deadline_ += with_deadline ? 1 : 0;
}

std::uint64_t Metrics::failed() const { return failed_lines_ + counts().requests_failed; }

std::uint64_t Metrics::finished() const {
  const ModelMetrics all = counts();
  return failed_lines_ + all.requests_ok + all.requests_failed;
}

std::uint64_t Metrics::finished(ModelId job_model) const {
  std::uint64_t count = 0;
  for (const Group& group : groups_) {
    const std::optional<ModelId> local = group.local(job_model);
    if (local) count += group.models[*local].requests_ok + group.models[*local].requests_failed;
  }
  return count;
}

ModelMetrics Metrics::counts() const { return merged(/*with_times=*/false); }

ModelMetrics Metrics::Group::merged(bool with_times) const {
  ModelMetrics all;
  for (const ModelMetrics& metrics : models) merge(all, metrics, with_times, Together::kOneAfterTheOther);
  return all;
}

ModelMetrics Metrics::merged(bool with_times) const {
  ModelMetrics all;
  for (const Group& group : groups_) merge(all, group.merged(with_times), with_times, Together::kSideBySide);
  all.deadlines.total += failed_lines_with_deadline_;
  return all;
}

ModelMetrics Metrics::merged(ModelId job_model) const {
  ModelMetrics all;
  for (const Group& group : groups_) {
    const std::optional<ModelId> local = group.local(job_model);
    if (local) merge(all, group.models[*local], /*with_times=*/true, Together::kSideBySide);
  }
  return all;
}

// Where a group's ranks are, its models, and what they did.
nlohmann::ordered_json Metrics::group_json(const Group& group, const RunInfo& info) const {
  Json models = Json::array();
  for (const ModelId model : group.of.models) models.push_back(ids_[model]);
  Json object = {{"tp", group.of.tp}, {"pp", group.of.pp}, {"first_rank", group.of.first_rank}, {"models", models}};
  object.update(metrics_json(group.merged(/*with_times=*/true), /*failed_lines=*/0, info));
  return object;
}

std::string Metrics::to_json(const RunInfo& info) const {
  Json object = info_json(info);
  object.update(metrics_json(merged(/*with_times=*/true), failed_lines_, info));
  object["requests"]["before"] = info.requests_before;
  if (!info.slurm_job_id.empty()) object["job"] = {{"slurm_job_id", info.slurm_job_id}};
  object["over_time"] = {{"interval_s", queues_.interval_s()}, {"waiting", queues_.waiting()}};
  object["open"] = sum_over_models(queues_, ids_.size());
  object["configuration"] = configuration_json(info);
  if (!info.predicted.empty()) object["predicted"] = prediction_of(info);
  Json& models = object["models"] = Json::object();
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    models[ids_[i]] = metrics_json(merged(static_cast<ModelId>(i)), 0, info);
    models[ids_[i]]["open"] = queues_.unfinished(static_cast<ModelId>(i));
  }
  if (groups_.size() > 1) {
    Json& groups = object["groups"] = Json::array();
    for (const Group& group : groups_) groups.push_back(group_json(group, info));
  }
  return lists_in_a_line(object.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string Metrics::summary(const RunInfo& info) const {
  const ModelMetrics all = merged(/*with_times=*/true);
  return fmt::format("{}{}\n{}\n{}{}", requests_line(all, failed_lines_, info), earlier_attempts(info),
                     swaps_line(all.swaps, info), steps_line(all.steps), prediction_line(all, info));
}

}  // namespace computron

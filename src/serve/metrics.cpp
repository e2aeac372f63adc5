#include "computron/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

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
    return {{"mean", nullptr}, {"p50", nullptr}, {"p90", nullptr}, {"p99", nullptr}, {"max", nullptr},
            {"percentiles", Json::array()}};
  }
  return {{"mean", values.mean()},
          {"p50", values.percentile(0.5)},
          {"p90", values.percentile(0.9)},
          {"p99", values.percentile(0.99)},
          {"max", values.max()},
          {"percentiles", percentiles(values)}};
}

double gb_fetched(const SwapFigures& swaps) { return static_cast<double>(swaps.largest_shard_bytes) / 1e9; }

Json swaps_json(const SwapFigures& swaps, const RunFacts& facts) {
  return {{"count", swaps.count},
          {"pages", swaps.pages},
          {"bytes", swaps.bytes},
          {"busy_s", swaps.busy_s},
          {"exposed_s", swaps.exposed_s},
          {"gb_per_s_per_rank", ratio(gb_fetched(swaps), swaps.busy_s)},
          {"link_fraction", ratio(gb_fetched(swaps), swaps.busy_s * facts.link_gb_per_s)},
          {"verified", swaps.verified},
          {"refetched", swaps.refetched}};
}

// 0 where no rank has done anything.
double busiest(const std::vector<double>& ranks_s) {
  return ranks_s.empty() ? 0 : *std::max_element(ranks_s.begin(), ranks_s.end());
}

Json steps_json(const StepFigures& steps) {
  const auto count = static_cast<double>(steps.count);
  return {{"count", steps.count},
          {"passes", steps.passes},
          {"graphs", steps.graphs},
          {"mean_us", ratio(steps.total_s * 1e6, count)},
          {"overhead_us", ratio(steps.overhead_s * 1e6, count)},
          {"compute_s", busiest(steps.compute_s)}};
}

// What the job and each of its models have.
Json figures_json(const ServeFigures& figures, std::uint64_t failed_lines, const RunFacts& facts) {
  const std::uint64_t failed = figures.requests_failed + failed_lines;
  return {{"requests", {{"total", figures.requests_ok + failed}, {"ok", figures.requests_ok}, {"failed", failed}}},
          {"tokens",
           {{"prompt", figures.prompt_tokens},
            {"generated", figures.generated_tokens},
            {"generated_per_s", ratio(static_cast<double>(figures.generated_tokens), facts.wall_s)}}},
          {"latency_s", distribution(figures.latency_s)},
          {"ttft_s", distribution(figures.ttft_s)},
          {"swaps", swaps_json(figures.swaps, facts)},
          {"steps", steps_json(figures.steps)},
          {"cache", {{"set_asides", figures.cache.preemptions}, {"shared_tokens", figures.cache.prefix_hit_tokens}}}};
}

Json configuration_json(const RunFacts& facts) {
  Json object = Json::object();
  for (const auto& [option, value] : facts.configuration) object[option] = value;
  return object;
}

std::vector<std::uint64_t> sum_over_models(const QueueHistory& queues, std::size_t models) {
  std::vector<std::uint64_t> sum(queues.waiting().size(), 0);
  for (std::size_t model = 0; model < models; ++model) {
    const std::vector<std::uint64_t>& open = queues.open(static_cast<ModelId>(model));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += open[i];
  }
  return sum;
}

// Indented JSON whose lists, all of them of numbers or texts, stand in a line each.
std::string lists_in_a_line(const std::string& text) {
  std::string out;
  bool quoted = false, list = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == ']')) list = c == '[';
    if (list && !quoted && (c == '\n' || c == ' ')) continue;
    out += c;
    if (list && !quoted && c == ',') out += ' ';
    if (quoted && c == '\\') out += text[++i];  // whatever is escaped ends no string
  }
  return out;
}

Json program_json(const ProgramFacts& program) {
  return {{"version", program.version},
          {"commit", program.commit},
          {"build", program.build},
          {"compiler", program.compiler},
          {"libraries", program.libraries}};
}

Json facts_json(const RunFacts& facts) {
  return {{"computron", program_json(facts.program)},
          {"started", facts.started},
          {"host", facts.host},
          {"attempt", facts.attempt},
          {"wall_s", facts.wall_s},
          {"mesh", {{"ranks", facts.ranks}, {"tp", facts.tp}, {"pp", facts.pp}, {"groups", facts.groups}}},
          {"device", facts.device},
          {"link",
           {{"gb_per_s_per_rank", facts.link_gb_per_s > 0 ? Json(facts.link_gb_per_s) : Json(nullptr)},
            {"emulated", facts.link_emulated}}}};
}

void merge(SwapFigures& to, const SwapFigures& from) {
  to.count += from.count;
  to.pages += from.pages;
  to.bytes += from.bytes;
  to.largest_shard_bytes += from.largest_shard_bytes;
  to.busy_s += from.busy_s;
  to.exposed_s += from.exposed_s;
  to.verified += from.verified;
  to.refetched += from.refetched;
}

void merge(StepFigures& to, const StepFigures& from) {
  to.count += from.count;
  to.passes += from.passes;
  to.graphs += from.graphs;
  to.total_s += from.total_s;
  to.overhead_s += from.overhead_s;
  to.compute_s.resize(std::max(to.compute_s.size(), from.compute_s.size()));
  for (std::size_t rank = 0; rank < from.compute_s.size(); ++rank) to.compute_s[rank] += from.compute_s[rank];
}

void merge_counts(ServeFigures& to, const ServeFigures& from) {
  to.requests_ok += from.requests_ok;
  to.requests_failed += from.requests_failed;
  to.prompt_tokens += from.prompt_tokens;
  to.generated_tokens += from.generated_tokens;
  merge(to.swaps, from.swaps);
  merge(to.steps, from.steps);
  to.cache.preemptions += from.cache.preemptions;
  to.cache.prefix_hit_tokens += from.cache.prefix_hit_tokens;
}

void merge(ServeFigures& to, const ServeFigures& from) {
  merge_counts(to, from);
  to.latency_s.merge(from.latency_s);
  to.ttft_s.merge(from.ttft_s);
}

std::string requests_line(const ServeFigures& figures, std::uint64_t failed_lines, const RunFacts& facts) {
  const std::uint64_t failed = figures.requests_failed + failed_lines;
  std::string line =
      fmt::format("{} requests in {:.2f} s ({} ok, {} failed), {} tokens generated", figures.requests_ok + failed,
                  facts.wall_s, figures.requests_ok, failed, figures.generated_tokens);
  if (facts.wall_s > 0) {
    line += fmt::format(" at {:.1f} tokens/s", static_cast<double>(figures.generated_tokens) / facts.wall_s);
  }
  if (!figures.latency_s.empty()) {
    line += fmt::format(", latency p50 {:.3f} s, p99 {:.3f} s", figures.latency_s.percentile(0.5),
                        figures.latency_s.percentile(0.99));
  }
  return line;
}

// Nothing in a job that was never interrupted.
std::string earlier_attempts(const RunFacts& facts) {
  if (facts.attempt == 1 && facts.requests_before == 0) return {};
  return fmt::format("; {} by earlier attempts (this is attempt {})", facts.requests_before, facts.attempt);
}

std::string swaps_line(const SwapFigures& swaps, const RunFacts& facts) {
  if (swaps.count == 0) return "no swaps";
  std::string line = fmt::format("{} swaps: {} in {} pages", swaps.count, format_size(swaps.bytes), swaps.pages);
  if (swaps.busy_s > 0) {
    const double rate = gb_fetched(swaps) / swaps.busy_s;
    line += fmt::format(", {:.2f} GB/s a rank", rate);
    if (facts.link_gb_per_s > 0) {
      line += fmt::format(" ({:.0f} % of the {}link's {:.2f})", 100 * rate / facts.link_gb_per_s,
                          facts.link_emulated ? "emulated " : "", facts.link_gb_per_s);
    }
  }
  return line + fmt::format("; compute waited {:.3f} s for pages", swaps.exposed_s);
}

std::string steps_line(const StepFigures& steps) {
  if (steps.count == 0) return "no steps";
  const auto count = static_cast<double>(steps.count);
  const std::string graphs =
      steps.graphs > 0 ? fmt::format("; {} of {} passes as graphs", steps.graphs, steps.passes) : "";
  return fmt::format("{} steps of {:.0f} us on average; deciding and sending one took {:.1f} us{}", steps.count,
                     1e6 * steps.total_s / count, 1e6 * steps.overhead_s / count, graphs);
}

}  // namespace

Metrics::Metrics(std::vector<std::string> model_ids)
    : ids_(std::move(model_ids)), models_(ids_.size()), queues_(ids_.size()) {}

void Metrics::add(std::span<const Completion> parts) {
  ServeFigures& figures = models_.at(parts.front().model);
  if (std::any_of(parts.begin(), parts.end(), [](const Completion& part) { return !part.error_code.empty(); })) {
    ++figures.requests_failed;
    return;
  }
  ++figures.requests_ok;
  double first_s = kNever, finished_s = 0;
  for (const Completion& part : parts) {
    figures.prompt_tokens += static_cast<std::uint64_t>(part.prompt_tokens);
    figures.generated_tokens += static_cast<std::uint64_t>(part.generated_tokens);
    finished_s = std::max(finished_s, part.finished_s);
    if (gives_something(part)) first_s = std::min(first_s, part.first_token_s);
  }
  figures.latency_s.add(finished_s - parts.front().arrival_s);
  if (first_s == kNever) return;
  if (!parts.front().values.empty()) first_s = finished_s;  // nothing of an encoder's result is there before all of it
  figures.ttft_s.add(first_s - parts.front().arrival_s);
}

void Metrics::add_failure() { ++failed_lines_; }

std::uint64_t Metrics::failed() const {
  std::uint64_t count = failed_lines_;
  for (const ServeFigures& figures : models_) count += figures.requests_failed;
  return count;
}

std::uint64_t Metrics::finished() const {
  std::uint64_t count = failed_lines_;
  for (const ServeFigures& figures : models_) count += figures.requests_ok + figures.requests_failed;
  return count;
}

ServeFigures Metrics::counts() const {
  ServeFigures all;
  for (const ServeFigures& figures : models_) merge_counts(all, figures);
  return all;
}

ServeFigures Metrics::merged() const {
  ServeFigures all;
  for (const ServeFigures& figures : models_) merge(all, figures);
  return all;
}

std::string Metrics::to_json(const RunFacts& facts) const {
  Json object = facts_json(facts);
  object.update(figures_json(merged(), failed_lines_, facts));
  object["requests"]["before"] = facts.requests_before;
  if (!facts.slurm_job_id.empty()) object["job"] = {{"slurm_job_id", facts.slurm_job_id}};
  object["over_time"] = {{"interval_s", queues_.interval_s()}, {"waiting", queues_.waiting()}};
  object["open"] = sum_over_models(queues_, ids_.size());
  object["configuration"] = configuration_json(facts);
  Json& models = object["models"] = Json::object();
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    models[ids_[i]] = figures_json(models_[i], 0, facts);
    models[ids_[i]]["open"] = queues_.open(static_cast<ModelId>(i));
  }
  return lists_in_a_line(object.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string Metrics::summary(const RunFacts& facts) const {
  const ServeFigures all = merged();
  return fmt::format("{}{}\n{}\n{}", requests_line(all, failed_lines_, facts), earlier_attempts(facts),
                     swaps_line(all.swaps, facts), steps_line(all.steps));
}

}  // namespace computron

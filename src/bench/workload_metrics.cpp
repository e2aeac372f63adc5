#include "src/bench/workload_metrics.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

double ratio(double real, double predicted) { return predicted > 0 ? real / predicted : 0; }

std::vector<double> rates_of(const WorkloadOptions& options) {
  std::vector<double> rates;
  for (const WorkloadModel& model : options.models) rates.push_back(model.rate_per_s);
  return rates;
}

std::string rates_text(const WorkloadOptions& options, const char* separator) {
  std::string text;
  for (const double rate : rates_of(options)) text += fmt::format("{}{}", text.empty() ? "" : separator, rate);
  return text;
}

std::string link_text(const WorkloadConditions& c) {
  return c.link_gb_per_s > 0 ? fmt::format("emulated, {} GB/s", c.link_gb_per_s) : "the machine's own";
}

std::string row(const std::string& policy, const char* time, const WorkloadOutcome& outcome) {
  const LatencySummary latency = summary_of(outcome.latencies_s);
  return fmt::format("{:<12}{:<9}{:>9.3f}{:>9.3f}{:>9.3f}{:>8}{:>10.3f}{:>9.1f}{:>9.2f}\n", policy, time,
                     latency.mean_s, latency.p50_s, latency.p99_s, outcome.swaps,
                     1e-9 * static_cast<double>(outcome.bytes), 100 * ratio(outcome.link_busy_s, outcome.wall_s),
                     outcome.wall_s);
}

std::string ratio_row(const PolicyComparison& run) {
  const LatencySummary real = summary_of(run.real.latencies_s), predicted = summary_of(run.virtual_time.latencies_s);
  return fmt::format("{:<12}{:<9}{:>9.3f}{:>9.3f}{:>9.3f}{:>8.3f}{:>10.3f}\n", "", "ratio",
                     ratio(real.mean_s, predicted.mean_s), ratio(real.p50_s, predicted.p50_s),
                     ratio(real.p99_s, predicted.p99_s),
                     ratio(static_cast<double>(run.real.swaps), static_cast<double>(run.virtual_time.swaps)),
                     ratio(static_cast<double>(run.real.bytes), static_cast<double>(run.virtual_time.bytes)));
}

std::string csv_fields(const WorkloadOutcome& outcome) {
  const LatencySummary latency = summary_of(outcome.latencies_s);
  return fmt::format(",{:.6f},{:.6f},{:.6f},{},{},{:.3f},{:.3f}", latency.mean_s, latency.p50_s, latency.p99_s,
                     outcome.swaps, outcome.bytes, outcome.link_busy_s, outcome.wall_s);
}

Json outcome_json(const WorkloadOutcome& outcome) {
  const LatencySummary latency = summary_of(outcome.latencies_s);
  return {{"mean_s", latency.mean_s}, {"p50_s", latency.p50_s},
          {"p99_s", latency.p99_s},   {"swaps", outcome.swaps},
          {"bytes", outcome.bytes},   {"link_busy_s", outcome.link_busy_s},
          {"wall_s", outcome.wall_s}, {"latency_s_by_request", outcome.latencies_s}};
}

Json run_json(const PolicyComparison& run) {
  return {
      {"policy", run.policy},
      {"real", outcome_json(run.real)},
      {"virtual", outcome_json(run.virtual_time)},
      {"mean_ratio", ratio(summary_of(run.real.latencies_s).mean_s, summary_of(run.virtual_time.latencies_s).mean_s)},
      {"learned", {{"request_s", run.costs.request_s}, {"batch_s", run.costs.batch_s}, {"swap_s", run.costs.swap_s}}}};
}

}  // namespace

std::vector<double> latencies_of(const std::vector<Completion>& completions) {
  std::vector<double> latencies_s(completions.size(), -1);
  for (const Completion& completion : completions) {
    ensure(completion.id < latencies_s.size() && latencies_s[completion.id] < 0, "a request that completes twice");
    latencies_s[completion.id] = completion.finished_s - completion.arrival_s;
  }
  return latencies_s;
}

std::string workload_table(const std::vector<PolicyComparison>& runs, const WorkloadConditions& c) {
  std::string text = fmt::format(
      "{} requests in {} s, rates {} a second, cv {}, seed {}; {} of prompt, {} generated; at most {} together\n"
      "tp {} x pp {}, {}; page {:.0f} KiB, pool {} frames{}; link of a rank: {}\n\n",
      runs.front().real.latencies_s.size(), c.workload.duration_s, rates_text(c.workload, ","), c.workload.cv,
      c.workload.seed, c.workload.prompt_tokens, c.workload.max_tokens, c.max_seqs, c.mesh.tp, c.mesh.pp, c.device,
      static_cast<double>(c.page_bytes) / 1024, c.frames, c.resident > 0 ? fmt::format(" ({} models)", c.resident) : "",
      link_text(c));
  text += fmt::format("{:<12}{:<9}{:>9}{:>9}{:>9}{:>8}{:>10}{:>9}{:>9}\n", "policy", "time", "mean s", "p50 s", "p99 s",
                      "swaps", "GB moved", "link %", "wall s");
  for (const PolicyComparison& run : runs) {
    text += row(run.policy, "real", run.real) + row("", "virtual", run.virtual_time) + ratio_row(run);
    text += fmt::format("{:<12}learned: {:.1f} ms a request, {:.1f} ms a full batch, {:.1f} ms a swap\n", "",
                        1e3 * run.costs.request_s, 1e3 * run.costs.batch_s, 1e3 * run.costs.swap_s);
  }
  return text;
}

std::string workload_csv(const std::vector<PolicyComparison>& runs, const WorkloadConditions& c) {
  std::string text = "tp,pp,emulated_gb_per_s,frames,resident,max_seqs,rates,cv,duration_s,seed,requests,policy";
  for (const char* time : {"real", "virtual"}) {
    text += fmt::format(",{0}_mean_s,{0}_p50_s,{0}_p99_s,{0}_swaps,{0}_bytes,{0}_link_busy_s,{0}_wall_s", time);
  }
  text += ",mean_ratio,request_s,batch_s,swap_s\n";
  for (const PolicyComparison& run : runs) {
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}{}{},{:.4f},{:.6f},{:.6f},{:.6f}\n", c.mesh.tp, c.mesh.pp,
                        c.link_gb_per_s, c.frames, c.resident, c.max_seqs, rates_text(c.workload, "/"), c.workload.cv,
                        c.workload.duration_s, c.workload.seed, run.real.latencies_s.size(), run.policy,
                        csv_fields(run.real), csv_fields(run.virtual_time),
                        ratio(summary_of(run.real.latencies_s).mean_s, summary_of(run.virtual_time.latencies_s).mean_s),
                        run.costs.request_s, run.costs.batch_s, run.costs.swap_s);
  }
  return text;
}

std::string workload_json(const std::vector<PolicyComparison>& runs, const WorkloadConditions& c) {
  Json object = {{"mesh", {{"ranks", c.mesh.ranks()}, {"tp", c.mesh.tp}, {"pp", c.mesh.pp}}},
                 {"device", c.device},
                 {"emulated_gb_per_s", c.link_gb_per_s > 0 ? Json(c.link_gb_per_s) : Json(nullptr)},
                 {"page_bytes", c.page_bytes},
                 {"frames", c.frames},
                 {"resident", c.resident},
                 {"max_seqs", c.max_seqs},
                 {"rates_per_s", rates_of(c.workload)},
                 {"cv", c.workload.cv},
                 {"duration_s", c.workload.duration_s},
                 {"seed", c.workload.seed},
                 {"prompt_tokens", c.workload.prompt_tokens},
                 {"max_tokens", c.workload.max_tokens},
                 {"requests", runs.front().real.latencies_s.size()}};
  Json& policies = object["policies"] = Json::array();
  for (const PolicyComparison& run : runs) policies.push_back(run_json(run));
  return object.dump(2) + "\n";
}

}  // namespace computron

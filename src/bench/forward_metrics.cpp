#include "src/bench/forward_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/bench/latency_summary.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

double median(const std::vector<double>& values) { return summary_of(values).p50_s; }

// The median over the rounds of of(round).
template <class Of>
double over_rounds(const PassMetrics& pass, const Of& of) {
  std::vector<double> values;
  for (std::size_t round = 0; round < pass.pass_s.size(); ++round) values.push_back(of(round));
  return median(values);
}

double tokens_per_s(const PassMetrics& pass) { return pass.sequences * pass.rows / median(pass.pass_s); }

// Of a round's own yardstick, so that both met the same machine.
double read_fraction(const PassMetrics& pass, const ForwardMetrics& f) {
  return over_rounds(pass, [&](auto i) { return pass.weight_bytes / pass.pass_s[i] / f.read_bytes_per_s[i]; });
}
double read_fraction_with_cache(const PassMetrics& pass, const ForwardMetrics& f) {
  const double bytes = pass.weight_bytes + pass.cache_bytes;
  return over_rounds(pass, [&](auto i) { return bytes / pass.pass_s[i] / f.read_bytes_per_s[i]; });
}
double peak_fraction(const PassMetrics& pass, const ForwardMetrics& f) {
  return over_rounds(pass, [&](auto i) { return pass.gemm_flops / pass.pass_s[i] / f.peak_flops_per_s[i]; });
}
// Memory and multipliers work at the same time at best.
double bound_fraction(const PassMetrics& pass, const ForwardMetrics& f) {
  const double bytes = pass.weight_bytes + pass.cache_bytes;
  return over_rounds(pass, [&](auto i) {
    return std::max(bytes / f.read_bytes_per_s[i], pass.gemm_flops / f.peak_flops_per_s[i]) / pass.pass_s[i];
  });
}
double gemms_fraction(const PassMetrics& pass) {
  return over_rounds(pass, [&](auto i) { return pass.gemms_s[i] / pass.pass_s[i]; });
}

std::string name_of(const PassMetrics& pass) {
  return pass.rows > 1 ? fmt::format("prefill {}", pass.rows) : fmt::format("decode {}", pass.sequences);
}

std::string row(const PassMetrics& pass, const ForwardMetrics& f) {
  return fmt::format("{:<12}{:>10.1f}{:>10.2f}{:>10.2f}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}\n", name_of(pass),
                     tokens_per_s(pass), 1e3 * median(pass.pass_s), 1e3 * median(pass.gemms_s), gemms_fraction(pass),
                     read_fraction(pass, f), read_fraction_with_cache(pass, f), peak_fraction(pass, f),
                     bound_fraction(pass, f));
}

// "gemm 40.12  attention 1.20 ...": ms of a pass by operation, the dearest first.
std::string breakdown(const PassMetrics& pass) {
  std::vector<OperationCost> costs = pass.costs;
  std::sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  std::string text = fmt::format("{:<12}", name_of(pass));
  for (const OperationCost& cost : costs) text += fmt::format("{} {:.3f}  ", cost.name, 1e3 * cost.seconds);
  return text + "\n";
}

Json json_of(const PassMetrics& pass, const ForwardMetrics& f) {
  Json costs = Json::object();
  for (const OperationCost& c : pass.costs) costs[std::string(c.name)] = {{"calls", c.calls}, {"seconds", c.seconds}};
  return {{"sequences", pass.sequences},
          {"rows", pass.rows},
          {"tokens_per_s", tokens_per_s(pass)},
          {"pass_s", median(pass.pass_s)},
          {"gemms_s", median(pass.gemms_s)},
          {"prepare_s", median(pass.prepare_s)},
          {"enqueue_s", median(pass.enqueue_s)},
          {"weight_bytes", pass.weight_bytes},
          {"cache_bytes", pass.cache_bytes},
          {"gemm_flops", pass.gemm_flops},
          {"of_gemms_alone", gemms_fraction(pass)},
          {"of_plain_read", read_fraction(pass, f)},
          {"of_plain_read_with_cache", read_fraction_with_cache(pass, f)},
          {"of_gemm_peak", peak_fraction(pass, f)},
          {"of_bound", bound_fraction(pass, f)},
          {"operations", costs},
          {"rounds", {{"pass_s", pass.pass_s}, {"gemms_s", pass.gemms_s}}}};
}

}  // namespace

std::string forward_table(const ForwardOptions& o, const ForwardMetrics& f) {
  std::string text = fmt::format(
      "{}: {} {}, {}, {} tokens of context, medians of {} rounds\nplain read {:.1f} GB/s, GEMM peak {:.0f} "
      "GFLOP/s\n\n",
      o.file, f.architecture, computron::name_of(f.weight_dtype), f.device, o.context, o.repeats,
      median(f.read_bytes_per_s) / 1e9, median(f.peak_flops_per_s) / 1e9);
  text += fmt::format("{:<12}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "pass", "tokens/s", "ms", "GEMMs ms",
                      "of GEMMs", "of read", "+ cache", "of peak", "of bound");
  for (const PassMetrics& pass : f.decode) text += row(pass, f);
  text += row(f.prefill, f) + "\nms by operation\n";
  for (const PassMetrics& pass : f.decode) text += breakdown(pass);
  return text + breakdown(f.prefill);
}

std::string forward_json(const ForwardOptions& o, const ForwardMetrics& f) {
  Json decode = Json::array();
  for (const PassMetrics& pass : f.decode) decode.push_back(json_of(pass, f));
  const Json json = {{"file", o.file},
                     {"architecture", f.architecture},
                     {"dtype", computron::name_of(f.weight_dtype)},
                     {"device", f.device},
                     {"threads", o.threads},
                     {"context", o.context},
                     {"read_bytes_per_s", median(f.read_bytes_per_s)},
                     {"peak_flops_per_s", median(f.peak_flops_per_s)},
                     {"prefill", json_of(f.prefill, f)},
                     {"decode", decode},
                     {"rounds", {{"read_bytes_per_s", f.read_bytes_per_s}, {"peak_flops_per_s", f.peak_flops_per_s}}}};
  return json.dump(2) + "\n";
}

}  // namespace computron

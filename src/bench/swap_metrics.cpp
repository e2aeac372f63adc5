#include "src/bench/swap_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "computron/base/json.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAllowedFactor = 1.05, kAllowed_s = 3e-3;

// What a link gives: the upper quartile of its rounds. Other work on the machine slows rounds and speeds none up.
double link_rate_of(std::vector<double> rounds) {
  ensure(!rounds.empty(), "a link without a round");
  std::sort(rounds.begin(), rounds.end());
  return rounds[ceil_div<std::size_t>(3 * rounds.size(), 4) - 1];
}

// Bytes a second of the slowest rank of a stage.
double slowest(const SwapConditions& conditions, int stage, std::vector<double> LinkRates::*rates) {
  double rate = 0;
  for (int t = 0; t < conditions.mesh.tp; ++t) {
    const double own = link_rate_of(conditions.links[conditions.mesh.rank_of(stage, t)].*rates);
    rate = t == 0 ? own : std::min(rate, own);
  }
  return rate;
}

// Of the rank that moves most: coded, the same pages take a little more on one rank than on another.
double stage_bytes(const SwapSample& sample, const MeshShape& mesh, int stage) {
  std::uint64_t most = 0;
  for (int t = 0; t < mesh.tp; ++t) most = std::max(most, sample.copies[mesh.rank_of(stage, t)].bytes);
  return static_cast<double>(most);
}

double copying_s(const SwapSample& sample, const SwapConditions& conditions) {
  double seconds = 0;
  for (int stage = 0; conditions.cores_busy && stage < conditions.mesh.pp; ++stage) {
    seconds =
        std::max(seconds, stage_bytes(sample, conditions.mesh, stage) / slowest(conditions, stage, &LinkRates::memory));
  }
  return seconds;
}

double load_of(const SwapSample& sample) {
  double seconds = 0;
  for (const RankCopies& rank : sample.copies) seconds = std::max(seconds, rank.busy_s);
  return seconds;
}

double most_bytes(const SwapSample& sample) {
  std::uint64_t most = 0;
  for (const RankCopies& rank : sample.copies) most = std::max(most, rank.bytes);
  return static_cast<double>(most);
}

// What a response may take.
double limit_s(const SwapBound& bound) {
  return kAllowedFactor * bound.transfer_and_compute_s + bound.page_s + kAllowed_s;
}

double rate_of(const RankCopies& rank) { return static_cast<double>(rank.bytes) / rank.busy_s; }

// The least of `of(rank)` over the ranks that copied at all.
template <class Of>
double least(const SwapSample& sample, const Of& of) {
  double value = 0;
  bool any = false;
  for (std::size_t rank = 0; rank < sample.copies.size(); ++rank) {
    if (sample.copies[rank].bytes == 0) continue;
    value = any ? std::min(value, of(rank)) : of(rank);
    any = true;
  }
  return value;
}

double skew_of(const SwapSample& sample, const MeshShape& mesh) {
  double skew = 0;
  for (int stage = 0; stage < mesh.pp; ++stage) {
    if (stage_bytes(sample, mesh, stage) == 0) continue;
    std::vector<double> rates;
    for (int t = 0; t < mesh.tp; ++t) rates.push_back(rate_of(sample.copies[mesh.rank_of(stage, t)]));
    const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
    skew = std::max(skew, *high / *low - 1);
  }
  return skew;
}

Spread fetch_fraction_of(const std::vector<LinkRates>& links) {
  std::vector<double> fractions;
  for (std::size_t round = 0; round < links.front().plain.size(); ++round) {
    double lowest = links.front().fetch[round] / links.front().plain[round];
    for (const LinkRates& rank : links) lowest = std::min(lowest, rank.fetch[round] / rank.plain[round]);
    fractions.push_back(lowest);
  }
  return spread_of(std::move(fractions));
}

template <class Of>
Spread over(const std::vector<SwapSample>& samples, const Of& of) {
  std::vector<double> values;
  for (const SwapSample& sample : samples) values.push_back(of(sample));
  return spread_of(std::move(values));
}

// A column: its head, how many digits, and a factor from SI units to the head's.
struct Column {
  const char* head;
  const char* key;  // of the CSV
  double factor;
  int digits;
  std::optional<Spread> spread;
};

std::optional<Spread> alone(const std::optional<double>& value) {
  if (!value) return std::nullopt;
  return Spread{*value, *value, *value};
}

std::vector<Column> columns_of(const SwapSummary& f) {
  return {{"load ms", "load_ms", 1e3, 1, f.load_s},
          {"exec ms", "exec_ms", 1e3, 1, f.exec_s},
          {"response ms", "response_ms", 1e3, 1, f.response_s},
          {"bound ms", "bound_ms", 1e3, 1, f.bound_s},
          {"response/bound", "response_over_bound", 1, 3, f.response_over_bound},
          {"response/limit", "response_over_limit", 1, 3, f.response_over_limit},
          {"GB/s a rank", "gb_per_s_per_rank", 1, 3, f.gb_per_s},
          {"% of link", "link_percent", 100, 1, f.link_fraction},
          {"skew %", "skew_percent", 100, 1, f.skew},
          {"fetch % of plain", "fetch_percent", 100, 1, f.fetch_fraction},
          {"speed-up", "speed_up", 1, 3, alone(f.speed_up)},
          {"ratio of bytes", "bytes_ratio", 1, 3, alone(f.ideal_speed_up)}};
}

std::string cell(const Column& column, double Spread::*value) {
  if (!column.spread) return "-";
  return fmt::format("{:.{}f}", column.factor * ((*column.spread).*value), column.digits);
}

std::string link_text(const SwapConditions& c) {
  std::vector<double> plain;
  for (const LinkRates& rank : c.links) plain.push_back(link_rate_of(rank.plain));
  const Spread gb = spread_of(plain);
  const std::string kind =
      c.link_gb_per_s > 0 ? fmt::format("emulated, {} GB/s", c.link_gb_per_s) : "the machine's own";
  return fmt::format("link of a rank: {}; plain copies on all ranks at once gave {:.3f} to {:.3f} GB/s", kind,
                     gb.min / 1e9, gb.max / 1e9);
}

Json spread_json(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"median", spread->median}, {"min", spread->min}, {"max", spread->max}};
}

Json number_json(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json links_json(const SwapConditions& conditions) {
  Json ranks = Json::array();
  for (const LinkRates& rank : conditions.links) {
    ranks.push_back({{"plain", rank.plain}, {"fetch", rank.fetch}, {"memory", rank.memory}});
  }
  return {{"emulated_gb_per_s", conditions.link_gb_per_s > 0 ? Json(conditions.link_gb_per_s) : Json(nullptr)},
          {"bytes_per_s_by_rank_and_round", ranks}};
}

Json sample_json(const SwapSample& sample, const SwapConditions& conditions) {
  Json ranks = Json::array();
  for (const RankCopies& rank : sample.copies) ranks.push_back({{"bytes", rank.bytes}, {"busy_s", rank.busy_s}});
  return {{"model", sample.model},
          {"response_s", sample.response_s},
          {"exec_s", sample.exec_s},
          {"bound_s", bound_of(sample, conditions).seconds()},
          {"ranks", ranks}};
}

}  // namespace

SwapBound bound_of(const SwapSample& sample, const SwapConditions& conditions) {
  SwapBound bound;
  double later_s = 0;  // compute of the stages behind
  double slowest_link = 0;
  for (int stage = conditions.mesh.pp - 1; stage >= 0; --stage) {
    const double link = slowest(conditions, stage, &LinkRates::plain);
    const double transfer_s = stage_bytes(sample, conditions.mesh, stage) / link;
    bound.transfer_and_compute_s = std::max(bound.transfer_and_compute_s, transfer_s + later_s);
    later_s += sample.exec_s * conditions.stage_shares[sample.model][stage];
    slowest_link = slowest_link == 0 ? link : std::min(slowest_link, link);
  }
  bound.transfer_and_compute_s = std::max(bound.transfer_and_compute_s, later_s + copying_s(sample, conditions));
  bound.page_s = static_cast<double>(conditions.page_link_bytes) / slowest_link;
  return bound;
}

Spread spread_of(std::vector<double> values) {
  ensure(!values.empty(), "the spread of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

SwapSummary metrics_of(const std::vector<SwapSample>& samples, const SwapConditions& conditions,
                       const std::optional<SwapBaseline>& baseline) {
  const auto bound = [&](const SwapSample& s) { return bound_of(s, conditions); };
  const auto link = [&](std::size_t rank) { return link_rate_of(conditions.links[rank].plain); };
  SwapSummary f;
  f.requests = static_cast<int>(samples.size());
  f.shard_bytes = over(samples, most_bytes).median;
  f.load_s = over(samples, load_of);
  f.exec_s = over(samples, [](const SwapSample& s) { return s.exec_s; });
  f.response_s = over(samples, [](const SwapSample& s) { return s.response_s; });
  f.bound_s = over(samples, [&](const SwapSample& s) { return bound(s).seconds(); });
  f.response_over_bound = over(samples, [&](const SwapSample& s) { return s.response_s / bound(s).seconds(); });
  f.response_over_limit = over(samples, [&](const SwapSample& s) { return s.response_s / limit_s(bound(s)); });
  f.gb_per_s = over(samples, [](const SwapSample& s) {
    return least(s, [&](std::size_t rank) { return rate_of(s.copies[rank]) / 1e9; });
  });
  f.link_fraction = over(samples, [&](const SwapSample& s) {
    return least(s, [&](std::size_t rank) { return rate_of(s.copies[rank]) / link(rank); });
  });
  if (conditions.mesh.tp > 1) f.skew = over(samples, [&](const SwapSample& s) { return skew_of(s, conditions.mesh); });
  f.fetch_fraction = fetch_fraction_of(conditions.links);
  if (baseline) {
    f.speed_up = baseline->load_s / f.load_s.median;
    f.ideal_speed_up = baseline->shard_bytes / f.shard_bytes;
  }
  return f;
}

std::string swap_table(const SwapSummary& summary, const SwapConditions& c) {
  std::string text = fmt::format(
      "{} swapped requests of 1 token after {} of prompt; tp {} x pp {}, {}; page {:.0f} KiB, "
      "pool {} frames\n{}\n\n",
      summary.requests, c.prompt_tokens, c.mesh.tp, c.mesh.pp, c.device, static_cast<double>(c.page_bytes) / 1024,
      c.frames, link_text(c));
  std::string head = fmt::format("{:8}", ""), median = fmt::format("{:8}", "median");
  std::string low = fmt::format("{:8}", "min"), high = fmt::format("{:8}", "max");
  for (const Column& column : columns_of(summary)) {
    const std::size_t width = std::max<std::size_t>(std::string(column.head).size(), 9) + 2;
    head += fmt::format("{:>{}}", column.head, width);
    median += fmt::format("{:>{}}", cell(column, &Spread::median), width);
    low += fmt::format("{:>{}}", cell(column, &Spread::min), width);
    high += fmt::format("{:>{}}", cell(column, &Spread::max), width);
  }
  return text + head + "\n" + median + "\n" + low + "\n" + high + "\n";
}

std::string swap_csv(const SwapSummary& summary, const SwapConditions& c) {
  std::string head = "tp,pp,emulated_gb_per_s,requests,prompt_tokens,page_bytes,frames,shard_bytes";
  std::string line = fmt::format("{},{},{},{},{},{},{},{:.0f}", c.mesh.tp, c.mesh.pp, c.link_gb_per_s, summary.requests,
                                 c.prompt_tokens, c.page_bytes, c.frames, summary.shard_bytes);
  for (const Column& column : columns_of(summary)) {
    head += fmt::format(",{0},{0}_min,{0}_max", column.key);
    for (const auto value : {&Spread::median, &Spread::min, &Spread::max}) {
      line += fmt::format(",{}", column.spread ? cell(column, value) : "");
    }
  }
  return head + "\n" + line + "\n";
}

std::string swap_json(const SwapSummary& f, const SwapConditions& c, const std::vector<SwapSample>& samples) {
  Json object = {{"mesh", {{"ranks", c.mesh.ranks()}, {"tp", c.mesh.tp}, {"pp", c.mesh.pp}}},
                 {"device", c.device},
                 {"page_bytes", c.page_bytes},
                 {"frames", c.frames},
                 {"prompt_tokens", c.prompt_tokens},
                 {"cores_busy", c.cores_busy},
                 {"link", links_json(c)},
                 {"shard_bytes", f.shard_bytes},
                 {"load_s", spread_json(f.load_s)},
                 {"exec_s", spread_json(f.exec_s)},
                 {"response_s", spread_json(f.response_s)},
                 {"bound_s", spread_json(f.bound_s)},
                 {"response_over_bound", spread_json(f.response_over_bound)},
                 {"response_over_limit", spread_json(f.response_over_limit)},
                 {"gb_per_s_per_rank", spread_json(f.gb_per_s)},
                 {"link_fraction", spread_json(f.link_fraction)},
                 {"skew", spread_json(f.skew)},
                 {"fetch_fraction", spread_json(f.fetch_fraction)},
                 {"speed_up", number_json(f.speed_up)},
                 {"bytes_ratio", number_json(f.ideal_speed_up)}};
  Json& requests = object["requests"] = Json::array();
  for (const SwapSample& sample : samples) requests.push_back(sample_json(sample, c));
  return object.dump(2) + "\n";
}

SwapBaseline read_baseline(const std::string& text, const std::string& file) try {
  Json object;
  if (const auto fault = parse_json(text, {}, object)) {
    throw Error(ExitCode::kData, fmt::format("{}: not a result of computron bench swap: {}", file, fault->message));
  }
  if (object.at("mesh").at("ranks") != 1) throw Error(ExitCode::kData, file + ": a run of more than one rank");
  return {object.at("load_s").at("median").get<double>(), object.at("shard_bytes").get<double>()};
} catch (const Json::exception& error) {
  throw Error(ExitCode::kData, fmt::format("{}: not a result of computron bench swap: {}", file, error.what()));
}

}  // namespace computron

#include "src/apps/simulate_steps.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <set>

#include "computron/base/printable.h"
#include "computron/base/size.h"
#include "computron/plan/replay.h"
#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

constexpr std::size_t kLeastPageBytes = 1024, kMostPageBytes = std::size_t{1} << 40;

std::optional<std::size_t> size_option(const char* option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::size_t bytes = size_of(option, text);
  if (bytes >= kLeastPageBytes && bytes <= kMostPageBytes) return bytes;
  throw Error(ExitCode::kUsage, fmt::format("{}: {} is not a size from {} to {}", option, printable(text),
                                            format_size(kLeastPageBytes), format_size(kMostPageBytes)));
}

WhatIf what_if_of(const StepReplayOptions& options) {
  WhatIf what_if{.link_scale = options.link_scale,
                 .link_bytes_per_s = {},
                 .compute_scale = options.compute_scale,
                 .device_bytes = size_option("--device-memory", options.device_memory),
                 .page_bytes = size_option("--page-size", options.page_size)};
  if (options.link_gbps) what_if.link_bytes_per_s = 1e9 * *options.link_gbps;
  return what_if;
}

std::string text_of(const StepReplayOptions& options) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (options.link_gbps) add(fmt::format("links of {:g} GB/s", *options.link_gbps));
  if (options.link_scale != 1) add(fmt::format("links {:g} times as fast", options.link_scale));
  if (options.compute_scale != 1) add(fmt::format("ranks {:g} times as fast", options.compute_scale));
  if (!options.device_memory.empty()) add("pools of " + options.device_memory);
  if (!options.page_size.empty()) add("pages of " + options.page_size);
  return text;
}

std::string shapes_of(const RecordHeader& header) {
  std::set<std::pair<int, int>> shapes;
  for (const RecordHeader::Group& group : header.groups) shapes.emplace(group.tp, group.pp);
  std::string text;
  for (const auto& [tp, pp] : shapes) text += fmt::format("{}tp {} x pp {}", text.empty() ? "" : ", ", tp, pp);
  return text;
}

// "0.500 GB/s"; the slowest and the fastest where they differ.
std::string links_of(const Record& record) {
  double least = 0, most = 0;
  for (std::size_t g = 0; g < record.header.groups.size(); ++g) {
    for (int stage = 0; stage < record.header.groups[g].pp; ++stage) {
      const double rate = link_bytes_per_s(record, g, static_cast<std::size_t>(stage)).value_or(0);
      if (rate > 0 && (least == 0 || rate < least)) least = rate;
      most = std::max(most, rate);
    }
  }
  if (most == 0) return "nothing was copied over the links";
  if (most < 1.001 * least) return fmt::format("links of {:.3f} GB/s", 1e-9 * most);
  return fmt::format("links of {:.3f} to {:.3f} GB/s", 1e-9 * least, 1e-9 * most);
}

std::string pools_of(const RecordHeader& header) {
  std::set<int> frames;
  for (const RecordHeader::Group& group : header.groups) frames.insert(group.options.frames);
  const auto pool = [&header](int of) { return format_size(static_cast<std::size_t>(of) * header.page_bytes()); };
  std::string text = "pools of " + pool(*frames.begin());
  if (frames.size() > 1) text += " to " + pool(*frames.rbegin());
  return text + " in pages of " + format_size(header.page_bytes());
}

void print_head(const std::string& file, const Record& record) {
  const RecordHeader& header = record.header;
  fmt::print("{}: computron {} on {}, {}\n", printable(file), printable(header.program), printable(header.host),
             printable(header.started));
  fmt::print("{} group{} on {} ranks ({}), {} models, policy {}; {}; {}\n", header.groups.size(),
             header.groups.size() == 1 ? "" : "s", header.ranks(), shapes_of(header), header.models.size(),
             header.policy, pools_of(header), links_of(record));
  if (const std::string why = record.why_cut(); !why.empty()) {
    fmt::print("the record ends before its job: {}\n", why);
  }
  if (record.unreported > 0) fmt::print("{} steps at its end have no report and are left out\n", record.unreported);
  if (const std::size_t open = unfinished_requests(record); open > 0) {
    fmt::print("{} of {} requests have no end in it and are left out where requests are decided again\n", open,
               record.requests);
  }
  fmt::print("\n{:<27}{:>10}{:>10}{:>8}{:>8}{:>13}{:>11}{:>11}{:>10}{:>9}\n", "", "wall s", "change", "steps", "swaps",
             "moved", "exposed s", "mean lat s", "p99 s", "served");
}

void print_line(const std::string& what, const ReplayOutcome& outcome, const ReplayOutcome& recorded) {
  const std::string change =
      recorded.wall_s > 0 ? fmt::format("{:+.1f} %", 100 * (outcome.wall_s / recorded.wall_s - 1)) : "";
  fmt::print("{:<27}{:>10.3f}{:>10}{:>8}{:>8}{:>13}{:>11.3f}{:>11.3f}{:>10.3f}{:>9}\n", what, outcome.wall_s, change,
             outcome.steps, outcome.swaps, format_size(outcome.moved_bytes), outcome.exposed_s, outcome.mean_latency_s,
             outcome.p99_latency_s, outcome.served);
}

}  // namespace

void add_replay_options(CLI::App& command, StepReplayOptions& options) {
  auto* const steps = command.add_option("--steps", options.steps,
                                         "Instead of profiles: a job's record (serve --record), played again as it was "
                                         "and as --link-gbps, --device-memory, "
                                         "--page-size and the options below say");
  command.add_option("--link-scale", options.link_scale, "Host links so many times as fast as they were")
      ->check(number_between(1e-6, 1e6))
      ->needs(steps)
      ->excludes(command.get_option("--link-gbps"));
  command.add_option("--compute-scale", options.compute_scale, "Ranks that compute so many times as fast")
      ->check(number_between(1e-6, 1e6))
      ->needs(steps);
  group_options(command, "A record", {"--steps", "--link-scale", "--compute-scale"});
}

void run_replay(const StepReplayOptions& options) {
  const WhatIf what_if = what_if_of(options);
  const std::string otherwise = text_of(options);
  const Record record = read_record(options.steps);
  if (record.wall_s() == 0) throw Error(ExitCode::kData, options.steps + " holds no step that ranks have reported");
  print_head(options.steps, record);
  const ReplayOutcome recorded = recorded_outcome(record);
  print_line("recorded", recorded, recorded);
  print_line("replayed: the same steps", replay_steps(record, {}), recorded);
  print_line("replayed: decided again", replay_requests(record, {}), recorded);
  if (otherwise.empty()) return;
  fmt::print("{}\n", otherwise);
  if (!what_if.changes_pages()) print_line("what if: the same steps", replay_steps(record, what_if), recorded);
  print_line("what if: decided again", replay_requests(record, what_if), recorded);
}

}  // namespace computron

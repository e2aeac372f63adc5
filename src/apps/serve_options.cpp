#include "src/apps/serve_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>

#include "computron/base/json_text.h"
#include "computron/base/size.h"
#include "computron/runtime/guide_compiler.h"
#include "computron/storage/shard.h"
#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

std::string value_of(const CLI::Option& option) {
  std::string value;
  for (const std::string& part : option.results()) value += (value.empty() ? "" : " ") + part;
  return value;
}

std::string default_of(const CLI::Option& option) {
  return option.get_items_expected_max() == 0 ? "false" : option.get_default_str();
}

// Of those that have a long name and a place in --help.
template <class Each>
void for_each_shown(const CLI::App& command, const Each& each) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty() || option->get_lnames().empty() || !option->get_configurable()) continue;
    each(*option);
  }
}

void add_request_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--requests", o.requests,
                 "Requests, JSONL in the OpenAI batch format; - for stdin. Repeat for more, as a file and stdin")
      ->allow_extra_args(false);
  app.add_option("--output", o.output,
                 "Results, JSONL, of the --requests in the same place; appears when complete (OUT.partial until then). "
                 "A job that ended before goes on where it was when the same command is run again")
      ->allow_extra_args(false);
  app.add_option("--shard", o.shard,
                 "I/N: serve lines I, I+N, I+2N, ... of the requests (the first is line 0); each shard has an output "
                 "of its own, and `computron merge` puts them together");
}

void add_resuming_options(CLI::App& app, ServeOptions& o) {
  app.add_option(
         "--durability", o.durability,
         "Results are safe from the end of the process (process), within a second from that of the node (node), "
         "each before the next (result)")
      ->check(CLI::IsMember({"process", "node", "result"}));
  app.add_option("--disk-wait", o.journal.disk_wait_s, "Seconds to wait for room on a full disk")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drain", o.drain.asked_s, "Seconds that steps may go on when the job is asked to stop")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drain-warned", o.drain.warned_s, "The same when it is only warned, by SIGUSR1")
      ->check(CLI::NonNegativeNumber);
}

void add_watchdog_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--watchdog", o.watchdog,
                 "Deadlines after which a job that stalls ends, times this: twice 60 s without a sign of a rank, 20 "
                 "s of no progress beyond 4 times what a step should take; 0: none, as where a debugger stops a rank")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--recorder", o.recorder,
                 "Folder of each rank's last events, for `computron postmortem`; on every node (default: $TMPDIR or "
                 "/tmp, where those of the last 4 jobs that went down stay for a week). Removed when the job ends in "
                 "order");
  app.add_flag("--core", o.core,
               "Leave core dumps, where the shell's limit allows them: they hold prompts, results and all models");
}

void add_retry_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--max-crashes", o.journal.max_crashes,
                 "How often the job may go down on one request, or without a result, before it gives up; 0: always")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--take-over", o.journal.take_over, "Take the output from a job that seems to hold it still");
  app.add_flag("--resume-allow-config-change", o.journal.allow_config_change,
               "Go on with results that other settings or checkpoints gave");
}

void add_batch_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--max-batch-tokens", o.job.options.max_batch_tokens, "Tokens of a step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-seqs", o.job.options.max_seqs, "Sequences of a batch")->check(CLI::Range(1, 1 << 16));
  app.add_flag("--share-prefixes", o.job.options.share_prefixes,
               "Requests for a model that begin with the same tokens share the cache of those");
}

void add_deadline_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--slo", o.slo_s, "Deadline, in seconds after arrival, of requests that give none (default: none)")
      ->check(positive_number());
  app.add_option("--on-late", o.on_late,
                 "Late requests are served all the same (serve), end with an error if they have not begun by their "
                 "deadline (drop), or on arrival if they are predicted to miss it (reject)")
      ->check(CLI::IsMember({"serve", "drop", "reject"}));
}

OnLate parse_on_late(const std::string& text) {
  if (text == name_of(OnLate::kDrop)) return OnLate::kDrop;
  return text == name_of(OnLate::kReject) ? OnLate::kReject : OnLate::kServe;
}

void add_chat_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--chat-format", o.chat_format,
                 "Chat format, by name, of models without one in the model list (default: what `convert` was told, or "
                 "their tokenizer's chat template)");
  app.add_option("--chat-date", o.chat_date,
                 "The day, as YYYY-MM-DD, that chat templates take for today (default: one fixed day for each family)");
}

void add_guide_options(CLI::App& app, ServeOptions& o) {
  app.add_option(
      "--guide-memory", o.guide_memory,
      "Host memory that guides of structured answers may take on each rank of a last stage, 192MiB at least; "
      "0: requests for guided answers are refused (default: 256MiB where memory is left beside everything "
      "else, otherwise 0)");
}

void add_limits(CLI::App& app, ServeOptions& o) {
  app.add_option("--seed", o.job.options.seed, "Seed of sampling, for requests without one of their own")
      ->check(whole_number());
  app.add_option("--max-line-bytes", o.max_line_bytes, "Longest request line")
      ->check(whole_number())
      ->check(CLI::PositiveNumber);
}

void add_watching_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--metrics", o.metrics, "Write the run's metrics to this JSON file");
  app.add_option("--trace", o.trace, "Write what every rank did when to this file: Chrome trace events, for Perfetto");
  app.add_option("--record", o.record,
                 "Keep the requests' sizes and times, the steps and what they took in this file, which `computron "
                 "simulate --steps` plays again with other links, devices and pages");
  app.add_option("--record-limit", o.record_limit, "Most bytes of it: behind them nothing more is recorded");
  app.add_option(
      "--status", o.status,
      "Write how the job stands to this file each second: queues, resident models, rates. SIGUSR2 prints it");
  app.add_option("--progress", o.progress,
                 "Write {total, done, failed, tokens_per_s, predicted_end, updated} to this JSON file each second");
}

// Files that the job writes, by their whole names, and who does: "--output x".
class WrittenFiles {
 public:
  // One of that option, and what stands beside it under its name and one of these ends. Error{kUsage} if one of them is
  // there already.
  void add(const std::string& option, const std::string& file, std::initializer_list<const char*> ends) {
    if (file.empty()) return;
    for (const char* end : ends) {
      const auto [other, is_new] = files_.emplace(whole_name(file) + end, fmt::format("{} {}", option, file));
      if (is_new) continue;
      throw Error(ExitCode::kUsage,
                  fmt::format("{} {}: '{}' is a file of {}", option, file, other->first, other->second));
    }
  }
  // That the job reads: nobody who comes later writes it.
  void add_read(const std::string& option, const std::string& file) {
    files_.emplace(whole_name(file), fmt::format("{} {}", option, file));
  }

 private:
  static std::string whole_name(const std::string& file) {
    return std::filesystem::absolute(file).lexically_normal().string();
  }
  std::map<std::string, std::string> files_;
};

// What an option in a file gives way to or contradicts: one that excludes it.
enum class Exclusion { kNone, kByCommandLine, kByFile };
Exclusion exclusion_of(CLI::Option& option, const std::set<const CLI::Option*>& of_command_line) {
  Exclusion exclusion = Exclusion::kNone;
  for (const CLI::Option* other : option.get_excludes()) {
    if (of_command_line.contains(other)) return Exclusion::kByCommandLine;
    if (other->count() > 0) exclusion = Exclusion::kByFile;
  }
  return exclusion;
}

}  // namespace

// No name twice: nobody reads one input for two outputs, nor writes two results into one.
void ServeOptions::check_files() const {
  const auto check_names = [](const char* option, std::vector<std::string> names) {
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) throw Error(ExitCode::kUsage, fmt::format("{} {} is given twice", option, *twice));
  };
  if (requests.empty()) throw Error(ExitCode::kUsage, "--requests is required");
  check_names("--requests", requests);
  check_names("--output", output);
  if (dry_run) {
    if (requests.size() > 1) throw Error(ExitCode::kUsage, "--dry-run takes one --requests");
    return;
  }
  if (output.empty()) throw Error(ExitCode::kUsage, "--output is required");
  if (output.size() != requests.size()) {
    throw Error(ExitCode::kUsage,
                fmt::format("each --requests has an --output, in the same order ({} and {} are given)", requests.size(),
                            output.size()));
  }
  check_written();
}

// An output that is its own input, and such a record, are refused where they are opened: links lead there, too.
void ServeOptions::check_written() const {
  WrittenFiles files;
  for (const std::string& file : output) {
    files.add("--output", file, {"", ".partial", ".journal", ".lock", ".spool", ".done"});
  }
  files.add("--record", record, {""});
  for (const std::string& file : requests) files.add_read("--requests", file);
  files.add("--metrics", metrics, {"", ".partial"});
  files.add("--trace", trace, {"", ".partial"});
  files.add("--status", status, {"", ".partial"});
  files.add("--progress", progress, {"", ".partial"});
}

void ServeOptions::complete() {
  job.options.load = !dry_run;
  job.complete();
  job.options.on_late = parse_on_late(on_late);
  for (ModelEntry& model : job.options.models) {
    if (model.slo_s == 0) model.slo_s = slo_s;
  }
  choose_chat();
  if (!guide_memory.empty()) read_guide_memory();
  job.options.trace = !trace.empty();
  record_limit_bytes = size_of("--record-limit", record_limit);
  if (!record.empty() && dry_run) throw Error(ExitCode::kUsage, "--record: a dry run has nothing to record");
  journal.durability = parse_durability(durability);
  journal.max_line_bytes = max_line_bytes;
  if (!shard.empty()) shard = parse_shard(shard).to_string();
}

void ServeOptions::read_guide_memory() {
  const std::size_t bytes = size_of("--guide-memory", guide_memory);
  if (bytes > 0 && bytes < GuideCompiler::kLeastBytes) {
    throw Error(ExitCode::kUsage,
                fmt::format("--guide-memory: {} is less than {}, which three guides may take: one that is used, one "
                            "that is made and one that waits; 0 refuses guided answers",
                            shown(guide_memory), format_size(GuideCompiler::kLeastBytes)));
  }
  job.options.guide_bytes = bytes;
}

void ServeOptions::choose_chat() {
  std::optional<ChatFormat::Date> date;
  if (!chat_date.empty()) {
    date = parse_date(chat_date);
    if (!date) {
      throw Error(ExitCode::kUsage, fmt::format("--chat-date: {} is no date such as 2024-07-26", shown(chat_date)));
    }
  }
  if (!chat_format.empty() && !ChatFormat::is_known(chat_format)) {
    throw Error(ExitCode::kUsage,
                fmt::format("--chat-format: {} is none of {}", shown(chat_format), ChatFormat::known_names()));
  }
  for (ModelEntry& model : job.options.models) {
    if (model.chat_format.empty()) model.chat_format = chat_format;
    model.chat_date = date;
  }
}

// The order is that of the configuration in the file of --metrics, whatever group --help shows an option in.
void add_serve_options(CLI::App& app, ServeOptions& o) {
  app.option_defaults()->always_capture_default();
  add_job_options(app, o.job);
  add_group_options(app, o.job);
  add_request_options(app, o);
  add_resuming_options(app, o);
  add_watchdog_options(app, o);
  add_retry_options(app, o);
  add_batch_options(app, o);
  add_deadline_options(app, o);
  add_limits(app, o);
  add_chat_options(app, o);
  add_guide_options(app, o);
  add_watching_options(app, o);
  app.add_flag("--replay", o.replay, "Honour the requests' arrival times");
  app.add_flag("--dry-run", o.dry_run, "Load and serve nothing: print the plan, its swaps, bytes and predicted times");
  app.add_option(
      "--profiles", o.profiles,
      "What `computron profile` has measured: schedulers, and --dry-run, begin with passes as they were, instead of "
      "a formula");
  app.add_flag("--quiet", o.quiet, "No progress and no summary");
  app.add_option(
      "--config", o.config,
      "Options from a TOML file, by their names here; the command line wins, over options that exclude its own, "
      "too");
  group_options(
      app, "Requests and results",
      {"--requests", "--output", "--shard", "--max-line-bytes", "--seed", "--chat-format", "--chat-date", "--replay"});
  group_options(app, "Memory", {"--guide-memory"});
  group_options(app, "Scheduling", {"--max-batch-tokens", "--max-seqs", "--share-prefixes", "--slo", "--on-late"});
  group_options(app, "Resuming",
                {"--durability", "--disk-wait", "--drain", "--drain-warned", "--max-crashes", "--take-over",
                 "--resume-allow-config-change"});
  group_options(app, "Watching",
                {"--watchdog", "--recorder", "--core", "--metrics", "--trace", "--record", "--record-limit", "--status",
                 "--progress", "--quiet"});
}

void apply_config(CLI::App& command, const std::string& file) try {
  std::set<const CLI::Option*> of_command_line;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) of_command_line.insert(option);
  }
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(file)) {
    CLI::Option* option = command.get_option_no_throw("--" + item.name);
    const bool here = item.parents.empty() || item.parents == std::vector<std::string>{"serve"};
    if (item.name == "++" || item.name == "--") continue;  // how CLI11 marks the ends of a section
    if (!here || option == nullptr) {
      throw Error(ExitCode::kUsage, fmt::format("{}: computron serve has no option '{}'", file, item.fullname()));
    }
    const Exclusion exclusion = exclusion_of(*option, of_command_line);
    if (option->count() > 0 || exclusion == Exclusion::kByCommandLine) continue;
    if (exclusion == Exclusion::kByFile) {
      throw Error(ExitCode::kUsage, fmt::format("{}: '{}' excludes another option of the file", file, item.name));
    }
    for (const std::string& input : item.inputs) option->add_result(input);
    option->run_callback();
  }
} catch (const CLI::Error& error) {
  throw Error(ExitCode::kUsage, fmt::format("{}: {}", file, error.what()));
}

Configuration all_options(const CLI::App& command) {
  Configuration configuration;
  for_each_shown(command, [&](const CLI::Option& option) {
    configuration.emplace_back(option.get_lnames().front(), option.count() > 0 ? value_of(option) : default_of(option));
  });
  return configuration;
}

Configuration changed_options(const CLI::App& command) {
  Configuration changed;
  for_each_shown(command, [&](const CLI::Option& option) {
    if (option.count() == 0 || value_of(option) == default_of(option)) return;
    changed.emplace_back(option.get_lnames().front(), value_of(option));
  });
  return changed;
}

}  // namespace computron

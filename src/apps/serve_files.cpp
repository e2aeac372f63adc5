#include "src/apps/serve_files.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "computron/base/size.h"
#include "computron/comm/agreed.h"
#include "computron/serve/job_settings.h"
#include "computron/serve/tokenizers.h"
#include "computron/storage/shard.h"
#include "computron/storage/spool.h"

namespace computron {
namespace {

// Of a file that is written again and again: better refused now. Nothing for no file.
void check_folder(const std::string& file) {
  if (file.empty()) return;
  const std::string folder = std::filesystem::path(file).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    throw Error(ExitCode::kCannotCreate, fmt::format("cannot create {}: its folder is not writable", file));
  }
}

Settings settings_of(const ServeOptions& options, const std::vector<CheckpointIndex>& indices,
                     const std::vector<JobGroup>& groups) {
  Settings settings = job_settings(options.job.options, indices, groups);
  settings.emplace_back("--max-line-bytes", fmt::format("{}", options.max_line_bytes));
  if (!options.shard.empty()) settings.emplace_back("--shard", options.shard);
  if (!options.chat_date.empty()) settings.emplace_back("--chat-date", options.chat_date);
  for (const ModelEntry& model : options.job.options.models) {
    if (model.chat_format.empty()) continue;
    settings.emplace_back(fmt::format("chat format of model {}", model.id), model.chat_format);
  }
  return settings;
}

// An output that is complete by now may be what the last attempts got done.
void check_progress_of(const ServeFiles& files, const ServeOptions& options) {
  if (files.inputs.empty() || files.inputs.size() < options.requests.size()) return;
  std::vector<const ClaimedOutput*> outputs;
  for (const InputFiles& input : files.inputs) outputs.push_back(&std::get<ClaimedOutput>(*input.found));
  check_progress(outputs);
}

std::string image_folder(const std::string& requests) {
  return requests == "-" ? "." : std::filesystem::path(requests).parent_path().string();
}

}  // namespace

void open_output(const ServeOptions& options, int ranks, ServeFiles& files) {
  for (const std::string& requests : options.requests) check_input(requests);
  if (!options.profiles.empty()) files.profiles = {options.profiles, read_profiles(options.profiles)};
  if (options.dry_run) {
    files.inputs.push_back({.requests = options.requests.front(), .output = {}});
    return;
  }
  const JobOptions& job = options.job.options;
  const std::vector<JobGroup> groups = job_groups(job, ranks);
  files.indices = read_indices_apart(job.models);
  const Settings settings = settings_of(options, files.indices, groups);
  JournalOptions journal = options.journal;
  journal.upgrade = [&](Settings before) { return upgraded(job, settings, std::move(before)); };
  for (std::size_t i = 0; i < options.requests.size(); ++i) {
    InputFiles input{.requests = options.requests[i], .output = options.output[i]};
    input.found = claim_output(input.output, input.requests, settings, journal);
    if (const auto* complete = std::get_if<CompleteOutput>(&*input.found)) {
      files.complete_lines += complete->lines;
      spdlog::info("'{}' has a result of every request: nothing to do", input.output);
    } else {
      files.inputs.push_back(std::move(input));
    }
  }
  check_progress_of(files, options);
  for (const std::string& at_the_end : {options.metrics, options.trace}) {
    if (!at_the_end.empty()) check_creatable(at_the_end, "");
  }
  check_folder(options.status);
  check_folder(options.progress);
  for (const std::string& requests : options.requests) {
    if (!options.record.empty()) check_creatable(options.record, requests);
  }
}

std::size_t kept_page_bytes(const Communicator& world, const JobOptions& job, const ServeFiles& files) {
  if (!job.measure_page_size) return job.page_bytes;
  std::string text;
  agreed(world, [&] {
    for (const InputFiles& input : files.inputs) {
      if (input.found && text.empty()) text = std::get<ClaimedOutput>(*input.found).kept(kKeptPageSize);
    }
    if (!text.empty()) parse_size(text);
  });
  const auto bytes = std::as_bytes(std::span(text));
  const std::vector<std::byte> all = world.broadcast({bytes.begin(), bytes.end()}, 0);
  if (all.empty()) return 0;
  return parse_size(std::string(reinterpret_cast<const char*>(all.data()), all.size()));
}

bool is_complete(const Communicator& world, const ServeFiles& files) {
  const bool complete = files.inputs.empty();
  return world.broadcast({static_cast<std::byte>(complete)}, 0)[0] != std::byte{0};
}

void open_input(const ServeOptions& options, const Job& job, ServeFiles& files) {
  ReaderLimits limits{.max_line_bytes = options.max_line_bytes, .seed = options.job.options.seed};
  if (job.plan().guide_bytes == 0) {
    limits.no_guides = job.options().guide_bytes
                           ? "this job serves no guided answers (--guide-memory 0)"
                           : "this job has no memory to spare for guided answers (--guide-memory)";
  }
  const ModelSet& loaded = job.models();
  if (!options.shard.empty()) limits.shard = parse_shard(options.shard);
  std::vector<ServedModel> models = loaded.served();
  load_tokenizers(loaded, models);
  if (!options.record.empty() && !options.dry_run) {
    files.recorder = std::make_unique<StepRecorder>(
        RecorderOptions{.file = options.record, .limit_bytes = options.record_limit_bytes});
  }
  for (InputFiles& input : files.inputs) {
    RequestParser parser(models, limits, image_folder(input.requests));
    if (options.dry_run) {
      input.reader = std::make_unique<RequestReader>(input.requests, std::move(parser), limits);
      continue;
    }
    ClaimedOutput claimed = std::get<ClaimedOutput>(*std::exchange(input.found, {}));
    if (options.job.options.measure_page_size) claimed.keep(kKeptPageSize, fmt::format("{}", loaded.page_bytes()));
    ResultJournal journal = std::move(claimed).begin();
    std::shared_ptr<Spool> spool = input.requests == "-" ? journal.open_spool() : nullptr;
    input.writer = std::make_unique<ResultWriter>(
        std::move(journal), WriterOptions{.commit_always = options.journal.durability == Durability::kResult});
    input.reader = std::make_unique<RequestReader>(input.requests, std::move(parser), limits, &input.writer->history(),
                                                   std::move(spool));
  }
}

}  // namespace computron

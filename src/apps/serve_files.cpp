#include "src/apps/serve_files.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>

#include "computron/base/digest.h"
#include "computron/serve/tokenizers.h"
#include "computron/storage/shard.h"
#include "computron/storage/spool.h"

namespace computron {
namespace {

// Of a file that is written at the end: better refused now. Nothing for no file.
void check_folder(const std::string& file) {
  if (file.empty()) return;
  const std::string folder = std::filesystem::path(file).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    throw Error(ExitCode::kCannotCreate, fmt::format("cannot create {}: its folder is not writable", file));
  }
}

// Of what the file holds, wherever it lies.
std::string digest_of(CheckpointIndex index) {
  index.path.clear();
  return to_hex(digest128(index.serialize()));
}

// What results depend on: a job that is run again must not mix two kinds. The checkpoints' indices have been read.
Settings settings_of(const ServeOptions& options, const std::vector<CheckpointIndex>& indices, int ranks) {
  const JobOptions& job = options.job.options;
  Settings settings = {{"number of ranks", fmt::format("{}", ranks)},
                       {"--tp", fmt::format("{}", job.tp)},
                       {"--pp", fmt::format("{}", job.pp)},
                       {"--device", std::string(name_of(job.device))},
                       {"--reproducible", fmt::format("{}", job.reproducible)},
                       {"--seed", fmt::format("{}", job.seed)},
                       {"--max-line-bytes", fmt::format("{}", options.max_line_bytes)}};
  if (!options.shard.empty()) settings.emplace_back("--shard", options.shard);
  for (std::size_t m = 0; m < job.models.size(); ++m) {
    settings.emplace_back(fmt::format("checkpoint of model {}", job.models[m].id), digest_of(indices.at(m)));
  }
  return settings;
}

}  // namespace

void open_output(const ServeOptions& options, int ranks, ServeFiles& files) {
  if (options.requests != "-" && access(options.requests.c_str(), R_OK) != 0) {
    throw Error(ExitCode::kNoInput, fmt::format("cannot read requests from {}", options.requests));
  }
  if (options.dry_run) return;
  files.indices = read_indices_apart(options.job.options.models);
  files.output =
      claim_output(options.output, options.requests, settings_of(options, files.indices, ranks), options.journal);
  check_folder(options.metrics);
  check_folder(options.trace);
  check_folder(options.status);
}

bool is_complete(const Communicator& world, const ServeOptions& options, const ServeFiles& files) {
  const bool complete = files.output && std::holds_alternative<CompleteOutput>(*files.output);
  if (complete) spdlog::info("'{}' has a result of every request: nothing to do", options.output);
  return world.broadcast({static_cast<std::byte>(complete)}, 0)[0] != std::byte{0};
}

void open_input(const ServeOptions& options, const ModelSet& loaded, ServeFiles& files) {
  ReaderLimits limits{.max_line_bytes = options.max_line_bytes, .seed = options.job.options.seed};
  if (!options.shard.empty()) limits.shard = parse_shard(options.shard);
  const std::string folder =
      options.requests == "-" ? "." : std::filesystem::path(options.requests).parent_path().string();
  std::vector<ServedModel> models = loaded.served();
  load_tokenizers(loaded, models);
  RequestParser parser(std::move(models), limits, folder);
  if (options.dry_run) {
    files.reader = std::make_unique<RequestReader>(options.requests, std::move(parser), limits);
    return;
  }
  ResultJournal journal = std::get<ClaimedOutput>(*std::move(files.output)).begin();
  std::shared_ptr<Spool> spool = options.requests == "-" ? journal.open_spool() : nullptr;
  files.writer = std::make_unique<ResultWriter>(
      std::move(journal), WriterOptions{.commit_always = options.journal.durability == Durability::kResult});
  files.reader = std::make_unique<RequestReader>(options.requests, std::move(parser), limits, &files.writer->history(),
                                                 std::move(spool));
}

}  // namespace computron

#include "tests/support/job.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "computron/base/launcher.h"

extern char** environ;

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(5);

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file of a process's folder of /proc; empty where there is no such process. One that ends between open() and read()
// makes read() fail with ESRCH, and the stream's buffer throws.
std::string read_of(pid_t process, const char* name) {
  try {
    return read_file(fs::path("/proc") / std::to_string(process) / name);
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

// stdin from a file, stdout and stderr into files.
class FileActions {
 public:
  FileActions(const fs::path& input, const fs::path& output, const fs::path& errors) {
    posix_spawn_file_actions_init(&actions_);
    constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, input.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, output.c_str(), kCreate, 0600);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, errors.c_str(), kCreate, 0600);
  }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

pid_t spawn(std::vector<std::string> command, const fs::path& input, const fs::path& output, const fs::path& errors) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const FileActions actions(input, output, errors);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments[0], actions.get(), &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::runtime_error("cannot start " + command[0]);
  return process;
}

// Parent of a process, 0 if there is no such process (any more).
pid_t parent_of(pid_t process) {
  const std::string stat = read_of(process, "stat");
  const auto name_end = stat.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(stat.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t other = std::atoi(entry.path().filename().c_str());
    if (other > 0 && parent_of(other) == process) children.push_back(other);
  }
  return children;
}

// Hydra has a process of its own between mpiexec and the ranks.
std::vector<pid_t> descendants_of(pid_t process) {
  std::vector<pid_t> all = children_of(process);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const pid_t child : children_of(all[i])) all.push_back(child);
  }
  return all;
}

// Of a rank that a signal ended Hydra has the signal's number, other launchers 128 more.
int code_of(int launchers) {
  const bool is_signal = launchers == SIGABRT || launchers == SIGKILL || launchers == SIGSEGV || launchers == SIGTERM;
  return MPIEXEC_IS_HYDRA && is_signal ? 128 + launchers : launchers;
}

bool has_environment(pid_t process, const std::string& assignment) {
  const std::string variables = '\0' + read_of(process, "environ");
  return variables.find('\0' + assignment + '\0') != std::string::npos;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "computron-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // a destructor does not throw; the system cleans its temporary folder
  fs::remove_all(path_, ignored);
}

std::vector<std::string> JobOutcome::own_lines() const {
  std::vector<std::string> own;
  std::istringstream all(errors);
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("computron: ")) own.push_back(line);
  }
  return own;
}

MpiJob::MpiJob(int ranks, const std::vector<std::string>& command, const fs::path& folder, const fs::path& input)
    : output_(folder / "stdout"), errors_(folder / "stderr") {
  std::vector<std::string> whole = {MPIEXEC_EXECUTABLE, "-n", std::to_string(ranks)};
  whole.insert(whole.end(), command.begin(), command.end());
  mpirun_ = spawn(std::move(whole), input, output_, errors_);
}

MpiJob::~MpiJob() {
  if (running()) kill_everything();
}

bool MpiJob::running() {
  if (!reaped_) reaped_ = waitpid(mpirun_, &status_, WNOHANG) == mpirun_;
  return !reaped_;
}

pid_t MpiJob::rank_process(int rank) const {
  for (const pid_t process : descendants_of(mpirun_)) {
    for (const LauncherVariable& variable : kLauncherVariables) {
      if (has_environment(process, std::string(variable.rank) + '=' + std::to_string(rank))) return process;
    }
  }
  return 0;
}

// mpirun gives every rank a process group of its own, so each is killed by its id.
void MpiJob::kill_everything() {
  for (const pid_t process : descendants_of(mpirun_)) kill(process, SIGKILL);
  kill(mpirun_, SIGKILL);
  waitpid(mpirun_, &status_, 0);
  reaped_ = true;
}

JobOutcome MpiJob::wait(double limit_s) {
  // A virtual machine stands still for seconds at times. The job does, too, so the rest of such a poll does not count.
  constexpr auto kMostCounted = 20 * kPollInterval;
  JobOutcome outcome;
  Clock::duration waited{};
  while (running() && !outcome.timed_out) {
    const auto began = Clock::now();
    std::this_thread::sleep_for(kPollInterval);
    waited += std::min<Clock::duration>(Clock::now() - began, kMostCounted);
    outcome.timed_out = waited > std::chrono::duration<double>(limit_s);
  }
  if (running()) kill_everything();
  outcome.exit_code = WIFEXITED(status_) ? code_of(WEXITSTATUS(status_)) : 128 + WTERMSIG(status_);
  outcome.output = read_file(output_);
  outcome.errors = read_file(errors_);
  return outcome;
}

JobOutcome run_job(int ranks, const std::vector<std::string>& command, const fs::path& folder, double limit_s) {
  return MpiJob(ranks, command, folder).wait(limit_s);
}

std::string completion_line(const std::string& custom_id, const std::string& model, const std::vector<int>& prompt,
                            int max_tokens, const nlohmann::json& more) {
  nlohmann::json body = {{"model", model}, {"prompt", prompt}, {"max_tokens", max_tokens}};
  body.update(more);
  return nlohmann::json{{"custom_id", custom_id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}}
      .dump();
}

void write_lines(const fs::path& path, const std::vector<std::string>& lines) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& line : lines) file << line << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::vector<std::string> sorted_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

Results::Results(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("no result file " + path.string());
  for (std::string text; std::getline(file, text);) {
    nlohmann::json line = nlohmann::json::parse(text);
    const auto& id = line.at("custom_id");
    if (id.is_string()) remember(id.get<std::string>(), line.at("error").is_null());
    lines_.push_back(std::move(line));
  }
}

// A custom_id used twice in the input has one answer and one refusal: the answer is the one to look at.
void Results::remember(const std::string& custom_id, bool ok) {
  const auto [known, is_new] = by_id_.emplace(custom_id, lines_.size());
  if (is_new || !ok) return;
  if (lines_[known->second].at("error").is_null()) throw std::runtime_error("two answers to " + custom_id);
  known->second = lines_.size();
}

const nlohmann::json& Results::line(const std::string& custom_id) const {
  const auto found = by_id_.find(custom_id);
  if (found == by_id_.end()) throw std::runtime_error("no result for " + custom_id);
  return lines_[found->second];
}

const nlohmann::json& Results::choice(const std::string& custom_id) const {
  const nlohmann::json& result = line(custom_id);
  if (!result.at("error").is_null()) throw std::runtime_error(custom_id + " failed: " + result.dump());
  return result.at("response").at("body").at("choices").at(0);
}

std::vector<int> Results::tokens(const std::string& custom_id) const {
  return choice(custom_id).at("token_ids").get<std::vector<int>>();
}

std::string Results::error_code(const std::string& custom_id) const {
  const nlohmann::json& error = line(custom_id).at("error");
  return error.is_null() ? "" : error.at("code").get<std::string>();
}

std::vector<std::string> Results::custom_ids() const {
  std::vector<std::string> ids;
  for (const auto& [id, index] : by_id_) ids.push_back(id);
  return ids;
}

}  // namespace computron::test

// Runs a program under mpirun and looks at what it leaves: exit code, stderr, result file.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace computron::test {

// A folder of its own under the system's temporary folder, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

struct JobOutcome {
  int exit_code = 0;  // mpirun's; 128 + signal if it, or the rank whose code it has, was killed
  bool timed_out = false;
  std::string output;  // stdout of all ranks
  std::string errors;  // stderr of all ranks and of mpirun

  // The lines of `errors` that the program itself wrote ("computron: ...").
  std::vector<std::string> own_lines() const;
};

// mpirun with `ranks` copies of a program, in a process group of its own.
class MpiJob {
 public:
  // `command`: the program and its arguments. stdout and stderr are kept in files in `folder`; stdin is the file
  // `input`.
  MpiJob(int ranks, const std::vector<std::string>& command, const std::filesystem::path& folder,
         const std::filesystem::path& input = "/dev/null");
  ~MpiJob();  // kills what still runs
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  bool running();
  // The process of one rank; 0 as long as mpirun has not started it.
  pid_t rank_process(int rank) const;
  // Waits for the end; kills mpirun and all ranks when `limit_s` have passed since the call.
  JobOutcome wait(double limit_s);

 private:
  void kill_everything();

  pid_t mpirun_ = 0;
  bool reaped_ = false;
  int status_ = 0;  // of waitpid
  std::filesystem::path output_, errors_;
};

JobOutcome run_job(int ranks, const std::vector<std::string>& command, const std::filesystem::path& folder,
                   double limit_s);

// A line of a request file: a completion of token ids, with what `more` adds to the body.
std::string completion_line(const std::string& custom_id, const std::string& model, const std::vector<int>& prompt,
                            int max_tokens, const nlohmann::json& more = nlohmann::json::object());

void write_lines(const std::filesystem::path& path, const std::vector<std::string>& lines);
// Of the whole file: results come in any order.
std::vector<std::string> sorted_lines(const std::filesystem::path& path);

// A result file. std::runtime_error if a line is not JSON or a custom_id is answered twice.
class Results {
 public:
  Results() = default;
  explicit Results(const std::filesystem::path& path);

  std::size_t size() const { return lines_.size(); }
  const std::vector<nlohmann::json>& lines() const { return lines_; }
  const nlohmann::json& line(const std::string& custom_id) const;
  // choices[0] of a request that succeeded.
  const nlohmann::json& choice(const std::string& custom_id) const;
  std::vector<int> tokens(const std::string& custom_id) const;
  // error.code of a request that failed; empty for one that succeeded.
  std::string error_code(const std::string& custom_id) const;
  std::vector<std::string> custom_ids() const;  // those that are not null

 private:
  void remember(const std::string& custom_id, bool ok);

  std::vector<nlohmann::json> lines_;
  std::map<std::string, std::size_t> by_id_;
};

}  // namespace computron::test

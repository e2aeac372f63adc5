#include "src/cli/mpi_command.h"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <new>
#include <system_error>

#include "computron/base/log.h"

namespace computron {
namespace {

// The heartbeat's limit, where there is one, knows how long rank 0 may wait for a disk, and a job that was stopped may
// have results to write.
void limit_end(ExitCode code, double limit_s) {
  if (code != ExitCode::kStopped && !MpiSession::finalize_is_limited()) MpiSession::finalize_within(limit_s, code);
}

[[noreturn]] void end_job(int rank, ExitCode code, const char* what) {
  report_failure(rank, what);
  MpiSession::abort(code);
}

// The code to end with.
int run(bool quiet, const std::function<void(Communicator)>& command, double refusal_limit_s) {
  MpiSession session(nullptr, nullptr);
  int rank = 0;
  try {
    Communicator world = Communicator::world();
    rank = world.rank();
    init_logging(rank, quiet);
    command(std::move(world));
    return 0;
  } catch (const VoteError& error) {
    if (error.rank() == rank) report_failure(rank, error.reason());
    limit_end(error.code(), refusal_limit_s);
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    end_job(rank, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    end_job(rank, ExitCode::kSystem, "out of memory");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) end_job(rank, ExitCode::kIo, "standard output cannot be written");
    end_job(rank, ExitCode::kSystem, error.what());
  } catch (const std::exception& error) {
    end_job(rank, ExitCode::kInternal, error.what());
  }
}

}  // namespace

void run_under_mpi(bool quiet, const std::function<void(Communicator)>& command, double refusal_limit_s) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed log or a file-size limit is an error of the write, not the end
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = run(quiet, command, refusal_limit_s);
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace computron

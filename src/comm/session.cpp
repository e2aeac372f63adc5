#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>

#include "computron/base/idle.h"
#include "computron/base/watchdog.h"
#include "computron/comm/mpi.h"
#include "src/comm/mpi_call.h"

namespace computron {

std::string mpi_text(int status) {
  char text[MPI_MAX_ERROR_STRING] = "unknown MPI error";
  int length = 0;
  MPI_Error_string(status, text, &length);
  return text;
}

void check_mpi(int status, const std::string& call) {
  if (status != MPI_SUCCESS) throw Error(ExitCode::kComm, fmt::format("{}: {}", call, mpi_text(status)));
}

bool mpi_usable() noexcept {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

namespace {

std::function<void()> waiting_poll;  // MPI is one a process, and so is who waits in it

struct FinalizeLimit {
  double limit_s;
  ExitCode code;
};
std::optional<FinalizeLimit> finalize_limit;

// In a signal's handler, since MPI_Abort keeps the main thread, and who aborts may be out of memory for another one.
void end_alone_within(unsigned limit_s, ExitCode code) noexcept {
  static volatile std::sig_atomic_t chosen = 0;
  chosen = static_cast<int>(code);
  std::signal(SIGALRM, [](int) { _exit(chosen); });
  alarm(limit_s);
}

// A launcher that is told of the end may kill ranks, as Hydra does, before it has read from their pipes what was wrong.
// Who has not read within a second or two does not read.
void let_errors_be_read() noexcept {
  constexpr int kMostPolls = 1000;
  constexpr useconds_t kPoll_us = 1000;
  struct stat file {};
  if (fstat(STDERR_FILENO, &file) != 0 || !S_ISFIFO(file.st_mode)) return;
  for (int poll = 0; poll < kMostPolls; ++poll) {
    int unread_bytes = 0;
    if (ioctl(STDERR_FILENO, FIONREAD, &unread_bytes) != 0 || unread_bytes == 0) return;
    usleep(kPoll_us);
  }
}

}  // namespace

void MpiSession::while_waiting(std::function<void()> poll) { waiting_poll = std::move(poll); }

void MpiSession::poll_while_waiting() {
  if (waiting_poll) waiting_poll();
}

bool MpiSession::finalize_is_limited() { return finalize_limit.has_value(); }

void MpiSession::finalize_within(double limit_s, ExitCode code) { finalize_limit = FinalizeLimit{limit_s, code}; }

void await(MPI_Request request, const std::string& call) {
  Idler idler(IdlePolicy{});
  for (int finished = 0;;) {
    check_mpi(MPI_Test(&request, &finished, MPI_STATUS_IGNORE), call);
    if (finished) return;
    MpiSession::poll_while_waiting();
    idler.pause();
  }
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string all(text, length);
  return all.substr(0, all.find_first_of(",\n"));  // what follows says who built it, and where
}

MpiSession::MpiSession(int* argc, char*** argv) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  ensure(!initialized, "a second MpiSession");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  // Errors of operations that belong to no communicator go to these two.
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(ExitCode::kComm, "this MPI library refuses MPI_THREAD_FUNNELED, which Computron needs");
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0 || !mpi_usable()) return;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::optional<EndTimer> timer;
  if (finalize_limit) {
    timer.emplace(rank, "not all ranks have come to the end", finalize_limit->limit_s, finalize_limit->code);
  }
  const int status = MPI_Finalize();
  if (status != MPI_SUCCESS) spdlog::error("MPI_Finalize failed with code {}", status);
}

void MpiSession::abort(ExitCode code) noexcept {
  end_alone_within(kAbortLimit_s, code);
  std::fflush(nullptr);
  let_errors_be_read();
  if (mpi_usable()) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  _exit(static_cast<int>(code));
}

std::string host_name() {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace computron

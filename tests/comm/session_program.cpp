// Ends in the way its argument names; tests/comm/CMakeLists.txt knows the exit code each must have.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "computron/comm/mpi.h"
#include "computron/comm/tags.h"

namespace computron {
namespace {

constexpr auto kFailure = ExitCode::kIo;

// Never comes: nobody sends it.
void wait_for_ever(const Communicator& world) {
  std::byte byte{};
  auto request = world.receive(std::span(&byte, 1), 0, tags::kMeasurement);
  while (!request.done()) usleep(1000);
}

// Owners that outlive MPI must not call it any more.
void finish_with_late_owners(int argc, char** argv) {
  std::optional<Communicator> world;
  MessageRequest request;
  std::byte byte{};
  MpiSession session(&argc, &argv);
  world = Communicator::world();
  request = world->receive(std::span(&byte, 1), world->rank(), tags::kMeasurement);
}

// The last rank fails while the others wait.
void fail(int argc, char** argv, bool abort) {
  MpiSession session(&argc, &argv);
  const auto world = Communicator::world();
  if (world.rank() < world.size() - 1) wait_for_ever(world);
  if (abort) MpiSession::abort(kFailure);
  throw Error(kFailure, "planted");
}

// The last rank does not come to the end.
void miss_the_end(int argc, char** argv) {
  MpiSession session(&argc, &argv);
  const auto world = Communicator::world();
  if (world.rank() == world.size() - 1) wait_for_ever(world);
  MpiSession::finalize_within(0.5);
}

// Who reads what stderr is given does so after a while, and says on stdout that it is about to.
void abort_unread() {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) throw Error(ExitCode::kSystem, "no pipe");
  dup2(ends[1], STDERR_FILENO);
  std::thread([from = ends[0]] {
    usleep(100'000);
    char text[8] = {};
    if (write(STDOUT_FILENO, "reads", 5) < 0 || read(from, text, sizeof text) < 0) _exit(1);
  }).detach();
  std::fputs("planted", stderr);
  MpiSession::abort(kFailure);
}

// As where the launcher does not answer.
bool abort_never_returns = false;

int run(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  try {
    if (way == "finish") finish_with_late_owners(argc, argv);
    if (way == "abort") fail(argc, argv, /*abort=*/true);
    if (way == "throw") fail(argc, argv, /*abort=*/false);
    if (way == "miss-the-end") miss_the_end(argc, argv);
    if (way == "abort-in-vain") {
      abort_never_returns = true;
      fail(argc, argv, /*abort=*/true);
    }
    if (way == "abort-unread") abort_unread();
    if (way == "abort-before-mpi") MpiSession::abort(kFailure);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

}  // namespace
}  // namespace computron

// In front of MPI's own, which PMPI_Abort is too.
extern "C" int MPI_Abort(MPI_Comm world, int code) {
  while (computron::abort_never_returns) pause();
  return PMPI_Abort(world, code);
}

int main(int argc, char** argv) { return computron::run(argc, argv); }

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "computron/base/time.h"
#include "computron/comm/mpi.h"
#include "computron/comm/tags.h"
#include "src/comm/mpi_call.h"
#include "src/comm/request_handle.h"

namespace computron {

namespace {

// How long the destructor of a receive that MPI has already begun to fill waits for the rest.
constexpr double kCancelPatience_s = 0.2;

bool finished_within(MPI_Request* request, double patience_s) {
  const double deadline = now_s() + patience_s;
  int finished = 0;
  do {
    if (MPI_Test(request, &finished, MPI_STATUS_IGNORE) != MPI_SUCCESS) return true;
  } while (!finished && now_s() < deadline);
  return finished != 0;
}

}  // namespace

MessageRequest::MessageRequest(MessageRequest&& other) noexcept { *this = std::move(other); }

MessageRequest& MessageRequest::operator=(MessageRequest&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  handle_ = other.handle_;
  bytes_ = other.bytes_;
  peer_ = other.peer_;
  tag_ = other.tag_;
  kind_ = other.kind_;
  done_ = std::exchange(other.done_, true);
  return *this;
}

MessageRequest::~MessageRequest() { abandon(); }

// A freed receive must not be written to by MPI any more, so it is cancelled; MPI has no way to cancel a send.
void MessageRequest::abandon() noexcept {
  if (done_) return;
  done_ = true;
  if (!mpi_usable()) return;
  MPI_Request request = unpack(handle_);
  if (kind_ == Kind::kReceive) MPI_Cancel(&request);
  const double patience_s = kind_ == Kind::kReceive ? kCancelPatience_s : 0;
  if (finished_within(&request, patience_s)) return;
  spdlog::warn("{} dropped unfinished", to_string());
}

bool MessageRequest::done() {
  if (done_) return true;
  MPI_Request request = unpack(handle_);
  MPI_Status status;
  int finished = 0;
  const int result = MPI_Test(&request, &finished, &status);
  handle_ = pack(request);
  if (result != MPI_SUCCESS) {
    done_ = true;
    throw Error(ExitCode::kComm, fmt::format("{}: {}", to_string(), mpi_text(result)));
  }
  if (!finished) return false;
  done_ = true;
  if (kind_ == Kind::kReceive) {
    MPI_Count received = 0;
    check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &received), to_string());
    bytes_ = static_cast<std::size_t>(received);
  }
  return true;
}

std::size_t MessageRequest::received_bytes() const {
  ensure(done_, "received_bytes() of an unfinished request");
  return kind_ == Kind::kReceive ? bytes_ : 0;
}

std::string MessageRequest::to_string() const {
  const bool receive = kind_ == Kind::kReceive;
  return fmt::format("{} {} bytes {} rank {} with tag {} ({})", receive ? "receive of at most" : "send of", bytes_,
                     receive ? "from" : "to", peer_, tag_, tags::name_of(tag_));
}

}  // namespace computron

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <numeric>

#include "computron/comm/mpi.h"
#include "src/comm/mpi_call.h"
#include "src/comm/request_handle.h"

namespace computron {

struct Communicator::Impl {
  explicit Impl(MPI_Comm owned) : comm(owned) {
    check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  }
  // MPI_Comm_free is collective: a rank that is failing does not take part any more.
  ~Impl() {
    if (!left_to_finalize && std::uncaught_exceptions() == 0 && mpi_usable()) MPI_Comm_free(&comm);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  MPI_Comm comm;
  int rank = 0;
  int size = 0;
  bool left_to_finalize = false;
};

namespace {

constexpr std::size_t kMaxCount = std::numeric_limits<int>::max();
constexpr std::size_t kBroadcastPiece_bytes = std::size_t{1} << 30;

int to_count(std::size_t bytes, const char* what) {
  if (bytes <= kMaxCount) return static_cast<int>(bytes);
  throw Error(ExitCode::kComm, fmt::format("{} of {} bytes: MPI messages end at {}", what, bytes, kMaxCount));
}

std::string describe(const char* call, int peer, int tag) {
  return fmt::format("{} (rank {}, tag {})", call, peer, tag);
}

void broadcast_into(MPI_Comm comm, std::span<std::byte> bytes, int root) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kBroadcastPiece_bytes));
    MPI_Request request;
    check_mpi(MPI_Ibcast(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, root, comm, &request), "MPI_Ibcast");
    await(request, "MPI_Ibcast");
    bytes = bytes.subspan(piece.size());
  }
}

std::vector<int> gather_sizes(MPI_Comm comm, int size, int mine) {
  std::vector<int> sizes(size);
  MPI_Request request;
  check_mpi(MPI_Iallgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm, &request), "MPI_Iallgather");
  await(request, "MPI_Iallgather");
  return sizes;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Communicator Communicator::world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return Communicator(std::make_unique<Impl>(comm));
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }
void Communicator::leave_to_finalize() noexcept { impl_->left_to_finalize = true; }

MessageRequest Communicator::send(std::span<const std::byte> bytes, int to, int tag) const {
  MessageRequest result(MessageRequest::Kind::kSend, bytes.size(), to, tag);
  const int count = to_count(bytes.size(), "send");
  MPI_Request request;
  const int status = MPI_Isend(bytes.data(), count, MPI_BYTE, to, tag, impl_->comm, &request);
  if (status != MPI_SUCCESS) check_mpi(status, describe("MPI_Isend", to, tag));
  result.handle_ = pack(request);
  result.done_ = false;
  return result;
}

MessageRequest Communicator::receive(std::span<std::byte> bytes, int from, int tag) const {
  MessageRequest result(MessageRequest::Kind::kReceive, bytes.size(), from, tag);
  const int count = to_count(bytes.size(), "receive");
  MPI_Request request;
  const int status = MPI_Irecv(bytes.data(), count, MPI_BYTE, from, tag, impl_->comm, &request);
  if (status != MPI_SUCCESS) check_mpi(status, describe("MPI_Irecv", from, tag));
  result.handle_ = pack(request);
  result.done_ = false;
  return result;
}

// MPI has no split that returns at once: only when all have come is it short.
Communicator Communicator::split(int color, int key) const {
  barrier();
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(impl_->comm, color, key, &comm), "MPI_Comm_split");
  return Communicator(std::make_unique<Impl>(comm));
}

Communicator Communicator::split_shared_memory() const {
  barrier();
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(impl_->comm, MPI_COMM_TYPE_SHARED, impl_->rank, MPI_INFO_NULL, &comm),
            "MPI_Comm_split_type");
  return Communicator(std::make_unique<Impl>(comm));
}

void Communicator::barrier() const {
  MPI_Request request;
  check_mpi(MPI_Ibarrier(impl_->comm, &request), "MPI_Ibarrier");
  await(request, "MPI_Ibarrier");
}

std::vector<std::byte> Communicator::broadcast(std::vector<std::byte> bytes, int root) const {
  std::uint64_t size = bytes.size();
  broadcast_into(impl_->comm, std::as_writable_bytes(std::span(&size, 1)), root);
  bytes.resize(size);
  broadcast_into(impl_->comm, bytes, root);
  return bytes;
}

std::vector<std::vector<std::byte>> Communicator::all_gather(std::span<const std::byte> bytes) const {
  const int mine = to_count(bytes.size(), "all_gather");
  const std::vector<int> sizes = gather_sizes(impl_->comm, impl_->size, mine);
  const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  to_count(total, "all_gather");
  std::vector<int> offsets(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), 0);

  std::vector<std::byte> all(total);
  MPI_Request request;
  check_mpi(MPI_Iallgatherv(bytes.data(), mine, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE,
                            impl_->comm, &request),
            "MPI_Iallgatherv");
  await(request, "MPI_Iallgatherv");

  std::vector<std::vector<std::byte>> parts;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const auto first = all.begin() + offsets[r];
    parts.emplace_back(first, first + sizes[r]);
  }
  return parts;
}

std::uint64_t Communicator::all_reduce_max(std::uint64_t value) const {
  std::uint64_t result = 0;
  MPI_Request request;
  check_mpi(MPI_Iallreduce(&value, &result, 1, MPI_UINT64_T, MPI_MAX, impl_->comm, &request), "MPI_Iallreduce");
  await(request, "MPI_Iallreduce");
  return result;
}

}  // namespace computron

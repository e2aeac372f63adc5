#include "computron/comm/descriptor_exchange.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>

#include "computron/base/bytes.h"
#include "computron/base/digest.h"
#include "computron/comm/gather.h"

namespace computron {
namespace {

using Nonce = std::array<std::uint8_t, 16>;

// Drawn by the node's first rank.
struct Meeting {
  Nonce name{};    // in the names of the sockets, which everybody on the machine can see
  Nonce secret{};  // that ranks show
};

// What a rank sends when it has connected.
struct Greeting {
  Nonce secret{};
  int rank = 0;
};

std::string refused(const char* call) { return fmt::format("{}: {}", call, std::strerror(errno)); }

Meeting draw_meeting() {
  Meeting meeting;
  ensure(getrandom(&meeting, sizeof meeting, 0) == sizeof meeting, "no random bytes");
  return meeting;
}

Meeting agree_on_meeting(const Communicator& node) {
  ByteWriter out;
  if (node.rank() == 0) out.put(draw_meeting());
  return ByteReader(node.broadcast(out.take(), 0)).get<Meeting>();
}

FileDescriptor open_socket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// call(socket, address, length) with the address of rank `rank`: bind or connect.
template <class Call>
bool at_address(const Call& call, const FileDescriptor& socket, const Meeting& meeting, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("computron-{}-{}", to_hex(meeting.name), rank);
  std::copy(name.begin(), name.end(), address.sun_path + 1);  // behind a zero: an abstract name
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return call(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

// A message of one byte, with room for one descriptor beside it.
class DescriptorMessage {
 public:
  DescriptorMessage() {
    header_.msg_iov = &part_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  bool send(const FileDescriptor& socket, int descriptor) {
    cmsghdr* const control = CMSG_FIRSTHDR(&header_);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    return sendmsg(socket.get(), &header_, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
  }

  // None where nothing has come.
  FileDescriptor receive(const FileDescriptor& socket) {
    if (recvmsg(socket.get(), &header_, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return {};
    const cmsghdr* const control = CMSG_FIRSTHDR(&header_);
    if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return {};
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
    return FileDescriptor(descriptor);
  }

 private:
  char content_ = 0;
  iovec part_{&content_, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr header_{};
};

// Steps that all ranks end before any begins the next: so a rank that connects finds a socket that listens, one that
// accepts finds everybody connected, and one that receives finds what was sent. No call here ever waits. A step returns
// what was refused; nothing where all went well.
class Exchange {
 public:
  // Of `wanted_by`: [rank] what it wants.
  Exchange(const Communicator& node, int mine, const std::vector<std::vector<int>>& wanted_by)
      : rank_(node.rank()), mine_(mine), wanted_(wanted_by[node.rank()]), meeting_(agree_on_meeting(node)) {
    for (int rank = 0; rank < node.size(); ++rank) {
      if (std::ranges::count(wanted_by[rank], rank_) > 0) takers_.insert(rank);
    }
    sockets_.resize(node.size());
    received_.resize(node.size());
  }

  std::string listen() {
    if (takers_.empty()) return {};
    if (mine_ < 0) return fmt::format("nothing to share: {}", std::strerror(-mine_));
    listener_ = open_socket();
    if (!listener_) return refused("socket");
    if (!at_address(::bind, listener_, meeting_, rank_)) return refused("bind");
    if (::listen(listener_.get(), static_cast<int>(takers_.size()) + kStrangers) != 0) return refused("listen");
    return {};
  }

  std::string connect() {
    const Greeting greeting{meeting_.secret, rank_};
    for (const int rank : wanted_) {
      FileDescriptor& socket = sockets_[rank] = open_socket();
      if (!socket) return refused("socket");
      if (!at_address(::connect, socket, meeting_, rank)) return refused("connect");
      if (send(socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) return refused("send");
    }
    return {};
  }

  std::string give() {
    while (!takers_.empty()) {
      const FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && errno == EINTR) continue;
      if (!socket) return refused("accept");
      if (takers_.erase(greeted_by(socket)) == 0) continue;  // a stranger
      if (!DescriptorMessage().send(socket, mine_)) return refused("sendmsg");
    }
    listener_ = {};
    return {};
  }

  std::string take() {
    for (const int rank : wanted_) {
      received_[rank] = DescriptorMessage().receive(sockets_[rank]);
      if (!received_[rank]) return refused("recvmsg");
    }
    return {};
  }

  std::vector<FileDescriptor> received() { return std::move(received_); }

 private:
  static constexpr int kStrangers = 8;  // that may connect as well, and are sent away

  // -1: nobody of this job.
  int greeted_by(const FileDescriptor& socket) const {
    Greeting greeting;
    const bool whole = recv(socket.get(), &greeting, sizeof greeting, MSG_DONTWAIT) == sizeof greeting;
    return whole && greeting.secret == meeting_.secret ? greeting.rank : -1;
  }

  const int rank_;
  const int mine_;
  const std::vector<int> wanted_;
  const Meeting meeting_;
  std::set<int> takers_;  // who still wants what this rank offers
  FileDescriptor listener_;
  std::vector<FileDescriptor> sockets_;   // [rank] to those in wanted_
  std::vector<FileDescriptor> received_;  // [rank]
};

// Collective: the first that is not empty.
std::string first_refusal(const Communicator& node, const std::string& mine) {
  for (const std::vector<std::byte>& text : node.all_gather(std::as_bytes(std::span(mine)))) {
    if (!text.empty()) return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  return {};
}

}  // namespace

ExchangedDescriptors exchange_descriptors(const Communicator& node, int mine, const std::vector<int>& wanted) {
  const std::vector<std::vector<int>> wishes = gather_lists(node, wanted);
  if (std::ranges::all_of(wishes, &std::vector<int>::empty)) return {std::vector<FileDescriptor>(node.size()), {}};
  Exchange exchange(node, mine, wishes);
  for (const auto step : {&Exchange::listen, &Exchange::connect, &Exchange::give, &Exchange::take}) {
    const std::string refusal = first_refusal(node, (exchange.*step)());
    if (!refusal.empty()) return {std::vector<FileDescriptor>(node.size()), refusal};
  }
  return {exchange.received(), {}};
}

}  // namespace computron

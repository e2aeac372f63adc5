#include <algorithm>
#include <vector>

#include "computron/comm/mpi.h"
#include "computron/comm/tags.h"

namespace computron {

bool all_agree(const Communicator& group, const std::function<void(const std::function<bool()>& done)>& wait_until,
               bool mine) {
  const std::byte own{mine};
  std::vector<std::byte> others(static_cast<std::size_t>(group.size()), own);
  std::vector<MessageRequest> requests;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    requests.push_back(group.receive({&others[static_cast<std::size_t>(rank)], 1}, rank, tags::kAgreement));
    requests.push_back(group.send({&own, 1}, rank, tags::kAgreement));
  }
  wait_until([&] { return std::ranges::all_of(requests, [](MessageRequest& request) { return request.done(); }); });
  return std::ranges::all_of(others, [](std::byte said) { return said == std::byte{true}; });
}

}  // namespace computron

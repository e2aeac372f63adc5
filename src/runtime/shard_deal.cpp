#include "src/runtime/shard_deal.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "computron/base/types.h"

namespace computron {
namespace {

struct Claim {
  std::size_t bytes = 0;
  std::set<int> ranks;
};

std::map<Digest128, Claim> claims_of(const std::vector<std::vector<WantedShard>>& wanted) {
  std::map<Digest128, Claim> claims;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    for (const WantedShard& shard : wanted[rank]) {
      Claim& claim = claims[shard.key];
      claim.bytes = shard.bytes;
      claim.ranks.insert(static_cast<int>(rank));
    }
  }
  return claims;
}

// In the order of dealing: those that leave no choice, then the largest.
std::vector<std::pair<Digest128, Claim>> sorted(const std::map<Digest128, Claim>& claims) {
  std::vector<std::pair<Digest128, Claim>> order(claims.begin(), claims.end());
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) {
    return std::tuple(a.second.ranks.size() > 1, b.second.bytes) <
           std::tuple(b.second.ranks.size() > 1, a.second.bytes);
  });
  return order;
}

}  // namespace

ShardDeal deal_shards(const std::vector<std::vector<WantedShard>>& wanted) {
  ShardDeal deal{{}, std::vector<std::size_t>(wanted.size())};
  std::vector<std::size_t> loads(wanted.size());  // bytes
  for (const auto& [key, claim] : sorted(claims_of(wanted))) {
    const int holder = *std::ranges::min_element(claim.ranks, {}, [&](int rank) { return loads[rank]; });
    const bool shared = claim.ranks.size() > 1;
    deal.shards[key] = {holder, shared, shared ? deal.segment_bytes[holder] : 0};
    loads[holder] += claim.bytes;
    if (shared) deal.segment_bytes[holder] += round_up(claim.bytes, kSegmentAlignment);
  }
  return deal;
}

}  // namespace computron

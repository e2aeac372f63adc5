#include "computron/dispatch/request_dealing.h"

#include <cmath>

#include "computron/dispatch/dealing.h"

namespace computron {
namespace {

// The requests of a model, summed up, and who can serve them.
struct Demand {
  std::vector<std::size_t> requests;  // positions
  double prompt_tokens = 0, generated_tokens = 0;
  std::vector<std::size_t> hosts;  // groups

  // Of so many of them, of mean size.
  CostModel::Work work_of(std::size_t count) const {
    const double part = static_cast<double>(count) / static_cast<double>(requests.size());
    return {count, static_cast<std::size_t>(std::llround(part * prompt_tokens)),
            static_cast<std::size_t>(std::llround(part * generated_tokens))};
  }
};

std::vector<Demand> demands_of(const std::vector<Request>& requests, std::size_t models,
                               std::span<const ServingGroup> groups) {
  std::vector<Demand> demands(models);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Demand& demand = demands[requests[i].model];
    const OpenRequests::Work work = OpenRequests::work_of(requests[i]);
    demand.requests.push_back(i);
    demand.prompt_tokens += static_cast<double>(work.prompt_tokens);
    demand.generated_tokens += static_cast<double>(work.generated_tokens);
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (ModelId local = 0; local < groups[group].models(); ++local) {
      demands[groups[group].job_model(local)].hosts.push_back(group);
    }
  }
  return demands;
}

std::vector<DealtModel> models_of(const std::vector<Demand>& demands, std::span<const ServingGroup> groups) {
  std::vector<DealtModel> models;
  for (ModelId m = 0; m < demands.size(); ++m) {
    DealtModel& model = models.emplace_back();
    model.requests = demands[m].requests.size();
    for (const std::size_t group : demands[m].hosts) {
      model.hosts.push_back({group, groups[group].swap_s(*groups[group].local(m))});
    }
  }
  return models;
}

// The next host's turn comes when a host has its share; a line that has begun stays with its host, and so does a
// request that no other host accepts.
class Hand {
 public:
  Hand(const Demand& demand, const std::vector<std::size_t>& shares) : demand_(demand), shares_(shares) {}

  std::size_t group_for(const Request& request, std::span<const ServingGroup> groups) {
    if (!begun_ || request.id != line_) {
      while (given_ >= shares_[host_] && host_ + 1 < shares_.size()) {
        ++host_;
        given_ = 0;
      }
      begun_ = true;
      line_ = request.id;
    }
    ++given_;
    return accepting(request, groups);
  }

 private:
  std::size_t accepting(const Request& request, std::span<const ServingGroup> groups) const {
    for (std::size_t i = 0; i < demand_.hosts.size(); ++i) {
      const std::size_t group = demand_.hosts[(host_ + i) % demand_.hosts.size()];
      if (std::isfinite(groups[group].cost_of(request, 0).seconds)) return group;
    }
    return demand_.hosts[host_];
  }

  const Demand& demand_;
  const std::vector<std::size_t>& shares_;
  std::size_t host_ = 0, given_ = 0;
  bool begun_ = false;
  RequestId line_ = 0;
};

}  // namespace

std::vector<std::vector<Request>> deal_requests(std::vector<Request> requests, std::size_t models,
                                                std::span<const ServingGroup> groups) {
  const std::vector<Demand> demands = demands_of(requests, models, groups);
  const auto compute_s = [&](std::size_t m, std::size_t host, std::size_t count) {
    const Scheduler& scheduler = groups[demands[m].hosts[host]].scheduler();
    const ModelId local = *groups[demands[m].hosts[host]].local(static_cast<ModelId>(m));
    const SchedulerOptions& options = scheduler.options();
    return scheduler.costs().backlog_s(local, demands[m].work_of(count), options.max_batch_tokens, options.max_seqs);
  };
  const auto shares = deal(models_of(demands, groups), groups.size(), compute_s);
  std::vector<std::vector<Request>> dealt(groups.size());
  for (std::size_t m = 0; m < models; ++m) {
    Hand hand(demands[m], shares[m]);
    for (const std::size_t i : demands[m].requests) {
      const std::size_t group = hand.group_for(requests[i], groups);
      dealt[group].push_back(std::move(requests[i]));
    }
  }
  return dealt;
}

}  // namespace computron

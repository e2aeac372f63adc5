#include "computron/sched/dealing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kWorthIt = 1e-3;  // of the end: what is saved at least by a change

// A sum and its least part, also when one of the parts is changed or taken away.
class Parts {
 public:
  void add(double part) {
    sum_ += part;
    if (part < least_) std::swap(part, least_);
    second_ = std::min(second_, part);
  }
  double sum() const { return sum_; }
  double least() const { return least_; }
  // Of all but one part of this size.
  double least_without(double part) const { return part <= least_ ? second_ : least_; }

 private:
  double sum_ = 0, least_ = kNever, second_ = kNever;
};

struct Load {
  Parts transfers, computes;
  bool empty() const { return computes.least() == kNever; }
};

double end_of(double transfers_s, double least_transfer_s, double computes_s, double least_compute_s) {
  if (least_compute_s == kNever) return 0;
  return std::max(transfers_s + least_compute_s, least_transfer_s + computes_s);
}

double end_of(const Load& load) {
  return end_of(load.transfers.sum(), load.transfers.least(), load.computes.sum(), load.computes.least());
}

class Dealer {
 public:
  Dealer(const std::vector<DealtModel>& models, std::size_t groups, const ComputeTimes& compute_s)
      : models_(models), compute_s_(compute_s), loads_(groups), held_(groups) {
    for (const DealtModel& model : models) shares_.emplace_back(model.hosts.size(), 0);
  }

  void deal_largest_first() {
    std::vector<std::size_t> order(models_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<double> size_s(models_.size(), 0);
    for (const std::size_t m : order) size_s[m] = largest_s(m);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return size_s[a] > size_s[b]; });
    for (const std::size_t m : order) {
      if (models_[m].requests > 0) set_share(m, first_to_end(m), models_[m].requests);
    }
  }

  void improve() {
    const std::size_t most = 100 + 4 * (models_.size() + loads_.size());  // more than it takes
    for (std::size_t i = 0; i < most; ++i) {
      const std::optional<Change> change = best_change(last_to_end());
      if (!change) return;
      std::vector<std::size_t>& shares = shares_[change->model];
      set_share(change->model, change->to, shares[change->to] + change->requests);
      set_share(change->model, change->from, shares[change->from] - change->requests);
    }
  }

  void set_share(std::size_t model, std::size_t host, std::size_t requests) {
    shares_[model][host] = requests;
    const std::size_t group = models_[model].hosts[host].group;
    std::vector<Held>& held = held_[group];
    std::erase_if(held, [model](const Held& h) { return h.model == model; });
    if (requests > 0) held.push_back({model, host, compute_s_(model, host, requests)});
    Load load;
    for (const Held& h : held) {
      load.transfers.add(models_[h.model].hosts[h.host].transfer_s);
      load.computes.add(h.compute_s);
    }
    loads_[group] = load;
  }

  double latest_end_s() const { return end_of(loads_[last_to_end()]); }
  std::vector<std::vector<std::size_t>> take_shares() { return std::move(shares_); }

 private:
  struct Held {
    std::size_t model, host;
    double compute_s;
  };
  struct Change {
    std::size_t model, from, to;  // hosts
    std::size_t requests;
  };

  double largest_s(std::size_t m) const {
    double largest_s = 0;
    for (std::size_t h = 0; h < models_[m].hosts.size() && models_[m].requests > 0; ++h) {
      largest_s = std::max(largest_s, models_[m].hosts[h].transfer_s + compute_s_(m, h, models_[m].requests));
    }
    return largest_s;
  }

  std::size_t first_to_end(std::size_t m) const {
    std::size_t best = 0;
    double best_s = kNever;
    for (std::size_t h = 0; h < models_[m].hosts.size(); ++h) {
      const double end_s = end_with(m, h, models_[m].requests);
      if (end_s < best_s) best = h;
      best_s = std::min(best_s, end_s);
    }
    return best;
  }

  std::size_t last_to_end() const {
    const auto last = std::max_element(loads_.begin(), loads_.end(),
                                       [](const Load& a, const Load& b) { return end_of(a) < end_of(b); });
    return static_cast<std::size_t>(last - loads_.begin());
  }

  // The end of the host's group if it had so many of the model's requests.
  double end_with(std::size_t m, std::size_t h, std::size_t requests) const {
    const DealtModel::Host& host = models_[m].hosts[h];
    const Load& load = loads_[host.group];
    const std::size_t before = shares_[m][h];
    Parts transfers = load.transfers, computes = load.computes;
    double transfers_s = transfers.sum(), computes_s = computes.sum();
    double least_transfer_s = transfers.least(), least_compute_s = computes.least();
    if (before > 0) {
      const double compute_s = compute_s_(m, h, before);
      transfers_s -= host.transfer_s;
      computes_s -= compute_s;
      least_transfer_s = transfers.least_without(host.transfer_s);
      least_compute_s = computes.least_without(compute_s);
    }
    if (requests > 0) {
      const double compute_s = compute_s_(m, h, requests);
      transfers_s += host.transfer_s;
      computes_s += compute_s;
      least_transfer_s = std::min(least_transfer_s, host.transfer_s);
      least_compute_s = std::min(least_compute_s, compute_s);
    }
    return end_of(transfers_s, least_transfer_s, computes_s, least_compute_s);
  }

  // Of a share of the group, or a part of it, to another host: what makes the later of the two end earliest.
  std::optional<Change> best_change(std::size_t group) const {
    double best_s = (1 - kWorthIt) * end_of(loads_[group]);
    std::optional<Change> best;
    for (const Held& held : held_[group]) {
      for (std::size_t to = 0; to < models_[held.model].hosts.size(); ++to) {
        if (to == held.host) continue;
        const Change change{held.model, held.host, to, balanced(held.model, held.host, to)};
        const double end_s = later_end_s(held.model, held.host, to, change.requests);
        if (end_s >= best_s) continue;
        best_s = end_s;
        best = change;
      }
    }
    return best;
  }

  double later_end_s(std::size_t m, std::size_t from, std::size_t to, std::size_t requests) const {
    return std::max(end_with(m, from, shares_[m][from] - requests), end_with(m, to, shares_[m][to] + requests));
  }

  // How many requests to hand on: the fewest with which the other host ends no earlier, or one less.
  std::size_t balanced(std::size_t m, std::size_t from, std::size_t to) const {
    std::size_t few = 1, many = shares_[m][from];
    while (few < many) {
      const std::size_t half = (few + many) / 2;
      const bool enough = end_with(m, to, shares_[m][to] + half) >= end_with(m, from, shares_[m][from] - half);
      enough ? many = half : few = half + 1;
    }
    const bool fewer = few > 1 && later_end_s(m, from, to, few - 1) <= later_end_s(m, from, to, few);
    return fewer ? few - 1 : few;
  }

  const std::vector<DealtModel>& models_;
  const ComputeTimes& compute_s_;
  std::vector<std::vector<std::size_t>> shares_;  // [model][host]
  std::vector<Load> loads_;                       // [group]
  std::vector<std::vector<Held>> held_;           // [group]
};

}  // namespace

std::vector<std::vector<std::size_t>> deal(const std::vector<DealtModel>& models, std::size_t groups,
                                           const ComputeTimes& compute_s) {
  Dealer dealer(models, groups, compute_s);
  dealer.deal_largest_first();
  dealer.improve();
  return dealer.take_shares();
}

double latest_end_s(const std::vector<DealtModel>& models, std::size_t groups, const ComputeTimes& compute_s,
                    const std::vector<std::vector<std::size_t>>& shares) {
  Dealer dealer(models, groups, compute_s);
  for (std::size_t m = 0; m < models.size(); ++m) {
    for (std::size_t h = 0; h < shares[m].size(); ++h) dealer.set_share(m, h, shares[m][h]);
  }
  return dealer.latest_end_s();
}

}  // namespace computron

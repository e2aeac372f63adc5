#include "computron/dispatch/dealing.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMostTries = 20000;  // of chains: a fraction of a second
constexpr double kWorthIt = 1e-3;  // of the end: what is saved at least by a change

// A sum and its least part, also when one of the parts is taken away.
class Parts {
 public:
  void add(double part) {
    sum_ += part;
    second_ = std::min(second_, std::max(part, least_));
    least_ = std::min(least_, part);
  }
  void remove(double part) {
    sum_ -= part;
    if (part <= least_) least_ = second_;
  }
  double sum() const { return sum_; }
  double least() const { return least_; }

 private:
  double sum_ = 0, least_ = kNever, second_ = kNever;
};

// The shares of a group. remove() at most once behind all add().
class Load {
 public:
  void add(double transfer_s, double compute_s) {
    transfers_.add(transfer_s);
    computes_.add(compute_s);
    negated_.add(-transfer_s - compute_s);
  }
  void remove(double transfer_s, double compute_s) {
    transfers_.remove(transfer_s);
    computes_.remove(compute_s);
    negated_.remove(-transfer_s - compute_s);
  }
  double end_s() const {
    if (computes_.least() == kNever) return 0;
    return std::max({transfers_.sum() + computes_.least(), transfers_.least() + computes_.sum(), -negated_.least()});
  }

 private:
  Parts transfers_, computes_, negated_;
};

class Dealer {
 public:
  Dealer(const std::vector<DealtModel>& models, std::size_t groups, const ComputeTimes& compute_s)
      : models_(models), compute_s_(compute_s), loads_(groups), held_(groups) {
    for (const DealtModel& model : models) shares_.emplace_back(model.hosts.size(), 0);
  }

  // Those that live in few groups first, for the others may go round them; or all by size alone.
  void deal_largest_first(bool few_hosts_first) {
    std::vector<std::tuple<std::size_t, double, std::size_t>> order;  // hosts, size, model
    for (std::size_t m = 0; m < models_.size(); ++m) {
      order.emplace_back(few_hosts_first ? models_[m].hosts.size() : 0, -largest_s(m), m);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [hosts, size_s, m] : order) {
      if (models_[m].requests > 0) set_share(m, first_to_end(m), models_[m].requests);
    }
  }

  void improve() {
    const std::size_t most = 100 + 4 * (models_.size() + loads_.size());  // more than it takes
    for (std::size_t i = 0; i < most && improve_once(last_to_end()); ++i) {
    }
  }

  void set_share(std::size_t model, std::size_t host, std::size_t requests) {
    shares_[model][host] = requests;
    const std::size_t group = models_[model].hosts[host].group;
    std::vector<Held>& held = held_[group];
    std::erase_if(held, [model](const Held& h) { return h.model == model; });
    if (requests > 0) held.push_back({model, host, compute_s_(model, host, requests)});
    Load load;
    for (const Held& h : held) load.add(models_[h.model].hosts[h.host].transfer_s, h.compute_s);
    loads_[group] = load;
  }

  double latest_end_s() const { return loads_[last_to_end()].end_s(); }
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

  bool improve_once(std::size_t group) {
    const double limit_s = (1 - kWorthIt) * loads_[group].end_s();
    if (const std::optional<Change> change = best_change(group, limit_s)) {
      apply(*change);
      return true;
    }
    return apply_chain(group, limit_s);
  }

  void apply(const Change& change) {
    std::vector<std::size_t>& shares = shares_[change.model];
    set_share(change.model, change.to, shares[change.to] + change.requests);
    set_share(change.model, change.from, shares[change.from] - change.requests);
  }

  void undo(const Change& change) { apply({change.model, change.to, change.from, change.requests}); }

  // Makes room in the other group first: that one hands on something itself, or gives it in exchange. True if all of
  // them end before `limit_s` then.
  bool apply_chain(std::size_t group, double limit_s) {
    const std::vector<Held> held = held_[group];
    for (const Held& h : held) {
      for (std::size_t to = 0; to < models_[h.model].hosts.size(); ++to) {
        if (to == h.host) continue;
        for (const std::size_t requests : {shares_[h.model][h.host], balanced(h.model, h.host, to)}) {
          const Change change{h.model, h.host, to, requests};
          if (tries_left_ == 0) return false;
          --tries_left_;
          apply(change);
          const auto next = best_change(models_[h.model].hosts[to].group, limit_s);
          if (next) apply(*next);
          if (next && loads_[group].end_s() < limit_s) return true;
          if (next) undo(*next);
          undo(change);
        }
      }
    }
    return false;
  }

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
                                       [](const Load& a, const Load& b) { return a.end_s() < b.end_s(); });
    return static_cast<std::size_t>(last - loads_.begin());
  }

  // The end of the host's group if it had so many of the model's requests.
  double end_with(std::size_t m, std::size_t h, std::size_t requests) const {
    const DealtModel::Host& host = models_[m].hosts[h];
    Load load = loads_[host.group];
    const std::size_t before = shares_[m][h];
    if (before > 0) load.remove(host.transfer_s, compute_s_(m, h, before));
    if (requests > 0) load.add(host.transfer_s, compute_s_(m, h, requests));
    return load.end_s();
  }

  // Of a share of the group, or a part of it, to another host: what makes the later of the two end earliest, before
  // `limit_s`.
  std::optional<Change> best_change(std::size_t group, double limit_s) const {
    double best_s = limit_s;
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
  int tries_left_ = kMostTries;
};

}  // namespace

std::vector<std::vector<std::size_t>> deal(const std::vector<DealtModel>& models, std::size_t groups,
                                           const ComputeTimes& compute_s) {
  std::vector<std::vector<std::size_t>> best;
  double best_s = kNever;
  for (const bool few_hosts_first : {true, false}) {
    Dealer dealer(models, groups, compute_s);
    dealer.deal_largest_first(few_hosts_first);
    dealer.improve();
    const double end_s = dealer.latest_end_s();
    if (end_s < best_s || best.empty()) best = dealer.take_shares();
    best_s = std::min(best_s, end_s);
  }
  return best;
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

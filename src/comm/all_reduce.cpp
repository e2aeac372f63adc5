#include "computron/comm/all_reduce.h"

#include <algorithm>
#include <bit>

#include "computron/base/types.h"
#include "computron/comm/tags.h"
#include "computron/device/cpu/cpu_stream.h"
#include "src/comm/sum_order.h"

namespace computron {

namespace {

// Up to here latency decides and whole vectors travel; beyond, each rank sums one slice of the vector for all. Measured
// at 2 and 4 ranks of one node: equal at 16 Ki floats.
constexpr std::size_t kWholeFloats = 16384;
constexpr std::size_t kItemFloats = 16384;  // of a slice that one pool thread sums at a time

class LocalAllReduce : public AllReduce {
  void sum(Stream&, float*, std::size_t) override {}
  bool is_capturable() const override { return true; }
};

// Three ways to the same bits (sum_order.h), for n floats on p ranks:
//
//   doubling   n small, p a power of two:  log2 p rounds, n floats sent in each
//   gathering  n small, other p:           1 round, (p − 1) n floats sent
//   slicing    n large:                    2 rounds, 2 (p − 1) / p n floats sent, which is the least possible
//
// A part that is being sent is not written to, and all of a round's requests are done before the next begins.
class MpiAllReduce : public AllReduce {
 public:
  MpiAllReduce(const Communicator& group, Progress& progress, std::size_t max_count, Trace* trace)
      : group_(group), progress_(progress), trace_(trace), max_count_(max_count), parts_(group.size()) {
    const std::size_t others = group.size() - 1;
    received_.resize(others * std::max(std::min(max_count, kWholeFloats), longest_slice(max_count)));
    messages_.reserve(2 * others);
  }

  void sum(Stream& stream, float* data, std::size_t count) override {
    ensure(count <= max_count_, "all-reduce larger than its buffers");
    cpu(stream).launch([this, data, count](CpuContext& context) { reduce(context, data, count); });
  }

 private:
  void reduce(CpuContext& context, float* data, std::size_t count) {
    const TraceSpan span(trace_, TraceTrack::kCommunication, "all-reduce", {}, {"sum", ++sums_},
                         {"bytes", count * sizeof(float)});
    if (count > kWholeFloats) {
      slice(context, data, count);
    } else if (std::has_single_bit(static_cast<unsigned>(group_.size()))) {
      double_up(data, count);
    } else {
      gather(data, count);
    }
  }

  void double_up(float* data, std::size_t count) {
    float* theirs = received_.data();
    for (int distance = 1; distance < group_.size(); distance *= 2) {
      const int partner = group_.rank() ^ distance;
      receive(theirs, count, partner);
      send(data, count, partner);
      finish_round();
      const bool lower = group_.rank() < partner;
      add(data, lower ? data : theirs, lower ? theirs : data, count);
    }
  }

  void gather(float* data, std::size_t count) {
    receive_parts(data, count);
    for_each_other([&](int r) { send(data, count, r); });
    finish_round();
    sum_in_order(parts_, data, 0, count);
  }

  void slice(CpuContext& context, float* data, std::size_t count) {
    const std::size_t begin = slice_begin(count, group_.rank());
    const std::size_t size = slice_begin(count, group_.rank() + 1) - begin;
    float* mine = data + begin;

    receive_parts(mine, size);
    for_each_other([&](int r) { send(data + slice_begin(count, r), slice_size(count, r), r); });
    finish_round();
    sum_parallel(context, mine, size);

    for_each_other([&](int r) { receive(data + slice_begin(count, r), slice_size(count, r), r); });
    for_each_other([&](int r) { send(mine, size, r); });
    finish_round();
  }

  void sum_parallel(CpuContext& context, float* out, std::size_t count) {
    const auto items = static_cast<int>(ceil_div(count, kItemFloats));
    context.parallel_for(items, [&](int, int item) {
      const std::size_t begin = item * kItemFloats;
      sum_in_order(parts_, out, begin, std::min(begin + kItemFloats, count));
    });
  }

  // Slices begin at cache lines; the last ones may be short or empty.
  std::size_t longest_slice(std::size_t count) const {
    return round_up<std::size_t>(ceil_div<std::size_t>(count, group_.size()), 16);
  }
  std::size_t slice_begin(std::size_t count, int r) const { return std::min(count, r * longest_slice(count)); }
  std::size_t slice_size(std::size_t count, int r) const { return slice_begin(count, r + 1) - slice_begin(count, r); }

  // Begins with the rank after this one, so that not all ranks talk to the same one first.
  template <class Action>
  void for_each_other(Action&& action) const {
    for (int i = 1; i < group_.size(); ++i) action((group_.rank() + i) % group_.size());
  }

  // parts_[r] for every rank: `mine` here, a received buffer of `count` floats for the others.
  void receive_parts(float* mine, std::size_t count) {
    float* next = received_.data();
    parts_[group_.rank()] = mine;
    for_each_other([&](int r) {
      parts_[r] = next;
      receive(next, count, r);
      next += count;
    });
  }

  void receive(float* data, std::size_t count, int from) {
    const auto bytes = std::as_writable_bytes(std::span(data, count));
    messages_.push_back({group_.receive(bytes, from, tags::kAllReduce), bytes.size()});
  }
  void send(const float* data, std::size_t count, int to) {
    messages_.push_back({group_.send(std::as_bytes(std::span(data, count)), to, tags::kAllReduce), 0});
  }
  void finish_round() {
    progress_.wait_until([this] {
      while (!messages_.empty() && messages_.back().request.done()) {
        ensure(messages_.back().request.received_bytes() == messages_.back().bytes, "all-reduce of unequal lengths");
        messages_.pop_back();
      }
      return messages_.empty();
    });
  }

  struct Message {
    MessageRequest request;
    std::size_t bytes;  // to be received
  };

  const Communicator& group_;
  Progress& progress_;
  Trace* trace_;
  std::uint64_t sums_ = 0;  // so far: the same on all ranks when they enter the same one
  std::size_t max_count_;
  std::vector<float> received_;    // parts of other ranks
  std::vector<float*> parts_;      // by rank, of the sum in hand
  std::vector<Message> messages_;  // of the round in hand
};

}  // namespace

std::unique_ptr<AllReduce> make_local_all_reduce() { return std::make_unique<LocalAllReduce>(); }

std::unique_ptr<AllReduce> make_mpi_all_reduce(const Communicator& group, Progress& progress, std::size_t max_count,
                                               Trace* trace) {
  if (group.size() == 1) return make_local_all_reduce();
  return std::make_unique<MpiAllReduce>(group, progress, max_count, trace);
}

}  // namespace computron

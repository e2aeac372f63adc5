// Rounds of the load benchmark, each measuring one thing after the other on ranks that start together:
//
//   plain   rank 0 alone reads the file from its beginning to its end into a buffer it uses again: the yardstick
//   parts   every thread of every rank reads its part of the file, into a buffer each
//   fresh   the same into memory that did not exist before: what a load would take that did nothing else
//   load    the file's pages on every rank, verified, packed, digested and read-only, as serve loads them
//   coded   the same, kept coded (serve --coded on)
#pragma once

#include <string>
#include <vector>

#include "computron/serve/job.h"

namespace computron {

// Seconds, of the slowest rank.
struct LoadRound {
  double plain_s = 0, parts_s = 0, fresh_s = 0, load_s = 0, coded_s = 0;
  LoadTimes of_load, of_coded;  // summed over all threads of all ranks
};

class LoadRounds {
 public:
  // Borrows the job, which need not have loaded anything; its first model is what is loaded.
  explicit LoadRounds(Job& job);

  // Collective. Reads the file once, so that it is in the page cache if that has room.
  void warm_up();
  // Collective; the same on every rank.
  LoadRound measure();

  const CheckpointIndex& index() const { return index_; }

 private:
  void read(int reader, int readers, std::byte* fresh) const;
  void read_parts(std::byte* fresh) const;
  template <class Body>
  double together(const Body& body) const;
  LoadTimes sum(const LoadTimes& mine) const;
  double load(PageCoding coding, LoadTimes& times) const;

  Job& job_;
  CheckpointIndex index_;
  const ShardLayout& layout_;
};

}  // namespace computron

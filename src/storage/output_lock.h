// One job an output: OUT.lock says whose it is.
//
// The holder keeps an open-file-description lock on the file where the file system has such locks, and its name in it
// everywhere. What is in the file is compared before every write, so that a job that was taken for gone and comes back
// writes nothing more.
#pragma once

#include <cstdint>
#include <string>

#include "computron/storage/files.h"

namespace computron {

// A line of OUT.lock.
struct LockHolder {
  std::uint64_t epoch = 0;  // higher with every attempt
  std::string host;
  long pid = 0;
  std::string boot;           // of the host, as the system numbers it
  std::string job;            // of the batch system; empty: none
  int restart = 0;            // how often it has started the job again
  std::uint64_t time_ns = 0;  // of the wall clock, so that no two lines are the same

  std::string to_string() const;                     // the line
  static LockHolder parse(const std::string& line);  // what cannot be read stays empty
  static LockHolder self(std::uint64_t epoch);
  std::string shown() const;  // "host h, process 12, job 7"
};

// Whether the earlier holder can no longer be at work. `locked`: the file's lock could be had, which a living holder on
// the same host would not have let happen.
bool is_gone(const LockHolder& earlier, const LockHolder& self, bool locked);

// Whether the earlier holder is this very job, which the batch system has started again since.
bool was_restarted(const LockHolder& earlier, const LockHolder& self);

class OutputLock {
 public:
  // Error{kCannotCreate} naming the holder unless the file is free, its holder gone, or `take_over`. A job that was
  // restarted waits for the lock for two minutes, until Error{kStopped}. Borrows `folder`.
  OutputLock(const OutputFolder& folder, std::string name, bool take_over);
  ~OutputLock();  // gives it back

  std::uint64_t epoch() const { return earlier_.epoch; }  // of the earlier holder
  // Writes this job's name. Throws like check() where there are no locks and another job has done so, too.
  void claim(std::uint64_t epoch, const DiskWait& wait);
  // Error{kCannotCreate} if the file is no longer as claim() left it; Error{kIo} if that cannot be told or the whole
  // folder is gone.
  void check() const;
  // Removes the file, if it is still this job's.
  void give_back() noexcept;
  std::string holder() const { return mine_.shown(); }

 private:
  enum class State { kFree, kHeld, kUnknown };  // unknown: no such locks here
  State try_lock() const;
  void open(bool take_over);
  bool is_free(const std::string& line) const;
  bool same_file() const;
  bool wait_for_lock(int tries) const;
  bool is_mine() const;
  std::string content(const FileDescriptor& fd) const;

  const OutputFolder& folder_;
  std::string name_;
  FileDescriptor fd_;
  State state_ = State::kUnknown;
  LockHolder earlier_, mine_;
  bool claimed_ = false;
};

}  // namespace computron

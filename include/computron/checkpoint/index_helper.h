// Reads a checkpoint's metadata in a process of its own. The HDF5 library crashes, loops or takes all memory on some
// damaged files (tests/faults.md, I21), and may do what a hostile one wants: so whoever serves never opens a file with
// it. The helper is a program beside this one that parses one file under limits of memory, time and files, tells
// the index as text, and ends; the text is believed as little as the file (src/checkpoint/index_text.h). The tensors'
// bytes are then read with pread by whoever needs them.
#pragma once

#include <string>

#include "computron/checkpoint/index.h"

namespace computron {

struct IndexHelper {
  std::string program;   // empty: computron-checkpoint-index in the folder of the running program
  double limit_s = 300;  // of wall time, for disks; processor time has a limit of its own
};

// As read_checkpoint_index(), with the same errors, and CheckpointError "PATH: rejected by parser (...)" of a file on
// which the helper dies, takes more time or memory than it may, or says what cannot be. Error{kSystem} if the helper
// cannot be started, Error{kIo} if it does not answer in time: then it waits for the disk. May be called after
// MPI_Init: the helper is spawned, which copies no memory that a network card knows, closes what it inherits, and is in
// a process group of its own, so that signals for the job are not its end.
CheckpointIndex read_index_apart(const std::string& path, const IndexHelper& helper = {});

// What the helper does: takes away its own means, then writes the answer to standard output. Returns its exit code.
int answer_with_index(const std::string& path);

}  // namespace computron

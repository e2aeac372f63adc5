// Every message tag of the program. Messages between the same two ranks with the same tag arrive in the order sent,
// so a tag is a lane: two uses that may overtake each other need two tags. MPI guarantees tags up to 32767.
#pragma once

#include <string>

namespace computron::tags {

// World communicator.
inline constexpr int kStep = 1;        // rank 0 → every rank: fragments of steps
inline constexpr int kReport = 2;      // every rank → rank 0: done records
inline constexpr int kActivation = 3;  // stage → next stage, same t: hidden states
inline constexpr int kClock = 4;       // rank 0 ↔ every rank, at start-up: times of their clocks
inline constexpr int kTrace = 5;       // every rank → rank 0, at the end: its part of the trace file
inline constexpr int kLargeStep = 6;   // rank 0 → every rank: steps with images
inline constexpr int kStop = 7;        // every rank → rank 0: it has been asked to stop
inline constexpr int kSign = 8;        // rank 0 ↔ every rank: a sign of life
inline constexpr int kAlarm = 9;       // every rank ↔ every rank, at start-up: it has failed

// Tensor-parallel communicator of a stage.
inline constexpr int kTopLogits = 16;  // best logits of each vocabulary slice
inline constexpr int kAllReduce = 18;  // parts and sums of the all-reduce
inline constexpr int kAgreement = 19;  // whether a rank can go on as the others do

// Benchmarks and tests.
inline constexpr int kMeasurement = 100;

// "step", "activation", ... for messages about messages; the number itself for any other tag.
std::string name_of(int tag);

}  // namespace computron::tags

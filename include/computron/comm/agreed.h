// A phase of the start that every rank goes through: a failure on any rank becomes the same VoteError on all.
#pragma once

#include <new>
#include <optional>
#include <system_error>

#include "computron/comm/mpi.h"

namespace computron {

// Collective. `phase` must not communicate in a way that a failing rank would leave others waiting in. It may vote in a
// part of `world`, as groups of ranks do: what fails there fails everywhere, in the words of the rank that failed.
template <class Phase>
void agreed(const Communicator& world, const Phase& phase) {
  std::optional<Error> mine;
  try {
    phase();
  } catch (const VoteError& error) {
    if (error.is_own()) mine = Error(error.code(), error.reason());
  } catch (const Error& error) {
    mine = error;
  } catch (const std::bad_alloc&) {
    mine = Error(ExitCode::kSystem, "out of memory");
  } catch (const std::system_error& error) {
    mine = Error(ExitCode::kSystem, error.what());
  } catch (const std::exception& error) {
    mine = Error(ExitCode::kInternal, error.what());
  }
  vote(world, mine ? &*mine : nullptr);
}

}  // namespace computron

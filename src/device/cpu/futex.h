// Sleeping on a 32-bit word of this process, and waking its sleepers (futex(2)).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "computron/base/error.h"

namespace computron {

// The halves of a 64-bit word are addressed as 32-bit ones.
static_assert(std::endian::native == std::endian::little);

// Sleeps while *word is `expected`, at most `timeout_us`. May return early: the caller looks again.
inline void futex_wait(const void* word, std::uint32_t expected, int timeout_us) {
  const timespec timeout{timeout_us / 1000000, timeout_us % 1000000 * 1000L};
  const long status = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
  ensure(status == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT, "futex wait failed");
}

// Touches no memory, so the word may be gone already.
inline void futex_wake(const void* word, int sleepers = INT_MAX) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, sleepers, nullptr, nullptr, 0);
}

}  // namespace computron

// The one thing that waiting loops ask of a processor.
#pragma once

namespace computron {

// Tells the processor that this thread spins: its sibling gets the core, and the loop's end is not mispredicted.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on Neoverse; isb waits about as long as x86's pause
#endif
}

}  // namespace computron

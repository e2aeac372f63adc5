// What must hold of whatever a fuzz target's code accepts.
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the process, which libFuzzer reports as a crash, unless `condition`.
inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

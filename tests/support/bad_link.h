// A host link that damages what it carries: the CPU device's by its hook, the emulated GPU's by its environment.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <span>

#include "computron/base/digest.h"
#include "computron/device/device.h"
#include "tests/support/flip_bit.h"
#include "tests/support/test_device.h"

namespace computron::test {

// Whether there is one for the device that tests run on.
inline bool has_bad_link() { return on_cpu() || on_emulated_gpu(); }

class BadLink {
 public:
  BadLink() = default;
  ~BadLink() { unsetenv(kVariable); }
  BadLink(const BadLink&) = delete;
  BadLink& operator=(const BadLink&) = delete;

  // For the CPU device; borrows this.
  CopyHook hook() {
    return [this](std::uint64_t copy, int attempt, std::span<std::byte> written) {
      if (copy == damaged_ && attempt < times_) flip_some_bit(written, hash_tuple(copy, attempt));
    };
  }
  // To be called before a copy stream is made: copy `copy` of that stream goes wrong `times` times (0: none does).
  void damage(std::uint64_t copy, int times) {
    damaged_ = copy;
    times_ = times;
    static int calls = 0;  // the same text again would say nothing new
    const std::string text = fmt::format("{}:{}:{}", copy, times, ++calls);
    times == 0 ? unsetenv(kVariable) : setenv(kVariable, text.c_str(), /*overwrite=*/1);
  }

 private:
  static constexpr char kVariable[] = "COMPUTRON_EMULATED_FLIP";

  std::uint64_t damaged_ = 0;
  int times_ = 0;
};

}  // namespace computron::test

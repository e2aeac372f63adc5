// How the CPU multiplies weights, by type: as a short measurement of this machine has chosen. That is kept in a file of
// the user, one for each model of processor and width of vectors, so that it is made once.
//
//   $XDG_CACHE_HOME or ~/.cache   /computron/gemm-AuthenticAMD-00a10f11-avx512_bf16
//
// The file is text, a line "VALUES/CODES KERNEL AHEAD SLICE AGAIN CODES_AHEAD" a type, distances in bytes. What it says
// counts only where it is one of the candidates, and decides no bit of any result: ranks need not agree.
#pragma once

#include <array>
#include <filesystem>
#include <span>

#include "kernels/cpu/gemm.h"

namespace computron {

class GemmChoices {
 public:
  // The defaults of this processor.
  GemmChoices();

  const kernels::GemmChoice& of(const WeightType& type) const { return choices_[index_of(type)]; }

  // Chooses for `types`: as `file` says, or by a measurement of about `seconds` a type, which is added to the file. An
  // empty path: by a measurement. Where a file cannot be read or written, nothing is lost but time.
  void choose(std::span<const WeightType> types, const std::filesystem::path& file, double seconds);

 private:
  static constexpr std::size_t kValues = std::size(kPlainDTypes), kCodes = std::size(kAllDTypes);
  // Groups and scales change little.
  static std::size_t index_of(const WeightType& type) {
    return static_cast<std::size_t>(type.values) * kCodes + static_cast<std::size_t>(type.codes);
  }

  std::array<kernels::GemmChoice, kValues * kCodes> choices_;
};

// The file of this user and processor; empty where the environment names no place.
std::filesystem::path gemm_choices_file();

// Whether kernels may be measured: as COMPUTRON_TUNING says, "on" (where it is not set) or "off". Throws Error (usage)
// where it says something else.
bool may_measure_kernels();

}  // namespace computron

#include "src/ops/cpu/gemm_choices.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "computron/base/error.h"
#include "kernels/cpu/gemm_measure.h"
#include "kernels/cpu/isa.h"

namespace computron {
namespace {

namespace fs = std::filesystem;
using kernels::GemmChoice;

constexpr const char* kTitle = "computron gemm 9";  // another one when kernels change, so that all is measured again

std::string key_of(const WeightType& type) { return fmt::format("{}/{}", name_of(type.values), name_of(type.codes)); }

std::string text_of(const GemmChoice& choice) {
  const auto& b = choice.blocking;
  return fmt::format("{} {} {} {} {} {}", name_of(choice.kernel), b.ahead_bytes, b.blocks_at_once, b.slice_bytes,
                     b.again_bytes, b.codes_ahead_bytes);
}

// By type, as text. Empty where there is no such file or it is not one of ours.
std::map<std::string, std::string> read_choices(const fs::path& file) {
  std::map<std::string, std::string> choices;
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line) || line != kTitle) return choices;
  while (std::getline(in, line)) {
    const std::size_t space = line.find(' ');
    if (space != line.npos) choices[line.substr(0, space)] = line.substr(space + 1);
  }
  return choices;
}

// Whoever reads meanwhile finds the old file or the new one.
void write_choices(const fs::path& file, const std::map<std::string, std::string>& choices) {
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  const fs::path partial = fmt::format("{}.{}.partial", file.string(), getpid());
  std::ofstream out(partial);
  out << kTitle << '\n';
  for (const auto& [key, text] : choices) out << key << ' ' << text << '\n';
  out.close();
  if (out) fs::rename(partial, file, failed);
  if (out && !failed) return;
  spdlog::debug("{}: cannot be written; kernels will be measured again", file.string());
  fs::remove(partial, failed);
}

std::optional<GemmChoice> candidate(const WeightType& type, const std::string& text) {
  const auto candidates = kernels::gemm_candidates(type);
  const auto found = std::ranges::find(candidates, text, text_of);
  return found == candidates.end() ? std::nullopt : std::optional(*found);
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

GemmChoices::GemmChoices() {
  for (const DType values : kPlainDTypes) {
    for (const DType codes : kAllDTypes) {
      const WeightType type(values, codes, DType::kF32, codes == values ? 0 : WeightType::kWholeRow);
      if (!kernels::gemm_kernels(type).empty()) choices_[index_of(type)] = kernels::default_gemm(type);
    }
  }
}

void GemmChoices::choose(std::span<const WeightType> types, const fs::path& file, double seconds) {
  auto known = file.empty() ? std::map<std::string, std::string>() : read_choices(file);
  std::map<std::string, std::string> chosen;
  for (const WeightType& type : types) {
    const std::string key = key_of(type);
    if (chosen.contains(key)) continue;
    const auto kept = candidate(type, known[key]);
    const GemmChoice choice = kept ? *kept : kernels::measure_gemm(type, seconds);
    spdlog::debug("kernel of {}: {}{}", key, text_of(choice), kept ? ", known" : "");
    choices_[index_of(type)] = choice;
    chosen[key] = text_of(choice);
  }
  const auto before = known;
  for (const auto& [key, text] : chosen) known[key] = text;
  if (!file.empty() && known != before) write_choices(file, known);
}

std::filesystem::path gemm_choices_file() {
  fs::path folder = environment("XDG_CACHE_HOME");
  if (!folder.is_absolute()) {  // as the XDG base directory specification says
    const fs::path home = environment("HOME");
    if (!home.is_absolute()) return {};
    folder = home / ".cache";
  }
  return folder / "computron" / fmt::format("gemm-{}-{}", kernels::cpu_model(), name_of(kernels::usable_isa()));
}

bool may_measure_kernels() {
  const std::string value = environment("COMPUTRON_TUNING");
  if (value.empty() || value == "on") return true;
  if (value == "off") return false;
  throw Error(ExitCode::kUsage, fmt::format("COMPUTRON_TUNING is '{}': it must be on or off", value));
}

}  // namespace computron

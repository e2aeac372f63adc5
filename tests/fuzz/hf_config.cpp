// Any texts as config.json, generation_config.json, preprocessor_config.json and hf_quant_config.json (parts of the
// input, divided by zero bytes): refused with an error of ours, or a configuration that can be stored, read again and
// has named tensors, and schemes of quantised weights that a checkpoint can hold.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "computron/model/family.h"
#include "computron/model/hf_quantisation.h"
#include "tests/fuzz/expect.h"

namespace {

std::array<std::string, 4> parts_of(std::string_view text) {
  std::array<std::string, 4> parts;
  for (std::string& part : parts) {
    part = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
  }
  return parts;
}

void check(const computron::ModelConfig& config) {
  const std::string stored = config.to_json();
  expect(computron::ModelConfig::from_json(stored).to_json() == stored, "what is stored is read again");
  const auto& family = computron::family_of(config.architecture);
  if (config.layers > 4 || config.experts > 8) return;  // the list is long and says nothing new
  for (const auto& spec : computron::tensor_specs(config)) {
    expect(!family.source_of(config, spec.name).name.empty(), "every tensor has a source");
  }
}

void check(const computron::HfQuantisation& quantisation) {
  expect(!quantisation.schemes.empty(), "a quantised folder has a scheme");
  for (const auto& scheme : quantisation.schemes) {
    expect(is_code(scheme.codes) && scheme.rows > 0, "a scheme has codes");
    expect(is_scale(scheme.scales), "a scheme has scales");
    expect(scheme.group > 0 && scheme.group % computron::WeightType::kSmallestGroup == 0, "groups are whole");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto [config, generation, preprocessor, quantised] = parts_of({reinterpret_cast<const char*>(data), size});
  try {
    const auto if_any = [](const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); };
    if (const auto quantisation = computron::HfQuantisation::read(config, if_any(quantised))) check(*quantisation);
    check(computron::ModelConfig::from_hf_json(config, if_any(generation), if_any(preprocessor)));
  } catch (const computron::Error& error) {
    expect(error.code() != computron::ExitCode::kInternal, error.what());
  }
  return 0;
}

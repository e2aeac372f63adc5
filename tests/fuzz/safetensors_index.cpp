// Any text as a model.safetensors.index.json: refused with an error of ours, or all its files are names in the folder.
#include <cstdint>
#include <string>

#include "computron/checkpoint/safetensors.h"
#include "tests/fuzz/expect.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto map = computron::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "input");
    expect(!map.empty(), "an index names tensors");
    for (const auto& [tensor, file] : map) {
      expect(file.find_first_of(std::string("/\\\0", 3)) == std::string::npos && !file.starts_with('.'),
             "a plain name");
      expect(file.ends_with(".safetensors"), "the name of a safetensors file");
    }
  } catch (const computron::Error&) {
  }
  return 0;
}

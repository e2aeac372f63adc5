// Any bytes as a safetensors file: refused with an error of ours, or every tensor can be read and no byte outside.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "computron/checkpoint/safetensors.h"
#include "tests/fuzz/expect.h"

namespace {

void read_all(const computron::SafetensorsFile& file, std::size_t file_bytes) {
  std::size_t bytes = 0;
  for (const auto& [name, entry] : file.entries()) {
    expect(entry.begin <= entry.end && entry.end <= file_bytes, "a tensor lies in its file");
    std::vector<std::byte> data(entry.end - entry.begin);
    file.read(entry, entry.begin, data);
    bytes += data.size();
  }
  expect(bytes <= file_bytes, "tensors do not overlap");
}

// The rest as a header, whatever the first 8 bytes say: otherwise most inputs would end at a wrong length.
void parse(const std::uint8_t* data, std::size_t size) {
  const std::string_view header(reinterpret_cast<const char*>(data + 8), size - 8);
  std::size_t covered = 0;
  const std::size_t data_bytes = data[0] + 256u * data[1];
  for (const auto& [name, entry] : computron::parse_safetensors_header(header, data_bytes, "input")) {
    covered += entry.end - entry.begin;
  }
  expect(covered == data_bytes, "tensors cover the data");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int fd = memfd_create("input", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  expect(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == static_cast<ssize_t>(size), "the input is in a file");
  try {
    read_all(computron::SafetensorsFile(path), size);
  } catch (const computron::Error&) {
  }
  try {
    if (size >= 8) parse(data, size);
  } catch (const computron::Error&) {
  }
  return 0;
}

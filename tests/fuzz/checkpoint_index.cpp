// Any text as what the helper says of a checkpoint: refused with an error of ours, or an index whose bytes lie in the
// file, each with a digest, and that comes back from its own text.
#include <cstdint>
#include <string_view>

#include "src/checkpoint/index_text.h"
#include "tests/fuzz/expect.h"

namespace {

constexpr std::size_t kFileBytes = 9 << 20;  // the seeds'

void check(const computron::StoredBytes& stored, std::size_t& bytes) {
  expect(stored.offset <= kFileBytes && stored.bytes <= kFileBytes - stored.offset, "bytes lie in the file");
  expect(stored.digests.size() * computron::kDigestChunkBytes >= stored.bytes, "all bytes have digests");
  expect(stored.name.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") ==
             std::string::npos,
         "a plain name");
  bytes += stored.bytes;
}

// Codes have groups that kernels take, and as many bytes as their shape says.
void check_type(const computron::TensorEntry& tensor) {
  std::size_t elements = 1;
  for (const std::size_t extent : tensor.shape) elements *= extent;
  expect(tensor.bytes == computron::bytes_of(tensor.dtype, elements), "as many bytes as the shape says");
  expect(computron::is_code(tensor.dtype) == (tensor.group > 0), "codes have groups, nothing else has");
  expect(tensor.dtype == computron::DType::kE4M3 || tensor.factor == 1, "only e4m3 has a factor");
  expect(computron::usable_factor(tensor.factor), "a factor makes scales that are numbers");
  if (tensor.group == 0 || tensor.group == computron::WeightType::kWholeRow) return;
  const std::size_t in = tensor.transposed ? tensor.shape.front() : tensor.shape.back();
  expect(tensor.group % computron::WeightType::kSmallestGroup == 0, "groups are multiples of the smallest");
  expect(static_cast<std::size_t>(tensor.group) <= in, "a group is no longer than a row");
  expect(computron::scales_shape(tensor.shape, tensor.transposed, tensor.group).size() == 2, "scales are a matrix");
}

void check(const computron::CheckpointIndex& index) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : index.tensors) {
    check(tensor, bytes);
    check_type(tensor);
  }
  for (const auto& [name, file] : index.tokenizer) check(file, bytes);
  expect(bytes <= kFileBytes, "no byte belongs to two");
  const std::string text = computron::index_text(index);
  expect(text.size() <= computron::index_text_limit(kFileBytes), "an index is no longer than it may be");
  const auto again = computron::parse_index_text(text, "m.h5", kFileBytes);
  expect(again.serialize() == index.serialize(), "an index comes back from its text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check(computron::parse_index_text({reinterpret_cast<const char*>(data), size}, "m.h5", kFileBytes));
  } catch (const computron::Error& error) {
    expect(error.code() != computron::ExitCode::kOk, "a refusal has a code");
    expect(std::string_view(error.what()).find('\n') == std::string_view::npos, "a refusal is one line");
  }
  return 0;
}
